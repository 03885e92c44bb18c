"""What to do about a line that makes the CPU wait for the GPU."""

from __future__ import annotations

import linecache

from nsys_sync.analysis.advice import ADVICE, CAUSES
from nsys_sync.analysis.expressions import Expressions

OTHERWISE = (
    "If it is meant, put it within nsys_sync.allow_sync(reason); where the line does not tell what reads a value, and "
    "what the wait costs, says: nsys-sync profile …"
)


def advice_for(path: str, line: int, cause: str | None) -> str:
    """What to try first for the cause, or for the one that the line shows; and what else there is."""
    if cause is None:
        expressions = Expressions.parse("".join(linecache.getlines(path)))
        operation = expressions.operation(line, None) if expressions else None
        cause = operation.cause if operation else None
    if cause is None or not CAUSES[cause].advice:
        return OTHERWISE
    first = ADVICE[CAUSES[cause].advice[0]]
    return f"Try: {first.title}. {first.text} ({first.link}) {OTHERWISE}"
