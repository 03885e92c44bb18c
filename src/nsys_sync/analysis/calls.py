"""API calls: one row a call, and which GPU work each launched."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from nsys_sync.analysis.intervals import IntArray
from nsys_sync.trace.api_names import ApiClass, classify
from nsys_sync.trace.tables import BoolArray, Trace

NEVER_LAUNCH = (ApiClass.STREAM_SYNC, ApiClass.OTHER_SYNC, ApiClass.QUERY, ApiClass.EVENT)


@dataclass(frozen=True)
class Calls:
    """The outermost call of each thread and moment, sorted by (thread, start). All arrays have one entry a call.

    `thread` and `process` are codes: indexes into `global_tids` (sorted) and `processes` (sorted).
    `launched_by[r]` is the call that launched GPU row r of the trace, or -1.
    `loading_end[r]` are ends of module-loading and context-creating rows (nested ones too), `loading_process` theirs.
    """

    start: IntArray
    end: IntArray
    thread: IntArray
    process: IntArray
    name: IntArray
    api_class: IntArray
    correlation_id: IntArray
    callchain_id: IntArray
    unfinished: BoolArray
    global_tids: IntArray
    processes: IntArray
    launched_by: IntArray
    loading_start: IntArray
    loading_end: IntArray
    loading_process: IntArray

    def __len__(self) -> int:
        return len(self.start)


def outermost_calls(trace: Trace) -> Calls:
    """Duplicated rows and calls traced inside another become one call; GPU rows are joined per process.

    A row inside another of its thread belongs to the outer one; of identical rows, the one with a callchain is the
    outer. GPU work of an inner call (`cuLaunchKernel` in `cudaLaunchKernel`) is the outer call's.
    """
    api = trace.api
    codes, tids = pd.factorize(api["global_tid"].to_numpy(), sort=True)
    start, end = api["start_ns"].to_numpy(), api["end_ns"].to_numpy()
    end = np.maximum(start, end)
    no_chain = api["callchain_id"].to_numpy() < 0
    order = _outer_first(codes, start, end, no_chain)
    outermost = _is_outermost(start[order], end[order], codes[order], len(tids))
    row = order[outermost]
    call_of_row = np.empty(len(order), dtype=np.int64)
    call_of_row[order] = np.cumsum(outermost) - 1

    name, correlation_id = api["name"].to_numpy(), api["correlation_id"].to_numpy()
    class_of_name = np.array([classify(name) for name in trace.api_names], dtype=np.int64)
    launches_by_name = ~np.isin(class_of_name, NEVER_LAUNCH)
    processes = np.unique(tids >> 24)
    process_of_thread = np.searchsorted(processes, tids >> 24)
    may_launch = np.flatnonzero(launches_by_name[name] & (correlation_id >= 0))
    launcher = _earliest_row(
        trace, processes, process_of_thread[codes[may_launch]], correlation_id[may_launch], start[may_launch]
    )
    loading = np.flatnonzero((class_of_name == ApiClass.LOADING)[name])
    return Calls(
        start=start[row],
        end=end[row],
        thread=codes[row],
        process=process_of_thread[codes[row]],
        name=name[row],
        api_class=class_of_name[name[row]],
        correlation_id=correlation_id[row],
        callchain_id=api["callchain_id"].to_numpy()[row],
        unfinished=api["unfinished"].to_numpy()[row],
        global_tids=tids,
        processes=processes,
        launched_by=np.where(launcher >= 0, call_of_row[may_launch[launcher]], -1) if len(may_launch) else launcher,
        loading_start=start[loading],
        loading_end=end[loading],
        loading_process=process_of_thread[codes[loading]],
    )


def _outer_first(thread: IntArray, start: IntArray, end: IntArray, no_chain: BoolArray) -> IntArray:
    """Order by thread and start; of rows that start together the longer first, then the one with a callchain."""
    # Rows come nearly sorted by start, so two stable sorts and a repair of the few ties beat one sort by four keys.
    order = np.argsort(start, kind="stable")
    order = order[
        np.argsort(thread[order].astype(np.int16 if thread.max(initial=0) < 2**15 else np.int64), kind="stable")
    ]
    tied = (start[order[1:]] == start[order[:-1]]) & (thread[order[1:]] == thread[order[:-1]])
    if tied.any():
        at = np.flatnonzero(np.concatenate((tied, [False])) | np.concatenate(([False], tied)))
        rows = order[at]
        order[at] = rows[np.lexsort((no_chain[rows], -end[rows], start[rows], thread[rows]))]
    return order


def _is_outermost(start: IntArray, end: IntArray, thread: IntArray, threads: int) -> BoolArray:
    outermost = np.ones(len(start), dtype=bool)
    bounds = np.searchsorted(thread, np.arange(threads + 1))
    for begin, stop in pairwise(bounds.tolist()):
        own_start, own_end = start[begin + 1 : stop], end[begin + 1 : stop]
        latest_end = np.maximum.accumulate(end[begin:stop])[:-1]
        inside = (own_start < latest_end) & (own_end <= latest_end)
        same = (own_start == start[begin : stop - 1]) & (own_end == end[begin : stop - 1])
        outermost[begin + 1 : stop] = ~(inside | same)
    return outermost


def _earliest_row(
    trace: Trace, processes: IntArray, process: IntArray, correlation_id: IntArray, start: IntArray
) -> IntArray:
    """For each GPU row the index of the earliest API row of its (process, correlation id), or -1."""
    gpu_correlation = trace.gpu["correlation_id"].to_numpy()
    gpu_process = trace.gpu["process"].to_numpy()
    if not len(start):
        return np.full(len(gpu_correlation), -1, dtype=np.int64)
    gpu_code = np.searchsorted(processes, gpu_process)
    gpu_code[gpu_code == len(processes)] = 0
    known = (processes[gpu_code] == gpu_process) & (gpu_correlation >= 0)
    span = int(max(correlation_id.max(), gpu_correlation.max(initial=0))) + 1
    if span > 2**62 // (len(processes) + 1):
        values, ranks = np.unique(np.concatenate((correlation_id, gpu_correlation)), return_inverse=True)
        correlation_id, gpu_correlation, span = ranks[: len(start)], ranks[len(start) :], len(values)
    key = process * span + correlation_id
    order = np.lexsort((start, key))
    sorted_key = key[order]
    gpu_key = gpu_code * span + gpu_correlation
    at = np.searchsorted(sorted_key, gpu_key)
    at[at == len(sorted_key)] = 0
    found = known & (sorted_key[at] == gpu_key)
    return np.where(found, order[at], -1)
