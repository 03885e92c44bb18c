"""What `watched` finds in a running program, in files that survive however the program ends.

Each process of the program has two files in one folder: lines of JSON, one for each distinct stack when it first
occurs, and a shared mapping with a counter for each. So nothing is left to write at the end, which a program may never
reach (`os.execv`, a crash, SIGKILL).
"""

from __future__ import annotations

import _thread
import itertools
import json
import mmap
import os
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

COUNTERS = 16_384
"""The first one counts what found no other free."""
FRAMES_KEPT = 100
"""Of one stack, the innermost ones."""
_COUNTER = struct.Struct("<Q")
_OWN_FILES = frozenset(str(Path(__file__).with_name(name)) for name in ("findings.py", "watched.py"))


@dataclass(frozen=True)
class RunningFrame:
    """One Python frame. `span` is what of the file it was executing (line, column, end line, end column; columns count
    bytes of UTF-8); None before Python 3.11.
    """

    file: str
    function: str
    line: int
    span: tuple[int, int, int, int] | None


@dataclass(frozen=True)
class Wait:
    """One distinct stack that made the CPU wait. `frames` are innermost first.

    `call` and `cause` name an explicit call, and are None for what PyTorch's sync debug mode found. `thread` is None
    for threads that Python did not start (backward passes).
    """

    pid: int
    thread: str | None
    call: str | None
    cause: str | None
    frames: tuple[RunningFrame, ...]
    count: int


@dataclass(frozen=True)
class Findings:
    """Of all processes. `torch_version` None: PyTorch was never imported. `torch_folder` is where it is installed.

    `lost` are waits whose stack was not kept. `watched_processes` counts those that initialised CUDA.
    """

    waits: tuple[Wait, ...]
    torch_version: str | None
    torch_folder: str | None
    watched_processes: int
    lost: int


class Recorder:
    """The writing side, in the program. Nothing here raises: a full disk ends the recording, not the program."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._after_fork()
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        # Reentrant: garbage collection may run a finalizer that waits for the GPU in here.
        self._lock = _thread.RLock()
        self._counter_of: dict[tuple[object, ...], int] = {}
        # Keys hold their ids.
        self._codes: list[CodeType] = []
        self._lines: int | None = None
        self._counters: mmap.mmap | None = None
        self._has_failed = False

    def note(self, **facts: Any) -> None:
        """Keep facts about the process."""
        with self._lock:
            self._write(facts)

    def count(self, frame: FrameType, call: str | None = None, cause: str | None = None) -> None:
        """Count a wait at a frame."""
        frames: list[FrameType] = []
        walked: FrameType | None = frame
        thread = _name_of_this_thread()
        key: list[object] = [thread, call]
        while walked is not None and len(frames) < FRAMES_KEPT:
            frames.append(walked)
            key += (id(walked.f_code), walked.f_lasti)
            walked = walked.f_back
        identity = tuple(key)
        with self._lock:
            counter = self._counter_of.get(identity)
            if counter is None:
                counter = self._new_counter(identity, frames, {"thread": thread, "call": call, "cause": cause})
            if self._counters is not None:
                at = counter * _COUNTER.size
                _COUNTER.pack_into(self._counters, at, _COUNTER.unpack_from(self._counters, at)[0] + 1)

    def _new_counter(self, identity: tuple[object, ...], frames: list[FrameType], facts: dict[str, Any]) -> int:
        counter = len(self._counter_of) + 1
        if counter >= COUNTERS:
            return 0
        self._counter_of[identity] = counter
        self._codes += [frame.f_code for frame in frames]
        if frames[-1].f_back is None and frames[-1].f_code.co_filename == "<string>":
            del frames[-1]  # what starts the program (`watched.command`)
        described = [_described(frame) for frame in frames if not is_own(frame.f_code)]
        self._write({"counter": counter, **facts, "frames": described})
        return counter

    def _write(self, facts: dict[str, Any]) -> None:
        if self._has_failed:
            return
        try:
            if self._lines is None:
                self._open()
            assert self._lines is not None
            os.write(self._lines, json.dumps(facts).encode() + b"\n")
        except OSError:
            self._has_failed, self._counters = True, None

    def _open(self) -> None:
        path = os.path.join(self._folder, f"{os.getpid()}-{time.monotonic_ns()}")  # noqa: PTH118
        size = COUNTERS * _COUNTER.size
        counters = os.open(f"{path}.counters", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            # A write to a mapped page that the disk has no room for would kill the program.
            os.posix_fallocate(counters, 0, size)
            self._counters = mmap.mmap(counters, size)
        finally:
            os.close(counters)
        self._lines = os.open(f"{path}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)


def is_own(code: CodeType) -> bool:
    """Whether it is code of the recording, which the program would not have on its stack."""
    return code.co_filename in _OWN_FILES


def _described(frame: FrameType) -> tuple[str, str, int, Sequence[int | None] | None]:
    code, span = frame.f_code, None
    if sys.version_info >= (3, 11):
        line, end_line, column, end_column = next(
            itertools.islice(code.co_positions(), max(frame.f_lasti, 0) // 2, None), (None, None, None, None)
        )
        span = (line, column, end_line, end_column)
    return code.co_filename, code.co_name, frame.f_lineno or 0, span


def _name_of_this_thread() -> str | None:
    # Not `current_thread`, which would enter a thread that Python did not start among the program's threads.
    threading = sys.modules.get("threading")
    if threading is None:
        return "MainThread"
    thread = threading._active.get(_thread.get_ident())
    return None if thread is None else str(thread.name)


def read_findings(folder: Path) -> Findings:
    """The reading side: all that the processes of the program have written."""
    waits: list[Wait] = []
    torch_version, torch_folder, watched_processes, lost = None, None, 0, 0
    for path in sorted(folder.glob("*.jsonl")):
        pid = int(path.name.partition("-")[0])
        counters = path.with_suffix(".counters").read_bytes()
        # Cut short by a full disk, the last line says nothing.
        for line in path.read_bytes().split(b"\n")[:-1]:
            facts = json.loads(line)
            torch_version, torch_folder = facts.get("torch", torch_version), facts.get("folder", torch_folder)
            watched_processes += "mode" in facts
            if "counter" in facts:
                count = _COUNTER.unpack_from(counters, facts["counter"] * _COUNTER.size)[0]
                waits.append(_read_wait(pid, facts, count))
        lost += _COUNTER.unpack_from(counters, 0)[0]
    return Findings(tuple(wait for wait in waits if wait.count), torch_version, torch_folder, watched_processes, lost)


def _read_wait(pid: int, facts: dict[str, Any], count: int) -> Wait:
    frames = tuple(
        RunningFrame(file, function, line, tuple(span) if span and None not in span else None)
        for file, function, line, span in facts["frames"]
    )
    return Wait(pid, facts["thread"], facts["call"], facts["cause"], frames, count)
