"""The canonical event tables: what every export, of whatever version, is read into.

Times are ns since the session start. `process` is `globalTid >> 24` (unique over machines, VMs and pids), and `pid`
its lower 24 bits. Integer columns hold no missing values: -1 stands for "none" where the column says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

IntArray = npt.NDArray[np.int64]
ClassArray = npt.NDArray[np.int8]
FrameArray = npt.NDArray[np.int32]
NEVER_ENDED = np.iinfo(np.int64).max
"""The end of an NVTX range that was open when the capture ended."""
NO_PROCESS = -(1 << 39) + 0xFFFFFF
"""No `globalTid >> 24` is that: its pid is beyond Linux's largest (2^22)."""
UNNAMED = "unnamed call"
BoolArray = npt.NDArray[np.bool_]
ROWS_AT_ONCE = 1 << 19
"""So few that their arrays fit memory used before (new memory is slow), so many that NumPy's overhead is small."""


def blocks(rows: int) -> list[slice]:
    """Work on millions of rows, cut up so that its temporary arrays are small."""
    return [slice(begin, min(begin + ROWS_AT_ONCE, rows)) for begin in range(0, rows, ROWS_AT_ONCE)]


@dataclass(frozen=True)
class Metadata:
    """What the export says of itself. `capture` holds the capture options; keys as NVIDIA spells them.

    `private_names`: names of users and hosts, and what is shown instead.
    """

    nsys_version: str | None
    schema_version: str | None
    capture_start_utc: str | None
    capture: Mapping[str, str]
    private_names: Mapping[str, str]

    @property
    def python_sampling_period_ns(self) -> int | None:
        """How far apart the capture was asked to take Python samples; None where it does not say."""
        rates = {
            value
            for key, value in self.capture.items()
            if key.endswith("PYTHON_BACKTRACE_SAMPLING_OPTIONS:SAMPLING_RATE") and value.isdecimal() and int(value)
        }
        return 1_000_000_000 // int(rates.pop()) if len(rates) == 1 else None


@dataclass(frozen=True)
class PythonEvents:
    """Python backtraces: event `i` has frames `first[i] : first[i] + count[i]` of the frame arrays, innermost first.

    `is_sample[i]` is True for a periodic sample, False for the stack of a CUDA API call, which has exactly the start
    and thread of its API row. Frame arrays index `functions` and `files`; a `frame_line` of 0 is none.
    """

    start_ns: IntArray
    global_tid: IntArray
    is_sample: BoolArray
    first: IntArray
    count: IntArray
    frame_function: FrameArray
    frame_file: FrameArray
    frame_line: FrameArray
    functions: tuple[str, ...]
    files: tuple[str, ...]
    refused: str | None


@dataclass(frozen=True)
class NativeStacks:
    """How API rows find their native callchains: `shift` is added to a row's callchain id. None: not at all, and
    `refused` says why.

    `frames` has chain_id, symbol_id and depth (0 is innermost) of the frames with a symbol that was asked for, and
    `symbols` their names.
    """

    shift: int | None
    refused: str | None
    frames: pd.DataFrame
    symbols: Mapping[int, str]


@dataclass(frozen=True)
class Trace:
    """One export. Columns:

    api: start_ns, end_ns, global_tid, correlation_id, name (index into api_names), callchain_id (-1 none),
        unfinished (bool): every runtime and driver row, also duplicated and nested ones, in no promised order
    gpu: start_ns, end_ns, device_id, process, correlation_id, unfinished (bool): kernels, copies, memsets and graphs
    communication: rows of gpu that are kernels of NCCL; None where the export has no names of kernels
    copies: gpu_row (index into gpu), context_id, stream_id, copy_kind, src_kind, dst_kind (NVIDIA's numbers, -1 none)
    stream_syncs: start_ns, end_ns, process, correlation_id, context_id, stream_id: those of a known process
    polls: start_ns, end_ns, global_tid, api (str), too_early (bool): calls that ask whether a stream or an event is
        done, and whether it was not; True where the export does not say
    nvtx: start_ns, end_ns, global_tid, name (str), domain (str), is_push_pop (bool)
    overhead: start_ns, end_ns, process

    A correlation_id of 0 is none (CUPTI_CORRELATION_ID_UNKNOWN), as are negative ones. A row without a process has
    NO_PROCESS, which no other row has.
    """

    name: str
    metadata: Metadata
    api: pd.DataFrame
    api_names: tuple[str, ...]
    gpu: pd.DataFrame
    communication: IntArray | None
    copies: pd.DataFrame
    stream_syncs: pd.DataFrame
    polls: pd.DataFrame
    nvtx: pd.DataFrame
    overhead: pd.DataFrame
    python: PythonEvents
    native: NativeStacks
    process_names: Mapping[int, str]
    thread_names: Mapping[int, str]
    device_names: Mapping[int, str]
    diagnostics: tuple[tuple[str, str], ...]
    not_captured: tuple[str, ...]
