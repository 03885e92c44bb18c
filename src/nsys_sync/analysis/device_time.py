"""Where a device's time went: busy, and gaps that are host-late or device-side (DESIGN.md section 2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nsys_sync.analysis.calls import Calls
from nsys_sync.analysis.intervals import EMPTY, IntArray, Intervals, gaps_between, subtract, union
from nsys_sync.trace.tables import BoolArray, Trace


@dataclass(frozen=True)
class DeviceTime:
    """One device. `busy` and `gaps` partition [window_start, window_end).

    `closing_call[g]` launched the activity that ends gap g, -1 where its launch is not in the trace; `host_late[g]`
    says that the host had queued nothing when the gap began. `overhead` are the profiler's own pauses in processes
    that use the device. `launch_call` are the distinct calls that launched work here, in order of their start;
    `process` the processes (codes of Calls, -1 without any API call) with rows on the device.
    """

    device_id: int
    window_start: int
    window_end: int
    busy: Intervals
    gaps: Intervals
    closing_call: IntArray
    host_late: BoolArray
    overhead: Intervals
    launch_call: IntArray
    process_ids: IntArray


def device_times(trace: Trace, calls: Calls, is_sync_call: BoolArray) -> list[DeviceTime]:
    """One entry a device that has any activity with a length, in order of the device id."""
    device = trace.gpu["device_id"].to_numpy()
    result = []
    for device_id in np.unique(device):
        one = _device_time(trace, calls, is_sync_call, int(device_id), np.flatnonzero(device == device_id))
        if one is not None:
            result.append(one)
    return result


def _device_time(
    trace: Trace, calls: Calls, is_sync_call: BoolArray, device_id: int, rows: IntArray
) -> DeviceTime | None:
    start, end = trace.gpu["start_ns"].to_numpy()[rows], trace.gpu["end_ns"].to_numpy()[rows]
    launched_by = calls.launched_by[rows]
    process_ids = np.unique(trace.gpu["process"].to_numpy()[rows])
    active = end > start
    busy = union(start[active], end[active])
    if not len(busy):
        return None
    gaps = gaps_between(busy)
    closing = _first_launched(calls, start[active], launched_by[active], gaps.end)
    has_launch = closing >= 0
    host_late = has_launch & ((calls.start[closing] > gaps.start) | is_sync_call[closing])
    own = np.isin(trace.overhead["process"].to_numpy(), process_ids)
    overhead = (
        union(trace.overhead["start_ns"].to_numpy()[own], trace.overhead["end_ns"].to_numpy()[own])
        if own.any()
        else EMPTY
    )
    launch_call = np.unique(launched_by[launched_by >= 0])
    return DeviceTime(
        device_id=device_id,
        window_start=int(busy.start[0]),
        window_end=int(busy.end[-1]),
        busy=busy,
        gaps=gaps,
        closing_call=closing,
        host_late=host_late,
        overhead=overhead,
        launch_call=launch_call[np.argsort(calls.start[launch_call], kind="stable")],
        process_ids=process_ids,
    )


def _first_launched(calls: Calls, start: IntArray, launched_by: IntArray, moments: IntArray) -> IntArray:
    """For each moment, of the activities that begin then, the launch call that began first; -1 if none has one."""
    if not len(moments):
        return np.empty(0, dtype=np.int64)
    ends_a_gap = np.isin(start, moments)
    start, launched_by = start[ends_a_gap], launched_by[ends_a_gap]
    without = launched_by < 0
    launch_start = np.where(without, 0, calls.start[launched_by])
    order = np.lexsort((launched_by, launch_start, without, start))
    return launched_by[order][np.searchsorted(start[order], moments, side="left")]


def without_overhead(intervals: Intervals, overhead: Intervals) -> tuple[Intervals, IntArray]:
    """The parts in which the profiler did not pause the program, and the index of the interval that each came from."""
    return subtract(intervals, overhead)
