#!/usr/bin/env python3
"""Runs notebooks/healthy_vs_sync_heavy.ipynb and keeps its outputs, and the README's picture among them.

run_notebook.py [FOLDER]    FOLDER: where to write both, instead of notebooks/

Needs the test extra of nsys-sync. Fails, and writes nothing, where a cell does.
"""

import base64
import os
import sys
import tempfile
from copy import deepcopy
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parent.parent / "notebooks/healthy_vs_sync_heavy.ipynb"
PICTURE = "both-timelines"  # the cell that draws it


def main() -> None:
    into = Path(sys.argv[1]) if len(sys.argv) > 1 else NOTEBOOK.parent
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    metadata = deepcopy(notebook.metadata)
    with tempfile.TemporaryDirectory() as own:
        # Whatever the user has set up for notebooks of their own stays out of this one.
        os.environ |= {"IPYTHONDIR": own, "JUPYTER_RUNTIME_DIR": own, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
        os.environ.pop("MPLBACKEND", None)
        place = {"metadata": {"path": str(NOTEBOOK.parent)}}
        NotebookClient(notebook, timeout=120, record_timing=False, resources=place).execute()
    notebook.metadata = metadata  # the kernel writes its version of Python there
    nbformat.write(notebook, into / NOTEBOOK.name)
    cell = next(cell for cell in notebook.cells if cell.id == PICTURE)
    png = next(output.data["image/png"] for output in cell.outputs if "image/png" in output.get("data", {}))
    (into / "one_print.png").write_bytes(base64.b64decode(png))


if __name__ == "__main__":
    main()
