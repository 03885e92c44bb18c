"""`nsys-sync export`."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Annotated, Optional

import typer

from nsys_sync.cli.outputs import say, stem_of, would_replace
from nsys_sync.cli.progress import shown_progress
from nsys_sync.errors import OutputError, UsageError
from nsys_sync.regular_files import is_folder, with_a_name
from nsys_sync.render.text import plain

CHUNK = 1 << 20


def export(
    trace: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE", help="A report of nsys or a Parquet folder of one; with --scrub, also an SQLite export."
        ),
    ],
    output: Annotated[
        Optional[Path],  # noqa: UP045 (typer reads the annotation at run time, on Python 3.10 too)
        typer.Option("--output", "-o", metavar="OUT", help="The SQLite file to write. Default: beside TRACE."),
    ] = None,
    scrub: Annotated[
        bool,
        typer.Option(
            "--scrub", help="Leave out environment, command lines, names of users and hosts, and other processes."
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the output if it exists.")] = False,
) -> None:
    """Export a report to SQLite with its Python stacks; --scrub makes a copy that is safe to share.

    Of a Parquet folder, the tables that an analysis reads are exported.
    """
    from nsys_sync.nsys.export import is_report, require_report

    if not is_report(trace) and not is_folder(trace) and not scrub:
        raise UsageError(f"{trace}: is no report (.nsys-rep), so there is nothing to export. To clean it, add --scrub")
    if is_report(trace):
        require_report(trace)
    trace = with_a_name(trace)
    target = output or trace.parent / (stem_of(trace) + (".scrubbed.sqlite" if scrub else ".sqlite"))
    if would_replace(target, trace):
        raise UsageError(f"{target}: would overwrite the trace itself. Name another file with -o")
    if target.is_dir():
        raise UsageError(f"{target}: is a folder. Name a file with -o")
    target = target.resolve() if target.is_symlink() else target
    if target.exists() and not target.is_file():
        raise UsageError(f"{target}: is a device or a pipe, and SQLite needs a file. Name one with -o")
    if target.exists() and not force:
        raise OutputError(f"{target}: exists. Name another file with -o, or replace it with --force")
    if not scrub:
        _export(trace, target)
    else:
        _write_scrubbed(trace, target)
    say(f"Wrote {plain(str(target))}")


def _export(trace: Path, target: Path) -> None:
    if is_folder(trace):
        from nsys_sync.nsys.parquet import convert

        convert(trace, target, shown_progress())
    else:
        from nsys_sync.nsys.export import export
        from nsys_sync.nsys.find import find_nsys

        export(trace, target, find_nsys(), shown_progress())


def _write_scrubbed(trace: Path, target: Path) -> None:
    from contextlib import closing

    from nsys_sync.nsys.export import is_report
    from nsys_sync.nsys.scrub import scrub
    from nsys_sync.trace.sqlite_file import SqliteFile

    try:
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
            copy = Path(folder) / "copy.sqlite"
            if is_report(trace) or is_folder(trace):
                _export(trace, copy)
            else:
                with closing(SqliteFile(trace)):
                    _copy(trace, copy)
            removed = scrub(copy)
            copy.replace(target)
    except OSError as error:
        raise OutputError(f"{target}: cannot be written ({error.strerror}). Name another place with -o") from error
    say(str(removed))


def _copy(trace: Path, copy: Path) -> None:
    """Holes stay holes: a file of 10 GB can have 1 MB in it, and the disk room for no more."""
    with trace.open("rb") as source, copy.open("wb") as target:
        size = os.fstat(source.fileno()).st_size
        end = 0
        while end < size:
            try:
                begin = os.lseek(source.fileno(), end, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                break  # the rest is a hole
            end = os.lseek(source.fileno(), begin, os.SEEK_HOLE)
            target.seek(begin)
            source.seek(begin)
            while chunk := source.read(min(CHUNK, end - source.tell())):
                target.write(chunk)
        target.truncate(size)
