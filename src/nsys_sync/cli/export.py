"""`nsys-sync export`."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Optional

import typer

from nsys_sync.cli.progress import shown_progress
from nsys_sync.errors import OutputError, UsageError


def export(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="A report of nsys; with --scrub, also an export.")],
    output: Annotated[
        Optional[Path],  # noqa: UP045 (typer reads the annotation at run time, on Python 3.10 too)
        typer.Option("--output", "-o", metavar="OUT", help="The SQLite file to write. Default: beside the report."),
    ] = None,
    scrub: Annotated[
        bool,
        typer.Option(
            "--scrub", help="Leave out environment, command lines, names of users and hosts, and other processes."
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the output if it exists.")] = False,
) -> None:
    """Export a report to SQLite with its Python stacks; --scrub makes a copy that is safe to share."""
    from nsys_sync.nsys import export as exporting
    from nsys_sync.nsys.find import find_nsys

    is_report = exporting.is_report(trace)
    if not is_report and not scrub:
        raise UsageError(f"{trace}: is no report (.nsys-rep), so there is nothing to export. To clean it, add --scrub")
    if not trace.name or trace.is_dir():
        raise UsageError(f"{trace}: is a folder. Name the report inside it")
    target = output or trace.with_suffix(".scrubbed.sqlite" if scrub else ".sqlite")
    if target.exists() and trace.exists() and target.samefile(trace):
        raise UsageError(f"{target}: would overwrite the trace itself. Name another file with -o")
    if target.is_dir():
        raise UsageError(f"{target}: is a folder. Name a file with -o")
    target = target.resolve() if target.is_symlink() else target
    if target.exists() and not target.is_file():
        raise UsageError(f"{target}: is a device or a pipe, and SQLite needs a file. Name one with -o")
    if target.exists() and not force:
        raise OutputError(f"{target}: exists. Name another file with -o, or replace it with --force")
    if not scrub:
        exporting.export(trace, target, find_nsys(), shown_progress())
    else:
        _write_scrubbed(trace, target, is_report=is_report)
    print(f"Wrote {target}", file=sys.stderr)


def _write_scrubbed(trace: Path, target: Path, *, is_report: bool) -> None:
    from contextlib import closing

    from nsys_sync.nsys import export as exporting
    from nsys_sync.nsys.find import find_nsys
    from nsys_sync.nsys.scrub import scrub
    from nsys_sync.trace.sqlite_file import SqliteFile

    try:
        folder = tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise OutputError(f"{target}: cannot be written ({error.strerror}). Name another place with -o") from error
    with folder as name:
        copy = Path(name) / "copy.sqlite"
        if is_report:
            exporting.export(trace, copy, find_nsys(), shown_progress())
        else:
            with closing(SqliteFile(trace)):
                shutil.copyfile(trace, copy)
        removed = scrub(copy)
        copy.replace(target)
    print(removed, file=sys.stderr)
