"""Where a device's time went: busy, and gaps that are host-late or device-side (DESIGN.md section 2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from nsys_sync.analysis.calls import Calls
from nsys_sync.analysis.intervals import (
    EMPTY,
    IntArray,
    Intervals,
    gaps_between,
    intersect,
    subtract,
    union,
    union_of_sorted,
)
from nsys_sync.analysis.lost_events import LostEvents
from nsys_sync.trace.tables import BoolArray, Trace, blocks


@dataclass(frozen=True)
class DeviceTime:
    """One device. `busy` and `gaps` partition [window_start, window_end).

    `closing_call[g]` launched the activity that ends gap g, -1 where its launch is not in the trace; `host_late[g]`
    says that the host had queued nothing when the gap began. `overhead` are the profiler's own pauses in processes
    that use the device, and `not_captured` parts of gaps in which events of these processes are missing; the two have
    nothing in common. `communication` is the part of `busy` in which nothing but kernels of NCCL ran, None where the
    kernels have no names. `launches[c]` says that call c launched work here; `process_ids` are the processes with
    rows on the device.
    """

    device_id: int
    window_start: int
    window_end: int
    busy: Intervals
    gaps: Intervals
    closing_call: IntArray
    host_late: BoolArray
    overhead: Intervals
    not_captured: Intervals
    communication: Intervals | None
    launches: BoolArray
    process_ids: IntArray

    @property
    def not_idle(self) -> Intervals:
        """What is cut out of gaps before they are charged to anyone."""
        if not len(self.not_captured):
            return self.overhead
        both = (self.overhead, self.not_captured)
        return union(np.concatenate([one.start for one in both]), np.concatenate([one.end for one in both]))


def device_times(trace: Trace, calls: Calls, is_sync_call: BoolArray, lost: LostEvents) -> list[DeviceTime]:
    """One entry a device that has any activity with a length, in order of the device id."""
    device = trace.gpu["device_id"].to_numpy()
    result = []
    devices = sorted(pd.unique(device).tolist())
    for device_id in devices:
        rows = slice(None) if len(devices) == 1 else np.flatnonzero(device == device_id)
        one = _device_time(trace, calls, is_sync_call, lost, device_id, rows)
        if one is not None:
            result.append(one)
    return result


def _device_time(
    trace: Trace, calls: Calls, is_sync_call: BoolArray, lost: LostEvents, device_id: int, rows: IntArray | slice
) -> DeviceTime | None:
    start, end = trace.gpu["start_ns"].to_numpy()[rows], trace.gpu["end_ns"].to_numpy()[rows]
    launched_by = calls.launched_by[rows]
    process_ids = np.sort(pd.unique(trace.gpu["process"].to_numpy()[rows]))
    active = end > start
    if not active.all():
        start, end, active_launch = start[active], end[active], launched_by[active]
    else:
        active_launch = launched_by
    order = np.argsort(start, kind="stable")
    start = start[order]
    busy = union_of_sorted(start, end[order])
    if not len(busy):
        return None
    gaps = gaps_between(busy)
    closing = _first_launched(calls, start, active_launch[order], gaps.end)
    host_late = closing >= 0
    for block in blocks(len(gaps)):
        late, call = host_late[block], closing[block]
        late[late] = (calls.start[call[late]] > gaps.start[block][late]) | is_sync_call[call[late]]
    own = np.isin(trace.overhead["process"].to_numpy(), process_ids)
    overhead = (
        union(trace.overhead["start_ns"].to_numpy()[own], trace.overhead["end_ns"].to_numpy()[own])
        if own.any()
        else EMPTY
    )
    all_starts = trace.gpu["start_ns"].to_numpy()[rows]
    finished_launch = np.where(trace.gpu["unfinished"].to_numpy()[rows], -1, launched_by)
    not_captured = intersect(gaps, lost.on_device(calls, finished_launch, all_starts))[0]
    return DeviceTime(
        device_id=device_id,
        window_start=int(busy.start[0]),
        window_end=int(busy.end[-1]),
        busy=busy,
        gaps=gaps,
        closing_call=closing,
        host_late=host_late,
        overhead=subtract(overhead, not_captured)[0],
        not_captured=not_captured,
        communication=_communication_alone(trace, rows),
        launches=calls.that_launched(launched_by),
        process_ids=process_ids,
    )


def _communication_alone(trace: Trace, rows: IntArray | slice) -> Intervals | None:
    if trace.communication is None:
        return None
    if not len(trace.communication):
        return EMPTY
    start, end = trace.gpu["start_ns"].to_numpy(), trace.gpu["end_ns"].to_numpy()
    here = np.zeros(len(start), dtype=bool)
    here[rows] = True
    communicates = np.zeros(len(start), dtype=bool)
    communicates[trace.communication] = True
    own, other = here & communicates, here & ~communicates
    return subtract(union(start[own], end[own]), union(start[other], end[other]))[0]


def _first_launched(calls: Calls, start: IntArray, launched_by: IntArray, moments: IntArray) -> IntArray:
    """For each moment, of the activities that begin then, the launch call that began first; -1 if none has one.

    `start` is sorted, and every moment occurs in it.
    """
    first = np.searchsorted(start, moments, side="left")
    result = launched_by[first]
    several = np.flatnonzero(np.append(start[1:] == start[:-1], False)[first])
    if len(several):
        tied = np.isin(start, moments[several])
        tied_start, tied_launch = start[tied], launched_by[tied]
        without = tied_launch < 0
        launch_start = np.zeros(len(tied_launch), dtype=np.int64)
        launch_start[~without] = calls.start[tied_launch[~without]]
        launch_end = np.zeros(len(tied_launch), dtype=np.int64)
        launch_end[~without] = calls.end[tied_launch[~without]]
        never_ended = np.zeros(len(tied_launch), dtype=bool)
        never_ended[~without] = calls.unfinished[tied_launch[~without]]
        # Calls are sorted by thread, so of calls with equal times the one of the lower thread comes first.
        order = np.lexsort((tied_launch, launch_end, never_ended, launch_start, without, tied_start))
        at = np.searchsorted(tied_start[order], moments[several], side="left")
        result[several] = tied_launch[order][at]
    return result
