"""Stretches in which a process made CUDA calls of which the trace has no events: time there is neither idle nor busy.

nsys's importer drops whole buffers of CUDA events when it does not understand one of them (a driver newer than nsys),
and exits with 0. Three things give that away; in 49 exports of undamaged captures (44,000 launches, 5,000 synchronize
calls with a callchain) none of them occurs:

- a kernel launch without a GPU row, outside of stream capture, that did not fail;
- a synchronize call of which only the row with the callchain is there, which nsys's injection writes itself, and not
  CUPTI's row of the same call;
- correlation ids that have gone on by hundreds while no call was recorded (91 at most, undamaged).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from nsys_sync.analysis.calls import Calls
from nsys_sync.analysis.intervals import NONE, IntArray, Intervals, intersect, union
from nsys_sync.trace.api_names import ApiClass, base_name
from nsys_sync.trace.tables import BoolArray, Trace

QUIET_NS = 1_000_000
"""Five hundred calls take longer than that."""
MOST_IDS_SKIPPED = 500
NEVER = 2**62
SYNCS = (ApiClass.STREAM_SYNC, ApiClass.OTHER_SYNC)


@dataclass(frozen=True)
class LostEvents:
    """Each stretch of `process` begins at `begin` and ends with the first work that was launched at `resumed` or later
    (NEVER where nothing was). `launches`, `syncs` and `calls` count what gave the stretches away: kernel launches
    without GPU row, synchronize calls without CUPTI's row, and calls that the correlation ids say are missing.
    """

    process: IntArray
    begin: IntArray
    resumed: IntArray
    launches: int
    syncs: int
    calls: int

    def on_device(self, process: int, launched: IntArray, gpu_start: IntArray) -> Intervals:
        """The stretches of a process on a device: `launched` and `gpu_start` are of the process's work there."""
        own = self.process == process
        if not own.any():
            return Intervals(NONE, NONE)
        order = np.argsort(launched, kind="stable")
        first_start = np.minimum.accumulate(gpu_start[order][::-1])[::-1]
        at = np.searchsorted(launched[order], self.resumed[own], side="left")
        return union(self.begin[own], np.append(first_start, NEVER)[at])


def lost_events(
    trace: Trace,
    calls: Calls,
    failed_launches: Callable[[], tuple[IntArray, IntArray]],
    query_starts: Callable[[int], IntArray],
) -> LostEvents:
    """`failed_launches` gives start and thread of launches that CUDA refused, `query_starts` the sorted starts of a
    process's calls that only ask, which are not among `calls`. Both are asked only where something is missing.
    """
    parts: list[tuple[int, IntArray, IntArray]] = []
    lost_launches = _launches_without_work(trace, calls, failed_launches)
    lone_syncs = _syncs_without_their_record(calls)
    skipped = 0
    for code in range(len(calls.processes)):
        own = calls.process_of_thread == code
        begin, resumed, ids = _quiet_while_ids_went_on(calls, np.flatnonzero(own))
        if len(begin):
            queries = query_starts(int(calls.processes[code]))
            ids -= np.searchsorted(queries, resumed) - np.searchsorted(queries, begin)
            more = ids > MOST_IDS_SKIPPED
            skipped += int(ids[more].sum())
            parts.append((code, begin[more], resumed[more]))
        for lost, stretches in ((lost_launches, _around_launches), (lone_syncs, _around_syncs)):
            mine = lost[calls.process_of(lost) == code]
            if len(mine):
                parts.append((code, *stretches(calls, mine, own[calls.thread])))
    return LostEvents(
        process=np.concatenate([np.full(len(begin), code) for code, begin, _ in parts]) if parts else NONE,
        begin=np.concatenate([begin for _, begin, _ in parts]) if parts else NONE,
        resumed=np.concatenate([resumed for _, _, resumed in parts]) if parts else NONE,
        launches=len(lost_launches),
        syncs=len(lone_syncs),
        calls=skipped,
    )


def _launches_without_work(
    trace: Trace, calls: Calls, failed_launches: Callable[[], tuple[IntArray, IntArray]]
) -> IntArray:
    without = calls.api_class == ApiClass.KERNEL_LAUNCH
    without[calls.launched_by[calls.launched_by >= 0]] = False
    found = np.flatnonzero(without)
    if len(found):
        found = found[~_in_stream_capture(trace, calls, found)]
    if len(found):
        start, global_tid = failed_launches()
        for tid in np.unique(global_tid):
            failed = (calls.global_tids[calls.thread[found]] == tid) & np.isin(
                calls.start[found], start[global_tid == tid]
            )
            found = found[~failed]
    return found


def _in_stream_capture(trace: Trace, calls: Calls, call: IntArray) -> BoolArray:
    """Whether each call was made while its process captured a stream into a graph: nothing is launched then."""
    names = [base_name(name) for name in trace.api_names]
    begins = _calls_named(calls, names, lambda name: "StreamBeginCapture" in name)
    ends = _calls_named(calls, names, lambda name: "StreamEndCapture" in name)
    result = np.zeros(len(call), dtype=bool)
    for code in np.unique(calls.process_of(begins)) if len(begins) else ():
        own_ends = np.sort(calls.start[ends[calls.process_of(ends) == code]])
        start = calls.start[begins[calls.process_of(begins) == code]]
        at = np.searchsorted(own_ends, start, side="left")
        end = np.append(own_ends, NEVER)[at]
        capturing = union(start, end)
        moment = calls.start[call]
        result |= (calls.process_of(call) == code) & (capturing.within(moment, moment + 1) > 0)
    return result


def _calls_named(calls: Calls, names: list[str], wanted: Callable[[str], bool]) -> IntArray:
    codes = np.array([wanted(name) for name in names], dtype=bool)
    if not codes.any():
        return NONE
    return np.flatnonzero(codes[calls.name_of(np.arange(len(calls)))])


def _syncs_without_their_record(calls: Calls) -> IntArray:
    """Synchronize calls that are one row, with a callchain, in processes where others are two."""
    syncs = np.isin(calls.api_class[calls.chained], SYNCS)
    lone, whole = (calls.chained[syncs & (calls.chained_is_one_row == one)] for one in (True, False))
    known: BoolArray = np.isin(calls.process_of(lone), calls.process_of(whole))
    return np.asarray(lone[known])


def _around_launches(calls: Calls, lost: IntArray, own: BoolArray) -> tuple[IntArray, IntArray]:
    """From the first of some lost launches to the next call that launched something."""
    launching = np.zeros(len(calls), dtype=bool)
    launching[calls.launched_by[calls.launched_by >= 0]] = True
    known = np.append(np.sort(calls.start[launching & own]), NEVER)
    start = np.sort(calls.start[lost])
    at, first = np.unique(np.searchsorted(known, start, side="right"), return_index=True)
    return start[first], known[np.minimum(at, len(known) - 1)]


def _around_syncs(calls: Calls, lost: IntArray, own: BoolArray) -> tuple[IntArray, IntArray]:
    """From the last whole call before some lone synchronize calls to the next one after them."""
    whole = own.copy()
    whole[lost] = False
    order = np.flatnonzero(whole)[np.argsort(calls.start[whole], kind="stable")]
    known = np.append(calls.start[order], NEVER)
    ended = np.maximum.accumulate(calls.end[order])
    start = np.sort(calls.start[lost])
    at, first = np.unique(np.searchsorted(known, start, side="right"), return_index=True)
    begin = np.where(at > 0, ended[at - 1], start[first]) if len(ended) else start[first]
    return np.minimum(begin, start[first]), known[at]


def _quiet_while_ids_went_on(calls: Calls, threads: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """(begin, end, ids skipped) of stretches in which none of the threads made a call, but many ids were used."""
    quiet: Intervals | None = None
    bounds = np.searchsorted(calls.thread, np.append(threads, threads[-1] + 1 if len(threads) else 0))
    for low, high in _ranges(threads, bounds, calls):
        start, ended = calls.start[low:high], calls.end[low:high]
        long = np.flatnonzero(start[1:] - ended[:-1] >= QUIET_NS)
        own = Intervals(
            np.concatenate(([-NEVER], ended[long], ended[-1:])), np.concatenate((start[:1], start[long + 1], [NEVER]))
        )
        quiet = own if quiet is None else intersect(quiet, own)[0]
    if quiet is None:
        return NONE, NONE, NONE
    inside = (quiet.start > -NEVER) & (quiet.end < NEVER) & (quiet.end - quiet.start >= QUIET_NS)
    begin, end = quiet.start[inside], quiet.end[inside]
    before, after = np.zeros(len(begin), dtype=np.int64), np.full(len(begin), NEVER)
    for low, high in _ranges(threads, bounds, calls):
        last = low + np.searchsorted(calls.start[low:high], begin, side="left") - 1
        ids = np.where(last >= low, calls.correlation_id_of(np.maximum(last, low)), 0)
        before = np.maximum(before, ids)
        first = low + np.searchsorted(calls.start[low:high], end, side="left")
        ids = np.where(first < high, calls.correlation_id_of(np.minimum(first, high - 1)), 0)
        after = np.where(ids > 0, np.minimum(after, ids), after)
    skipped = after - before - 1
    many = (before > 0) & (after < NEVER) & (skipped > MOST_IDS_SKIPPED)
    return begin[many], end[many], skipped[many]


def _ranges(threads: IntArray, bounds: IntArray, calls: Calls) -> Iterable[tuple[int, int]]:
    """The calls of each thread: they are sorted by thread."""
    return ((int(low), int(high)) for low, high in pairwise(bounds) if high > low)
