"""Times as exports have them: negative, in no order, twice; and NVTX ranges that overlap, never end, or are CUB's."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attribution import attributed
from conftest import Capture
from test_attribution_oracle import compare
from test_reading import changed, facts, statements, tables
from trace_builder import SCHEMAS, ThreadBuilder, TraceBuilder

from nsys_sync import analyze
from nsys_sync.analysis.locate import innermost_range
from nsys_sync.errors import TraceError
from nsys_sync.model import Analysis

KIND = "7 times"
REAL = ["two_threads.schema-3.20.3", "nvtx_threads.schema-3.7.2", "procs.schema-3.20.3"]


def program(offset: int = 0, schema: str = "3.20.3") -> TraceBuilder:
    b = TraceBuilder(schema)
    p = b.process(100)
    t, worker = p.thread(100, "main"), p.thread(101, "worker")
    for step in range(4):
        at = offset + 1_000 * step
        t.nvtx(f"step {step}", at, at + 900)
        t.launch(at, at + 10, gpu=(at + 20, at + 100))
        t.copy(at + 15, at + 18, gpu=(at + 100, at + 110))
        t.stream_sync(at + 20, at + 120, python=[("train", "/work/train.py", 7)])
        worker.launch(at + 200, at + 210, gpu=(at + 230, at + 300))
        worker.device_sync(at + 220, at + 320, python=[("load", "/work/load.py", 3)])
        worker.overhead(at + 400, at + 420)
    return b


def without_times(found: Analysis) -> dict[str, Any]:
    """Everything but moments: lengths, counts, places."""
    result = facts(found)
    for trace in result["traces"]:
        trace["startup"] = [len(trace["startup"])]
        for device in trace["devices"]:
            device.pop("window_start_ns"), device["timeline"].pop("start_ns"), device.pop("zoom")
        for step in (trace["steps"] or {"steps": []})["steps"]:
            step["end_ns"] -= step.pop("start_ns")
    for site in result["sites"]:
        for example in site["examples"]:
            example["end_ns"] -= example.pop("start_ns")
    return result


@pytest.mark.parametrize(
    "offset",
    [
        pytest.param(offset, marks=pytest.mark.met(KIND, what, "the same lengths, charges and places"))
        for offset, what in (
            (-2_000, "times around the session's start (some negative)"),
            (-(10**12), "times long before the session's start"),
            (10**18, "times of 31 years"),
        )
    ],
)
def test_shifted_times(offset: int, tmp_path: Path) -> None:
    path = program(offset).write(tmp_path / "t.sqlite")
    compare(path)
    found = without_times(analyze(path))
    assert found == without_times(analyze(program().write(tmp_path / "t.sqlite")))
    assert found["traces"][0]["devices"][0]["busy_ns"] == 4 * (90 + 70)


# ---- order and repetition of rows


def in_random_order(connection: sqlite3.Connection) -> None:
    for table in tables(connection):
        if not table.startswith(("DIAGNOSTIC", "sqlite_")):
            connection.execute(f'CREATE TABLE copied AS SELECT * FROM "{table}" ORDER BY random()')
            connection.execute(f'DROP TABLE "{table}"')
            connection.execute(f'ALTER TABLE copied RENAME TO "{table}"')


@pytest.mark.met(KIND, "rows of every table in random order", "the same analysis")
@pytest.mark.parametrize("name", REAL)
def test_rows_in_random_order(name: str, capture: Capture, tmp_path: Path) -> None:
    path = capture(name)
    assert facts(analyze(changed(path, tmp_path, in_random_order))) == facts(analyze(path))


TWICE = {
    "API": ("CUPTI_ACTIVITY_KIND_RUNTIME",),
    "GPU": ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"),
    "synchronization": ("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",),
    "NVTX": ("NVTX_EVENTS",),
    "Python stack": ("NSYS_SYNC_PYTHON_BACKTRACE",),
    "profiler overhead": ("PROFILER_OVERHEAD",),
    "all": ("CUPTI_", "NVTX_EVENTS", "NSYS_SYNC", "PROFILER_", "PROCESSES", "ThreadNames", "TARGET_INFO", "META_"),
}


def written_twice(starts: Sequence[str]) -> Any:
    def change(connection: sqlite3.Connection) -> None:
        for table in tables(connection):
            if table.startswith(tuple(starts)):
                connection.execute(f'CREATE TABLE copied AS SELECT * FROM "{table}"')
                connection.execute(f'DROP TABLE "{table}"')
                connection.execute(f'CREATE TABLE "{table}" AS SELECT * FROM copied UNION ALL SELECT * FROM copied')
                connection.execute("DROP TABLE copied")

    return change


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(
            what,
            marks=pytest.mark.met(KIND, f"{what} rows all written twice", "the same busy, idle, stall and operations"),
        )
        for what in TWICE
    ],
)
@pytest.mark.parametrize("name", REAL)
def test_rows_written_twice(what: str, name: str, capture: Capture, tmp_path: Path) -> None:
    """What counts rows may differ: GPU rows of a process, NVTX ranges. Nothing that is a time or an operation."""
    path = capture(name)
    plain, twice = analyze(path), analyze(changed(path, tmp_path, written_twice(TWICE[what])))
    for before, after in zip(plain.traces[0].devices, twice.traces[0].devices, strict=True):
        for figure in ("window", "busy", "idle", "stall", "host_bound", "device_side", "profiler", "outside"):
            assert getattr(after, f"{figure}_ns") == getattr(before, f"{figure}_ns"), figure
        assert after.gaps == before.gaps
    columns = ["pid", "tid", "start_ns", "end_ns", "blocked_ns", "stall_ns", "idle_within_ns", "api", "file", "line"]
    assert twice.operations.select(columns).equals(plain.operations.select(columns))
    assert [site.id for site in twice.sites] == [site.id for site in plain.sites]


# ---- NVTX ranges


def looping() -> tuple[TraceBuilder, ThreadBuilder]:
    b = TraceBuilder()
    t = b.process(100).thread(100)
    for at in (0, 100, 200):
        t.launch(at + 5, at + 6, gpu=(at + 7, at + 20))
        t.stream_sync(at + 8, at + 30)
    return b, t


def ranges_of(path: Path, *moments: int) -> list[str | None]:
    """The innermost range around each moment on thread 100."""
    one = attributed(path)
    nvtx = one.trace.nvtx
    tid = np.full(len(moments), one.calls.global_tids[0])
    rows = innermost_range(nvtx, tid, np.array(moments))
    return [None if row < 0 else str(nvtx["name"].iloc[row]) for row in rows]


@pytest.mark.met(KIND, "NVTX ranges that overlap without nesting", "an answer: a range open at that moment, or none")
def test_overlapping_ranges(tmp_path: Path) -> None:
    b, t = looping()
    t.nvtx("first", 0, 60)
    t.nvtx("second", 40, 130)
    t.nvtx("third", 120, 250)
    path = b.write(tmp_path / "t.sqlite")
    compare(path)
    assert ranges_of(path, 10, 50, 70, 200, 300) == ["first", "second", "second", "third", None]
    found = analyze(path)
    assert found.stall_ns == analyze(looping()[0].write(tmp_path / "plain.sqlite")).stall_ns


@pytest.mark.met(KIND, "start/end ranges across threads", "they belong to the thread that began them, and are no steps")
def test_start_end_ranges(tmp_path: Path) -> None:
    b, t = looping()
    for number, at in enumerate((0, 100, 200)):
        t.nvtx(f"step {number}", at, at + 150, start_end=True)
    for row in b.tables["NVTX_EVENTS"]:
        row["endGlobalTid"] = row["globalTid"] + 1
    found = analyze(b.write(tmp_path / "t.sqlite"))
    assert found.traces[0].steps is None
    assert len(found.operations) == 3 and found.operations["nvtx_range"].to_pylist() == ["step *"] * 3


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(end, marks=pytest.mark.met(KIND, f"an NVTX range whose end is {what}", "open to the trace's end"))
        for end, what in ((None, "missing"), (0, "0"))
    ],
)
def test_ranges_without_an_end(end: int | None, tmp_path: Path) -> None:
    b, t = looping()
    t.nvtx("open", 50, end)
    path = b.write(tmp_path / "t.sqlite")
    compare(path)
    assert ranges_of(path, 10, 60, 10_000) == [None, "open", "open"]
    assert analyze(path, nvtx="open").window_ns == 220 - 50


@pytest.mark.met(KIND, "an NVTX range that ends before it starts", "of no length: nothing is inside it")
@pytest.mark.met(KIND, "an NVTX range of no length", "nothing is inside it")
@pytest.mark.parametrize("end", [40, 90])
def test_ranges_without_length(end: int, tmp_path: Path) -> None:
    b, t = looping()
    t.nvtx("around", 0, 300)
    t.nvtx("odd", 90, end)
    path = b.write(tmp_path / "t.sqlite")
    compare(path)
    assert ranges_of(path, 50, 90, 95) == ["around"] * 3
    with pytest.raises(TraceError, match="the chosen range holds no GPU activity"):
        analyze(path, nvtx="odd")


@pytest.mark.met(KIND, "steps among which one ends before it starts", "counted, with no time of their own")
def test_steps_of_no_length(tmp_path: Path) -> None:
    b, t = looping()
    for number, at in enumerate((0, 100, 200)):
        t.nvtx(f"step {number}", at, at + 90)
    t.nvtx("step 3", 295, 291)
    steps = analyze(b.write(tmp_path / "t.sqlite")).traces[0].steps
    assert steps is not None
    assert [(one.name, one.operations, one.end_ns - one.start_ns) for one in steps.steps] == [
        *((f"step {number}", 1, 90) for number in range(3)),
        ("step 3", 0, 0),
    ]


@pytest.mark.parametrize(
    "domain",
    [
        pytest.param(name, marks=pytest.mark.met(KIND, f"ranges of {name}'s own", "no steps, no region, no place"))
        for name in ("CCCL", "CUB", "NCCL", "Thrust", "cuBLAS")
    ],
)
@pytest.mark.parametrize("schema", SCHEMAS)
def test_ranges_of_libraries(domain: str, schema: str, tmp_path: Path) -> None:
    b = TraceBuilder(schema)
    t = b.process(100).thread(100)
    for at in (0, 100, 200):
        t.nvtx("cub::DeviceReduce::Sum", at, at + 90, domain=domain)
        t.launch(at + 5, at + 6, gpu=(at + 7, at + 20))
        t.stream_sync(at + 8, at + 30)
    path = b.write(tmp_path / "t.sqlite")
    compare(path)
    found = analyze(path)
    (trace,) = found.traces
    assert trace.steps is None and not trace.regions
    assert found.operations["nvtx_range"].to_pylist() == [None] * 3
    assert dict(trace.coverage.located_by) == {"thread": 3}
    t.nvtx("mine", 0, 300, domain="my app")
    found = analyze(b.write(path))
    assert found.operations["nvtx_range"].to_pylist() == ["mine"] * 3


@pytest.mark.met(KIND, "NVTX ranges whose thread made no call", "no operation is said to be in them")
def test_ranges_of_another_thread(tmp_path: Path) -> None:
    b, _ = looping()
    b.processes[0].thread(999).nvtx("elsewhere", 0, 300)
    b.process(500).thread(500).nvtx("another process", 0, 300)
    found = analyze(b.write(tmp_path / "t.sqlite"))
    assert found.operations["nvtx_range"].to_pylist() == [None] * 3


@pytest.mark.met(KIND, "NVTX ranges at the limits of 64 bits", "those whose times are no times are left out")
@pytest.mark.parametrize("value", [-(2**63), 2**63 - 1, 2**62])
def test_ranges_at_the_limits(value: int, tmp_path: Path) -> None:
    b, t = looping()
    t.nvtx("whole", 0, 300)
    path = b.write(tmp_path / "t.sqlite")
    plain = facts(analyze(path))
    insert = (
        "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId) "
        f"SELECT {value}, {value}, eventType, 'far', globalTid, domainId FROM NVTX_EVENTS"
    )
    assert facts(analyze(changed(path, tmp_path, statements(insert)))) == plain
