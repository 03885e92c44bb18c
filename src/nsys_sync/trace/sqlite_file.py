"""One SQLite export, opened read-only: its catalogue, and queries into NumPy and Arrow."""

from __future__ import annotations

import os
import shlex
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import adbc_driver_manager
import adbc_driver_sqlite.dbapi
import numpy as np
import pyarrow as pa

from nsys_sync.errors import TraceError
from nsys_sync.trace.table_names import canonical
from nsys_sync.trace.tables import IntArray

SQLITE_MAGIC = b"SQLite format 3\0"
HOW_TO_EXPORT = "nsys-sync export --force -o {target} {report}"
ROWS_PER_BATCH = 1 << 17
LEAST_BYTES_A_ROW = 12
"""Of a table with a start, an end and ids: their numbers are at least a byte each, after as many of their types."""


class SqliteFile:
    """A read-only view of one export. Safe for use from several threads: every bulk query opens its own connection.

    Raises TraceError for anything that is not a readable SQLite database.
    """

    def __init__(self, path: Path, shown_as: Path | None = None) -> None:
        """`shown_as` is what errors name: the report that the export at `path` was made of."""
        self.path = shown_as or path
        require_sqlite(path)
        _refuse_unmerged_changes(path)
        # A database in WAL mode would make SQLite write a -shm file beside the input; `immutable` never writes.
        with path.open("rb") as file:
            header = file.read(20)
        self._size = path.stat().st_size
        in_wal_mode = 2 in header[18:20]  # the version to write and the one to read: damage can be of one alone
        self.uri = f"file:{quote(os.fsencode(path.resolve()))}?mode=ro" + ("&immutable=1" if in_wal_mode else "")
        self._lock = threading.Lock()
        with self._errors_named():
            self._connection = sqlite3.connect(self.uri, uri=True, check_same_thread=False)
            # Names in a trace can be cut inside a letter (Linux cuts thread names at 15 bytes).
            self._connection.text_factory = lambda text: text.decode("utf-8", "replace")
            # Views and virtual tables are never nsys's, and a query of one can run for ever.
            tables = self._connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
            ).fetchall()
            found: dict[str, dict[str, dict[str, bool]]] = {}
            for (table,) in tables:
                if self._connection.execute(f"SELECT 1 FROM {_quoted(table)} LIMIT 1").fetchone():
                    columns = self._connection.execute(f"PRAGMA table_info({_quoted(table)})").fetchall()
                    not_null = {row[1].casefold(): bool(row[3]) for row in columns}
                    found.setdefault(canonical(table), {})[table] = not_null
            self._variants: Mapping[str, Mapping[str, Mapping[str, bool]]] = found

    def close(self) -> None:
        self._connection.close()

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables that hold rows: with `--lazy=false` nsys also writes empty ones, which say no more than
        none.
        """
        return tuple(name for variants in self._variants.values() for name in variants)

    def has(self, table: str, *columns: str) -> bool:
        """Whether there is such a table with rows, under any of its names, and with all of these columns."""
        variants = self._variants.get(canonical(table), {})
        have = {column for variant in variants.values() for column in variant}
        return bool(variants) and have.issuperset(column.casefold() for column in columns)

    def columns(self, name: str) -> frozenset[str]:
        """Columns of the table that has exactly this name, in lower case; none where it has no rows."""
        return frozenset(self._variants.get(canonical(name), {}).get(name, ()))

    def is_not_null(self, table: str, column: str) -> bool:
        """Whether the table's declaration forbids NULL in the column."""
        return all(
            variant.get(column.casefold(), False) for variant in self._variants.get(canonical(table), {}).values()
        )

    def source(self, table: str, *columns: str) -> str:
        """SQL that stands after FROM for a table: its name, or a query that joins the rows of all its variants.

        `columns` are those that are asked for; one that a variant lacks is NULL in its rows.
        """
        variants = self._variants[canonical(table)]
        if len(variants) == 1:
            return _quoted(*variants)
        parts = (
            "SELECT "
            + ", ".join(_quoted(one) if one.casefold() in have else f"NULL AS {_quoted(one)}" for one in columns)
            + f" FROM {_quoted(name)}"
            for name, have in variants.items()
        )
        return f"({' UNION ALL '.join(parts)})"

    def rows(self, sql: str, kinds: Sequence[type], parameters: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        """A query whose result is small. Rows with a value of another kind than declared are left out."""
        with self._errors_named(), self._lock:
            found = self._connection.execute(sql, tuple(parameters)).fetchall()
        return [row for row in found if all(isinstance(v, kind) for v, kind in zip(row, kinds, strict=True))]

    @contextmanager
    def reader(self, sql: str) -> Iterator[pa.RecordBatchReader]:
        """A query whose result may be large, read a batch at a time."""
        with self._errors_named(), adbc_driver_sqlite.dbapi.connect(self.uri) as connection:
            cursor = connection.cursor()
            cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(ROWS_PER_BATCH)})
            cursor.execute(sql)
            yield pa.RecordBatchReader.from_stream(cursor.fetch_arrow())
            cursor.close()

    def arrow(self, sql: str) -> pa.Table:
        """A query whose result may be large."""
        with self.reader(sql) as reader:
            return reader.read_all()

    def integers(self, sql: str, tables: Iterable[str] = ()) -> dict[str, IntArray]:
        """A query whose columns are whole numbers, none NULL: `{column: array}`.

        `tables` are those it reads all of, to guess the number of rows. Batches are copied into NumPy's own arrays as
        they come: for tables of millions of rows that touches half the memory, which costs more than the copying.
        """
        with self.reader(sql) as reader:
            capacity = max(self._most_rows(tables), ROWS_PER_BATCH)
            arrays = {name: np.empty(capacity, dtype=np.int64) for name in reader.schema.names}
            rows = 0
            for batch in reader:
                stop = rows + batch.num_rows
                if stop > capacity:
                    capacity = 2 * stop
                    arrays = {name: np.resize(array, capacity) for name, array in arrays.items()}
                for name, array in arrays.items():
                    array[rows:stop] = self._integer_array(name, batch.column(name))
                rows = stop
        return {name: array[:rows] for name, array in arrays.items()}

    def _most_rows(self, tables: Iterable[str]) -> int:
        """At least the rows of all tables, unless some were deleted and added out of order, or numbers are damaged."""
        names = (name for table in tables for name in self._variants.get(canonical(table), ()))
        found = (self.rows(f"SELECT max(rowid) FROM {_quoted(name)}", (int,)) for name in names)
        return max(min(sum(rows[0][0] if rows else 0 for rows in found), self._size // LEAST_BYTES_A_ROW), 0)

    def _integer_array(self, name: str, column: pa.Array) -> IntArray:
        if len(column) == 0:
            return np.empty(0, dtype=np.int64)
        if not pa.types.is_int64(column.type) or column.null_count:
            raise self.error(f"{name} holds something other than whole numbers")
        return np.asarray(column.to_numpy(), dtype=np.int64)

    def error(self, what: str) -> TraceError:
        return TraceError(f"{self.path}: {what}. Export the trace again: {export_command(self.path)}")

    @contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, adbc_driver_manager.Error, pa.ArrowException, OSError, UnicodeDecodeError) as error:
            why = _first_line(error)
            if isinstance(error, MemoryError) or "allocate memory" in why:  # Arrow's error is of both kinds
                raise MemoryError(why) from error
            if "database is locked" in why:
                raise TraceError(
                    f"{self.path}: another program writes it (database is locked). Wait until that has ended, then "
                    "type the command again"
                ) from error
            raise self.error(f"SQLite cannot read it ({why})") from error


def export_command(path: Path) -> str:
    """The command that makes a fresh export of the report that `path` presumably came from."""
    stem = path.name.split(".")[0] or "trace"
    return HOW_TO_EXPORT.format(target=shlex.quote(f"{stem}.sqlite"), report=shlex.quote(f"{stem}.nsys-rep"))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or ["no reason given"])[0]


def require_sqlite(path: Path) -> None:
    """Raises TraceError, in words, for what is no SQLite database or not a whole one."""
    if not path.exists():
        raise TraceError(f"{path}: no such file. Name an export that nsys wrote: {export_command(path)}")
    if path.is_dir():
        raise TraceError(f"{path}: is a folder. Name the .sqlite file inside it")
    if not path.is_file():
        raise TraceError(f"{path}: is a device or a pipe, not a file. Save the export to a file first")
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(100)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror}). Check its permissions: ls -l {path}") from error
    if size == 0:
        raise TraceError(f"{path}: is empty (0 bytes). Export the trace again: {export_command(path)}")
    if not head.startswith(SQLITE_MAGIC):
        what = "holds only zeros" if not head.strip(b"\0") else "is not an SQLite database"
        raise TraceError(f"{path}: {what}. Export the trace again: {export_command(path)}")
    page_size = int.from_bytes(head[16:18], "big")
    page_size = 65536 if page_size == 1 else page_size
    pages = int.from_bytes(head[28:32], "big")
    if size < page_size * pages:
        raise TraceError(
            f"{path}: is cut off ({size} bytes of {page_size * pages}). Export the trace again: {export_command(path)}"
        )


def _refuse_unmerged_changes(path: Path) -> None:
    log = Path(f"{path}-wal")
    if log.exists() and log.stat().st_size:
        raise TraceError(
            f"{path}: has changes in {log.name} that are not merged yet. Close the program that writes it, or merge "
            "them in a copy of both files: sqlite3 COPY 'PRAGMA wal_checkpoint(TRUNCATE)'"
        )
