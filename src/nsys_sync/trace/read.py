"""Reads an export into a Trace. Only the tables, columns and rows that the analysis needs."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from nsys_sync.errors import TraceError
from nsys_sync.trace import python_backtrace as backtrace
from nsys_sync.trace import schema as s
from nsys_sync.trace.api_names import ApiClass, base_name, classify, is_poll
from nsys_sync.trace.sqlite_file import SqliteFile, export_command
from nsys_sync.trace.tables import (
    NEVER_ENDED,
    UNNAMED,
    FrameArray,
    IntArray,
    Metadata,
    NativeStacks,
    PythonEvents,
    Trace,
    blocks,
)

STRINGS_PER_QUERY = 500
MESSAGES, MESSAGE_LENGTH = 2, 200
_FRAME_IS_WHOLE = "typeof(id) = 'integer' AND typeof(symbol) = 'integer' AND typeof(stackDepth) = 'integer'"
_CUDA_LIBRARY = re.compile(
    r"/lib(?:cuda|cudart|cupti|nvrtc)[-.\w]*\.so|[\\/](?:nvcuda|cudart|cupti|nvrtc)[-.\w]*\.dll$", re.IGNORECASE
)
READERS = 2
SAYS_NOTHING = frozenset({"", "root", "user", "host", "localhost", "vm"})
"""User and host names that identify nobody, and would be replaced in ordinary text."""
_NONE: IntArray = np.empty(0, dtype=np.int64)
_CALLCHAIN_COLUMNS = ("id", "symbol", "module", "stackDepth")
_MIG_NAME = re.compile(r"\bMIG \d+[cg]\.")
"""CUDA names a slice of a partitioned GPU so: `NVIDIA A100-SXM4-40GB MIG 1g.5gb`."""
LATEST_TIME = 2**61
"""73 years, in ns."""
HOW_TO_CAPTURE_STACKS = (
    "capture with nsys profile --sample=process-tree --cudabacktrace=sync:0 --python-backtrace=cuda "
    "--python-sampling=true"
)


def read_trace(file: SqliteFile, native_needles: Iterable[str]) -> Trace:
    """`native_needles`: the native frames to read are those whose symbol contains one of these.

    Raises TraceError when the database is no nsys export, or holds no CUDA events."""
    _refuse_what_cannot_be_analysed(file)
    devices = _CudaDevices(file)
    names_of_calls = _api_names(file)
    # SQLite and the Arrow reader release the GIL. The API rows cost as much as everything else together.
    with ThreadPoolExecutor(max_workers=READERS) as pool:
        api_rows = pool.submit(_read_api, file, names_of_calls)
        gpu_rows = pool.submit(_read_gpu, file, devices)
        symbols = pool.submit(_read_symbol_frames, file, native_needles)
        python_events = pool.submit(_read_python, file)
        nvtx_ranges = pool.submit(_read_nvtx, file)
        stream_sync_rows = pool.submit(_read_stream_syncs, file)
        overhead_rows = pool.submit(_read_overhead, file)
        poll_rows = pool.submit(_read_polls, file, names_of_calls)
    api, api_names = api_rows.result()
    gpu, copies = gpu_rows.result()
    communication = _communication_kernels(file, len(copies))
    python = python_events.result()
    metadata = _read_metadata(file)
    if not len(api):
        raise TraceError(
            f"{file.path}: has GPU activity, but of CUDA API calls only queries, so nothing can be said about "
            "synchronization. Capture again with nsys profile --trace=cuda,nvtx …"
        )
    if all(name == UNNAMED for name in api_names):
        raise TraceError(
            f"{file.path}: does not name its CUDA calls (table {s.STRINGS}), so which of them wait is not known. "
            f"Export the trace again: {export_command(file.path)}"
        )
    if not len(gpu) and any(classify(name) is ApiClass.GRAPH_LAUNCH for name in api_names):
        raise TraceError(
            f"{file.path}: has launches of CUDA graphs and no GPU activity: nsys 2023.4 leaves graphs out that were "
            "traced as a whole. Export the report again with a newer nsys (2025.3 has them), or capture with "
            "--cuda-graph-trace=node"
        )
    if not len(gpu):
        raise TraceError(
            f"{file.path}: has CUDA calls but no GPU activity (kernels, copies, memsets), so GPU idle time is not "
            "known. Was the capture range too short, or was the driver newer than nsys? Capture again with "
            "nsys profile --trace=cuda,nvtx …" + _what_nsys_said(file)
        )
    return Trace(
        name=file.path.name,
        metadata=metadata,
        api=api,
        api_names=api_names,
        gpu=gpu,
        communication=communication,
        copies=copies,
        stream_syncs=stream_sync_rows.result(),
        polls=poll_rows.result(),
        nvtx=nvtx_ranges.result(),
        overhead=overhead_rows.result(),
        python=python,
        native=_native_stacks(file, api, *symbols.result()),
        process_names=_read_process_names(file),
        thread_names=_read_thread_names(file),
        device_names=devices.names,
        diagnostics=_read_diagnostics(file),
        not_captured=tuple(_not_captured(file, metadata, python, devices)),
    )


def _refuse_what_cannot_be_analysed(file: SqliteFile) -> None:
    known = (s.RUNTIME, s.DRIVER, s.KERNEL, s.STRINGS, s.NVTX, s.EXPORT_METADATA, "ANALYSIS_DETAILS", "ANALYSIS_FILE")
    if not any(file.has(table) for table in known):
        raise TraceError(
            f"{file.path}: is an SQLite database, but no export of Nsight Systems. "
            f"Make one with: {export_command(file.path)}"
        )
    if not any(file.has(table) for table in (*s.API_TABLES, *s.GPU_TABLES)):
        raise TraceError(
            f"{file.path}: no CUDA activity was captured. Did the program use the GPU inside the capture range, and "
            "was it traced with nsys profile --trace=cuda,nvtx … ?" + _what_nsys_said(file)
        )
    if not any(file.has(table) for table in s.API_TABLES):
        raise TraceError(
            f"{file.path}: has GPU activity but no CUDA API calls (table {s.RUNTIME}), so nothing can be said about "
            "synchronization. Capture again with nsys profile --trace=cuda,nvtx …"
        )


def _what_nsys_said(file: SqliteFile) -> str:
    """The profiler's own messages on CUDA, and whether the machine is one on which it sees no GPU work."""
    said = [text for _, text in sorted(_read_diagnostics(file)) if re.search("cuda|cupti|inject", text, re.IGNORECASE)]
    result = f". nsys itself says: {'; '.join(text[:MESSAGE_LENGTH] for text in said[:MESSAGES])}" if said else ""
    if file.has(s.SYSTEM_ENVIRONMENT, "value"):
        source = file.source(s.SYSTEM_ENVIRONMENT, "value")
        found = file.rows(f"SELECT 1 FROM {source} WHERE value LIKE '%microsoft%WSL%' LIMIT 1", (int,))
        if found:
            result += (
                ". It was captured under WSL, where nsys often sees no GPU work: capture on Linux or Windows itself"
            )
    return result


def process_of(global_id: IntArray) -> IntArray:
    """`globalTid` or `globalPid` → process: hardware, VM and process id together."""
    return global_id >> 24


def _select(file: SqliteFile, table: str, wanted: Mapping[str, s.Column], conditions: Sequence[str] = ()) -> str:
    columns = ", ".join(f'{sql} AS "{name}"' for name, sql in s.expressions(file, table, wanted).items())
    where = " AND ".join([*s.required_values(file, table, wanted), *conditions])
    asked = [column for condition in conditions for column in re.findall(r'"(\w+)"', condition)]
    source = file.source(table, *dict.fromkeys([*(column.source for column in wanted.values()), *asked]))
    return f"SELECT {columns} FROM {source}" + (f" WHERE {where}" if where else "")


def _events(
    file: SqliteFile, table: str, wanted: Mapping[str, s.Column], conditions: Sequence[str] = ()
) -> dict[str, IntArray]:
    return _possible(_by_process(file.integers(_select(file, table, wanted, conditions), [table])))


def _by_process(columns: dict[str, IntArray]) -> dict[str, IntArray]:
    """With `process` of `globalPid`. Not in SQL, which takes any text for a number there."""
    if "process" in columns:
        columns["process"] = process_of(columns["process"])
    return columns


def _possible(columns: dict[str, IntArray]) -> dict[str, IntArray]:
    """Without rows whose times are no times (corrupted): sums of the others fit 64 bits. An end of 0 is none: exports
    before 2022 had no NULL.
    """
    start, end = columns["start_ns"], columns["end_ns"]
    if len(start) and start.min() <= 0:
        end[end == 0] = start[end == 0] - 1
    if len(start) and max(int(start.max()), int(end.max()), -int(start.min()), -int(end.min())) > LATEST_TIME:
        possible = (np.abs(start // 2) <= LATEST_TIME // 2) & (np.abs(end // 2) <= LATEST_TIME // 2)
        return {name: values[possible] for name, values in columns.items()}
    return columns


def _concat(parts: list[pd.DataFrame], columns: Iterable[str]) -> pd.DataFrame:
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return pd.DataFrame({column: np.empty(0, dtype=np.int64) for column in columns})
    return pd.concat(parts, ignore_index=True)


def _read_api(file: SqliteFile, names_of_calls: Mapping[int, str]) -> tuple[pd.DataFrame, tuple[str, ...]]:
    # Often a third of all rows (cuKernelGetName at every launch), and nothing depends on them.
    queries = _of_class(names_of_calls, ApiClass.QUERY)
    parts = [
        pd.DataFrame(_events(file, table, s.API_COLUMNS, [f'coalesce("nameId", -1) NOT IN ({queries})']), copy=False)
        for table in s.API_TABLES
        if file.has(table)
    ]
    api = _concat(parts, s.API_COLUMNS)
    code_of: dict[int, int] = {}
    name = np.empty(len(api), dtype=np.int32)
    for block in blocks(len(api)):
        name[block] = _shared_codes(api["name_id"].to_numpy()[block], code_of)
    names = _strings(file, list(code_of))
    api = api.drop(columns="name_id").assign(
        name=name, unfinished=api["end_ns"].to_numpy() < api["start_ns"].to_numpy()
    )
    return api, tuple(names.get(name_id, UNNAMED) for name_id in code_of)


def read_failed_launches(file: SqliteFile) -> tuple[IntArray, IntArray]:
    """Start (ns) and globalTid of the calls that were to launch work and that CUDA refused: they left none."""
    start, global_tid = [], []
    launches = _of_class(_api_names(file), *(one for one in ApiClass if one not in (ApiClass.QUERY, ApiClass.OTHER)))
    for table in s.API_TABLES:
        if launches and file.has(table, s.RETURN_VALUE):
            rows = file.integers(
                _select(
                    file,
                    table,
                    {name: s.API_COLUMNS[name] for name in ("start_ns", "global_tid")},
                    [
                        f"typeof(\"{s.RETURN_VALUE}\") = 'integer'",
                        f'"{s.RETURN_VALUE}" <> 0',
                        f'"nameId" IN ({launches})',
                    ],
                )
            )
            start.append(rows["start_ns"])
            global_tid.append(rows["global_tid"])
    return (np.concatenate(start), np.concatenate(global_tid)) if start else (_NONE, _NONE)


def read_query_starts(file: SqliteFile, process: int) -> IntArray:
    """The sorted start times (ns) of a process's calls that only ask, which are not among a trace's calls."""
    queries = _of_class(_api_names(file), ApiClass.QUERY)
    found = [
        file.integers(
            _select(
                file,
                table,
                {"start_ns": s.API_COLUMNS["start_ns"]},
                [f'"nameId" IN ({queries})', f'"globalTid" >> 24 = {process}'],
            )
        )["start_ns"]
        for table in s.API_TABLES
        if queries and file.has(table)
    ]
    return np.sort(np.concatenate(found)) if found else _NONE


def _read_polls(file: SqliteFile, names_of_calls: Mapping[int, str]) -> pd.DataFrame:
    names = {i: base_name(name) for i, name in names_of_calls.items() if is_poll(name)}
    parts = [
        pd.DataFrame(_events(file, table, s.POLL_COLUMNS, [f'"nameId" IN ({", ".join(map(str, names))})']))
        for table in s.API_TABLES
        if names and file.has(table)
    ]
    polls = _concat(parts, s.POLL_COLUMNS)
    return polls.drop(columns=["name_id", "return_value"]).assign(
        api=pd.Categorical(polls["name_id"].map(names)), too_early=polls["return_value"].to_numpy() == s.NOT_READY
    )


def _api_names(file: SqliteFile) -> dict[int, str]:
    """Every string that can be the name of an API call, by its id. Of several with one id the last counts, here as in
    `_strings`.
    """
    strings = _strings_source(file)
    query = f"SELECT id, value FROM {strings} WHERE id IN (SELECT id FROM {strings} WHERE value GLOB 'cu*')"
    return dict(file.rows(query, (int, str)))


def _of_class(names: Mapping[int, str], *classes: ApiClass) -> str:
    """The ids of the API names of the classes, for SQL."""
    return ", ".join(str(i) for i, name in names.items() if classify(name) in classes)


def _read_gpu(file: SqliteFile, devices: _CudaDevices) -> tuple[pd.DataFrame, pd.DataFrame]:
    """All GPU rows, copies first, and the copies' own columns."""
    tables = [table for table in s.GPU_TABLES if file.has(table)]
    if not tables:
        none = {name: np.empty(0, dtype=np.int64) for name in (*s.GPU_COLUMNS, *s.COPY_COLUMNS, "gpu_row", "process")}
        return pd.DataFrame(none).assign(unfinished=np.empty(0, dtype=bool)), pd.DataFrame(none)
    # One query: joining the tables' columns afterwards would copy all of them.
    query = " UNION ALL ".join(_select(file, table, s.GPU_COLUMNS) for table in tables)
    columns = _possible(_by_process(file.integers(query, tables)))
    copies: dict[str, IntArray] = {name: np.empty(0, dtype=np.int64) for name in s.COPY_COLUMNS}
    if file.has(s.MEMCPY):
        copies = _events(file, s.MEMCPY, {**s.GPU_COLUMNS, **s.COPY_COLUMNS})
    gpu = pd.DataFrame(columns, copy=False)
    gpu = gpu.assign(
        unfinished=columns["end_ns"] < columns["start_ns"],
        device_id=devices.physical(columns["process"], columns["device_id"]),
    )
    own = {name: copies[name] for name in s.COPY_COLUMNS}
    return gpu, pd.DataFrame({"gpu_row": np.arange(len(own["copy_kind"])), **own})


def _communication_kernels(file: SqliteFile, copies: int) -> IntArray | None:
    """The GPU rows of NCCL's kernels: kernels follow the copies."""
    if not file.has(s.KERNEL, s.KERNEL_NAME) or not file.has(s.STRINGS):
        return None
    names = file.rows(
        f"SELECT id, value FROM {_strings_source(file)} WHERE value GLOB '{s.COMMUNICATION_KERNELS}'", (int, str)
    )
    if not names:
        return _NONE
    kernels = _events(file, s.KERNEL, {**s.GPU_COLUMNS, "name_id": s.Column(s.KERNEL_NAME, -1)})
    return copies + np.flatnonzero(np.isin(kernels["name_id"], [i for i, _ in names]))


def _read_stream_syncs(file: SqliteFile) -> pd.DataFrame:
    if not file.has(s.SYNCHRONIZATION):
        return pd.DataFrame({name: np.empty(0, dtype=np.int64) for name in (*s.SYNCHRONIZATION_COLUMNS, "process")})
    columns = _events(file, s.SYNCHRONIZATION, s.SYNCHRONIZATION_COLUMNS)
    return pd.DataFrame(columns, copy=False)


def _read_overhead(file: SqliteFile) -> pd.DataFrame:
    if not file.has(s.OVERHEAD):
        return pd.DataFrame({name: np.empty(0, dtype=np.int64) for name in ("start_ns", "end_ns", "process")})
    columns = _events(file, s.OVERHEAD, s.OVERHEAD_COLUMNS)
    names = _strings(file, np.unique(columns["name_id"]).tolist())
    unknown = [name_id for name_id, name in names.items() if name.strip().lower() == "unknown"]
    table = pd.DataFrame(
        {
            "start_ns": columns["start_ns"],
            "end_ns": columns["end_ns"],
            "process": process_of(columns["global_tid"]),
        }
    )
    keep = ~np.isin(columns["name_id"], unknown) & (columns["end_ns"] > columns["start_ns"])
    return table[keep].reset_index(drop=True)


def _read_nvtx(file: SqliteFile) -> pd.DataFrame:
    empty = pd.DataFrame(
        {
            "start_ns": np.empty(0, dtype=np.int64),
            "end_ns": np.empty(0, dtype=np.int64),
            "global_tid": np.empty(0, dtype=np.int64),
            "name": pd.Categorical([]),
            "domain": pd.Categorical([]),
            "is_push_pop": np.empty(0, dtype=bool),
        }
    )
    if not file.has(s.NVTX, "start", "end", "eventType", "globalTid"):
        return empty
    kinds = ", ".join(str(kind) for kind in (*s.NVTX_PUSH_POP, *s.NVTX_START_END))
    optional = [column for column in ("text", "textId", "domainId") if file.has(s.NVTX, column)]
    events = file.source(s.NVTX, "start", "end", "eventType", "globalTid", *optional)
    text = "e.text" if "text" in optional else "NULL"
    # Not joined to the strings: a registered name would be there once a range, and it can be long.
    registered = f'CASE WHEN {text} IS NULL AND typeof(e."textId") = \'integer\' THEN e."textId" ELSE -1 END'
    domain = 'coalesce(e."domainId", 0)' if "domainId" in optional else "0"
    # Before 2022 no column took NULL, and an end that is not known was written as 0.
    end = 'CASE WHEN e."end" = 0 AND e.start > 0 THEN NULL ELSE e."end" END'
    table = file.arrow(
        f"SELECT e.start AS start_ns, coalesce({end}, {NEVER_ENDED}) AS end_ns, "
        f"e.\"globalTid\" AS global_tid, CAST(coalesce({text}, '') AS BLOB) AS name, "
        f"{registered if 'textId' in optional else '-1'} AS name_id, "
        f'{domain} AS domain_id, e."eventType" AS event_type FROM {events} e '
        f"WHERE e.\"eventType\" IN ({kinds}) AND typeof(e.start) = 'integer' AND typeof(e.\"globalTid\") = 'integer' "
        f"AND typeof(coalesce(e.\"end\", 0)) = 'integer' AND typeof({domain}) = 'integer'"
    )
    if not table.num_rows:
        return empty
    impossible = np.abs(table.column("start_ns").to_numpy() // 2) > LATEST_TIME // 2
    if impossible.any():
        table = table.filter(pa.array(~impossible))
    columns = {name: table.column(name).to_numpy() for name in ("start_ns", "end_ns", "global_tid", "domain_id")}
    columns["end_ns"] = np.where(columns["end_ns"] > LATEST_TIME, NEVER_ENDED, columns["end_ns"])
    names = table.column("name").combine_chunks().dictionary_encode()
    id_codes, ids = pd.factorize(table.column("name_id").to_numpy())
    registered_names = _strings(file, ids.tolist())
    # Two names that differ only in broken bytes look alike then, and categories must differ.
    shown = [bytes(name).decode("utf-8", "replace") for name in names.dictionary.to_pylist()]
    name_codes = np.where(ids[id_codes] >= 0, len(shown) + id_codes, names.indices.to_numpy())
    shown += [registered_names.get(name_id, "") for name_id in ids.tolist()]
    used, name_codes = np.unique(name_codes, return_inverse=True)
    shown_codes, name_index = pd.factorize(np.array([shown[code] for code in used.tolist()], dtype=object))
    domains = _domain_names(file)
    keys = pd.MultiIndex.from_arrays([process_of(columns["global_tid"]), columns["domain_id"]])
    key_codes, unique_keys = pd.factorize(keys)
    domain_of_key = [domains.get((int(process), int(domain)), "") for process, domain in unique_keys]
    domain_codes, domain_names = pd.factorize(np.asarray(domain_of_key, dtype=object))
    domain_index: pd.Index[str] = pd.Index(domain_names)
    return pd.DataFrame(
        {
            "start_ns": columns["start_ns"],
            "end_ns": np.maximum(columns["end_ns"], columns["start_ns"]),
            "global_tid": columns["global_tid"],
            "name": pd.Categorical.from_codes(shown_codes[name_codes], categories=pd.Index(name_index, dtype=object)),
            "domain": pd.Categorical.from_codes(domain_codes[key_codes], categories=domain_index),
            "is_push_pop": np.isin(table.column("event_type").to_numpy(), s.NVTX_PUSH_POP),
        }
    )


def _domain_names(file: SqliteFile) -> dict[tuple[int, int], str]:
    """(process, domain id) → domain name; domain ids are per process."""
    columns = ("eventType", "text", "domainId", "globalTid")
    if not file.has(s.NVTX, *columns):
        return {}
    has_id = file.has(s.NVTX, "textId")
    registered = f'(SELECT value FROM {_strings_source(file)} WHERE id = "textId")' if has_id else "NULL"
    rows = file.rows(
        f'SELECT "globalTid", "domainId", coalesce(text, {registered}, \'\') '
        f"FROM {file.source(s.NVTX, *columns, *(['textId'] if has_id else []))} "
        f'WHERE "eventType" = {s.NVTX_DOMAIN_CREATE} AND "globalTid" IS NOT NULL AND "domainId" IS NOT NULL',
        (int, int, str),
    )
    return {(tid >> 24, domain): str(name) for tid, domain, name in rows}


def _read_python(file: SqliteFile) -> PythonEvents:
    if file.has(s.OUR_BACKTRACES, "start", "globalTid", "payload"):
        return _python_events(
            file,
            f'SELECT start AS start_ns, "globalTid" AS global_tid, payload AS payload '
            f"FROM {file.source(s.OUR_BACKTRACES, 'start', 'globalTid', 'payload')} "
            "WHERE typeof(payload) = 'blob' AND typeof(start) = 'integer' AND typeof(\"globalTid\") = 'integer'",
            domains=None,
        )
    domains = {key for key, name in _domain_names(file).items() if name == s.PYTHON_DOMAIN}
    if not domains:
        return _no_python_events("no Python backtraces were collected; " + HOW_TO_CAPTURE_STACKS)
    if not file.has(s.NVTX, "start", "binaryData"):
        return _no_python_events(
            "the export leaves the Python stacks out (nsys before schema 3.13.2 does); name the report (.nsys-rep) "
            "itself, and nsys-sync adds them"
        )
    if not _layout_is_known(file):
        return _no_python_events("the Python stacks have a layout that this version of nsys-sync does not know")
    ids = ", ".join(str(domain) for domain in sorted({domain for _, domain in domains}))
    return _python_events(
        file,
        f'SELECT start AS start_ns, "globalTid" AS global_tid, "domainId" AS domain_id, "binaryData" AS payload '
        f"FROM {file.source(s.NVTX, 'start', 'globalTid', 'domainId', 'binaryData', 'eventType')} "
        f'WHERE "eventType" = {s.NVTX_MARK} AND "domainId" IN ({ids}) '
        "AND typeof(\"binaryData\") = 'blob' AND typeof(start) = 'integer' AND typeof(\"globalTid\") = 'integer'",
        domains,
    )


def _layout_is_known(file: SqliteFile) -> bool:
    """Every declared PythonBacktrace and PythonFrame schema must have the known fields at the known offsets."""
    schemas = ("name", "payloadSize", "schemaId", "domainId")
    entries = ("name", "offset", "schemaId", "domainId")
    if not (file.has(s.PAYLOAD_SCHEMAS, *schemas) and file.has(s.PAYLOAD_ENTRIES, *entries)):
        return False
    rows = file.rows(
        f"SELECT DISTINCT d.name, d.payloadSize, e.name, coalesce(e.offset, 0) "
        f"FROM {file.source(s.PAYLOAD_SCHEMAS, *schemas)} d JOIN {file.source(s.PAYLOAD_ENTRIES, *entries)} e "
        "ON e.schemaId = d.schemaId AND e.domainId = d.domainId "
        "WHERE d.name IN ('PythonBacktrace', 'PythonFrame')",
        (object, object, object, object),
    )
    header = {(name, offset) for schema, _, name, offset in rows if schema == "PythonBacktrace"}
    frame = {(name, offset) for schema, _, name, offset in rows if schema == "PythonFrame"}
    sizes = {size for schema, size, _, _ in rows if schema == "PythonFrame"}
    return (
        header == set(backtrace.KNOWN_HEADER.items())
        and frame == set(backtrace.KNOWN_FRAME.items())
        and sizes == {backtrace.FRAME_BYTES}
    )


def _python_events(file: SqliteFile, query: str, domains: set[tuple[int, int]] | None) -> PythonEvents:
    """`domains` are the (process, domain id) of the events to keep, whose payloads are wrapped. None: keep all."""
    function_codes: dict[int, int] = {}
    file_codes: dict[int, int] = {}
    parts: dict[str, list[npt.NDArray[Any]]] = {
        name: [] for name in ("start", "tid", "sample", "count", "function", "file", "line")
    }
    with file.reader(query) as reader:
        for batch in reader:  # Payloads are the bulk of a trace: no more of them at once than one batch.
            if domains is not None:
                batch = _of_domains(batch, domains)
            batch = batch.filter(pa.array(np.abs(batch.column("start_ns").to_numpy() // 2) <= LATEST_TIME // 2))
            if not batch.num_rows:
                continue
            payload = batch.column("payload")
            if not (pa.types.is_binary(payload.type) or pa.types.is_large_binary(payload.type)):
                return _no_python_events("the Python stacks have a layout that this version of nsys-sync does not know")
            decoded = backtrace.decode(payload, wrapped=domains is not None)
            parts["start"].append(batch.column("start_ns").to_numpy()[decoded.row])
            parts["tid"].append(batch.column("global_tid").to_numpy()[decoded.row])
            parts["sample"].append(decoded.is_sample)
            parts["count"].append(decoded.count)
            parts["function"].append(_shared_codes(decoded.frame_function_id, function_codes))
            parts["file"].append(_shared_codes(decoded.frame_file_id, file_codes))
            # 2^32 - 1 is Python's "no line" (-1).
            parts["line"].append(np.where(decoded.frame_line < 2**31, decoded.frame_line, 0).astype(np.int32))
    if not parts["count"]:
        again = "; export the report again with --include-blobs=true" if domains is not None else ""
        return _no_python_events("the export has no Python stacks" + again)
    start, tid, sample, count, function, python_file, line = (np.concatenate(arrays) for arrays in parts.values())
    names = _strings(file, sorted({*function_codes, *file_codes}))
    return PythonEvents(
        start_ns=start,
        global_tid=tid,
        is_sample=sample,
        first=np.cumsum(count) - count,
        count=count,
        frame_function=function,
        frame_file=python_file,
        frame_line=line,
        functions=tuple(html.unescape(names.get(i, "[unknown function]")) for i in function_codes),
        files=tuple(html.unescape(names.get(i, "[unknown file]")) for i in file_codes),
        refused=None,
    )


def _of_domains(events: pa.RecordBatch, domains: set[tuple[int, int]]) -> pa.RecordBatch:
    process = process_of(events.column("global_tid").to_numpy())
    domain_id = events.column("domain_id").to_numpy()
    ours = np.zeros(len(process), dtype=bool)
    for own_process, own_domain in domains:
        ours |= (process == own_process) & (domain_id == own_domain)
    return events.filter(pa.array(ours))


def _shared_codes(ids: IntArray, code_of: dict[int, int]) -> FrameArray:
    """Codes for the ids, the same in every chunk; new ids get the next code."""
    codes, found = pd.factorize(ids)
    shared = np.array([code_of.setdefault(int(i), len(code_of)) for i in found], dtype=np.int32)
    return shared[codes]


def _no_python_events(reason: str) -> PythonEvents:
    none = np.empty(0, dtype=np.int64)
    no_frames = none.astype(np.int32)
    return PythonEvents(none, none, none.astype(bool), none, none, no_frames, no_frames, no_frames, (), (), reason)


def _native_stacks(
    file: SqliteFile, api: pd.DataFrame, frames: pd.DataFrame, symbols: Mapping[int, str]
) -> NativeStacks:
    """Up to schema 3.9.0 the API rows' ids run 0…N-1 and the callchains' 1…N; later both start at 0."""
    if not file.has(s.CALLCHAINS, *_CALLCHAIN_COLUMNS):
        return NativeStacks(None, "no native callchains were collected; " + HOW_TO_CAPTURE_STACKS, frames, symbols)
    # Two queries: SQLite's index serves one end each.
    chains = file.source(s.CALLCHAINS, "id")
    first = file.rows(f"SELECT min(id) FROM {chains}", (int,))
    last = file.rows(f"SELECT max(id) FROM {chains}", (int,))
    asked = api["callchain_id"].to_numpy()
    asked = asked[asked >= 0]
    if not first or not last or not len(asked):
        return NativeStacks(None, "no native callchains were collected; " + HOW_TO_CAPTURE_STACKS, frames, symbols)
    shift = _shift(first[0][0], last[0][0], int(asked.min()), int(asked.max()))
    if shift is None:
        # Rows of queries are not among `api`, and with --all-backtraces they have callchains too.
        shift = _shift(first[0][0], last[0][0], *_asked_callchains(file))
    if shift is None:
        return NativeStacks(
            None, "the native callchains cannot be matched to their calls with certainty", frames, symbols
        )
    return NativeStacks(shift, None, frames, symbols)


def _shift(first: int, last: int, first_asked: int, last_asked: int) -> int | None:
    """What makes the ids that calls ask for those that there are; None if neither of the known ways does."""
    shift = first - first_asked
    return shift if shift in (0, 1) and last - last_asked == shift else None


def _asked_callchains(file: SqliteFile) -> tuple[int, int]:
    """The lowest and highest callchain id that any API row asks for."""
    column = s.API_COLUMNS["callchain_id"].source
    bounds = [
        row
        for table in s.API_TABLES
        if file.has(table, column)
        for row in file.rows(
            f'SELECT min("{column}"), max("{column}") FROM {file.source(table, column)} WHERE "{column}" >= 0',
            (int, int),
        )
    ]
    return (min(low for low, _ in bounds), max(high for _, high in bounds)) if bounds else (0, 0)


def read_native_stacks(file: SqliteFile, chain_ids: Iterable[int]) -> dict[int, tuple[tuple[str, str], ...]]:
    """Chain id → ((symbol, module), …), innermost first."""
    found: list[tuple[Any, ...]] = []
    wanted = sorted(set(chain_ids))
    for begin in range(0, len(wanted), STRINGS_PER_QUERY):
        ids = ", ".join(str(chain) for chain in wanted[begin : begin + STRINGS_PER_QUERY])
        found += file.rows(
            f"SELECT DISTINCT id, stackDepth, symbol, module FROM {file.source(s.CALLCHAINS, *_CALLCHAIN_COLUMNS)} "
            f"WHERE id IN ({ids}) ORDER BY id, stackDepth",
            (int, int, object, object),
        )
    # Read once each, not joined: thousands of stacks share their frames.
    names = _strings(
        file, list({name for *_, symbol, module in found for name in (symbol, module) if isinstance(name, int)})
    )
    result: dict[int, list[tuple[str, str]]] = {}
    for chain, _, symbol, module in found:
        result.setdefault(chain, []).append((names.get(symbol) or "[unknown]", names.get(module) or "[unknown]"))
    return {chain: tuple(frames) for chain, frames in result.items()}


def _read_symbol_frames(file: SqliteFile, needles: Iterable[str]) -> tuple[pd.DataFrame, Mapping[int, str]]:
    """Callchain frames whose symbol contains one of `needles`: chain_id, symbol_id, depth; and the symbols' names."""
    empty = pd.DataFrame({name: np.empty(0, dtype=np.int64) for name in ("chain_id", "symbol_id", "depth")})
    if not file.has(s.CALLCHAINS, *_CALLCHAIN_COLUMNS):
        return empty, {}
    needles = tuple(needles)
    contains = " OR ".join("instr(value, ?)" for _ in needles)
    symbols = dict(file.rows(f"SELECT id, value FROM {_strings_source(file)} WHERE {contains}", (int, str), needles))
    if not symbols:
        return empty, {}
    ids = ", ".join(str(symbol) for symbol in symbols)
    hits = file.integers(
        "SELECT id AS chain_id, symbol AS symbol_id, stackDepth AS depth "
        f"FROM {file.source(s.CALLCHAINS, *_CALLCHAIN_COLUMNS)} WHERE symbol IN ({ids}) AND {_FRAME_IS_WHOLE}"
    )
    return pd.DataFrame(hits), symbols


def read_first_frames_outside_cuda(file: SqliteFile, chain_ids: IntArray) -> pd.Series[str]:
    """Chain id → the innermost resolved symbol that is not in a CUDA library, for the chains that have one."""
    if not file.has(s.CALLCHAINS, *_CALLCHAIN_COLUMNS) or not len(chain_ids):
        return pd.Series([], index=np.empty(0, dtype=np.int64), dtype=object)
    strings = _strings_source(file)
    libraries = file.rows(f"SELECT id, value FROM {strings} WHERE value LIKE '%.so%' OR value LIKE '%.dll'", (int, str))
    excluded = ", ".join(str(i) for i, name in libraries if _CUDA_LIBRARY.search(name)) or "-1"
    flag = ["unresolved"] if file.has(s.CALLCHAINS, "unresolved") else []
    unresolved = "AND coalesce(unresolved, 0) = 0" if flag else ""
    rows = file.integers(
        "SELECT id AS chain_id, symbol AS symbol_id, min(stackDepth) AS depth "
        f"FROM {file.source(s.CALLCHAINS, *_CALLCHAIN_COLUMNS, *flag)} "
        f"WHERE {_FRAME_IS_WHOLE} AND module NOT IN ({excluded}) {unresolved} AND symbol NOT IN "
        f"(SELECT id FROM {strings} WHERE value GLOB '0x*' OR value GLOB '[[]*') GROUP BY id"
    )
    wanted = np.isin(rows["chain_id"], chain_ids)
    names = _strings(file, pd.unique(rows["symbol_id"][wanted]).tolist())
    found = pd.Series(rows["symbol_id"][wanted], index=rows["chain_id"][wanted]).map(names).dropna()
    return found.astype(object)


def _strings_source(file: SqliteFile) -> str:
    """What stands after FROM for the table of strings, also where there is none."""
    if not file.has(s.STRINGS, "id", "value"):
        return "(SELECT NULL AS id, NULL AS value WHERE 0)"
    return file.source(s.STRINGS, "id", "value")


def _strings(file: SqliteFile, ids: list[int]) -> dict[int, str]:
    result: dict[int, str] = {}
    source = _strings_source(file)
    for begin in range(0, len(ids), STRINGS_PER_QUERY):
        chunk = ", ".join(str(int(i)) for i in ids[begin : begin + STRINGS_PER_QUERY])
        result.update(file.rows(f"SELECT id, value FROM {source} WHERE id IN ({chunk})", (int, str)))
    return result


def _key_values(file: SqliteFile, table: str) -> dict[str, str]:
    """Keys in capitals, as NVIDIA writes them today."""
    if not file.has(table, "name", "value"):
        return {}
    rows = file.rows(f"SELECT name, CAST(value AS TEXT) FROM {file.source(table, 'name', 'value')}", (str, str))
    return {name.upper(): value for name, value in rows}


def _read_metadata(file: SqliteFile) -> Metadata:
    capture = _key_values(file, s.CAPTURE_METADATA)
    export = _key_values(file, s.EXPORT_METADATA)
    start_utc = None
    if file.has(s.SESSION_START, "utcEpochNs"):
        rows = file.rows(f"SELECT utcEpochNs FROM {file.source(s.SESSION_START, 'utcEpochNs')} LIMIT 1", (int,))
        if rows and 0 < rows[0][0] < 2**62:
            moment = datetime.fromtimestamp(rows[0][0] / 1e9, tz=timezone.utc)
            start_utc = moment.isoformat(timespec="seconds")
    users = {value for key, value in capture.items() if key.endswith(":USER_NAME")} | {export.get("EXPORT_USER", "")}
    private_names = dict.fromkeys(sorted(users - SAYS_NOTHING), "USER")
    if (host := export.get("EXPORT_HOST", "")) not in SAYS_NOTHING:
        private_names[host] = "HOST"
    return Metadata(
        nsys_version=export.get("EXPORT_PRODUCT_VERSION"),
        schema_version=export.get("EXPORT_SCHEMA_VERSION"),
        capture_start_utc=start_utc,
        capture=capture,
        private_names=private_names,
    )


def _read_process_names(file: SqliteFile) -> dict[int, str]:
    if not file.has(s.PROCESSES, "globalPid", "name"):
        return {}
    rows = file.rows(f"SELECT globalPid, name FROM {file.source(s.PROCESSES, 'globalPid', 'name')}", (int, str))
    return {global_pid >> 24: name.replace("\\", "/").rsplit("/", 1)[-1] for global_pid, name in rows}


def _read_thread_names(file: SqliteFile) -> dict[int, str]:
    if not file.has(s.THREADS, "globalTid", "nameId"):
        return {}
    rows = file.rows(
        f'SELECT "globalTid", "nameId" FROM {file.source(s.THREADS, "globalTid", "nameId")}',
        (int, int),
    )
    names = _strings(file, list({name for _, name in rows}))
    return {tid: names[name] for tid, name in rows if name in names}


class _CudaDevices:
    """Which GPU a process's device number stands for (it is an ordinal under CUDA_VISIBLE_DEVICES)."""

    def __init__(self, file: SqliteFile) -> None:
        self.gpus: dict[int, str] = {}
        for number in ("id", "deviceId"):  # the second until the middle of 2021
            if file.has(s.GPUS, number, "name"):
                rows = file.rows(f'SELECT "{number}", name FROM {file.source(s.GPUS, number, "name")}', (int, str))
                self.gpus.update(rows)
        self._gpu_of: dict[tuple[int, int], int] = {}
        columns = ("pid", "cudaId", "gpuId")
        if file.has(s.CUDA_DEVICES, *columns):
            mapped = file.rows(
                f"SELECT pid, cudaId, gpuId FROM {file.source(s.CUDA_DEVICES, *columns)}", (int, int, int)
            )
            self._gpu_of = {(pid, cuda): gpu for pid, cuda, gpu in mapped}
        self._partitioned = {gpu for gpu, name in self.gpus.items() if _MIG_NAME.search(name)}
        if file.has(s.GPUS, "id", "uuid"):
            rows = file.rows(f"SELECT id, uuid FROM {file.source(s.GPUS, 'id', 'uuid')}", (int, str))
            self._partitioned |= {gpu for gpu, uuid in rows if uuid.startswith("MIG-")}
        self._slice_of: dict[tuple[int, int], str] = {}
        columns = ("pid", "cudaId", "uuid")
        if file.has(s.CUDA_DEVICES, *columns):
            slices = file.rows(
                f"SELECT pid, cudaId, uuid FROM {file.source(s.CUDA_DEVICES, *columns)}", (int, int, str)
            )
            self._slice_of = {(pid, cuda): uuid for pid, cuda, uuid in slices if uuid}
        self._users: dict[int, list[str | None]] = {}
        self._unmapped: list[int] = []
        self.names: dict[int, str] = {}

    def physical(self, process: IntArray, device_id: IntArray) -> IntArray:
        """The GPU id for each row; the device number itself where the export does not say."""
        changes = (process[1:] != process[:-1]) | (device_id[1:] != device_id[:-1])
        begins = np.flatnonzero(np.concatenate(([True], changes))[: len(process)])  # of runs of rows of one device
        process_codes, processes = pd.factorize(process[begins])
        device_codes, devices = pd.factorize(device_id[begins])
        codes, pairs = pd.factorize(process_codes * max(len(devices), 1) + device_codes)
        mapped = []
        for pair in pairs:
            pid, device = int(processes[pair // len(devices)]) & 0xFFFFFF, devices[pair % len(devices)]
            gpu = self._gpu_of.get((pid, int(device)))
            if gpu is None:
                gpu = int(device)
                self._unmapped.append(gpu)
            mapped.append(gpu)
            self._users.setdefault(gpu, []).append(self._slice_of.get((pid, int(device))))
            same_name = set(self.gpus.values())
            self.names[gpu] = self.gpus.get(gpu) or (same_name.pop() if len(same_name) == 1 else "")
        same = all(gpu == int(devices[pair % len(devices)]) for pair, gpu in zip(pairs, mapped, strict=True))
        if same:
            return device_id
        return np.repeat(np.asarray(mapped, dtype=np.int64)[codes], np.diff(begins, append=len(process)))

    @property
    def ambiguous(self) -> bool:
        """Several processes use the same device number, on a machine of several GPUs, and no table maps it."""
        return len(self.gpus) > 1 and len(set(self._unmapped)) < len(self._unmapped)

    @property
    def undivided(self) -> list[int]:
        """GPUs partitioned with MIG that several processes use, not known to be on one slice of it."""
        return [
            gpu
            for gpu, slices in self._users.items()
            if len(slices) > 1
            and (gpu in self._partitioned or any(one and one.startswith("MIG-") for one in slices))
            and (None in slices or len(set(slices)) > 1)
        ]


def _read_diagnostics(file: SqliteFile) -> tuple[tuple[str, str], ...]:
    """(severity, text) of warnings (2) and errors (3), in order, each once."""
    if not file.has(s.DIAGNOSTICS, "severity", "text"):
        return ()
    source = file.source(s.DIAGNOSTICS, "severity", "text")
    rows = file.rows(f"SELECT severity, text FROM {source} WHERE severity IN (2, 3)", (int, str))
    found = (("error" if severity == 3 else "warning", " ".join(text.split())) for severity, text in rows)
    return tuple(dict.fromkeys(found))


def _not_captured(file: SqliteFile, metadata: Metadata, python: PythonEvents, devices: _CudaDevices) -> Iterable[str]:
    if python.refused:
        yield f"Python stacks: {python.refused}"
    if not file.has(s.CAPTURE_METADATA):
        yield "the capture's options: not in this export, so stacks may be missing because they were not asked for"
    if not file.has(s.NVTX):
        yield "NVTX ranges: none in the trace (the program has none, or --trace did not name nvtx)"
    if not file.has(s.SYNCHRONIZATION):
        yield "synchronization details: no such table, so a copy and the synchronize after it are shown apart"
    if not file.has(s.OVERHEAD):
        yield "the profiler's own pauses: no such table, so idle time may contain some"
    thresholds = {
        value
        for key, value in metadata.capture.items()
        if re.search("SYNCHRONO?IZATION_BACKTRACES_THRESHOLD_NS$", key)  # NVIDIA spells it with an O too many
    }
    collected = {
        value for key, value in metadata.capture.items() if re.search("COLLECT_SYNCHRONO?IZATION_BACKTRACES$", key)
    }
    if collected == {"false"}:
        yield f"stacks of synchronize calls: not asked for; {HOW_TO_CAPTURE_STACKS}"
    for threshold in sorted(thresholds - {"0"}):
        yield f"stacks of synchronize calls shorter than {threshold} ns (the capture's threshold)"
    if devices.ambiguous:
        yield (
            "which GPU each process used: this export does not map device numbers to GPUs; processes started with "
            "CUDA_VISIBLE_DEVICES may be shown on the wrong GPU. Export with a newer nsys (2025.3 maps them)"
        )
    for gpu in devices.undivided:
        yield (
            f"which MIG slice each process used: GPU {gpu} is partitioned, and this export does not tell its slices "
            "apart. They are shown as one GPU, which counts as busy while any of them works; capture one process to "
            "see its slice alone"
        )
