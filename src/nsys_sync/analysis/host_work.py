"""Host-bound time explained: what Python and CUDA calls were at while the GPU waited for the launching thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from nsys_sync import model
from nsys_sync.analysis.calls import PID_MASK, Calls
from nsys_sync.analysis.intervals import IntArray, Intervals, distinct, intersect, union
from nsys_sync.analysis.locate import innermost_user_frame, user_files
from nsys_sync.analysis.python_work import (
    BLOCK_UNTIL_READY,
    OTHER_WORK,
    WAIT_RULES,
    WAITING,
    WAITING_FOR_JAX,
    WORK_RULES,
    matching_rule,
)
from nsys_sync.analysis.samples import Samples, python_samples
from nsys_sync.analysis.user_code import cut, python_location
from nsys_sync.trace.api_names import base_name
from nsys_sync.trace.tables import BoolArray

if TYPE_CHECKING:
    from nsys_sync.analysis.attributed import Attributed

SLOW_CALLS = {
    **dict.fromkeys(("cudaHostAlloc", "cudaMallocHost", "cuMemHostAlloc", "cuMemAllocHost"), "pinned-allocation"),
}
"""Calls that are no sync operation, and the cause that says why they take long."""
LISTED_LINES = 20
LISTED_CALLS_RATIO = 0.01
LISTED_CALLS_NS = 100_000
HOW_TO_SAMPLE = "capture with nsys profile --python-sampling=true (nsys-sync profile does)"

LineText = Callable[[str, int], str | None]
"""(path as in the trace, line number) → the text of that line as it ran, None where it is not known."""


def no_source(path: str, line: int) -> str | None:
    return None


@dataclass(frozen=True)
class _HostBound:
    """Host-bound intervals of one device inside the selection, and the thread that launched the work ending each."""

    intervals: Intervals
    thread: IntArray


def host_work(one: Attributed, line_text: LineText = no_source) -> model.HostWork | None:
    """What the host did in the host-bound time of all devices shown; None where no device has an idle figure.

    With `--pid`, that of gaps which this process ended. Times and samples are summed over the devices: a sample counts
    once for each device that waited then. The first 20 lines are given; `HostWork.samples` counts them all.
    """
    accounts = [account for account in one.accounts if one.refusal(account) is None]
    if not accounts:
        return None
    parts = []
    for account in accounts:
        intervals, index = one.clipped(account.host_bound)
        thread = account.host_bound_thread[index]
        kept = _of_process(one, one.calls.process_of_thread[thread])
        parts.append(_HostBound(Intervals(intervals.start[kept], intervals.end[kept]), thread[kept]))
    total = sum(part.intervals.total_ns for part in parts)
    samples = python_samples(one.trace.python, one.calls)
    during = np.concatenate([_samples_during(samples, part) for part in parts])
    return model.HostWork(
        host_bound_ns=total,
        samples=len(during),
        sampling_period_ns=one.trace.metadata.python_sampling_period_ns,
        lines=_lines(one, samples.event[during], total, line_text),
        not_sampled=None if len(during) or not total else _why_not_sampled(one, samples, parts),
        calls=_calls(one, parts, total),
        hidden_waits=_hidden_waits(one, samples, line_text),
    )


def _of_process(one: Attributed, process: IntArray) -> BoolArray:
    """Which of the process codes are shown."""
    if one.options.pid is None:
        return np.ones(len(process), dtype=bool)
    return np.asarray((one.calls.processes[process] & PID_MASK) == one.options.pid)


def _samples_during(samples: Samples, part: _HostBound) -> IntArray:
    """The samples of launching threads taken in the host-bound time that their own launch ended."""
    at = _containing(part.intervals, samples.time)
    inside = np.flatnonzero((at >= 0) & (samples.owner >= 0))
    launching = samples.owner_of_thread[part.thread[at[inside]]]
    during: IntArray = inside[launching == samples.owner[inside]]
    return during


def _containing(intervals: Intervals, time: IntArray) -> IntArray:
    """The index of the interval around each time, -1 outside all."""
    if not len(intervals):
        return np.full(len(time), -1, dtype=np.int64)
    at = np.searchsorted(intervals.start, time, side="right") - 1
    return np.where((at >= 0) & (time < intervals.end[at]), at, -1)


def _why_not_sampled(one: Attributed, samples: Samples, parts: Sequence[_HostBound]) -> str:
    python = one.trace.python
    if python.refused:
        return python.refused
    if not python.is_sample.any():
        return f"the capture holds no Python samples: {HOW_TO_SAMPLE}"
    taken = [
        (at >= 0) & (one.calls.process_of_thread[part.thread[at]] == samples.process)
        for part in parts
        for at in [_containing(part.intervals, samples.time)]
        if len(part.intervals)
    ]
    if not np.any(taken):
        return "no Python sample of the process that launched was taken in host-bound time"
    return (
        "several Python threads ran, and a sample does not say whose it is: none could be told to be of the thread "
        "that launched the GPU work"
    )


def _lines(one: Attributed, event: IntArray, total_ns: int, line_text: LineText) -> tuple[model.HostLine, ...]:
    """The lines of the samples taken in host-bound time, `event` with repeats."""
    if not len(event):
        return ()
    python = one.trace.python
    used, inverse = np.unique(event, return_inverse=True)
    frame, user_frame = _location_frames(one, used)
    work = np.array([*(rule.label for rule in WORK_RULES), OTHER_WORK], dtype=object)[
        matching_rule(python, used, user_frame, WORK_RULES)
    ]
    work[_waits(one, used, frame, user_frame, line_text) != ""] = WAITING_FOR_JAX
    innermost = python.first[used]
    table = _places(one, frame).assign(
        work=work,
        inner_function=np.where(innermost == frame, -1, python.frame_function[innermost]),
        inner_file=np.where(innermost == frame, -1, python.frame_file[innermost]),
    )
    lines = _counted(table, np.bincount(inverse, minlength=len(used)))
    estimates = _shares(total_ns, lines["samples"].tolist())
    return tuple(
        model.HostLine(
            location=_location(one, file, line, function),
            work=work,
            inner=None if inner_file < 0 else _inner(one, inner_function, inner_file),
            samples=samples,
            estimate_ns=estimate,
        )
        for (file, line, function, work, inner_function, inner_file, samples), estimate in zip(
            _rows(lines.head(LISTED_LINES)), estimates, strict=False
        )
    )


def _hidden_waits(one: Attributed, samples: Samples, line_text: LineText) -> tuple[model.HiddenWait, ...]:
    """Samples that wait for the GPU outside all sync operations of their process."""
    period = one.trace.metadata.python_sampling_period_ns
    operations = one.operations
    shown = _of_process(one, samples.process)
    if one.selection.windows is not None:
        shown &= _containing(one.selection.windows, samples.time) >= 0
    for code in np.unique(samples.process):
        own = operations.process == code
        waiting = union(operations.start[own], operations.end[own])
        shown &= (samples.process != code) | (_containing(waiting, samples.time) < 0)
    event = samples.event[shown]
    if period is None or not len(event):
        return ()
    frame, user_frame = _location_frames(one, event)
    wait = _waits(one, event, frame, user_frame, line_text)
    table = _places(one, frame).assign(wait=wait)[wait != ""]
    return tuple(
        model.HiddenWait(
            location=_location(one, file, line, function), wait=wait, samples=count, estimate_ns=count * period
        )
        for file, line, function, wait, count in _rows(_counted(table, np.ones(len(table), dtype=np.int64)))
    )


def _waits(
    one: Attributed, event: IntArray, frame: IntArray, user_frame: IntArray, line_text: LineText
) -> npt.NDArray[np.object_]:
    """For each event the wait for the GPU that it is in, without a CUDA call; "" where it is in none."""
    python = one.trace.python
    labels = np.array([*(rule.label for rule in WAIT_RULES), ""], dtype=object)
    wait = labels[matching_rule(python, event, user_frame, WAIT_RULES)]
    wait[matching_rule(python, event, user_frame, WAITING) < 0] = ""
    # JAX arrays' own method is C and has no frame: only the source of the innermost line can tell.
    if any("jax/_src/" in path.replace("\\", "/") for path in python.files):
        lines = _places(one, frame)[python.first[event] == frame].drop_duplicates()
        for file, line, _ in _rows(lines):
            if "block_until_ready" in (line_text(python.files[file], line) or ""):
                here = (python.frame_file[frame] == file) & (python.frame_line[frame] == line)
                wait[here & (python.first[event] == frame)] = BLOCK_UNTIL_READY
    return wait


def _location_frames(one: Attributed, events: IntArray) -> tuple[IntArray, IntArray]:
    """For each event the frame of its location, and the same where that is the user's code, else -1."""
    python = one.trace.python
    is_user_file = user_files(python, one.options)
    frame = innermost_user_frame(python, events, is_user_file)[0]
    return frame, np.where(is_user_file[python.frame_file[frame]], frame, -1)


def _places(one: Attributed, frame: IntArray) -> pd.DataFrame:
    python = one.trace.python
    return pd.DataFrame(
        {
            "file": python.frame_file[frame],
            "line": python.frame_line[frame],
            "function": python.frame_function[frame],
        }
    )


def _counted(table: pd.DataFrame, samples: IntArray) -> pd.DataFrame:
    """Equal rows become one, with the sum of their `samples`; most first."""
    keys = list(table.columns)
    counted = table.assign(samples=samples).groupby(keys, sort=True)["samples"].sum().reset_index()
    return counted.sort_values("samples", ascending=False, kind="stable")


def _rows(table: pd.DataFrame) -> Iterable[tuple[Any, ...]]:
    """The rows as plain Python values."""
    return zip(*(table[name].tolist() for name in table.columns), strict=True)


def _location(one: Attributed, file: int, line: int, function: int) -> model.Location:
    return python_location(one.shown_files[file], one.shown_functions[function], line)


def _inner(one: Attributed, function: int, file: int) -> str:
    """`_engine_run_backward (torch/autograd/graph.py)`."""
    path = one.shown_files[file].replace("\\", "/")
    for library in ("/site-packages/", "/dist-packages/"):
        path = path.rpartition(library)[2]
    return f"{one.shown_functions[function]} ({path})"


def _shares(total: int, weights: Sequence[int]) -> list[int]:
    """`total` split by weight into integers that add up to it: largest remainders are rounded up."""
    whole = sum(weights)
    shares = [total * weight // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: -(total * weights[i] % whole))
    for i in by_remainder[: total - sum(shares)]:
        shares[i] += 1
    return shares


def _calls(one: Attributed, parts: Sequence[_HostBound], total_ns: int) -> tuple[model.HostCall, ...]:
    """CUDA calls of launching threads in the host-bound time that their own launch ended, sync operations' aside."""
    calls = one.calls
    pieces = [_calls_during(calls, part, int(thread)) for part in parts for thread in distinct(part.thread)]
    if not pieces:
        return ()
    call, length = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
    synchronizes = np.zeros(len(calls), dtype=bool)
    synchronizes[one.operations.call] = True
    synchronizes[one.operations.copy_call[one.operations.copy_call >= 0]] = True
    other = ~synchronizes[call]
    base_names = [base_name(name) for name in one.trace.api_names]
    codes, names = pd.factorize(np.array(base_names, dtype=object))
    table = pd.DataFrame({"call": call[other], "api": codes[calls.name_of(call[other])], "length": length[other]})
    by_api = table.groupby("api").agg(calls=("call", "nunique"), total=("length", "sum")).reset_index()
    worth = by_api[(by_api["total"] >= LISTED_CALLS_NS) | (by_api["total"] >= LISTED_CALLS_RATIO * total_ns)]
    by_time = worth.sort_values(["total", "api"], ascending=[False, True])
    return tuple(
        model.HostCall(cut(str(names[api])), SLOW_CALLS.get(str(names[api])), number, total)
        for api, number, total in _rows(by_time)
    )


def _calls_during(calls: Calls, part: _HostBound, thread: int) -> tuple[IntArray, IntArray]:
    """(call, ns of it in the thread's host-bound time) pairs."""
    own = part.thread == thread
    low, high = calls.of_thread(thread)
    # Outermost calls can overlap, but their ends are sorted as their starts are, which is all that is needed here.
    of_thread = Intervals(calls.start[low:high], calls.end[low:high])
    pieces, _, index = intersect(Intervals(part.intervals.start[own], part.intervals.end[own]), of_thread)
    some = pieces.end > pieces.start
    return low + index[some], (pieces.end - pieces.start)[some]
