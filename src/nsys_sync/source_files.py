"""Reading the user's source files, and only those that are the ones that ran, as far as can be told."""

from __future__ import annotations

import io
import os
import re
import stat
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath, PureWindowsPath

MAX_BYTES = 2_000_000
MAX_WALKED = 50_000
"""Files and folders of a source root looked at to see whether a bare file name is the only one."""
PYTHON_SUFFIXES = frozenset({".py", ".pyw"})
UNCHANGED = "unchanged since the capture"
UNDER_ROOT = "found under --source-root"

_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|\\\\")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file's text, and why it is taken to be what ran."""

    text: str
    basis: str


def read_sources(
    paths: Iterable[str], capture_start_utc: str | None, source_root: Path | None
) -> dict[str, SourceFile]:
    """The sources that can be read, by their path in the trace; a file that cannot be is not in the result.

    Without a root, a file is used where it is, if it was not changed since the capture began. With one, it is looked
    for under the root alone, by the longest end of its path that exists there.
    """
    started = _time(capture_start_utc)
    root = None if source_root is None else _Root(source_root)
    sources: dict[str, SourceFile] = {}
    for path in dict.fromkeys(paths):
        parts = _parts(path)
        if not parts:
            continue
        if root is not None:
            found = root.find(parts)
            text = None if found is None else _read(found, None)
        elif started is not None and PurePosixPath(path).is_absolute():
            text = _read(Path(path), started)
        else:
            text = None
        if text is not None:
            sources[path] = SourceFile(text, UNCHANGED if root is None else UNDER_ROOT)
    return sources


def paths_below(files: Iterable[str], root: Path, folder: Path) -> dict[str, str]:
    """Files of a trace that are below `root`, with their path relative to `folder` (with `/`); others are left out.

    A file is where its path says, `~` being this user's home, else at the longest end of its path that exists below
    `root`. What lies in a hidden folder (`.venv`) is no file of the program.
    """
    places = _Root(root)
    result: dict[str, str] = {}
    for file in dict.fromkeys(files):
        parts = _parts(file)
        if not parts:
            continue
        try:
            place = Path(file).expanduser()
            found = place if places.holds(place) else places.find(parts)
            relative = None if found is None else found.resolve().relative_to(folder.resolve())
        except (OSError, RuntimeError, ValueError):  # no home folder, a loop of links, not below the folder
            continue
        if relative is not None and not any(part.startswith(".") for part in relative.parts):
            result[file] = relative.as_posix()
    return result


def _time(iso: str | None) -> float | None:
    """Seconds since the epoch; a time without a zone is in UTC. None where it cannot be read."""
    if iso is None:
        return None
    # Before Python 3.11, `fromisoformat` knows neither `Z` nor fractions of other than 3 or 6 digits.
    shortened = re.sub(r"\.(\d{1,6})\d*", lambda match: f".{match[1]:0<6}", iso.strip().replace("Z", "+00:00"))
    try:
        time = datetime.fromisoformat(shortened)
    except ValueError:
        return None
    return (time if time.tzinfo else time.replace(tzinfo=timezone.utc)).timestamp()


def _parts(path: str) -> tuple[str, ...]:
    """Folders and file of a Python file's path, drive and root left out; empty for what names no file."""
    if not path or path[0] in "<[" or "\0" in path or _URL.match(path):
        return ()
    pure = PureWindowsPath(path) if _WINDOWS.match(path) else PurePosixPath(path)
    if pure.suffix.lower() not in PYTHON_SUFFIXES:
        return ()
    return tuple(part for part in pure.parts if part != pure.anchor)


class _Root:
    """A folder that the user says holds the sources."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._counts: dict[str, int] | None = None

    def find(self, parts: tuple[str, ...]) -> Path | None:
        for start in range(len(parts)):
            ending = parts[start:]
            if ".." in ending or not self.holds(self._folder.joinpath(*ending)):
                continue
            # A bare name says little: `train.py` may be any of several.
            if len(ending) == 1 and self._files_named(ending[0]) != 1:
                return None
            return self._folder.joinpath(*ending)
        return None

    def holds(self, path: Path) -> bool:
        """Whether there is such a file, and it lies under the root once all links are followed."""
        try:
            return stat.S_ISREG(path.stat().st_mode) and path.resolve().is_relative_to(self._folder.resolve())
        except (OSError, RuntimeError):  # RuntimeError: a loop of links, before Python 3.13
            return False

    def _files_named(self, name: str) -> int | None:
        """How many files of the root have the name; None where the root is too large to tell."""
        if self._counts is None:
            self._counts = self._count_files()
        return self._counts.get(name, 0) if self._counts else None

    def _count_files(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        walked = 0
        for _, folders, files in os.walk(self._folder):
            folders[:] = [folder for folder in folders if not folder.startswith(".")]
            walked += 1 + len(files)
            if walked > MAX_WALKED:
                return {}
            for file in files:
                counts[file] = counts.get(file, 0) + 1
        return counts


def _read(path: Path, changed_before: float | None) -> str | None:
    """A regular file's text, in the coding that it declares; never waits, whatever lies at the path."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return None
        # What lies at the path may have been replaced since: only the open file counts.
        opened = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(opened, "rb") as file:
            status = os.fstat(opened)
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
                return None
            if changed_before is not None and status.st_mtime >= changed_before:
                return None
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            return None
        coding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        return io.TextIOWrapper(io.BytesIO(content), coding).read()
    # SyntaxError and LookupError: a coding cookie that names none, or one that is no text coding.
    # ValueError: a path that no file can have, or text that is not in its coding (UnicodeDecodeError).
    except (OSError, SyntaxError, LookupError, ValueError):
        return None
