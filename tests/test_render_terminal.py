"""The terminal report says what the figures are, fits its width, and stays harmless."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import render_sample
from rich.cells import cell_len

from nsys_sync.model import Analysis
from nsys_sync.render.summary import headline
from nsys_sync.render.terminal import render_terminal

SAMPLES = [
    render_sample.gpu_bound,
    render_sample.hostile,
    render_sample.refused,
    render_sample.ranks,
    render_sample.nothing,
]


def render(analysis: Analysis, width: int = 100, color: bool = False, top: int = 10) -> str:
    return render_terminal(analysis, width=width, color=color, top=top)


def test_the_first_line_is_the_answer() -> None:
    first = render(render_sample.gpu_bound(), width=200).splitlines()[0]
    assert first == (
        "GPU idle 16.3 % of 634 ms; 15.4 % (97.6 ms) because of 5 sync sites; "
        "worst: read_loss gpu_bound.py:28, 53.3 ms over 40 calls"
    )


def test_the_figures_of_gpu_bound() -> None:
    text = render(render_sample.gpu_bound(), width=120)
    for expected in (
        r"gpu_bound\.sqlite \(nsys 2023\.4\.4\.54-234433681190v0, export schema 3\.7\.2\)",
        r"GPU 0, NVIDIA H200: window 634 ms",
        r"530 ms +83\.6 % +busy",
        r"97\.6 ms +15\.4 % +stall: removable by removing syncs",
        r"0 ns +0 % +host-bound",
        r"5\.97 ms +0\.94 % +device-side",
        r"275 µs +0\.04 % +profiler",
        r"10 syncs per step, 20 steps 'step \*'",
        r"1 +53\.3 ms +8\.4 % +40 +310 ms +\S*gpu_bound\.py:28 read_loss",
        r"6 +0 ns +0 % +1 +2\.00 ms +\S*gpu_bound\.py:69 main",
        r"Start-up on GPU 0, NVIDIA H200: 1\.20 ms of stall, contained",
        r"Process 4242: start-up ends at t = 2\.116345801 s \(first step begins\)",
        r"196 of 201 sync operations located by an exact Python stack; 5 by python sample",
        r"Not captured: stacks of synchronous copies",
        r"Profiler warning: Unknown runtime API function index: 490",
        r"Processes without GPU work on record: pt_data_worker \(pid 4300\)",
    ):
        assert re.search(expected, text), expected


def test_a_refused_device_says_why_and_gives_no_idle_figure() -> None:
    text = render(render_sample.refused(), width=150)
    assert text.startswith("GPU idle time not known")
    assert "idle time not known: 50 CUDA graph launches have no GPU work here" in text
    assert "Sync sites by time blocked" in text
    assert "not known  not known     40" in text
    assert "0 ns" not in text


def test_ranks_are_summed_and_omitted_sites_are_counted() -> None:
    text = render(render_sample.ranks(), width=150)
    assert "GPU idle 16.3 % of 2.54 s (sum over 4 GPUs)" in text
    assert "12 more sites not shown (--top 6): 340 calls, stall 5.00 ms, blocked 70.0 ms." in text
    assert "Coverage of rank1.sqlite" in text


def test_sites_past_top_are_counted() -> None:
    text = render(render_sample.gpu_bound(), top=4)
    assert "4 of 6 sites shown." in text
    # 685,741 + 0 ns over 40 + 1 calls; 9 + 2 ms blocked
    assert "2 more sites below the table's end: 41 calls, stall 686 µs, blocked 11.0 ms." in text
    assert "sum_positive" not in text


def test_no_gpu_is_not_an_idle_gpu() -> None:
    first = render(render_sample.nothing(), width=200).splitlines()[0]
    assert first == "No GPU work on record, so no idle time can be given; no sync operations on record"


def test_no_stall_is_said() -> None:
    base = render_sample.gpu_bound()
    device = render_sample.make_device(stall_ns=0, host_bound_ns=97_628_562)
    quiet = replace(base, stall_ns=0, sites=base.sites[5:], traces=(render_sample.make_trace(devices=(device,)),))
    assert headline(quiet) == "GPU idle 16.3 % of 634 ms; none of it because of sync calls (1 sync site)"
    assert headline(replace(quiet, sites=())) == "GPU idle 16.3 % of 634 ms; no sync operations on record"


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("width", [20, 40, 63, 64, 80, 100, 116, 160])
def test_every_line_fits(sample: object, width: int) -> None:
    text = render(sample(), width=width)  # type: ignore[operator]
    assert max(cell_len(line) for line in text.splitlines()) <= width


@pytest.mark.parametrize("width", [40, 80, 120])
def test_hostile_names_stay_text(width: int) -> None:
    text = render(render_sample.hostile(), width=width)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800]", text)
    assert "[red]b[/red]" in text.replace("\n", "").replace(" ", "")


def test_colour_is_only_there_when_asked_for() -> None:
    assert "\x1b[" not in render(render_sample.gpu_bound())
    coloured = render(render_sample.gpu_bound(), color=True)
    assert "\x1b[1;31m" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured).replace(" ", "") == render(render_sample.gpu_bound()).replace(" ", "")
