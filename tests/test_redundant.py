"""Explicit waits for nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from attribution import attributed
from conftest import Capture
from hypothesis import given
from hypothesis import strategies as st
from strategies import Plan, dense_plans, plans
from test_attribution_oracle import generated
from trace_builder import SCHEMAS, TraceBuilder

from nsys_sync.analysis.options import Options
from nsys_sync.analysis.redundant import redundant_operations
from nsys_sync.analysis.summary import trace_operations
from nsys_sync.errors import TraceError
from nsys_sync.trace.api_names import ApiClass, base_name


def redundant(b: TraceBuilder, tmp_path: Path, options: Options | None = None) -> list[bool | None]:
    """For each operation; None where it cannot be told."""
    mask, known = redundant_operations(attributed(b.write(tmp_path / "trace.sqlite"), options))
    return [bool(m) if k else None for m, k in zip(mask, known, strict=True)]


def test_waits_while_nothing_runs_and_nothing_is_queued(tmp_path: Path) -> None:
    b = TraceBuilder()
    thread = b.process(100).thread(100)
    thread.stream_sync(-3, -2)  # before all activity: work from before the capture is not on record
    thread.launch(0, 1, gpu=(5, 20))
    thread.stream_sync(6, 25)  # waits
    thread.stream_sync(30, 31)
    thread.device_sync(32, 33)
    thread.launch(40, 41, gpu=(60, 70))
    thread.event_sync(45, 50)  # the GPU is idle, but its work is queued
    thread.device_sync(80, 81)
    assert redundant(b, tmp_path) == [False, False, True, True, False, True]


def test_reads_and_frees_are_never_redundant(tmp_path: Path) -> None:
    b = TraceBuilder()
    thread = b.process(100).thread(100)
    thread.launch(0, 1, gpu=(5, 20))
    thread.free(10, 25)
    thread.copy(30, 31, gpu=(32, 33))
    thread.stream_sync(32, 40)
    assert redundant(b, tmp_path) == [False, False]


def test_all_devices_of_the_process_count(tmp_path: Path) -> None:
    b = TraceBuilder()
    p = b.process(100)
    thread = p.thread(100)
    thread.launch(0, 1, gpu=(2, 10))
    thread.launch(1, 2, gpu=(3, 50), device=1)
    thread.stream_sync(20, 21)  # device 1 works
    thread.launch(55, 56, gpu=(60, 61))
    thread.stream_sync(70, 71)
    other = b.process(200).thread(200)
    other.launch(0, 1, gpu=(4, 5))
    other.stream_sync(22, 23)  # it uses device 0 alone
    assert redundant(b, tmp_path) == [False, True, True]
    assert redundant(b, tmp_path, Options(device=0)) == [None, None, True]


def test_streams_that_wait_for_the_host_tell_nothing(tmp_path: Path) -> None:
    b = TraceBuilder()
    thread = b.process(100).thread(100)
    thread.launch(0, 1, gpu=(5, 20))
    thread.api("cudaLaunchHostFunc_v10000", 2, 3)
    thread.stream_sync(30, 90)
    assert redundant(b, tmp_path) == [None]


def test_work_without_a_launch_may_have_been_queued(tmp_path: Path) -> None:
    b = TraceBuilder()
    p = b.process(100)
    p.thread(100).launch(0, 1, gpu=(5, 20))
    p.thread(100).stream_sync(30, 31)
    p.gpu_row("KERNEL", (40, 50))
    assert redundant(b, tmp_path) == [False]


def test_graphs_without_rows_leave_it_open(tmp_path: Path) -> None:
    b = TraceBuilder()
    thread = b.process(100).thread(100)
    thread.launch(0, 1, gpu=(5, 20))
    thread.graph_launch(25, 26)
    thread.device_sync(30, 31)
    thread.launch(40, 41, gpu=(60, 70))
    assert redundant(b, tmp_path) == [None]


@generated
@given(plan=st.one_of(plans, dense_plans))
def test_as_a_slow_reading_finds_them(plan: Plan, tmp_path: Path) -> None:
    try:
        one = attributed(plan.build().write(tmp_path / "trace.sqlite", shuffle=plan.shuffle))
    except TraceError:
        return
    mask, known = redundant_operations(one)
    calls, operations = one.calls, one.operations
    for i in range(len(operations)):
        own = [a for a in one.accounts if calls.processes[operations.process[i]] in a.time.process_ids]
        lost = one.lost.holds(operations.thread[i : i + 1], operations.start[i : i + 1])[0]
        assert known[i] == (bool(own) and not any(one.refusal(account) for account in own) and not lost)
        if not known[i]:
            assert not mask[i]
            continue
        expected = operations.copy_call[i] < 0
        expected &= calls.api_class[operations.call[i]] in (ApiClass.STREAM_SYNC, ApiClass.OTHER_SYNC)
        start, end = operations.start[i], operations.end[i]
        for account in own:
            time = account.time
            if start >= time.window_end:
                continue
            around = [
                g
                for g in range(len(time.gaps))
                if time.gaps.start[g] <= start and end <= time.gaps.end[g] and start < time.gaps.end[g]
            ]
            expected &= bool(around)
            for gap in around:
                closing = time.closing_call[gap]
                expected &= closing >= 0 and calls.start[closing] > start
        names = [base_name(one.trace.api_names[code]) for code in calls.name_of(operations.call)]
        same = [j for j in range(len(operations)) if operations.process[j] == operations.process[i]]
        waits = [operations.end[j] for j in same if names[j] == "cudaDeviceSynchronize" and operations.end[j] <= start]
        for row, kind in zip(one.trace.copies["gpu_row"], one.trace.copies["copy_kind"], strict=True):
            call = calls.launched_by[row]
            own_copy = call >= 0 and calls.process_of(np.array([call]))[0] == operations.process[i]
            if kind == 2 and own_copy and call not in operations.copy_call:
                expected &= not max(waits, default=-(10**18)) <= calls.start[call] < start
        assert mask[i] == expected


@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_last_waits_of_each_step_of_sync_heavy(capture: Capture, schema: str) -> None:
    """Each step ends in two waits after it read its last result, when nothing is left to wait for."""
    one = attributed(capture(f"sync_heavy.schema-{schema}"))
    mask, known = redundant_operations(one)
    shown = trace_operations(one)
    assert known.all()
    functions = Counter(shown.site_keys[site].location.function for site in shown.site[mask])
    assert functions == {"event_sync": 20, "explicit_sync": 20, "main": 1}


def test_unknown_where_graphs_have_no_rows(capture: Capture) -> None:
    assert not redundant_operations(attributed(capture("graph_whole.schema-3.7.2")))[1].any()
    assert redundant_operations(attributed(capture("graph_whole.schema-3.20.3")))[1].all()


def test_a_wait_that_makes_a_copy_safe_to_read_is_not_redundant(tmp_path: Path) -> None:
    """An asynchronous copy to the host, over before the wait for its event: only the wait says that it is."""
    b = TraceBuilder()
    thread = b.process(100).thread(100)
    thread.launch(0, 1, gpu=(1, 10))
    thread.copy(10, 11, gpu=(11, 12), kind="DtoH", dst="pinned")
    thread.event_sync(20, 21)
    thread.device_sync(30, 31)
    thread.event_sync(40, 41)
    thread.launch(50, 51, gpu=(51, 60))
    mask, _ = redundant_operations(attributed(b.write(tmp_path / "trace.sqlite")))
    assert mask.tolist() == [False, False, True]
