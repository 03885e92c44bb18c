"""Makes an SQLite export safe to share: what the analysis reads is kept, everything else goes.

An export holds the environment and command line of every process of the machine. Nothing is searched for and struck
out here: a new file is written from a list of the tables, columns, rows and settings that may stay, so that what a
later nsys adds is left behind until someone has looked at it. A new file has no freed pages with old bytes in them.

What is kept of the text is what the analysis shows: API, kernel and symbol names, NVTX and thread names, file paths,
warnings of the profiler. In these, home folders, users and the host are replaced as `analysis.user_code.shown`
replaces them, so that the analysis of the scrubbed file shows the same.
"""

from __future__ import annotations

import html
import os
import re
import shutil
import sqlite3
import struct
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

import numpy as np

from nsys_sync.errors import OutputError, TraceError
from nsys_sync.home_folders import without_home_folders
from nsys_sync.trace import python_backtrace as backtrace
from nsys_sync.trace import read
from nsys_sync.trace import schema as s
from nsys_sync.trace.sqlite_file import SqliteFile, export_command, require_sqlite
from nsys_sync.trace.table_names import canonical

# ---- what may stay


class _As(Enum):
    """What a column holds, which decides how its values are made harmless."""

    NUMBER = "number"
    LABEL = "label"
    """NVIDIA's own words, and settings that passed `_is_harmless_setting`."""
    TEXT = "text"
    DIAGNOSTIC = "diagnostic"
    PROGRAM = "program"
    FIELD = "field"
    WRAPPED_PAYLOAD = "wrapped payload"
    PAYLOAD = "payload"
    CODE_ID = "id of a name in code"
    TEXT_ID = "id of a text"
    PATH_ID = "id of a path"


_STRING_IDS = (_As.CODE_ID, _As.TEXT_ID, _As.PATH_ID)
_BYTES = (_As.WRAPPED_PAYLOAD, _As.PAYLOAD)
_NUMBERS = (_As.NUMBER, *_STRING_IDS)


@dataclass(frozen=True)
class _Table:
    """The columns of a table that stay, and an SQL condition on the rows that do, where not all do.

    `{processes}` and `{pids}` in it stand for the processes that did CUDA work.
    """

    columns: Mapping[str, _As]
    rows: str = "1"
    needs: tuple[str, ...] = ()
    """Columns that the condition reads. Where one is missing, no row stays."""


def _columns(numbers: str = "", **others: _As) -> dict[str, _As]:
    return {**dict.fromkeys(numbers.split(), _As.NUMBER), **others}


_ACTIVITY = "start end deviceId contextId greenContextId streamId correlationId globalPid "
_API = _Table(_columns("start end eventClass globalTid correlationId returnValue callchainId", nameId=_As.CODE_ID))
# Warnings and errors (severity 2 and 3) are what the analysis shows; the others name log files and processes.
_DIAGNOSTIC_ROWS = "severity IN (2, 3)"
_NVTX_KINDS = (s.NVTX_MARK, s.NVTX_DOMAIN_CREATE, *s.NVTX_PUSH_POP, *s.NVTX_START_END)
_PYTHON_SCHEMAS = "name IN ('PythonBacktrace', 'PythonFrame')"
_OF_THREADS = '"globalTid" >> 24 IN ({processes})'
_SYSTEM_FACTS = (
    *("CpuArchitecture", "CpuCores", "CpuDescription", "CudaDriverVersion", "NvDriverVersion", "OsDescription"),
)
# No uuid, luid, busLocation, device node paths or node mask: they tell one machine's GPUs from another's.
_GPU_NUMBERS = (
    "vmId id isDiscrete l2CacheSize totalMemory memoryBandwidth clockRate smCount cuDevice revision constantMemory "
    "maxIPC maxRegistersPerBlock maxShmemPerBlock maxShmemPerBlockOptin maxShmemPerSm maxRegistersPerSm "
    "threadsPerWarp asyncEngines maxWarpsPerSm maxBlocksPerSm maxThreadsPerBlock maxBlockDimX maxBlockDimY "
    "maxBlockDimZ maxGridDimX maxGridDimY maxGridDimZ computeMajor computeMinor smMajor smMinor"
)
_ENUMS = (
    *("ENUM_NSYS_EVENT_TYPE", "ENUM_NSYS_EVENT_CLASS", "ENUM_CUDA_MEMCPY_OPER", "ENUM_CUDA_MEM_KIND"),
    *("ENUM_CUDA_KERNEL_LAUNCH_TYPE", "ENUM_CUDA_SHARED_MEM_LIMIT_CONFIG", "ENUM_CUDA_UNIF_MEM_MIGRATION"),
    *("ENUM_CUDA_FUNC_CACHE_CONFIG", "ENUM_CUPTI_STREAM_TYPE", "ENUM_CUPTI_SYNC_TYPE"),
    *("ENUM_DIAGNOSTIC_SEVERITY_LEVEL", "ENUM_DIAGNOSTIC_SOURCE_TYPE", "ENUM_DIAGNOSTIC_TIMESTAMP_SOURCE"),
)
_SETTINGS = _Table(_columns(name=_As.LABEL, value=_As.LABEL), "is_harmless_setting(name, value)", ("name", "value"))

# Instruction pointers (originalIP) and addresses of memory stay out: they say how the machine laid out its memory.
KEPT: Mapping[str, _Table] = {
    s.RUNTIME: _API,
    s.DRIVER: _API,
    s.KERNEL: _Table(
        _columns(
            _ACTIVITY + "launchType cacheConfig registersPerThread gridX gridY gridZ blockX blockY blockZ "
            "staticSharedMemory dynamicSharedMemory localMemoryPerThread localMemoryTotal gridId "
            "sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig",
            demangledName=_As.CODE_ID,
            shortName=_As.CODE_ID,
            mangledName=_As.CODE_ID,
        )
    ),
    s.MEMCPY: _Table(
        _columns(
            _ACTIVITY + "bytes copyKind srcKind dstKind srcDeviceId srcContextId dstDeviceId dstContextId "
            "migrationCause graphNodeId copyCount"
        )
    ),
    s.MEMSET: _Table(_columns(_ACTIVITY + "value bytes graphNodeId memKind")),
    s.GRAPH: _Table(_columns(_ACTIVITY + "graphId graphExecId")),
    s.SYNCHRONIZATION: _Table(_columns(_ACTIVITY + "deprecatedSyncType syncType eventId eventSyncId")),
    s.CALLCHAINS: _Table(_columns("id unresolved stackDepth", symbol=_As.CODE_ID, module=_As.PATH_ID)),
    s.NVTX: _Table(
        # In the order in which the columns were added, so that what is written looks like an export.
        _columns("start end eventType rangeId category color", text=_As.TEXT)
        | _columns("globalTid endGlobalTid", textId=_As.TEXT_ID)
        | _columns("domainId", binaryData=_As.WRAPPED_PAYLOAD),
        f'{_OF_THREADS} AND "eventType" IN ({", ".join(map(str, _NVTX_KINDS))})',
        ("globalTid", "eventType"),
    ),
    s.PAYLOAD_SCHEMAS: _Table(
        _columns("domainId schemaId", name=_As.LABEL) | _columns("type flags numEntries payloadSize alignTo"),
        _PYTHON_SCHEMAS,
        ("name",),
    ),
    s.PAYLOAD_ENTRIES: _Table(
        _columns("domainId schemaId idx flags type", name=_As.FIELD) | _columns("arrayOrUnionDetail offset"),
        f'("domainId", "schemaId") IN (SELECT "domainId", "schemaId" FROM main."{s.PAYLOAD_SCHEMAS}")',
        ("domainId", "schemaId"),
    ),
    s.OUR_BACKTRACES: _Table(_columns("start globalTid", payload=_As.PAYLOAD), _OF_THREADS, ("globalTid",)),
    s.OVERHEAD: _Table(
        _columns("start end globalTid", nameId=_As.TEXT_ID) | _columns("returnValue"),
        f'({_OF_THREADS} OR "globalTid" IS NULL)',
        ("globalTid",),
    ),
    s.PROCESSES: _Table(
        _columns("globalPid pid", name=_As.PROGRAM), '"globalPid" >> 24 IN ({processes})', ("globalPid",)
    ),
    s.THREADS: _Table(_columns("priority globalTid", nameId=_As.TEXT_ID), _OF_THREADS, ("globalTid",)),
    s.DIAGNOSTICS: _Table(
        _columns("timestamp timestampType source severity", text=_As.DIAGNOSTIC), _DIAGNOSTIC_ROWS, ("severity",)
    ),
    s.GPUS: _Table(_columns(_GPU_NUMBERS, name=_As.LABEL, chipName=_As.LABEL)),
    s.CUDA_DEVICES: _Table(_columns("gpuId cudaId pid"), "pid IN ({pids})", ("pid",)),
    "TARGET_INFO_CUDA_CONTEXT_INFO": _Table(
        _columns("nullStreamId hwId vmId processId deviceId contextId parentContextId isGreenContext"),
        '"processId" IN ({pids})',
        ("processId",),
    ),
    "TARGET_INFO_CUDA_STREAM": _Table(
        _columns("streamId hwId vmId processId contextId priority flag"), '"processId" IN ({pids})', ("processId",)
    ),
    s.SESSION_START: _Table(_columns("utcEpochNs")),  # the local time would tell the time zone
    "ANALYSIS_DETAILS": _Table(_columns("duration startTime stopTime")),
    "TARGET_INFO_SYSTEM_ENV": _Table(
        _columns("nameEnum", name=_As.LABEL, value=_As.TEXT),
        f"name IN ({', '.join(repr(fact) for fact in _SYSTEM_FACTS)})",
        ("name",),
    ),
    s.CAPTURE_METADATA: _SETTINGS,
    s.EXPORT_METADATA: _SETTINGS,
    **dict.fromkeys(_ENUMS, _Table(_columns("id", name=_As.LABEL, label=_As.LABEL))),
}
"""Everything that may stay, besides the strings that these rows refer to."""

_CUDA_TABLES = {
    **dict.fromkeys(map(canonical, s.API_TABLES), "globalTid"),
    **dict.fromkeys(map(canonical, (*s.GPU_TABLES, s.SYNCHRONIZATION)), "globalPid"),
}
_SETTINGS_TABLES = (s.CAPTURE_METADATA, s.EXPORT_METADATA)
_TABLES_OF_SETTINGS = {canonical(table) for table in (*_SETTINGS_TABLES, "TARGET_INFO_SYSTEM_ENV")}
_SWITCH = re.compile(r"true|false|-?\d{1,18}|")
_WORD = re.compile(r"[A-Za-z]{0,24}")
_VERSION = re.compile(r"[\w .+-]{0,80}")
_HARMLESS_SETTINGS: tuple[tuple[re.Pattern[str], re.Pattern[str]], ...] = tuple(
    (re.compile(name), value)
    for name, value in (
        (r"(PROCESS_\d+:)?COLLECT_\w+", _SWITCH),
        (r"(PROCESS_\d+:)?CUDA_(BACKTRACE_OPTIONS:|FLUSH_|SKIP_SOME_API_CALLS)\w*", _SWITCH),
        (r"(PROCESS_\d+:)?CUDA_GRAPH_TRACE_OPTIONS:MODE", _WORD),
        (r"PYTHON_BACKTRACE_SAMPLING_OPTIONS:(COLLECT_SAMPLES|SAMPLING_RATE)", _SWITCH),
        (r"LINUX_PERF_OPTIONS:(COLLECT_\w+|SAMPLES_PER_BACKTRACE|SAMPLING_PERIOD|EVENT_COUNT_INTERVAL_MS)", _SWITCH),
        (r"LINUX_PERF_OPTIONS:(COLLECTION_MODE|CPU_IP_TRIGGER_TYPE)", _WORD),
        (r"CAPTURE_EVENT_TYPE|START_TRIGGER|STOP_TRIGGER", _WORD),
        (r"RUN_DURATION_(MS|FRAMES)|START_DELAY_MS|INCLUDE_CHILDREN|(SAMPLE|TRACE)_ALL_TASKS", _SWITCH),
        (r"TRACE_AFTER_FORK_BEFORE_EXEC|SHOW_BACKTRACE|SYMBOL_RESOLUTION_OPTIONS:RESOLVE_SYMBOLS", _SWITCH),
        (r"USE_(DWARF|FRAME_POINTERS|LBRS|LINUX_PERF|UNWIND_TABLES)", _SWITCH),
        (r"EXPORT_(PRODUCT_(NAME|VERSION|DATE)|SCHEMA_VERSION\w*|PLATFORM|ARCH)", _VERSION),
        (r"EXPORT_PARAM_(OVERWRITE|APPEND|LAZY|TIME_NORMALIZE|TIME_SHIFT)|EXPORT_CONFIG_TIME_SHIFT", _SWITCH),
    )
)


def _is_harmless_setting(name: object, value: object) -> bool:
    """Known by name, and of a value that can hold no text of the user's: a switch, a number, a version."""
    text = "" if value is None else str(value)
    return any(known.fullmatch(str(name).upper()) and may.fullmatch(text) for known, may in _HARMLESS_SETTINGS)


# ---- the result


@dataclass(frozen=True)
class Scrubbed:
    """What a scrub removed: (what, how many) in the order to print them in. What was not there is not listed."""

    removed: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        if not self.removed:
            return "nothing had to be removed"
        return "removed: " + ", ".join(f"{what}: {count:,}" for what, count in self.removed)


_TABLES = "tables that the analysis does not read"
_COLUMNS = "columns that the analysis does not read"
_PROCESSES = "processes without CUDA calls"
_VARIABLES = "environment variables of the profiled program"
_SETTINGS_REMOVED = "other settings of capture, export and system (command line, folders, host, user)"
_STRINGS = "strings that nothing kept refers to (environments and command lines of all processes)"
_REPLACED = "names with a home folder, user or host replaced"
_PAYLOADS = "NVTX payloads other than Python stacks"
_ORDER = (_TABLES, _COLUMNS, _PROCESSES, _VARIABLES, _SETTINGS_REMOVED, _STRINGS, _PAYLOADS, _REPLACED)


def scrub(database: Path, *, renamed_folders: Iterable[tuple[str, str]] = ()) -> Scrubbed:
    """Rewrites `database`, a copy that the caller made of an export, without what must not be shared.

    `renamed_folders` are (there, here): path beginnings that are to be called otherwise, such as build folders.
    Until the new content is complete the file is as it was: after an error it must not be shared.

    Raises TraceError when it is no export that can be read, OutputError when the new file cannot be written.
    """
    database = database.resolve()  # a link's target is what has to change
    require_sqlite(database)
    with _errors_named(database):
        _settle(database)
        handle, name = tempfile.mkstemp(prefix=f".{database.name}.", suffix=".scrubbed", dir=database.parent)
        os.close(handle)
        fresh = Path(name)
        try:
            with closing(SqliteFile(database)) as file:
                result = _Scrub(file, fresh, renamed_folders).run()
            with fresh.open("rb") as written:
                os.fsync(written.fileno())
            shutil.copymode(database, fresh)
            fresh.replace(database)
        finally:
            for left_over in (name, f"{name}-journal", f"{name}-wal", f"{name}-shm"):
                Path(left_over).unlink(missing_ok=True)
        # A journal of the old content beside the new file would hold old bytes, and be played back into it.
        for journal in ("-journal", "-wal", "-shm"):
            Path(f"{database}{journal}").unlink(missing_ok=True)
    return result


def _settle(database: Path) -> None:
    """Plays back a journal or write-ahead log that lies beside the file, so that all content is in the file."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE").fetchall()
        connection.execute("SELECT count(*) FROM sqlite_master").fetchall()


@contextmanager
def _errors_named(database: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        reason = (str(error).splitlines() or ["no reason given"])[0]
        raise TraceError(
            f"{database}: cannot be scrubbed ({reason}). Export the trace again: {export_command(database)}"
        ) from error
    except OSError as error:
        raise OutputError(
            f"{database}: the scrubbed file cannot be written ({error.strerror}). Check the folder and free space"
        ) from error


class _Scrub:
    """One scrub: the original is attached read-only as `raw`, and `main` is the new file."""

    def __init__(self, file: SqliteFile, fresh: Path, renamed_folders: Iterable[tuple[str, str]]) -> None:
        self.file = file
        self.fresh = fresh
        self.removed: Counter[str] = Counter()
        self.names = _Names(file, renamed_folders)
        self.payloads = _Payloads(file)
        self.strings: dict[_As, set[int]] = {kind: set() for kind in _STRING_IDS}
        self.placeholders: dict[str, str] = {}

    def run(self) -> Scrubbed:
        kept = {canonical(table): what for table, what in KEPT.items()}  # schemas before their entries
        tables = [table for name in kept for table in self.file.tables if canonical(table) == name]
        if not tables and not self.file.has(s.STRINGS):
            raise TraceError(
                f"{self.file.path}: is an SQLite database, but no export of Nsight Systems. "
                f"Make one with: {export_command(self.file.path)}"
            )
        with closing(sqlite3.connect(f"file:{quote(str(self.fresh))}", uri=True, isolation_level=None)) as connection:
            self._prepare(connection)
            connection.execute("BEGIN")
            for table in tables:
                self._copy_table(connection, table, kept[canonical(table)])
            self._copy_strings(connection)
            connection.execute("COMMIT")
        known = {canonical(s.STRINGS), *kept}
        self.removed[_TABLES] = sum(canonical(table) not in known for table in self.file.tables)
        self.removed[_PAYLOADS] = self.payloads.dropped
        return Scrubbed(tuple((what, self.removed[what]) for what in _ORDER if self.removed[what]))

    def _prepare(self, connection: sqlite3.Connection) -> None:
        # The file is new and is renamed only when complete: a crash costs nothing, so no journal is needed.
        for setting in ("journal_mode = OFF", "synchronous = OFF", "trusted_schema = OFF", "temp_store = MEMORY"):
            connection.execute(f"PRAGMA {setting}")
        connection.execute("ATTACH DATABASE ? AS raw", (f"file:{quote(str(self.file.path))}?mode=ro",))
        connection.create_function("is_harmless_setting", 2, _is_harmless_setting, deterministic=True)
        connection.create_function("harmless_text", 1, self._counted(self.names.in_text))
        connection.create_function("harmless_diagnostic", 1, self._counted(self.names.in_diagnostic))
        connection.create_function("program_name", 1, _in_bytes(self.names.program))
        connection.create_function("wrapped_payload", 4, self.payloads.wrapped)
        connection.create_function("payload", 1, self.payloads.plain)
        processes: set[int] = set()
        for table in self.file.tables:
            column = _CUDA_TABLES.get(canonical(table))
            if column and column.casefold() in self.file.columns(table):
                quoted = _quoted(column)
                processes.update(
                    process
                    for (process,) in connection.execute(
                        f"SELECT DISTINCT {quoted} >> 24 FROM raw.{_quoted(table)} WHERE typeof({quoted}) = 'integer'"
                    )
                )
        pids = {process & 0xFFFFFF for process in processes}
        self.placeholders = {"processes": _listed(processes), "pids": _listed(pids)}

    def _counted(self, clean: Callable[[str], str]) -> Callable[[bytes], bytes]:
        in_bytes = _in_bytes(clean)

        def counted(value: bytes) -> bytes:
            result = in_bytes(value)
            self.removed[_REPLACED] += result != value
            return result

        return counted

    def _copy_table(self, connection: sqlite3.Connection, table: str, kept: _Table) -> None:
        catalogue = connection.execute(f"PRAGMA raw.table_info({_quoted(table)})").fetchall()
        kinds = {name.casefold(): kind for name, kind in kept.columns.items()}
        columns = {
            name: (kinds[name.casefold()], bool(not_null), key)
            for _, name, _, not_null, _, key in catalogue
            if name.casefold() in kinds
        }
        self.removed[_COLUMNS] += len(catalogue) - len(columns)
        if not columns:
            return
        definitions = [
            f"{_quoted(name)} {_declared(kind)}{' NOT NULL' if not_null else ''}"
            for name, (kind, not_null, _) in columns.items()
        ]
        keys = sorted((key, name) for name, (_, _, key) in columns.items() if key)
        if keys and len(keys) == sum(1 for row in catalogue if row[5]):
            definitions.append(f"PRIMARY KEY ({', '.join(_quoted(name) for _, name in keys)})")
        connection.execute(f"CREATE TABLE main.{_quoted(table)} ({', '.join(definitions)})")
        have = self.file.columns(table)
        needed = {column.casefold() for column in kept.needs}
        rows = kept.rows.format(**self.placeholders) if needed <= have else "0"
        if kept is KEPT[s.PAYLOAD_ENTRIES] and not self.file.has(s.PAYLOAD_SCHEMAS, "domainId", "schemaId"):
            rows = "0"
        expressions = ", ".join(_expression(name, kind, have) for name, (kind, _, _) in columns.items())
        connection.execute(
            f"INSERT INTO main.{_quoted(table)} SELECT {expressions} FROM raw.{_quoted(table)} WHERE {rows}"
        )
        self._count_rows(connection, table, rows)
        for name, (kind, _, _) in columns.items():
            if kind in _STRING_IDS:
                self.strings[kind].update(
                    number
                    for (number,) in connection.execute(f"SELECT DISTINCT {_quoted(name)} FROM main.{_quoted(table)}")
                    if isinstance(number, int)
                )

    def _count_rows(self, connection: sqlite3.Connection, table: str, rows: str) -> None:
        def gone(condition: str = "1") -> int:
            found = connection.execute(
                f"SELECT count(*) FROM raw.{_quoted(table)} WHERE {condition} AND NOT coalesce({rows}, 0)"
            )
            return int(found.fetchone()[0])

        if canonical(table) == canonical(s.PROCESSES):
            self.removed[_PROCESSES] += gone()
        elif canonical(table) in _TABLES_OF_SETTINGS:
            variables = gone("name LIKE 'PROCESS\\_%:ENVIRONMENT\\_VARIABLE' ESCAPE '\\'") if rows != "0" else 0
            self.removed[_VARIABLES] += variables
            self.removed[_SETTINGS_REMOVED] += gone() - variables

    def _copy_strings(self, connection: sqlite3.Connection) -> None:
        if not self.file.has(s.STRINGS, "id", "value"):
            return
        self.strings[_As.CODE_ID] |= self.payloads.functions
        self.strings[_As.PATH_ID] |= self.payloads.files
        connection.execute(f'CREATE TABLE main."{s.STRINGS}" (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)')
        clean = {
            _As.PATH_ID: _in_bytes(self.names.in_path),
            _As.TEXT_ID: _in_bytes(self.names.in_text),
            _As.CODE_ID: _in_bytes(self.names.in_code),
        }

        def kept() -> Iterator[tuple[int, bytes]]:
            tables = [table for table in self.file.tables if canonical(table) == canonical(s.STRINGS)]
            all_strings = " UNION ALL ".join(f"SELECT id, value FROM raw.{_quoted(table)}" for table in tables)
            rows = connection.execute(
                f"SELECT id, CAST(value AS BLOB) FROM ({all_strings}) WHERE typeof(id) = 'integer' "
                "AND value IS NOT NULL ORDER BY id"
            )
            for number, value in rows:
                kind = next((kind for kind in clean if number in self.strings[kind]), None)
                if kind is None:
                    self.removed[_STRINGS] += 1
                    continue
                harmless = clean[kind](value)
                self.removed[_REPLACED] += harmless != value
                yield number, harmless

        # The bytes become text again in SQL: a name that is no UTF-8 stays what it was.
        connection.executemany(f'INSERT OR IGNORE INTO main."{s.STRINGS}" VALUES (?, CAST(? AS TEXT))', kept())


def _declared(kind: _As) -> str:
    return "INTEGER" if kind in _NUMBERS else "BLOB" if kind in _BYTES else "TEXT"


def _expression(name: str, kind: _As, have: frozenset[str]) -> str:
    """SQL for a column's harmless value. SQLite keeps any value in any column, so a number must prove to be one."""
    column = _quoted(name)
    if kind in _NUMBERS:
        return f"CASE WHEN typeof({column}) IN ('integer', 'real') THEN {column} END"
    if kind is _As.WRAPPED_PAYLOAD:
        keys = ", ".join(
            _quoted(key) if key.casefold() in have else "NULL" for key in ("globalTid", "domainId", "eventType")
        )
        return f"CASE WHEN {column} IS NOT NULL THEN wrapped_payload({keys}, {column}) END"
    if kind is _As.PAYLOAD:
        return f"CASE WHEN {column} IS NOT NULL THEN payload({column}) END"
    if kind is _As.FIELD:
        fields = ", ".join(repr(field) for field in (*backtrace.KNOWN_HEADER, *backtrace.KNOWN_FRAME))
        return f"CASE WHEN {column} IN ({fields}) THEN {column} ELSE 'unknown' END"
    functions = {
        _As.TEXT: "harmless_text",
        _As.DIAGNOSTIC: "harmless_diagnostic",
        _As.PROGRAM: "program_name",
    }
    value = f"CAST({functions[kind]}(CAST({column} AS BLOB)) AS TEXT)" if kind in functions else column
    return f"CASE WHEN typeof({column}) = 'text' THEN {value} END"


def _in_bytes(clean: Callable[[str], str]) -> Callable[[bytes], bytes]:
    """`clean` on what SQLite calls text, which need not be UTF-8. Most values recur."""

    @lru_cache(maxsize=1 << 14)
    def cleaned(value: bytes) -> bytes:
        return clean(value.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    return cleaned


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(str(number) for number in sorted(numbers))


# ---- payloads


class _Payloads:
    """Python stacks, byte for byte what the reader decodes, and the ids of the strings that their frames use.

    The padding of the header and of every frame is memory that nobody wrote: it becomes zero.
    """

    def __init__(self, file: SqliteFile) -> None:
        self.functions: set[int] = set()
        self.files: set[int] = set()
        self.dropped = 0
        self.domains: set[tuple[int, int]] = set()
        self.layout_is_known = False
        # Where a table or column is missing that says which payloads are stacks, the analysis has no stacks either.
        with suppress(TraceError, TypeError):
            self.domains = {key for key, name in read._domain_names(file).items() if name == s.PYTHON_DOMAIN}
            self.layout_is_known = read._layout_is_known(file)

    def wrapped(self, global_tid: object, domain: object, event_type: object, value: object) -> bytes | None:
        """NVTX_EVENTS.binaryData. Payloads of other domains, or of a layout not known, can hold anything."""
        is_ours = isinstance(global_tid, int) and (global_tid >> 24, domain) in self.domains
        if not (is_ours and event_type == s.NVTX_MARK and self.layout_is_known and isinstance(value, bytes)):
            self.dropped += 1
            return None
        if len(value) < backtrace.WRAPPER_BYTES:
            return b""  # as malformed as before, and the reader still sees that there was something
        count, schema, size, offset = struct.unpack_from("<QQQQ", value)
        if count != 1 or offset < backtrace.WRAPPER_BYTES or offset + size > len(value):
            return b""
        payload = self.plain(value[offset : offset + size])
        return struct.pack("<QQQQ", 1, schema, len(payload), backtrace.WRAPPER_BYTES) + payload

    def plain(self, value: object) -> bytes:
        if not isinstance(value, bytes) or len(value) < backtrace.FRAMES_OFFSET:
            return b""
        (count,) = struct.unpack_from("<I", value, backtrace.FRAME_COUNT_OFFSET)
        size = backtrace.FRAMES_OFFSET + backtrace.FRAME_BYTES * count
        if count == 0 or size > len(value):
            return b""
        content = bytearray(value[:size])
        content[backtrace.FRAME_COUNT_OFFSET + 4 : backtrace.FRAMES_OFFSET] = bytes(4)
        frames = np.frombuffer(content, dtype=np.uint8, offset=backtrace.FRAMES_OFFSET).reshape(count, -1)
        frames[:, backtrace.FRAME_LINE_OFFSET + 4 :] = 0
        ids = np.frombuffer(content, dtype="<i8", offset=backtrace.FRAMES_OFFSET).reshape(count, -1)
        self.functions.update(ids[:, backtrace.FRAME_FUNCTION_OFFSET // 8].tolist())
        self.files.update(ids[:, backtrace.FRAME_FILE_OFFSET // 8].tolist())
        return bytes(content)


# ---- names

_NAME = r"""[^/\\\s"'`<>|:;,()\[\]{}=&*?]+"""
_HOME_INSIDE = re.compile(rf"(?<=[\w.-])(/home/|/Users/)({_NAME})(?=/)")
"""`…/home/NAME/…` in a path that `without_home_folders` does not take for one in a home folder."""
_LANDMARKS = re.compile(
    r"/(?:site|dist)-packages/|/lib(?:64)?/python\d+(?:\.\d+)?/|/python\d+\.zip/|torchinductor_|/\.triton/cache/"
    r"|/torch_compile_debug/|<ipython-input-|/ipykernel_\d+/|torch/_tensor_str\.py$"
    r"|/lib(?:cuda|cudart|cupti|nvrtc)[-.\w]*\.so|THPVariable|THCP"
)
"""What the analysis recognises in paths and symbols. A user of the name `lib` or `torch` must not hide it."""
_ABSOLUTE_PATH = re.compile(r"""(?<![\w.~])~?(?:/[^\s/'"`,;:()<>|]+)+/([^\s/'"`,;:()<>|]+)/?""")
_WINDOWS_PATH = re.compile(r"""(?:~|\b[A-Za-z]:)(?:[\\/]+[^\s\\/'"`,;:()<>|]+)*[\\/]+([^\s\\/'"`,;:()<>|]+)""")
_ALIAS = re.compile(r"USER\d*")
_SHORTEST_WORD = 3
"""Shorter user and host names are replaced in paths only: in texts they would be any word."""
_SHORT_VALUE, _LONG_VALUE = 6, 12
"""Arguments and variables shorter than this, the second if they are one word, are no more than words of English."""


class _Names:
    """Replaces home folders by `~`, the users' names by USER (others by USER2, …), and the host's by HOST.

    Different names get different replacements, so that different paths stay different.
    """

    def __init__(self, file: SqliteFile, renamed_folders: Iterable[tuple[str, str]]) -> None:
        self.renamed_folders = tuple(renamed_folders)
        rows = _rows(file, s.CAPTURE_METADATA)
        export = _rows(file, s.EXPORT_METADATA)
        variables = [tuple(value.partition("=")[::2]) for name, value in rows if name.endswith("ENVIRONMENT_VARIABLE")]
        users = {value for name, value in rows if name.endswith(":USER_NAME")}
        users.update(value for name, value in export if name == "EXPORT_USER")
        users -= {"", "root"}
        self.aliases = dict.fromkeys(sorted(users), "USER")
        others = {value for name, value in variables if name in {"USER", "LOGNAME", "USERNAME", "SUDO_USER"}}
        homes = (
            re.fullmatch(r"(?:/\w+)*/(?:home|Users)/([^/]+)/?", value) for name, value in variables if name == "HOME"
        )
        others.update(home[1] for home in homes if home)
        for other in sorted(others - {"", "root"} - users):
            self.alias(other)
        hosts = {value for name, value in rows if name == "DEVICE_DISPLAY_NAME"}
        hosts.update(value for name, value in variables if name in {"HOSTNAME", "HOST"})
        hosts.update(value for name, value in _rows(file, "TARGET_INFO_SYSTEM_ENV") if name == "Hostname")
        hosts.update(value for name, value in export if name == "EXPORT_HOST")
        hosts.update(re.split(r"\.(?=[A-Za-z])", host)[0] for host in tuple(hosts))
        hosts = {host for host in hosts if len(host) >= _SHORTEST_WORD and not host.startswith("localhost")}
        self.users_in_paths = _any_of(self.aliases)
        self.users_in_texts = _any_of(user for user in self.aliases if len(user) >= _SHORTEST_WORD)
        # `train.py` is no host even on a machine called `train`.
        self.hosts = _any_of(hosts, r"(?<![\w.-])", r"(?![\w-]|\.(?:py|so|ipynb|cu|cpp|cc|c|h)\b)")
        private = {value for name, value in variables}
        private.update(
            value
            for name, value in rows
            if re.search(r":(COMMAND|ARGUMENT_\d+|WORKING_DIR|ENVIRONMENT_VARIABLE)$", name)
        )
        private = {value for value in private if len(value) >= (_LONG_VALUE if value.isalnum() else _SHORT_VALUE)}
        self.private_values = tuple(sorted(private, key=lambda value: (-len(value), value)))

    def alias(self, user: str) -> str:
        if _ALIAS.fullmatch(user):
            return user
        return self.aliases.setdefault(user, f"USER{len(self.aliases) + 1}" if self.aliases else "USER")

    def in_code(self, value: str) -> str:
        """API, kernel, symbol and function names: only where a path is part of the name."""
        return self._without_names(value, is_path=True) if "/" in value or "\\" in value else value

    def in_path(self, value: str) -> str:
        return self._without_names(value, is_path=True)

    def in_text(self, value: str) -> str:
        return self._without_names(value, is_path="/" in value or "\\" in value)

    def in_diagnostic(self, value: str) -> str:
        """The profiler's messages quote folders and command lines: of a path its last part is enough."""
        for private in self.private_values:
            value = value.replace(private, "…")
        value = self.in_text(value)
        return _WINDOWS_PATH.sub(r"…/\1", _ABSOLUTE_PATH.sub(r"…/\1", value))

    def program(self, value: str) -> str:
        """The base name of a process's program, without arguments, should there be any."""
        program = re.split(r"\s+-", value, maxsplit=1)[0]
        return self.in_text(program.replace("\\", "/").rsplit("/", 1)[-1])

    def _without_names(self, value: str, *, is_path: bool) -> str:
        if value == s.PYTHON_DOMAIN:
            return value
        for there, here in self.renamed_folders:
            value = value.replace(there, here)
        value = _unless_hidden(value, without_home_folders)
        value = _unless_hidden(value, lambda text: _HOME_INSIDE.sub(lambda m: m[1] + self.alias(m[2]), text))
        users = self.users_in_paths if is_path else self.users_in_texts
        if users is not None:
            value = _unless_hidden(value, lambda text: users.sub(lambda m: self.alias(html.unescape(m[0])), text))
        hosts = self.hosts
        if hosts is not None:
            value = _unless_hidden(value, lambda text: hosts.sub("HOST", text))
        return value


def _unless_hidden(value: str, replace: Callable[[str], str]) -> str:
    replaced = replace(value)
    if replaced == value or _LANDMARKS.findall(replaced) == _LANDMARKS.findall(value):
        return replaced
    return value


def _any_of(words: Iterable[str], before: str = r"(?<![^\W_])", after: str = r"(?![^\W_])") -> re.Pattern[str] | None:
    """Any of the words, as they are and as nsys escapes them for HTML, not as part of a longer word."""
    spelt = {spelling for word in words for spelling in (word, html.escape(word))}
    if not spelt:
        return None
    return re.compile(
        before + "(?:" + "|".join(re.escape(word) for word in sorted(spelt, key=len, reverse=True)) + ")" + after
    )


def _rows(file: SqliteFile, table: str) -> list[tuple[str, str]]:
    """Name and value of every setting; a name may occur more than once. Names in capitals, as NVIDIA's are today."""
    if not file.has(table, "name", "value"):
        return []
    rows = file.rows(f"SELECT name, value FROM {file.source(table, 'name', 'value')}", (str, str))
    return [(name.upper() if table in _SETTINGS_TABLES else name, value) for name, value in rows]
