"""`nsys-sync report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from nsys_sync.cli.durations import parse_duration, parse_range
from nsys_sync.cli.outputs import FormatsOption, OutputOption, plan, stem_of, write
from nsys_sync.cli.progress import shown_progress
from nsys_sync.cli.selection import (
    DeviceOption,
    LibraryCodeOption,
    NoSourceOption,
    NvtxOption,
    PidOption,
    RangeOption,
    SkipFirstOption,
    SourceRootOption,
    UserCodeOption,
)
from nsys_sync.errors import UsageError


def report(
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE...",
            help="Reports of nsys, or SQLite exports or Parquet folders of them. Several are ranks of one run.",
        ),
    ],
    output: OutputOption = None,
    formats: FormatsOption = None,
    operations: Annotated[
        bool, typer.Option("--operations", help="In CSV and Parquet: one row per operation instead of per site.")
    ] = False,
    time_range: RangeOption = None,
    nvtx: NvtxOption = None,
    skip_first: SkipFirstOption = None,
    pid: PidOption = None,
    device: DeviceOption = None,
    top: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--top", metavar="N", min=1, help="Only the N worst sites, in every format."),
    ] = None,
    min_stall: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--min-stall", metavar="TIME", help="Only sites with at least this stall, such as 100us."),
    ] = None,
    user_code: UserCodeOption = None,
    library_code: LibraryCodeOption = None,
    source_root: SourceRootOption = None,
    no_source: NoSourceOption = False,
) -> None:
    """Rank the lines that make the CPU wait for the GPU by the GPU idle time they cause.

    Prints a report and writes TRACE.sync.html into the current folder.
    """
    more = f"-and-{len(traces) - 1}-more" if len(traces) > 1 else ""
    outputs = plan(formats or [], output, stem_of(traces[0]) + more, traces, per_operation=operations)
    selected = parse_range(time_range) if time_range is not None else None
    least = parse_duration(min_stall, "--min-stall") if min_stall is not None else 0

    from nsys_sync.saved import is_saved_analysis

    for trace in traces:
        if trace.is_file() and is_saved_analysis(trace):
            raise UsageError(
                f"{trace}: is a saved report, and no trace. Hold it to budgets with nsys-sync check, compare it with "
                "nsys-sync diff, or name the trace that it was made of"
            )

    from nsys_sync.pipeline import analyze  # pandas and pyarrow, only now that the options make sense

    analysis = analyze(
        *traces,
        time_range=selected,
        nvtx=nvtx,
        skip_first=skip_first or 0,
        pid=pid,
        device=device,
        top=top,
        min_stall_ns=least,
        user_code=user_code or (),
        library_code=library_code or (),
        source_root=source_root,
        no_source=no_source,
        progress=shown_progress(),
    )
    write(analysis, outputs, top=top, per_operation=operations)
