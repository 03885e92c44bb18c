"""`nsys-sync report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from nsys_sync.cli.durations import parse_duration, parse_range
from nsys_sync.cli.outputs import FormatsOption, OutputOption, plan, write
from nsys_sync.cli.progress import shown_progress


def report(
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE...", help="Reports of nsys, or SQLite exports of them. Several are ranks of one run."
        ),
    ],
    output: OutputOption = None,
    formats: FormatsOption = None,
    operations: Annotated[
        bool, typer.Option("--operations", help="In CSV and Parquet: one row per operation instead of per site.")
    ] = False,
    time_range: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--range", metavar="START:END", help="Only this time, such as 1.5s:2s (ns, us, ms, s)."),
    ] = None,
    nvtx: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--nvtx", metavar="NAME", help="Only NVTX ranges of this name or pattern, such as 'step *'."),
    ] = None,
    skip_first: Annotated[
        int,
        typer.Option(
            "--skip-first", metavar="N", min=0, help="Leave out the first N of the --nvtx ranges of each thread."
        ),
    ] = 0,
    pid: Annotated[Optional[int], typer.Option("--pid", help="Only sites of this process.")] = None,  # noqa: UP045
    device: Annotated[Optional[int], typer.Option("--device", help="Only this GPU.")] = None,  # noqa: UP045
    top: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--top", metavar="N", min=1, help="Only the N worst sites, in every format."),
    ] = None,
    min_stall: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--min-stall", metavar="TIME", help="Only sites with at least this stall, such as 100us."),
    ] = None,
    user_code: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--user-code", metavar="GLOB", help="Python files that are your own code. Repeatable."),
    ] = None,
    library_code: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--library-code", metavar="GLOB", help="Python files that are not. Wins over --user-code."),
    ] = None,
    source_root: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--source-root", metavar="DIR", help="Read the lines of the sites in files below this folder, as they ran."
        ),
    ] = None,
    no_source: Annotated[bool, typer.Option("--no-source", help="Read and show no source lines.")] = False,
) -> None:
    """Rank the lines that make the CPU wait for the GPU by the GPU idle time they cause.

    Prints a report and writes TRACE.sync.html into the current folder.
    """
    more = f"-and-{len(traces) - 1}-more" if len(traces) > 1 else ""
    outputs = plan(formats or [], output, traces[0].stem + more, traces, per_operation=operations)
    selected = parse_range(time_range) if time_range is not None else None
    least = parse_duration(min_stall, "--min-stall") if min_stall is not None else 0

    from nsys_sync.pipeline import analyze  # pandas and pyarrow, only now that the options make sense

    analysis = analyze(
        *traces,
        time_range=selected,
        nvtx=nvtx,
        skip_first=skip_first,
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
