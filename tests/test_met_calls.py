"""Calls as programs make them: per-thread streams, the driver API alone, event waits, calls across a range's ends."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from test_attribution_oracle import compare
from test_reading import changed, facts
from trace_builder import DRIVER_CLASS, SCHEMAS, TraceBuilder

from nsys_sync import analyze
from nsys_sync.model import Analysis, Device

KIND = "5 calls"
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
DRIVER = "CUPTI_ACTIVITY_KIND_DRIVER"


def with_call(name: str, schema: str = "3.20.3", launch: str = "cudaLaunchKernel_v7000") -> TraceBuilder:
    """A kernel until 10, the call from 2 to 12, and a kernel launched after it that begins at 18."""
    b = TraceBuilder(schema)
    t = b.process(100).thread(100)
    t.launch(0, 1, gpu=(2, 10), name=launch)
    t.api(name, 2, 12)
    t.launch(15, 16, gpu=(18, 20), name=launch)
    return b


def device(found: Analysis) -> Device:
    (only,) = found.traces[0].devices
    return only


def in_table_of_driver_calls(connection: sqlite3.Connection) -> None:
    """Calls of the driver API in the table that CUPTI has for them."""
    connection.execute(f"CREATE TABLE {DRIVER} AS SELECT * FROM {CALLS} WHERE eventClass = {DRIVER_CLASS}")
    connection.execute(f"DELETE FROM {CALLS} WHERE eventClass = {DRIVER_CLASS}")


WAITS = [
    pytest.param(name, plain, marks=pytest.mark.met(KIND, name, "a wait, as without its suffix"))
    for name, plain in (
        ("cudaStreamSynchronize_ptsz_v7000", "cudaStreamSynchronize"),
        ("cudaStreamSynchronize_ptsz", "cudaStreamSynchronize"),
        ("cudaEventSynchronize_ptds", "cudaEventSynchronize"),
        ("cudaDeviceSynchronize_v3020", "cudaDeviceSynchronize"),
        ("cuStreamSynchronize_ptsz", "cuStreamSynchronize"),
        ("cuStreamSynchronize", "cuStreamSynchronize"),
        ("cuEventSynchronize", "cuEventSynchronize"),
        ("cuCtxSynchronize", "cuCtxSynchronize"),
        ("cuCtxSynchronize_v2", "cuCtxSynchronize"),
    )
]


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize(("name", "plain"), WAITS)
def test_waits(name: str, plain: str, schema: str, tmp_path: Path) -> None:
    path = with_call(name, schema).write(tmp_path / "t.sqlite")
    compare(path)
    found = analyze(path)
    assert device(found).stall_ns == 8
    assert found.sites[0].kind.apis == (plain,)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.met(KIND, name, "no wait of the host"))
        for name in (
            "cudaStreamWaitEvent_v3020",
            "cudaStreamWaitEvent_ptsz_v7000",
            "cuStreamWaitEvent",
            "cudaEventQuery_v3020",
            "cuEventQuery",
            "cudaStreamQuery_v3020",
            "cudaEventRecord_v3020",
        )
    ],
)
@pytest.mark.parametrize("with_row", [False, True])
def test_calls_that_do_not_wait(name: str, with_row: bool, tmp_path: Path) -> None:
    """Nor where the export has a synchronization row for them."""
    b = with_call(name)
    if with_row:
        b = with_call("cudaMalloc_v3020")
        t = b.processes[0].thread(100)
        t.event_sync(2, 12, name=name)
    path = b.write(tmp_path / "t.sqlite")
    compare(path)
    found = analyze(path)
    assert not len(found.operations) and device(found).host_bound_ns == 8


@pytest.mark.met(KIND, "a stream's wait for an event between a copy and its synchronize", "two calls: not folded")
def test_a_wait_event_between_copy_and_synchronize(tmp_path: Path) -> None:
    b = TraceBuilder()
    t = b.process(100).thread(100)
    t.copy(5, 6, gpu=(7, 15))
    t.event_sync(6, 7, name="cudaStreamWaitEvent_v3020")
    t.stream_sync(8, 20)
    t.copy(25, 26, gpu=(27, 28))
    t.stream_sync(28, 40)
    path = b.write(tmp_path / "t.sqlite")
    compare(path)
    assert analyze(path).operations["start_ns"].to_pylist() == [8, 25]


@pytest.mark.met(KIND, "a program of driver calls only, in the runtime's table", "analysed like any other")
@pytest.mark.met(KIND, "a program of driver calls only, in the driver's own table", "the same analysis")
@pytest.mark.parametrize("wait", ["cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize"])
def test_driver_calls_only(wait: str, tmp_path: Path) -> None:
    path = with_call(wait, launch="cuLaunchKernel").write(tmp_path / "t.sqlite")
    compare(path)
    found = analyze(path)
    assert (device(found).stall_ns, device(found).device_side_without_launch_ns) == (8, 0)
    moved = changed(path, tmp_path, in_table_of_driver_calls)
    assert facts(analyze(moved)) == facts(found)
    gone = changed(path, tmp_path, lambda c: (in_table_of_driver_calls(c), c.execute(f"DROP TABLE {CALLS}")))
    assert facts(analyze(gone)) == facts(found)


@pytest.mark.met(KIND, "driver calls inside runtime calls, each in a table of its own", "one call each: the outer one")
def test_driver_calls_inside_runtime_calls(tmp_path: Path) -> None:
    b = TraceBuilder()
    t = b.process(100).thread(100)
    t.launch(0, 1, gpu=(2, 10), driver="own")
    call = t.device_sync(2, 12)
    t.api("cuCtxSynchronize", 3, 11, correlation=call.correlation)
    t.launch(15, 16, gpu=(18, 20), driver="same")
    path = b.write(tmp_path / "t.sqlite")
    compare(path)
    moved = analyze(changed(path, tmp_path, in_table_of_driver_calls))
    assert facts(moved) == facts(analyze(path))
    assert moved.operations["api"].to_pylist() == ["cudaDeviceSynchronize"] and moved.stall_ns == 8


@pytest.mark.met(KIND, "calls of no length", "operations that block for no time, and pay for none")
@pytest.mark.parametrize("schema", SCHEMAS)
def test_calls_without_length(schema: str, tmp_path: Path) -> None:
    b = TraceBuilder(schema)
    t = b.process(100).thread(100)
    t.launch(0, 0, gpu=(2, 10))
    t.stream_sync(9, 9)
    t.copy(12, 12, gpu=(12, 13), dst="pageable")
    t.launch(15, 15, gpu=(18, 20))
    path = b.write(tmp_path / "t.sqlite")
    compare(path)
    found = analyze(path)
    assert found.operations["blocked_ns"].to_pylist() == [0] and found.stall_ns == 0


@pytest.mark.met(KIND, "waits that begin before the first or end after the last GPU activity", "whole in blocked time")
def test_calls_that_straddle_the_whole_window(tmp_path: Path) -> None:
    b = TraceBuilder()
    t, other = b.process(100).thread(100), b.processes[0].thread(101)
    other.stream_sync(-50, 100)  # longer than the whole window
    t.launch(-10, -9, gpu=(0, 10))
    t.stream_sync(-5, 12)
    t.launch(13, 14, gpu=(16, 20))
    t.stream_sync(15, 40)
    path = b.write(tmp_path / "t.sqlite")
    compare(path)
    rows = analyze(path).operations.to_pylist()
    assert [row["blocked_ns"] for row in rows] == [150, 17, 25]
    # Idle within: only [10,16) is idle; before 0 and after 20 nothing is known.
    assert [row["idle_within_ns"] for row in rows] == [6, 2, 1]


@pytest.mark.met(KIND, "waits that straddle the ends of --time-range", "only what lies inside it is counted")
@pytest.mark.parametrize(
    ("chosen", "blocked"),
    [((5, 17), {-50: 12, -5: 7, 15: 2}), ((11, 12), {-50: 1, -5: 1}), ((12, 15), {-50: 3, -5: 0})],
)
def test_calls_that_straddle_a_range(chosen: tuple[int, int], blocked: dict[int, int], tmp_path: Path) -> None:
    b = TraceBuilder()
    t, other = b.process(100).thread(100), b.processes[0].thread(101)
    other.stream_sync(-50, 100)
    t.launch(-10, -9, gpu=(0, 10))
    t.stream_sync(-5, 12)
    t.launch(13, 14, gpu=(16, 20))
    t.stream_sync(15, 40)
    path = b.write(tmp_path / "t.sqlite")
    compare(path, chosen)
    rows = analyze(path, time_range=chosen).operations.to_pylist()
    assert {row["start_ns"]: row["blocked_ns"] for row in rows} == blocked


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.met(KIND, f"a call that nsys-sync does not know ({name})", "no wait"))
        for name in ("cudaFancyNewThing_v14000", "cuSynchronizeEverything", "hipDeviceSynchronize", "synchronize", "")
    ],
)
def test_names_that_are_not_known(name: str, tmp_path: Path) -> None:
    path = with_call(name).write(tmp_path / "t.sqlite")
    compare(path)
    assert not len(analyze(path).operations)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(f"UPDATE {CALLS} SET nameId = {value}", marks=pytest.mark.met(KIND, what, "said and counted"))
        for value, what in (("NULL", "a call whose name is NULL"), ("99999", "a call whose name is no string"))
    ],
)
@pytest.mark.parametrize(("start", "stall", "operations"), [(2, 0, 0), (15, 8, 1)])
def test_calls_without_a_name(change: str, start: int, stall: int, operations: int, tmp_path: Path) -> None:
    """A wait without a name is not seen; a launch without one still has its work."""

    def unnamed(connection: sqlite3.Connection) -> None:
        connection.execute(f"CREATE TABLE copied AS SELECT * FROM {CALLS}")
        connection.execute(f"DROP TABLE {CALLS}")
        connection.execute(f"ALTER TABLE copied RENAME TO {CALLS}")
        connection.execute(f"{change} WHERE start = {start}")

    b = with_call("cudaStreamSynchronize_v3020")
    b.processes[0].thread(100).api("cudaEventQuery_v3020", 13, 14)
    found = analyze(changed(b.write(tmp_path / "t.sqlite"), tmp_path, unnamed))
    assert (found.stall_ns, len(found.operations)) == (stall, operations)
    assert device(found).device_side_without_launch_ns == 0
    (said,) = [text for text in found.traces[0].coverage.warnings if "no name" in text]
    assert said.startswith("1 of 3 CUDA calls have no name here")
