"""API calls: one row a call, and which GPU work each launched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pandas as pd

from nsys_sync.analysis.intervals import IntArray, distinct
from nsys_sync.errors import TraceError
from nsys_sync.trace.api_names import SYNCS, ApiClass, classify
from nsys_sync.trace.tables import BoolArray, ClassArray, Trace, blocks

FEW_THREADS = 8
PID_MASK = 0xFFFFFF
NEVER_LAUNCH = (*SYNCS, ApiClass.EVENT)


@dataclass(frozen=True)
class Calls:
    """The outermost call of each thread and moment, sorted by (thread, start). All arrays have one entry a call.

    `thread` is a code, an index into `global_tids` (sorted), and so are process codes, into `processes` (sorted).
    `row` is the call's row in `api`, columns of the trace's API table.
    `launched_by[r]` is the call that launched GPU row r of the trace, or -1.
    `chained` are the calls with a callchain, and `chained_is_one_row` says which of them have no second row: nsys
    writes the row with the callchain, CUPTI the other.
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
    chained: IntArray
    chained_is_one_row: BoolArray
    api: Mapping[str, IntArray]

    def __len__(self) -> int:
        return len(self.start)

    # What is asked of few calls is not copied for all: at 15 million rows each such column costs a tenth of a second.
    def process_of(self, call: IntArray) -> IntArray:
        """The process code of each call."""
        return self.process_of_thread[self.thread[call]]

    def name_of(self, call: IntArray) -> IntArray:
        """The code of each call's API name."""
        return self.api["name"][self.row[call]]

    def correlation_id_of(self, call: IntArray) -> IntArray:
        return self.api["correlation_id"][self.row[call]]

    def callchain_id_of(self, call: IntArray) -> IntArray:
        return self.api["callchain_id"][self.row[call]]

    def of_thread(self, thread: int) -> tuple[int, int]:
        """The first of the thread's calls, and the one after its last."""
        low, high = np.searchsorted(self.thread, (thread, thread + 1))
        return int(low), int(high)

    def named(self, wanted: Iterable[bool]) -> IntArray:
        """The calls whose API name is wanted; one entry a name, in the order of the trace's `api_names`."""
        by_name = np.fromiter(wanted, dtype=bool)
        if not by_name.any():
            return np.empty(0, dtype=np.int64)
        return np.flatnonzero(by_name[self.name_of(np.arange(len(self)))])

    def that_launched(self, launched_by: IntArray) -> BoolArray:
        """For each call whether it launched any of some GPU rows, given the call that launched each (-1 none)."""
        result = np.zeros(len(self), dtype=bool)
        result[launched_by if (launched_by >= 0).all() else launched_by[launched_by >= 0]] = True
        return result


def outermost_calls(trace: Trace) -> Calls:
    """Duplicated rows and calls traced inside another become one call; GPU rows are joined per process.

    A row inside another of its thread belongs to the outer one; of identical rows, the one with a callchain is the
    outer. GPU work of an inner call (`cuLaunchKernel` in `cudaLaunchKernel`) is the outer call's.
    """
    api = trace.api
    global_tid, start, end = (api[column].to_numpy() for column in ("global_tid", "start_ns", "end_ns"))
    unfinished, no_chain = api["unfinished"].to_numpy(), api["callchain_id"].to_numpy() < 0
    if unfinished.any():
        end = np.maximum(start, end)
    name = api["name"].to_numpy()
    class_of_name = np.array([classify(name) for name in trace.api_names], dtype=np.int8)
    tids = np.sort(pd.unique(global_tid))
    processes = np.unique(tids >> 24)

    with ThreadPoolExecutor(max_workers=1) as pool:
        # Beside the sorting below: neither holds the GIL for long.
        launching_rows = pool.submit(_launching_rows, trace, processes, ~np.isin(class_of_name, NEVER_LAUNCH))
        call_of_row = np.full(len(api) + 1, -1, dtype=np.int64)  # the last is for GPU rows without a launching row
        rows, chained, one_row, calls = [], [], [], 0
        for own in rows_by_thread(global_tid, tids):
            order = _outer_first(own, start, end, unfinished, no_chain)
            outermost = _is_outermost(start[order], end[order], unfinished[order])
            rows.append(order[outermost])
            call = _outermost_of(outermost, unfinished[order])
            with_chain = np.flatnonzero(~no_chain[rows[-1]])
            if len(with_chain):
                chained.append(calls + with_chain)
                one_row.append(np.bincount(call)[with_chain] == 1)
            call_of_row[order] = calls + call
            calls += len(rows[-1])
        row = np.concatenate(rows) if rows else np.empty(0, dtype=np.int64)
    launching_row, recurring = launching_rows.result()
    thread = np.repeat(np.arange(len(tids)), [len(own) for own in rows])
    launched_by = call_of_row[launching_row]
    if len(recurring.api_row):
        launched_by[recurring.gpu_row] = _last_begun(trace, recurring, call_of_row, (thread, end[row], start[row]))
    loading = np.flatnonzero((class_of_name == ApiClass.LOADING)[name])
    return Calls(
        start=start[row],
        end=end[row],
        thread=thread,
        row=row,
        api_class=class_of_name[name][row],
        unfinished=unfinished[row],
        global_tids=tids,
        processes=processes,
        launched_by=launched_by,
        loading_start=start[loading],
        loading_end=end[loading],
        loading_process=np.searchsorted(processes, global_tid[loading] >> 24),
        process_of_thread=np.searchsorted(processes, tids >> 24),
        chained=np.concatenate(chained) if chained else np.empty(0, dtype=np.int64),
        chained_is_one_row=np.concatenate(one_row) if one_row else np.empty(0, dtype=bool),
        api={column: api[column].to_numpy() for column in ("name", "correlation_id", "callchain_id")},
    )


def require_process(trace: Trace, calls: Calls, pid: int | None) -> None:
    """Raises TraceError where `pid` is given and made no CUDA call."""
    pids = sorted({int(process) & PID_MASK for process in calls.processes})
    if pid is not None and pid not in pids:
        raise TraceError(
            f"{trace.name}: has no CUDA calls of process {pid}. Processes in this trace: "
            + ", ".join(str(one) for one in pids)
        )


def rows_by_thread(global_tid: IntArray, tids: IntArray) -> list[IntArray]:
    """The rows of each thread, in the order of the table."""
    if len(tids) <= FEW_THREADS:
        return [np.flatnonzero(global_tid == tid) for tid in tids]
    order = np.argsort(global_tid, kind="stable")
    return np.split(order, np.searchsorted(global_tid[order], tids[1:]))


def _outer_first(own: IntArray, start: IntArray, end: IntArray, unfinished: BoolArray, no_chain: BoolArray) -> IntArray:
    """One thread's rows by start; of rows that start together the longer first, then one with a callchain. Those that
    never ended come last, so that rows that are alike stand side by side.
    """
    # Rows come sorted or nearly so: a stable sort and a repair of the few ties beat one sort by three keys.
    begun = start[own]
    if (begun[1:] < begun[:-1]).any():
        order = np.argsort(begun, kind="stable")
        begun, own = begun[order], own[order]
    tied = begun[1:] == begun[:-1]
    if not tied.any():
        return own
    at = np.flatnonzero(np.concatenate((tied, [False])) | np.concatenate(([False], tied)))
    rows = own[at]
    result = own.copy()
    result[at] = rows[np.lexsort((no_chain[rows], unfinished[rows], -end[rows], start[rows]))]
    return result


def _is_outermost(start: IntArray, end: IntArray, unfinished: BoolArray) -> BoolArray:
    """For one thread's rows, outer first: whether a row lies in no earlier one. One that never ended lies in none, and
    none in it.
    """
    outermost = np.ones(len(start), dtype=bool)
    latest_end = np.maximum.accumulate(end)[:-1]
    inside = (start[1:] < latest_end) & (end[1:] <= latest_end)
    same = (start[1:] == start[:-1]) & (end[1:] == end[:-1]) & ~unfinished[:-1]
    outermost[1:] = ~(inside | same) | unfinished[1:]
    return outermost


def _outermost_of(outermost: BoolArray, unfinished: BoolArray) -> IntArray:
    """For one thread's rows, outer first: the number of the outermost call that each belongs to."""
    number = np.cumsum(outermost) - 1
    if not unfinished.any():
        return number
    holds = np.maximum.accumulate(np.where(outermost & ~unfinished, number, -1))
    return np.where(outermost, number, holds)


@dataclass(frozen=True)
class _Recurring:
    """API rows that may launch, and GPU rows, whose process and correlation id (the key) several such API rows have."""

    api_row: IntArray
    api_key: IntArray
    gpu_row: IntArray
    gpu_key: IntArray


def _last_begun(
    trace: Trace, recurring: _Recurring, call_of_row: IntArray, order_keys: tuple[IntArray, IntArray, IntArray]
) -> IntArray:
    """For each of the GPU rows the last call of its key that began before it did, else the first of its key."""
    pairs = pd.DataFrame({"key": recurring.api_key, "call": call_of_row[recurring.api_row]}).drop_duplicates()
    key, call = pairs["key"].to_numpy(), pairs["call"].to_numpy()
    order = np.lexsort((*(values[call] for values in order_keys), key))
    key, call = key[order], call[order]
    both_keys = np.concatenate((key, recurring.gpu_key))
    begun = np.concatenate((order_keys[-1][call], trace.gpu["start_ns"].to_numpy()[recurring.gpu_row]))
    is_gpu = np.arange(len(both_keys)) >= len(key)
    order = np.lexsort((is_gpu, begun, both_keys))
    calls_before = np.empty(len(order), dtype=np.int64)
    calls_before[order] = np.cumsum(~is_gpu[order])
    return call[np.maximum(calls_before[is_gpu] - 1, np.searchsorted(key, recurring.gpu_key))]


def _launching_rows(trace: Trace, processes: IntArray, may_launch: BoolArray) -> tuple[IntArray, _Recurring]:
    """For each GPU row the API row that launched it, -1 without one: the earliest of its process and correlation id
    whose name says that it may (`may_launch`, by name); and where there are several of those. CUPTI counts from 1; a 0
    stands for none.
    """
    start, global_tid, name = (trace.api[column].to_numpy() for column in ("start_ns", "global_tid", "name"))
    api_id, gpu_id = trace.api["correlation_id"].to_numpy(), trace.gpu["correlation_id"].to_numpy()
    gpu_process = trace.gpu["process"].to_numpy()
    span = int(max(api_id.max(initial=0), gpu_id.max(initial=0))) + 1
    if span > 2**62 // (len(processes) + 1):
        values, ranks = np.unique(np.concatenate((api_id, gpu_id)), return_inverse=True)
        ranks += 1
        ranks[values[ranks - 1] <= 0] = 0
        api_id, gpu_id, span = ranks[: len(api_id)], ranks[len(api_id) :], len(values) + 1

    key = np.empty(len(gpu_id), dtype=np.int64)
    for own in blocks(len(key)):
        code = np.searchsorted(processes, gpu_process[own])
        code[code == len(processes)] = 0
        known = (processes[code] == gpu_process[own]) & (gpu_id[own] > 0)
        key[own] = np.where(known, code * span + gpu_id[own], -1)
    keys = distinct(key)

    def launching(own: slice) -> tuple[IntArray, IntArray]:
        """The rows of the block that may launch and have a GPU row's key, the earliest last; and their keys' index."""
        rows = own.start + np.flatnonzero(may_launch[name[own]] & (api_id[own] > 0))
        rows = rows[np.argsort(start[rows], kind="stable")[::-1]]
        row_key = np.searchsorted(processes, global_tid[rows] >> 24) * span + api_id[rows]
        at = np.searchsorted(keys, row_key)
        at[at == len(keys)] = 0
        asked = keys[at] == row_key
        return rows[asked], at[asked]

    earliest = np.full(len(keys), -1, dtype=np.int64)
    recurs = np.zeros(len(keys), dtype=bool)
    for own in blocks(len(start)):
        rows, at = launching(own)
        before = earliest[at]
        better = (before < 0) | (start[rows] < start[before])
        earliest[at[better]] = rows[better]
        recurs[at[(before >= 0) | (earliest[at] != rows)]] = True
    result = key
    recurring = [np.empty((2, 0), dtype=np.int64)]
    for own in blocks(len(key)):
        at = np.searchsorted(keys, key[own])
        result[own] = earliest[at]
        again = np.flatnonzero(recurs[at])
        recurring.append(np.stack((own.start + again, at[again])))
    gpu = np.concatenate(recurring, axis=1)
    recurring = [np.empty((2, 0), dtype=np.int64)]
    for own in blocks(len(start)) if gpu.size else []:
        rows, at = launching(own)
        recurring.append(np.stack((rows, at))[:, recurs[at]])
    return result, _Recurring(*np.concatenate(recurring, axis=1), *gpu)
