"""Sync operations: calls that returned only when GPU work was done, as the trace proves (DESIGN.md section 2)."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from nsys_sync.analysis.calls import Calls
from nsys_sync.analysis.intervals import NONE, IntArray
from nsys_sync.trace.api_names import SYNCS, ApiClass, base_name
from nsys_sync.trace.tables import BoolArray, Trace

COPY_CLASSES = (ApiClass.COPY_SYNC, ApiClass.COPY_ASYNC)
PAGEABLE = 0
PROFILER_STOP = re.compile(r"(cuda|cu)ProfilerStop$")


@dataclass(frozen=True)
class Operations:
    """Sorted by (process, start, end, thread). One entry an operation.

    `call` is the synchronizing call; `copy_call` the copy folded with it or the blocking copy itself, -1 without copy.
    `copy_kind`, `src_kind`, `dst_kind` are CUPTI's numbers, -1 without copy.
    """

    start: IntArray
    end: IntArray
    thread: IntArray
    process: IntArray
    call: IntArray
    copy_call: IntArray
    copy_kind: IntArray
    src_kind: IntArray
    dst_kind: IntArray

    def __len__(self) -> int:
        return len(self.start)


def sync_operations(trace: Trace, calls: Calls) -> tuple[Operations, BoolArray]:
    """The operations, and for each call whether it is a sync call by itself."""
    copy, places = _copies_by_call(trace, calls)
    blocks = np.isin(calls.api_class, SYNCS)
    blocks[copy.index[copy["blocks"]]] = True
    blocks |= _blocking_memsets(trace, calls)
    blocks |= _blocking_frees(trace, calls)
    blocks &= ~calls.unfinished
    blocks[_of_the_profiler(trace, calls)] = False

    folded_copy, folded_sync = _copies_followed_by_their_synchronize(trace, calls, places)
    copy_of = np.full(len(calls), -1, dtype=np.int64)
    own_copy = copy.index[copy["blocks"]].to_numpy()
    copy_of[own_copy] = own_copy
    copy_of[folded_sync] = folded_copy
    alone = blocks.copy()
    alone[folded_copy] = False
    call = np.flatnonzero(alone)
    copy_call = copy_of[call]
    has_copy = copy_call >= 0
    first = np.where(has_copy, copy_call, call)
    start = calls.start[first]
    end = np.maximum(calls.end[call], calls.end[first])
    at = copy.index.get_indexer(pd.Index(copy_call))
    kinds = {
        name: np.where(at >= 0, np.append(copy[name].to_numpy(), -1)[at], -1)
        for name in ("copy_kind", "src_kind", "dst_kind")
    }
    order = np.lexsort((calls.thread[call], end, start, calls.process_of(call)))
    operations = Operations(
        start=start[order],
        end=end[order],
        thread=calls.thread[call][order],
        process=calls.process_of(call)[order],
        call=call[order],
        copy_call=copy_call[order],
        **{name: values[order] for name, values in kinds.items()},
    )
    return operations, blocks


def _of_the_profiler(trace: Trace, calls: Calls) -> IntArray:
    """The waits for the GPU with which nsys ends a capture: traced as calls under the id of cu(da)ProfilerStop."""
    found = [NONE]
    for stop in calls.named(PROFILER_STOP.match(base_name(name)) is not None for name in trace.api_names):
        low, high = calls.of_thread(calls.thread[stop])
        after = low + np.flatnonzero(calls.start[low:high] >= calls.start[stop])
        correlation_id = calls.correlation_id_of(np.array([stop]))[0]
        found.append(after[calls.correlation_id_of(after) == correlation_id] if correlation_id > 0 else NONE)
    return np.concatenate(found)


def _copies_by_call(trace: Trace, calls: Calls) -> tuple[pd.DataFrame, pd.DataFrame]:
    """By call, the kinds of its first GPU copy, and whether the trace proves that the call blocked; and each context
    and stream in which a call copied.
    """
    rows = trace.copies["gpu_row"].to_numpy()
    call = calls.launched_by[rows]
    is_copy = call >= 0
    is_copy[is_copy] = np.isin(calls.api_class[call[is_copy]], COPY_CLASSES)
    table = trace.copies[is_copy].assign(call=call[is_copy], gpu_start=trace.gpu["start_ns"].to_numpy()[rows[is_copy]])
    at = table["call"].to_numpy()
    may_block = (calls.api_class[at] == ApiClass.COPY_SYNC) | (table["src_kind"] == PAGEABLE).to_numpy()
    may_block |= (table["dst_kind"] == PAGEABLE).to_numpy()
    blocks = may_block & (table["gpu_start"].to_numpy() < calls.end[at]) & ~calls.unfinished[at]
    table = table.assign(blocks=blocks).sort_values(["call", "gpu_start"], kind="stable")
    groups = table.groupby("call", sort=True)
    first: pd.DataFrame = groups.first()
    first["blocks"] = groups["blocks"].any()
    return first, table[["call", "context_id", "stream_id"]].drop_duplicates()


def _blocking_memsets(trace: Trace, calls: Calls) -> BoolArray:
    result = np.zeros(len(calls), dtype=bool)
    candidate = calls.api_class == ApiClass.MEMSET_SYNC
    if candidate.any():
        rows = np.flatnonzero(calls.launched_by >= 0)
        rows = rows[candidate[calls.launched_by[rows]]]
        call = calls.launched_by[rows]
        done = np.full(len(calls), np.iinfo(np.int64).min)
        np.maximum.at(done, call, trace.gpu["end_ns"].to_numpy()[rows])
        unknown = np.zeros(len(calls), dtype=bool)
        unknown[call[trace.gpu["unfinished"].to_numpy()[rows]]] = True
        result[call] = (calls.end[call] >= done[call]) & ~unknown[call]
    return result


def _blocking_frees(trace: Trace, calls: Calls) -> BoolArray:
    """A free blocked if work launched earlier by its process was pending at its start, and none of it at its end."""
    result = np.zeros(len(calls), dtype=bool)
    frees = np.flatnonzero(calls.api_class == ApiClass.FREE)
    if not len(frees):
        return result
    gpu = trace.gpu[~trace.gpu["unfinished"]]
    launched_by = calls.launched_by[gpu.index.to_numpy()]
    begun = np.where(launched_by >= 0, calls.start[launched_by], gpu["start_ns"].to_numpy())
    for process in np.unique(calls.process_of(frees)):
        own = frees[calls.process_of(frees) == process]
        work = gpu["process"].to_numpy() == calls.processes[process]
        order = np.argsort(begun[work], kind="stable")
        earlier = np.searchsorted(begun[work][order], calls.start[own], side="left")
        last_end = np.maximum.accumulate(gpu["end_ns"].to_numpy()[work][order]) if work.any() else np.zeros(1)
        pending_until = np.where(earlier > 0, last_end[np.maximum(earlier - 1, 0)], np.iinfo(np.int64).min)
        result[own] = (pending_until > calls.start[own]) & (pending_until <= calls.end[own])
    return result


def _copies_followed_by_their_synchronize(
    trace: Trace, calls: Calls, places: pd.DataFrame
) -> tuple[IntArray, IntArray]:
    """(copy call, stream synchronize) pairs: same context and stream, the next call of the thread, queries aside."""
    second = np.flatnonzero((calls.api_class == ApiClass.STREAM_SYNC) & ~calls.unfinished)
    first = second - 1  # queries are not read at all
    pairs = (
        (first >= 0)
        & (calls.thread[first] == calls.thread[second])
        & np.isin(calls.api_class[first], COPY_CLASSES)
        & ~calls.unfinished[first]
    )
    first, second = first[pairs], second[pairs]
    pairs_table = pd.DataFrame(
        {
            "call": first,
            "sync": second,
            "process": calls.processes[calls.process_of(second)],
            "correlation_id": calls.correlation_id_of(second),
        }
    )
    pairs_table = pairs_table[pairs_table["correlation_id"] > 0].merge(places, on="call")
    # Correlation ids can recur in a process, so the record must also lie inside the call.
    joined = pairs_table.merge(trace.stream_syncs, on=["process", "correlation_id", "context_id", "stream_id"])
    start, end = joined["start_ns"].to_numpy(), joined["end_ns"].to_numpy()
    inside = (start >= calls.start[joined["sync"]]) & (end <= calls.end[joined["sync"]]) & (end >= start)
    matched = joined[inside].drop_duplicates("sync")
    return matched["call"].to_numpy(), matched["sync"].to_numpy()
