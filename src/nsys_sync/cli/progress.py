"""Progress of long steps, on standard error where that is a terminal, and nowhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable

LINE = "\r\x1b[2K"


def shown_progress() -> Callable[[str, int], None]:
    """A function that shows a step's percentage; the line is wiped when the step is done."""
    if not sys.stderr.isatty():
        return lambda step, percent: None

    def show(step: str, percent: int) -> None:
        print(LINE + (f"{step}: {percent} %" if percent < 100 else ""), end="", file=sys.stderr, flush=True)

    return show
