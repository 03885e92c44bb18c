"""Where in the program each sync operation is: its Python line, or the next best that the trace knows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from nsys_sync.analysis.calls import Calls
from nsys_sync.analysis.intervals import IntArray
from nsys_sync.analysis.operations import Operations
from nsys_sync.analysis.options import Options
from nsys_sync.analysis.user_code import is_user_code
from nsys_sync.trace.tables import BoolArray, PythonEvents, Trace

EXACT, SAMPLE, NATIVE, NVTX, THREAD = range(5)
HOW = ("exact stack", "python sample", "native stack", "nvtx range", "thread")


@dataclass(frozen=True)
class PythonLocations:
    """One entry an operation. `event` is the Python event used, -1 without; `frame` its frame that is the location, and
    `library_frames` how many frames of libraries stand inside it (all of them, where none is the user's).

    `how` is EXACT or SAMPLE where there is an event, else -1.
    """

    event: IntArray
    frame: IntArray
    library_frames: IntArray
    how: IntArray


def locate_in_python(trace: Trace, calls: Calls, operations: Operations, options: Options) -> PythonLocations:
    """The stack that has exactly the start and thread of the operation's call, else the first sample inside it."""
    python = trace.python
    exact = np.flatnonzero(~python.is_sample)
    event = _matching_event(python, exact, calls, operations.call)
    with_copy = np.flatnonzero((event < 0) & (operations.copy_call >= 0))
    event[with_copy] = _matching_event(python, exact, calls, operations.copy_call[with_copy])
    how = np.where(event >= 0, EXACT, -1)

    missing = np.flatnonzero(event < 0)
    event[missing] = _first_sample_inside(python, calls, operations, missing)
    how[missing] = np.where(event[missing] >= 0, SAMPLE, -1)

    found = np.flatnonzero(event >= 0)
    used, inverse = np.unique(event[found], return_inverse=True)
    frame = np.full(len(event), -1, dtype=np.int64)
    library_frames = np.zeros(len(event), dtype=np.int64)
    if len(used):
        chosen, inside = innermost_user_frame(python, used, user_files(python, options))
        frame[found], library_frames[found] = chosen[inverse], inside[inverse]
    return PythonLocations(event, frame, library_frames, how)


def user_files(python: PythonEvents, options: Options) -> BoolArray:
    """For each of `python.files` whether it is the user's own code."""
    return np.array([is_user_code(path, options.user_code, options.library_code) for path in python.files], dtype=bool)


def _matching_event(python: PythonEvents, exact: IntArray, calls: Calls, call: IntArray) -> IntArray:
    result = np.full(len(call), -1, dtype=np.int64)
    if not len(exact) or not len(call):
        return result
    # Of two stacks of one call the deeper one, whatever the order of the rows.
    line = python.frame_line[python.first[exact]]
    exact = exact[np.lexsort((line, -python.count[exact], python.start_ns[exact]))]
    of_event = _by_thread(python.global_tid[exact])
    for tid, own in _by_thread(calls.global_tids[calls.thread[call]]).items():
        if tid not in of_event:
            continue
        events = exact[of_event[tid]]
        times = python.start_ns[events]
        at = np.searchsorted(times, calls.start[call[own]])
        at[at == len(times)] = 0
        hit = times[at] == calls.start[call[own]]
        result[own[hit]] = events[at[hit]]
    return result


def _first_sample_inside(python: PythonEvents, calls: Calls, operations: Operations, missing: IntArray) -> IntArray:
    result = np.full(len(missing), -1, dtype=np.int64)
    samples = np.flatnonzero(python.is_sample)
    samples = samples[np.argsort(python.start_ns[samples], kind="stable")]
    sample_process = python.global_tid[samples] >> 24
    for code in np.unique(operations.process[missing]):
        own_samples = samples[sample_process == calls.processes[code]]
        if not len(own_samples) or not has_one_python_thread(python, own_samples, int(calls.processes[code])):
            continue
        own = np.flatnonzero(operations.process[missing] == code)
        times = python.start_ns[own_samples]
        at = np.searchsorted(times, operations.start[missing[own]])
        inside = (at < len(times)) & (times[np.minimum(at, len(times) - 1)] <= operations.end[missing[own]])
        result[own[inside]] = own_samples[at[inside]]
    return result


def has_one_python_thread(python: PythonEvents, samples: IntArray, process: int) -> bool:
    """The sampler writes one event a Python thread, all with the same time, and does not say whose each is."""
    times = python.start_ns[samples]
    callers = python.global_tid[~python.is_sample & ((python.global_tid >> 24) == process)]
    return not bool((times[1:] == times[:-1]).any()) and len(np.unique(callers)) <= 1


def innermost_user_frame(python: PythonEvents, events: IntArray, is_user_file: BoolArray) -> tuple[IntArray, IntArray]:
    """For each event the index of its location's frame, and how many frames of libraries stand inside it."""
    first, count = python.first[events], python.count[events]
    begins = np.cumsum(count) - count
    within = np.arange(count.sum()) - np.repeat(begins, count)
    frame = np.repeat(first, count) + within
    file = python.frame_file[frame]
    candidate = np.where(is_user_file[file], within, np.iinfo(np.int64).max)
    innermost = np.minimum.reduceat(candidate, begins)
    return first + np.where(innermost < count, innermost, 0), np.minimum(innermost, count)


def native_chains(trace: Trace, calls: Calls, operations: Operations) -> IntArray:
    """The native callchain of each operation's call, else of its copy; -1 without one."""
    chain_id = calls.callchain_id_of(operations.call)
    with_copy = (chain_id < 0) & (operations.copy_call >= 0)
    chain_id[with_copy] = calls.callchain_id_of(operations.copy_call[with_copy])
    shift = trace.native.shift
    return np.full_like(chain_id, -1) if shift is None else np.where(chain_id >= 0, chain_id + shift, -1)


def without_python(python: PythonLocations, chain_id: IntArray) -> IntArray:
    """The callchains of the operations that only a native stack can locate."""
    return chain_id[(python.event < 0) & (chain_id >= 0)]


def innermost_range(nvtx: pd.DataFrame, global_tid: IntArray, time: IntArray) -> IntArray:
    """For each (thread, time) the row of `nvtx` that is the innermost range around it, or -1: the last begun of the
    thread's ranges that are open then (of those begun together, the one that ends first).

    Ranges need not nest: each domain of a thread has its own stack, and start/end ranges overlap as they please.
    """
    result = np.full(len(time), -1, dtype=np.int64)
    if not len(nvtx):
        return result
    of_range, of_time = _by_thread(nvtx["global_tid"].to_numpy()), _by_thread(global_tid)
    for tid, own in of_time.items():
        rows = of_range.get(tid)
        if rows is None:
            continue
        start, end = nvtx["start_ns"].to_numpy()[rows], nvtx["end_ns"].to_numpy()[rows]
        order = np.lexsort((-end, start))
        rows, start, end = rows[order], start[order], end[order]
        begun = np.searchsorted(start, time[own], side="right")
        index = _last_above(end, begun, time[own])
        result[own[index >= 0]] = rows[index[index >= 0]]
    return result


def _last_above(values: IntArray, stop: IntArray, limit: IntArray) -> IntArray:
    """For each (stop, limit) the index of the last of `values[:stop]` that is greater than `limit`, or -1."""
    # Maxima of 1, 2, 4, … values: up until a block holds one, then down to it.
    maxima = [values]
    while len(maxima[-1]) > 1:
        if len(maxima[-1]) % 2:
            maxima[-1] = np.append(maxima[-1], np.iinfo(np.int64).min)
        maxima.append(np.maximum(maxima[-1][::2], maxima[-1][1::2]))
    result = np.full(len(stop), -1, dtype=np.int64)
    found_at = np.full(len(stop), -1, dtype=np.int64)
    searching = np.flatnonzero(stop > 0)
    blocks_left = stop.copy()
    for level, of_level in enumerate(maxima):
        last = searching[blocks_left[searching] % 2 == 1]
        hit = last[of_level[blocks_left[last] - 1] > limit[last]]
        result[hit], found_at[hit] = blocks_left[hit] - 1, level
        blocks_left[searching] //= 2
        searching = searching[(found_at[searching] < 0) & (blocks_left[searching] > 0)]
    for level in range(len(maxima) - 1, 0, -1):
        going_down = np.flatnonzero(found_at >= level)
        second = 2 * result[going_down] + 1
        result[going_down] = np.where(maxima[level - 1][second] > limit[going_down], second, second - 1)
    return result


def _by_thread(global_tid: IntArray) -> dict[int, IntArray]:
    """For each thread its rows, in order."""
    order = np.argsort(global_tid, kind="stable")
    tids, first = np.unique(global_tid[order], return_index=True)
    return dict(zip(tids.tolist(), np.split(order, first[1:]), strict=False))
