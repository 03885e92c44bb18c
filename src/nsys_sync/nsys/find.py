"""Finds the nsys program, its version, and which options it knows."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from glob import glob
from pathlib import Path

from nsys_sync.errors import NsysError

OVERRIDE = "NSYS_SYNC_NSYS"
INSTALLED_AT = (
    "/opt/nvidia/nsight-systems*/*/bin/nsys",
    "/opt/nvidia/nsight-systems*/bin/nsys",
    "/usr/local/cuda*/bin/nsys",
    "/usr/lib/nsight-systems/bin/nsys",
)
IN_NSIGHT_COMPUTE = "/opt/nvidia/nsight-compute*/*/host/target-linux-*/nsys"
IMPORTERS = ("host-linux-x64/QdstrmImporter", "host-linux-armv8/QdstrmImporter", "host-linux-sbsa-armv8/QdstrmImporter")
SECONDS_TO_ANSWER = 60


@dataclass(frozen=True)
class Nsys:
    """One installed nsys. `can_import` is False for Nsight Compute's copy: it captures, but cannot make a report."""

    path: Path
    version: tuple[int, ...]
    version_text: str
    can_import: bool

    def knows(self, command: str, option: str) -> bool:
        """Whether `nsys COMMAND --help` names `option`, such as `--include-blobs`."""
        return re.search(rf"(?<![-\w]){re.escape(option)}(?![-\w])", help_text(self.path, command)) is not None


def find_nsys() -> Nsys:
    """The nsys to use: NSYS_SYNC_NSYS, else PATH, else the newest installed one that can import. Raises NsysError."""
    override = os.environ.get(OVERRIDE)
    if override:
        found = shutil.which(override)
        if found is None:
            raise NsysError(f"{OVERRIDE}={override}: no such program. Set it to the path of an nsys, or unset it")
        return inspect(Path(found))
    installed = list(all_installed())
    if not installed:
        raise NsysError(
            "nsys was not found on PATH, in /opt/nvidia or in /usr/local/cuda*. How to install it: nsys-sync doctor"
        )
    on_path = shutil.which("nsys")
    preferred = [one for one in installed if on_path and one.path == Path(on_path) and one.can_import]
    return (preferred or sorted(installed, key=lambda one: (one.can_import, one.version), reverse=True))[0]


def all_installed() -> Iterator[Nsys]:
    """Every nsys on this machine, once each; those that do not run are left out."""
    on_path = shutil.which("nsys")
    candidates = [on_path] if on_path else []
    for pattern in (*INSTALLED_AT, IN_NSIGHT_COMPUTE):
        candidates += sorted(glob(pattern), reverse=True)  # noqa: PTH207 (the patterns are absolute)
    seen = set()
    for candidate in candidates:
        real = os.path.realpath(candidate)
        if real in seen:
            continue
        seen.add(real)
        try:
            yield inspect(Path(candidate))
        except NsysError:
            continue


def inspect(path: Path) -> Nsys:
    """Raises NsysError when the program does not answer with a version."""
    text = _output(path, "--version")
    match = re.search(r"(\d{4}(?:\.\d+)+)", text)
    if not match:
        raise NsysError(f"{path}: does not say its version. Is this nsys? It said: {text.strip()[:80] or 'nothing'}")
    version = tuple(int(part) for part in match[1].split("."))
    home = Path(os.path.realpath(path)).parent.parent
    # /usr/local/cuda/bin/nsys is a script that starts another one: only Nsight Compute's copy lacks the importer.
    can_import = "nsight-compute" not in str(home) or any((home / importer).exists() for importer in IMPORTERS)
    return Nsys(path, version, match[1], can_import)


@functools.cache
def help_text(path: Path, command: str) -> str:
    """What `nsys COMMAND --help` prints."""
    return _output(path, command, "--help")


def _output(path: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            [str(path), *arguments], capture_output=True, text=True, errors="replace", timeout=SECONDS_TO_ANSWER
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NsysError(f"{path}: does not run ({error}). Install nsys again, or set {OVERRIDE}") from error
    if done.returncode and arguments == ("--version",):
        raise NsysError(f"{path}: does not say its version (exit status {done.returncode}). Install nsys again")
    return done.stdout + done.stderr
