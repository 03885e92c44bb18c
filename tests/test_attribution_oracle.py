"""The product against the oracle, which was written apart from it: generated traces, captures, fixtures."""

from __future__ import annotations

import lzma
import os
import shutil
from pathlib import Path

import pytest
from attribution import stacks_of_calls
from hypothesis import HealthCheck, given, note, settings
from oracle import OracleResult, oracle
from strategies import Plan, dense_plans, lapse_plans, plans, ranges
from trace_builder import TraceBuilder

import nsys_sync
from nsys_sync.errors import TraceError
from nsys_sync.model import Analysis
from nsys_sync.trace import tables

TESTS = Path(__file__).resolve().parent
FOLDERS = (TESTS.parents[1] / "shared" / "captures", TESTS / "fixtures")
EXPORTS = list({path.name: path for folder in FOLDERS for path in sorted(folder.glob("*.sqlite.xz"))}.values())
"""Captures and fixtures, each once."""
generated = settings(
    deadline=None,
    derandomize="CI" in os.environ,  # new examples are for developers: CI judges the change, not the luck of the draw
    max_examples=200,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)


def unpack(packed: Path, folder: Path) -> Path:
    target = folder / packed.stem
    with lzma.open(packed) as source, target.open("wb") as plain:
        shutil.copyfileobj(source, plain)
    return target


def compare(path: Path, time_range: tuple[int, int] | None = None) -> None:
    expected = oracle(path, time_range, stacks_of_calls(path))
    within = [d for d in expected.devices.values() if d.window > d.outside]
    if not within or not expected.calls:  # Nothing to analyse, and it says so.
        with pytest.raises(TraceError):
            nsys_sync.analyze(path, time_range=time_range)
        return
    analysis = nsys_sync.analyze(path, time_range=time_range)
    compare_devices(analysis, expected)
    if analysis.stall_ns is not None:
        compare_operations(analysis, expected, clipped=time_range is not None)


def compare_devices(analysis: Analysis, expected: OracleResult) -> None:
    devices = analysis.traces[0].devices
    assert [d.id for d in devices] == list(expected.devices)
    for device in devices:
        want = expected.devices[device.id]
        assert (device.window_ns, device.busy_ns, device.outside_ns) == (want.window, want.busy, want.outside)
        if device.refused is not None:
            assert device.idle_ns is device.stall_ns is device.host_bound_ns is device.device_side_ns is None
            continue
        found = {
            "stall": device.stall_ns,
            "host_bound": device.host_bound_ns,
            "device_side": device.device_side_ns,
            "device_side_without_launch": device.device_side_without_launch_ns,
            "profiler": device.profiler_ns,
            "not_captured": device.not_captured_ns,
            "gaps": device.gaps,
            "host_late_gaps": device.host_late_gaps,
        }
        assert found == {name: getattr(want, name) for name in found}
        assert device.idle_ns == want.host_late + want.device_side
        timeline = device.timeline
        assert sum(timeline.stall_ns) == want.stall
        assert sum(timeline.busy_ns) == want.busy


def compare_operations(analysis: Analysis, expected: OracleResult, *, clipped: bool) -> None:
    rows = analysis.operations.to_pylist()
    if clipped:  # Which operations are shown is not the oracle's matter; what is charged to them is.
        known = {(o.pid, o.tid, o.start, o.end): o.stall_total for o in expected.operations}
        for row in rows:
            assert (row["stall_ns"] or 0) == known[row["pid"], row["tid"], row["start_ns"], row["end_ns"]], row
        assert sum(row["stall_ns"] or 0 for row in rows) == expected.stall
        return
    columns = ("pid", "tid", "start_ns", "end_ns", "blocked_ns", "stall_ns", "idle_within_ns")
    # What an operation in a stretch of lost events cost is not known: nothing is charged to it then.
    not_known = {tuple(row[column] for column in columns[:4]) for row in rows if row["stall_ns"] is None}
    found = sorted(tuple(row[column] or 0 for column in columns) for row in rows)
    wanted = []
    for o in expected.operations:
        place = (o.pid, o.tid, o.start, o.end)
        wanted.append((*place, o.blocked, o.stall_total, 0 if place in not_known else o.idle_within))
    assert found == sorted(wanted)
    assert sum(site.calls for site in analysis.sites) == len(expected.operations)
    assert sum(site.stall.total_ns for site in analysis.sites if site.stall) == expected.stall


def test_launches_that_begin_at_once_order_by_end_then_thread(tmp_path: Path) -> None:
    """DESIGN.md: equal starts order by (start, end, thread). Thread 101's launch ends first, so it decides the gap;
    thread 100 launches at that very moment, so it has not handed over and its wait is charged nothing."""
    b = TraceBuilder()
    p = b.process(100)
    main, other = p.thread(100), p.thread(101)
    main.launch(-9, -8, gpu=(0, 1))
    main.stream_sync(3, 6)
    main.launch(10, 12, gpu=(10, 11))
    other.launch(10, 11, gpu=(10, 11))
    path = b.write(tmp_path / "trace.sqlite")
    assert nsys_sync.analyze(path).stall_ns == oracle(path).stall == 0


@generated
@given(plan=plans)
def test_anything(plan: Plan, tmp_path: Path) -> None:
    compare(plan.build().write(tmp_path / "trace.sqlite", shuffle=plan.shuffle))


@generated
@given(plan=dense_plans)
def test_dense(plan: Plan, tmp_path: Path) -> None:
    compare(plan.build().write(tmp_path / "trace.sqlite", shuffle=plan.shuffle))


@settings(generated, max_examples=25)
@given(plan=lapse_plans())
def test_deep_queues(plan: Plan, tmp_path: Path) -> None:
    compare(plan.build().write(tmp_path / "trace.sqlite", shuffle=plan.shuffle))


@generated
@given(plan=dense_plans)
def test_few_rows_at_once(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "ROWS_AT_ONCE", 2)
    compare(plan.build().write(tmp_path / "trace.sqlite", shuffle=plan.shuffle))


@settings(generated, max_examples=25)
@given(plan=lapse_plans())
def test_deep_queues_few_rows_at_once(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "ROWS_AT_ONCE", 5)
    compare(plan.build().write(tmp_path / "trace.sqlite", shuffle=plan.shuffle))


@generated
@given(plan=dense_plans, time_range=ranges)
def test_time_ranges(plan: Plan, time_range: tuple[int, int], tmp_path: Path) -> None:
    note(str(time_range))
    compare(plan.build().write(tmp_path / "trace.sqlite", shuffle=plan.shuffle), time_range)


@pytest.mark.parametrize("packed", EXPORTS, ids=lambda path: path.name)
def test_real_exports(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = unpack(packed, tmp_path)
    compare(path)
    monkeypatch.setattr(tables, "ROWS_AT_ONCE", 100)
    compare(path)
    first = min(device.window for device in oracle(path).devices.values())
    compare(path, (first // 3, first // 2))
