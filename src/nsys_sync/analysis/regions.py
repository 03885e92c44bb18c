"""The program's NVTX ranges by name: how many sync operations each holds, and which have none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from nsys_sync import model
from nsys_sync.analysis.calls import PID_MASK
from nsys_sync.analysis.intervals import IntArray
from nsys_sync.analysis.phases import families, user_ranges
from nsys_sync.analysis.sites import TraceOperations
from nsys_sync.trace.tables import NEVER_ENDED, BoolArray

if TYPE_CHECKING:
    from nsys_sync.analysis.attributed import Attributed

LISTED = 40
LISTED_BY_TIME = 20


@dataclass(frozen=True)
class _Ranges:
    """Ranges not inside another of their group, sorted by (group, start); `end` also where the group's next begins.

    `row` is the range's index in the table.
    """

    row: IntArray
    start: IntArray
    end: IntArray


def regions(
    one: Attributed, shown: TraceOperations, site_of_operation: IntArray, site_ids: Sequence[str]
) -> tuple[model.Region, ...]:
    """The regions inside the selection, most operations first, then longest; the 20 longest are always among them.

    `site_of_operation` has the code of each shown operation's site, an index into `site_ids`. An operation is in the
    range in which it begins: a push/pop range of its own thread, or of its process where its thread has none, and a
    start/end range of its process, whoever opened that. In both kinds of one name it counts once, for the start/end
    range. Ranges count where they share time with the selection; each thread's (or process's) first range of a name is
    its first in the whole trace.
    """
    table = _ranges_shown(one)
    if not len(table):
        return ()
    family, names = families(table)
    size = len(names)
    tid, of_thread = table["global_tid"].to_numpy(), table["is_push_pop"].to_numpy()
    process = tid >> 24
    start, end = table["start_ns"].to_numpy(), _ends(one, table)

    def outermost(rows: BoolArray, owner: IntArray) -> _Ranges:
        return _outermost(np.flatnonzero(rows), start, end, _group(owner, family, size))

    of_processes = outermost(~of_thread, process)
    by_thread = outermost(of_thread, tid)
    by_process = outermost(of_thread, process)
    leading = np.concatenate((of_processes.row, by_thread.row))
    is_first = np.zeros(len(table), dtype=bool)
    for ranges_of, owner in ((of_processes, process), (by_thread, tid)):
        group = _group(owner, family, size)[ranges_of.row]
        is_first[ranges_of.row] = np.diff(group, prepend=-1) != 0

    operation_tid = one.calls.global_tids[shown.thread]
    operation_process = operation_tid >> 24
    has_own = np.isin(operation_tid, tid[of_thread])
    inside = [
        _operations_inside(of_processes, process, operation_process, shown.start, np.ones_like(has_own)),
        _operations_inside(by_thread, tid, operation_tid, shown.start, has_own),
        _operations_inside(by_process, process, operation_process, shown.start, ~has_own),
    ]
    row, operation = (np.concatenate(parts) for parts in zip(*inside, strict=True))
    once = np.unique(family[row] * len(shown) + operation, return_index=True)[1]
    row, operation = row[once], operation[once]
    time = _selected_ns(one, start[leading], end[leading])
    selected = np.zeros(len(table), dtype=bool)
    selected[leading] = (time > 0) | (one.selection.windows is None)
    in_range = selected[row]
    row, operation = row[in_range], operation[in_range]

    operations = np.bincount(family[row], minlength=size)
    after_first = np.bincount(family[row[~is_first[row]]], minlength=size)
    used = np.zeros(len(table), dtype=bool)
    used[row] = True
    with_operations = np.bincount(family[used], minlength=size)
    ranges = np.bincount(family[selected], minlength=size)
    total = np.zeros(size, dtype=np.int64)
    np.add.at(total, family[leading], time)

    kept = _kept(operations, total, ranges)
    sites = _sites(family[row], site_of_operation[operation], kept)
    return tuple(
        model.Region(
            name=one.shown(names[code]),
            ranges=int(ranges[code]),
            operations=int(operations[code]),
            operations_after_first=int(after_first[code]),
            ranges_with_operations=int(with_operations[code]),
            sites=tuple(site_ids[site] for site in sites.get(code, ())),
        )
        for code in kept
    )


def _ranges_shown(one: Attributed) -> pd.DataFrame:
    """The user's ranges in the processes whose operations are shown."""
    table = user_ranges(one.trace)
    if not len(table):
        return table
    process = table["global_tid"].to_numpy() >> 24
    kept = np.ones(len(table), dtype=bool)
    if one.options.pid is not None:
        kept &= (process & PID_MASK) == one.options.pid
    if one.options.device is not None:
        kept &= np.isin(process, np.concatenate([account.time.process_ids for account in one.accounts]))
    return table[kept]


def _ends(one: Attributed, table: pd.DataFrame) -> IntArray:
    """When each range ends; one that was open to the last, with everything that is known."""
    start, end = table["start_ns"].to_numpy(), table["end_ns"].to_numpy()
    last = max(account.time.window_end for account in one.accounts)
    last = max(last, int(one.operations.end.max(initial=last)))
    return np.where(end == NEVER_ENDED, np.maximum(start, last), end)


def _group(owner: IntArray, family: IntArray, names: int) -> IntArray:
    """A code for each (owner, family)."""
    return pd.factorize(owner, sort=True)[0] * names + family


def _outermost(rows: IntArray, start: IntArray, end: IntArray, group: IntArray) -> _Ranges:
    rows = rows[np.lexsort((-end[rows], start[rows], group[rows]))]
    group, start, end = group[rows], start[rows], end[rows]
    latest_end = pd.Series(end).groupby(group).cummax().to_numpy()
    outer = np.ones(len(rows), dtype=bool)
    outer[1:] = (group[1:] != group[:-1]) | (end[1:] > latest_end[:-1]) | (start[1:] >= latest_end[:-1])
    group, start, end = group[outer], start[outer], end[outer]
    followed = np.flatnonzero(group[1:] == group[:-1])
    end[followed] = np.minimum(end[followed], start[followed + 1])
    return _Ranges(rows[outer], start, end)


def _operations_inside(
    ranges: _Ranges, owner: IntArray, operation_owner: IntArray, operation_start: IntArray, asked: BoolArray
) -> tuple[IntArray, IntArray]:
    """(row of the range, operation) pairs, of the `asked` operations that begin in ranges of their own owner."""
    operation = np.flatnonzero(asked)
    operation = operation[np.lexsort((operation_start[operation], operation_owner[operation]))]
    owners, first = np.unique(operation_owner[operation], return_index=True)
    bounds = np.append(first, len(operation))
    rows, operations = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    range_owner = owner[ranges.row]
    by_owner = np.argsort(range_owner, kind="stable")
    range_bounds = np.searchsorted(range_owner[by_owner], np.stack((owners, owners + 1)))
    for number in range(len(owners)):
        own = by_owner[range_bounds[0, number] : range_bounds[1, number]]
        begin = bounds[number]
        times = operation_start[operation[begin : bounds[number + 1]]]
        low = np.searchsorted(times, ranges.start[own])
        count = np.maximum(np.searchsorted(times, ranges.end[own]) - low, 0)
        within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        rows.append(np.repeat(ranges.row[own], count))
        operations.append(operation[begin + np.repeat(low, count) + within])
    return np.concatenate(rows), np.concatenate(operations)


def _selected_ns(one: Attributed, start: IntArray, end: IntArray) -> IntArray:
    windows = one.selection.windows
    return end - start if windows is None else windows.within(start, end)


def _kept(operations: IntArray, total: IntArray, ranges: IntArray) -> list[int]:
    """The families to list, in order."""
    by_time = np.lexsort((-operations, -total))
    by_operations = np.lexsort((-total, -operations))
    longest = by_time[ranges[by_time] > 0][:LISTED_BY_TIME]
    others = by_operations[(ranges[by_operations] > 0) & ~np.isin(by_operations, longest)]
    kept = np.concatenate((longest, others[: LISTED - len(longest)]))
    return [int(code) for code in by_operations[np.isin(by_operations, kept)]]


def _sites(family: IntArray, site: IntArray, kept: Sequence[int]) -> dict[int, list[int]]:
    """All sites in each of the families kept, those with the most operations first."""
    listed = np.isin(family, kept)
    counts = pd.DataFrame({"family": family[listed], "site": site[listed]}).value_counts(sort=False).reset_index()
    counts = counts.sort_values(["count", "site"], ascending=[False, True], kind="stable")
    result: dict[int, list[int]] = {}
    for code, own in zip(counts["family"].tolist(), counts["site"].tolist(), strict=True):
        result.setdefault(code, []).append(own)
    return result
