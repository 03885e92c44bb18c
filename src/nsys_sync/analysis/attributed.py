"""Everything known of one trace before its operations are grouped into sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
import pandas as pd

from nsys_sync.analysis.accounting import DeviceAccount
from nsys_sync.analysis.calls import Calls
from nsys_sync.analysis.intervals import IntArray, Intervals, intersect
from nsys_sync.analysis.locate import PythonLocations
from nsys_sync.analysis.lost_events import LostEvents
from nsys_sync.analysis.operations import Operations
from nsys_sync.analysis.options import Options
from nsys_sync.analysis.phases import Selection, StartupEnd
from nsys_sync.analysis.user_code import cut
from nsys_sync.analysis.user_code import shown as shown_text
from nsys_sync.trace.tables import Trace

LONGEST_SYMBOL = 4_000
"""Characters of a native symbol. PyTorch has some of 2,000, and what tells the cause can be anywhere in them."""
NativeStack = tuple[tuple[str, str], ...]
"""(symbol, module), innermost first."""


class SourceText(Protocol):
    """A file of the user's program, and why it is taken for the one that ran."""

    @property
    def text(self) -> str: ...
    @property
    def basis(self) -> str: ...


@dataclass(frozen=True)
class Attributed:
    """`read_native` and `read_sources` read what only a few operations need, once it is known which."""

    trace: Trace
    calls: Calls
    operations: Operations
    accounts: Sequence[DeviceAccount]
    lost: LostEvents
    selection: Selection
    startup: Sequence[StartupEnd]
    steps: pd.DataFrame | None
    step_pattern: str
    python: PythonLocations
    chain_id: IntArray
    stack_kinds: pd.Series[int]
    native_labels: pd.Series[str]
    options: Options
    read_native: Callable[[Sequence[int]], Mapping[int, NativeStack]]
    read_sources: Callable[[Sequence[str]], Mapping[str, SourceText]]
    _shown: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def shown(self, text: str) -> str:
        """Text of the trace without home folders and names of users and hosts, no longer than a name may be."""
        if text not in self._shown:
            self._shown[text] = shown_text(text, self.trace.metadata.private_names)
        return self._shown[text]

    @cached_property
    def shown_files(self) -> Sequence[str]:
        """`trace.python.files` as they are shown."""
        return [self.shown(path) for path in self.trace.python.files]

    @cached_property
    def shown_functions(self) -> Sequence[str]:
        """`trace.python.functions` as they are shown."""
        return [cut(name) for name in self.trace.python.functions]

    def native_stacks(self, chain_ids: Sequence[int]) -> Mapping[int, NativeStack]:
        """Chain id → its native stack, no symbol longer than it may be."""
        return {
            chain: tuple((cut(symbol, LONGEST_SYMBOL), module) for symbol, module in stack)
            for chain, stack in self.read_native(chain_ids).items()
        }

    def clipped(self, intervals: Intervals) -> tuple[Intervals, IntArray]:
        """The parts inside the selection, and the index of the interval that each came from."""
        if self.selection.windows is None:
            return intervals, np.arange(len(intervals))
        pieces, index, _ = intersect(intervals, self.selection.windows)
        return pieces, index

    def refusal(self, account: DeviceAccount) -> str | None:
        """Why no idle figure can be given for the device in the selected time; None if one can."""
        if not account.time.launches.any() and not (self.calls.launched_by >= 0).any():
            return (
                "no GPU work in this export can be joined to the call that launched it (by process and correlation "
                "id), so which waits leave the GPU idle is not known. Export the report again, or capture again with "
                "nsys profile --trace=cuda,nvtx …"
            )
        window = Intervals(np.array([account.time.window_start]), np.array([account.time.window_end]))
        if not len(intersect(account.unknown, self.clipped(window)[0])[0]):
            return None
        return (
            "CUDA graphs were launched here whose GPU work is not in this export, so time that looks idle may be busy. "
            "Export the report again with a newer nsys (2025.3 has them), or capture with --cuda-graph-trace=node"
        )
