"""What the user asked to see of a trace."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nsys_sync.errors import UsageError

TimeRange = tuple[int | None, int | None]


@dataclass(frozen=True)
class Options:
    """As `nsys_sync.analyze` takes them. Raises UsageError for values that make no sense together."""

    time_range: TimeRange | None = None
    nvtx: str | None = None
    skip_first: int = 0
    pid: int | None = None
    device: int | None = None
    top: int | None = None
    min_stall_ns: int = 0
    user_code: tuple[str, ...] = ()
    library_code: tuple[str, ...] = ()
    source_root: Path | None = None
    no_source: bool = False

    def __post_init__(self) -> None:
        if self.skip_first and self.nvtx is None:
            raise UsageError("--skip-first needs --nvtx: it says how many of those ranges to leave out")
        if self.source_root is not None and self.no_source:
            raise UsageError("--source-root and --no-source exclude each other")
        if self.skip_first < 0 or self.min_stall_ns < 0 or (self.top is not None and self.top < 1):
            raise UsageError("--skip-first and --min-stall must not be negative, and --top must be at least 1")

    @property
    def selection(self) -> str | None:
        """What restricts the view, in words; None where nothing does."""
        parts = []
        if self.time_range is not None:
            low, high = ("" if bound is None else _seconds(bound) for bound in self.time_range)
            parts.append(f"time range {low}:{high}")
        if self.nvtx is not None:
            less = f", the first {self.skip_first} of each thread left out" if self.skip_first else ""
            parts.append(f"NVTX ranges {self.nvtx}{less}")
        if self.pid is not None:
            parts.append(f"process {self.pid}")
        if self.device is not None:
            parts.append(f"device {self.device}")
        return "; ".join(parts) or None


def _seconds(ns: int) -> str:
    return f"{ns / 1e9:.9f}".rstrip("0").rstrip(".") + "s"
