"""NVTX ranges by name, and the sync operations in them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from attribution import attributed
from conftest import Capture
from hypothesis import given
from hypothesis import strategies as st
from strategies import Plan, dense_plans
from test_attribution_oracle import generated
from trace_builder import SCHEMAS, ThreadBuilder, TraceBuilder

from nsys_sync.analysis.calls import PID_MASK
from nsys_sync.analysis.options import Options
from nsys_sync.analysis.phases import family
from nsys_sync.analysis.regions import LISTED, LISTED_BY_TIME, regions
from nsys_sync.analysis.summary import trace_operations
from nsys_sync.errors import TraceError
from nsys_sync.model import Region


def regions_of(path: Path, options: Options | None = None) -> tuple[Region, ...]:
    one = attributed(path, options)
    shown = trace_operations(one)
    ids = [f"{key.location.label}: {key.kind.label}" for key in shown.site_keys]
    return regions(one, shown, shown.site, ids)


def figures(found: tuple[Region, ...]) -> list[tuple[str, int, int, int, int]]:
    return [
        (one.name, one.ranges, one.operations, one.operations_after_first, one.ranges_with_operations) for one in found
    ]


def waits(thread: ThreadBuilder, *times: int) -> None:
    for at in times:
        thread.stream_sync(at, at + 1)


def program(*, until: int = 100) -> tuple[TraceBuilder, ThreadBuilder]:
    b = TraceBuilder()
    thread = b.process(100).thread(100)
    thread.launch(-10, -9, gpu=(-8, until))
    return b, thread


def test_operations_are_counted_where_they_begin(tmp_path: Path) -> None:
    b, thread = program()
    for number, start in enumerate((0, 10, 20)):
        thread.nvtx(f"step {number}", start, start + 10)
        thread.nvtx("forward", start + 1, start + 5)
    waits(thread, 0, 2, 4, 10, 29, 30, 50)
    assert figures(regions_of(b.write(tmp_path / "trace.sqlite"))) == [
        ("step *", 3, 5, 2, 3),
        ("forward", 3, 2, 0, 1),
    ]


def test_a_range_in_another_of_its_name_counts_with_the_outer_one(tmp_path: Path) -> None:
    b, thread = program()
    for start, end in ((0, 20), (2, 8), (3, 5), (30, 40), (30, 40), (35, 40), (40, 40)):  # the last holds nothing
        thread.nvtx("block", start, end)
    waits(thread, 4, 10, 36)
    assert figures(regions_of(b.write(tmp_path / "trace.sqlite"))) == [("block", 3, 3, 1, 2)]


def test_threads_without_ranges_count_with_those_of_their_process(tmp_path: Path) -> None:
    b, main = program()
    process = main.process
    process.thread(102).nvtx("step 1", 2, 12)
    main.nvtx("step 0", 0, 10)
    main.nvtx("step 2", 20, 30)
    waits(process.thread(101), 5, 25, 40)  # autograd's; at 5 two steps are open, and it counts once
    waits(main, 25)
    waits(b.process(200).thread(200), 6)
    assert figures(regions_of(b.write(tmp_path / "trace.sqlite"))) == [("step *", 3, 3, 2, 2)]


def test_a_thread_with_ranges_of_its_own_does_not_count_for_another(tmp_path: Path) -> None:
    b, main = program()
    main.nvtx("step", 0, 50)
    worker = main.process.thread(101)
    worker.nvtx("load", 10, 20)
    waits(main, 5)
    waits(worker, 15, 30)
    assert figures(regions_of(b.write(tmp_path / "trace.sqlite"))) == [("step", 1, 1, 0, 1), ("load", 1, 1, 0, 1)]


def test_a_start_end_range_holds_all_threads_of_its_process(tmp_path: Path) -> None:
    b, main = program()
    worker = main.process.thread(101)
    main.nvtx("epoch", 0, 50, start_end=True)
    worker.nvtx("epoch", 60, 80, start_end=True)  # the process's second, whoever begins it
    main.nvtx("step", 0, 40)
    worker.nvtx("load", 10, 20)
    waits(main, 5, 45, 70, 90)
    waits(worker, 15, 55)
    waits(main.process.thread(102), 30)
    waits(b.process(200).thread(200), 6)
    assert figures(regions_of(b.write(tmp_path / "trace.sqlite"))) == [
        ("epoch", 2, 5, 1, 2),
        ("step", 1, 2, 0, 1),  # at 5, and at 30 on the thread without ranges
        ("load", 1, 1, 0, 1),
    ]


def test_a_thread_with_start_end_ranges_only_has_none_of_its_own(tmp_path: Path) -> None:
    b, main = program()
    main.nvtx("step", 0, 50)
    worker = main.process.thread(101)
    worker.nvtx("epoch", 0, 80, start_end=True)
    waits(worker, 15, 60)
    assert figures(regions_of(b.write(tmp_path / "trace.sqlite"))) == [("epoch", 1, 2, 0, 1), ("step", 1, 1, 0, 1)]


def test_both_kinds_of_one_name_count_an_operation_once(tmp_path: Path) -> None:
    b, main = program()
    main.nvtx("epoch", 0, 50, start_end=True)
    main.nvtx("epoch", 10, 60)
    waits(main, 5, 20, 55)
    assert figures(regions_of(b.write(tmp_path / "trace.sqlite"))) == [("epoch", 2, 3, 0, 2)]


def test_a_range_without_syncs_is_worth_saying(tmp_path: Path) -> None:
    b, thread = program()
    thread.nvtx("clean", 0, 50)
    thread.nvtx("open to the last", 60, None)
    waits(thread, 70)
    assert figures(regions_of(b.write(tmp_path / "trace.sqlite"))) == [
        ("open to the last", 1, 1, 0, 1),
        ("clean", 1, 0, 0, 0),
    ]


def test_libraries_ranges_are_no_regions(tmp_path: Path) -> None:
    b, thread = program()
    thread.nvtx("ncclAllReduce", 0, 10, domain="NCCL")
    assert regions_of(b.write(tmp_path / "trace.sqlite")) == ()


def test_a_selection_keeps_what_it_holds(tmp_path: Path) -> None:
    b, thread = program()
    for number in range(4):
        thread.nvtx(f"step {number}", 10 * number, 10 * number + 10)
        waits(thread, 10 * number + 5)
    path = b.write(tmp_path / "trace.sqlite")
    assert figures(regions_of(path, Options(time_range=(10, 30)))) == [("step *", 2, 2, 2, 2)]
    assert figures(regions_of(path, Options(time_range=(0, 20)))) == [("step *", 2, 2, 1, 2)]
    assert figures(regions_of(path, Options(nvtx="step *", skip_first=3))) == [("step *", 1, 1, 1, 1)]


def test_processes_that_are_not_shown_have_no_regions(tmp_path: Path) -> None:
    b, thread = program()
    thread.nvtx("train", 0, 50)
    other = b.process(200).thread(200)
    other.launch(0, 1, gpu=(2, 30), device=1)
    other.nvtx("evaluate", 0, 50)
    waits(other, 20)
    path = b.write(tmp_path / "trace.sqlite")
    assert [one.name for one in regions_of(path)] == ["evaluate", "train"]
    assert [one.name for one in regions_of(path, Options(pid=100))] == ["train"]
    assert figures(regions_of(path, Options(device=1))) == [("evaluate", 1, 1, 0, 1)]


def test_the_longest_are_always_listed(tmp_path: Path) -> None:
    b, thread = program(until=100_000)
    letters = [f"{a}{b}" for a in "abcdefghij" for b in "abcdefghij"]
    for number, name in enumerate(letters[:50]):
        thread.nvtx(name, 100 * number, 100 * number + 10)
        waits(thread, 100 * number + 1)
    for number, name in enumerate(letters[50:80]):
        thread.nvtx(name, 10_000 + 100 * number, 10_000 + 100 * number + 11 + number)
    found = regions_of(b.write(tmp_path / "trace.sqlite"))
    assert len(found) == LISTED
    assert [one.name for one in found if not one.operations] == letters[60:80][::-1]
    assert sum(one.operations for one in found) == LISTED - LISTED_BY_TIME


def test_all_sites_are_listed_those_with_most_operations_first(tmp_path: Path) -> None:
    b, thread = program()
    thread.nvtx("all", 0, 90)
    at = 0
    for number in range(7):
        for _ in range(number + 1):
            thread.stream_sync(at, at + 1, python=[("f", "/home/me/a.py", number + 1)])
            at += 1
    (found,) = regions_of(b.write(tmp_path / "trace.sqlite"))
    assert [one.partition(" ")[0] for one in found.sites] == [f"a.py:{number}" for number in (7, 6, 5, 4, 3, 2, 1)]


# ---------------------------------------------------------------------------------------------------- a slow reading

NAMES = ("step 1", "step 2", "forward", "block")
Drawn = tuple[int, int, str, int, int | None, bool]
drawn_ranges = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.integers(0, 2),
        st.sampled_from(NAMES),
        st.integers(-10, 80),
        st.integers(0, 40) | st.none(),
        st.booleans(),
    ),
    max_size=9,
)


def slow_regions(
    path: Path, drawn: list[Drawn], time_range: tuple[int, int] | None
) -> set[tuple[str, int, int, int, int]]:
    one = attributed(path, Options(time_range=time_range))
    shown = trace_operations(one)
    last = max([account.time.window_end for account in one.accounts] + one.operations.end.tolist())
    ranges = []
    for process, thread, name, start, length, start_end in drawn:
        pid = 100 * (process + 1)
        end = max(last, start) if length is None else start + length
        ranges.append((pid, -1 if start_end else pid + thread, name, start, end))
    names = {family(name): {r[2] for r in ranges if family(r[2]) == family(name)} for _, _, name, _, _ in ranges}
    result = set()
    for label, members in names.items():
        own = sorted((r for r in ranges if r[2] in members), key=lambda r: (r[3], -r[4]))
        own = [(*r, number) for number, r in enumerate(own)]

        def outer(candidates: list[tuple[int, int, str, int, int, int]]) -> list[tuple[int, int, str, int, int, int]]:
            return [
                r
                for i, r in enumerate(candidates)
                if not any(q[3] <= r[3] < q[4] and r[4] <= q[4] for q in candidates[:i])
            ]

        owners = {r[:2] for r in own}  # a process and its thread, or -1
        by_owner = [r for owner in owners for r in outer([r for r in own if r[:2] == owner])]
        firsts = {min((r for r in by_owner if r[:2] == owner), key=lambda r: r[5])[5] for owner in owners}
        inside: Counter[int] = Counter()
        selected = {r[5] for r in by_owner if time_range is None or min(r[4], time_range[1]) > max(r[3], time_range[0])}
        for i in range(len(shown)):
            tid = int(one.calls.global_tids[shown.thread[i]]) & PID_MASK
            pid = int(one.calls.processes[shown.process[i]]) & PID_MASK
            if tid in {r[1] for r in ranges}:
                of_threads = [r for r in by_owner if r[1] == tid]
            else:
                of_threads = outer([r for r in own if r[0] == pid and r[1] >= 0])
            for candidates in ([r for r in by_owner if r[:2] == (pid, -1)], of_threads):
                around = [r for r in candidates if r[3] <= shown.start[i] < r[4]]
                if around:
                    break
            if around and max(around, key=lambda r: r[5])[5] in selected:
                inside[max(around, key=lambda r: r[5])[5]] += 1
        after_first = sum(count for number, count in inside.items() if number not in firsts)
        if selected:
            name = next(iter(members)) if len(members) == 1 else label
            result.add((name, len(selected), sum(inside.values()), after_first, len(inside)))
    return result


@generated
@given(plan=dense_plans, drawn=drawn_ranges, time_range=st.none() | st.tuples(st.integers(0, 30), st.integers(31, 80)))
def test_regions_as_a_slow_reading_finds_them(
    plan: Plan, drawn: list[Drawn], time_range: tuple[int, int] | None, tmp_path: Path
) -> None:
    b = plan.build()
    drawn = [one for one in drawn if one[0] < len(b.processes)]
    for process, thread, name, start, length, start_end in drawn:
        end = None if length is None else start + length
        b.processes[process].thread(100 * (process + 1) + thread).nvtx(name, start, end, start_end=start_end)
    path = b.write(tmp_path / "trace.sqlite", shuffle=plan.shuffle)
    try:
        found = regions_of(path, Options(time_range=time_range))
    except TraceError:
        return
    assert set(figures(found)) == slow_regions(path, drawn, time_range)
    assert list(found) == sorted(found, key=lambda one: -one.operations)
    assert all(bool(one.sites) == bool(one.operations) for one in found)


# ------------------------------------------------------------------------------------------------------ real captures


@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_steps_of_sync_heavy(capture: Capture, schema: str) -> None:
    path = capture(f"sync_heavy.schema-{schema}")
    (steps,) = regions_of(path)
    # Two steps print, which is 23 operations instead of 15; the first of all is one of them.
    assert figures((steps,)) == [("step *", 20, 316, 293, 20)]
    assert steps.sites[0].startswith("sync_heavy.py:58 metrics")
    assert figures(regions_of(path, Options(nvtx="step 1?"))) == [("step *", 10, 158, 158, 10)]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_ranges_of_two_threads(capture: Capture, schema: str) -> None:
    assert figures(regions_of(capture(f"nvtx_threads.schema-{schema}"))) == [
        ("epoch", 1, 191, 0, 1),  # a start/end range over both threads: all but the one in main, after it
        ("eval", 20, 80, 74, 20),
        ("forward", 30, 60, 56, 30),
        ("step *", 15, 60, 56, 15),
        ("block", 15, 30, 28, 15),
        ("attention", 30, 30, 28, 30),
        ("optimizer", 15, 15, 14, 15),
    ]
