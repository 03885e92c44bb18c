"""Stretches in which a thread made CUDA calls of which the trace has no events: time there is neither idle nor busy.

CUPTI fills one buffer a thread. Where nsys's importer meets a record that it does not know (a function newer than
itself, such as cudaEventElapsedTime of CUDA 12.8), it drops the rest of that buffer: the thread's API rows, and the
GPU and SYNCHRONIZATION rows of its calls; it exits with 0. Other threads, NVTX, Python stacks and the rows with
callchains, which nsys's injection writes itself, go on. Four things give such a stretch away, and in 49 exports of
undamaged captures (44,000 launches, 5,000 synchronize calls with a callchain) there is none of them:

- a kernel launch, copy or synchronous memset without a GPU row that has an end, outside of stream capture, that CUDA
  did not refuse; and a graph launch, where others of the process have rows;
- a call of which only the row with the callchain is there and not CUPTI's, where others of its kind have both;
- a Python stack of a CUDA call that is not there;
- correlation ids that went on by hundreds while the process made no call and no stream was seen to be done. (Polling
  with functions that nsys does not trace uses ids too, and ends with a SYNCHRONIZATION row.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from nsys_sync.analysis.calls import Calls, rows_by_thread
from nsys_sync.analysis.intervals import EMPTY, NONE, IntArray, Intervals, intersect, union
from nsys_sync.trace.api_names import SYNCS, ApiClass, base_name
from nsys_sync.trace.tables import BoolArray, Trace

QUIET_NS = 1_000_000
"""Five hundred calls take longer than that."""
MOST_IDS_SKIPPED = 500
"""91 at most in undamaged captures."""
AT_ONCE_NS = 10_000
"""CUPTI's row begins some 100 ns after the injection's."""
NEVER = 2**62
WORK = (ApiClass.KERNEL_LAUNCH, ApiClass.COPY_ASYNC, ApiClass.COPY_SYNC, ApiClass.MEMSET_SYNC)


@dataclass(frozen=True)
class LostEvents:
    """Each stretch of `thread` (a code) begins at `begin` and ends with the first work that the thread launched at
    `resumed` or later (NEVER where it launched nothing more). `signs` are (what gave it away, how often).
    """

    thread: IntArray
    begin: IntArray
    resumed: IntArray
    signs: tuple[tuple[str, int], ...]

    @property
    def stretches(self) -> Intervals:
        """In which any thread's events are lost."""
        return union(self.begin, self.resumed)

    def holds(self, thread: IntArray, moment: IntArray) -> BoolArray:
        """Whether each moment of a thread lies in one of the thread's stretches."""
        result = np.zeros(len(thread), dtype=bool)
        for code in np.unique(self.thread).tolist():
            stretches = self.thread == code
            own = thread == code
            inside = union(self.begin[stretches], self.resumed[stretches])
            result[own] = inside.within(moment[own], moment[own] + 1) > 0
        return result

    def on_device(self, calls: Calls, launched_by: IntArray, gpu_start: IntArray) -> Intervals:
        """The stretches of all threads of processes with work on the device, whose GPU rows were launched by
        `launched_by` (-1 none) and began at `gpu_start`. A thread that launched work, but none here, does not count.
        """
        launched = np.flatnonzero(launched_by >= 0)
        if not len(self.thread) or not len(launched):
            return EMPTY
        thread_of_row = calls.thread[launched_by[launched]]
        processes = np.unique(calls.process_of_thread[thread_of_row])
        launches_elsewhere = np.unique(calls.thread[calls.that_launched(calls.launched_by)])
        found = []
        for code in np.unique(self.thread).tolist():
            own = self.thread == code
            rows = launched[thread_of_row == code]
            if len(rows):
                moment = calls.start[launched_by[rows]]
                order = np.argsort(moment, kind="stable")
                first_start = np.minimum.accumulate(gpu_start[rows][order][::-1])[::-1]
                at = np.searchsorted(moment[order], self.resumed[own], side="left")
                found.append((self.begin[own], np.append(first_start, NEVER)[at]))
            elif calls.process_of_thread[code] in processes and code not in launches_elsewhere:
                found.append((self.begin[own], self.resumed[own]))
        if not found:
            return EMPTY
        return union(np.concatenate([begin for begin, _ in found]), np.concatenate([end for _, end in found]))


def lost_events(
    trace: Trace,
    calls: Calls,
    failed_launches: Callable[[], tuple[IntArray, IntArray]],
    query_starts: Callable[[int], IntArray],
) -> LostEvents:
    """`failed_launches` gives start and thread of launches that CUDA refused, `query_starts` the sorted starts of a
    process's calls that only ask, which are not among `calls`. Both are asked only where something is missing.
    """
    launched = calls.that_launched(calls.launched_by[~trace.gpu["unfinished"].to_numpy()])
    lost_launches = _launches_without_work(trace, calls, launched, failed_launches)
    lone_calls = _calls_without_their_record(trace, calls)
    stack_thread, stack_moment = _stacks_without_call(trace, calls, query_starts)
    parts = [_around_launches(calls, lost_launches, launched)]
    parts.append(
        _around_moments(
            calls,
            lone_calls,
            np.concatenate((calls.thread[lone_calls], stack_thread)),
            np.concatenate((calls.start[lone_calls], stack_moment)),
        )
    )
    skipped = 0
    for code in range(len(calls.processes)):
        quiet, ids = _quiet_while_ids_went_on(trace, calls, code, query_starts)
        skipped += int(ids.sum())
        threads = np.flatnonzero(calls.process_of_thread == code) if len(quiet) else NONE
        parts += [(np.full(len(quiet), thread), quiet.start, quiet.end) for thread in threads]
    signs = (
        ("launches and copies without their GPU work", len(lost_launches)),
        ("calls without CUPTI's record of them", len(lone_calls)),
        ("Python stacks of CUDA calls that are missing", len(stack_moment)),
        ("correlation ids of no call", skipped),
    )
    return LostEvents(*_joined(parts), tuple((what, count) for what, count in signs if count))


def _joined(parts: Sequence[tuple[IntArray, IntArray, IntArray]]) -> tuple[IntArray, IntArray, IntArray]:
    """Thread, begin and resumed of all the parts."""
    thread, begin, resumed = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return thread, begin, resumed


def _launches_without_work(
    trace: Trace, calls: Calls, launched: BoolArray, failed_launches: Callable[[], tuple[IntArray, IntArray]]
) -> IntArray:
    graphs = np.flatnonzero(calls.api_class == ApiClass.GRAPH_LAUNCH)
    traced = np.isin(calls.process_of(graphs), calls.process_of(graphs[launched[graphs]]))
    without = np.isin(calls.api_class, WORK)
    without[graphs[traced]] = True
    found = np.flatnonzero(without & ~launched & ~calls.unfinished)
    found = found[~_has_launching_twin(calls, found, launched)]
    if len(found):
        found = found[~_in_stream_capture(trace, calls, found)]
    if len(found):
        start, global_tid = failed_launches()
        for tid in np.unique(global_tid):
            own = calls.global_tids[calls.thread[found]] == tid
            found = found[~(own & np.isin(calls.start[found], start[global_tid == tid]))]
    return found


def _has_launching_twin(calls: Calls, call: IntArray, launched: BoolArray) -> BoolArray:
    """Whether another call of the thread has the start and the id of each, and launched something: of a call that was
    cut off the two rows can look like two calls.
    """
    result = np.zeros(len(call), dtype=bool)
    for code in np.unique(calls.thread[call]).tolist():
        low, high = calls.of_thread(code)
        own = calls.thread[call] == code
        other = low + np.flatnonzero(launched[low:high])
        other = other[np.isin(calls.start[other], calls.start[call[own]])]
        ids = calls.correlation_id_of(other)
        result[own] = np.isin(calls.start[call[own]], calls.start[other[ids > 0]])
        result[own] &= np.isin(calls.correlation_id_of(call[own]), ids[ids > 0])
    return result


def _in_stream_capture(trace: Trace, calls: Calls, call: IntArray) -> BoolArray:
    """Whether each call was made while its process captured a stream into a graph: nothing is launched then."""
    begins = calls.named("StreamBeginCapture" in name for name in trace.api_names)
    ends = calls.named("StreamEndCapture" in name for name in trace.api_names)
    result = np.zeros(len(call), dtype=bool)
    for code in np.unique(calls.process_of(begins)).tolist():
        own_ends = np.sort(calls.start[ends[calls.process_of(ends) == code]])
        start = calls.start[begins[calls.process_of(begins) == code]]
        end = np.append(own_ends, NEVER)[np.searchsorted(own_ends, start, side="left")]
        moment = calls.start[call]
        result |= (calls.process_of(call) == code) & (union(start, end).within(moment, moment + 1) > 0)
    return result


def _calls_without_their_record(trace: Trace, calls: Calls) -> IntArray:
    """Calls that are one row, with a callchain, where others of the process and of that name are two; of synchronize
    calls, where any are. A row of the same id on the thread may be the other one, however odd its times.
    """
    if not calls.chained_is_one_row.any():
        return NONE
    sync = np.isin(calls.api_class[calls.chained], SYNCS)
    _, codes = np.unique([base_name(name) for name in trace.api_names], return_inverse=True)
    names = len(trace.api_names) + 1
    kind = calls.process_of(calls.chained) * names + np.where(sync, names - 1, codes[calls.name_of(calls.chained)])
    single = calls.chained_is_one_row & ~calls.unfinished[calls.chained]
    lone = calls.chained[single & np.isin(kind, kind[~calls.chained_is_one_row])]
    kept = [NONE]
    for code in np.unique(calls.thread[lone]).tolist():
        low, high = calls.of_thread(code)
        ids, count = np.unique(calls.correlation_id_of(np.arange(low, high)), return_counts=True)
        own = lone[calls.thread[lone] == code]
        kept.append(own[np.isin(calls.correlation_id_of(own), ids[count == 1])])
    return np.concatenate(kept)


def _stacks_without_call(
    trace: Trace, calls: Calls, query_starts: Callable[[int], IntArray]
) -> tuple[IntArray, IntArray]:
    """(thread, moment) of Python stacks that were taken at a CUDA call of which there is no row, on threads that have
    rows. A stack has exactly the start of the row with the callchain, which comes just before CUPTI's.
    """
    event = np.flatnonzero(~trace.python.is_sample)
    tid, moment = trace.python.global_tid[event], trace.python.start_ns[event]
    row_start = trace.api["start_ns"].to_numpy()
    known = np.flatnonzero(np.isin(calls.global_tids, tid))
    tids = calls.global_tids[known]
    event = np.flatnonzero(np.isin(tid, tids))
    tid, moment = tid[event], moment[event]
    row = np.flatnonzero(np.isin(trace.api["global_tid"].to_numpy(), tids)) if len(tids) else NONE
    own_rows = rows_by_thread(trace.api["global_tid"].to_numpy()[row], tids)
    threads, moments = [], []
    for code, own, events in zip(known.tolist(), own_rows, rows_by_thread(tid, tids), strict=True):
        missing = _long_before_the_next(np.sort(row_start[row[own]]), moment[events])
        if len(missing):
            missing = _long_before_the_next(query_starts(int(calls.global_tids[code]) >> 24), missing)
        threads.append(np.full(len(missing), code))
        moments.append(missing)
    return (np.concatenate(threads), np.concatenate(moments)) if threads else (NONE, NONE)


def _long_before_the_next(starts: IntArray, moments: IntArray) -> IntArray:
    """Those of the moments that no start follows at once."""
    following = np.append(starts, NEVER)[np.searchsorted(starts, moments, side="left")]
    return np.asarray(moments[following - moments > AT_ONCE_NS])


def _around_launches(calls: Calls, lost: IntArray, launched: BoolArray) -> tuple[IntArray, IntArray, IntArray]:
    """From the first of some lost launches of a thread to the thread's next call that launched something."""
    found = [(NONE, NONE, NONE)]
    for code in np.unique(calls.thread[lost]).tolist():
        low, high = calls.of_thread(code)
        known = np.append(calls.start[low:high][launched[low:high]], NEVER)
        start = calls.start[lost[calls.thread[lost] == code]]
        at, first = np.unique(np.searchsorted(known, start, side="right"), return_index=True)
        found.append((np.full(len(at), code), start[first], known[np.minimum(at, len(known) - 1)]))
    return _joined(found)


def _around_moments(
    calls: Calls, lone: IntArray, thread: IntArray, moment: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """From the thread's last whole call before some moments to its next one after them; `lone` calls are not whole."""
    whole = np.ones(len(calls) if len(thread) else 0, dtype=bool)
    if len(thread):
        whole[lone] = False
    found = [(NONE, NONE, NONE)]
    for code in np.unique(thread).tolist():
        low, high = calls.of_thread(code)
        start, end = (times[low:high][whole[low:high]] for times in (calls.start, calls.end))
        own = np.sort(moment[thread == code])
        at, first = np.unique(np.searchsorted(start, own, side="right"), return_index=True)
        ended = np.concatenate(([NEVER], np.maximum.accumulate(end)))[at]
        found.append((np.full(len(at), code), np.minimum(ended, own[first]), np.append(start, NEVER)[at]))
    return _joined(found)


def _quiet_while_ids_went_on(
    trace: Trace, calls: Calls, process: int, query_starts: Callable[[int], IntArray]
) -> tuple[Intervals, IntArray]:
    """Stretches in which no thread of the process made a call, but many ids were used; and how many ids."""
    own_syncs = trace.stream_syncs["process"].to_numpy() == calls.processes[process]
    done = trace.stream_syncs["start_ns"].to_numpy()[own_syncs]
    if not len(done):
        return EMPTY, NONE
    threads = np.flatnonzero(calls.process_of_thread == process)
    ranges = list(_ranges(calls, threads))
    quiet: Intervals | None = None
    for low, high in ranges:
        # One that never ended may have begun inside another.
        start, ended = calls.start[low:high], np.maximum.accumulate(calls.end[low:high])
        long = np.flatnonzero(start[1:] - ended[:-1] >= QUIET_NS)
        own = Intervals(
            np.concatenate(([-NEVER], ended[long], ended[-1:])), np.concatenate((start[:1], start[long + 1], [NEVER]))
        )
        quiet = own if quiet is None else intersect(quiet, own)[0]
    if quiet is None:
        return EMPTY, NONE
    inside = (quiet.start > -NEVER) & (quiet.end < NEVER) & (quiet.end - quiet.start >= QUIET_NS)
    begin, end = quiet.start[inside], quiet.end[inside]
    before, after = np.zeros(len(begin), dtype=np.int64), np.full(len(begin), NEVER)
    for low, high in ranges:
        last = low + np.searchsorted(calls.start[low:high], begin, side="left") - 1
        before = np.maximum(before, np.where(last >= low, calls.correlation_id_of(np.maximum(last, low)), 0))
        first = low + np.searchsorted(calls.start[low:high], end, side="left")
        ids = np.where(first < high, calls.correlation_id_of(np.minimum(first, high - 1)), 0)
        after = np.where(ids > 0, np.minimum(after, ids), after)
    skipped = after - before - 1
    many = (before > 0) & (after < NEVER) & (skipped > MOST_IDS_SKIPPED)
    done = np.sort(done)
    many &= np.searchsorted(done, begin) == np.searchsorted(done, end)
    begin, end, skipped = begin[many], end[many], skipped[many]
    if len(begin):
        queries = query_starts(int(calls.processes[process]))
        skipped -= np.searchsorted(queries, end) - np.searchsorted(queries, begin)
    many = skipped > MOST_IDS_SKIPPED
    return Intervals(begin[many], end[many]), skipped[many]


def _ranges(calls: Calls, threads: IntArray) -> Iterable[tuple[int, int]]:
    """The calls of each thread: they are sorted by thread, and threads of a process follow each other."""
    bounds = np.searchsorted(calls.thread, np.append(threads, threads[-1] + 1))
    return ((int(low), int(high)) for low, high in pairwise(bounds) if high > low)
