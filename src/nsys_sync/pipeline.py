"""Calls the stages in order: trace → analysis → model.Analysis."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from nsys_sync import __version__, model
from nsys_sync.analysis.accounting import account
from nsys_sync.analysis.calls import outermost_calls
from nsys_sync.analysis.classification import NEEDLES, classify_chains
from nsys_sync.analysis.locate import locate_in_python
from nsys_sync.analysis.operations import sync_operations
from nsys_sync.analysis.operations_table import operations_table
from nsys_sync.analysis.phases import find_steps, select, startup_ends
from nsys_sync.analysis.sites import rank_sites
from nsys_sync.analysis.stacks import with_stacks
from nsys_sync.analysis.summary import PID_MASK, Attributed, trace_operations, trace_report
from nsys_sync.analysis.user_code import is_user_code
from nsys_sync.errors import TraceError, UsageError
from nsys_sync.nsys.export import Progress, cached_export, is_report
from nsys_sync.nsys.find import find_nsys
from nsys_sync.trace.read import (
    read_first_frames_outside_cuda,
    read_native_stacks,
    read_trace,
)
from nsys_sync.trace.sqlite_file import SqliteFile

TimeRange = tuple[int | None, int | None]


def analyze(
    *paths: str | Path,
    time_range: TimeRange | None = None,
    nvtx: str | None = None,
    skip_first: int = 0,
    pid: int | None = None,
    device: int | None = None,
    top: int | None = None,
    min_stall_ns: int = 0,
    user_code: Sequence[str] = (),
    library_code: Sequence[str] = (),
    progress: Progress = lambda step, percent: None,
) -> model.Analysis:
    """Ranked sync sites of one trace, or of several that are ranks of one run.

    A trace is an SQLite export of nsys, or a report (`.nsys-rep`, `.qdrep`), which is exported first (and the export
    kept, see `nsys_sync.nsys.export`); `progress` hears of that.

    `time_range` is (start, end) in ns since the session start, None for an open end; `nvtx` an NVTX range name or
    pattern (`step *`) whose ranges are selected, less the first `skip_first` of each thread. `pid` and `device`
    restrict what is shown, never what is attributed. `user_code` and `library_code` are globs on Python file paths.

    Raises TraceError for a trace that cannot be read or holds nothing to analyse, NsysError where a report cannot be
    exported, UsageError for senseless arguments.
    """
    if not paths:
        raise UsageError("no trace given. Name one or more nsys SQLite exports")
    if skip_first and nvtx is None:
        raise UsageError("--skip-first needs --nvtx: it says how many of those ranges to leave out")
    if skip_first < 0 or min_stall_ns < 0 or (top is not None and top < 1):
        raise UsageError("--skip-first and --min-stall must not be negative, and --top must be at least 1")
    with ExitStack() as opened:
        files = [opened.enter_context(closing(SqliteFile(_database(Path(path), progress)))) for path in paths]
        attributed = [
            _attribute(file, name, time_range, nvtx, skip_first, pid, device, user_code, library_code)
            for file, name in zip(files, _distinct_names([Path(path) for path in paths]), strict=True)
        ]
        operations = [trace_operations(one) for one in attributed]
        window_ns = sum(_window_ns(one) for one in attributed)
        ranked = rank_sites(operations, window_ns)
        reports = [
            trace_report(one, shown, codes)
            for one, shown, codes in zip(attributed, operations, ranked.site_of_operation, strict=True)
        ]
        sites, frames, native_frames = with_stacks(
            ranked,
            operations,
            attributed,
            lambda i, chains: read_native_stacks(files[i], chains),
            user_code,
            library_code,
        )
    table = operations_table(operations, ranked, attributed)
    stalls = [one.stall_ns for report in reports for one in report.devices]
    kept, omitted = _limited(sites, top, min_stall_ns)
    return model.Analysis(
        schema_version=model.SCHEMA_VERSION,
        tool_version=__version__,
        selection=_selection_text(time_range, nvtx, skip_first, pid, device),
        traces=tuple(reports),
        window_ns=window_ns,
        stall_ns=None if any(stall is None for stall in stalls) else sum(stall or 0 for stall in stalls),
        sites=kept,
        omitted=omitted,
        frames=frames,
        native_frames=native_frames,
        operations=table,
    )


def _attribute(
    file: SqliteFile,
    name: str,
    time_range: TimeRange | None,
    nvtx: str | None,
    skip_first: int,
    pid: int | None,
    device: int | None,
    user_code: Sequence[str],
    library_code: Sequence[str],
) -> Attributed:
    trace = replace(read_trace(file, NEEDLES), name=name)
    calls = outermost_calls(trace)
    operations, is_sync_call = sync_operations(trace, calls)
    accounts = account(trace, calls, operations, is_sync_call)
    if not accounts:
        raise TraceError(f"{file.path}: every GPU row has zero length, so there is no GPU time to analyse")
    if device is not None:
        known = ", ".join(str(one.time.device_id) for one in accounts)
        accounts = [one for one in accounts if one.time.device_id == device]
        if not accounts:
            raise TraceError(f"{file.path}: has no activity of device {device}. Devices in this trace: {known}")
    if pid is not None:
        pids = sorted({int(process) & PID_MASK for process in calls.processes})
        if pid not in pids:
            raise TraceError(
                f"{file.path}: has no CUDA calls of process {pid}. Processes in this trace: "
                + ", ".join(str(one) for one in pids)
            )
    hull = (min(one.time.window_start for one in accounts), max(one.time.window_end for one in accounts))
    selection = select(trace, hull, time_range, nvtx, skip_first)
    if selection.windows is not None and not any(
        selection.windows.within(np.array([one.time.window_start]), np.array([one.time.window_end]))[0]
        for one in accounts
    ):
        raise TraceError(
            f"{file.path}: the chosen range holds no GPU activity. "
            f"The trace's lies between {hull[0] / 1e9:.6f}s and {hull[1] / 1e9:.6f}s"
        )
    steps, pattern = selection.steps, nvtx or ""
    if steps is None and (found := find_steps(trace)) is not None:
        pattern, steps = found
    is_user_file = [is_user_code(path, user_code, library_code) for path in trace.python.files]
    chain_id = calls.callchain_id_of(operations.call)
    with_copy = (chain_id < 0) & (operations.copy_call >= 0)
    chain_id[with_copy] = calls.callchain_id_of(operations.copy_call[with_copy])
    shift = trace.native.shift
    chain_id = np.where(chain_id >= 0, chain_id + shift, -1) if shift is not None else np.full_like(chain_id, -1)
    python = locate_in_python(trace, calls, operations, is_user_file)
    return Attributed(
        trace=trace,
        calls=calls,
        operations=operations,
        accounts=accounts,
        selection=selection,
        startup=startup_ends(trace, calls, steps),
        steps=steps,
        step_pattern=pattern,
        python=python,
        chain_id=chain_id,
        operation_names=classify_chains(trace.native.frames, trace.native.symbols),
        native_labels=read_first_frames_outside_cuda(file, chain_id[(python.event < 0) & (chain_id >= 0)]),
        pid=pid,
        device=device,
    )


def _database(path: Path, progress: Progress) -> Path:
    return cached_export(path, find_nsys, progress) if is_report(path) else path


def _window_ns(one: Attributed) -> int:
    if one.selection.windows is not None:
        return one.selection.windows.total_ns * len(one.accounts)
    return sum(device.time.window_end - device.time.window_start for device in one.accounts)


def _distinct_names(paths: Sequence[Path]) -> list[str]:
    """File names; equal ones are numbered. Folders are left out: they can be named after people."""
    names = [path.name for path in paths]
    return [f"{name} ({names[: i + 1].count(name)})" if names.count(name) > 1 else name for i, name in enumerate(names)]


def _limited(
    sites: tuple[model.Site, ...], top: int | None, min_stall_ns: int
) -> tuple[tuple[model.Site, ...], model.Omitted | None]:
    enough = [site for site in sites if site.stall is None or site.stall.total_ns >= min_stall_ns]
    too_little = [site for site in sites if site.stall is not None and site.stall.total_ns < min_stall_ns]
    kept, too_many = enough[:top], enough[top:] if top is not None else []
    left_out = [*too_little, *too_many]
    if not left_out:
        return sites, None
    stalls = [site.stall.total_ns if site.stall else None for site in left_out]
    reasons = [f"--top {top}"] if too_many else []
    reasons += [f"--min-stall {min_stall_ns} ns"] if too_little else []
    return tuple(kept), model.Omitted(
        sites=len(left_out),
        calls=sum(site.calls for site in left_out),
        stall_ns=None if any(stall is None for stall in stalls) else sum(stall or 0 for stall in stalls),
        blocked_ns=sum(site.blocked.total_ns for site in left_out),
        reason=" and ".join(reasons),
    )


def _selection_text(
    time_range: TimeRange | None, nvtx: str | None, skip_first: int, pid: int | None, device: int | None
) -> str | None:
    parts = []
    if time_range is not None:
        low, high = (
            "" if bound is None else f"{bound / 1e9:.9f}".rstrip("0").rstrip(".") + "s" for bound in time_range
        )
        parts.append(f"time range {low}:{high}")
    if nvtx is not None:
        parts.append(f"NVTX ranges {nvtx}" + (f", the first {skip_first} left out" if skip_first else ""))
    if pid is not None:
        parts.append(f"process {pid}")
    if device is not None:
        parts.append(f"device {device}")
    return "; ".join(parts) or None
