"""NVIDIA's table and column names, and where they changed between versions of the SQLite export.

Sources: exports of nsys 2023.4.4 (schema 3.7.2) and 2025.3.2 (3.20.3), and NVIDIA's exporter documentation.
Tables and columns are looked up by name, never by position or by the schema version, because columns are added in
the middle of tables and tables are created lazily. The names here are the newest; `table_names` has the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nsys_sync.trace.sqlite_file import SqliteFile
from nsys_sync.trace.tables import NO_PROCESS

RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
DRIVER = "CUPTI_ACTIVITY_KIND_DRIVER"
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
SYNCHRONIZATION = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
CALLCHAINS = "CUDA_CALLCHAINS"
STRINGS = "StringIds"
NVTX = "NVTX_EVENTS"
OVERHEAD = "PROFILER_OVERHEAD"
PROCESSES = "PROCESSES"
THREADS = "ThreadNames"
DIAGNOSTICS = "DIAGNOSTIC_EVENT"
GPUS = "TARGET_INFO_GPU"
CUDA_DEVICES = "TARGET_INFO_CUDA_DEVICE"
SYSTEM_ENVIRONMENT = "TARGET_INFO_SYSTEM_ENV"
SESSION_START = "TARGET_INFO_SESSION_START_TIME"
CAPTURE_METADATA = "META_DATA_CAPTURE"
EXPORT_METADATA = "META_DATA_EXPORT"
PAYLOAD_SCHEMAS = "NVTX_PAYLOAD_SCHEMAS"
PAYLOAD_ENTRIES = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
OUR_BACKTRACES = "NSYS_SYNC_PYTHON_BACKTRACE"
"""Written by our own export step for exports older than schema 3.13.2, which drop the payload bytes."""

API_TABLES = (RUNTIME, DRIVER)
GPU_TABLES = (MEMCPY, KERNEL, MEMSET, GRAPH)
"""Copies first: their rows are also read apart, and must be found again."""

PYTHON_DOMAIN = "Python Backtrace"
NVTX_MARK = 34
NVTX_DOMAIN_CREATE = 75
NVTX_PUSH_POP = (59, 70)
NVTX_START_END = (60, 71)

COPY_KINDS = {
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
}
"""CUPTI's CUpti_ActivityMemcpyKind. Unified-memory migrations have numbers above 10."""
MEMORY_KINDS = {
    0: "pageable",
    1: "pinned",
    2: "device",
    3: "array",
    4: "managed",
    5: "device static",
    6: "managed static",
}
"""As in the export's ENUM_CUDA_MEM_KIND (one less than CUPTI's own numbers)."""


@dataclass(frozen=True)
class Column:
    """A canonical integer column: the table's name for it, and what stands for a value that is not there.

    `null` is SQL for a NULL cell; None leaves the row out. `absent` is SQL where the table has no such column; None
    makes the column required.
    """

    source: str
    null: int | str | None = None
    absent: int | None = None


API_COLUMNS: Mapping[str, Column] = {
    "start_ns": Column("start"),
    "end_ns": Column("end", "start - 1"),
    "global_tid": Column("globalTid"),
    "correlation_id": Column("correlationId", -1),
    "name_id": Column("nameId", -1),
    "callchain_id": Column("callchainId", -1, absent=-1),
}
RETURN_VALUE = "returnValue"
NOT_READY = 600
"""cudaErrorNotReady and CUDA_ERROR_NOT_READY: what a call returns that asks too early."""
POLL_COLUMNS: Mapping[str, Column] = {
    **{name: API_COLUMNS[name] for name in ("start_ns", "end_ns", "global_tid", "name_id")},
    "return_value": Column(RETURN_VALUE, NOT_READY, absent=NOT_READY),
}
KERNEL_NAME = "shortName"
COMMUNICATION_KERNELS = "nccl*Kernel*"
"""A GLOB on kernel names: `ncclDevKernel_AllReduce_Sum_f32_RING_LL`, before NCCL 2.19 `ncclKernel_AllReduce_…`."""
GPU_COLUMNS: Mapping[str, Column] = {
    "start_ns": Column("start"),
    "end_ns": Column("end", "start - 1"),
    "device_id": Column("deviceId"),
    "process": Column("globalPid", NO_PROCESS << 24),
    "correlation_id": Column("correlationId", -1),
}
COPY_COLUMNS: Mapping[str, Column] = {
    "context_id": Column("contextId", -1, absent=-1),
    "stream_id": Column("streamId", -1, absent=-1),
    "copy_kind": Column("copyKind", -1, absent=-1),
    "src_kind": Column("srcKind", -1, absent=-1),
    "dst_kind": Column("dstKind", -1, absent=-1),
}
SYNCHRONIZATION_COLUMNS: Mapping[str, Column] = {
    "start_ns": Column("start"),
    "end_ns": Column("end", "start - 1"),
    "process": Column("globalPid"),
    "correlation_id": Column("correlationId", -1),
    "context_id": Column("contextId", -1, absent=-1),
    "stream_id": Column("streamId", -1, absent=-1),
}
OVERHEAD_COLUMNS: Mapping[str, Column] = {
    "start_ns": Column("start"),
    "end_ns": Column("end", "start - 1"),
    "global_tid": Column("globalTid"),
    "name_id": Column("nameId", -1, absent=-1),
}


def expressions(file: SqliteFile, table: str, columns: Mapping[str, Column]) -> dict[str, str]:
    """SQL for each canonical column of `table`, NULL replaced. Raises TraceError naming a missing required column."""
    result = {}
    for name, column in columns.items():
        if not file.has(table, column.source):
            if column.absent is None:
                raise file.error(f"table {table} has no column {column.source}")
            result[name] = str(column.absent)
        elif column.null is None or file.is_not_null(table, column.source):
            result[name] = f'"{column.source}"'
        else:
            result[name] = f'coalesce("{column.source}", {column.null})'
    return result


def required_values(file: SqliteFile, table: str, columns: Mapping[str, Column]) -> list[str]:
    """Conditions that leave out rows in which a required column is NULL; none where none can be."""
    return [
        f'"{column.source}" IS NOT NULL'
        for column in columns.values()
        if column.null is None and not file.is_not_null(table, column.source)
    ]
