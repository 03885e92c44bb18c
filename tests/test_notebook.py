"""The notebook, run afresh on the captures it tells of, must not fail, and must say what the committed one says."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parent.parent
NOTEBOOK = REPOSITORY / "notebooks/healthy_vs_sync_heavy.ipynb"
README_PICTURE = REPOSITORY / "notebooks/one_print.png"
AGAIN = "run scripts/run_notebook.py, and read what has changed"


def cells(path: Path) -> dict[str, Any]:
    return {cell["id"]: cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"}


def texts(cell: dict[str, Any]) -> str:
    """What it printed, and its values. On stderr a new machine says that matplotlib looks for its fonts."""
    parts = [output["text"] for output in cell["outputs"] if output.get("name") == "stdout"]
    parts += [output["data"].get("text/plain", "") for output in cell["outputs"] if "data" in output]
    return "".join("".join(part) for part in parts)


def pictures(cell: dict[str, Any]) -> Iterator[bytes]:
    for output in cell["outputs"]:
        if "image/png" in output.get("data", {}):
            yield base64.b64decode("".join(output["data"]["image/png"]))


@pytest.fixture(scope="module")
def run_afresh(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    for needed in ("nbclient", "nbformat", "ipykernel", "matplotlib"):
        pytest.importorskip(needed)
    folder = tmp_path_factory.mktemp("notebook")
    command = [sys.executable, str(REPOSITORY / "scripts/run_notebook.py"), str(folder)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return cells(folder / NOTEBOOK.name)


def test_run_afresh_it_says_what_the_committed_one_says(run_afresh: dict[str, Any]) -> None:
    committed = cells(NOTEBOOK)
    assert list(run_afresh) == list(committed)
    for name, cell in committed.items():
        if "differs-with-a-gpu" not in cell["metadata"].get("tags", []):
            assert texts(run_afresh[name]) == texts(cell), f"{name}: {AGAIN}"
    assert re.search(r"1 skipped|1 passed", texts(run_afresh["run-pytest"]))


def test_run_afresh_it_draws_as_many_pictures(run_afresh: dict[str, Any]) -> None:
    drawn = {name: list(pictures(cell)) for name, cell in run_afresh.items()}
    assert {name: len(found) for name, found in drawn.items()} == {
        name: len(list(pictures(cell))) for name, cell in cells(NOTEBOOK).items()
    }
    found = [picture for several in drawn.values() for picture in several]
    assert len(found) == 5
    for picture in found:
        width = int.from_bytes(picture[16:20], "big")
        assert 850 < width < 1000 and len(picture) > 10_000


def test_the_committed_one_has_its_outputs_and_is_small_and_anonymous() -> None:
    text = NOTEBOOK.read_text("utf-8")
    assert len(text) < 1_000_000
    committed = cells(NOTEBOOK)
    assert [cell["execution_count"] for cell in committed.values()] == list(range(1, len(committed) + 1))
    said = "".join(texts(cell) for cell in committed.values())
    assert "can go (likely): the value is only printed" in said
    assert not re.search(r"/tmp|/home|/root|/Users|/workspace|\bat 0x|20\d\d-\d\d-\d\d", said)
    assert not [output for cell in committed.values() for output in cell["outputs"] if output.get("name") == "stderr"]


def test_the_readmes_picture_is_the_notebooks() -> None:
    picture = README_PICTURE.read_bytes()
    assert len(picture) < 150_000
    assert picture in {found for cell in cells(NOTEBOOK).values() for found in pictures(cell)}, AGAIN
    assert f"](notebooks/{README_PICTURE.name})" in (REPOSITORY / "README.md").read_text("utf-8")
