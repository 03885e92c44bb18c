"""`nsys-sync doctor`."""

from __future__ import annotations

import typer

from nsys_sync.nsys.doctor import diagnose, exact_stacks
from nsys_sync.render.text import plain


def doctor() -> None:
    """Say whether nsys-sync profile will give exact stacks on this machine, and what to do where it will not.

    Exit status 0 when it will, else 1.
    """
    checks = diagnose()
    for check in checks:
        typer.echo(f"{check.status:8}{check.name}: {plain(check.found)}")
        for line in check.remedy.splitlines():
            typer.echo(f"{'':12}{plain(line)}")
    if not exact_stacks(checks):
        failed = ", ".join(check.name for check in checks if check.status == "failed")
        typer.echo(f"\nnsys-sync profile will not give exact stacks here: {failed}.")
        raise typer.Exit(1)
    if any(check.status == "warning" for check in checks):
        typer.echo("\nNothing here keeps nsys-sync profile from giving exact stacks. Mind the warnings above.")
    else:
        typer.echo("\nnsys-sync profile will give exact stacks here.")
