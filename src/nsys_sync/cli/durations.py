"""Durations, time ranges and shares as people type them: `1.5s`, `250us`, `1.5s:2s`, `5%`."""

from __future__ import annotations

import re
from decimal import Decimal

from nsys_sync.errors import UsageError

NS_PER_UNIT = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
LONGEST_NS = 2**61
"""73 years: sums of two such times still fit 64 bits."""
_DURATION = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*(ns|us|µs|ms|s)\s*")
_SHARE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")


def parse_duration(text: str, option: str) -> int:
    """Nanoseconds. Raises UsageError for anything but a number with a unit."""
    match = _DURATION.fullmatch(text)
    if not match:
        raise UsageError(f"{option}: {text!r} is no time. Give a number with its unit (ns, us, ms or s), such as 1.5s")
    value = int(Decimal(match[1]) * NS_PER_UNIT[match[2]])
    if abs(value) > LONGEST_NS:
        raise UsageError(f"{option}: {text!r} is longer than any trace. Give a number with its unit, such as 1.5s")
    return value


def parse_range(text: str) -> tuple[int | None, int | None]:
    """`1.5s:2s` → ns since the session start; either end may be left out. Raises UsageError."""
    ends = text.split(":")
    if len(ends) != 2 or not any(end.strip() for end in ends):
        raise UsageError(f"--range: {text!r} is no range. Give two times with a colon between, such as 1.5s:2s")
    low, high = (parse_duration(end, "--range") if end.strip() else None for end in ends)
    if low is not None and high is not None and high <= low:
        raise UsageError(f"--range: {text!r} ends before it begins")
    return low, high


def parse_share(text: str, option: str) -> float:
    """`5%` → 0.05. Raises UsageError for anything but a percentage up to 100."""
    match = _SHARE.fullmatch(text)
    if not match or Decimal(match[1]) > 100:
        raise UsageError(f"{option}: {text!r} is no share. Give a percentage of 0 to 100 with its sign, such as 5%")
    return float(Decimal(match[1]) / 100)
