"""Parts of a trace's time: what the user selected, the steps that NVTX ranges give, and each process's start-up."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
import pandas as pd

from nsys_sync.analysis.calls import Calls
from nsys_sync.analysis.intervals import IntArray, Intervals, intersect, union
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
_DIGITS = re.compile(r"\d+")
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
    return _DIGITS.sub("*", name)


def families(nvtx: pd.DataFrame) -> tuple[IntArray, tuple[str, ...]]:
    """For each row of `nvtx` the code of its name's family, and the families. A family of one name keeps the name."""
    if not len(nvtx):
        return np.empty(0, dtype=np.int64), ()
    names = nvtx["name"].cat.categories
    codes = nvtx["name"].cat.codes.to_numpy()
    used = np.flatnonzero(np.bincount(codes, minlength=len(names)))
    own_names = [str(name) for name in names[used].tolist()]
    family_of_used, found = pd.factorize(np.array([family(name) for name in own_names], dtype=object))
    members = np.bincount(family_of_used)
    labels = [str(label) for label in found]
    for code, name in zip(family_of_used.tolist(), own_names, strict=True):
        if members[code] == 1:
            labels[code] = name
    family_of = np.full(len(names), -1, dtype=np.int64)
    family_of[used] = family_of_used
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
    ranges = ranges[~ranges.duplicated(["global_tid", "start_ns", "end_ns", "name"])]  # rows that were written twice
    codes, labels = families(ranges)
    # One row a range, sorted so that each family's ranges on each thread stand together; `group` is one such run.
    tid, name = ranges["global_tid"].to_numpy(), ranges["name"].cat.codes.to_numpy()
    order = np.lexsort((ranges["end_ns"].to_numpy(), ranges["start_ns"].to_numpy(), tid, codes))
    start, end = ranges["start_ns"].to_numpy()[order], ranges["end_ns"].to_numpy()[order]
    tid, family_of = tid[order], codes[order]
    joined = (family_of[1:] == family_of[:-1]) & (tid[1:] == tid[:-1])
    first = np.flatnonzero(np.concatenate(([True], ~joined)))
    last = np.append(first[1:], len(order)) - 1
    family_of_group = family_of[first]
    looping = last - first + 1 >= FEWEST_STEPS

    def summed(values: IntArray, code: IntArray) -> IntArray:
        result = np.zeros(len(labels), dtype=np.int64)
        np.add.at(result, code, values)
        return result

    length = summed(end - start, family_of)
    span = summed((end[last] - end[first])[looping], family_of_group[looping])
    before = np.concatenate(([0], np.cumsum(end - start)))
    after_first = summed((before[last + 1] - before[first + 1])[looping], family_of_group[looping])
    names_of_family = pd.unique(codes * (int(name.max()) + 1) + name) // (int(name.max()) + 1)
    several_names = np.bincount(names_of_family, minlength=len(labels)) > 1
    numbers_steps = several_names & np.array([STEP_NAME.fullmatch(label) is not None for label in labels])
    convincing = np.isin(np.arange(len(labels)), family_of_group[looping])
    convincing[family_of[1:][joined & (start[1:] < end[:-1])]] = False
    convincing &= numbers_steps | (after_first >= STEPS_COVER * span)
    if not convincing.any():
        return None
    inside = summed(_launches_inside(calls, tid, start, end), family_of)
    code = int(np.lexsort((-length, -inside, ~numbers_steps, ~convincing))[0])
    own = ranges[codes == code].sort_values(["global_tid", "start_ns", "end_ns"], kind="stable")
    return labels[code], own.sort_values("start_ns", kind="stable").reset_index(drop=True)


def _launches_inside(calls: Calls, tid: IntArray, start: IntArray, end: IntArray) -> IntArray:
    """For each range how often its own thread launched GPU work in it."""
    launching = np.flatnonzero(calls.that_launched(calls.launched_by))  # sorted by (thread, start), as calls are
    thread, first = np.unique(calls.thread[launching], return_index=True)
    bounds = np.append(first, len(launching))
    result = np.zeros(len(tid), dtype=np.int64)
    rows_by_tid = np.argsort(tid, kind="stable")
    rows = np.searchsorted(tid[rows_by_tid], np.stack((calls.global_tids[thread], calls.global_tids[thread] + 1)))
    for number in range(len(thread)):
        times = calls.start[launching[bounds[number] : bounds[number + 1]]]
        own = rows_by_tid[rows[0, number] : rows[1, number]]
        result[own] = np.searchsorted(times, end[own]) - np.searchsorted(times, start[own])
    return result


def startup_ends(trace: Trace, calls: Calls, steps: pd.DataFrame | None) -> list[StartupEnd]:
    """For each process with GPU work that has one: before its first step where it has steps, else before its first
    NVTX range, else its front of module loading and context creation, before its first GPU work or going on after it.
    """
    begins = [
        (name, _first_by_process(table))
        for name, table in (("its first step", steps), ("its first NVTX range", user_ranges(trace)))
        if table is not None
    ]
    launches = np.flatnonzero(calls.that_launched(calls.launched_by))
    process_of_launch = calls.process_of(launches)
    order = np.lexsort((calls.start[launches], process_of_launch))
    processes, first = np.unique(process_of_launch[order], return_index=True)
    launched = np.split(calls.start[launches[order]], first[1:])
    result = []
    for code, own_launches in zip(processes.tolist(), launched, strict=False):
        process = int(calls.processes[code])
        known = next(((name, begin[process]) for name, begin in begins if process in begin), None)
        if known is not None:
            result.append(StartupEnd(code, known[1], f"before {known[0]}"))
        else:
            result.append(_end_of_loading(calls, code, own_launches))
    return result


def _first_by_process(ranges: pd.DataFrame) -> dict[int, int]:
    """When the first of each process's ranges begins."""
    if not len(ranges):
        return {}
    first = ranges["start_ns"].groupby(ranges["global_tid"].to_numpy() >> 24).min()
    return dict(zip(first.index.tolist(), first.tolist(), strict=True))


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
