"""`nsys-sync doctor`."""

from __future__ import annotations

import sys
import textwrap

import typer

from nsys_sync.cli.outputs import width_of
from nsys_sync.nsys.doctor import diagnose, exact_stacks
from nsys_sync.render.text import plain


def doctor() -> None:
    """Say whether nsys-sync profile will give exact stacks on this machine, and what to do where it will not.

    Exit status 0 when it will, else 1.
    """
    checks = diagnose()
    for check in checks:
        _show(f"{check.status:8}", f"{check.name}: {plain(check.found)}")
        for line in check.remedy.splitlines():
            _show(" " * 12, plain(line))
    if not exact_stacks(checks):
        failed = ", ".join(check.name for check in checks if check.status == "failed")
        typer.echo()
        _show("", f"nsys-sync profile will not give exact stacks here: {failed}.")
        raise typer.Exit(1)
    if any(check.status == "warning" for check in checks):
        typer.echo()
        _show("", "Nothing here keeps nsys-sync profile from giving exact stacks. Mind the warnings above.")
    else:
        typer.echo("\nnsys-sync profile will give exact stacks here.")


def _show(before: str, text: str) -> None:
    """One line, which is wrapped in a terminal: at blanks alone, as commands and paths are to be copied."""
    if sys.stdout is None or not sys.stdout.isatty():
        typer.echo(before + text)
        return
    typer.echo(
        textwrap.fill(
            text,
            width_of(sys.stdout),
            initial_indent=before,
            subsequent_indent=" " * len(before),
            break_long_words=False,
            break_on_hyphens=False,
        )
    )
