"""Parts of a trace's time: what the user selected, the steps that NVTX ranges give, and each process's start-up."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
import pandas as pd

from nsys_sync.analysis.calls import Calls
from nsys_sync.analysis.intervals import IntArray, Intervals, distinct, intersect, union
from nsys_sync.analysis.options import Options
from nsys_sync.analysis.user_code import cut
from nsys_sync.errors import TraceError
from nsys_sync.trace.tables import NEVER_ENDED, Trace

LIBRARY_DOMAINS = frozenset(
    {"Python Backtrace", "CCCL", "CUB", "Thrust", "NCCL", "cuBLAS", "cuBLASLt", "cuDNN", "cuFFT", "cuSOLVER"}
    | {"cuSPARSE", "cuTENSOR", "CUTLASS", "TensorRT", "NVSHMEM", "libcudf", "RMM", "DALI", "OpenACC", "UCX"}
)
"""NVTX domains in which libraries mark their own calls: they are no steps of the user's program."""
XLA_DOMAIN = "TSL"
XLA_NAMES = re.compile(r"Xla|Thunk")
"""How XLA's ranges begin; the domain is open to a JAX program's own annotations too."""
FEWEST_STEPS = 3
STEPS_COVER = 0.5
"""Ranges whose name does not number steps are steps only if they cover as much of their own time."""
STEP_NAME = re.compile(
    r"(?:train(?:ing)?[\W_]*|profiler)?(?:step|iter(?:ation)?|(?:mini)?[\W_]*batch)[\W_]*", re.IGNORECASE
)
LONGEST_QUOTED = 100
"""Characters of a range's name in an error."""
LOADING_ENDS_AFTER_LAUNCHES = 256
"""Module loading is start-up while fewer launches than this lie between two loads (first-use loading in a loop)."""


@dataclass(frozen=True)
class Selection:
    """`windows` None: the whole trace. `steps` has the NVTX rows chosen by name, None without such a choice."""

    windows: Intervals | None
    nvtx_pattern: str | None
    steps: pd.DataFrame | None
    skipped: int


@dataclass(frozen=True)
class StartupEnd:
    """Start-up of a process (code) is everything before `end`."""

    process: int
    end: int
    reason: str


def user_ranges(trace: Trace) -> pd.DataFrame:
    """NVTX ranges of the user's own program, libraries' aside."""
    nvtx = trace.nvtx
    if not len(nvtx):
        return nvtx
    theirs = nvtx["domain"].isin([domain for domain in nvtx["domain"].cat.categories if domain in LIBRARY_DOMAINS])
    if XLA_DOMAIN in nvtx["domain"].cat.categories:
        names = [name for name in nvtx["name"].cat.categories if XLA_NAMES.match(str(name))]
        theirs |= (nvtx["domain"] == XLA_DOMAIN) & nvtx["name"].isin(names)
    return nvtx[~theirs]


def select(trace: Trace, device_windows: Sequence[tuple[int, int]], options: Options) -> Selection:
    """`device_windows` are each device's first and last GPU activity; they stand for bounds left open.

    Raises TraceError where the choice leaves nothing: no such NVTX range, all skipped, no GPU activity inside.
    """
    selection = _select(trace, device_windows, options)
    if selection.windows is not None:
        low, high = np.array(device_windows, dtype=np.int64).T
        if not selection.windows.within(low, high).any():
            raise TraceError(
                f"{trace.name}: the chosen range holds no GPU activity. "
                f"The trace's lies between {low.min() / 1e9:.6f}s and {high.max() / 1e9:.6f}s"
            )
    return selection


def _select(trace: Trace, device_windows: Sequence[tuple[int, int]], options: Options) -> Selection:
    hull = (min(low for low, _ in device_windows), max(high for _, high in device_windows))
    time_range, nvtx, skip_first = options.time_range, options.nvtx, options.skip_first
    windows = None
    if time_range is not None:
        low, high = (hull[i] if bound is None else bound for i, bound in enumerate(time_range))
        windows = Intervals(np.array([low]), np.array([max(low, high)]))
    if nvtx is None:
        return Selection(windows, None, None, 0)
    names: list[str] = [str(name) for name in trace.nvtx["name"].cat.categories] if len(trace.nvtx) else []
    matching = [name for name in names if name == nvtx or fnmatchcase(name, nvtx)]
    ranges = trace.nvtx[trace.nvtx["name"].isin(matching)] if matching else trace.nvtx.iloc[:0]
    if not len(ranges):
        known = ", ".join(cut(name, LONGEST_QUOTED) for name in sorted({*map(family, names)})[:8]) or "none at all"
        raise TraceError(f"{trace.name}: no NVTX range is named {nvtx!r}. Ranges in this trace: {known}")
    ranges = ranges.sort_values("start_ns", kind="stable")
    kept = ranges[ranges.groupby("global_tid").cumcount() >= skip_first]
    if not len(kept):
        raise TraceError(
            f"{trace.name}: --skip-first {skip_first} leaves none of the {len(ranges)} NVTX ranges named {nvtx!r}"
        )
    end = kept["end_ns"].to_numpy()
    kept = kept.assign(end_ns=np.where(end == NEVER_ENDED, np.maximum(hull[1], kept["start_ns"].to_numpy()), end))
    chosen = union(kept["start_ns"].to_numpy(), kept["end_ns"].to_numpy())
    if windows is not None:
        chosen = intersect(chosen, windows)[0]
    return Selection(chosen, nvtx, kept.reset_index(drop=True), len(ranges) - len(kept))


def family(name: str) -> str:
    """`step 12` → `step *`: names that differ in their digits are one family."""
    return re.sub(r"\d+", "*", name)


def families(nvtx: pd.DataFrame) -> tuple[IntArray, tuple[str, ...]]:
    """For each row of `nvtx` the code of its name's family, and the families. A family of one name keeps the name."""
    if not len(nvtx):
        return np.empty(0, dtype=np.int64), ()
    names = nvtx["name"].cat.categories
    codes = nvtx["name"].cat.codes.to_numpy()
    used = np.unique(codes)
    members: dict[str, list[int]] = {}
    for code in used:
        members.setdefault(family(str(names[code])), []).append(int(code))
    family_of = np.full(len(names), -1, dtype=np.int64)
    labels: list[str] = []
    for label, own in members.items():
        family_of[own] = len(labels)
        labels.append(str(names[own[0]]) if len(own) == 1 else label)
    return family_of[codes], tuple(labels)


def steps_of(trace: Trace, calls: Calls, selection: Selection) -> tuple[pd.DataFrame | None, str]:
    """The chosen NVTX ranges, else the program's loop where one is found; and what they are called."""
    if selection.steps is not None:
        return selection.steps, selection.nvtx_pattern or ""
    found = find_steps(trace, calls)
    return (None, "") if found is None else (found[1], found[0])


def find_steps(trace: Trace, calls: Calls) -> tuple[str, pd.DataFrame] | None:
    """The family of user ranges that is the program's loop, and its ranges; None where none convinces.

    A family convinces if some thread has at least three of its ranges, one after the other, and its name numbers steps
    (`step *`, `iteration *`, `batch *`, `train_step *`), or its ranges cover at least half of the time from the end of
    a thread's first one (the warm-up) to the end of its last. Among those, a name that numbers steps goes before any
    other (`step *` before the epochs around it), then the family in whose ranges their own threads launch most GPU
    work, then the one that covers most time. A range open when the capture ended is no whole step.
    """
    ranges = user_ranges(trace)
    ranges = ranges[ranges["is_push_pop"] & (ranges["end_ns"] != NEVER_ENDED)] if len(ranges) else ranges
    if len(ranges) < FEWEST_STEPS:
        return None
    codes, labels = families(ranges)
    launches = _launches_by_thread(calls)
    best: tuple[tuple[bool, int, int], str, pd.DataFrame] | None = None
    counts = np.bincount(codes, minlength=len(labels))
    for code in np.flatnonzero(counts >= FEWEST_STEPS):
        own = ranges[codes == code].sort_values(["global_tid", "start_ns", "end_ns"], kind="stable")
        own = own[~own.duplicated(["global_tid", "start_ns", "end_ns", "name"])]  # rows that were written twice
        start, end, tid = (own[name].to_numpy() for name in ("start_ns", "end_ns", "global_tid"))
        if ((tid[1:] == tid[:-1]) & (start[1:] < end[:-1])).any():
            continue
        tids, first, number = np.unique(tid, return_index=True, return_counts=True)
        looping = number >= FEWEST_STEPS
        last = first + number - 1
        span = int((end[last] - end[first])[looping].sum())
        before = np.concatenate(([0], np.cumsum(end - start)))
        after_first = int((before[last + 1] - before[first + 1])[looping].sum())
        numbers_steps = own["name"].nunique() > 1 and STEP_NAME.fullmatch(labels[code]) is not None
        if not looping.any() or not (numbers_steps or after_first >= STEPS_COVER * span):
            continue
        inside = sum(_number_inside(launches.get(one), start[tid == one], end[tid == one]) for one in tids.tolist())
        rank = (numbers_steps, inside, int(before[-1]))
        if best is None or rank > best[0]:
            best = (rank, labels[code], own.sort_values("start_ns", kind="stable").reset_index(drop=True))
    return None if best is None else (best[1], best[2])


def _launches_by_thread(calls: Calls) -> dict[int, IntArray]:
    """When each thread (its global id) launched GPU work, in order."""
    launching = distinct(calls.launched_by[calls.launched_by >= 0])  # sorted by (thread, start), as calls are
    thread, first = np.unique(calls.thread[launching], return_index=True)
    times = np.split(calls.start[launching], first[1:])
    return dict(zip(calls.global_tids[thread].tolist(), times, strict=False))


def _number_inside(times: IntArray | None, start: IntArray, end: IntArray) -> int:
    if times is None:
        return 0
    return int((np.searchsorted(times, end) - np.searchsorted(times, start)).sum())


def startup_ends(trace: Trace, calls: Calls, steps: pd.DataFrame | None) -> list[StartupEnd]:
    """For each process with GPU work that has one: before its first step where it has steps, else before its first
    NVTX range, else its front of module loading and context creation, before its first GPU work or going on after it.
    """
    ranges = user_ranges(trace)
    is_launch = np.zeros(len(calls), dtype=bool)
    is_launch[calls.launched_by[calls.launched_by >= 0]] = True
    launches = np.flatnonzero(is_launch)
    result = []
    for code in distinct(calls.process_of(launches)).tolist():
        own_launches = np.sort(calls.start[launches[calls.process_of(launches) == code]], kind="stable")
        for name, table in (("its first step", steps), ("its first NVTX range", ranges)):
            if table is not None and len(table):
                own = table["start_ns"].to_numpy()[table["global_tid"].to_numpy() >> 24 == calls.processes[code]]
                if len(own):
                    result.append(StartupEnd(code, int(own.min()), f"before {name}"))
                    break
        else:
            result.append(_end_of_loading(calls, code, own_launches))
    return result


def _end_of_loading(calls: Calls, process: int, launches: IntArray) -> StartupEnd:
    own = calls.loading_process == process
    start, end = calls.loading_start[own], calls.loading_end[own]
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    since = np.diff(np.searchsorted(launches, start), prepend=0)
    late = np.flatnonzero(since >= LOADING_ENDS_AFTER_LAUNCHES)
    front = end[: late[0]] if len(late) else end
    first_launch = int(launches[0])
    if front.max(initial=first_launch) > first_launch:
        return StartupEnd(process, int(front.max()), "loading of modules at the front")
    return StartupEnd(process, first_launch, "before its first GPU work")


def startup_by_process(startup: list[StartupEnd], processes: int) -> IntArray:
    """For each process code when its start-up ends; a process without an entry has none."""
    result = np.full(processes, -(2**62), dtype=np.int64)
    for entry in startup:
        result[entry.process] = entry.end
    return result
