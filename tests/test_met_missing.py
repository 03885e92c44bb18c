"""Parts of a trace are missing: what is refused, what is said, and what is marked instead of called idle."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from attribution import attributed
from conftest import Capture
from test_attribution_oracle import compare
from test_reading import changed, statements
from trace_builder import TraceBuilder

from nsys_sync import analyze
from nsys_sync.analysis.budgets import Budgets, check
from nsys_sync.analysis.comparison import compare as compared
from nsys_sync.analysis.intervals import intersect
from nsys_sync.errors import TraceError
from nsys_sync.model import Device
from nsys_sync.render.summary import headline

MISSING = "2 missing parts"
CUDA_TABLES = ("RUNTIME", "DRIVER", "KERNEL", "MEMCPY", "MEMSET", "SYNCHRONIZATION")


def program(trace: TraceBuilder, pid: int = 1, gpu: bool = True) -> None:
    thread = trace.process(pid).thread(pid)
    for at in (0, 100, 200):
        thread.launch(at, at + 5, gpu=(at + 10, at + 60) if gpu else None)
        thread.stream_sync(at + 6, at + 65)


def refusal(path: Path) -> str:
    with pytest.raises(TraceError) as error:
        analyze(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.met(MISSING, "CUDA calls without any GPU row", "refused: GPU idle time is not known")
def test_calls_without_gpu_rows(tmp_path: Path) -> None:
    trace = TraceBuilder()
    program(trace, gpu=False)
    assert "has CUDA calls but no GPU activity" in refusal(trace.write(tmp_path / "t.sqlite"))


@pytest.mark.met(MISSING, "nothing but CUDA graphs, traced as a whole by nsys 2023.4", "refused, with the way out")
def test_graphs_alone(tmp_path: Path) -> None:
    trace = TraceBuilder("3.7.2")
    trace.process(1).thread(1).graph_launch(0, 5, gpu=(10, 20))
    assert "--cuda-graph-trace=node" in refusal(trace.write(tmp_path / "t.sqlite"))


@pytest.mark.met(MISSING, "GPU rows without any CUDA call", "refused: nothing can be said about waits")
def test_gpu_rows_without_calls(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.process(1).gpu_row("KERNEL", (0, 5))
    assert "has GPU activity but no CUDA API calls" in refusal(trace.write(tmp_path / "t.sqlite"))


@pytest.mark.met(MISSING, "an export of a program that used the CPU only", "refused: no CUDA activity was captured")
def test_cpu_only(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.process(1).thread(1).nvtx("work", 0, 100)
    assert "no CUDA activity was captured" in refusal(trace.write(tmp_path / "t.sqlite"))


@pytest.mark.met(MISSING, "an injection into the program that failed", "refused, with what nsys itself says of it")
def test_injection_failed(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.process(1).thread(1).nvtx("work", 0, 100)
    trace.diagnostic("Buffers holding data\nof other kinds", severity=2)
    trace.diagnostic("CUDA injection library\n failed to initialize.", severity=3)
    said = refusal(trace.write(tmp_path / "t.sqlite"))
    assert said.endswith("nsys itself says: CUDA injection library failed to initialize.")


@pytest.mark.met(MISSING, "no GPU work seen under WSL", "refused, saying that WSL is the reason")
def test_wsl(tmp_path: Path) -> None:
    trace = TraceBuilder()
    program(trace, gpu=False)
    path = trace.write(tmp_path / "t.sqlite")
    assert "WSL" not in refusal(path)

    def change(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT)")
        value = "Linux version 5.15.167.4-microsoft-standard-WSL2"
        connection.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('OsVersion', ?)", (value,))

    assert "captured under WSL" in refusal(changed(path, tmp_path, change))


@pytest.mark.met(MISSING, "two processes, of which one has GPU work", "analysed, and the other is named")
def test_one_process_with_gpu_work(tmp_path: Path) -> None:
    trace = TraceBuilder()
    program(trace, pid=1)
    program(trace, pid=2, gpu=False)
    (one,) = analyze(trace.write(tmp_path / "t.sqlite")).traces
    assert [process.pid for process in one.coverage.processes_without_gpu_rows] == [2]
    assert [device.processes for device in one.devices] == [(1,)]


@pytest.mark.met(MISSING, "several ranks, of which one has no GPU work", "refused, and the rank's file is named")
def test_one_rank_with_gpu_work(tmp_path: Path) -> None:
    paths = []
    for rank in (0, 1):
        trace = TraceBuilder()
        program(trace, gpu=rank == 0)
        paths.append(trace.write(tmp_path / f"rank{rank}.sqlite"))
    with pytest.raises(TraceError, match=r"rank1\.sqlite: has CUDA calls but no GPU activity"):
        analyze(*paths)


# ---- what nsys lost

HOLE_MS = (200, 300)
"""Of the window of 634 ms of `gpu_bound`, whose GPU is idle for 16 % of it: in gaps of milliseconds at most."""


def hole(connection: sqlite3.Connection, begin: int, end: int, *, injected: bool = False, calls: bool = True) -> None:
    """Without what CUPTI recorded from `begin` to `end`; the rows that nsys's injection writes stay, unless told."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    for table in (f"CUPTI_ACTIVITY_KIND_{kind}" for kind in CUDA_TABLES):
        if table not in tables or (not calls and table.endswith(("RUNTIME", "DRIVER"))):
            continue
        kept = "" if injected or not table.endswith("RUNTIME") else "AND eventClass <> 67"
        connection.execute(f'DELETE FROM "{table}" WHERE start >= ? AND start < ? {kept}', (begin, end))


def damaged(capture: Capture, name: str, tmp_path: Path, **what: bool) -> tuple[Device, Device, int, int, Path]:
    """The device before and after the damage, and where that is."""
    path = capture(name)
    whole = analyze(path).traces[0].devices[0]
    begin, end = (whole.window_start_ns + ms * 1_000_000 for ms in HOLE_MS)
    path = changed(path, tmp_path, lambda connection: hole(connection, begin, end, **what))
    return whole, analyze(path).traces[0].devices[0], begin, end, path


@pytest.mark.parametrize("schema", ["3.7.2", "3.20.3"])
@pytest.mark.parametrize(
    ("what", "says"),
    [
        pytest.param(
            {"calls": False},
            "launches and copies without their GPU work",
            marks=pytest.mark.met(MISSING, "GPU rows lost in the middle", "the stretch is marked as not captured"),
        ),
        pytest.param(
            {},
            "calls without CUPTI's record of them",
            marks=pytest.mark.met(
                MISSING,
                "calls and GPU rows lost in the middle (nsys older than CUDA)",
                "marked as not captured, not idle",
            ),
        ),
        pytest.param(
            {"injected": True},
            "Python stacks of CUDA calls that are missing",
            marks=pytest.mark.met(MISSING, "all CUDA events lost in the middle", "marked as not captured, not idle"),
        ),
    ],
)
def test_a_damaged_stretch_is_marked_and_not_idle(
    what: dict[str, bool], says: str, schema: str, capture: Capture, tmp_path: Path
) -> None:
    whole, device, begin, end, path = damaged(capture, f"gpu_bound.schema-{schema}", tmp_path, **what)
    assert device.not_captured_ns is not None and device.idle_ns is not None and whole.idle_ns is not None
    length = end - begin
    assert 0.97 * length < device.not_captured_ns < 1.03 * length
    # Outside, idle time is what it was: some 16 % of the stretch is less, and a gap on its edge more.
    assert device.idle_ns < whole.idle_ns
    assert device.busy_ns + device.idle_ns + (device.profiler_ns or 0) + device.not_captured_ns == device.window_ns
    text = analyze(path).traces[0].coverage.lost_events
    assert text and says in text and "not called idle" in text
    (account,) = attributed(path).accounts
    for charged in (account.stall, account.host_bound, account.device_side, account.profiler):
        assert not len(intersect(charged, account.time.not_captured)[0])
    # A range beside it has nothing of it.
    (before,) = analyze(path, time_range=(None, begin - 20_000_000)).traces
    assert before.devices[0].not_captured_ns == 0 and before.coverage.lost_events is None
    timeline = device.timeline
    inside = [i for i in range(400) if begin < timeline.start_ns + i * timeline.bin_ns < end - timeline.bin_ns]
    assert sum(timeline.unknown_ns[i] for i in inside) > 0.97 * sum(timeline.bin_ns for _ in inside)


@pytest.mark.met(MISSING, "a budget for a trace of which nsys lost a part", "never held by what is not on record")
def test_budgets_where_events_are_lost(capture: Capture, tmp_path: Path) -> None:
    """16 % stall of 634 ms, and 100 ms lost: somewhere between 13 and 29 %."""
    *_, path = damaged(capture, "gpu_bound.schema-3.7.2", tmp_path)
    found = analyze(path)
    assert found.stall_ns is not None and 0.11 < found.stall_ns / found.window_ns < 0.14
    for limit, state in ((0.1, "broken"), (0.2, "not known"), (0.32, "held")):
        (budget,) = check(found, Budgets(max_stall_ratio=limit)).budgets
        assert budget.state == state
    (budget,) = check(found, Budgets(max_syncs_per_step=50)).budgets
    assert budget.state == "not known" and "nsys lost CUDA events" in budget.reason
    (budget,) = check(analyze(capture("gpu_bound.schema-3.7.2")), Budgets(max_syncs_per_step=50)).budgets
    assert budget.state == "held"


@pytest.mark.met(MISSING, "copies whose GPU rows are lost", "the time around them is marked; no budget is held by it")
def test_lost_copies(capture: Capture, tmp_path: Path) -> None:
    path = changed(
        capture("sync_heavy.schema-3.20.3"),
        tmp_path,
        statements("DROP TABLE CUPTI_ACTIVITY_KIND_MEMCPY"),
    )
    found = analyze(path)
    assert "launches and copies without their GPU work" in (found.traces[0].coverage.lost_events or "")
    (budget,) = check(found, Budgets(max_stall_ratio=0.05)).budgets
    assert budget.state == "not known"
    compare(path)


@pytest.mark.met(MISSING, "a budget for a trace whose end nsys lost", "not held, and the headline says what is missing")
def test_budgets_where_the_end_is_lost(capture: Capture) -> None:
    found = analyze(capture("sync_causes_distributed.schema-3.7.2"))
    assert found.traces[0].coverage.lost_beyond_window
    (budget,) = check(found, Budgets(max_stall_ratio=0.9)).budgets
    assert budget.state == "not known" and "nsys lost CUDA events" in budget.reason
    assert "nsys lost events beyond that window" in headline(found)


@pytest.mark.met(MISSING, "synchronize calls that never ended", "no budget is held by them")
def test_budgets_where_waits_never_ended(capture: Capture, tmp_path: Path) -> None:
    path = changed(
        capture("gpu_bound.schema-3.7.2"),
        tmp_path,
        statements("UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET end = 0"),
    )
    found = analyze(path)
    assert found.traces[0].coverage.unfinished_waits > 200
    budgets = check(found, Budgets(max_stall_ratio=0.01, max_syncs_per_step=0, sync_free_ranges=("step *",))).budgets
    assert [budget.state for budget in budgets] == ["not known"] * 3


@pytest.mark.met(MISSING, "GPU rows without an end", "not idle until the next work of their thread")
def test_gpu_rows_without_an_end(capture: Capture, tmp_path: Path) -> None:
    path = changed(
        capture("gpu_bound.schema-3.7.2"),
        tmp_path,
        statements("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = 0"),
    )
    (device,) = analyze(path).traces[0].devices
    assert device.idle_ns is not None and device.idle_ns < 103_000_000
    compare(path)


@pytest.mark.met(MISSING, "a diff of which one side lost events", "idle time is not compared, and the reason is said")
def test_diff_where_events_are_lost(capture: Capture, tmp_path: Path) -> None:
    whole = capture("gpu_bound.schema-3.7.2")
    *_, path = damaged(capture, "gpu_bound.schema-3.7.2", tmp_path)
    comparison = compared(analyze(whole), analyze(path))
    (limit,) = [one for one in comparison.not_comparable if one.forbids == "idle"]
    assert "after: nsys lost CUDA events" in limit.reason
    steps = analyze(path).traces[0].steps
    assert steps is not None
    unknown = [step for step in steps.steps if step.stall_ns is None]
    assert 4 < len(unknown) < 10  # 100 of 634 ms, with steps of 15.7 ms


@pytest.mark.met(MISSING, "a whole capture (real ones)", "nothing is marked as lost")
@pytest.mark.parametrize("name", ["gpu_bound", "sync_heavy", "graph_node", "jax_waits", "procs", "two_threads"])
def test_nothing_is_lost_in_whole_captures(name: str, capture: Capture) -> None:
    """JAX launches into graphs that it captures: 81 launches there have no GPU row, and that is right."""
    one = attributed(capture(f"{name}.schema-3.7.2"))
    assert one.lost.signs == ()
    assert [len(account.time.not_captured) for account in one.accounts] == [0]


@pytest.mark.met(MISSING, "a capture whose end nsys lost (real)", "said, with the time from which on it is lost")
def test_a_lost_end(capture: Capture) -> None:
    trace = analyze(capture("sync_causes_distributed.schema-3.7.2")).traces[0]
    text = trace.coverage.lost_events
    assert text and "calls without CUPTI's record of them: 69" in text and "to the end" in text
    assert "outside the window of GPU activity" in text


@pytest.mark.met(MISSING, "waits in a stretch that nsys lost", "their cost is not known, and none is called redundant")
def test_waits_in_a_lost_stretch(tmp_path: Path) -> None:
    trace = TraceBuilder()
    thread = trace.process(1).thread(1)
    stack = [("train", "/work/train.py", 7)]
    lost = [("lost", "/work/train.py", 9)]
    for at in (0, 10_000_000):
        thread.launch(at, at + 5, gpu=(at + 10, at + 2_000))
        thread.stream_sync(at + 6, at + 2_005, python=stack)
    for at in (3_000_000, 4_000_000):
        thread.stream_sync(at, at + 10, python=lost, row=None)
        trace.tables["CUPTI_ACTIVITY_KIND_RUNTIME"].pop()  # CUPTI's own row of the call
    found = analyze(trace.write(tmp_path / "t.sqlite"))
    sites = {site.location.function: site for site in found.sites}
    assert sites["lost"].stall is None and sites["lost"].redundant_calls is None
    assert sites["train"].stall is not None and sites["train"].redundant_calls == 0
    (device,) = found.traces[0].devices
    # From the end of the call before to the first work launched afterwards; 5 ns before are the first wait's.
    assert device.not_captured_ns == 10_000_010 - 2_005
    assert (device.stall_ns, device.host_bound_ns, device.busy_ns) == (5, 0, 3_980)
    compare(tmp_path / "t.sqlite")


@pytest.mark.met(MISSING, "launches that CUDA refused", "no sign of lost events")
def test_refused_launches(tmp_path: Path) -> None:
    trace = TraceBuilder()
    program(trace)
    thread = trace.processes[0].thread(1)
    thread.launch(70, 75)
    path = trace.write(tmp_path / "t.sqlite")
    assert attributed(path).lost.signs == (("launches and copies without their GPU work", 1),)
    refused = changed(
        path, tmp_path, statements("UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET returnValue = 1 WHERE start = 70")
    )
    assert attributed(refused).lost.signs == ()
    compare(refused)
    compare(path)


@pytest.mark.met(MISSING, "launches into a graph that is being captured", "no sign of lost events")
def test_launches_in_stream_capture(tmp_path: Path) -> None:
    trace = TraceBuilder()
    program(trace)
    thread = trace.processes[0].thread(1)
    thread.api("cudaStreamBeginCapture_v10000", 70, 71)
    thread.launch(72, 75)
    thread.api("cudaStreamEndCapture_v10000", 76, 77)
    path = trace.write(tmp_path / "t.sqlite")
    assert attributed(path).lost.signs == ()
    compare(path)


def with_jump(ids: int, *, polled: bool = False, done: bool = False) -> TraceBuilder:
    """Two launches with 5 ms and so many correlation ids between them."""
    trace = TraceBuilder()
    thread = trace.process(1).thread(1)
    thread.launch(0, 5, gpu=(10, 60))
    thread.stream_sync(6, 65)
    for number in range(ids):
        number = trace.processes[0].correlation()
        if polled:
            at = 1_000_000 + 1_000 * number
            thread.api("cudaEventQuery_v3020", at, at + 300, correlation=number)
    thread.launch(5_000_000, 5_000_005, gpu=(5_000_010, 5_000_060))
    thread.stream_sync(5_000_006, 5_000_065)
    if done:
        row = dict(trace.tables["CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"][0])
        trace.row("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", **(row | {"start": 4_000_000, "end": 4_000_100}))
    return trace


@pytest.mark.parametrize(
    ("trace", "lost"),
    [
        pytest.param(
            with_jump(501),
            4_999_945,
            marks=pytest.mark.met(MISSING, "a pause in which 500 and more correlation ids were used", "marked as lost"),
        ),
        pytest.param(
            with_jump(499),
            0,
            marks=pytest.mark.met(MISSING, "a pause in which fewer ids were used", "idle as measured"),
        ),
        pytest.param(
            with_jump(600, polled=True),
            0,
            marks=pytest.mark.met(MISSING, "a pause full of polls that were traced", "idle as measured"),
        ),
        pytest.param(
            with_jump(600, done=True),
            0,
            marks=pytest.mark.met(MISSING, "a pause full of polls that nsys does not trace", "idle as measured"),
        ),
    ],
)
def test_ids_that_went_on(trace: TraceBuilder, lost: int, tmp_path: Path) -> None:
    path = trace.write(tmp_path / "t.sqlite")
    (device,) = analyze(path).traces[0].devices
    assert device.not_captured_ns == lost
    compare(path)
