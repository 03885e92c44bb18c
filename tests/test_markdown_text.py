"""What a trace holds stays text in Markdown."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsys_sync.render.markdown_text import code, escape_cell


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("train_step", r"train\_step"),
        ("a|b", r"a\|b"),
        ("`x` *y*", r"\`x\` \*y\*"),
        ("<img src=x>", "&lt;img src=x&gt;"),
        ("&lt;", "&amp;lt;"),
        ("@torvalds", "@&#8203;torvalds"),
        ("me@example.com", "me@&#8203;example.com"),
        ("fixes #12", "fixes #&#8203;12"),
        ("https://evil.example", "https://&#8203;evil.example"),
        ("www.evil.example", "www&#8203;.evil.example"),
        ("[a](b)", r"\[a\](b)"),
        ("a\nb\x1b", r"a\\nb\\x1b"),
        ("$x$ \\", r"\$x\$ \\"),
    ],
)
def test_prose(text: str, shown: str) -> None:
    assert escape_cell(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("x = y.item()", "`x = y.item()`"),
        ("  @a <b> https://c  ", "`@a <b> https://c`"),
        ("a|b", "<code>a&#124;b</code>"),
        ("a`b@c", "<code>a&#96;b&#64;&#8203;c</code>"),
        (" ", ""),
        ("a\nb", r"`a\nb`"),
    ],
)
def test_code(text: str, shown: str) -> None:
    assert code(text) == shown


@given(st.text(max_size=400))
def test_nothing_ends_a_cell_or_begins_markup(text: str) -> None:
    for made in (escape_cell(text), code(text)):
        assert "\n" not in made
        assert not re.search(r"(?<!\\)(?:\\\\)*\|", made)
    assert not re.search(r"[<>]|@\w|(?<!\\)(?:\\\\)*[`*_\[]", escape_cell(text))
