"""What is neither a wait nor idle is shown apart: polls, NCCL's spinning, migrations, calls without an end, clocks."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from conftest import Capture
from test_attribution_oracle import compare
from trace_builder import TraceBuilder

from nsys_sync import analyze
from nsys_sync.model import Polling
from nsys_sync.render.html import render_html
from nsys_sync.render.markdown import render_markdown
from nsys_sync.render.terminal import render_terminal

NOT_READY = 600


def polling(name: str, calls: int, *, too_early: int, pause_ns: int = 100) -> TraceBuilder:
    """A launch, so many polls that wait for it, and a launch more."""
    trace = TraceBuilder()
    thread = trace.process(1).thread(1, "poller")
    thread.launch(0, 5, gpu=(10, 1_000 * calls))
    for i in range(calls):
        at = 100 + i * (200 + pause_ns)
        thread.api(name, at, at + 200)
        trace.tables["CUPTI_ACTIVITY_KIND_RUNTIME"][-1]["returnValue"] = NOT_READY if i < too_early else 0
    thread.launch(1_000 * calls + 10, 1_000 * calls + 15, gpu=(1_000 * calls + 20, 1_000 * calls + 30))
    thread.stream_sync(1_000 * calls + 16, 1_000 * calls + 31)
    return trace


@pytest.mark.parametrize(
    ("name", "too_early"),
    [
        pytest.param(
            "cuStreamQuery",
            4_999,
            marks=pytest.mark.met("5 calls", "5,000 polls by cuStreamQuery", "reported as polling, not as blocking"),
        ),
        pytest.param(
            "cudaEventQuery_v3020",
            4_999,
            marks=pytest.mark.met("5 calls", "5,000 polls by cudaEventQuery", "reported as polling, not as blocking"),
        ),
        pytest.param(
            "cudaStreamQuery_ptsz_v7000",
            0,
            marks=pytest.mark.met("5 calls", "5,000 polls whose results are all 0", "reported as polling"),
        ),
    ],
)
def test_thousands_of_polls(name: str, too_early: int, tmp_path: Path) -> None:
    path = polling(name, 5_000, too_early=too_early).write(tmp_path / "t.sqlite")
    found = analyze(path)
    (trace,) = found.traces
    plain = re.sub("_.*", "", name)
    length = 4_999 * 300 + 200
    assert trace.polling == (Polling(1, 1, "poller", plain, 5_000, 1, length, length, 100),)
    assert (trace.coverage.operations, found.sites[0].blocked.total_ns) == (1, 15)
    sentence = f"Polling, not blocking: 5,000 calls of {plain} on thread 1"
    for text in (render_terminal(found, width=200, color=False, top=9), render_markdown(found), render_html(found)):
        assert sentence in " ".join(re.sub(r"[\\<>`]", "", text).split())
    compare(path)


@pytest.mark.met("5 calls", "a few polls of events that are done", "no polling: an allocator asks so")
def test_a_few_polls(tmp_path: Path) -> None:
    for calls, early in ((15, 15), (900, 15)):
        path = polling("cudaEventQuery_v3020", calls, too_early=early).write(tmp_path / "t.sqlite")
        assert analyze(path).traces[0].polling == ()


@pytest.mark.met("5 calls", "polls with a stack for every call: two rows a call", "each counted once")
def test_polls_with_stacks(tmp_path: Path) -> None:
    trace = TraceBuilder()
    thread = trace.process(1).thread(1)
    thread.launch(0, 5, gpu=(10, 20_000))
    for i in range(30):
        thread.api(
            "cudaEventQuery_v3020", 100 + 300 * i, 300 + 300 * i, backtrace=True, inner=(120 + 300 * i, 290 + 300 * i)
        )
    for row in trace.tables["CUPTI_ACTIVITY_KIND_RUNTIME"]:
        row["returnValue"] = NOT_READY
    thread.stream_sync(20_100, 20_200)
    (one,) = analyze(trace.write(tmp_path / "t.sqlite")).traces[0].polling
    assert (one.calls, one.runs, one.polled_ns) == (30, 1, 29 * 300 + 200)


@pytest.mark.met("5 calls", "a program that polls (real)", "its four loops, to the nanosecond")
@pytest.mark.parametrize("schema", ["3.7.2", "3.20.3"])
def test_real_polls(schema: str, capture: Capture) -> None:
    path = capture(f"polls.schema-{schema}")
    (one,) = analyze(path).traces[0].polling
    # Read off the export: 898, 926, 994 and 1,013 calls in 1.426538, 1.469543, 1.536006 and 1.544233 ms.
    assert (one.api, one.calls, one.runs) == ("cudaEventQuery", 898 + 926 + 994 + 1_013, 4)
    assert (one.polled_ns, one.longest_ns) == (1_426_538 + 1_469_543 + 1_536_006 + 1_544_233, 1_544_233)


# ---- NCCL


@pytest.mark.met(
    "8 graphs, memory, communication", "NCCL kernels beside others", "only time in which they run alone is apart"
)
def test_communication_alone(tmp_path: Path) -> None:
    trace = TraceBuilder()
    thread = trace.process(1).thread(1)
    thread.launch(0, 5, gpu=(10, 100))
    thread.launch(6, 9, gpu=(50, 300), stream=8, kernel="ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    thread.launch(12, 15, gpu=(250, 260))
    thread.launch(16, 18, gpu=(400, 500), kernel="my_ncclKernel_user")
    thread.stream_sync(20, 510)
    (device,) = analyze(trace.write(tmp_path / "t.sqlite")).traces[0].devices
    assert (device.busy_ns, device.communication_ns) == (290 + 100, 150 + 40)
    with closing(sqlite3.connect(tmp_path / "t.sqlite")) as connection, connection:
        connection.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN shortName")
    (device,) = analyze(tmp_path / "t.sqlite").traces[0].devices
    assert (device.busy_ns, device.communication_ns) == (390, None)


@pytest.mark.met(
    "8 graphs, memory, communication",
    "two ranks, one of them late (real)",
    "the waiting rank's busy time is NCCL's spinning",
)
def test_real_communication(capture: Capture) -> None:
    path = capture("nccl_late.schema-3.20.3")
    found = analyze(path)
    waiting, late = found.traces[0].devices
    with closing(sqlite3.connect(path)) as connection:
        lengths = {
            device: (total, longest)
            for device, total, longest in connection.execute(
                "SELECT deviceId, sum(k.end - start), max(k.end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL k "
                "JOIN StringIds s ON s.id = shortName WHERE value GLOB 'nccl*' GROUP BY deviceId"
            )
        }
    # Both processes run on a GPU of their own, one stream each: NCCL's kernels run alone.
    assert sorted(total for total, _ in lengths.values()) == sorted([waiting.communication_ns, late.communication_ns])
    assert waiting.communication_ns is not None and late.communication_ns is not None
    assert waiting.communication_ns > 150_000_000 > 1_000_000 > late.communication_ns
    assert "busy with NCCL kernels alone: they spin while other ranks are late" in " ".join(
        render_terminal(found, width=200, color=False, top=9).split()
    )
    # PyTorch's watchdog thread asks after every collective once: that is no polling.
    assert found.traces[0].polling == ()


# ---- what has no launch, no end, or another clock


@pytest.mark.met(
    "8 graphs, memory, communication", "migrations of unified memory (real)", "counted, and said to be busy"
)
def test_migrations(capture: Capture) -> None:
    (text,) = [
        text for text in analyze(capture("managed.schema-3.7.2")).traces[0].coverage.warnings if "unified" in text
    ]
    assert text.startswith("763 migrations of unified memory count as busy: 2.497 ms in all")


@pytest.mark.met("5 calls", "the wait with which nsys itself ends a capture (real)", "no sync site")
def test_the_profilers_own_wait(capture: Capture) -> None:
    """Its cuCtxSynchronize took 59.96 ms, under the correlation id of cuProfilerStop."""
    found = analyze(capture("edges.schema-3.7.2"))
    assert max(site.blocked.max_ns for site in found.sites) < 59_000_000
    assert all("cuCtxSynchronize" not in site.kind.apis for site in found.sites)
    compare(capture("edges.schema-3.7.2"))


@pytest.mark.parametrize(
    ("start", "end"),
    [
        pytest.param(start, end, marks=pytest.mark.met("5 calls", case, "left out of the waits, and counted"))
        for start, end, case in (
            (60, None, "a wait that never ended (NULL)"),
            (60, 0, "a wait that never ended (0)"),
            (60, 59, "a wait that ends before its start"),
            (-60, 0, "a wait before the session's start that never ended (0)"),
        )
    ],
)
def test_waits_without_an_end(start: int, end: int | None, tmp_path: Path) -> None:
    trace = TraceBuilder()
    thread = trace.process(1).thread(1)
    thread.launch(-90, -85, gpu=(-80, -70))
    thread.stream_sync(start, end)
    thread.launch(100, 105, gpu=(110, 120))
    thread.stream_sync(106, 125)
    path = trace.write(tmp_path / "t.sqlite")
    found = analyze(path)
    assert (found.traces[0].coverage.unfinished_calls, found.traces[0].coverage.operations) == (1, 1)
    compare(path)


@pytest.mark.met(
    "7 times", "kernels that start before their launch call (clocks that differ)", "clamped, counted, reported"
)
def test_kernels_before_their_launch(tmp_path: Path) -> None:
    """The launch that ends the gap begins 300 ns after its kernel: 1,024 launches between them are not between the wait
    and that kernel, so the wait's credit has not lapsed.
    """
    trace = TraceBuilder()
    process = trace.process(1)
    thread, other = process.thread(1), process.thread(2)
    thread.launch(0, 5, gpu=(10, 1_000))
    thread.stream_sync(6, 1_010)
    for i in range(1_024):
        other.launch(40_000 + i, 40_000 + i, gpu=(50_000 + 2 * i, 50_001 + 2 * i), stream=8)
    thread.launch(41_500, 41_505, gpu=(1_500, 49_000))
    path = trace.write(tmp_path / "t.sqlite")
    found = analyze(path)
    (device,) = found.traces[0].devices
    assert (device.stall_ns, device.host_bound_ns, device.device_side_ns) == (500, 0, 1_000 + 1_023)
    (text,) = [text for text in found.traces[0].coverage.warnings if "clocks" in text]
    assert text == "1 of 1026 GPU rows begin before their launch call does: the clocks differ"
    compare(path)
