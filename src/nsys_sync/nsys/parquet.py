"""A folder of Parquet files (`nsys export --type parquetdir`, one TABLE.parquet a table) as an SQLite export.

The same report exported both ways by nsys 2023.4.4 has the same rows in the same order, all tables but one:
META_DATA_CAPTURE is in no Parquet folder. Parquet has unsigned numbers and booleans where SQLite has integers. The
Python stacks are left out, as in that version's SQLite export.
"""

from __future__ import annotations

import os
import re
import sqlite3
import stat
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

import adbc_driver_manager
import adbc_driver_sqlite.dbapi
import pyarrow as pa
import pyarrow.parquet as pq

from nsys_sync.errors import OutputError, TraceError
from nsys_sync.nsys.export import Progress, Seen, keep_export, kept_export, made_whole, seen
from nsys_sync.regular_files import with_a_name
from nsys_sync.trace import schema as s
from nsys_sync.trace.sqlite_file import export_command
from nsys_sync.trace.table_names import canonical

ENDING = ".parquet"
TABLES = (
    *(*s.API_TABLES, *s.GPU_TABLES, s.SYNCHRONIZATION, s.OVERHEAD, s.NVTX, s.PAYLOAD_SCHEMAS, s.PAYLOAD_ENTRIES),
    *(s.STRINGS, s.CALLCHAINS, s.OUR_BACKTRACES, s.PROCESSES, s.THREADS, s.GPUS, s.CUDA_DEVICES, s.SESSION_START),
    *(s.DIAGNOSTICS, s.CAPTURE_METADATA, s.EXPORT_METADATA, "ANALYSIS_DETAILS", "ANALYSIS_FILE"),
)
"""What an analysis reads, or tells an export of nsys by."""
_WANTED = frozenset(canonical(table) for table in TABLES)
INDEXES = {s.STRINGS: ("id",), s.CALLCHAINS: ("id", "stackDepth")}
"""As nsys's SQLite has them, as primary keys: a damaged folder can have an id twice."""
MAGIC = b"PAR1"
ROWS_PER_BATCH = 1 << 16
READ_BUFFER = 1 << 20
MADE_WITHOUT_NSYS = "none"
WHAT_TO_NAME = (
    "Name a report (.nsys-rep), an SQLite export, or a folder that nsys export --type parquetdir wrote (with "
    "StringIds.parquet in it)"
)


def cached_conversion(folder: Path, progress: Progress) -> Path:
    """The SQLite export made of `folder`: from the cache where that provably belongs to it, else made now.

    Raises TraceError for a folder that is no whole Parquet export of nsys.
    """
    folder = with_a_name(folder)
    files = _seen(folder)
    return kept_export(folder, files, MADE_WITHOUT_NSYS) or keep_export(
        folder, files, MADE_WITHOUT_NSYS, lambda database: convert(folder, database, progress)
    )


def convert(folder: Path, database: Path, progress: Progress) -> None:
    """Writes the tables of `folder` that an analysis reads to `database`, whole or not at all; replaces a file."""
    before, tables = _seen(folder), _tables(folder)
    with made_whole(database, _mode(folder, tables)) as made:
        uri = f"file:{quote(os.fsencode(made.resolve()))}"
        done, whole = 0, sum(size for size, _ in before.values())
        with closing(_quick_connection(uri)) as connection:
            schemas = {name: _create(name, path, connection) for name, path in tables.items()}
        with _errors_of(folder), adbc_driver_sqlite.dbapi.connect(uri) as filling:
            for name, path in tables.items():
                _fill(name, path, schemas[name], filling)
                done += before[path.name][0]
                progress("reading tables", 100 * done // whole)
            filling.commit()
        with _errors_of(folder), closing(_quick_connection(uri)) as connection:
            for name in tables:
                _add_index(name, schemas[name], connection)
        if _seen(folder) != before:
            raise _changed(folder)


def _seen(folder: Path) -> Seen:
    try:
        return seen(_tables(folder).values())
    except FileNotFoundError as error:
        raise _changed(folder) from error


def _changed(folder: Path) -> TraceError:
    return TraceError(f"{folder}: changed while it was read. Try again when its export is done")


def _mode(folder: Path, tables: Mapping[str, Path]) -> int:
    """Who may read the folder and all of the tables."""
    mode = folder.stat().st_mode
    for path in tables.values():
        mode &= path.stat().st_mode
    return mode


def _tables(folder: Path) -> Mapping[str, Path]:
    """The files that hold the wanted tables, by the tables' names. Raises TraceError where the folder is not whole."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries)
    except OSError as error:
        raise TraceError(
            f"{folder}: the folder cannot be read ({error.strerror}). Check its permissions: ls -ld {folder}"
        ) from error
    if not names:
        raise TraceError(f"{folder}: is a folder without files. {WHAT_TO_NAME}")
    files = {name.removesuffix(ENDING): folder / name for name in names if name.endswith(ENDING)}
    wanted = {name: path for name, path in files.items() if _is_wanted(name)}
    if not wanted:
        if any(name.endswith(".arrow") and _is_wanted(name.removesuffix(".arrow")) for name in names):
            raise TraceError(
                f"{folder}: is a folder of Arrow files (nsys export --type arrowdir), which nsys-sync does not read. "
                f"Name the report that it was made of, or export that again: {_export_command(folder)}"
            )
        raise TraceError(f"{folder}: is a folder without tables of Nsight Systems. {WHAT_TO_NAME}")
    for path in files.values():  # of any table: what is left of an unfinished export would look like an idle GPU
        _require_whole(path)
    if not any(canonical(name) == canonical(s.STRINGS) for name in wanted):
        raise TraceError(
            f"{folder}: has no {s.STRINGS}{ENDING}, which holds all names. If files were copied, copy the whole "
            f"folder; else export the report again: {_export_command(folder)}"
        )
    return wanted


def _is_wanted(name: str) -> bool:
    return canonical(name) in _WANTED


def _require_whole(path: Path) -> None:
    """A Parquet file begins and ends with its magic; nsys writes the end last."""
    try:
        state = path.stat()
        if not stat.S_ISREG(state.st_mode):
            raise TraceError(f"{path}: is no file, and nsys writes each table to one. {_again(path)}")
        with path.open("rb") as file:
            head = file.read(len(MAGIC))
            file.seek(max(state.st_size - len(MAGIC), 0))
            tail = file.read(len(MAGIC))
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror}). Check its permissions: ls -l {path}") from error
    if not head:
        raise TraceError(f"{path}: is empty (0 bytes). {_again(path)}")
    if head != MAGIC:
        what = "begins with zeros" if not head.strip(b"\0") else "is no Parquet file"
        raise TraceError(f"{path}: {what}. {_again(path)}")
    if tail != MAGIC or state.st_size < 3 * len(MAGIC):
        raise TraceError(f"{path}: is cut off, or its export is not finished. {_again(path)}")


def _again(path: Path) -> str:
    """Of the folder, or of a file in it."""
    return f"Export the report again: {_export_command(path.parent if path.suffix == ENDING else path)}"


def _export_command(folder: Path) -> str:
    """nsys itself calls the folder of NAME.nsys-rep NAME_pqtdir."""
    return export_command(Path(re.sub("_(pqt|arw)dir$", "", with_a_name(folder).name)))


@contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    try:
        yield
    except MemoryError:
        raise  # Arrow's own is one of its other errors too
    except (sqlite3.Error, adbc_driver_manager.Error, pa.ArrowException, OSError, ValueError) as error:
        why = (str(error).splitlines() or ["no reason given"])[0][:200]
        if "allocate memory" in why:
            raise MemoryError from error
        if "disk is full" in why or "disk I/O" in why:
            raise OutputError(
                f"{path}: no space left on the disk for its export ({why}). Free some, or use export -o"
            ) from error
        raise TraceError(f"{path}: is damaged ({why}). {_again(path)}") from error


def _quick_connection(uri: str) -> sqlite3.Connection:
    """Waits for no disk: the file is written through once, when it is whole."""
    connection = sqlite3.connect(uri, uri=True)
    connection.execute("PRAGMA synchronous = OFF")
    return connection


def _create(name: str, path: Path, connection: sqlite3.Connection) -> pa.Schema:
    """Makes the empty table. Returns the columns that it has."""
    kinds = {pa.int64(): "INTEGER", pa.float64(): "REAL", pa.large_string(): "TEXT", pa.large_binary(): "BLOB"}
    with _errors_of(path), path.open("rb") as opened:
        schema = _stored_schema(pq.ParquetFile(opened).schema_arrow)
        columns = (
            f"{_quoted(field.name)} {kinds[field.type]}{'' if field.nullable else ' NOT NULL'}" for field in schema
        )
        if len(schema):
            connection.execute(f"CREATE TABLE {_quoted(name)} ({', '.join(columns)})")
        return schema


def _fill(name: str, path: Path, schema: pa.Schema, filling: adbc_driver_sqlite.dbapi.Connection) -> None:
    with _errors_of(path), path.open("rb") as opened, filling.cursor() as cursor:
        # Neither a row group nor a column of one at once: other writers than nsys make them large.
        file = pq.ParquetFile(opened, pre_buffer=False, buffer_size=READ_BUFFER)
        for batch in file.iter_batches(batch_size=ROWS_PER_BATCH, columns=schema.names, use_threads=False):
            columns = [_stored(batch.column(field.name), field.type) for field in schema]
            if columns:
                cursor.adbc_ingest(name, pa.RecordBatch.from_arrays(columns, schema=schema), mode="append")


def _stored_schema(schema: pa.Schema) -> pa.Schema:
    """The columns that SQLite can hold, as it holds them; the others (lists, records) are in no table that is read."""
    stored = ((field, _stored_as(field.type)) for field in schema)
    return pa.schema([pa.field(field.name, kind, field.nullable) for field, kind in stored if kind is not None])


def _stored_as(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_dictionary(kind):
        return _stored_as(kind.value_type)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return pa.int64()
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return pa.int64()
    if pa.types.is_decimal(kind):
        return pa.int64() if kind.scale == 0 else pa.float64()
    if pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.large_string()
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.large_binary()
    return None


def _stored(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_uint64(column.type):
        return column.view(pa.int64())  # nsys's SQLite has the same bits
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ns", column.type.tz))
    if pa.types.is_duration(column.type):
        column = column.cast(pa.duration("ns"))
    return column.cast(kind)


def _add_index(name: str, schema: pa.Schema, connection: sqlite3.Connection) -> None:
    for table, columns in INDEXES.items():
        if canonical(name) == canonical(table) and set(columns) <= set(schema.names):
            on = ", ".join(_quoted(column) for column in columns)
            connection.execute(f"CREATE INDEX {_quoted(f'{name}_index')} ON {_quoted(name)} ({on})")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
