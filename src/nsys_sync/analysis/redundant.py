"""Explicit waits for nothing: all GPUs of the process were idle throughout, and nothing was queued."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from nsys_sync.analysis.accounting import DeviceAccount
from nsys_sync.analysis.calls import Calls
from nsys_sync.analysis.intervals import NONE, IntArray
from nsys_sync.trace.api_names import SYNCS, base_name
from nsys_sync.trace.tables import BoolArray

if TYPE_CHECKING:
    from nsys_sync.analysis.attributed import Attributed

HOST_WORK_IN_STREAM = re.compile(r"(cuda|cu)(LaunchHostFunc|StreamAddCallback|StreamWaitValue)")
DEVICE_SYNC = re.compile(r"cuda(Device|Thread)Synchronize$|cuCtxSynchronize$")
DEVICE_TO_HOST = 2
QUEUED, NEVER = np.iinfo(np.int64).min, np.iinfo(np.int64).max
"""Stand for a launch before every wait (work of unknown launch may have been queued), and for none at all."""


def redundant_operations(one: Attributed) -> tuple[BoolArray, BoolArray]:
    """For each operation of the trace whether it is a redundant wait, and whether that can be told at all.

    Redundant: an explicit wait without a copy; on every device that the process used, nothing ran from its start to
    its end, and the work that ran next was launched after it began. Where the process has copied to the host without
    waiting since it last waited for the whole device, the wait is what makes that copy safe to read, even if it is
    over. Before a device's first activity nothing is claimed: work from before the capture is not on record. Cannot be
    told where a device of the process has no idle figure or is not among those chosen, and where the process has no GPU
    work on record or lets its streams wait for the host; nor where the thread's events are lost.
    """
    operations, calls = one.operations, one.calls
    candidate = np.isin(calls.api_class[operations.call], SYNCS)
    candidate &= operations.copy_call < 0
    process = calls.processes[operations.process]
    known = np.zeros(len(operations), dtype=bool)
    for account in one.accounts:
        known |= np.isin(process, account.time.process_ids)
    known &= ~np.isin(process, np.concatenate((_on_other_devices(one), _with_host_work_in_streams(one))))
    known &= ~one.lost.holds(operations.thread, operations.start)
    candidate &= ~_guards_a_copy(one)
    for account in one.accounts:
        uses = np.isin(process, account.time.process_ids)
        if one.refusal(account):
            known &= ~uses
        asked = np.flatnonzero(candidate & uses)
        candidate[asked] = _nothing_to_wait_for(account, calls, operations.start[asked], operations.end[asked])
    return candidate & known, known


def _guards_a_copy(one: Attributed) -> BoolArray:
    """Which operations follow an asynchronous copy to the host that no wait for the device came after."""
    operations, calls, copies = one.operations, one.calls, one.trace.copies
    to_host = copies["gpu_row"].to_numpy()[copies["copy_kind"].to_numpy() == DEVICE_TO_HOST]
    call = np.unique(calls.launched_by[to_host])
    call = np.setdiff1d(call[call >= 0], operations.copy_call)
    waits_for_device = [DEVICE_SYNC.match(base_name(name)) is not None for name in one.trace.api_names]
    device_wait = np.array([*waits_for_device, False], dtype=bool)[calls.name_of(operations.call)]
    result = np.zeros(len(operations), dtype=bool)
    for code in np.unique(operations.process) if len(call) else []:
        own = np.flatnonzero(operations.process == code)
        copied = np.sort(calls.start[call[calls.process_of(call) == code]])
        waited = np.sort(operations.end[own][device_wait[own]])
        last_wait = np.searchsorted(waited, operations.start[own], side="right")
        since = np.where(last_wait > 0, waited[np.maximum(last_wait - 1, 0)] if len(waited) else QUEUED, QUEUED)
        until = np.searchsorted(copied, operations.start[own], side="left")
        result[own] = until > np.searchsorted(copied, since, side="left")
    return result


def _on_other_devices(one: Attributed) -> IntArray:
    """The processes with work on a device that was not chosen."""
    if one.options.device is None:
        return NONE
    gpu = one.trace.gpu
    return np.asarray(pd.unique(gpu["process"].to_numpy()[gpu["device_id"].to_numpy() != one.options.device]))


def _with_host_work_in_streams(one: Attributed) -> IntArray:
    """The processes whose streams can wait for the host: a synchronize then waits although the GPU is idle."""
    calls = one.calls
    call = calls.named(HOST_WORK_IN_STREAM.match(base_name(name)) is not None for name in one.trace.api_names)
    return np.asarray(calls.processes[np.unique(calls.process_of(call))])


def _nothing_to_wait_for(account: DeviceAccount, calls: Calls, start: IntArray, end: IntArray) -> BoolArray:
    time = account.time
    next_launch = np.full(len(start), QUEUED)
    gap = np.searchsorted(time.gaps.start, start, side="right") - 1
    in_gap = np.flatnonzero(gap >= 0)  # where something runs at the start, `idle` says no
    closing = time.closing_call[gap[in_gap]]
    next_launch[in_gap] = np.where(closing >= 0, calls.start[closing], QUEUED)
    next_launch[start >= time.window_end] = NEVER
    idle = account.busy.within(start, end) == 0
    return np.asarray(idle & (next_launch > start))
