"""One trace attributed as the pipeline does it, for tests of the parts that explain it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from nsys_sync.analysis.options import Options
from nsys_sync.analysis.summary import Attributed
from nsys_sync.pipeline import _attribute
from nsys_sync.trace.sqlite_file import SqliteFile


def attributed(path: Path, options: Options | None = None) -> Attributed:
    with closing(SqliteFile(path, path)) as file:
        return _attribute(file, path.name, options or Options())
