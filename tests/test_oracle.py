"""The oracle against figures known from elsewhere, and against answers worked out by hand, rule by rule."""

from __future__ import annotations

import html
import lzma
import shutil
import sqlite3
import struct
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from oracle import Device, OracleResult, oracle
from strategies import Plan, dense_plans, lapse_plans, plans, ranges
from trace_builder import SCHEMAS, TraceBuilder

CAPTURES = Path(__file__).resolve().parents[2] / "shared" / "captures"
needs_captures = pytest.mark.skipif(not CAPTURES.is_dir(), reason="no ../shared/captures beside the repository")

FIGURES = {
    # window, busy, host-late, device-side, profiler, stall, host-bound
    "gpu_bound": (633927493, 530056486, 97628562, 5967859, 274586, 97628562, 0),
    "gpu_bound_fixed": (483175328, 476214385, 315646, 6645297, 0, 0, 315646),
    "graph_node": (23887484, 17481393, 4801485, 1604606, 0, 3995918, 805567),
    "graph_whole": (25674990, 18021430, 7560025, 93535, 0, 6739450, 820575),
    "memcpy_sync": (199618583, 186962046, 12656537, 0, 0, 12656537, 0),
    "memcpy_sync_all": (148047826, 135821103, 12226723, 0, 0, 12226723, 0),
    "procs": (170867938, 18387160, 152328396, 152382, 0, 18577598, 133750798),
    "run_ahead": (1143582408, 868686253, 274656621, 64288, 175246, 94627636, 180028985),
    "sync_free": (97002685, 44980601, 50445582, 1251911, 324591, 30170, 50415412),
    "sync_heavy": (221540984, 53795655, 164027411, 3478868, 239050, 21476247, 142551164),
    "two_threads": (29872840, 27104150, 2712114, 56576, 0, 1942184, 769930),
}
"""DESIGN.md section 4; both schemas of a capture alike, `graph_whole` in 3.20.3 only."""
GPU_BOUND_SITES = {
    "read_loss:28": 53282752,
    "upload:23": 18595725,
    "clip:40": 14419919,
    "download:45": 10644425,
    "sum_positive:34": 685741,
    "main:69": 0,
}
CASES = [(n, s) for n in FIGURES for s in SCHEMAS if (n, s) != ("graph_whole", "3.7.2")]


def unpack(name: str, schema: str, folder: Path) -> Path:
    target = folder / f"{name}.schema-{schema}.sqlite"
    with lzma.open(CAPTURES / f"{target.name}.xz") as packed, target.open("wb") as plain:
        shutil.copyfileobj(packed, plain)
    return target


def figures(device: Device) -> tuple[int, ...]:
    return (
        device.window,
        device.busy,
        device.host_late,
        device.device_side,
        device.profiler,
        device.stall,
        device.host_bound,
    )


@needs_captures
@pytest.mark.parametrize(("name", "schema"), CASES)
def test_captures_give_the_known_figures(name: str, schema: str, tmp_path: Path) -> None:
    result = oracle(unpack(name, schema, tmp_path))
    assert list(result.devices) == [0]
    assert figures(result.devices[0]) == FIGURES[name]
    assert result.devices[0].conserved
    assert sum(operation.stall_total for operation in result.operations) == FIGURES[name][5]


@needs_captures
def test_gpu_bound_by_python_line(tmp_path: Path) -> None:
    path = unpack("gpu_bound", "3.20.3", tmp_path)
    stacks = python_stacks(path)
    found: dict[str, int] = defaultdict(int)
    for operation in oracle(path).operations:
        frames = next(stacks[o.start, o.thread] for o in reversed(operation.calls) if (o.start, o.thread) in stacks)
        function, _, line = next(f for f in frames if "-packages/" not in f[1] and "/lib/python3" not in f[1])
        found[f"{function}:{line}"] += operation.stall_total
    assert found == GPU_BOUND_SITES


def python_stacks(path: Path) -> dict[tuple[int, int], list[tuple[str, str, int]]]:
    """(start, globalTid) → frames of the stacks taken at calls, read from wrapped blobs or from raw payloads."""
    connection = sqlite3.connect(path)
    names = dict(connection.execute("SELECT id, value FROM StringIds"))
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    if "NSYS_SYNC_PYTHON_BACKTRACE" in tables:
        query = "SELECT start, globalTid, payload FROM NSYS_SYNC_PYTHON_BACKTRACE"
        marks = connection.execute(query).fetchall()
    else:
        query = "SELECT start, globalTid, binaryData FROM NVTX_EVENTS WHERE eventType = 34 AND binaryData IS NOT NULL"
        marks = [(s, t, blob[struct.unpack_from("<Q", blob, 24)[0] :]) for s, t, blob in connection.execute(query)]
    connection.close()
    stacks = {}
    for start, thread, payload in marks:
        _, source, count = struct.unpack_from("<III", payload)
        frames = [struct.unpack_from("<QQI", payload, 16 + 24 * i) for i in range(count)]
        if source == 2:
            stacks[start, thread] = [(html.unescape(names[f]), html.unescape(names[p]), n) for f, p, n in frames]
    return stacks


# ---------------------------------------------------------------------------------------------------- generated traces

generated = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture], max_examples=150
)


def check_invariants(plan: Plan, path: Path) -> None:
    plan.build().write(path, shuffle=plan.shuffle)
    result = oracle(path)
    for device in result.devices.values():
        assert device.conserved
        assert device.outside == 0
        assert sum(operation.stall.get(device.id, 0) for operation in result.operations) == device.stall
    for operation in result.operations:
        assert all(0 <= stall <= operation.blocked for stall in operation.stall.values())
        assert 0 <= operation.idle_within <= operation.blocked * len(result.devices)


@generated
@given(plan=plans)
def test_every_nanosecond_has_one_owner(plan: Plan, tmp_path: Path) -> None:
    check_invariants(plan, tmp_path / "trace.sqlite")


@generated
@given(plan=dense_plans)
def test_every_nanosecond_has_one_owner_when_dense(plan: Plan, tmp_path: Path) -> None:
    check_invariants(plan, tmp_path / "trace.sqlite")


@settings(generated, max_examples=15)
@given(plan=lapse_plans())
def test_every_nanosecond_has_one_owner_behind_deep_queues(plan: Plan, tmp_path: Path) -> None:
    check_invariants(plan, tmp_path / "trace.sqlite")


@generated
@given(plan=dense_plans, time_range=ranges)
def test_ranges_add_up(plan: Plan, time_range: tuple[int, int], tmp_path: Path) -> None:
    path = plan.build().write(tmp_path / "trace.sqlite")
    start, end = time_range
    middle = (start + end) // 2
    whole, left, right = (oracle(path, r) for r in (time_range, (start, middle), (middle, end)))
    for device in whole.devices:
        parts = [result.devices[device] for result in (whole, left, right)]
        assert all(part.conserved for part in parts)
        assert parts[0].outside == parts[1].outside + parts[2].outside
        assert figures(parts[0]) == tuple(a + b for a, b in zip(*map(figures, parts[1:]), strict=True))


# ------------------------------------------------------------------------------------------------- each rule, by hand

Answer = Callable[[TraceBuilder], OracleResult]


@pytest.fixture(params=SCHEMAS)
def b(request: pytest.FixtureRequest) -> TraceBuilder:
    return TraceBuilder(request.param)


@pytest.fixture
def answer(tmp_path: Path) -> Answer:
    return lambda builder: oracle(builder.write(tmp_path / "trace.sqlite"))


def spans(result: OracleResult) -> list[tuple[int, int]]:
    return [(operation.start, operation.end) for operation in result.operations]


def stalls(result: OracleResult) -> list[int]:
    return [operation.stall_total for operation in result.operations]


def test_wait_then_late_launch(b: TraceBuilder, answer: Answer) -> None:
    t = b.process(100).thread(100)
    t.launch(0, 1, gpu=(2, 10))
    t.stream_sync(1, 12)
    t.launch(15, 16, gpu=(18, 20))
    result = answer(b)
    device = result.devices[0]
    assert (device.window, device.busy, device.gaps, device.host_late_gaps) == (18, 10, 1, 1)
    assert (device.host_late, device.stall, device.host_bound, device.device_side) == (8, 8, 0, 0)
    assert [(o.pid, o.tid, o.blocked, o.stall_total, o.idle_within) for o in result.operations] == [
        (100, 100, 11, 8, 2)
    ]


def test_no_more_than_the_time_blocked(b: TraceBuilder, answer: Answer) -> None:
    t = b.process(100).thread(100)
    t.launch(0, 1, gpu=(2, 10))
    t.stream_sync(9, 12)
    t.launch(15, 16, gpu=(18, 20))
    result = answer(b)
    assert (stalls(result), result.devices[0].host_bound) == ([3], 5)


def test_what_is_over_goes_to_the_operation_before(b: TraceBuilder, answer: Answer) -> None:
    t = b.process(100).thread(100)
    t.launch(0, 1, gpu=(2, 10))
    t.stream_sync(2, 6)
    t.stream_sync(7, 9)
    t.launch(15, 16, gpu=(18, 20))
    result = answer(b)
    assert (stalls(result), result.devices[0].host_bound) == ([4, 2], 2)


def test_credit_is_spent_once(b: TraceBuilder, answer: Answer) -> None:
    t = b.process(100).thread(100)
    t.launch(0, 1, gpu=(2, 10))
    t.stream_sync(3, 10)
    t.launch(13, 14, gpu=(15, 20))  # gap of 5, of 7
    t.launch(22, 23, gpu=(24, 25))  # gap of 4: 2 are left
    result = answer(b)
    assert (stalls(result), result.devices[0].host_bound) == ([7], 2)


def test_gap_is_cut_where_operations_begin(b: TraceBuilder, answer: Answer) -> None:
    t = b.process(100).thread(100)
    t.launch(0, 1, gpu=(2, 10))
    t.stream_sync(1, 10)
    t.stream_sync(14, 16)
    t.launch(17, 18, gpu=(20, 21))
    # [10,14) to the first; [14,20): 2 to the second, 4 to the first, which has 5 left.
    assert stalls(answer(b)) == [8, 2]


def test_operation_begun_at_the_gap_start_counts(b: TraceBuilder, answer: Answer) -> None:
    t = b.process(100).thread(100)
    t.launch(0, 1, gpu=(2, 10))
    t.stream_sync(10, 13)
    t.launch(14, 15, gpu=(16, 17))
    result = answer(b)
    assert (stalls(result), result.devices[0].host_bound) == ([3], 3)


@pytest.mark.parametrize(("launched", "host_late"), [(9, 0), (10, 0), (11, 2)])
def test_host_late_only_when_launched_after_the_gap_began(
    launched: int, host_late: int, b: TraceBuilder, answer: Answer
) -> None:
    t = b.process(100).thread(100)
    t.launch(0, 1, gpu=(2, 10))
    t.launch(launched, 12, gpu=(12, 14))
    device = answer(b).devices[0]
    assert (device.host_late, device.device_side, device.device_side_without_launch) == (host_late, 2 - host_late, 0)


def test_launch_that_is_itself_a_sync_call_is_host_late(b: TraceBuilder, answer: Answer) -> None:
    t = b.process(100).thread(100)
    t.launch(0, 1, gpu=(2, 10))
    t.copy(5, 16, gpu=(12, 15), sync=True)
    result = answer(b)
    assert (spans(result), stalls(result), result.devices[0].device_side) == ([(5, 16)], [2], 0)


def test_pinned_copy_that_folds_is_no_sync_call_itself(b: TraceBuilder, answer: Answer) -> None:
    t = b.process(100).thread(100)
    t.launch(0, 1, gpu=(2, 10))
    t.copy(5, 6, gpu=(12, 15))
    t.stream_sync(7, 16)
    result = answer(b)
    assert (spans(result), stalls(result), result.devices[0].device_side) == ([(5, 16)], [0], 2)


def test_work_without_launch_call(b: TraceBuilder, answer: Answer) -> None:
    p = b.process(100)
    t = p.thread(100)
    t.launch(0, 1, gpu=(2, 10))
    t.stream_sync(2, 11)
    p.gpu_row("KERNEL", (13, 14))
    result = answer(b)
    device = result.devices[0]
    assert (stalls(result), device.device_side, device.device_side_without_launch) == ([0], 3, 3)


def test_of_several_ends_the_first_launched_decides(b: TraceBuilder, answer: Answer) -> None:
    p = b.process(100)
    t = p.thread(100)
    t.launch(0, 1, gpu=(2, 10))
    t.launch(5, 6, gpu=(13, 14))
    t.launch(12, 13, gpu=(13, 20), stream=13)
    p.gpu_row("KERNEL", (13, 14))
    assert answer(b).devices[0].device_side == 3


def test_row_without_launch_decides_last(b: TraceBuilder, answer: Answer) -> None:
    p = b.process(100)
    t = p.thread(100)
    p.gpu_row("KERNEL", (13, 14))
    t.launch(0, 1, gpu=(2, 10))
    t.launch(12, 13, gpu=(13, 20))
    device = answer(b).devices[0]
    assert (device.host_late, device.device_side) == (3, 0)


def test_work_without_length_splits_nothing(b: TraceBuilder, answer: Answer) -> None:
    t = b.process(100).thread(100)
    t.launch(0, 1, gpu=(2, 10))
    t.launch(1, 2, gpu=[(12, 12), (14, 13), (15, None), (40, 40)])
    t.launch(16, 17, gpu=(18, 20))
    device = answer(b).devices[0]
    assert (device.window, device.gaps, device.host_late, device.device_side) == (18, 1, 8, 0)


def test_all_kinds_of_work_on_all_streams_are_busy(b: TraceBuilder, answer: Answer) -> None:
    p = b.process(100)
    t = p.thread(100)
    t.launch(0, 1, gpu=(0, 10))
    t.copy(1, 2, gpu=(5, 12), kind="HtoD", stream=13)
    t.memset(2, 3, gpu=(12, 14), sync=False)
    t.graph_launch(3, 4, gpu=(14, 20), whole=not b.old)
    b.process(200).gpu_row("KERNEL", (19, 25))
    device = answer(b).devices[0]
    assert (device.window, device.busy, device.gaps) == (25, 25, 0)


def test_old_export_leaves_whole_graphs_out(answer: Answer) -> None:
    busy = []
    for schema in SCHEMAS:
        b = TraceBuilder(schema)
        t = b.process(100).thread(100)
        t.graph_launch(3, 4, gpu=(14, 20))
        t.launch(5, 6, gpu=(20, 21))
        busy.append(answer(b).devices[0].busy)
    assert busy == [1, 7]


def test_profiler_overhead_is_taken_out(b: TraceBuilder, answer: Answer) -> None:
    p = b.process(100)
    t, worker = p.thread(100), p.thread(101)
    t.launch(0, 1, gpu=(2, 10))
    t.stream_sync(2, 9)
    t.launch(25, 26, gpu=(30, 31))
    worker.overhead(8, 13)
    worker.overhead(15, 18)
    t.overhead(17, 19)
    worker.overhead(20, 24, name="Unknown")
    b.process(200).thread(200).overhead(26, 29)  # a process without work on the device
    result = answer(b)
    device = result.devices[0]
    # [13,15) and [19,30) are idle, one gap, launched after its start; the credit is 7.
    assert (device.gaps, device.profiler, device.stall, device.host_bound) == (1, 3 + 4, 7, 6)
    assert device.conserved


def test_idle_within_leaves_overhead_out(b: TraceBuilder, answer: Answer) -> None:
    t = b.process(100).thread(100)
    t.launch(0, 1, gpu=(2, 10))
    t.stream_sync(4, 20)
    t.overhead(12, 15)
    t.launch(22, 23, gpu=(25, 26))
    assert [o.idle_within for o in answer(b).operations] == [7]  # [10,12) and [15,20)


def test_idle_before_the_first_and_after_the_last_activity_does_not_count(b: TraceBuilder, answer: Answer) -> None:
    t = b.process(100).thread(100)
    t.stream_sync(-20, -10)
    t.launch(-5, -4, gpu=(-2, 10))
    t.stream_sync(11, 100)
    result = answer(b)
    assert (result.devices[0].window, [o.idle_within for o in result.operations]) == (12, [0, 0])


# ---- handing over


def test_thread_that_handed_over_answers(b: TraceBuilder, answer: Answer) -> None:
    p = b.process(100)
    main, autograd = p.thread(100), p.thread(101)
    main.launch(0, 1, gpu=(2, 10))
    main.stream_sync(2, 11)
    autograd.launch(13, 14, gpu=(15, 16))
    autograd.launch(18, 19, gpu=(19, 20))
    # gap [10,15): 5 of 9; gap [16,19): 3 of the 4 left.
    assert stalls(answer(b)) == [8]


@pytest.mark.parametrize(("launched", "stall"), [(12, 8), (13, 0), (15, 5), (18, 5), (19, 8)])
def test_thread_that_launches_meanwhile_has_not_handed_over(
    launched: int, stall: int, b: TraceBuilder, answer: Answer
) -> None:
    p = b.process(100)
    main, autograd = p.thread(100), p.thread(101)
    main.launch(0, 1, gpu=(2, 10))
    main.stream_sync(2, 11)
    autograd.launch(13, 14, gpu=(15, 16))
    main.launch(launched, launched + 1, gpu=(30, 31))
    autograd.launch(18, 19, gpu=(19, 20))
    assert answer(b).devices[0].stall == stall


def test_other_processes_never_answer(b: TraceBuilder, answer: Answer) -> None:
    one, two = b.process(100).thread(100), b.process(200).thread(200)
    one.launch(0, 1, gpu=(2, 10))
    one.stream_sync(2, 11)
    two.launch(13, 14, gpu=(15, 16))
    result = answer(b)
    assert (stalls(result), result.devices[0].host_bound) == ([0], 5)


def test_own_later_operation_comes_before_the_other_threads_earlier_one(b: TraceBuilder, answer: Answer) -> None:
    p = b.process(100)
    main, autograd = p.thread(100), p.thread(101)
    main.launch(0, 1, gpu=(2, 10))
    main.stream_sync(2, 9)
    autograd.stream_sync(3, 5)
    autograd.launch(13, 14, gpu=(15, 16))
    # Main handed over: its operation began first, so autograd's is asked first: 2, then 3 of main's 7.
    assert stalls(answer(b)) == [3, 2]


# ---- the launch queue


@pytest.mark.parametrize(("launches", "stall"), [(1023, 5), (1024, 0)])
def test_credit_lapses_behind_a_full_launch_queue(launches: int, stall: int, b: TraceBuilder, answer: Answer) -> None:
    p = b.process(100)
    main, other = p.thread(100), p.thread(101)
    main.launch(0, 1, gpu=(1, 50))
    main.stream_sync(1, 51)
    # Not counted: a launch that began with the operation's end, another device's, another process's.
    main.launch(51, 52, gpu=(100, 101))
    main.launch(52, 53, gpu=(100, 101), device=1)
    b.process(200).thread(200).launch(60, 61, gpu=(100, 101))
    for number in range(launches):
        thread = other if number % 2 else main
        thread.launch(60 + number, 61 + number, gpu=[(50, 3000), (60, 61)])
    main.launch(3001, 3002, gpu=(3005, 3006))
    assert answer(b).devices[0].stall == stall


# ---- what an operation is


@pytest.mark.parametrize(
    ("sync_stream", "sync_context", "between", "expected"),
    [
        (7, 1, None, [(5, 20)]),
        (13, 1, None, [(8, 20)]),
        (7, 2, None, [(8, 20)]),
        (7, 1, "cudaStreamIsCapturing_v10000", [(5, 20)]),
        (7, 1, "cudaEventQuery_v3020", [(5, 20)]),
        (7, 1, "cudaEventRecord_v3020", [(8, 20)]),
    ],
)
def test_copy_and_synchronize_fold(
    sync_stream: int,
    sync_context: int,
    between: str | None,
    expected: list[tuple[int, int]],
    b: TraceBuilder,
    answer: Answer,
) -> None:
    t = b.process(100).thread(100)
    t.copy(5, 6, gpu=(7, 15))
    if between:
        t.api(between, 6, 7)
    t.stream_sync(8, 20, stream=sync_stream, context=sync_context)
    assert spans(answer(b)) == expected


def test_no_fold_without_a_row_to_prove_it(b: TraceBuilder, answer: Answer) -> None:
    t = b.process(100).thread(100)
    t.copy(5, 6, gpu=(7, 15))
    t.stream_sync(8, 20, row=None)
    t.copy(21, 22)
    t.stream_sync(23, 24)
    t.copy(25, 26, gpu=(26, 27))
    t.stream_sync(28, 30, row=(27, 30))  # another call's row: not within this one
    assert spans(answer(b)) == [(8, 20), (23, 24), (28, 30)]


def test_fold_needs_the_same_thread_and_takes_only_the_nearest_copy(b: TraceBuilder, answer: Answer) -> None:
    p = b.process(100)
    t, other = p.thread(100), p.thread(101)
    t.copy(0, 4, gpu=(2, 3), dst="pageable")
    t.copy(5, 6, gpu=(7, 15), dst="pageable")
    other.stream_sync(6, 7)
    t.stream_sync(8, 20)
    t.device_sync(21, 22)
    result = answer(b)
    assert spans(result) == [(0, 4), (5, 20), (6, 7), (21, 22)]
    assert [o.apis for o in result.operations][1] == ("cudaMemcpyAsync", "cudaStreamSynchronize")


@pytest.mark.parametrize(
    ("options", "gpu", "blocks"),
    [
        ({"dst": "pinned"}, (6, 8), False),
        ({"dst": "pageable"}, (6, 8), True),
        ({"dst": "pageable"}, (9, 12), True),
        ({"dst": "pageable"}, (10, 12), False),
        ({"kind": "HtoD", "src": "pageable"}, (9, 12), True),
        ({"kind": "HtoD", "src": "pageable"}, (11, 12), False),
        ({"dst": "pinned", "sync": True}, (6, 8), True),
        ({"dst": "pinned", "sync": True}, (10, 12), False),
        ({"dst": "pageable"}, None, False),
        ({"name": "cuMemcpyDtoH_v2"}, (6, 8), True),
        ({"name": "cuMemcpyDtoHAsync_v2_ptsz"}, (6, 8), False),
    ],
)
def test_copies_that_block(
    options: dict[str, Any], gpu: tuple[int, int] | None, blocks: bool, b: TraceBuilder, answer: Answer
) -> None:
    t = b.process(100).thread(100)
    t.copy(5, 10, gpu=gpu, **options)
    t.launch(11, 12, gpu=(20, 21))
    assert spans(answer(b)) == ([(5, 10)] if blocks else [])


@pytest.mark.parametrize(
    ("sync", "gpu", "blocks"),
    [(True, (6, 10), True), (True, (6, 11), False), (True, None, False), (False, (6, 8), False)],
)
def test_memsets_that_block(
    sync: bool, gpu: tuple[int, int] | None, blocks: bool, b: TraceBuilder, answer: Answer
) -> None:
    t = b.process(100).thread(100)
    t.memset(5, 10, gpu=gpu, sync=sync)
    t.launch(11, 12, gpu=(20, 21))
    assert spans(answer(b)) == ([(5, 10)] if blocks else [])


@pytest.mark.parametrize(
    ("name", "work", "blocks"),
    [
        ("cudaFree_v3020", (2, 9), True),
        ("cudaFree_v3020", (7, 10), True),  # queued at the start, done at the end
        ("cudaFree_v3020", (7, 7), True),  # work without length is work too
        ("cudaFree_v3020", (2, 5), False),  # done at the start
        ("cudaFree_v3020", (2, 11), False),  # still running at the end
        ("cuMemFree_v2", (2, 9), True),
        ("cudaMalloc_v3020", (2, 9), False),
        ("cudaFreeAsync_v11020", (2, 9), False),
        ("cudaFreeHost_v3020", (2, 9), False),
        ("cudaEventDestroy_v3020", (2, 9), False),
    ],
)
def test_frees_that_block(name: str, work: tuple[int, int], blocks: bool, b: TraceBuilder, answer: Answer) -> None:
    p = b.process(100)
    p.thread(101).launch(0, 1, gpu=work, device=1)  # another thread and device of the process
    p.thread(100).api(name, 5, 10)
    b.process(200).gpu_row("KERNEL", (0, 50))  # another process's work does not matter
    assert spans(answer(b)) == ([(5, 10)] if blocks else [])


@pytest.mark.parametrize(
    "name",
    [
        "cudaStreamSynchronize_v3020",
        "cudaStreamSynchronize_ptsz_v7000",
        "cudaEventSynchronize_v3020",
        "cudaDeviceSynchronize_v3020",
        "cudaThreadSynchronize_v3020",
        "cuStreamSynchronize_ptsz",
        "cuEventSynchronize",
        "cuCtxSynchronize",
    ],
)
def test_explicit_synchronize_calls(name: str, b: TraceBuilder, answer: Answer) -> None:
    b.process(100).thread(100).api(name, 5, 10)
    assert spans(answer(b)) == [(5, 10)]


def test_calls_that_wait_for_nothing(b: TraceBuilder, answer: Answer) -> None:
    t = b.process(100).thread(100)
    for number, name in enumerate(
        ["cudaStreamQuery_v3020", "cudaEventQuery_v3020", "cudaStreamWaitEvent_v3020", "cuStreamWaitEvent"]
    ):
        t.api(name, 10 * number, 10 * number + 5)
    assert spans(answer(b)) == []


@pytest.mark.parametrize("inner", [(5, 10), (6, 9), (5, 9), (6, 10)])
def test_backtrace_row_and_versioned_row_are_one_call(inner: tuple[int, int], b: TraceBuilder, answer: Answer) -> None:
    b.process(100).thread(100).stream_sync(5, 10, backtrace=True, inner=inner)
    assert spans(answer(b)) == [(5, 10)]


def test_nested_calls_belong_to_the_outer_one(b: TraceBuilder, answer: Answer) -> None:
    t = b.process(100).thread(100)
    t.launch(0, 2, gpu=(5, 6), driver="own")
    t.launch(2, 4, gpu=(6, 7), driver="same")
    t.api("cudaMalloc_v3020", 7, 12)
    t.api("cuStreamSynchronize", 8, 11)
    t.device_sync(12, 20)
    t.api("cuCtxSynchronize", 13, 19)
    result = answer(b)
    assert spans(result) == [(12, 20)]
    assert len(result.calls) == 4
    assert result.devices[0].device_side_without_launch == 0


def test_unfinished_calls_still_launch_and_still_come_next(b: TraceBuilder, answer: Answer) -> None:
    t = b.process(100).thread(100)
    t.launch(0, 1, gpu=(2, 10))
    t.stream_sync(1, 9)
    t.copy(11, 12, gpu=(13, 14))
    t.stream_sync(13, None)
    t.stream_sync(14, 20)
    t.launch(21, None, gpu=(25, 26))
    result = answer(b)
    assert (spans(result), stalls(result)) == ([(1, 9), (14, 20)], [3 + 5, 6])


def test_same_correlation_id_in_two_processes(b: TraceBuilder, answer: Answer) -> None:
    one, two = b.process(100).thread(100), b.process(200).thread(200)
    one.launch(0, 1, gpu=(2, 10), correlation=1)
    one.launch(3, 4, gpu=(13, 14), correlation=2)
    two.launch(15, 16, gpu=(20, 21), correlation=2)
    device = answer(b).devices[0]
    assert (device.device_side, device.host_late) == (3, 6)


def test_recurring_correlation_id_goes_to_the_call_that_can_launch(b: TraceBuilder, answer: Answer) -> None:
    t = b.process(100).thread(100)
    t.launch(0, 1, gpu=(2, 10))
    t.device_sync(1, 5, correlation=77)
    t.api("cudaEventDestroy_v3020", 5, 6, correlation=77)
    t.launch(7, 8, gpu=(13, 14), correlation=77)
    t.launch(20, 21, correlation=77)
    result = answer(b)
    assert (spans(result), result.devices[0].device_side) == ([(1, 5)], 3)


def test_every_device_has_a_credit_of_its_own(b: TraceBuilder, answer: Answer) -> None:
    t = b.process(100).thread(100)
    t.launch(0, 1, gpu=(2, 10))
    t.launch(0, 1, gpu=(2, 8), device=1)
    t.device_sync(5, 11)
    t.launch(13, 14, gpu=(15, 16))
    t.launch(16, 17, gpu=(18, 19), device=1)
    result = answer(b)
    (operation,) = result.operations
    assert (operation.blocked, operation.stall, operation.stall_total) == (6, {0: 5, 1: 6}, 11)
    assert operation.idle_within == (11 - 10) + (11 - 8)
    assert [device.host_bound for device in result.devices.values()] == [0, 4]


def test_equal_starts_order_by_end_and_thread(b: TraceBuilder, answer: Answer) -> None:
    p = b.process(100)
    first, second = p.thread(100), p.thread(101)
    first.launch(0, 1, gpu=(2, 10))
    second.stream_sync(4, 6)
    first.stream_sync(4, 6)
    p.thread(102).stream_sync(4, 5)
    first.launch(12, 13, gpu=(13, 14))
    result = answer(b)
    # Last is thread 101's, then 100's, then the shorter one of 102.
    assert [(o.end, o.tid, o.stall_total) for o in result.operations] == [(5, 102, 0), (6, 100, 1), (6, 101, 2)]


def test_range_clips_the_attribution_of_the_whole(b: TraceBuilder, answer: Answer, tmp_path: Path) -> None:
    t = b.process(100).thread(100)
    t.launch(0, 1, gpu=(2, 10))
    t.stream_sync(6, 10)
    t.launch(15, 16, gpu=(18, 20))
    path = b.write(tmp_path / "trace.sqlite")
    # Whole: [10,14) stall, [14,18) host-bound. Clipped to [12,30).
    device = oracle(path, (12, 30)).devices[0]
    assert figures(device) == (18, 2, 6, 0, 0, 2, 4)
    assert (device.outside, device.gaps, device.conserved) == (10, 1, True)


# ------------------------------------------------------------------------------------------- the builder's other tables


def test_stacks_can_be_read_back(b: TraceBuilder, tmp_path: Path) -> None:
    t = b.process(100).thread(100)
    frames = [("<module>", "/home/me/train.py", 7), ("main", "/home/me/train.py", 99)]
    t.stream_sync(5, 10, python=frames, native=[("cuStreamSynchronize", "libcuda.so"), ("is_nonzero", "libtorch.so")])
    t.stream_sync(15, 20, python=frames[1:], native=[("THPVariable_item", "libtorch.so")])
    t.python_stack(7, frames, source="sample")
    path = b.write(tmp_path / "trace.sqlite")
    assert python_stacks(path) == {(5, t.global_tid): frames, (15, t.global_tid): frames[1:]}

    connection = sqlite3.connect(path)
    shift = 1 if b.old else 0
    rows = connection.execute(
        """SELECT r.start, s.value FROM CUPTI_ACTIVITY_KIND_RUNTIME r
           JOIN CUDA_CALLCHAINS c ON c.id = r.callchainId + ? JOIN StringIds s ON s.id = c.symbol
           ORDER BY r.start, c.stackDepth""",
        (shift,),
    ).fetchall()
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    connection.close()
    assert rows == [(5, "cuStreamSynchronize"), (5, "is_nonzero"), (15, "THPVariable_item")]
    assert ("NSYS_SYNC_PYTHON_BACKTRACE" in tables) == b.old
    assert ("NVTX_PAYLOAD_SCHEMAS" in tables) == (not b.old)
    assert "CUPTI_ACTIVITY_KIND_KERNEL" not in tables


@needs_captures
@pytest.mark.parametrize("schema", SCHEMAS)
def test_tables_have_the_columns_of_real_exports(schema: str, tmp_path: Path) -> None:
    b = TraceBuilder(schema)
    t = b.process(100).thread(100)
    t.launch(0, 1, gpu=(2, 10))
    t.copy(1, 2, gpu=(3, 4))
    t.memset(2, 3, gpu=(4, 5))
    t.graph_launch(3, 4, gpu=(5, 6))
    t.stream_sync(5, 10, python=[("main", "/home/me/train.py", 7)])
    t.overhead(10, 11)
    t.nvtx("step 0", 0, 10)
    b.diagnostic("a message")
    built = columns(b.write(tmp_path / "trace.sqlite"))
    real: dict[str, list[str]] = {}
    for name in ("gpu_bound", "graph_whole"):
        real |= columns(unpack(name, schema, tmp_path))
    built.pop("NSYS_SYNC_PYTHON_BACKTRACE", None)
    assert built == {table: real[table] for table in built}
    assert len(built) >= 18 if schema == "3.7.2" else len(built) >= 22


def columns(path: Path) -> dict[str, list[str]]:
    connection = sqlite3.connect(path)
    tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    found = {t: [f"{c[1]} {c[2]}" for c in connection.execute(f"PRAGMA table_info({t})")] for t in tables}
    connection.close()
    return found
