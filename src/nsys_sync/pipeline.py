"""Calls the stages in order: trace → analysis → model.Analysis."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from nsys_sync import __version__, model
from nsys_sync.analysis.accounting import account, of_device
from nsys_sync.analysis.attributed import Attributed
from nsys_sync.analysis.calls import outermost_calls, require_process
from nsys_sync.analysis.causes import NEEDLES, stack_kinds
from nsys_sync.analysis.locate import locate_in_python, native_chains, without_python
from nsys_sync.analysis.lost_events import lost_events
from nsys_sync.analysis.merges import merges_of, read_together_first
from nsys_sync.analysis.operations import sync_operations
from nsys_sync.analysis.operations_table import operations_table
from nsys_sync.analysis.options import Options, TimeRange
from nsys_sync.analysis.phases import select, startup_ends, steps_of
from nsys_sync.analysis.sites import limited, rank_sites
from nsys_sync.analysis.stacks import with_stacks
from nsys_sync.analysis.summary import stall_of, texts_of, trace_operations, trace_report, window_of
from nsys_sync.errors import UsageError
from nsys_sync.nsys.export import Progress, cached_export, is_report
from nsys_sync.nsys.find import find_nsys
from nsys_sync.nsys.parquet import cached_conversion
from nsys_sync.regular_files import is_folder, with_a_name
from nsys_sync.source_files import SourceFile, read_sources
from nsys_sync.trace.read import (
    read_failed_launches,
    read_first_frames_outside_cuda,
    read_native_stacks,
    read_query_starts,
    read_trace,
)
from nsys_sync.trace.sqlite_file import SqliteFile


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
    source_root: str | Path | None = None,
    no_source: bool = False,
    progress: Progress = lambda step, percent: None,
) -> model.Analysis:
    """Ranked sync sites of one trace, or of several that are ranks of one run.

    A trace is an SQLite export of nsys, or a report (`.nsys-rep`, `.qdrep`) or a folder of Parquet files (`nsys export
    --type parquetdir`), of which an SQLite export is made first (and kept, see `nsys_sync.nsys.export`); `progress`
    hears of that.

    `time_range` is (start, end) in ns since the session start, None for an open end; `nvtx` an NVTX range name or
    pattern (`step *`) whose ranges are selected, less the first `skip_first` of each thread. `pid` and `device`
    restrict what is shown, never what is attributed. `user_code` and `library_code` are globs on Python file paths.

    The lines of the sites are read in the user's own files, where these are older than the capture, or below
    `source_root`; with `no_source` not at all.

    Raises TraceError for a trace that cannot be read or holds nothing to analyse, NsysError where a report cannot be
    exported, UsageError for senseless arguments.
    """
    if not paths:
        raise UsageError("no trace given. Name one or more reports or SQLite exports of nsys")
    options = Options(
        time_range,
        nvtx,
        skip_first,
        pid,
        device,
        top,
        min_stall_ns,
        tuple(user_code),
        tuple(library_code),
        None if source_root is None else Path(source_root),
        no_source,
    )
    if options.source_root is not None and not options.source_root.is_dir():
        raise UsageError(f"--source-root {options.source_root}: is no folder")
    with ExitStack() as opened:
        files = [
            opened.enter_context(closing(SqliteFile(_database(Path(path), progress), Path(path)))) for path in paths
        ]
        names = _distinct_names([Path(path) for path in paths])
        attributed = [_attribute(file, name, options) for file, name in zip(files, names, strict=True)]
        operations = [trace_operations(one) for one in attributed]
        window_ns = sum(window_of(one) for one in attributed)
        ranked = rank_sites(operations, window_ns)
        reports = [
            trace_report(one, shown, codes, [site.id for site in ranked.sites])
            for one, shown, codes in zip(attributed, operations, ranked.site_of_operation, strict=True)
        ]
        sites, frames, native_frames = with_stacks(ranked, operations, attributed)
    merged = merges_of(attributed, operations, ranked)
    kept, omitted = limited(read_together_first(sites, merged), options.top, options.min_stall_ns)
    causes, advice = texts_of(kept, reports)
    return model.Analysis(
        schema_version=model.SCHEMA_VERSION,
        tool_version=__version__,
        selection=options.selection,
        traces=tuple(reports),
        window_ns=window_ns,
        stall_ns=stall_of(reports),
        sites=kept,
        omitted=omitted,
        causes=causes,
        advice=advice,
        merges=merged,
        frames=frames,
        native_frames=native_frames,
        operations=operations_table(operations, ranked),
    )


def _attribute(file: SqliteFile, name: str, options: Options) -> Attributed:
    trace = replace(read_trace(file, NEEDLES), name=name)

    sources: dict[str, SourceFile | None] = {}

    def read_user_sources(paths: Sequence[str]) -> dict[str, SourceFile]:
        new = [] if options.no_source else [path for path in paths if path not in sources]
        if new:
            found = read_sources(new, trace.metadata.capture_start_utc, options.source_root)
            sources.update((path, found.get(path)) for path in new)
        return {path: one for path in paths if (one := sources.get(path)) is not None}

    calls = outermost_calls(trace)
    lost = lost_events(trace, calls, lambda: read_failed_launches(file), cache(partial(read_query_starts, file)))
    # Of millions of rows, only what is still needed: memory that is free again is much faster than new memory.
    trace = replace(trace, api=trace.api[[]], gpu=trace.gpu.drop(columns="correlation_id"))
    require_process(trace, calls, options.pid)
    operations, is_sync_call = sync_operations(trace, calls)
    accounts = of_device(trace, account(trace, calls, operations, is_sync_call, lost), options.device)
    selection = select(trace, [(one.time.window_start, one.time.window_end) for one in accounts], options)
    steps, step_pattern = steps_of(trace, calls, selection)
    python = locate_in_python(trace, calls, operations, options)
    chain_id = native_chains(trace, calls, operations)
    return Attributed(
        trace=trace,
        calls=calls,
        operations=operations,
        accounts=accounts,
        lost=lost,
        selection=selection,
        startup=startup_ends(trace, calls, steps),
        steps=steps,
        step_pattern=step_pattern,
        python=python,
        chain_id=chain_id,
        stack_kinds=stack_kinds(trace.native.frames),
        native_labels=read_first_frames_outside_cuda(file, without_python(python, chain_id)),
        options=options,
        read_native=lambda chains: read_native_stacks(file, chains),
        read_sources=read_user_sources,
    )


def _database(path: Path, progress: Progress) -> Path:
    if is_folder(path):
        return cached_conversion(path, progress)
    return cached_export(path, find_nsys, progress) if is_report(path) else path


def _distinct_names(paths: Sequence[Path]) -> list[str]:
    """File names; equal ones are numbered. Folders are left out: they can be named after people."""
    names = [with_a_name(path).name for path in paths]
    return [f"{name} ({names[: i + 1].count(name)})" if names.count(name) > 1 else name for i, name in enumerate(names)]
