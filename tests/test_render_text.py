"""Numbers as people read them, and names that cannot steer what shows them."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsys_sync.render.text import clip, count, duration, plain, plain_name, ratio, short_file, time_point


@pytest.mark.parametrize(
    ("ns", "shown"),
    [
        (None, "not known"),
        (0, "0 ns"),
        (1, "1 ns"),
        (999, "999 ns"),
        (12.34, "12.3 ns"),
        (999.7, "1.00 µs"),
        (1_000, "1.00 µs"),
        (9_994, "9.99 µs"),
        (9_996, "10.0 µs"),
        (685_741, "686 µs"),
        (999_499, "999 µs"),
        (999_700, "1.00 ms"),
        (53_282_752, "53.3 ms"),
        (97_628_562, "97.6 ms"),
        (633_927_493, "634 ms"),
        (1_143_582_408, "1.14 s"),
        (-5_000, "-5.00 µs"),
        (12_345_678_900_000, "12,346 s"),
    ],
)
def test_durations(ns: float | None, shown: str) -> None:
    assert duration(ns) == shown


@pytest.mark.parametrize(
    ("part", "whole", "shown"),
    [
        (97_628_562, 633_927_493, "15.4 %"),
        (5_967_859, 633_927_493, "0.94 %"),
        (274_586, 633_927_493, "0.04 %"),
        (1, 633_927_493, "< 0.01 %"),
        (0, 633_927_493, "0 %"),
        (5, 5, "100.0 %"),
        (None, 5, "not known"),
        (5, None, "not known"),
        (5, 0, "not known"),
    ],
)
def test_ratios(part: float | None, whole: float | None, shown: str) -> None:
    assert ratio(part, whole) == shown


def test_counts_agree_with_their_nouns() -> None:
    assert count(1, "call") == "1 call"
    assert count(5000, "call") == "5,000 calls"
    assert count(0, "call") == "0 calls"
    assert count(15.95, "sync") == "15.9 syncs" or count(15.95, "sync") == "16.0 syncs"
    assert count(2, "graph launch", "graph launches") == "2 graph launches"
    assert count(None, "call") == "not known"


def test_moments_are_exact() -> None:
    assert time_point(2_104_000_123) == "2.104000123 s"
    assert time_point(-1) == "-0.000000001 s"


def test_what_steers_a_terminal_becomes_visible() -> None:
    assert plain("\x1b[2J\r\n\u202eevil\x00\ud800\u2066\x9b") == "\\x1b[2J\\r\\n\\u202eevil\\x00\\ud800\\u2066\\x9b"
    assert plain("数値 é µs <module>") == "数値 é µs <module>"


@given(st.text(st.characters()))
def test_plain_leaves_nothing_that_steers(text: str) -> None:
    shown = plain(text)
    shown.encode("utf-8")
    assert not {unicodedata.category(ch) for ch in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}


@given(st.text(), st.integers(4, 50))
def test_clipped_text_fits(text: str, length: int) -> None:
    assert len(clip(text, length)) == min(len(text), length)


@given(st.text(max_size=80), st.integers(4, 12))
def test_a_plain_name_is_the_plain_text_clipped(text: str, length: int) -> None:
    assert plain_name(text, length) == clip(plain(text), length)


def test_a_name_of_a_megabyte_is_cut_by_characters() -> None:
    shown = plain_name("head" + "x" * 1_000_000 + "tail")
    assert len(shown) == 300
    assert shown.startswith("headx")
    assert shown.endswith("xtail")
    assert len(plain_name("e" + "\u0301" * 5_000)) == 300


def test_short_file_keeps_the_nearest_folders() -> None:
    assert short_file("~/work/train/loop.py") == "train/loop.py"
    assert short_file("~/work/train/loop.py", 0) == "loop.py"
    assert short_file("C:\\work\\loop.py", 0) == "loop.py"
    assert short_file("/workspace/loop.py") == "/workspace/loop.py"  # nothing but the root would be left out
    assert short_file("/workspace/train/loop.py") == "train/loop.py"
    assert short_file("/workspace/loop.py", 0) == "loop.py"
    assert short_file("<ipython-input-3>", 1) == "<ipython-input-3>"
