"""What to do about a line that makes the CPU wait for the GPU."""

from __future__ import annotations


def advice_for(source_line: str) -> str:
    """One sentence for the source line, which is empty where the source is not at hand."""
    return (
        "Find what reads the value on the CPU, and what the wait costs, with: nsys-sync profile …; "
        "if it is meant, put it within nsys_sync.allow_sync(reason)."
    )
