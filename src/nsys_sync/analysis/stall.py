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
from nsys_sync.analysis.intervals import IntArray, Intervals, cut, distinct, subtract
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
    process = calls.process_of(closing)

    parts: dict[str, list[IntArray]] = {name: [] for name in ("start", "end", "closing", "pointer", "lowest")}
    bounds = np.searchsorted(operations.process, np.arange(len(calls.processes) + 1))
    for code in distinct(process):
        own = process == code
        begun = operations.start[bounds[code] : bounds[code + 1]]
        cut_pieces, index = cut(Intervals(pieces.start[own], pieces.end[own]), begun)
        parts["start"].append(cut_pieces.start)
        parts["end"].append(cut_pieces.end)
        parts["closing"].append(closing[own][index])
        parts["pointer"].append(bounds[code] + np.searchsorted(begun, cut_pieces.start, side="right") - 1)
        parts["lowest"].append(np.full(len(index), bounds[code]))
    joined = {name: _joined(arrays) for name, arrays in parts.items()}
    eligibility = _Eligibility(device, calls, operations, joined["closing"])
    charges, unpaid_piece, unpaid_start = _walk_down(
        joined["start"],
        joined["end"],
        joined["pointer"],
        joined["lowest"],
        eligibility,
        operations.end - operations.start,
    )
    order = np.argsort(unpaid_start, kind="stable")
    piece = unpaid_piece[order]
    host_bound = HostBound(
        Intervals(unpaid_start[order], joined["end"][piece]), calls.process_of(joined["closing"][piece])
    )
    return charges, host_bound


def _walk_down(
    start: IntArray, end: IntArray, pointer: IntArray, lowest: IntArray, eligibility: _Eligibility, credit: IntArray
) -> tuple[Charges, IntArray, IntArray]:
    """Pieces are sorted by (process, start); `pointer` is the newest operation begun by a piece's start, `lowest` the
    first operation of its process. Returns the charges, and the pieces not paid in full with where the rest begins.
    """
    charged_operation, charged_start, charged_end, unpaid = [], [], [], []
    start, credit = start.copy(), credit.copy()
    active, numbers = np.arange(len(start)), np.arange(len(credit))
    searching = np.arange(len(active))
    while len(active):
        newest_with_credit = np.maximum.accumulate(np.where(credit > 0, numbers, -1))
        while len(searching):
            candidate = pointer[searching]
            reachable = np.flatnonzero(candidate >= lowest[active[searching]])
            candidate[reachable] = newest_with_credit[candidate[reachable]]
            candidate[candidate < lowest[active[searching]]] = -1
            pointer[searching] = candidate
            searching = searching[candidate >= 0]
            piece, operation = active[searching], pointer[searching]
            refused = ~eligibility.allows(piece, operation)
            searching, piece, operation = searching[refused], piece[refused], operation[refused]
            pointer[searching] = np.where(eligibility.any_left(piece, operation), operation - 1, -1)
        unpaid.append(active[pointer < 0])
        active, pointer = active[pointer >= 0], pointer[pointer >= 0]
        # An earlier piece whose pointer is above this one's may still come down to it: wait for it.
        ready = np.flatnonzero(pointer >= np.maximum.accumulate(pointer))
        piece, operation = active[ready], pointer[ready]
        wanted = end[piece] - start[piece]
        asked_before = np.cumsum(wanted) - wanted
        first_of_group = np.concatenate(([True], operation[1:] != operation[:-1]))[: len(operation)]
        asked_before -= asked_before[np.maximum.accumulate(np.where(first_of_group, np.arange(len(operation)), 0))]
        taken = np.clip(credit[operation] - asked_before, 0, wanted)
        some = taken > 0
        charged_operation.append(operation[some])
        charged_start.append(start[piece][some])
        charged_end.append((start[piece] + taken)[some])
        np.subtract.at(credit, operation, taken)
        start[piece] += taken
        paid = start[active] == end[active]
        active, pointer = active[~paid], pointer[~paid]
        searching = np.flatnonzero(credit[pointer] == 0)
    unpaid_piece = _joined(unpaid)
    charges = Charges(_joined(charged_operation), _joined(charged_start), _joined(charged_end))
    return charges, unpaid_piece, start[unpaid_piece]


def _joined(parts: list[IntArray]) -> IntArray:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


class _Eligibility:
    """Which operations may pay for a piece of a gap, by the call that launched the work ending that gap."""

    def __init__(self, device: DeviceTime, calls: Calls, operations: Operations, closing: IntArray) -> None:
        launch = device.launch_call
        self._times = distinct(calls.start[launch])
        self._base = len(self._times) + 1
        rank = np.searchsorted(self._times, calls.start[launch])
        self._by_thread = calls.thread[launch] * self._base + rank  # sorted: calls are, by thread and start
        self._by_process = np.sort(calls.process_of(launch) * self._base + rank, kind="stable")

        self._operation_start = operations.start
        self._operation_thread = operations.thread
        self._launches_by_end = self._launches_before(
            operations.process, np.searchsorted(self._times, operations.end, side="right")
        )
        # Operations are sorted by start, but one on another thread may end later: the maximum over the older ones.
        self._launches_by_end_of_older = _cumulative_maximum(self._launches_by_end, operations.process)

        self._thread = calls.thread[closing]
        self._rank = np.searchsorted(self._times, calls.start[closing])
        self._launches = self._launches_before(calls.process_of(closing), self._rank)

    def _launches_before(self, process: IntArray, rank: IntArray) -> IntArray:
        """How many launches of lower rank there are, counted over this process and all lower process codes."""
        return np.searchsorted(self._by_process, process * self._base + rank, side="left")

    def any_left(self, piece: IntArray, operation: IntArray) -> BoolArray:
        """Whether `operation` or an older one of its process can still have credit that has not lapsed."""
        return self._launches[piece] - self._launches_by_end_of_older[operation] < LAUNCH_QUEUE_DEPTH

    def allows(self, piece: IntArray, operation: IntArray) -> BoolArray:
        """Whether the credit has not lapsed, and the operation's thread is the launching one or has handed over."""
        result = self._launches[piece] - self._launches_by_end[operation] < LAUNCH_QUEUE_DEPTH
        other = np.flatnonzero(result & (self._operation_thread[operation] != self._thread[piece]))
        if len(other):
            since = self._handed_over_since(piece[other], self._operation_thread[operation[other]])
            result[other] = self._operation_start[operation[other]] >= since
        return result

    def _handed_over_since(self, piece: IntArray, other_thread: IntArray) -> IntArray:
        """The launching thread's last launch before the other thread's last one: after an operation that the other
        thread began since then, it launched nothing once the launching thread had launched again.
        """
        others_last, found = self._last_launch(other_thread, self._rank[piece])
        own_last, own_found = self._last_launch(self._thread[piece], others_last)
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
    return np.asarray(shifted - (group << 40), dtype=np.int64)
