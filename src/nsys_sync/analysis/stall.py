"""Charges the idle time of host-late gaps to the sync operations that caused it (the credit rule of DESIGN.md).

Each moment of a gap goes to the last eligible operation begun by then that has credit left; an operation's credit on
a device is the time it blocked. Taken gap by gap this is a stack that demands pop from the top. Here all gaps walk
down the stack at once: each has a pointer to the newest operation it may still use, and takes from it as soon as no
earlier gap can want it. That gives the same charges in a few rounds of array operations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nsys_sync.analysis.calls import Calls
from nsys_sync.analysis.device_time import DeviceTime
from nsys_sync.analysis.intervals import IntArray, Intervals, cut, subtract
from nsys_sync.analysis.operations import Operations
from nsys_sync.trace.tables import BoolArray

LAUNCH_QUEUE_DEPTH = 1024
"""Launches that CUDA queues before a launch blocks: the host cannot be further ahead (capture `run_ahead`)."""
BEFORE_ALL = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Charges:
    """Stall: [start, end) of a gap charged to `operation`. Pieces are disjoint, in no promised order."""

    operation: IntArray
    start: IntArray
    end: IntArray


@dataclass(frozen=True)
class HostBound:
    """Idle time of host-late gaps that no operation has credit for; `process` launched the work that ended the gap."""

    intervals: Intervals
    process: IntArray


def attribute(device: DeviceTime, calls: Calls, operations: Operations) -> tuple[Charges, HostBound]:
    """Charges every moment of the device's host-late gaps, profiler overhead aside."""
    late = Intervals(device.gaps.start[device.host_late], device.gaps.end[device.host_late])
    pieces, gap = subtract(late, device.overhead)
    closing = device.closing_call[device.host_late][gap]
    process = calls.process[closing]

    starts, piece_start, piece_end, closing_call, pointer = [], [], [], [], []
    bounds = np.searchsorted(operations.process, np.arange(len(calls.processes) + 1))
    for code in np.unique(process):
        first, stop = bounds[code], bounds[code + 1]
        own = process == code
        begun = operations.start[first:stop]
        cut_pieces, index = cut(Intervals(pieces.start[own], pieces.end[own]), begun)
        piece_start.append(cut_pieces.start)
        piece_end.append(cut_pieces.end)
        closing_call.append(closing[own][index])
        pointer.append(first + np.searchsorted(begun, cut_pieces.start, side="right") - 1)
        starts.append(np.full(len(index), first))
    if not piece_start:
        none = np.empty(0, dtype=np.int64)
        return Charges(none, none, none), HostBound(Intervals(none, none), none)
    return _walk_down(
        np.concatenate(piece_start),
        np.concatenate(piece_end),
        np.concatenate(closing_call),
        np.concatenate(pointer),
        np.concatenate(starts),
        _Eligibility(device, calls, operations),
        operations.end - operations.start,
        calls,
    )


def _walk_down(
    start: IntArray,
    end: IntArray,
    closing: IntArray,
    pointer: IntArray,
    lowest: IntArray,
    eligibility: _Eligibility,
    credit: IntArray,
    calls: Calls,
) -> tuple[Charges, HostBound]:
    """Pieces must be sorted by (process, start). `lowest` is the first operation of each piece's process."""
    charged_operation, charged_start, charged_end = [], [], []
    unpaid_start, unpaid_end, unpaid_process = [], [], []
    credit = credit.copy()
    while len(start):
        previous_alive = np.maximum.accumulate(np.where(credit > 0, np.arange(len(credit)), -1))
        while True:
            pointer = np.where(pointer >= lowest, previous_alive[pointer], -1) if len(credit) else pointer
            pointer = np.where((pointer >= lowest) & eligibility.any_left(closing, pointer), pointer, -1)
            searching = np.flatnonzero(pointer >= 0)
            refused = searching[~eligibility.allows(closing[searching], pointer[searching])]
            if not len(refused):
                break
            pointer[refused] -= 1
        exhausted = pointer < 0
        if exhausted.any():
            unpaid_start.append(start[exhausted])
            unpaid_end.append(end[exhausted])
            unpaid_process.append(calls.process[closing[exhausted]])
            keep = ~exhausted
            start, end, closing, pointer, lowest = (a[keep] for a in (start, end, closing, pointer, lowest))
            if not len(start):
                break
        # An earlier piece whose pointer is above this one's may still come down to it: wait for it.
        ready = np.flatnonzero(pointer >= np.maximum.accumulate(pointer))
        operation = pointer[ready]
        wanted = end[ready] - start[ready]
        asked_before = np.cumsum(wanted) - wanted
        first_of_group = np.searchsorted(operation, operation, side="left")
        asked_before -= asked_before[first_of_group]
        taken = np.clip(credit[operation] - asked_before, 0, wanted)
        some = taken > 0
        charged_operation.append(operation[some])
        charged_start.append(start[ready][some])
        charged_end.append((start[ready] + taken)[some])
        np.subtract.at(credit, operation, taken)
        start = start.copy()
        start[ready] += taken
        unpaid = start < end
        start, end, closing, pointer, lowest = (a[unpaid] for a in (start, end, closing, pointer, lowest))
    charges = Charges(*(_joined(parts) for parts in (charged_operation, charged_start, charged_end)))
    bound_start, bound_end, process = (_joined(parts) for parts in (unpaid_start, unpaid_end, unpaid_process))
    order = np.argsort(bound_start, kind="stable")
    return charges, HostBound(Intervals(bound_start[order], bound_end[order]), process[order])


def _joined(parts: list[IntArray]) -> IntArray:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


class _Eligibility:
    """Which operations may pay for a gap that a given launch call ends."""

    def __init__(self, device: DeviceTime, calls: Calls, operations: Operations) -> None:
        self._calls = calls
        self._operations = operations
        launch = device.launch_call
        self._times = np.unique(calls.start[launch])
        self._base = len(self._times) + 1
        rank = np.searchsorted(self._times, calls.start[launch])
        self._by_thread = np.sort(calls.thread[launch] * self._base + rank)
        self._by_process = np.sort(calls.process[launch] * self._base + rank)
        self._launches_by_end = self._launches_before(operations.process, operations.end, side="right")
        # Operations are sorted by start, but one on another thread may end later: the maximum over the older ones.
        self._launches_by_end_of_older = _cumulative_maximum(self._launches_by_end, operations.process)

    def _launches_before(self, process: IntArray, time: IntArray, side: str) -> IntArray:
        """How many launches on the device had begun before `time`, counted over this and all lower process codes."""
        rank = np.searchsorted(self._times, time, side="right" if side == "right" else "left")
        return np.searchsorted(self._by_process, process * self._base + rank, side="left")

    def any_left(self, closing: IntArray, operation: IntArray) -> BoolArray:
        """Whether `operation` or an older one of its process can still have credit that has not lapsed."""
        launches = self._launches_before(self._calls.process[closing], self._calls.start[closing], side="left")
        return launches - self._launches_by_end_of_older[operation] < LAUNCH_QUEUE_DEPTH

    def allows(self, closing: IntArray, operation: IntArray) -> BoolArray:
        """Whether the credit has not lapsed, and the operation's thread is the launching one or has handed over."""
        launches = self._launches_before(self._calls.process[closing], self._calls.start[closing], side="left")
        result = launches - self._launches_by_end[operation] < LAUNCH_QUEUE_DEPTH
        other = np.flatnonzero(result & (self._operations.thread[operation] != self._calls.thread[closing]))
        if len(other):
            result[other] = self._operations.start[operation[other]] >= self._handed_over_since(
                closing[other], self._operations.thread[operation[other]]
            )
        return result

    def _handed_over_since(self, closing: IntArray, other_thread: IntArray) -> IntArray:
        """The other thread's operations begun at or after this moment are followed by no launch of it, once the
        launching thread has launched again: the launching thread's last launch before the other thread's last one.
        """
        rank = np.searchsorted(self._times, self._calls.start[closing])
        others_last, found = self._last_launch(other_thread, rank)
        own_last, own_found = self._last_launch(self._calls.thread[closing], others_last)
        return np.where(found & own_found, self._times[own_last], BEFORE_ALL)

    def _last_launch(self, thread: IntArray, rank: IntArray) -> tuple[IntArray, BoolArray]:
        """The rank of the thread's last launch that began at or before `rank`, and whether there is one."""
        at = np.searchsorted(self._by_thread, thread * self._base + rank, side="right") - 1
        key = self._by_thread[np.maximum(at, 0)]
        found = (at >= 0) & (key // self._base == thread)
        return np.where(found, key % self._base, 0), found


def _cumulative_maximum(values: IntArray, group: IntArray) -> IntArray:
    """Running maximum within each run of equal `group` (sorted), for values below 2**40."""
    shifted = np.maximum.accumulate(values + (group << 40))
    return shifted - (group << 40)
