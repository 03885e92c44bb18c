"""The options that say what of a trace is analysed, the same for every command that reads one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

RangeOption = Annotated[
    Optional[str],  # noqa: UP045 (typer reads the annotation at run time, on Python 3.10 too)
    typer.Option("--range", metavar="START:END", help="Only this time, such as 1.5s:2s (ns, us, ms, s)."),
]
NvtxOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--nvtx", metavar="NAME", help="Only NVTX ranges of this name or pattern, such as 'step *'."),
]
SkipFirstOption = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option("--skip-first", metavar="N", min=0, help="Leave out the first N of the --nvtx ranges of each thread."),
]
PidOption = Annotated[Optional[int], typer.Option("--pid", help="Only sites of this process.")]  # noqa: UP045
DeviceOption = Annotated[Optional[int], typer.Option("--device", help="Only this GPU.")]  # noqa: UP045
SourceRootOption = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(
        "--source-root", metavar="DIR", help="Read the lines of the sites in files below this folder, as they ran."
    ),
]
NoSourceOption = Annotated[bool, typer.Option("--no-source", help="Read and show no source lines.")]
UserCodeOption = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--user-code", metavar="GLOB", help="Python files that are your own code. Repeatable."),
]
LibraryCodeOption = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--library-code", metavar="GLOB", help="Python files that are not. Wins over --user-code."),
]
