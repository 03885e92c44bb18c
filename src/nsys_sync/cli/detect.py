"""`nsys-sync detect`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from nsys_sync.cli.outputs import SITES_IN_TERMINAL, Format, Output, OutputOption, for_terminal, plan, say, write_made
from nsys_sync.cli.selection import LibraryCodeOption, UserCodeOption
from nsys_sync.errors import NsysSyncError, UsageError

if TYPE_CHECKING:
    from nsys_sync.model import Detection


def detect(
    program: Annotated[
        Optional[list[str]],  # noqa: UP045 (typer reads the annotation at run time, on Python 3.10 too)
        typer.Argument(metavar="PROGRAM [ARGS]...", help="A Python file, with its arguments."),
    ] = None,
    module: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("-m", metavar="MODULE", help="Run a Python module instead; what follow are its arguments."),
    ] = None,
    output: OutputOption = None,
    formats: Annotated[
        Optional[list[Format]],  # noqa: UP045
        typer.Option("--format", "-f", help="May be given more than once. Default: terminal, on standard error."),
    ] = None,
    top: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--top", metavar="N", min=1, help="Only the N sites with most calls, in every format."),
    ] = None,
    user_code: UserCodeOption = None,
    library_code: LibraryCodeOption = None,
    no_source: Annotated[
        bool, typer.Option("--no-source", help="Read no source files: fewer causes are known, and no line is quoted.")
    ] = False,
) -> None:
    """Run a PyTorch program and list the lines that make the CPU wait for the GPU: no nsys, and no times.

    Everything after the program's name belongs to the program. So do standard output and the exit status.
    """
    arguments = _arguments(program or [], module)
    name = module or Path(arguments[0]).name
    outputs = plan(
        formats or ([] if output not in (None, "-") else [Format.terminal]),
        output,
        f"{module or Path(arguments[0]).stem}.detect",
        [],
    )
    from nsys_sync.live.watching import run_watched
    from nsys_sync.nsys.profile import users_python

    began = datetime.now(timezone.utc)
    python = users_python()
    try:
        watched = run_watched(python, arguments)
    except OSError as error:
        if error.filename is None:  # no temporary folder, no room in it, or no more processes
            raise
        raise UsageError(f"{python}: does not run ({error.strerror}). Is it a Python?") from error

    # Read after the program has run, so that nothing of it waits for pandas.
    from nsys_sync.analysis.detection import detection
    from nsys_sync.source_files import read_sources

    def read(paths: Sequence[str]) -> Mapping[str, str]:
        found = {} if no_source else read_sources(paths, began.isoformat(), None)
        return {path: one.text for path, one in found.items()}

    try:
        detected = detection(
            watched.findings,
            program=name,
            exit_status=watched.exit_status,
            read_sources=read,
            user_code=user_code or (),
            library_code=library_code or (),
            top=top,
        )
        # Standard output is the program's alone, unless it was asked for.
        to_stderr = output != "-"
        write_made([(one, _rendered(detected, one, top, to_stderr)) for one in outputs], to_stderr=to_stderr)
    except NsysSyncError as error:
        # The program ran: its exit status stands.
        from nsys_sync.render.text import plain

        say(f"nsys-sync: no sync report: {plain(str(error))}")
    raise typer.Exit(watched.exit_status)


def _arguments(program: list[str], module: str | None) -> list[str]:
    """The program as `python` takes it. Raises UsageError."""
    if module is not None:
        return ["-m", module, *program]
    if not program:
        raise UsageError("no program given. Type: nsys-sync detect train.py")
    if not Path(program[0]).exists():
        raise UsageError(f"{program[0]}: no such file. For a Python module, type: nsys-sync detect -m {program[0]}")
    # A name that begins with a dash must not look like `-m`.
    return [f"./{program[0]}" if program[0].startswith("-") else program[0], *program[1:]]


def _rendered(detection: Detection, output: Output, top: int | None, to_stderr: bool) -> bytes:
    if output.format is Format.terminal:
        from nsys_sync.render.detected_terminal import render_detected_terminal

        most = top or SITES_IN_TERMINAL
        return for_terminal(
            output,
            lambda width, color: render_detected_terminal(detection, width=width, color=color, top=most),
            to_stderr=to_stderr,
        )
    if output.format is Format.html:
        from nsys_sync.render.detected_html import render_detected_html

        return render_detected_html(detection).encode("utf-8", "replace")
    if output.format is Format.markdown:
        from nsys_sync.render.detected_markdown import render_detected_markdown

        return render_detected_markdown(detection).encode("utf-8", "replace")
    if output.format is Format.json:
        from nsys_sync.render.json_report import render_json

        return render_json(detection).encode("utf-8", "replace")
    from nsys_sync.render.tables import detected_table, to_csv_bytes, to_parquet_bytes

    table = detected_table(detection)
    return to_csv_bytes(table) if output.format is Format.csv else to_parquet_bytes(table)
