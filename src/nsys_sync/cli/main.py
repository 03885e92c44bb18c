"""The `nsys-sync` command."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Annotated, cast

import typer

from nsys_sync import __version__
from nsys_sync.cli import check, demo, detect, diff, doctor, export, profile, report
from nsys_sync.cli.outputs import discard_standard_output
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
app.command("detect", cls=EndsAtProgram, context_settings=PROGRAM_OPTIONS)(detect.detect)
app.command("profile", cls=EndsAtProgram, context_settings=PROGRAM_OPTIONS)(profile.profile)
app.command("report")(report.report)
app.command("diff")(diff.diff)
app.command("check")(check.check)
app.command("export")(export.export)
app.command("demo")(demo.demo)
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
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end_tidily)
    try:
        sys.exit(app(standalone_mode=False))
    except NsysSyncError as error:
        _complain(str(error))
        sys.exit(error.exit_status)
    except CommandLineError as error:
        message = getattr(error, "format_message", error.__str__)()
        _complain(f"{message.rstrip('.')}. Type nsys-sync --help, or nsys-sync COMMAND --help")
        sys.exit(EXIT_USAGE)
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(EXIT_INTERRUPTED)
    except MemoryError:
        _complain("not enough memory. Use a machine with more, or, if a trace needs it, export a shorter part of that")
        sys.exit(1)
    except BrokenPipeError:
        discard_standard_output()
        sys.exit(0)


def _end_tidily(number: int, _: FrameType | None) -> None:
    """As after Ctrl-C: temporary files go, and programs that were started end."""
    sys.exit(128 + number)


def _complain(message: str) -> None:
    from nsys_sync.render.text import plain

    print(f"nsys-sync: error: {plain(message)}", file=sys.stderr)


if __name__ == "__main__":
    main()
