"""The table of what people's input can be: one row for each test marked `met`, in the tests' own words.

    @pytest.mark.met("3 files", "a report of 0 bytes", "refused, with what to type next")
    def test_…

`python tests/cases.py` writes it to tests/CASES.md; test_cases.py holds the two together.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

TABLE = Path(__file__).parent / "CASES.md"
HEAD = """# Input that people have, and what becomes of it

Written by `python tests/cases.py` from the tests' own marks: each row is a test that runs.

| kind | what people have | what nsys-sync does | test |
|---|---|---|---|
"""


def rows(items: Iterable[pytest.Item]) -> list[tuple[str, str, str, str]]:
    """(kind, case, answer, test), sorted by kind, else in the tests' order. Cases that read alike are one row."""
    found = {}
    for item in items:
        for mark in item.iter_markers("met"):
            test = f"{item.path.name}::{getattr(item, 'originalname', item.name)}"
            found[(*mark.args, test)] = None
    return sorted(found, key=lambda row: (int(row[0].split()[0]), row[0]))


def table(items: Iterable[pytest.Item]) -> str:
    cells = ([cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows(items))
    return HEAD + "".join(f"| {kind} | {case} | {answer} | `{test}` |\n" for kind, case, answer, test in cells)


class _Collector:
    items: list[pytest.Item]

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.items = list(items)


if __name__ == "__main__":
    collector = _Collector()
    status = pytest.main(["--collect-only", "-q", "-n0", str(TABLE.parent)], plugins=[collector])
    if status == pytest.ExitCode.OK:
        TABLE.write_text(table(collector.items), encoding="utf-8")
    raise SystemExit(status)
