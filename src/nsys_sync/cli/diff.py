"""`nsys-sync diff`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from nsys_sync.cli.durations import parse_range
from nsys_sync.cli.outputs import (
    SITES_IN_TERMINAL,
    Output,
    OutputFormat,
    OutputOption,
    for_terminal,
    plan,
    stem_of,
    write_made,
)
from nsys_sync.cli.progress import shown_progress
from nsys_sync.cli.selection import (
    DeviceOption,
    NoSourceOption,
    NvtxOption,
    PidOption,
    RangeOption,
    SkipFirstOption,
    SourceRootOption,
)
from nsys_sync.errors import UsageError

if TYPE_CHECKING:
    from nsys_sync.model import Comparison, PlaceInRun

_RUN_HELP = "A report of nsys, an SQLite export or Parquet folder of it, or a JSON report of nsys-sync."


class DiffFormat(OutputFormat):
    """Of a comparison."""

    terminal = "terminal"
    html = "html"
    markdown = "markdown"
    json = "json"


def diff(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help=_RUN_HELP)],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="The same, of the later run.")],
    output: OutputOption = None,
    formats: Annotated[
        Optional[list[DiffFormat]],  # noqa: UP045 (typer reads the annotation at run time, on Python 3.10 too)
        typer.Option("--format", "-f", help="May be given more than once. Default: terminal and html."),
    ] = None,
    time_range: RangeOption = None,
    nvtx: NvtxOption = None,
    skip_first: SkipFirstOption = None,
    pid: PidOption = None,
    device: DeviceOption = None,
    top: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--top", metavar="N", min=1, help="Show only the N largest changes. JSON has all."),
    ] = None,
    source_root: SourceRootOption = None,
    no_source: NoSourceOption = False,
) -> None:
    """Compare two runs: which sync places are gone, new, better, worse or unchanged, and where the time went.

    Prints the comparison and writes BEFORE-vs-AFTER.sync-diff.html into the current folder. The exit status does not
    say whether anything became worse.
    """
    stem = "-vs-".join(stem_of(path).removesuffix(".sync") for path in (before, after))
    outputs = plan(formats or [], output, stem, (before, after), offered=DiffFormat, kind="sync-diff")
    selected = parse_range(time_range) if time_range is not None else None
    given = {
        "--range": time_range,
        "--nvtx": nvtx,
        "--skip-first": skip_first,
        "--pid": pid,
        "--device": device,
        "--source-root": source_root,
    }
    chosen = [name for name, value in given.items() if value not in (None, 0)]

    from nsys_sync.saved import is_saved_analysis, read_analysis

    saved = [path for path in (before, after) if is_saved_analysis(path)]
    if saved and chosen:
        raise UsageError(
            f"{chosen[0]}: {saved[0]} is a saved analysis, of which no other part can be analysed. Leave the option "
            "out, or name the trace"
        )

    from nsys_sync.analysis.comparison import compare  # pandas and pyarrow, only now that the options make sense
    from nsys_sync.pipeline import analyze

    runs = [
        read_analysis(path)
        if path in saved
        else analyze(
            path,
            time_range=selected,
            nvtx=nvtx,
            skip_first=skip_first or 0,
            pid=pid,
            device=device,
            source_root=source_root,
            no_source=no_source,
            progress=shown_progress(),
        )
        for path in (before, after)
    ]
    comparison = compare(*runs)
    if no_source:
        comparison = _without_source(comparison)
    write_made([(one, _rendered(comparison, one, top)) for one in outputs])


def _without_source(comparison: Comparison) -> Comparison:
    """A saved analysis has the lines of its sites, and evidence that quotes them."""

    def stripped(place: PlaceInRun | None) -> PlaceInRun | None:
        if place is None or place.source is None:
            return place
        return replace(place, source=None, dependency=replace(place.dependency, evidence=()))

    pairs = tuple(replace(one, before=stripped(one.before), after=stripped(one.after)) for one in comparison.pairs)
    return replace(comparison, pairs=pairs)


def _rendered(comparison: Comparison, output: Output, top: int | None) -> bytes:
    # Each renderer is imported only where it is used: matplotlib alone costs more than reading a small trace.
    if output.format is DiffFormat.terminal:
        from nsys_sync.render.diff_terminal import render_diff_terminal

        return for_terminal(
            output,
            lambda width, color: render_diff_terminal(
                comparison, width=width, color=color, top=top or SITES_IN_TERMINAL
            ),
        )
    if output.format is DiffFormat.html:
        from nsys_sync.render.diff_html import render_diff_html

        return render_diff_html(comparison, top=top).encode("utf-8", "replace")
    if output.format is DiffFormat.markdown:
        from nsys_sync.render.diff_markdown import render_diff_markdown

        return render_diff_markdown(comparison, top=top).encode("utf-8", "replace")
    from nsys_sync.render.json_report import render_json

    return render_json(comparison).encode("utf-8", "replace")
