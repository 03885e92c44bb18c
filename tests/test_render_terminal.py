"""The terminal report says what the figures are, fits its width, and stays harmless."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import render_sample
from rich.cells import cell_len

from nsys_sync.model import Analysis, Omitted
from nsys_sync.render.summary import headline
from nsys_sync.render.terminal import render_terminal
from nsys_sync.render.text import plain_name

SAMPLES = [
    render_sample.gpu_bound,
    render_sample.hostile,
    render_sample.refused,
    render_sample.ranks,
    render_sample.nothing,
    render_sample.started,
    render_sample.one_process,
    render_sample.host_bound,
    render_sample.unexplained,
]


def render(analysis: Analysis, width: int = 100, color: bool = False, top: int = 10) -> str:
    return render_terminal(analysis, width=width, color=color, top=top)


def test_the_first_line_is_the_answer() -> None:
    first = render(render_sample.gpu_bound(), width=200).splitlines()[0]
    assert first == (
        "GPU idle 16.3 % of 634 ms; 15.4 % (97.6 ms) because of 5 of 6 sync sites; "
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
        r"1 +53\.3 ms +1\.33 ms +8\.4 % +40 +310 ms +\S*gpu_bound\.py:28 read_loss",
        r"6 +0 ns +0 ns +0 % +1 +2\.00 ms +\S*gpu_bound\.py:69 main",
        r"Start-up apart: stall 97\.6 ms, of which 1\.20 ms in start-up and 96\.4 ms outside it\.\n",
        r"Process 4242: start-up ends at t = 2\.116345801 s \(first step begins\)",
        r"196 of 201 sync operations located by an exact Python stack; 5 by python sample",
        r"Not captured: stacks of synchronous copies",
        r"Profiler warning: Unknown runtime API function index: 490",
        r"Processes without GPU work on record: pt_data_worker \(pid 4300\)",
    ):
        assert re.search(expected, text), expected


def test_the_table_says_where_whether_it_can_go_and_why() -> None:
    text = render(render_sample.gpu_bound())
    lines = [line.strip() for line in text[text.index("Sync sites") : text.index("What to do")].splitlines()]
    assert lines[1] == "#    stall  in start-up  window  calls  blocked  where, whether it can go, and why it waits"
    assert lines[2].endswith("~/work/train/gpu_bound.py:28 read_loss")
    assert lines[3:6] == ["total += loss.item()", "can go (likely), every step; one number is read:", ".item()"]
    assert lines[19:21] == [
        "needed: dynamic shape, every step; boolean mask as",
        "index: x[mask] (data-dependent shape)",
    ]
    assert lines[21].endswith("~/work/train/gpu_bound.py:69 main")
    assert lines[23] == "asked for, once; explicit synchronize:"
    wide = render(render_sample.gpu_bound(), width=160)
    assert re.search(
        r"gpu_bound\.py:28 read_loss +can go \(likely\), every step; one number is read: \.item\(\)\n", wide
    )
    narrow = render(render_sample.gpu_bound(), width=40)
    assert "   total += loss.item()\n   40 calls, blocked 310 ms\n   can go (likely), every step; one\n" in narrow


def test_what_to_do_about_the_worst_sites() -> None:
    text = render(render_sample.gpu_bound())
    start = text.index("What to do\n")
    assert (
        text[start : text.index("Coverage")]
        == """\
What to do
  Of 97.6 ms stall in the sites: 71.9 ms can go (2 sites), 15.1 ms needed (2 sites), 0 ns asked for
  (1 site), 10.6 ms not known (1 site).

 1. read_loss train/gpu_bound.py:28: stall 53.3 ms (8.4 % of the window), 40 calls, every step
    Can go (likely): only summed and printed: `total += loss.item()`.
 3. clip train/gpu_bound.py:40: stall 14.4 ms (2.3 % of the window), 40 calls, every step
    Needed for control flow: `if norm > 1.0:` in line 41.
    → Keep the loss on the GPU and read it once, after the loop
      Summing on the GPU queues one small kernel; only the read at the end waits.
      before:
        for x in loader:
            loss = step(x)
            total += loss.item()
      after:
        total = torch.zeros((), device='cuda')
        for x in loader:
            total += step(x).detach()
        print(total.item())
      Beware: The graph of each step is kept alive without `.detach()`.
      https://docs.pytorch.org/docs/stable/generated/torch.Tensor.item.html
    → or: Read it only every 100 steps

 2. upload train/gpu_bound.py:23: stall 18.6 ms (2.9 % of the window), 40 calls, every step
    Can go: an upload gives the CPU nothing to read.
    → Upload from pinned memory, without blocking
      `pin_memory=True` on the DataLoader and `non_blocking=True` on the copy let the CPU go on.
      before:
        loader = DataLoader(data, batch_size=64)
        x = x.to('cuda')
      after:
        loader = DataLoader(data, batch_size=64, pin_memory=True)
        x = x.to('cuda', non_blocking=True)
      https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html

 5. sum_positive train/gpu_bound.py:34: stall 686 µs (0.11 % of the window), 40 calls, every step
    Needed for dynamic shape: the result is as long as the mask has ones.
    Data-dependent shape: also breaks CUDA-graph capture.
    → Replace the mask by `torch.where`
      The result keeps its shape, so nothing has to be counted.
      before:
        s = x[x > 0].sum()
      after:
        s = torch.where(x > 0, x, 0).sum()
      https://docs.pytorch.org/docs/stable/generated/torch.where.html

 - main gpu_bound.py:69: 1 of 1 wait found nothing to wait for: can go.
 - read_loss gpu_bound.py:28, clip gpu_bound.py:40: these 3 reads can be 1 (put the values together
   on the GPU, read once): 60 reads in 20 runs, of which 20 would be left.

Syncs inside NVTX ranges
  Counted are syncs on the range's own thread and on threads without ranges; in start/end ranges, on
  all threads.
 - step *: 200 syncs in 20 of 20 ranges, 190 of them after each thread's first (warm-up)
 - warm-up: 5 syncs in 1 of 2 ranges, none after each thread's first (warm-up)
 - sync-free: forward, optimizer

"""
    )


def test_host_bound_time_is_explained() -> None:
    text = render(render_sample.host_bound())
    assert (
        text[text.index("Host-bound\n") : text.index("Coverage")]
        == """\
Host-bound
  What Python did in 142 ms of host-bound time, estimated from 123 samples, 1 per ms:
    about 65.8 ms  data loading: next_batch w/load.py:12 (57 of 123 samples)
    about 46.2 ms  data loading: augment w/load.py:31 (40 of 123 samples, in randn
                   numpy/random/mtrand.py:10)
    about 30.0 ms  Python: main w/train.py:80 (26 of 123 samples)
 - CUDA calls in the host-bound time (exact): cudaHostAlloc 31.2 ms over 12 calls, cuModuleLoadData
   2.00 ms over 1 call.
 - Hidden wait for the GPU, which no CUDA call shows: block_until_ready at fit w/fit.py:9, about
   12.0 ms, estimated from 12 samples, 1 per ms.

"""
    )


def test_there_is_no_part_without_something_to_say() -> None:
    text = render(render_sample.unexplained())
    for part in ("What to do", "Syncs inside", "Host-bound", "→"):
        assert part not in text
    assert "not known, every step; .item() (DtoH copy, pinned" in text


def test_several_traces_have_ranges_each() -> None:
    text = render(render_sample.ranks())
    assert "Syncs inside NVTX ranges of rank0.sqlite\n" in text
    assert "Syncs inside NVTX ranges of rank1.sqlite\n" in text


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
    assert "12 more sites not shown (--top 6): 340 calls, stall 293 ms, blocked 70.0 ms." in text
    assert "Coverage of rank1.sqlite" in text


def test_sites_past_top_are_counted() -> None:
    text = render(render_sample.gpu_bound(), top=4)  # the fifth is not explained either
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


def test_the_headline_speaks_of_the_sites_shown_only() -> None:
    chosen = render_sample.one_process()
    # 0.655 ms of 633.9 ms; the device's other 17.922598 ms are 2.83 % of it
    assert headline(chosen) == (
        "GPU idle 16.3 % of 634 ms; 0.10 % (655 µs) because of 1 sync site; worst: item_loop gpu_bound.py:4, "
        "655 µs over 20 calls; a further 2.8 % (17.9 ms) is stall of processes not shown"
    )
    without = replace(chosen, sites=render_sample.gpu_bound().sites[5:])
    assert headline(without) == (
        "GPU idle 16.3 % of 634 ms; none of it because of the sync calls shown (1 sync site); "
        "2.9 % (18.6 ms) is stall of processes not shown"
    )


def test_an_empty_selection_is_explained() -> None:
    empty = replace(render_sample.one_process(), sites=())
    assert headline(empty) == (
        "GPU idle 16.3 % of 634 ms; no sync operations in the selection; "
        "2.9 % (18.6 ms) is stall of processes not shown"
    )
    trace = empty.traces[0]
    coverage = replace(trace.coverage, operations=0, located_by=())
    text = render(replace(empty, traces=(replace(trace, coverage=coverage),)))
    assert "\nNo sync operations in the selection.\n" in text
    assert " - There is no sync operation to be located.\n" in text
    assert "0 of 0" not in text


def test_the_headline_counts_what_was_left_out() -> None:
    base = render_sample.gpu_bound()
    # The first two of six sites stay: the rest have 25,750,085 ns of the 97,628,562 ns.
    some = replace(base, sites=base.sites[:2], omitted=Omitted(4, 121, 25_750_085, 175_000_000, "--top 2"))
    assert headline(some) == (
        "GPU idle 16.3 % of 634 ms; 15.4 % (97.6 ms) because of up to 6 sync sites (4 left out: --top 2); "
        "worst: read_loss gpu_bound.py:28, 53.3 ms over 40 calls"
    )
    all_of_them = replace(base, sites=(), omitted=Omitted(6, 201, 97_628_562, 1, "--min-stall 1 ns"))
    assert headline(all_of_them) == (
        "GPU idle 16.3 % of 634 ms; 15.4 % (97.6 ms) because of up to 6 sync sites (all left out: --min-stall 1 ns)"
    )
    assert "Every sync site was left out." in render(all_of_them)
    # What the sites left out cause is not known: nothing is claimed for a number of sites.
    unknown = replace(some, omitted=replace(some.omitted, stall_ns=None))  # type: ignore[type-var]
    assert headline(unknown) == "GPU idle 16.3 % of 634 ms; 15.4 % (97.6 ms) because of sync calls"


def test_start_up_stands_beside_the_stall_that_contains_it() -> None:
    text = render(render_sample.started())
    assert "Sync sites by stall outside start-up (% of the window of 634 ms)\n" in text
    assert re.search(r"1 +4\.02 ms +0 ns +0\.63 % .*loop\n", text)
    assert re.search(r"2 +4\.97 ms +1\.04 ms +0\.78 % .*load\n", text)
    narrow = render(render_sample.started(), width=60)
    assert "1. stall 4.02 ms (0.63 %)\n" in narrow
    assert "2. stall 4.97 ms (0.78 %), 1.04 ms of it in start-up\n" in narrow
    # 8.99 - 1.04 and 133.75 - 132 ms
    assert (
        "Start-up apart: stall 8.99 ms, of which 1.04 ms in start-up and 7.95 ms outside it; "
        "host-bound 134 ms, of which 132 ms in start-up and 1.75 ms outside it."
    ) in render(render_sample.started(), width=200)
    assert "start-up" not in render(render_sample.refused()).partition("Sync sites")[2]


def test_start_up_that_holds_no_stall_says_so() -> None:
    device = render_sample.make_device(startup_stall_ns=0, host_bound_ns=5_000_000, startup_host_bound_ns=5_000_000)
    text = render(replace(render_sample.gpu_bound(), traces=(render_sample.make_trace(devices=(device,)),)), width=200)
    assert (
        "Start-up apart: stall 97.6 ms, none of it in start-up; "
        "host-bound 5.00 ms, of which 5.00 ms in start-up and 0 ns outside it."
    ) in text


@pytest.mark.parametrize("name", ["L" * 1_000_000, "\x00" * 1_000_000, "e" + "\u0301" * 1_000_000], ids="Lze")
def test_long_names_are_clipped(name: str) -> None:
    text = render(render_sample.long_names(name))
    assert max(cell_len(line) for line in text.splitlines()) <= 100
    assert len(text) < 100_000
    assert "steps'" + plain_name(name) in re.sub(r"\s", "", text)


def test_many_ranks_are_folded() -> None:
    text = render(render_sample.many_ranks(sites=3), width=200)
    assert text.count("Coverage of ") == 8
    assert text.count(": window 634 ms") == 8
    assert "rank63.sqlite" in text
    assert "rank00.sqlite" not in text
    assert (
        "Folded away, those with least stall: 56 of 64 traces and 120 of 128 GPUs. The first line and the sync sites "
        "count them; the JSON report has each."
    ) in text
    # 56 traces of 196 of 201 operations, each with a warning
    assert (
        "56 more traces: 10,976 of 11,256 sync operations located by an exact Python stack; "
        "something not captured or a warning in 56 of the traces."
    ) in text
    assert "olded" not in render(render_sample.ranks())


def test_long_lists_of_coverage_are_counted() -> None:
    base = render_sample.gpu_bound()
    coverage = replace(base.traces[0].coverage, warnings=tuple(f"number {i}" for i in range(11)))
    text = render(replace(base, traces=(replace(base.traces[0], coverage=coverage),)))
    assert " - Warning: number 7\n - 3 more warnings, in the JSON report.\n" in text


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("width", [20, 40, 63, 64, 80, 100, 116, 140, 160])
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
