"""Charges the idle time of host-late gaps to the sync operations that caused it (the credit rule of DESIGN.md).

Each moment of a gap goes to the last eligible operation begun by then that has credit left; an operation's credit on
a device is the time it blocked. Taken gap by gap this is a stack that demands pop from the top. Here many gaps walk
down the stack at once: each has a pointer to the newest operation it may still use, and takes from it as soon as no
earlier gap can want it. That gives the same charges in a few rounds of array operations. The gaps after those then
find the credit that they left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from nsys_sync.analysis.calls import Calls
from nsys_sync.analysis.device_time import DeviceTime
from nsys_sync.analysis.intervals import IntArray, Intervals, cut, distinct, subtract
from nsys_sync.analysis.operations import Operations
from nsys_sync.trace.tables import BoolArray, blocks

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
    """Idle time of host-late gaps that no operation has credit for; `thread` launched the work that ended the gap."""

    intervals: Intervals
    thread: IntArray


def attribute(device: DeviceTime, calls: Calls, operations: Operations) -> tuple[Charges, HostBound]:
    """Charges every moment of the device's host-late gaps, profiler overhead and what was not captured aside."""
    late = Intervals(device.gaps.start[device.host_late], device.gaps.end[device.host_late])
    pieces, gap = subtract(late, device.not_idle)
    closing = device.closing_call[device.host_late][gap]
    process = calls.process_of(closing)

    charges: list[Charges] = []
    host_bound: list[HostBound] = []
    for code in distinct(process).tolist():
        launches = _launches(device, calls, code)
        first, payers = _payers(operations, code, launches)
        own = np.flatnonzero(process == code)
        for block in blocks(len(own)):
            chosen = own[block]
            uncut = Intervals(pieces.start[chosen], pieces.end[chosen])
            launch = closing[chosen]
            # Clocks of CPU and GPU can differ: work that begins before its launch call was launched when it began.
            launched = np.minimum(calls.start[launch], late.end[gap[chosen]])
            charged, unpaid = _charge(uncut, launched, calls.thread[launch], launches, payers)
            charges.append(Charges(charged.operation + first, charged.start, charged.end))
            host_bound.append(unpaid)
    start = _joined([one.intervals.start for one in host_bound])
    order = np.argsort(start, kind="stable")
    end = _joined([one.intervals.end for one in host_bound])
    return (
        Charges(
            _joined([one.operation for one in charges]),
            _joined([one.start for one in charges]),
            _joined([one.end for one in charges]),
        ),
        HostBound(Intervals(start[order], end[order]), _joined([one.thread for one in host_bound])[order]),
    )


def _joined(parts: list[IntArray]) -> IntArray:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class _Launches:
    """When one process launched work on the device: sorted over all its threads, and by thread after BEFORE_ALL."""

    of_process: IntArray
    of_thread: dict[int, IntArray]

    def last(self, thread: IntArray, time: IntArray) -> IntArray:
        """When each thread last launched at or before `time`; BEFORE_ALL if it never had."""
        result = np.empty(len(time), dtype=np.int64)
        order = np.argsort(thread, kind="stable")
        for own in np.split(order, np.flatnonzero(np.diff(thread[order])) + 1):
            starts = self.of_thread[int(thread[own[0]])]
            result[own] = starts[np.searchsorted(starts, time[own], side="right") - 1]
        return result


def _launches(device: DeviceTime, calls: Calls, process: int) -> _Launches:
    of_thread = {}
    for thread in np.flatnonzero(calls.process_of_thread == process).tolist():
        own = slice(*calls.of_thread(thread))
        of_thread[thread] = np.concatenate(([BEFORE_ALL], calls.start[own][device.launches[own]]))
    of_process = np.concatenate([starts[1:] for starts in of_thread.values()])
    of_process.sort(kind="stable")
    return _Launches(of_process, of_thread)


@dataclass(frozen=True)
class _Payers:
    """Operations of one process, sorted by start. `credit` is what each has left: charging takes from it."""

    start: IntArray
    thread: IntArray
    launches_by_end: IntArray
    launches_by_end_of_older: IntArray
    credit: IntArray

    def part(self, own: slice) -> _Payers:
        return replace(self, **{name: values[own] for name, values in vars(self).items()})


def _payers(operations: Operations, process: int, launches: _Launches) -> tuple[int, _Payers]:
    """The process's operations, and the index of the first."""
    first, stop = np.searchsorted(operations.process, (process, process + 1)).tolist()
    start, end = operations.start[first:stop], operations.end[first:stop]
    launches_by_end = np.searchsorted(launches.of_process, end, side="right")
    return first, _Payers(
        start=start,
        thread=operations.thread[first:stop],
        launches_by_end=launches_by_end,
        # Operations are sorted by start, but one on another thread may end later: the maximum over the older ones.
        launches_by_end_of_older=np.maximum.accumulate(launches_by_end),
        credit=end - start,
    )


def _charge(
    uncut: Intervals, launch_start: IntArray, launch_thread: IntArray, launches: _Launches, payers: _Payers
) -> tuple[Charges, HostBound]:
    """Charges pieces of gaps, each with the call that launched the work after it. Returns also what is left unpaid."""
    pieces, index = cut(uncut, payers.start)
    pointer = np.searchsorted(payers.start, pieces.start, side="right") - 1
    launches_before = np.searchsorted(launches.of_process, launch_start, side="left")
    # All credit older than this has lapsed: pieces of one part of the trace look at operations of that part alone.
    oldest = np.searchsorted(payers.launches_by_end_of_older, launches_before.min() - LAUNCH_QUEUE_DEPTH, side="right")
    payers = payers.part(slice(oldest, pointer[-1] + 1))
    eligibility = _Eligibility(launches, payers, launch_start[index], launch_thread[index], launches_before[index])
    charges, unpaid = _walk_down(pieces, np.maximum(pointer - oldest, -1), eligibility, payers.credit)
    return Charges(charges.operation + oldest, charges.start, charges.end), unpaid


def _walk_down(
    pieces: Intervals, pointer: IntArray, eligibility: _Eligibility, credit: IntArray
) -> tuple[Charges, HostBound]:
    """`pointer` is the newest operation begun by a piece's start, -1 without one. Takes what is charged from `credit`,
    and returns the charges and what is left of the pieces not paid in full.
    """
    charged_operation, charged_start, charged_end, unpaid = [], [], [], []
    start, end = pieces.start.copy(), pieces.end
    active, numbers = np.arange(len(start)), np.arange(len(credit))
    searching = np.flatnonzero(pointer >= 0)
    while len(active):
        newest_with_credit = np.maximum.accumulate(np.where(credit > 0, numbers, -1))
        while len(searching):
            candidate = newest_with_credit[pointer[searching]]
            pointer[searching] = candidate
            searching, candidate = searching[candidate >= 0], candidate[candidate >= 0]
            piece = active[searching]
            refused = ~eligibility.allows(piece, candidate)
            searching, piece, candidate = searching[refused], piece[refused], candidate[refused]
            pointer[searching] = np.where(eligibility.any_left(piece, candidate), candidate - 1, -1)
            searching = searching[pointer[searching] >= 0]
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
    rest = np.sort(_joined(unpaid))
    charges = Charges(_joined(charged_operation), _joined(charged_start), _joined(charged_end))
    return charges, HostBound(Intervals(start[rest], end[rest]), eligibility.launch_thread[rest])


@dataclass(frozen=True)
class _Eligibility:
    """Which operations may pay for a piece of a gap, by the call that launched the work ending that gap."""

    launches: _Launches
    payers: _Payers
    launch_start: IntArray
    launch_thread: IntArray
    launches_before: IntArray

    def any_left(self, piece: IntArray, operation: IntArray) -> BoolArray:
        """Whether `operation` or an older one of its process can still have credit that has not lapsed."""
        since = self.launches_before[piece] - self.payers.launches_by_end_of_older[operation]
        return np.asarray(since < LAUNCH_QUEUE_DEPTH)

    def allows(self, piece: IntArray, operation: IntArray) -> BoolArray:
        """Whether the credit has not lapsed, and the operation's thread is the launching one or has handed over."""
        result = self.launches_before[piece] - self.payers.launches_by_end[operation] < LAUNCH_QUEUE_DEPTH
        other = np.flatnonzero(result & (self.payers.thread[operation] != self.launch_thread[piece]))
        if len(other):
            piece, operation = piece[other], operation[other]
            since = self._handed_over_since(piece, self.payers.thread[operation])
            result[other] = self.payers.start[operation] >= since
        return result

    def _handed_over_since(self, piece: IntArray, other_thread: IntArray) -> IntArray:
        """The launching thread's last launch before the other thread's last one: after an operation that the other
        thread began since then, it launched nothing once the launching thread had launched again.
        """
        others_last = self.launches.last(other_thread, self.launch_start[piece])
        return self.launches.last(self.launch_thread[piece], others_last)
