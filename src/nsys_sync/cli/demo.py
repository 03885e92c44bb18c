"""`nsys-sync demo`."""

from __future__ import annotations

import lzma
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Optional

import typer

from nsys_sync.cli.outputs import Format, plan, write

CAPTURE = "sync_heavy.sqlite"


def demo(
    output: Annotated[
        Optional[str],  # noqa: UP045 (typer reads the annotation at run time, on Python 3.10 too)
        typer.Option("--output", "-o", metavar="OUT", help="File or folder to write to; - is standard output."),
    ] = None,
    formats: Annotated[
        Optional[list[Format]],  # noqa: UP045
        typer.Option("--format", "-f", help="May be given more than once. Default: terminal and html."),
    ] = None,
) -> None:
    """Report on a small real capture that ships with nsys-sync: no GPU and no nsys needed.

    It is a PyTorch training loop on an H200 with one function for each common way to synchronize.
    """
    outputs = plan(formats or [], output, Path(CAPTURE).stem, [], per_operation=False)

    from nsys_sync.pipeline import analyze  # pandas and pyarrow, only now that the options make sense

    with tempfile.TemporaryDirectory(prefix="nsys-sync-demo-") as folder:
        capture = Path(folder) / CAPTURE
        packed = files("nsys_sync") / "data" / f"{CAPTURE}.xz"
        capture.write_bytes(lzma.decompress(packed.read_bytes()))
        analysis = analyze(capture)
    write(analysis, outputs, top=None, per_operation=False)
