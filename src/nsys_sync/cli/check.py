"""`nsys-sync check`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from nsys_sync.cli.config import Config, read_config
from nsys_sync.cli.durations import parse_range, parse_share
from nsys_sync.cli.outputs import (
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
from nsys_sync.model import Allowed

if TYPE_CHECKING:
    from nsys_sync.analysis.budgets import Budgets
    from nsys_sync.model import Analysis, CheckResult

EXAMPLE = "nsys-sync check TRACE --max-stall 5% --sync-free 'step *', or [tool.nsys-sync] in pyproject.toml"


class CheckFormat(OutputFormat):
    """Of a check."""

    terminal = "terminal"
    markdown = "markdown"
    json = "json"
    github = "github"
    junit = "junit"
    sarif = "sarif"


def check(
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE...",
            help="Reports of nsys, SQLite exports or Parquet folders of them (several are ranks of one run), or one "
            "saved JSON report.",
        ),
    ],
    max_stall: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--max-stall", metavar="SHARE", help="Largest stall of all sites, such as 5% of the window."),
    ] = None,
    max_syncs_per_step: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--max-syncs-per-step", metavar="N", min=0, help="Most sync operations in any step."),
    ] = None,
    sync_free: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--sync-free", metavar="NAME", help="NVTX range or pattern without any sync. Repeatable."),
    ] = None,
    forbid: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--forbid", metavar="CAUSE", help="No sync of this cause, such as print. Repeatable."),
    ] = None,
    baseline: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--baseline", metavar="FILE", help="A saved JSON report: no site that it has not."),
    ] = None,
    allow: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--allow",
            metavar="GLOB=REASON",
            help="Sites that no budget counts, by function ('log_*=once an epoch') or file ('*/log.py=…'). Repeatable.",
        ),
    ] = None,
    config: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--config", metavar="FILE", help="Read \\[tool.nsys-sync] here, not in the nearest pyproject.toml."
        ),
    ] = None,
    output: OutputOption = None,
    formats: Annotated[
        Optional[list[CheckFormat]],  # noqa: UP045
        typer.Option("--format", "-f", help="May be given more than once. Default: terminal."),
    ] = None,
    nvtx: NvtxOption = None,
    skip_first: SkipFirstOption = None,
    time_range: RangeOption = None,
    pid: PidOption = None,
    device: DeviceOption = None,
    source_root: SourceRootOption = None,
    no_source: NoSourceOption = False,
) -> None:
    """Hold a trace to budgets: exit status 0 held, 1 broken or not known, 2 wrong usage.

    Options given here win over \\[tool.nsys-sync] in pyproject.toml, each as a whole.
    """
    more = f"-and-{len(traces) - 1}-more" if len(traces) > 1 else ""
    configured = read_config(config, Path.cwd())
    budgets = _budgets(configured, max_stall, max_syncs_per_step, sync_free, forbid, baseline, allow)
    baseline = baseline or configured.baseline
    outputs = plan(
        formats or [],
        output,
        stem_of(traces[0]) + more,
        [*traces, baseline] if baseline else traces,
        offered=CheckFormat,
        default=("terminal",),
        kind="check",
    )
    selected = parse_range(time_range) if time_range is not None else None
    nvtx = configured.nvtx if nvtx is None else nvtx
    skip_first = configured.skip_first if skip_first is None else skip_first

    from nsys_sync.analysis import budgets as gate
    from nsys_sync.analysis.options import Options
    from nsys_sync.saved import is_saved_analysis, read_analysis

    choice: dict[str, Any] = {"time_range": selected, "nvtx": nvtx, "skip_first": skip_first or 0}
    choice |= {"pid": pid, "device": device}
    known = None if baseline is None else read_analysis(baseline)
    if any(is_saved_analysis(trace) for trace in traces):
        analysis = _saved(traces, Options(**choice).selection)
    else:
        from nsys_sync.pipeline import analyze

        analysis = analyze(*traces, **choice, source_root=source_root, no_source=no_source, progress=shown_progress())
    result = gate.check(analysis, budgets, known, _paths(analysis, source_root))
    write_made([(one, _rendered(result, one)) for one in outputs])
    if not result.held:
        raise typer.Exit(1)


def _budgets(
    configured: Config,
    max_stall: str | None,
    max_syncs_per_step: int | None,
    sync_free: list[str] | None,
    forbid: list[str] | None,
    baseline: Path | None,
    allow: list[str] | None,
) -> Budgets:
    """What the table says, with what the command line says instead. Raises UsageError where neither sets a limit."""
    given = {
        "max_stall_ratio": None if max_stall is None else parse_share(max_stall, "--max-stall"),
        "max_syncs_per_step": max_syncs_per_step,
        "sync_free_ranges": tuple(sync_free) if sync_free else None,
        "forbidden_causes": tuple(forbid) if forbid else None,
        "baseline": None if baseline is None else baseline.name,
        "allow": tuple(_allowed(text) for text in allow) if allow else None,
    }
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    budgets = replace(configured.budgets, **changes)
    if budgets.is_empty:
        where = f" (nor in {configured.file})" if configured.file else ""
        raise UsageError(f"no budget given{where}: nothing would be checked. Type {EXAMPLE}")
    return budgets


def _allowed(text: str) -> Allowed:
    """`log_*=once an epoch` → an entry. A glob with a slash, or ending in .py, is a file's."""
    glob, _, reason = text.partition("=")
    glob, reason = glob.strip(), reason.strip()
    if not glob:
        raise UsageError(f"--allow: {text!r} has no pattern. Give GLOB=REASON, such as 'log_*=logged once an epoch'")
    if not reason:
        raise UsageError(f"--allow: {text!r} has no reason. Give GLOB=REASON, such as 'log_*=logged once an epoch'")
    is_file = "/" in glob or glob.endswith((".py", ".ipynb"))
    return Allowed(None, glob, reason) if is_file else Allowed(glob, None, reason)


def _saved(traces: Sequence[Path], selection: str | None) -> Analysis:
    from nsys_sync.saved import read_analysis

    if len(traces) > 1:
        raise UsageError("a saved JSON report is checked alone: several ranks are saved by one nsys-sync report")
    analysis = read_analysis(traces[0])
    if selection is not None and selection != analysis.selection:
        raise UsageError(
            f"{traces[0]}: is a saved analysis of {analysis.selection or 'all of its trace'}, and cannot be narrowed "
            f"to {selection}. Give the trace itself, or save it with these options"
        )
    return analysis


def _paths(analysis: Analysis, source_root: Path | None) -> dict[str, str]:
    """Where the files of the sites are in the current folder, which in CI is the repository."""
    from nsys_sync.source_files import paths_below

    here = Path.cwd()
    files = [site.location.file for site in analysis.sites if site.location.file is not None]
    return paths_below(files, source_root or here, here)


def _rendered(result: CheckResult, output: Output) -> bytes:
    if output.format is CheckFormat.terminal:
        from nsys_sync.render.check.terminal import render_check_terminal

        return for_terminal(output, lambda width, color: render_check_terminal(result, width=width, color=color))
    if output.format is CheckFormat.markdown:
        from nsys_sync.render.check.markdown import render_check_markdown as render
    elif output.format is CheckFormat.json:
        from nsys_sync.render.check.json_form import render_check_json as render
    elif output.format is CheckFormat.github:
        from nsys_sync.render.check.github import render_check_github as render
    elif output.format is CheckFormat.junit:
        from nsys_sync.render.check.junit import render_check_junit as render
    else:
        from nsys_sync.render.check.sarif import render_check_sarif as render
    return render(result).encode("utf-8", "replace")
