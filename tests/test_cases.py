"""The table of cases says what the tests say."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import TABLE, table

POINTS = range(1, 12)


def test_every_case_is_in_the_table(request: pytest.FixtureRequest) -> None:
    items = request.session.items
    all_files = {path.name for path in Path(__file__).parent.glob("test_*.py")}
    if {item.path.name for item in items} != all_files:
        pytest.skip("only some tests were collected")
    assert TABLE.read_text(encoding="utf-8") == table(items), "write it anew with: python tests/cases.py"


def test_every_point_has_cases() -> None:
    rows = TABLE.read_text(encoding="utf-8").splitlines()[6:]
    assert {int(row.split()[1]) for row in rows} == set(POINTS)
