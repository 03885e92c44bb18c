"""Runs of reads that one read could replace."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from attribution import attributed
from conftest import Capture
from hypothesis import given
from hypothesis import strategies as st
from strategies import Plan, dense_plans, plans
from test_attribution_oracle import generated
from trace_builder import SCHEMAS, ThreadBuilder, TraceBuilder

from nsys_sync.analysis.merges import LISTED, Runs, merge_runs, merges
from nsys_sync.analysis.summary import Attributed, trace_operations
from nsys_sync.errors import TraceError
from nsys_sync.model import Merge


def read(thread: ThreadBuilder, at: int) -> int:
    """`.item()`: returns when the thread goes on."""
    thread.copy(at, at + 2, gpu=(at + 1, at + 3))
    thread.stream_sync(at + 3, at + 5)
    return at + 6


def runs_of(b: TraceBuilder, tmp_path: Path) -> list[list[int]]:
    one = attributed(b.write(tmp_path / "trace.sqlite"))
    return as_lists(merge_runs(one.calls, one.operations, one.operations.copy_kind == 2))


def as_lists(runs: Runs) -> list[list[int]]:
    return [runs.operation[runs.first[i] : runs.first[i + 1]].tolist() for i in range(len(runs))]


def test_reads_in_a_row_are_one_run(tmp_path: Path) -> None:
    b = TraceBuilder()
    thread = b.process(100).thread(100)
    at = 0
    for _ in range(3):
        at = read(thread, at)
    thread.launch(at, at + 1, gpu=(at + 2, at + 3))
    at = read(thread, at + 5)  # alone
    thread.launch(at, at + 1, gpu=(at + 2, at + 3))
    at = read(thread, at + 5)
    read(thread, at)
    assert runs_of(b, tmp_path) == [[0, 1, 2], [4, 5]]


@pytest.mark.parametrize("between", ["launch", "memset", "graph", "wait", "malloc"])
def test_what_ends_a_run(between: str, tmp_path: Path) -> None:
    b = TraceBuilder()
    thread = b.process(100).thread(100)
    at = read(thread, 0)
    match between:
        case "launch":
            thread.launch(at, at + 1, gpu=(at + 2, at + 3))
        case "memset":
            thread.memset(at, at + 1, gpu=(at + 2, at + 3), sync=False)
        case "graph":
            thread.graph_launch(at, at + 1)  # its work is not in the trace
        case "wait":
            thread.device_sync(at, at + 1)
        case "malloc":
            thread.api("cudaMalloc_v3020", at, at + 1)
    read(thread, at + 5)
    assert len(runs_of(b, tmp_path)) == (1 if between == "malloc" else 0)


def test_threads_and_processes_do_not_mix(tmp_path: Path) -> None:
    b = TraceBuilder()
    p = b.process(100)
    read(p.thread(100), 0)
    read(p.thread(101), 10)
    read(b.process(200).thread(200), 20)
    assert runs_of(b, tmp_path) == []


def test_no_operations(tmp_path: Path) -> None:
    b = TraceBuilder()
    b.process(100).thread(100).launch(0, 1, gpu=(2, 3))
    assert runs_of(b, tmp_path) == []
    assert merges([], [], []) == ()


def grouped(*sequences: str) -> tuple[Merge, ...]:
    letters = "abcd"
    operation = np.arange(sum(len(one) for one in sequences))
    runs = Runs(operation, np.cumsum([0, *(len(one) for one in sequences)]))
    return merges([runs], [np.array([letters.index(one) for one in "".join(sequences)])], list(letters))


def test_runs_are_grouped_by_their_sequence_of_sites() -> None:
    assert grouped("ab", "aab", "ba", "cccc", "abb", "ab") == (
        Merge(("a", "b"), 4, 10),
        Merge(("c",), 1, 4),
        Merge(("b", "a"), 1, 2),
    )
    assert grouped("aba", "abab") == (Merge(("a", "b", "a", "b"), 1, 4), Merge(("a", "b", "a"), 1, 3))


def test_traces_add_up() -> None:
    runs = Runs(np.array([1, 2, 4, 5]), np.array([0, 2, 4]))
    site = np.array([9, 0, 1, 9, 0, 1])
    assert merges([runs, runs], [site, site], ["x", "y"]) == (Merge(("x", "y"), 4, 8),)


def test_only_the_best_are_listed() -> None:
    count = LISTED + 5
    sizes = np.arange(2, 2 + count)
    runs = Runs(np.arange(sizes.sum()), np.concatenate(([0], np.cumsum(sizes))))
    found = merges([runs], [np.repeat(np.arange(count), sizes)], [str(i) for i in range(count)])
    assert [one.reads for one in found] == sorted(sizes.tolist(), reverse=True)[:LISTED]


def slow_runs(one: Attributed, is_read: list[bool]) -> list[list[int]]:
    calls, operations = one.calls, one.operations
    launching = set(calls.launched_by.tolist()) - {-1}
    launching |= {i for i in range(len(calls)) if calls.api_class[i] == 8}
    result = []
    for thread in range(len(calls.global_tids)):
        run: list[int] = []
        for i in [i for i in range(len(operations)) if operations.thread[i] == thread]:
            begin = min(c for c in (int(operations.call[i]), int(operations.copy_call[i])) if c >= 0)
            if run:
                since = int(operations.call[run[-1]])
                launched = [
                    c
                    for c in launching
                    if calls.thread[c] == thread and calls.start[since] < calls.start[c] < calls.start[begin]
                ]
                if launched or not is_read[i]:
                    result.append(run)
                    run = []
            if is_read[i]:
                run.append(i)
        result.append(run)
    return [run for run in result if len(run) > 1]


@generated
@given(plan=st.one_of(plans, dense_plans), seed=st.integers(0, 99), share=st.sampled_from([0.7, 1.0]))
def test_runs_as_a_slow_reading_finds_them(plan: Plan, seed: int, share: float, tmp_path: Path) -> None:
    try:
        one = attributed(plan.build().write(tmp_path / "trace.sqlite", shuffle=plan.shuffle))
    except TraceError:
        return
    is_read = np.random.default_rng(seed).random(len(one.operations)) < share
    assert as_lists(merge_runs(one.calls, one.operations, is_read)) == slow_runs(one, is_read.tolist())


@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_metrics_of_sync_heavy_could_be_one_read(capture: Capture, schema: str) -> None:
    one = attributed(capture(f"sync_heavy.schema-{schema}"))
    shown = trace_operations(one)
    ids = [key.location.label for key in shown.site_keys]
    runs = merge_runs(one.calls, one.operations, one.operations.copy_kind == 2)
    found = merges([runs], [shown.site], ids)
    assert found[0] == Merge(("sync_heavy.py:58 metrics",), 20, 60)
    assert [one.sites for one in found[1:]] == [("sync_heavy.py:44 print_tensor",)]
