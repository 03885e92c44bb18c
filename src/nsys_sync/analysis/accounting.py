"""One owner for each nanosecond of a window: busy, stall, host-bound, device-side, profiler or not captured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nsys_sync.analysis.calls import Calls
from nsys_sync.analysis.device_time import DeviceTime, device_times
from nsys_sync.analysis.intervals import EMPTY, IntArray, Intervals, intersect, subtract, union
from nsys_sync.analysis.lost_events import LostEvents
from nsys_sync.analysis.operations import Operations
from nsys_sync.analysis.stall import attribute
from nsys_sync.errors import TraceError
from nsys_sync.trace.api_names import ApiClass
from nsys_sync.trace.tables import BoolArray, Trace


@dataclass(frozen=True)
class DeviceAccount:
    """`busy`, `stall`, `host_bound`, `device_side`, `profiler` and `time.not_captured` are disjoint and fill the
    device's window.

    `stall_operation[i]` is charged with stall piece i; `stall_process`, `host_bound_process` and `host_bound_thread`:
    whose launch ended the gap. `unknown` are stretches in which graphs ran that left no GPU row.
    """

    time: DeviceTime
    busy: Intervals
    stall: Intervals
    stall_operation: IntArray
    stall_process: IntArray
    host_bound: Intervals
    host_bound_process: IntArray
    host_bound_thread: IntArray
    device_side: Intervals
    device_side_has_launch: BoolArray
    profiler: Intervals
    unknown: Intervals


def account(
    trace: Trace, calls: Calls, operations: Operations, is_sync_call: BoolArray, lost: LostEvents
) -> list[DeviceAccount]:
    """One entry a device, in order of the device id."""
    unknown = _graphs_without_gpu_work(calls, operations)
    return [_account(device, calls, operations, unknown) for device in device_times(trace, calls, is_sync_call, lost)]


def of_device(trace: Trace, accounts: list[DeviceAccount], device: int | None) -> list[DeviceAccount]:
    """All accounts, or the chosen device's. Raises TraceError where that leaves nothing."""
    if not accounts:
        raise TraceError(f"{trace.name}: no GPU row has a length, so there is no GPU time to analyse. Capture again")
    chosen = [one for one in accounts if device is None or one.time.device_id == device]
    if not chosen:
        known = ", ".join(str(one.time.device_id) for one in accounts)
        raise TraceError(f"{trace.name}: has no activity of device {device}. Devices in this trace: {known}")
    return chosen


def _account(device: DeviceTime, calls: Calls, operations: Operations, unknown: dict[int, Intervals]) -> DeviceAccount:
    charges, host_bound = attribute(device, calls, operations)
    order = np.argsort(charges.start, kind="stable")
    not_late = ~device.host_late
    device_side, gap = subtract(Intervals(device.gaps.start[not_late], device.gaps.end[not_late]), device.not_idle)
    own_unknown = [unknown[code] for code in unknown if calls.processes[code] in device.process_ids]
    return DeviceAccount(
        time=device,
        busy=device.busy,
        stall=Intervals(charges.start[order], charges.end[order]),
        stall_operation=charges.operation[order],
        stall_process=operations.process[charges.operation[order]],
        host_bound=host_bound.intervals,
        host_bound_process=calls.process_of_thread[host_bound.thread],
        host_bound_thread=host_bound.thread,
        device_side=device_side,
        device_side_has_launch=device.closing_call[not_late][gap] >= 0,
        profiler=intersect(device.gaps, device.overhead)[0],
        unknown=union(
            np.concatenate([intervals.start for intervals in own_unknown]),
            np.concatenate([intervals.end for intervals in own_unknown]),
        )
        if own_unknown
        else EMPTY,
    )


def graph_launches_without_gpu_work(calls: Calls) -> IntArray:
    """Launches of CUDA graphs in processes of whose graphs no GPU row is in the trace: the export leaves them out."""
    launched = calls.that_launched(calls.launched_by)
    graphs = np.flatnonzero(calls.api_class == ApiClass.GRAPH_LAUNCH)
    traced = calls.process_of(graphs[launched[graphs]])
    return np.asarray(graphs[~np.isin(calls.process_of(graphs), traced)])


def _graphs_without_gpu_work(calls: Calls, operations: Operations) -> dict[int, Intervals]:
    """Process code → time in which such a graph may have run: from its launch until the process next waited for work
    and had it done, or for ever.
    """
    launches = graph_launches_without_gpu_work(calls)
    result = {}
    for code in np.unique(calls.process_of(launches)):
        start = calls.start[launches[calls.process_of(launches) == code]]
        waits = np.sort(operations.end[operations.process == code])
        at = np.searchsorted(waits, start, side="right")
        end = np.where(at < len(waits), waits[np.minimum(at, len(waits) - 1)] if len(waits) else 0, 2**62)
        result[int(code)] = union(start, end)
    return result
