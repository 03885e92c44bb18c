"""Real captures, unpacked once a session."""

from __future__ import annotations

import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from nsys_sync.nsys.json_backtraces import add_python_backtraces

# No test is on wall-clock time.
settings.register_profile("without a clock", deadline=None)
settings.load_profile("without a clock")

FIXTURES = Path(__file__).parent / "fixtures"

Capture = Callable[[str], Path]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "met(point, case, answer): input that people have, and what becomes of it: a row of tests/CASES.md"
    )


@pytest.fixture(scope="session")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    """`capture("procs.schema-3.7.2")` → its unpacked SQLite file. Python backtraces that nsys left out are added."""
    folder = tmp_path_factory.mktemp("captures")

    def unpack(name: str) -> Path:
        path = folder / f"{name}.sqlite"
        if not path.exists():
            path.write_bytes(lzma.decompress((FIXTURES / f"{name}.sqlite.xz").read_bytes()))
            lines = FIXTURES / f"{name}.python.json.xz"
            if lines.exists():
                with lzma.open(lines, "rt", encoding="utf-8") as file:
                    add_python_backtraces(path, file)
        return path

    return unpack
