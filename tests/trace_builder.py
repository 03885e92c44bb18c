"""Writes small SQLite exports that look like NVIDIA's: same tables, same columns, tables only where there are rows.

    b = TraceBuilder(schema="3.20.3")
    t = b.process(pid=100, name="python").thread(100)
    t.launch(0, 5, gpu=(10, 20))
    t.copy(6, 8, gpu=(20, 22), dst="pinned")
    t.stream_sync(9, 25, backtrace=True, python=[("train", "/home/me/train.py", 7)])
    b.write(tmp_path / "trace.sqlite")

Differences from the real statements: `end` may be NULL (cut-off exports have that), and comments are left out.
"""

from __future__ import annotations

import html
import random
import sqlite3
import struct
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Frame = tuple[str, str, int]
"""Function, file, line."""
NativeFrame = tuple[str, str]
"""Symbol, module."""
Span = tuple[int, int | None]
"""Start and end; an end can be missing."""
Work = Span | Sequence[Span] | None
"""GPU rows of a call: one, several, none."""
Table = Literal["KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE"]

SCHEMAS = ("3.7.2", "3.20.3")
NSYS_VERSIONS = {"3.7.2": "2023.4.4.54", "3.20.3": "2025.3.2.0"}

_ACTIVITY = (
    "start INTEGER NOT NULL, end INTEGER, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, "
    "greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, "
)
_MEMCPY = _ACTIVITY + (
    "bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, deprecatedSrcId INTEGER, srcKind INTEGER, dstKind INTEGER, "
    "srcDeviceId INTEGER, srcContextId INTEGER, dstDeviceId INTEGER, dstContextId INTEGER, migrationCause INTEGER, "
    "graphNodeId INTEGER, virtualAddress INTEGER"
)
_NVTX = (
    "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER, "
    "color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, "
    "uint64Value INTEGER, int64Value INTEGER, doubleValue REAL, uint32Value INTEGER, int32Value INTEGER, "
    "floatValue REAL, jsonTextId INTEGER, jsonText TEXT"
)
_ENUM = "id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT"

TABLES: dict[str, str] = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "PROCESSES": "globalPid INTEGER, pid INTEGER, name TEXT",
    "ThreadNames": "nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, utcTime TEXT, localTime TEXT",
    "TARGET_INFO_GPU": (
        "vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, busLocation TEXT, isDiscrete INTEGER, "
        "l2CacheSize INTEGER, totalMemory INTEGER, memoryBandwidth INTEGER, clockRate INTEGER, smCount INTEGER, "
        "pwGpuId INTEGER, uuid TEXT, luid INTEGER, chipName TEXT, cuDevice INTEGER, ctxswDevPath TEXT, "
        "ctrlDevPath TEXT, revision INTEGER, nodeMask INTEGER, constantMemory INTEGER, maxIPC INTEGER, "
        "maxRegistersPerBlock INTEGER, maxShmemPerBlock INTEGER, maxShmemPerBlockOptin INTEGER, "
        "maxShmemPerSm INTEGER, maxRegistersPerSm INTEGER, threadsPerWarp INTEGER, asyncEngines INTEGER, "
        "maxWarpsPerSm INTEGER, maxBlocksPerSm INTEGER, maxThreadsPerBlock INTEGER, maxBlockDimX INTEGER, "
        "maxBlockDimY INTEGER, maxBlockDimZ INTEGER, maxGridDimX INTEGER, maxGridDimY INTEGER, maxGridDimZ INTEGER, "
        "computeMajor INTEGER, computeMinor INTEGER, smMajor INTEGER, smMinor INTEGER"
    ),
    "TARGET_INFO_CUDA_DEVICE": "gpuId INTEGER, cudaId INTEGER NOT NULL, pid INTEGER NOT NULL",
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
    "META_DATA_CAPTURE": "name TEXT NOT NULL, value TEXT",
    "DIAGNOSTIC_EVENT": (
        "timestamp INTEGER NOT NULL, timestampType INTEGER NOT NULL, source INTEGER NOT NULL, "
        "severity INTEGER NOT NULL, text TEXT NOT NULL, globalPid INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "start INTEGER NOT NULL, end INTEGER, eventClass INTEGER NOT NULL, globalTid INTEGER, "
        "correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_KERNEL": _ACTIVITY
    + (
        "demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER, launchType INTEGER, "
        "cacheConfig INTEGER, registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL, gridY INTEGER NOT NULL, "
        "gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL, "
        "staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL, "
        "localMemoryPerThread INTEGER NOT NULL, localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL, "
        "sharedMemoryExecuted INTEGER, graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": _MEMCPY + ", copyCount INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMSET": _ACTIVITY
    + "value INTEGER NOT NULL, bytes INTEGER NOT NULL, graphNodeId INTEGER, memKind INTEGER",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": _ACTIVITY + "graphId INTEGER NOT NULL, graphExecId INTEGER NOT NULL",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": _ACTIVITY
    + ("deprecatedSyncType INTEGER, syncType INTEGER NOT NULL, eventId INTEGER NOT NULL, eventSyncId INTEGER"),
    "CUDA_CALLCHAINS": (
        "id INTEGER NOT NULL, symbol INTEGER NOT NULL, module INTEGER NOT NULL, unresolved INTEGER, "
        "originalIP INTEGER, stackDepth INTEGER NOT NULL, PRIMARY KEY (id, stackDepth)"
    ),
    "NVTX_EVENTS": _NVTX + ", binaryData TEXT",
    "NVTX_PAYLOAD_SCHEMAS": (
        "domainId INTEGER, schemaId INTEGER, name TEXT, type INTEGER, flags INTEGER, numEntries INTEGER, "
        "payloadSize INTEGER, alignTo INTEGER"
    ),
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": (
        "domainId INTEGER NOT NULL, schemaId INTEGER NOT NULL, idx INTEGER NOT NULL, flags INTEGER, type INTEGER, "
        "name TEXT, description TEXT, arrayOrUnionDetail INTEGER, offset INTEGER"
    ),
    "PROFILER_OVERHEAD": (
        "start INTEGER NOT NULL, end INTEGER, globalTid INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL"
    ),
    "NSYS_SYNC_PYTHON_BACKTRACE": "start INTEGER NOT NULL, globalTid INTEGER NOT NULL, payload BLOB NOT NULL",
    "ENUM_CUDA_MEMCPY_OPER": _ENUM,
    "ENUM_CUDA_MEM_KIND": _ENUM,
    "ENUM_CUPTI_SYNC_TYPE": _ENUM,
    "ENUM_NSYS_EVENT_TYPE": _ENUM,
}
"""Columns of schema 3.20.3, in its order."""
OLD_TABLES = TABLES | {
    "CUPTI_ACTIVITY_KIND_MEMCPY": _MEMCPY,
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": _ACTIVITY + "syncType INTEGER NOT NULL, eventId INTEGER NOT NULL",
    "NVTX_EVENTS": _NVTX,
}
"""The same for schema 3.7.2."""
ABSENT_IN_OLD = {
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "TARGET_INFO_CUDA_DEVICE",
    "DIAGNOSTIC_EVENT",
    "NVTX_PAYLOAD_SCHEMAS",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES",
}

COPY_KINDS = {"HtoD": 1, "DtoH": 2, "DtoD": 8, "HtoH": 9, "PtoP": 10}
MEMORY_KINDS = {"pageable": 0, "pinned": 1, "device": 2, "array": 3, "managed": 4, "unknown": 7}
SYNC_TYPES = {"event": 1, "wait": 2, "stream": 3, "context": 4}
NO_STREAM = 4294967295
BACKTRACE_SCHEMA, FRAME_SCHEMA = 4294967299, 4294967296
NVTX_MARK, NVTX_PUSH_POP, NVTX_START_END, NVTX_DOMAIN = 34, 59, 60, 75
RUNTIME_CLASS, DRIVER_CLASS, BACKTRACE_CLASS = 0, 1, 67

ENUMS: dict[str, list[tuple[int, str, str]]] = {
    "ENUM_CUDA_MEMCPY_OPER": [
        (0, "CUDA_MEMCPY_KIND_UNKNOWN", "Unknown"),
        (1, "CUDA_MEMCPY_KIND_HTOD", "Host-to-Device"),
        (2, "CUDA_MEMCPY_KIND_DTOH", "Device-to-Host"),
        (8, "CUDA_MEMCPY_KIND_DTOD", "Device-to-Device"),
        (9, "CUDA_MEMCPY_KIND_HTOH", "Host-to-Host"),
        (10, "CUDA_MEMCPY_KIND_PTOP", "Peer-to-Peer"),
    ],
    "ENUM_CUDA_MEM_KIND": [
        (0, "CUDA_MEMOPR_MEMORY_KIND_PAGEABLE", "Pageable"),
        (1, "CUDA_MEMOPR_MEMORY_KIND_PINNED", "Pinned"),
        (2, "CUDA_MEMOPR_MEMORY_KIND_DEVICE", "Device"),
        (3, "CUDA_MEMOPR_MEMORY_KIND_ARRAY", "Array"),
        (4, "CUDA_MEMOPR_MEMORY_KIND_MANAGED", "Managed"),
        (7, "CUDA_MEMOPR_MEMORY_KIND_UNKNOWN", "Unknown"),
    ],
    "ENUM_CUPTI_SYNC_TYPE": [
        (0, "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_UNKNOWN", "Unknown"),
        (1, "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE", "Event sync"),
        (2, "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT", "Stream wait sync"),
        (3, "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE", "Stream sync"),
        (4, "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE", "Context sync"),
    ],
    "ENUM_NSYS_EVENT_TYPE": [
        (34, "NvtxMark", "NvtxMark"),
        (59, "NvtxPushPopRange", "NvtxPushPopRange"),
        (60, "NvtxStartEndRange", "NvtxStartEndRange"),
        (75, "NvtxDomainCreate", "NvtxDomainCreate"),
    ],
}


@dataclass(frozen=True)
class Api:
    """An API call as it was written: enough to hang GPU rows on it."""

    start: int
    end: int | None
    correlation: int


class TraceBuilder:
    def __init__(
        self, schema: Literal["3.7.2", "3.20.3"] | str = "3.20.3", *, blobs: bool = True, map_devices: bool = True
    ) -> None:
        self.schema = schema
        self.old = tuple(map(int, schema.split("."))) < (3, 8, 4)
        self.blobs = blobs
        self.map_devices = map_devices
        self.tables: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.processes: list[ProcessBuilder] = []
        self.devices: dict[int, str] = {}
        self._strings: dict[str, int] = {}
        self._callchains = 0
        self.row("META_DATA_EXPORT", name="EXPORT_PRODUCT_NAME", value="NVIDIA Nsight Systems")
        self.row("META_DATA_EXPORT", name="EXPORT_PRODUCT_VERSION", value=NSYS_VERSIONS.get(schema, schema))
        self.row("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION", value=schema)
        for part, value in zip(("MAJOR", "MINOR", "MICRO"), schema.split("."), strict=True):
            self.row("META_DATA_EXPORT", name=f"EXPORT_SCHEMA_VERSION_{part}", value=value)
        for name, value in (
            ("COLLECT_CUDA_TRACE", "true"),
            ("COLLECT_NVTX_TRACE", "true"),
            ("CUDA_BACKTRACE_OPTIONS:COLLECT_SYNCHRONOIZATION_BACKTRACES", "true"),
            ("CUDA_BACKTRACE_OPTIONS:SYNCHRONOIZATION_BACKTRACES_THRESHOLD_NS", "0"),
            ("CUDA_BACKTRACE_OPTIONS:COLLECT_PYTHON_BACKTRACES", "true"),
            ("CUDA_GRAPH_TRACE_OPTIONS:MODE", "Node"),
        ):
            self.row("META_DATA_CAPTURE", name=f"PROCESS_0:{name}", value=value)
        for table, rows in ENUMS.items():
            for number, name, label in rows:
                self.row(table, id=number, name=name, label=label)

    def row(self, table: str, **columns: Any) -> None:
        """One raw row: columns left out are NULL. For everything the methods do not offer."""
        self.tables[table].append(columns)

    def string(self, value: str) -> int:
        return self._strings.setdefault(value, len(self._strings) + 1)

    def process(self, pid: int, name: str = "python") -> ProcessBuilder:
        process = ProcessBuilder(self, pid, name)
        self.processes.append(process)
        return process

    def gpu(self, device: int, name: str = "NVIDIA H200") -> None:
        """Name a device; devices with work are named by themselves."""
        self.devices.setdefault(device, name)

    def diagnostic(self, text: str, severity: int = 2, timestamp: int = 0) -> None:
        self.row(
            "DIAGNOSTIC_EVENT",
            timestamp=timestamp,
            timestampType=1,
            source=1,
            severity=severity,
            text=text,
            globalPid=self.processes[0].global_pid if self.processes else None,
        )

    def callchain(self, frames: Sequence[NativeFrame]) -> int:
        """Write one native stack, innermost first; returns the id to put into RUNTIME.callchainId."""
        number = self._callchains
        self._callchains += 1
        for depth, (symbol, module) in enumerate(frames):
            self.row(
                "CUDA_CALLCHAINS",
                id=number + 1 if self.old else number,  # off by one up to 3.9.0
                symbol=self.string(symbol),
                module=self.string(module),
                stackDepth=depth,
            )
        return number

    def write(self, path: str | Path, *, shuffle: int | None = None) -> Path:
        """Write the file. `shuffle` is a seed: rows of every table come in another order."""
        path = Path(path)
        path.unlink(missing_ok=True)
        self._finish()
        definitions = OLD_TABLES if self.old else TABLES
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        for table, rows in self.tables.items():
            if not rows or (self.old and table in ABSENT_IN_OLD):
                continue
            connection.execute(f"CREATE TABLE {table} ({definitions[table]})")
            required = _required(definitions[table])
            known = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
            columns = [column for column in known if any(column in row for row in rows) or column in required]
            if shuffle is not None:
                rows = random.Random(shuffle).sample(rows, len(rows))
            names = ", ".join(f'"{column}"' for column in columns)
            marks = ", ".join("?" * len(columns))
            values = [[row.get(c, 0 if c in required else None) for c in columns] for row in rows]
            connection.executemany(f"INSERT INTO {table} ({names}) VALUES ({marks})", values)
        connection.commit()
        connection.close()
        return path

    def _finish(self) -> None:
        """Rows that follow from the others. Writing twice gives the same file twice."""
        for table in ("StringIds", "TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE"):
            self.tables.pop(table, None)
        for value, number in self._strings.items():
            self.row("StringIds", id=number, value=value)
        for device, name in sorted(self.devices.items()):
            self.row("TARGET_INFO_GPU", vmId=1 << 48, id=device, name=name, cuDevice=device, isDiscrete=1)
            if self.map_devices:
                for process in self.processes:
                    self.row("TARGET_INFO_CUDA_DEVICE", gpuId=device, cudaId=device, pid=process.pid)


def _required(definition: str) -> set[str]:
    return {part.split()[0] for part in definition.split(", ") if "NOT NULL" in part}


class ProcessBuilder:
    def __init__(self, trace: TraceBuilder, pid: int, name: str) -> None:
        self.trace = trace
        self.pid = pid
        self.global_pid = (1 << 48) | (pid << 24)
        self._correlation = 0
        self._domains: dict[str, int] = {}
        self._sampler: ThreadBuilder | None = None
        trace.row("PROCESSES", globalPid=self.global_pid, pid=pid, name=name)

    def thread(self, tid: int, name: str = "python") -> ThreadBuilder:
        return ThreadBuilder(self, tid, name)

    def correlation(self) -> int:
        """The next correlation id. Ids start at 1 in every process, so they collide between processes."""
        self._correlation += 1
        return self._correlation

    def gpu_row(
        self,
        table: Table,
        span: Span,
        *,
        device: int = 0,
        stream: int = 7,
        context: int = 1,
        correlation: int | None = None,
        **columns: Any,
    ) -> None:
        """GPU work as the profiler writes it; without `correlation` it has no launch call."""
        self.trace.gpu(device)
        if table == "KERNEL":
            name = self.trace.string(columns.pop("name", "kernel"))
            columns = {"demangledName": name, "shortName": name} | columns
        if table == "MEMCPY":
            columns = {"bytes": 4, "copyKind": 1, "srcKind": 1, "dstKind": 2} | columns
        self.trace.row(
            f"CUPTI_ACTIVITY_KIND_{table}",
            start=span[0],
            end=span[1],
            deviceId=device,
            contextId=context,
            streamId=stream,
            correlationId=correlation,
            globalPid=self.global_pid,
            **columns,
        )

    def domain(self, name: str, thread: ThreadBuilder) -> int:
        """The number of an NVTX domain, declared at first use. Numbers are per process."""
        if name not in self._domains:
            self._domains[name] = len(self._domains) + 1
            self.trace.row(
                "NVTX_EVENTS",
                start=-1_000_000,
                eventType=NVTX_DOMAIN,
                text=name,
                globalTid=thread.global_tid,
                domainId=self._domains[name],
            )
        return self._domains[name]

    def python_domain(self, thread: ThreadBuilder) -> int:
        new = "Python Backtrace" not in self._domains
        domain = self.domain("Python Backtrace", thread)
        if new:
            schemas = "NVTX_PAYLOAD_SCHEMAS"
            keys = {"domainId": domain, "schemaId": BACKTRACE_SCHEMA}
            self.trace.row(schemas, **keys, name="PythonBacktrace", type=2, numEntries=4)
            keys = {"domainId": domain, "schemaId": FRAME_SCHEMA}
            self.trace.row(schemas, **keys, name="PythonFrame", type=1, numEntries=3, payloadSize=24)
            for schema, idx, flags, kind, name, detail, offset in (
                (BACKTRACE_SCHEMA, 0, None, 4294967297, "Thread state", None, None),
                (BACKTRACE_SCHEMA, 1, None, 4294967298, "Source", None, 4),
                (BACKTRACE_SCHEMA, 2, None, 16, "Frames count", None, 8),
                (BACKTRACE_SCHEMA, 3, 48, 4294967296, "Frames", 2, 16),
                (FRAME_SCHEMA, 0, None, 80, "Function", None, None),
                (FRAME_SCHEMA, 1, None, 80, "File", None, 8),
                (FRAME_SCHEMA, 2, None, 15, "Line", None, 16),
            ):
                self.trace.row(
                    "NVTX_PAYLOAD_SCHEMA_ENTRIES",
                    domainId=domain,
                    schemaId=schema,
                    idx=idx,
                    flags=flags,
                    type=kind,
                    name=name,
                    arrayOrUnionDetail=detail,
                    offset=offset,
                )
        return domain

    @property
    def sampler(self) -> ThreadBuilder:
        """The profiler's own thread that writes periodic Python samples."""
        if self._sampler is None:
            self._sampler = self.thread(self.pid + 9000, "NSys PySampling")
        return self._sampler


class ThreadBuilder:
    def __init__(self, process: ProcessBuilder, tid: int, name: str) -> None:
        self.process = process
        self.trace = process.trace
        self.tid = tid
        self.global_tid = process.global_pid | tid
        self.trace.row("ThreadNames", nameId=self.trace.string(name), priority=20, globalTid=self.global_tid)

    # ---- any call

    def api(
        self,
        name: str,
        start: int,
        end: int | None,
        *,
        correlation: int | None = None,
        event_class: int | None = None,
        backtrace: bool = False,
        native: Sequence[NativeFrame] = (),
        python: Sequence[Frame] = (),
        inner: Span | None = None,
    ) -> Api:
        """One API call. `backtrace` (implied by stacks) writes it as nsys does with `--cudabacktrace`: a row of class
        67 with the plain name and the callchain, and inside it (`inner`, else the same interval) the versioned row.
        `python` is the stack taken at the call, innermost frame first.
        """
        correlation = self.process.correlation() if correlation is None else correlation
        plain = name.partition("_v")[0]
        if event_class is None:
            event_class = DRIVER_CLASS if name.startswith("cu") and not name.startswith("cuda") else RUNTIME_CLASS
        inner_start, inner_end = start, end
        if backtrace or native or python:
            chain = self.trace.callchain(native or [(plain, "/usr/lib/libcudart.so")])
            self._runtime_row(plain, start, end, BACKTRACE_CLASS, correlation, chain)
            inner_start, inner_end = inner or (start, end)
        self._runtime_row(name, inner_start, inner_end, event_class, correlation, None)
        if python:
            self.python_stack(start, python)
        return Api(start, end, correlation)

    def _runtime_row(
        self, name: str, start: int, end: int | None, event_class: int, correlation: int, chain: int | None
    ) -> None:
        self.trace.row(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            start=start,
            end=end,
            eventClass=event_class,
            globalTid=self.global_tid,
            correlationId=correlation,
            nameId=self.trace.string(name),
            callchainId=chain,
        )

    def _gpu_rows(self, table: Table, call: Api, gpu: Work, **columns: Any) -> None:
        spans: Sequence[Any] = gpu or []
        if gpu and not isinstance(gpu[0], tuple):
            spans = [gpu]
        for span in spans:
            self.process.gpu_row(table, span, correlation=call.correlation, **columns)

    # ---- work

    def launch(
        self,
        start: int,
        end: int | None,
        gpu: Work = None,
        *,
        device: int = 0,
        stream: int = 7,
        context: int = 1,
        name: str = "cudaLaunchKernel_v7000",
        kernel: str = "kernel",
        driver: Literal["same", "own"] | None = None,
        correlation: int | None = None,
    ) -> Api:
        """A kernel launch. `driver` nests a cuLaunchKernel in it, with the same correlation id or, holding the GPU
        work, one of its own."""
        call = self.api(name, start, end, correlation=correlation)
        owner = call
        if driver is not None:
            nested = call.correlation if driver == "same" else None
            owner = self.api("cuLaunchKernel", start, end, correlation=nested)
        self._gpu_rows("KERNEL", owner, gpu, device=device, stream=stream, context=context, name=kernel)
        return call

    def copy(
        self,
        start: int,
        end: int | None,
        gpu: Work = None,
        *,
        kind: str = "DtoH",
        src: str | None = None,
        dst: str | None = None,
        sync: bool = False,
        device: int = 0,
        stream: int = 7,
        context: int = 1,
        size: int = 4,
        **call_options: Any,
    ) -> Api:
        src = src or ("device" if kind.startswith("D") else "pinned")
        dst = dst or ("device" if kind.endswith("D") else "pinned")
        name = call_options.pop("name", "cudaMemcpy_v3020" if sync else "cudaMemcpyAsync_v3020")
        call = self.api(name, start, end, **call_options)
        memory = {"copyKind": COPY_KINDS[kind], "srcKind": MEMORY_KINDS[src], "dstKind": MEMORY_KINDS[dst]}
        place = {"device": device, "stream": stream, "context": context}
        self._gpu_rows("MEMCPY", call, gpu, **place, bytes=size, **memory)
        return call

    def memset(
        self,
        start: int,
        end: int | None,
        gpu: Work = None,
        *,
        sync: bool = True,
        device: int = 0,
        stream: int = 7,
        context: int = 1,
        **call_options: Any,
    ) -> Api:
        name = call_options.pop("name", "cudaMemset_v3020" if sync else "cudaMemsetAsync_v3020")
        call = self.api(name, start, end, **call_options)
        self._gpu_rows("MEMSET", call, gpu, device=device, stream=stream, context=context, bytes=4, value=0, memKind=2)
        return call

    def graph_launch(
        self,
        start: int,
        end: int | None,
        gpu: Work = None,
        *,
        whole: bool = True,
        device: int = 0,
        stream: int = 7,
        context: int = 1,
        **call_options: Any,
    ) -> Api:
        """As a whole: GRAPH_TRACE rows, which the old export leaves out. By node: a kernel row for each span."""
        call = self.api("cudaGraphLaunch_v10000", start, end, **call_options)
        place = {"device": device, "stream": stream, "context": context}
        if whole:
            self._gpu_rows("GRAPH_TRACE", call, gpu, **place, graphId=1, graphExecId=1)
        else:
            self._gpu_rows("KERNEL", call, gpu, **place, graphNodeId=1)
        return call

    # ---- waits

    def _sync(
        self,
        name: str,
        start: int,
        end: int | None,
        kind: str,
        stream: int,
        context: int,
        row: Span | Literal["call"] | None,
        call_options: dict[str, Any],
    ) -> Api:
        call = self.api(call_options.pop("name", name), start, end, **call_options)
        span = (start, end) if row == "call" else row
        if span is not None and span[1] is not None:
            number = SYNC_TYPES[kind]
            types = {"syncType": number} if self.trace.old else {"deprecatedSyncType": number, "syncType": 0}
            self.trace.row(
                "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
                start=span[0],
                end=span[1],
                deviceId=0,
                contextId=context,
                streamId=stream,
                correlationId=call.correlation,
                globalPid=self.process.global_pid,
                eventId=1 if kind == "event" else NO_STREAM,
                **types,
            )
        return call

    def stream_sync(
        self,
        start: int,
        end: int | None,
        *,
        stream: int = 7,
        context: int = 1,
        row: Span | Literal["call"] | None = "call",
        **call_options: Any,
    ) -> Api:
        """`row` is the SYNCHRONIZATION row's interval: the call's own, another, or None for no row."""
        return self._sync("cudaStreamSynchronize_v3020", start, end, "stream", stream, context, row, call_options)

    def device_sync(self, start: int, end: int | None, *, context: int = 1, **call_options: Any) -> Api:
        name = "cudaDeviceSynchronize_v3020"
        return self._sync(name, start, end, "context", NO_STREAM, context, "call", call_options)

    def event_sync(self, start: int, end: int | None, *, context: int = 1, **call_options: Any) -> Api:
        return self._sync("cudaEventSynchronize_v3020", start, end, "event", NO_STREAM, context, "call", call_options)

    def free(self, start: int, end: int | None, **call_options: Any) -> Api:
        return self.api("cudaFree_v3020", start, end, **call_options)

    # ---- the rest

    def overhead(self, start: int, end: int | None, name: str = "CUPTI: Buffer flush") -> None:
        self.trace.row(
            "PROFILER_OVERHEAD", start=start, end=end, globalTid=self.global_tid, nameId=self.trace.string(name)
        )

    def nvtx(
        self,
        name: str,
        start: int,
        end: int | None,
        domain: str | None = None,
        *,
        registered: bool = False,
        start_end: bool = False,
    ) -> None:
        """A push/pop range, or a start/end range. `registered` puts the name into StringIds, as such strings are."""
        text = {"textId": self.trace.string(name)} if registered else {"text": name}
        self.trace.row(
            "NVTX_EVENTS",
            start=start,
            end=end,
            eventType=NVTX_START_END if start_end else NVTX_PUSH_POP,
            globalTid=self.global_tid,
            domainId=0 if domain is None else self.process.domain(domain, self),
            **text,
        )

    def python_stack(
        self, start: int, frames: Sequence[Frame], source: Literal["event", "sample"] = "event", state: int = 1
    ) -> None:
        """A Python stack, innermost first. A sample is written by the sampler's thread, whatever thread it is of."""
        thread = self if source == "event" else self.process.sampler
        payload = python_payload(
            [(self.trace.string(html.escape(f)), self.trace.string(html.escape(p)), n) for f, p, n in frames],
            source=2 if source == "event" else 1,
            state=state,
        )
        domain = self.process.python_domain(thread)
        columns: dict[str, Any] = {}
        if self.trace.old:
            self.trace.row("NSYS_SYNC_PYTHON_BACKTRACE", start=start, globalTid=thread.global_tid, payload=payload)
        elif self.trace.blobs:
            columns["binaryData"] = wrapped_payload(payload)
        self.trace.row(
            "NVTX_EVENTS",
            start=start,
            eventType=NVTX_MARK,
            category=1,
            color=4294944000,
            globalTid=thread.global_tid,
            domainId=domain,
            **columns,
        )


def python_payload(frames: Sequence[tuple[int, int, int]], source: int, state: int = 1) -> bytes:
    """Header, then 24 bytes a frame; the padding holds garbage, as it does in real files."""
    garbage = b"\xde\xad\xbe\xef"
    head = struct.pack("<III", state, source, len(frames)) + garbage
    return head + b"".join(struct.pack("<QQI", *frame) + garbage for frame in frames)


def wrapped_payload(payload: bytes) -> bytes:
    """One payload as it stands in NVTX_EVENTS.binaryData."""
    return struct.pack("<QQQQ", 1, BACKTRACE_SCHEMA, len(payload), 32) + payload
