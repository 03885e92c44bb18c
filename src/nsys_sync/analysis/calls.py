"""API calls: one row a call, and which GPU work each launched."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pandas as pd

from nsys_sync.analysis.intervals import IntArray
from nsys_sync.errors import TraceError
from nsys_sync.trace.api_names import ApiClass, classify
from nsys_sync.trace.tables import BoolArray, ClassArray, Trace

FEW_THREADS = 8
PID_MASK = 0xFFFFFF
NEVER_LAUNCH = (ApiClass.STREAM_SYNC, ApiClass.OTHER_SYNC, ApiClass.EVENT)


@dataclass(frozen=True)
class Calls:
    """The outermost call of each thread and moment, sorted by (thread, start). All arrays have one entry a call.

    `thread` is a code, an index into `global_tids` (sorted), and so are process codes, into `processes` (sorted).
    `row` is the call's row in the trace's `api` table.
    `launched_by[r]` is the call that launched GPU row r of the trace, or -1.
    `loading_end[r]` are ends of module-loading and context-creating rows (nested ones too), `loading_process` theirs.
    """

    start: IntArray
    end: IntArray
    thread: IntArray
    row: IntArray
    api_class: ClassArray
    unfinished: BoolArray
    global_tids: IntArray
    processes: IntArray
    launched_by: IntArray
    loading_start: IntArray
    loading_end: IntArray
    loading_process: IntArray
    process_of_thread: IntArray
    api: pd.DataFrame

    def __len__(self) -> int:
        return len(self.start)

    # What is asked of few calls is not copied for all: at 15 million rows each such column costs a tenth of a second.
    def process_of(self, call: IntArray) -> IntArray:
        """The process code of each call."""
        return self.process_of_thread[self.thread[call]]

    def name_of(self, call: IntArray) -> IntArray:
        """The code of each call's API name."""
        return self.api["name"].to_numpy()[self.row[call]]

    def correlation_id_of(self, call: IntArray) -> IntArray:
        return self.api["correlation_id"].to_numpy()[self.row[call]]

    def callchain_id_of(self, call: IntArray) -> IntArray:
        return self.api["callchain_id"].to_numpy()[self.row[call]]


def outermost_calls(trace: Trace) -> Calls:
    """Duplicated rows and calls traced inside another become one call; GPU rows are joined per process.

    A row inside another of its thread belongs to the outer one; of identical rows, the one with a callchain is the
    outer. GPU work of an inner call (`cuLaunchKernel` in `cudaLaunchKernel`) is the outer call's.
    """
    api = trace.api
    codes, tids = pd.factorize(api["global_tid"].to_numpy(), sort=True)
    start = api["start_ns"].to_numpy()
    end = np.maximum(start, api["end_ns"].to_numpy())
    no_chain = api["callchain_id"].to_numpy() < 0
    name, correlation_id = api["name"].to_numpy(), api["correlation_id"].to_numpy()
    class_of_name = np.array([classify(name) for name in trace.api_names], dtype=np.int8)
    processes = np.unique(tids >> 24)
    process_of_thread = np.searchsorted(processes, tids >> 24)

    def launching_rows() -> IntArray:
        may_launch = np.flatnonzero((~np.isin(class_of_name, NEVER_LAUNCH))[name] & (correlation_id >= 0))
        process = process_of_thread[codes[may_launch]]
        found = _earliest_row(trace, processes, process, correlation_id[may_launch], start[may_launch])
        return np.where(found >= 0, may_launch[found], -1) if len(may_launch) else found

    with ThreadPoolExecutor(max_workers=1) as pool:
        launcher_rows = pool.submit(launching_rows)  # beside the sorting below: neither holds the GIL for long
        call_of_row = np.empty(len(codes), dtype=np.int64)
        rows, calls = [], 0
        for own in _rows_by_thread(codes, len(tids)):
            order = own[_outer_first(start[own], end[own], no_chain[own])]
            outermost = _is_outermost(start[order], end[order])
            rows.append(order[outermost])
            call_of_row[order] = calls - 1 + np.cumsum(outermost)
            calls += len(rows[-1])
        row = np.concatenate(rows) if rows else np.empty(0, dtype=np.int64)
    launcher = launcher_rows.result()
    loading = np.flatnonzero((class_of_name == ApiClass.LOADING)[name])
    return Calls(
        start=start[row],
        end=end[row],
        thread=codes[row],
        row=row,
        api_class=class_of_name[name][row],
        unfinished=api["unfinished"].to_numpy()[row],
        global_tids=tids,
        processes=processes,
        launched_by=np.where(launcher >= 0, call_of_row[launcher], -1) if len(row) else launcher,
        loading_start=start[loading],
        loading_end=end[loading],
        loading_process=process_of_thread[codes[loading]],
        process_of_thread=process_of_thread,
        api=api,
    )


def require_process(trace: Trace, calls: Calls, pid: int | None) -> None:
    """Raises TraceError where `pid` is given and made no CUDA call."""
    pids = sorted({int(process) & PID_MASK for process in calls.processes})
    if pid is not None and pid not in pids:
        raise TraceError(
            f"{trace.name}: has no CUDA calls of process {pid}. Processes in this trace: "
            + ", ".join(str(one) for one in pids)
        )


def _rows_by_thread(codes: IntArray, threads: int) -> list[IntArray]:
    """The rows of each thread, in the order of the table."""
    if threads <= FEW_THREADS:
        return [np.flatnonzero(codes == code) for code in range(threads)]
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.searchsorted(codes[order], np.arange(1, threads)))


def _outer_first(start: IntArray, end: IntArray, no_chain: BoolArray) -> IntArray:
    """Order of one thread's rows by start; of rows that start together the longer first, then one with a callchain."""
    # Rows come nearly sorted, so a stable sort and a repair of the few ties beat one sort by three keys.
    order = np.argsort(start, kind="stable")
    ordered = start[order]
    tied = ordered[1:] == ordered[:-1]
    if tied.any():
        at = np.flatnonzero(np.concatenate((tied, [False])) | np.concatenate(([False], tied)))
        rows = order[at]
        order[at] = rows[np.lexsort((no_chain[rows], -end[rows], start[rows]))]
    return order


def _is_outermost(start: IntArray, end: IntArray) -> BoolArray:
    """For one thread's rows, outer first: whether a row lies in no earlier one."""
    outermost = np.ones(len(start), dtype=bool)
    latest_end = np.maximum.accumulate(end)[:-1]
    inside = (start[1:] < latest_end) & (end[1:] <= latest_end)
    same = (start[1:] == start[:-1]) & (end[1:] == end[:-1])
    outermost[1:] = ~(inside | same)
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
    order = np.argsort(start, kind="stable")
    order = order[np.argsort(key[order], kind="stable")]
    sorted_key = key[order]
    gpu_key = gpu_code * span + gpu_correlation
    at = np.searchsorted(sorted_key, gpu_key)
    at[at == len(sorted_key)] = 0
    found = known & (sorted_key[at] == gpu_key)
    return np.where(found, order[at], -1)
