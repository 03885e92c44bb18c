"""`nsys-sync profile`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from nsys_sync.cli.durations import parse_duration
from nsys_sync.cli.outputs import Format, plan, say, show, write
from nsys_sync.cli.progress import shown_progress
from nsys_sync.errors import NsysSyncError, UsageError

if TYPE_CHECKING:
    from nsys_sync.nsys.profile import Captured

LONGEST_SECONDS = 86_400
EXIT_ABORTED = 134
EXIT_SEGMENTATION_FAULT = 139


def profile(
    program: Annotated[
        Optional[list[str]],  # noqa: UP045 (typer reads the annotation at run time, on Python 3.10 too)
        typer.Argument(metavar="PROGRAM [ARGS]...", help="A Python file or a program, with its arguments."),
    ] = None,
    module: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("-m", metavar="MODULE", help="Run a Python module instead; what follows are its arguments."),
    ] = None,
    output: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--output", "-o", metavar="NAME", help="Name of the report; nsys's %p, %q{VAR}, %h, %n work."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the report if it exists.")] = False,
    no_report: Annotated[bool, typer.Option("--no-report", help="Only capture.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the nsys command and do nothing.")] = False,
    formats: Annotated[
        Optional[list[Format]],  # noqa: UP045
        typer.Option("--format", "-f", help="Of the sync report. Default: terminal and html."),
    ] = None,
    all_backtraces: Annotated[
        bool,
        typer.Option(
            "--all-backtraces", help="Stacks for copies and frees too: for code with blocking CUDA calls of its own."
        ),
    ] = False,
    backtrace_threshold: Annotated[
        str, typer.Option("--backtrace-threshold", metavar="TIME", help="No stack for shorter syncs, such as 10us.")
    ] = "0ns",
    sampling_frequency: Annotated[
        int, typer.Option("--sampling-frequency", metavar="HZ", min=1, max=2000, help="Python samples a second.")
    ] = 1000,
    capture_range: Annotated[
        str,
        typer.Option("--capture-range", metavar="RANGE", help="cudaProfilerApi, nvtx:NAME, nvtx:NAME@DOMAIN or none."),
    ] = "none",
    delay: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--delay", metavar="TIME", help="Start capturing after this time, such as 30s."),
    ] = None,
    duration: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--duration", metavar="TIME", help="Stop capturing after this time; the program goes on."),
    ] = None,
    graph_trace: Annotated[
        str, typer.Option("--graph-trace", metavar="node|graph", help="CUDA graphs by node or as a whole.")
    ] = "node",
    nsys_arguments: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--nsys-arg", metavar="ARG", help="Passed to nsys, and wins over ours. Repeatable."),
    ] = None,
) -> None:
    """Run a program under nsys, with a Python stack for every sync, and report.

    Everything after the program's name belongs to the program. The exit status is the program's.
    """
    if output == "" or (output or "").endswith("/"):
        raise UsageError(f"-o {output!r}: names no report. Give it a name, such as -o trace")
    if graph_trace not in ("node", "graph"):
        raise UsageError(f"--graph-trace {graph_trace}: must be node or graph")
    from nsys_sync.nsys import profile as capturing
    from nsys_sync.nsys.find import find_nsys

    command = capturing.program_command(program or [], module)
    options = capturing.CaptureOptions(
        output=output or (module or Path((program or ["report"])[0]).stem).replace("%", "%%"),
        force=force,
        all_backtraces=all_backtraces,
        backtrace_threshold_ns=parse_duration(backtrace_threshold, "--backtrace-threshold"),
        sampling_hz=sampling_frequency,
        capture_range=capture_range,
        delay_s=_seconds(delay, "--delay"),
        duration_s=_seconds(duration, "--duration"),
        graph_trace=graph_trace,
        nsys_arguments=tuple(nsys_arguments or ()),
    )
    nsys = find_nsys()
    nsys_command, warnings = capturing.capture_command(nsys, options, command)
    for warning in warnings:
        _say(f"warning: {warning}")
    if dry_run:
        show(os.fsencode(f"{shlex.join(nsys_command)}\n"))
        return
    ours = any(part.startswith("--output=") for part in nsys_command[: len(nsys_command) - len(command)])
    wanted = capturing.report_path(options.output) if ours and not options.nsys_arguments else None
    if wanted is not None and not wanted.parent.is_dir():
        raise UsageError(f"{wanted}: there is no folder {wanted.parent}. Make it, or name another report with -o")
    if wanted is not None and wanted.exists() and not force:
        raise UsageError(f"{wanted}: exists. Name another report with -o, or replace it with --force")
    captured = capturing.capture(nsys_command, command)
    if list(captured.program) != command:
        _say(
            "nsys's Python backtraces crash on file names beyond ASCII, so the program was started through a link: "
            f"its file appears as {captured.program[1]}"
        )
    if captured.exit_status == EXIT_SEGMENTATION_FAULT:
        _say(
            "the program died of a segmentation fault. Does it without a profiler too? nsys 2023.4 crashes programs "
            "that have file or function names beyond ASCII; without Python stacks it does not: add "
            "--nsys-arg=--python-backtrace=none --nsys-arg=--python-sampling=false"
        )
    if captured.exit_status == EXIT_ABORTED:
        _say(
            "the program was aborted (134). The Python sampling of nsys 2023.4 does that now and then at the end of a "
            "very short program; without it: --nsys-arg=--python-sampling=false"
        )
    _explain(captured, capture_range, delay)
    if captured.report is not None:
        _say(f"wrote {captured.report}")
        if captured.report.parent == Path("/tmp") and captured.report.name.startswith("nsys-report-"):
            _say(
                "warning: nsys could not write the report under the name asked for (does it exist already, or can the "
                "folder not be written?). Replace an existing report with --force"
            )
        if not no_report:
            _report(captured.report, formats or [])
    raise typer.Exit(captured.exit_status)


def _seconds(text: str | None, option: str) -> float | None:
    if text is None:
        return None
    seconds = parse_duration(text, option) / 1e9
    if not 0 < seconds < LONGEST_SECONDS:
        raise UsageError(f"{option} {text}: must be more than 0 and less than a day")
    return seconds


def _report(report: Path, formats: list[Format]) -> None:
    from nsys_sync.pipeline import analyze

    try:
        outputs = plan(formats, None, report.stem, [report], per_operation=False)
        write(analyze(report, progress=shown_progress()), outputs, top=None, per_operation=False)
    except NsysSyncError as error:
        # The program ran and its report is there: its exit status stands, and what could not be said is said.
        _say(f"no sync report: {error}")


def _explain(captured: Captured, capture_range: str, delay: str | None) -> None:
    """Says what went wrong with the capture, judged by the report file: nsys's exit status proves nothing."""
    from nsys_sync.nsys.profile import importer_damage, left_behind

    damage = [] if "No space left" in captured.messages else importer_damage(captured.messages)
    for complaint in damage[:3]:
        _say(f"warning: nsys lost events while importing ({complaint}); the driver may be newer: use a newer nsys")
    if captured.report is not None:
        return
    raw = left_behind(captured.messages)
    if raw is not None:
        _say(f"error: nsys made no report of the capture {raw}. Import it with a complete nsys of that version")
    elif "Agent" in captured.messages and "lost" in captured.messages:
        _say("error: nsys lost its own helper process and wrote no report; this happens now and then. Try again")
    elif "No space left" in captured.messages:
        _say("error: nsys wrote no report: no space left on the disk. Free some in /tmp and in the report's folder")
    elif delay is not None:
        _say(f"error: nsys wrote no report. Did the program end before --delay {delay}?")
    elif capture_range != "none":
        _say(
            f"error: no report was written: the capture range {capture_range} never opened. Does the program call "
            "cudaProfilerStart, or push that NVTX range, before it ends? (nsys 2023.4 then aborts the program at its "
            "end, with exit status 134.)"
        )
    else:
        said = " ".join(captured.messages.split())[-300:]
        why = f"It said: {said}" if said else "It said nothing. Has its temporary folder room? Type: nsys-sync doctor"
        _say(f"error: nsys wrote no report. {why}")


def _say(message: str) -> None:
    from nsys_sync.render.text import plain

    say(f"nsys-sync: {plain(message)}")
