"""Where reports go: which formats, which files, and writing them whole or not at all."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional, TextIO

import typer

from nsys_sync.errors import OutputError, UsageError
from nsys_sync.regular_files import is_folder, with_a_name
from nsys_sync.render.text import plain

if TYPE_CHECKING:
    from nsys_sync.model import Analysis

WIDTH_WITHOUT_TERMINAL = 100
SITES_IN_TERMINAL = 20


class OutputFormat(str, Enum):
    """What the formats of the commands have in common; the values are those of `--format`."""

    @property
    def ending(self) -> str:
        """Of the file's name."""
        endings = {"terminal": ".txt", "github": ".github.txt", "markdown": ".md", "junit": ".xml"}
        return endings.get(self.value, f".{self.value}")

    @property
    def on_screen(self) -> bool:
        """Whether it goes to standard output unless `-o` says otherwise."""
        return self.value in ("terminal", "github")


class Format(OutputFormat):
    """Of a report."""

    terminal = "terminal"
    html = "html"
    markdown = "markdown"
    json = "json"
    csv = "csv"
    parquet = "parquet"


OutputOption = Annotated[
    Optional[str],  # noqa: UP045 (typer reads the annotation at run time, on Python 3.10 too)
    typer.Option("--output", "-o", metavar="OUT", help="File or folder to write to; - is standard output."),
]
FormatsOption = Annotated[
    Optional[list[Format]],  # noqa: UP045
    typer.Option("--format", "-f", help="May be given more than once. Default: terminal and html."),
]


@dataclass(frozen=True)
class Output:
    """One report to make. `path` None is standard output; `new_folder` says that its folder is to be made."""

    format: OutputFormat
    path: Path | None
    new_folder: bool = False


def stem_of(trace: Path) -> str:
    """What reports of a trace are called after. A folder's name has no ending."""
    trace = with_a_name(trace)
    return trace.name if is_folder(trace) else trace.stem


def would_replace(path: Path, trace: Path, *, named: bool = True) -> bool:
    """Whether writing to `path` would change the trace. `named` is the path by the user; names of our own never do."""
    is_table = named and path.suffix == ".parquet" and is_folder(trace) and _same_file(path.parent, trace)
    return is_table or _same_file(path, trace)


def plan(
    formats: Sequence[OutputFormat],
    output: str | None,
    stem: str,
    inputs: Sequence[Path],
    *,
    per_operation: bool = False,
    offered: type[OutputFormat] = Format,
    default: Sequence[str] = ("terminal", "html"),
    kind: str = "sync",
) -> list[Output]:
    """Which reports go where; `offered` are the command's formats, `kind` is in the names of files it chooses.

    Without `formats`, the ending of `output` chooses one to go with the terminal's; without that, `default` does.
    Raises UsageError for a combination that makes no sense.
    """
    chosen = list(dict.fromkeys(formats))
    to_file = Path(output) if output not in (None, "-") else None
    is_folder = to_file is not None and (to_file.is_dir() or str(output).endswith(os.sep))
    if not chosen:
        names = ("terminal",) if output == "-" else default
        chosen = [offered(name) for name in names]
        if to_file is not None and not is_folder:
            known = {one.ending: one for one in offered if not one.on_screen}
            if to_file.suffix not in known:
                raise UsageError(
                    f"-o {output}: no format has this ending. Use one of {', '.join(known)}, or give --format"
                )
            chosen = [offered("terminal"), known[to_file.suffix]]
    files = [one for one in chosen if not one.on_screen]
    if per_operation and not {Format.csv, Format.parquet} & set(files):
        raise UsageError("--operations needs --format csv or --format parquet: only they can hold a row an operation")
    if output is not None and "\0" in output:
        raise UsageError("-o: no file can have a NUL in its name. Name another file")
    if output == "":
        raise UsageError("-o: is empty. Name a file or a folder, or - for standard output")
    if output == "-":
        if len(chosen) > 1:
            raise UsageError(f"-o - can take one format, not {len(chosen)}")
        return [Output(chosen[0], None)]
    if to_file is not None and not is_folder and len(files or chosen) > 1:
        raise UsageError(f"-o {output}: one file cannot hold {len(files or chosen)} formats. Name a folder that exists")
    planned: list[Output] = []
    for one in chosen:
        part = ".operations" if per_operation and one in (Format.csv, Format.parquet) else ""
        name = f"{stem}.{kind}{part}{one.ending}"
        if one.on_screen and (files or to_file is None):
            path = None
        elif to_file is None:
            path = Path(name)
        else:
            path = to_file / name if is_folder else to_file
        named = path is not None and path == to_file
        if path is not None and any(would_replace(path, given, named=named) for given in inputs):
            raise UsageError(f"-o {output}: would overwrite the trace itself. Name another file")
        taken = next((other for other in planned if path and other.path and _one_file(path, other.path)), None)
        if taken is not None:
            raise UsageError(
                f"-o {output}: {taken.format.value} and {one.value} would both be {path}. Write them apart"
            )
        planned.append(Output(one, path, new_folder=is_folder and path is not None))
    return planned


def write(analysis: Analysis, outputs: Sequence[Output], *, top: int | None, per_operation: bool) -> None:
    """Makes and writes every report, as `write_made`."""
    write_made([(one, _rendered(analysis, one, top, per_operation)) for one in outputs])


def write_made(made: Sequence[tuple[Output, bytes]], *, to_stderr: bool = False) -> None:
    """Writes reports, all of which are made; what goes to no file may go to standard error.

    Raises OutputError, leaving no half-written file.
    """
    for one, content in made:
        if one.path is not None:
            _replace(one.path, content, new_folder=one.new_folder)
    for one, content in made:
        if one.path is None:
            show(content, to_stderr=to_stderr)
    for one, _ in made:
        if one.path is not None:
            say(f"Wrote {plain(str(one.path))}")


def _rendered(analysis: Analysis, output: Output, top: int | None, per_operation: bool) -> bytes:
    # Each renderer is imported only where it is used: matplotlib alone costs more than reading a small trace.
    if output.format is Format.terminal:
        from nsys_sync.render.terminal import render_terminal

        return for_terminal(
            output,
            lambda width, color: render_terminal(analysis, width=width, color=color, top=top or SITES_IN_TERMINAL),
        )
    if output.format is Format.html:
        from nsys_sync.render.html import render_html

        return render_html(analysis).encode("utf-8", "replace")
    if output.format is Format.markdown:
        from nsys_sync.render.markdown import render_markdown

        return render_markdown(analysis).encode("utf-8", "replace")
    if output.format is Format.json:
        from nsys_sync.render.json_report import render_json

        return render_json(analysis).encode("utf-8", "replace")
    from nsys_sync.render.tables import sites_table, to_csv_bytes, to_parquet_bytes

    table = analysis.operations if per_operation else sites_table(analysis)
    return to_csv_bytes(table) if output.format is Format.csv else to_parquet_bytes(table)


def for_terminal(output: Output, render: Callable[[int, bool], str], *, to_stderr: bool = False) -> bytes:
    """What `render` makes of the width, and of whether colours are wanted, as bytes for where the output goes."""
    stream = None if output.path is not None else sys.stderr if to_stderr else sys.stdout
    color = stream is not None and stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    encoding = "utf-8" if stream is None else stream.encoding or "utf-8"
    return render(WIDTH_WITHOUT_TERMINAL if stream is None else width_of(stream), color).encode(encoding, "replace")


def width_of(stream: TextIO) -> int:
    """Columns: of COLUMNS where it is set, also for a pipe, as with other programs; else of the terminal."""
    given = os.environ.get("COLUMNS", "")
    if given.isascii() and given.isdigit() and int(given) > 0:
        return int(given)
    try:
        return os.get_terminal_size(stream.fileno()).columns or WIDTH_WITHOUT_TERMINAL
    except OSError:
        return WIDTH_WITHOUT_TERMINAL


def say(message: str) -> None:
    """One line on standard error, if anybody can read it there: what was done is done without it."""
    with suppress(OSError):
        print(message, file=sys.stderr, flush=True)
        return
    _discard(sys.stderr)


def flush_standard_output() -> None:
    """To be called before the end. Raises OutputError where it cannot be written."""
    if sys.stdout is not None:
        show(b"")


def _discard(stream: TextIO) -> None:
    """Python would complain when it flushes at its end what nobody reads, or what has no room."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def show(content: bytes, *, to_stderr: bool = False) -> None:
    """On standard output, or standard error. Raises OutputError where it cannot be written."""
    stream = sys.stderr if to_stderr else sys.stdout
    if stream is None:
        raise OutputError("standard output is closed. Name a file with -o")
    try:
        stream.flush()
        stream.buffer.write(content)
        stream.buffer.flush()
    except BrokenPipeError:  # whoever reads it (`| head`) has enough
        _discard(stream)
    except OSError as error:
        _discard(stream)
        name = "standard error" if to_stderr else "standard output"
        raise OutputError(f"{name}: cannot be written ({error.strerror}). Name a file with -o") from error


def _replace(path: Path, content: bytes, *, new_folder: bool) -> None:
    """Whole or not at all. A link is followed, and a device or pipe is written to, not replaced."""
    temporary: str | None = None
    try:
        if new_folder:
            path.parent.mkdir(exist_ok=True)
        path = path.resolve() if path.is_symlink() else path
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # noqa: PTH101 (mkstemp makes files for the owner alone)
        os.replace(temporary, path)  # noqa: PTH105
        temporary = None
    except OSError as error:
        raise OutputError(
            f"{path}: cannot be written ({error.strerror}). Name another place with -o, or - for standard output"
        ) from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def _one_file(a: Path, b: Path) -> bool:
    """A device or pipe takes what is written one after the other."""
    return (a == b or _same_file(a, b)) and (not a.exists() or a.is_file())


def _same_file(a: Path, b: Path) -> bool:
    return a.exists() and b.exists() and a.samefile(b)
