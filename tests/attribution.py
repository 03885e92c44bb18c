"""One trace attributed as the pipeline does it, for tests of the parts that explain it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from nsys_sync.analysis.attributed import Attributed
from nsys_sync.analysis.options import Options
from nsys_sync.pipeline import _attribute
from nsys_sync.trace.read import _read_python
from nsys_sync.trace.sqlite_file import SqliteFile


def attributed(path: Path, options: Options | None = None) -> Attributed:
    """The file stays open: stacks are read when it is known which. It is closed when nothing refers to it."""
    return _attribute(SqliteFile(path, path), path.name, options or Options())


def stacks_of_calls(path: Path) -> list[tuple[int, int]]:
    """(globalTid, start) of the Python stacks that were taken at CUDA calls."""
    with closing(SqliteFile(path)) as file:
        events = _read_python(file)
    calls = ~events.is_sample
    return list(zip(events.global_tid[calls].tolist(), events.start_ns[calls].tolist(), strict=True))
