"""Command lines that end in another program's command line."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class EndsAtProgram(TyperCommand):
    """Options end where the program begins: at its name, at `--`, or after `-m MODULE`, as in Python itself."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        takes_value = {
            name for parameter in self.params if not getattr(parameter, "is_flag", True) for name in parameter.opts
        }
        at = 0
        while at < len(args) and args[at].startswith("-") and args[at] != "--":
            if args[at] == "-m" or (args[at].startswith("-m") and not args[at].startswith("--")):
                at += 2 if args[at] == "-m" else 1
                args = [*args[:at], "--", *args[at:]] if at <= len(args) else args
                break
            at += 2 if args[at] in takes_value else 1
        return super().parse_args(ctx, args)
