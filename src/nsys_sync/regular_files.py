"""What lies at a path that the user names, whatever it is."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

SMALL = 1 << 16
"""More than any file holds whose size is given as 0, such as those of /proc."""


def is_folder(path: Path) -> bool:
    """Of what cannot be seen it says no: whoever opens it will say what is wrong."""
    return os.path.isdir(path)  # noqa: PTH112 (Path.is_dir raises, of a folder that may not be entered)


def with_a_name(path: Path) -> Path:
    """The path itself; `.` and `..` have no name to call anything by, and become absolute."""
    return path.resolve() if path.name in ("", "..") else path


def read_start(path: Path, most_bytes: int) -> bytes:
    """The first `most_bytes` of a regular file; never waits. Raises OSError, whose `strerror` says why, for others."""
    try:
        opened = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except ValueError as error:  # a NUL in the name
        raise OSError(errno.EINVAL, "no file can have this name") from error
    with os.fdopen(opened, "rb") as file:
        mode, size = os.fstat(opened).st_mode, os.fstat(opened).st_size
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "a device or a pipe, not a file")
        return file.read(min(most_bytes, max(size, SMALL)))  # `read` takes memory for all that it is asked for
