"""`nsys-sync demo`."""

from __future__ import annotations

import lzma
import tempfile
from importlib.resources import files
from pathlib import Path

from nsys_sync.cli.outputs import FormatsOption, OutputOption, plan, write

CAPTURE, PROGRAM = "sync_heavy.sqlite", "sync_heavy.py"


def demo(
    output: OutputOption = None,
    formats: FormatsOption = None,
) -> None:
    """Report on a small real capture that ships with nsys-sync: no GPU and no nsys needed.

    It is a PyTorch training loop on an H200 with one function for each common way to synchronize.
    """
    outputs = plan(formats or [], output, Path(CAPTURE).stem, [], per_operation=False)

    from nsys_sync.pipeline import analyze  # pandas and pyarrow, only now that the options make sense

    with tempfile.TemporaryDirectory(prefix="nsys-sync-demo-") as folder:
        capture = Path(folder) / CAPTURE
        data = files("nsys_sync") / "data"
        capture.write_bytes(lzma.decompress((data / f"{CAPTURE}.xz").read_bytes()))
        (Path(folder) / PROGRAM).write_bytes((data / f"{PROGRAM}.txt").read_bytes())
        analysis = analyze(capture, source_root=folder)
    write(analysis, outputs, top=None, per_operation=False)
