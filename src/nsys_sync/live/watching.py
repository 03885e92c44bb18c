"""Starts a program under `watched`, and waits for it as a shell would."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from nsys_sync.live.findings import Findings, read_findings
from nsys_sync.live.watched import command

SIGNALLED = 128
"""A shell's exit status for a program that a signal ended is this, and the signal's number."""
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)


@dataclass(frozen=True)
class Watched:
    """A program that has ended, and what it showed until then."""

    exit_status: int
    findings: Findings


def run_watched(python: str, program: Sequence[str]) -> Watched:
    """Runs `program` (a file, or `-m` and a module, and arguments) with `python`, with our streams and environment.

    Signals go to the program. Raises OSError where it cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="nsys-sync-detect-", ignore_cleanup_errors=True) as folder:
        with _signals_passed_on() as receivers:
            # The program may have been given open files by number.
            process = subprocess.Popen(command(python, Path(folder), program), close_fds=False)
            receivers.append(process)
            status = process.wait()
        return Watched(SIGNALLED - status if status < 0 else status, read_findings(Path(folder)))


@contextmanager
def _signals_passed_on() -> Iterator[list[subprocess.Popen[bytes]]]:
    receivers: list[subprocess.Popen[bytes]] = []

    def passed_on(number: int, _: FrameType | None) -> None:
        # A key pressed at the terminal reaches all programs in the foreground, so the program has it already.
        if number not in _FROM_TERMINAL or not _in_foreground():
            for process in receivers:
                process.send_signal(number)

    before = {number: signal.signal(number, passed_on) for number in (*_PASSED_ON, *_FROM_TERMINAL)}
    try:
        yield receivers
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_foreground() -> bool:
    with suppress(OSError):
        terminal = os.open("/dev/tty", os.O_RDONLY)
        try:
            return os.tcgetpgrp(terminal) == os.getpgrp()
        finally:
            os.close(terminal)
    return False
