"""Whose the periodic Python samples are.

The profiler's sampler writes one event a Python thread and tick, all under its own thread id. So the thread is
inferred: in a process with one Python thread all are that thread's. Otherwise from the function that the thread began
in, since the stacks of CUDA calls tell which threads began in which function.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from nsys_sync.analysis.calls import Calls
from nsys_sync.analysis.intervals import IntArray
from nsys_sync.analysis.locate import has_one_python_thread
from nsys_sync.trace.tables import PythonEvents

THREAD_MACHINERY = re.compile(r"/(?:threading|concurrent/futures/thread)\.py$")
"""Every thread begins in these files: the first function outside them tells threads apart."""


@dataclass(frozen=True)
class Samples:
    """The periodic samples of processes that made CUDA calls, sorted by time. `process` is a code as in Calls.

    `owner` says whose a sample is, -1 where that cannot be told; `owner_of_thread[t]` is the owner that thread t of
    Calls has: its process where that has one Python thread (which then also stands for threads without Python).
    """

    event: IntArray
    time: IntArray
    process: IntArray
    owner: IntArray
    owner_of_thread: IntArray

    def __len__(self) -> int:
        return len(self.event)


def python_samples(python: PythonEvents, calls: Calls) -> Samples:
    event = np.flatnonzero(python.is_sample)
    event = event[np.argsort(python.start_ns[event], kind="stable")]
    process = _code(calls.processes, python.global_tid[event] >> 24)
    event, process = event[process >= 0], process[process >= 0]
    owner = np.full(len(event), -1, dtype=np.int64)
    processes = len(calls.processes)
    owner_of_thread = processes + np.arange(len(calls.global_tids))
    alone = np.zeros(processes, dtype=bool)
    for code in np.unique(process):
        own = process == code
        alone[code] = has_one_python_thread(python, event[own], int(calls.processes[code]))
    owner_of_thread[alone[calls.process_of_thread]] = calls.process_of_thread[alone[calls.process_of_thread]]
    owner[alone[process]] = process[alone[process]]
    several = np.flatnonzero(~alone[process])
    if len(several):
        thread = _thread_by_entry(python, calls, event[several], process[several])
        owner[several] = np.where(thread >= 0, processes + thread, -1)
    return Samples(event, python.start_ns[event], process, owner, owner_of_thread)


def _thread_by_entry(python: PythonEvents, calls: Calls, event: IntArray, process: IntArray) -> IntArray:
    """The thread (code) on which alone the exact stacks begin as the sample does; -1 without such a thread, and where
    two samples of one tick begin alike: then a thread without exact stacks runs the same function.
    """
    exact = np.flatnonzero(~python.is_sample)
    thread = _code(calls.global_tids, python.global_tid[exact])
    exact, thread = exact[thread >= 0], thread[thread >= 0]
    entries = pd.DataFrame(
        {"process": calls.process_of_thread[thread], "entry": _entries(python, exact), "thread": thread}
    ).drop_duplicates()
    entries = entries[~entries.duplicated(["process", "entry"], keep=False)]
    samples = pd.DataFrame({"process": process, "entry": _entries(python, event), "time": python.start_ns[event]})
    found = samples.merge(entries, on=["process", "entry"], how="left")["thread"].fillna(-1).to_numpy().astype(np.int64)
    twice = samples.duplicated(keep=False).to_numpy()
    found[np.isin(found, found[twice])] = -1
    return found


def _entries(python: PythonEvents, events: IntArray) -> IntArray:
    """A code for the function and file in which each event's thread began: the outermost outside THREAD_MACHINERY."""
    machinery = np.array([bool(THREAD_MACHINERY.search(path.replace("\\", "/"))) for path in python.files], dtype=bool)
    outermost = python.first[events] + python.count[events] - 1
    at = outermost.copy()
    walking = np.arange(len(events))
    while len(walking):
        walking = walking[machinery[python.frame_file[at[walking]]]]
        at[walking] -= 1
        ended = at[walking] < python.first[events[walking]]
        at[walking[ended]] = outermost[walking[ended]]
        walking = walking[~ended]
    function = python.frame_function[at].astype(np.int64)
    return np.asarray(function * len(python.files) + python.frame_file[at], dtype=np.int64)


def _code(known: IntArray, values: IntArray) -> IntArray:
    """The index of each value in `known` (sorted), -1 where it is not there."""
    if not len(known):
        return np.full(len(values), -1, dtype=np.int64)
    at = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return np.where(known[at] == values, at, -1)
