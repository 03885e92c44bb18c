"""Ids that collide, recur or are missing; several GPUs, contexts and processes; and ids that fill all 64 bits."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from conftest import Capture
from test_attribution_oracle import compare
from test_reading import changed, facts, statements
from trace_builder import SCHEMAS, TraceBuilder

from nsys_sync import analyze
from nsys_sync.errors import TraceError
from nsys_sync.model import Analysis, Device

KIND = "4 ids and devices"
CUDA = "CUPTI_ACTIVITY_KIND_"
CALLS = f"{CUDA}RUNTIME"
IDS = ("RUNTIME", "KERNEL", "MEMCPY", "SYNCHRONIZATION")


def two_launches() -> TraceBuilder:
    """Two kernels with a gap of 8 between them, which the wait in between causes (10 blocked)."""
    b = TraceBuilder()
    t = b.process(100).thread(101)
    t.launch(0, 1, gpu=(2, 10))
    t.stream_sync(2, 12)
    t.launch(15, 16, gpu=(18, 20))
    return b


def device(found: Analysis) -> Device:
    (only,) = found.traces[0].devices
    return only


def warnings(found: Analysis) -> str:
    return "\n".join(found.traces[0].coverage.warnings)


def not_captured(found: Analysis) -> str:
    return "\n".join(found.traces[0].coverage.not_captured)


def replace(b: TraceBuilder, column: str, value: Callable[[Any], Any], tables: tuple[str, ...] | None = None) -> None:
    for table, rows in b.tables.items():
        for row in rows if tables is None or table.removeprefix(CUDA) in tables else []:
            if row.get(column) is not None:
                row[column] = value(row[column])


# ---- correlation ids


@pytest.mark.met(KIND, "correlation ids that collide between processes", "each process's work goes to its own calls")
def test_ids_that_collide_between_processes(tmp_path: Path) -> None:
    b = TraceBuilder()
    for pid, at in ((100, 0), (200, 1_000)):
        t = b.process(pid).thread(pid)
        t.launch(at, at + 1, gpu=(at + 2, at + 10), correlation=1)
        t.stream_sync(at + 2, at + 12, correlation=2)
        t.launch(at + 15, at + 16, gpu=(at + 18, at + 20), correlation=3)
    path = b.write(tmp_path / "t.sqlite")
    compare(path)
    found = analyze(path)
    # Each wait pays for the gap of its own process; the long gap ends with a launch of 200, which had not waited.
    assert found.operations["stall_ns"].to_pylist() == [8, 8]
    assert device(found).host_bound_ns == 1_002 - 20
    assert device(found).device_side_without_launch_ns == 0


NONE = [
    pytest.param(value, marks=pytest.mark.met(KIND, f"{what} in all rows", "idle time not known, and why"), id=what)
    for value, what in ((None, "correlation ids NULL"), (0, "correlation ids 0 (CUPTI's «none»)"), (-3, "negative ids"))
]


@pytest.mark.parametrize("tables", [IDS, ("RUNTIME",), ("KERNEL",)])
@pytest.mark.parametrize("value", NONE)
def test_no_ids_at_all(value: int | None, tables: tuple[str, ...], tmp_path: Path) -> None:
    b = two_launches()
    replace(b, "correlationId", lambda _: value, tables)
    path = b.write(tmp_path / "t.sqlite")
    compare(path)
    found = analyze(path)
    one = device(found)
    assert (one.busy_ns, one.idle_ns, one.stall_ns) == (10, None, None)
    assert one.refused is not None and "can be joined to the call that launched it" in one.refused
    assert found.stall_ns is None and found.operations["blocked_ns"].to_pylist() == [10]


@pytest.mark.met(KIND, "correlation ids NULL or 0 in single GPU rows", "device-side, counted as without a launch call")
@pytest.mark.parametrize("value", [None, 0, -1])
def test_some_gpu_rows_without_an_id(value: int | None, tmp_path: Path) -> None:
    b = two_launches()
    b.tables[f"{CUDA}KERNEL"][1]["correlationId"] = value
    path = b.write(tmp_path / "t.sqlite")
    compare(path)
    found = analyze(path)
    one = device(found)
    # From 15 on, when a launch began that seems to have no work, the GPU is not known to be idle.
    assert (one.stall_ns, one.device_side_ns, one.device_side_without_launch_ns) == (0, 5, 5)
    assert "1 of 2 GPU rows have no launch call" in warnings(found)


@pytest.mark.met(
    KIND, "correlation ids NULL or 0 in synchronization rows", "a copy and its synchronize are shown apart"
)
@pytest.mark.parametrize(("value", "operations"), [("same", 1), (None, 2), (0, 2), (-1, 2)])
def test_synchronization_rows_without_an_id(value: int | str | None, operations: int, tmp_path: Path) -> None:
    b = TraceBuilder()
    t = b.process(100).thread(100)
    t.copy(5, 10, gpu=(7, 9), dst="pageable")
    t.stream_sync(10, 12)
    t.launch(13, 14, gpu=(15, 16))
    if value != "same":
        b.tables[f"{CUDA}SYNCHRONIZATION"][0]["correlationId"] = value
        b.tables[CALLS][1]["correlationId"] = value
    path = b.write(tmp_path / "t.sqlite")
    compare(path)
    assert len(analyze(path).operations) == operations


@pytest.mark.met(KIND, "one correlation id on thousands of calls", "work goes to the last of them begun before it")
@pytest.mark.parametrize("correlation", [1, 2**32 - 1, 2**63 - 1])
def test_one_id_on_thousands_of_calls(correlation: int, tmp_path: Path) -> None:
    b = TraceBuilder()
    t = b.process(100).thread(100)
    for i in range(2_000):
        t.launch(100 * i, 100 * i + 1, gpu=(100 * i + 2, 100 * i + 42), correlation=correlation)
        t.stream_sync(100 * i + 2, 100 * i + 92, correlation=correlation)
    path = b.write(tmp_path / "t.sqlite", shuffle=1)
    compare(path)
    one = device(analyze(path))
    assert (one.stall_ns, one.host_bound_ns, one.device_side_ns) == (1_999 * 60, 0, 0)


@pytest.mark.met(KIND, "a correlation id used again by a later launch", "each launch has its own work")
def test_an_id_used_again(tmp_path: Path) -> None:
    """Queued ones too: of the launches begun before the work, the last. Where none was, the first."""
    b = TraceBuilder()
    p = b.process(100)
    one, two = p.thread(100), p.thread(101)
    one.launch(10, 11, gpu=(20, 30), correlation=7)
    two.launch(40, 41, gpu=(45, 50), correlation=7, driver="same")
    one.launch(60, 61, gpu=(5, 8), correlation=7)
    one.launch(70, 71, gpu=(72, 73))
    path = b.write(tmp_path / "t.sqlite")
    compare(path)
    (found,) = analyze(path).traces
    # Gaps [8,20): launch at 10; [30,45): at 40; [50,72): at 70. All begin after their gap did: nothing is device-side.
    # The launch at 60 is left without work, so from then on the GPU is not known to be idle.
    assert (found.devices[0].host_bound_ns, found.devices[0].device_side_ns) == (12 + 15 + 10, 0)
    assert "1 of 4 GPU rows begin before their launch call" in "\n".join(found.coverage.warnings)


# ---- devices, contexts, streams


@pytest.mark.met(KIND, "one process on several GPUs", "each GPU has its own busy, idle and stall")
@pytest.mark.parametrize("schema", SCHEMAS)
def test_one_process_on_two_gpus(schema: str, capture: Capture) -> None:
    path = capture(f"one_process_two_gpus.schema-{schema}")
    compare(path)
    trace = analyze(path).traces[0]
    assert [one.id for one in trace.devices] == [0, 1]
    assert "is shared" not in "\n".join(trace.coverage.warnings)


@pytest.mark.met(KIND, "several contexts on one GPU, streams of the same number", "a copy folds with its own context's")
@pytest.mark.parametrize(("context", "spans"), [(1, [(5, 20)]), (2, [(5, 10), (10, 20)])])
def test_streams_of_the_same_number_in_two_contexts(context: int, spans: list[tuple[int, int]], tmp_path: Path) -> None:
    b = TraceBuilder()
    t = b.process(100).thread(100)
    t.copy(5, 10, gpu=(7, 9), dst="pageable", stream=7, context=1)
    t.stream_sync(10, 20, stream=7, context=context)
    t.launch(21, 22, gpu=(23, 24), context=2)
    path = b.write(tmp_path / "t.sqlite")
    compare(path)
    found = analyze(path)
    assert [(row["start_ns"], row["end_ns"]) for row in found.operations.to_pylist()] == spans
    assert device(found).busy_ns == 3  # both contexts' work is that of one GPU


@pytest.mark.met(
    KIND, "two processes on one GPU", "stall and idle within go to the right one; the report says «shared»"
)
def test_two_processes_on_one_gpu(tmp_path: Path) -> None:
    b = TraceBuilder()
    one, two = b.process(100).thread(100), b.process(200).thread(200)
    one.launch(0, 1, gpu=(2, 10))
    one.stream_sync(2, 14)
    two.launch(0, 1, gpu=(12, 20))
    two.stream_sync(2, 26)
    one.launch(27, 28, gpu=(30, 40))
    two.launch(45, 46, gpu=(50, 60))
    path = b.write(tmp_path / "t.sqlite")
    compare(path)
    found = analyze(path)
    rows = {row["pid"]: (row["stall_ns"], row["idle_within_ns"]) for row in found.operations.to_pylist()}
    # [10,12) waits in a queue; [20,30) ends with a launch of 100 (12 of credit); [40,50) with one of 200 (24).
    assert rows == {100: (10, 2), 200: (10, 2 + 6)}
    assert device(found).processes == (100, 200)
    assert "GPU 0 is shared by 2 processes (pid 100, 200)" in warnings(found)


@pytest.mark.met(KIND, "two processes on one GPU (a real capture)", "as the oracle says; the report says «shared»")
@pytest.mark.parametrize("schema", SCHEMAS)
def test_two_real_processes_on_one_gpu(schema: str, capture: Capture) -> None:
    found = analyze(capture(f"procs.schema-{schema}"))
    assert "GPU 0 is shared by 2 processes" in warnings(found)


def on_mig(gpus: dict[int, str], devices: list[dict[str, Any]], uuids: dict[int, str]) -> TraceBuilder:
    """Two processes that both call their GPU 0. `devices` are rows of the device map, `uuids` those of the GPUs."""
    b = TraceBuilder(map_devices=False)
    for pid in (100, 200):
        t = b.process(pid).thread(pid)
        t.launch(0, 1, gpu=(2, 10 + pid))
        t.stream_sync(2, 12 + pid)
    b._finish = lambda: None  # type: ignore[method-assign]
    for value, number in b._strings.items():
        b.row("StringIds", id=number, value=value)
    for number, name in gpus.items():
        b.row("TARGET_INFO_GPU", vmId=1, id=number, name=name, cuDevice=0, uuid=uuids.get(number))
    for row in devices:
        b.row("TARGET_INFO_CUDA_DEVICE", **row)
    return b


def written(b: TraceBuilder, path: Path, devices: list[dict[str, Any]]) -> Path:
    """With the column `uuid` of the device map, which newer exports have."""
    path = b.write(path)
    if any("uuid" in row for row in devices):
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("ALTER TABLE TARGET_INFO_CUDA_DEVICE ADD COLUMN uuid TEXT")
            for row in devices:
                connection.execute(
                    "UPDATE TARGET_INFO_CUDA_DEVICE SET uuid = ? WHERE pid = ?", (row["uuid"], row["pid"])
                )
    return path


A100 = "NVIDIA A100-SXM4-40GB"
SLICE = f"{A100} MIG 1g.5gb"
BOTH = [{"gpuId": 0, "cudaId": 0, "pid": pid} for pid in (100, 200)]
APART = [{"gpuId": 0, "cudaId": 0, "pid": 100}, {"gpuId": 1, "cudaId": 0, "pid": 200}]
MIG = "two MIG slices of one GPU: "
CANNOT = "the report says that the slices are not told apart"


@pytest.mark.parametrize(
    ("gpus", "devices", "uuids", "said"),
    [
        pytest.param({0: SLICE}, [], {}, True, marks=pytest.mark.met(KIND, MIG + "no device map", CANNOT)),
        pytest.param({0: SLICE}, BOTH, {}, True, marks=pytest.mark.met(KIND, MIG + "one number for both", CANNOT)),
        pytest.param(
            {0: A100},
            BOTH,
            {0: "MIG-GPU-05809cb6/1/0"},
            True,
            marks=pytest.mark.met(KIND, MIG + "only the UUID says MIG", CANNOT),
        ),
        pytest.param(
            {0: A100},
            [row | {"uuid": f"MIG-{row['pid']}"} for row in BOTH],
            {},
            True,
            marks=pytest.mark.met(KIND, MIG + "only the device map's UUIDs differ", CANNOT),
        ),
        pytest.param(
            {0: SLICE},
            [row | {"uuid": "MIG-1"} for row in BOTH],
            {},
            False,
            marks=pytest.mark.met(KIND, "two processes on one MIG slice", "one GPU, shared"),
        ),
        pytest.param({0: A100}, BOTH, {0: "05809cb6"}, False, id="no MIG"),
    ],
)
def test_two_slices_are_not_added_up_silently(
    gpus: dict[int, str], devices: list[dict[str, Any]], uuids: dict[int, str], said: bool, tmp_path: Path
) -> None:
    found = analyze(written(on_mig(gpus, devices, uuids), tmp_path / "t.sqlite", devices))
    assert ("which MIG slice each process used: GPU 0 is partitioned" in not_captured(found)) == said
    assert "GPU 0 is shared by 2 processes" in warnings(found)


@pytest.mark.met(KIND, "two MIG slices that the device map numbers apart", "two GPUs, each with its own busy time")
def test_slices_with_numbers_of_their_own(tmp_path: Path) -> None:
    found = analyze(on_mig({0: SLICE, 1: SLICE}, APART, {}).write(tmp_path / "t.sqlite"))
    assert [(one.id, one.busy_ns) for one in found.traces[0].devices] == [(0, 108), (1, 208)]
    assert "MIG slice" not in not_captured(found) and "is shared" not in warnings(found)


# ---- ids of processes and threads


def with_hardware_id(b: TraceBuilder, number: int) -> TraceBuilder:
    """As SQLite holds it: signed."""

    def moved(value: int) -> int:
        value |= number << 56
        return value - (1 << 64) if value >= 1 << 63 else value

    for column in ("globalTid", "globalPid"):
        replace(b, column, moved)
    return b


def program() -> TraceBuilder:
    b = two_launches()
    t = b.processes[0].thread(101, "worker")
    t.stream_sync(21, 25, python=[("train", "/work/train.py", 7)])
    t.python_stack(5, [("wait", "/work/wait.py", 3)], source="sample")
    for i in range(3):
        t.nvtx(f"step {i}", 10 * i, 10 * i + 9)
    t.overhead(11, 13)
    return b


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(n, marks=pytest.mark.met(KIND, f"globalTid with hardware id {n}{what}", "the same analysis"))
        for n, what in ((127, ""), (128, " (2^63 and beyond, negative in SQLite)"), (255, " (all upper bits)"))
    ],
)
def test_thread_ids_of_all_64_bits(number: int, schema: str, tmp_path: Path) -> None:
    """The thread is the same in calls, ranges, names, stacks, samples and pauses."""
    plain = analyze(program().write(tmp_path / "t.sqlite"))
    (tmp_path / "high").mkdir()
    path = with_hardware_id(program(), number).write(tmp_path / "high" / "t.sqlite")
    compare(path)
    assert facts(analyze(path)) == facts(plain)
    assert plain.operations["pid"].to_pylist() == [100, 100] and plain.operations["tid"].to_pylist() == [101, 101]
    assert device(plain).profiler_ns == 2


@pytest.mark.met(KIND, "globalTid of 2^63 and beyond in a real export", "the same analysis")
@pytest.mark.parametrize("name", ["procs.schema-3.20.3", "nvtx_threads.schema-3.7.2"])
def test_real_export_with_a_high_hardware_id(name: str, capture: Capture, tmp_path: Path) -> None:
    def raised(connection: sqlite3.Connection) -> None:
        for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for row in connection.execute(f'PRAGMA table_info("{table}")').fetchall():
                if row[1] in ("globalTid", "globalPid", "endGlobalTid"):
                    connection.execute(f'UPDATE "{table}" SET "{row[1]}" = "{row[1]}" | (-9223372036854775808)')

    path = capture(name)
    assert facts(analyze(changed(path, tmp_path, raised))) == facts(analyze(path))


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(
            sql, marks=pytest.mark.met(KIND, f"globalTid written as {what}", "refused, with what to type next")
        )
        for sql, what in (
            ("CAST(globalTid AS REAL) + 9.3e18", "a real, because it did not fit (its lower bits are lost)"),
            ("'tid ' || globalTid", "text"),
            ("CAST(globalTid AS BLOB)", "bytes"),
        )
    ],
)
@pytest.mark.parametrize("rows", ["", "WHERE rowid % 2 = 0"])
def test_thread_ids_that_are_no_integers(value: str, rows: str, tmp_path: Path) -> None:
    path = two_launches().write(tmp_path / "t.sqlite")
    change = f"UPDATE {CALLS} SET globalTid = {value} {rows}"
    with pytest.raises(TraceError, match=r"global_tid holds something other than whole numbers.* nsys-sync export"):
        analyze(changed(path, tmp_path, statements(change)))


@pytest.mark.met(KIND, "globalTid and globalPid that disagree in their upper bits", "idle time not known, and why")
def test_processes_of_calls_and_work_that_disagree(tmp_path: Path) -> None:
    b = two_launches()
    replace(b, "globalPid", lambda value: value | 1 << 60)
    found = analyze(b.write(tmp_path / "t.sqlite"))
    assert device(found).refused is not None and found.stall_ns is None


@pytest.mark.parametrize(
    ("pid", "tid"),
    [
        pytest.param(pid, tid, marks=pytest.mark.met(KIND, what, "an answer like any other's"))
        for pid, tid, what in (
            (0, 0, "pid 0 and tid 0"),
            (5, 5, "a tid equal to the pid"),
            (2**24 - 1, 2**24 - 1, "the highest pid and tid"),
        )
    ],
)
def test_pids_and_tids_at_their_limits(pid: int, tid: int, tmp_path: Path) -> None:
    b = TraceBuilder()
    t = b.process(pid).thread(tid)
    t.launch(0, 1, gpu=(2, 10))
    t.stream_sync(2, 12, python=[("train", "/work/train.py", 7)])
    t.launch(15, 16, gpu=(18, 20))
    path = b.write(tmp_path / "t.sqlite")
    compare(path)
    found = analyze(path, pid=pid)
    (row,) = found.operations.to_pylist()
    assert (row["pid"], row["tid"], row["stall_ns"], row["file"]) == (pid, tid, 8, "/work/train.py")


@pytest.mark.met(KIND, "GPU rows without a process (globalPid NULL)", "busy time; nobody's; counted and said")
@pytest.mark.parametrize("global_tid", [-1, 0, (1 << 48) | (100 << 24) | 100])
def test_work_without_a_process_is_nobodys(global_tid: int, tmp_path: Path) -> None:
    """Not of a process whose id fills all bits, which −1 stands for elsewhere, nor of process 0."""
    b = TraceBuilder()
    t = b.process(100).thread(100)
    t.launch(0, 1, gpu=(2, 10))
    t.stream_sync(2, 12)
    t.launch(15, 16, gpu=(18, 20))
    t.overhead(11, 13)
    for row in b.tables[CALLS] + b.tables["PROFILER_OVERHEAD"]:
        row["globalTid"] = global_tid
    for row in b.tables[f"{CUDA}KERNEL"][1:]:
        row["globalPid"] = None
    for row in b.tables[f"{CUDA}KERNEL"][:1]:
        row["globalPid"] = global_tid >> 24 << 24
    path = b.write(tmp_path / "t.sqlite")
    compare(path)
    found = analyze(path)
    one = device(found)
    assert (one.busy_ns, one.device_side_without_launch_ns, one.profiler_ns) == (10, 3, 2)  # not known from 15 on
    assert "1 of 2 GPU rows do not say which process they are of" in warnings(found)
    assert one.processes == (global_tid >> 24 & 0xFFFFFF,)
    assert [(process.pid, process.gpu_rows) for process in found.traces[0].processes] == [
        (global_tid >> 24 & 0xFFFFFF, 1)
    ]


@pytest.mark.met(KIND, "pauses of the profiler without a thread", "nobody's: they are not taken out of idle time")
def test_overhead_without_a_thread(tmp_path: Path) -> None:
    b = two_launches()
    b.processes[0].thread(1).overhead(11, 13)
    b.tables["PROFILER_OVERHEAD"][0]["globalTid"] = None
    for row in b.tables[f"{CUDA}KERNEL"][1:]:
        row["globalPid"] = None
    path = b.write(tmp_path / "t.sqlite")
    compare(path)
    assert device(analyze(path)).profiler_ns == 0


@pytest.mark.met(KIND, "calls without a thread (globalTid NULL)", "left out: whose they are is not known")
def test_calls_without_a_thread(tmp_path: Path) -> None:
    b = two_launches()
    rows = [dict(row, globalTid=None, start=row["start"] + 100, end=row["end"] + 100) for row in b.tables[CALLS]]
    b.tables[CALLS] += rows
    assert len(analyze(b.write(tmp_path / "t.sqlite")).operations) == 1


@pytest.mark.met(KIND, "native stack id −1", "no stack; the others keep theirs")
def test_a_callchain_id_of_minus_one(tmp_path: Path) -> None:
    b = TraceBuilder()
    t = b.process(100).thread(100)
    t.launch(0, 1, gpu=(2, 10))
    t.stream_sync(2, 12, native=[("wait", "/usr/lib/libx.so")])
    t.stream_sync(13, 14)
    b.tables[CALLS][-1]["callchainId"] = -1
    found = analyze(b.write(tmp_path / "t.sqlite"))
    assert found.traces[0].coverage.located_by == (("native stack", 1), ("thread", 1))
