"""Python backtraces: NVTX marks in the domain `Python Backtrace` whose binary payload holds the frames.

The payload's layout is declared in the export itself (NVTX_PAYLOAD_SCHEMA_ENTRIES); a layout that differs from the
one known here is refused rather than guessed. Observed with nsys 2023.4.4 and 2025.3.2 (see DESIGN.md section 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nsys_sync.trace.tables import BoolArray, IntArray

SOURCE_SAMPLE = 1
SOURCE_OFFSET = 4
FRAME_COUNT_OFFSET = 8
FRAMES_OFFSET = 16
FRAME_FUNCTION_OFFSET = 0
FRAME_FILE_OFFSET = 8
FRAME_LINE_OFFSET = 16
FRAME_BYTES = 24
LATEST_LINE = 2**31 - 1
"""Python's own limit; a number beyond it is damage, and its line is not known."""
WRAPPER_BYTES = 32
"""Around the payload in NVTX_EVENTS.binaryData: u64 count, then per payload u64 schema id, u64 size, u64 offset."""

KNOWN_HEADER = {"Thread state": 0, "Source": SOURCE_OFFSET, "Frames count": FRAME_COUNT_OFFSET, "Frames": FRAMES_OFFSET}
KNOWN_FRAME = {"Function": FRAME_FUNCTION_OFFSET, "File": FRAME_FILE_OFFSET, "Line": FRAME_LINE_OFFSET}


@dataclass(frozen=True)
class DecodedBacktraces:
    """What could be decoded: `row[i]` is event i's row in the input; the rest as in PythonEvents, with string ids."""

    row: IntArray
    is_sample: BoolArray
    first: IntArray
    count: IntArray
    frame_function_id: IntArray
    frame_file_id: IntArray
    frame_line: IntArray


def decode(payloads: pa.Array, *, wrapped: bool) -> DecodedBacktraces:
    """Decodes a binary Arrow array without NULLs. Payloads that are truncated or malformed are left out."""
    payloads = payloads.cast(pa.large_binary())
    offsets = np.frombuffer(payloads.buffers()[1], dtype=np.int64)[
        payloads.offset : payloads.offset + len(payloads) + 1
    ]
    data = np.frombuffer(payloads.buffers()[2] or b"", dtype=np.uint8)
    row = np.arange(len(payloads), dtype=np.int64)
    begin, size = offsets[:-1], np.diff(offsets)
    u32, u64 = _unaligned(data, np.dtype("<u4")), _unaligned(data, np.dtype("<u8"))

    if wrapped:
        ok = size >= WRAPPER_BYTES
        row, begin, size = row[ok], begin[ok], size[ok]
        payload_size, payload_offset = u64[begin + 16].astype(np.int64), u64[begin + 24].astype(np.int64)
        ok = (u64[begin] == 1) & (payload_offset >= WRAPPER_BYTES) & (payload_size >= 0)
        ok &= (payload_offset <= size) & (payload_size <= size - payload_offset)
        row, begin, size = row[ok], (begin + payload_offset)[ok], payload_size[ok]

    ok = size >= FRAMES_OFFSET
    row, begin, size = row[ok], begin[ok], size[ok]
    count = u32[begin + FRAME_COUNT_OFFSET].astype(np.int64)
    ok = (count > 0) & (FRAMES_OFFSET + FRAME_BYTES * count <= size)
    row, begin, count = row[ok], begin[ok], count[ok]

    first = np.cumsum(count) - count
    within = np.arange(int(count.sum()), dtype=np.int64) - np.repeat(first, count)
    frame = np.repeat(begin + FRAMES_OFFSET, count) + FRAME_BYTES * within
    line = u32[frame + FRAME_LINE_OFFSET].astype(np.int64)
    return DecodedBacktraces(
        row=row,
        is_sample=u32[begin + SOURCE_OFFSET] == SOURCE_SAMPLE,
        first=first,
        count=count,
        frame_function_id=u64[frame + FRAME_FUNCTION_OFFSET].astype(np.int64),
        frame_file_id=u64[frame + FRAME_FILE_OFFSET].astype(np.int64),
        frame_line=np.where(line <= LATEST_LINE, line, 0),
    )


def _unaligned(data: npt.NDArray[np.uint8], dtype: np.dtype[np.generic]) -> npt.NDArray[np.generic]:
    """A view of `data` whose element i is the number that begins at byte i."""
    readable = max(len(data) - dtype.itemsize + 1, 0)
    return np.ndarray(shape=(readable,), dtype=dtype, buffer=data.data if readable else b"", strides=(1,))
