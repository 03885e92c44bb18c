"""The `nsys-sync` command."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
from types import FrameType
from typing import Annotated, NoReturn, cast

import typer

from nsys_sync import __version__
from nsys_sync.cli import check, demo, detect, diff, doctor, export, profile, report
from nsys_sync.cli.memory import with_memory
from nsys_sync.cli.outputs import flush_standard_output, say
from nsys_sync.cli.program_arguments import EndsAtProgram
from nsys_sync.errors import NsysSyncError

CommandLineError = cast("type[Exception]", typer.BadParameter.__mro__[1])
"""The base of the parser's own complaints; typer brings its own copy of click in some versions."""
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

app = typer.Typer(
    name="nsys-sync",
    help="Which lines of a GPU program make the CPU wait for the GPU, what each costs, and where the GPU's time went.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
PROGRAM_OPTIONS = {"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]}
app.command("detect", cls=EndsAtProgram, context_settings=PROGRAM_OPTIONS)(with_memory(detect.detect))
app.command("profile", cls=EndsAtProgram, context_settings=PROGRAM_OPTIONS)(with_memory(profile.profile))
app.command("report")(with_memory(report.report))
app.command("diff")(with_memory(diff.diff))
app.command("check")(with_memory(check.check))
app.command("export")(with_memory(export.export))
app.command("demo")(with_memory(demo.demo))
app.command("doctor")(doctor.doctor)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nsys-sync {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Entry point: exit status 0 done, 1 failed, 2 wrong usage."""
    _open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # LANG=C and the like: help has letters beyond ASCII
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end_tidily)
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it would complain that it can keep no list of fonts
    try:
        try:
            status = app(standalone_mode=False)
        finally:
            flush_standard_output()
        sys.exit(status)
    except NsysSyncError as error:
        _end(error.exit_status, str(error))
    except CommandLineError as error:
        message = getattr(error, "format_message", error.__str__)()
        _end(EXIT_USAGE, f"{message.rstrip('.')}. Type nsys-sync --help, or nsys-sync COMMAND --help")
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(EXIT_INTERRUPTED)
    except MemoryError:
        _end(1, "not enough memory. Use a machine with more, or, if a trace needs it, export a shorter part of that")
    except OSError as error:  # what no command can say more of: no temporary folder, no room in it, no current folder
        where = f"{error.filename}: " if error.filename is not None else ""
        _end(1, f"{where}{error.strerror or error}. Is the disk full? Another temporary folder: export TMPDIR=FOLDER")
    except RuntimeError as error:
        if str(error) != "can't start new thread":
            raise
        _end(1, "no thread can be started. See how many are allowed, and how much memory: ulimit -u; ulimit -v")


def _open_closed_streams() -> None:
    """In the place of a closed one would come the next file that is opened, and libraries would write into that."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(opened)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115 (for good)


def _end_tidily(number: int, _: FrameType | None) -> None:
    """As after Ctrl-C: temporary files go, and programs that were started end."""
    sys.exit(128 + number)


def _end(status: int, message: str) -> NoReturn:
    from nsys_sync.render.text import plain

    say(f"nsys-sync: error: {plain(message)}")
    sys.exit(status)


if __name__ == "__main__":
    main()
