"""Host threads that wait by asking again and again whether work is done. No such call blocks: they are shown apart."""

from __future__ import annotations

import numpy as np
import pandas as pd

from nsys_sync import model
from nsys_sync.analysis.attributed import Attributed
from nsys_sync.analysis.calls import PID_MASK
from nsys_sync.analysis.intervals import IntArray, intersect, union

FEWEST_POLLS = 16
"""That came too early, in one run. PyTorch's allocators and the watchdog of its process groups ask after many events in
a row, but after each of them once, and most are done by then.
"""
SURELY_POLLS = 1_000
"""So many in a run are polls whatever they returned: some exports say 0 of every call."""


def polling(one: Attributed) -> tuple[model.Polling, ...]:
    """One entry a thread and function, the longest first. A run is a row of such calls of one thread with no other CUDA
    call between them, queries of other kinds aside, of which FEWEST_POLLS came too early or which are SURELY_POLLS.
    """
    runs = _runs(one)
    result = []
    for _, own in runs.groupby(["global_tid", "api"], sort=False):
        start, end = own["start_ns"].to_numpy(), own["end_ns"].to_numpy()
        tid, api = int(own["global_tid"].iloc[0]), str(own["api"].iloc[0])
        process = tid >> 24
        time = union(start, end)
        if one.selection.windows is not None:
            time = intersect(time, one.selection.windows)[0]
            own = own[one.selection.windows.within(start, end) > 0]
        if not len(own) or (one.options.pid is not None and process & PID_MASK != one.options.pid):
            continue
        result.append(
            model.Polling(
                pid=process & PID_MASK,
                tid=tid & PID_MASK,
                thread=one.shown(one.trace.thread_names.get(tid, "")),
                api=api,
                calls=int(own["calls"].sum()),
                runs=len(own),
                polled_ns=time.total_ns,
                longest_ns=max(int((own["end_ns"] - own["start_ns"]).max()), 0),
                first_start_ns=int(own["start_ns"].iloc[0]),
            )
        )
    return tuple(sorted(result, key=lambda entry: (-entry.polled_ns, entry.pid, entry.tid, entry.api)))


def _runs(one: Attributed) -> pd.DataFrame:
    """global_tid, api, calls, start_ns and end_ns of each run, in order of thread and start."""
    polls = one.trace.polls
    order = np.lexsort((-polls["end_ns"].to_numpy(), polls["start_ns"].to_numpy(), polls["global_tid"].to_numpy()))
    polls = polls.iloc[order]
    tid, start, end = (polls[name].to_numpy() for name in ("global_tid", "start_ns", "end_ns"))
    api, too_early = polls["api"].cat.codes.to_numpy(), polls["too_early"].to_numpy()
    new_thread = np.concatenate(([True], tid[1:] != tid[:-1]))[: len(tid)]
    # With backtraces a call has two rows, one inside the other.
    inside = np.zeros(len(tid), dtype=bool)
    inside[1:] = ~new_thread[1:] & (start[1:] >= start[:-1]) & (end[1:] <= end[:-1])
    tid, start, end, api, too_early = (np.asarray(v)[~inside] for v in (tid, start, end, api, too_early))
    calls_before = _calls_before(one, tid, start)
    changes = (tid[1:] != tid[:-1]) | (api[1:] != api[:-1]) | (calls_before[1:] != calls_before[:-1])
    first = np.flatnonzero(np.concatenate(([True], changes))[: len(tid)])
    count = np.diff(np.append(first, len(tid)))
    early = np.add.reduceat(too_early.astype(np.int64), first) if len(first) else count
    many = (early >= FEWEST_POLLS) | (count >= SURELY_POLLS)
    last = first + count - 1
    return pd.DataFrame(
        {
            "global_tid": tid[first[many]],
            "api": polls["api"].cat.categories.to_numpy()[api[first[many]]],
            "calls": count[many],
            "start_ns": start[first[many]],
            "end_ns": end[last[many]],
        }
    )


def _calls_before(one: Attributed, tid: IntArray, moment: IntArray) -> IntArray:
    """How many calls of all threads in order come before each moment of a thread."""
    calls = one.calls
    result = np.zeros(len(tid), dtype=np.int64)
    thread = np.searchsorted(calls.global_tids, tid)
    for code in np.unique(thread).tolist():
        own = thread == code
        low, high = calls.of_thread(code)
        if code < len(calls.global_tids) and calls.global_tids[code] == tid[own][0]:
            result[own] = low + np.searchsorted(calls.start[low:high], moment[own])
    return result
