"""Damages real exports at random and holds the analysis to its promises: `python scripts/fuzz.py --seed 1 --runs 1000`.

Each run takes a fixture (cut down, so that a run takes a fraction of a second), damages it one to six times, and
analyses it. It must be accepted or refused in one line that names the file, within a bound of time and memory. Of what
is accepted, every nanosecond has one owner, no figure is negative, every report can be made, the JSON report reads back
equal, and the brute-force oracle (tests/oracle.py) finds the same. Anything else is a finding: one line with the run's
number and what was damaged, and exit status 1. `--seed N --only-run K` makes run K again and shows more.
"""

from __future__ import annotations

import argparse
import dataclasses
import faulthandler
import fnmatch
import lzma
import math
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sqlite3
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1] / "tests"
FIXTURES = TESTS / "fixtures"
MEMORY_BYTES = 2 << 30
"""Address space of a worker, libraries and threads included: they reserve 450 MB before anything is read."""
WITHOUT_RESERVES = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "2",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MPLBACKEND": "agg",
}
"""Libraries reserve address space for each thread and processor; only what is used counts here."""
SECONDS_A_RUN = 20
RUNS_A_WORKER = 400
"""What leaks shows within as many, and importing the libraries costs little."""
CALLS_KEPT = 250
MUTATIONS = 6
RENDERED_EVERY = 20
RANGES_EVERY = 8


# ------------------------------------------------------------------------------------------------------- real exports


def fixtures(pattern: str) -> list[str]:
    names = sorted(path.name.removesuffix(".sqlite.xz") for path in FIXTURES.glob("*.sqlite.xz"))
    return [name for name in names if fnmatch.fnmatch(name, pattern)]


def cut_down(name: str, folder: Path) -> Path:
    """The fixture with the Python stacks that belong to it, and about CALLS_KEPT API calls from its middle."""
    path = folder / f"{name}.sqlite"
    if path.exists():
        return path
    new = path.with_suffix(".new")
    new.write_bytes(lzma.decompress((FIXTURES / f"{name}.sqlite.xz").read_bytes()))
    lines = FIXTURES / f"{name}.python.json.xz"
    if lines.exists():
        from nsys_sync.nsys.json_backtraces import add_python_backtraces

        with lzma.open(lines, "rt", encoding="utf-8") as file:
            add_python_backtraces(new, file)
    with closing(sqlite3.connect(new)) as db:
        starts = [row[0] for row in db.execute("SELECT start FROM CUPTI_ACTIVITY_KIND_RUNTIME ORDER BY start")]
        if len(starts) > CALLS_KEPT:
            at = (len(starts) - CALLS_KEPT) // 2
            low, high = starts[at], starts[at + CALLS_KEPT]
            for table in tables(db):
                if "start" in columns(db, table):
                    also = " AND eventType <> 75" if table == "NVTX_EVENTS" else ""  # declarations of domains
                    db.execute(f'DELETE FROM "{table}" WHERE start NOT BETWEEN {low} AND {high}{also}')
            if "CUDA_CALLCHAINS" in tables(db):
                shift = 1 if "3.7.2" in name else 0
                db.execute(
                    f"DELETE FROM CUDA_CALLCHAINS WHERE id NOT BETWEEN (SELECT min(callchainId) + {shift} FROM "
                    f"CUPTI_ACTIVITY_KIND_RUNTIME) AND (SELECT max(callchainId) + {shift} FROM "
                    "CUPTI_ACTIVITY_KIND_RUNTIME)"
                )
        db.commit()
        db.execute("VACUUM")
    return new.replace(path)


# ------------------------------------------------------------------------------------------------------------- damage


def words(text: str) -> list[str]:
    return text.split()


API = "CUPTI_ACTIVITY_KIND_RUNTIME"
GPU = tuple(f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE"))
SYNCHRONIZATION = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
EVENTS = (API, *GPU, SYNCHRONIZATION, "PROFILER_OVERHEAD", "NVTX_EVENTS", "NSYS_SYNC_PYTHON_BACKTRACE")
READ = (
    *EVENTS,
    "CUDA_CALLCHAINS",
    "StringIds",
    "PROCESSES",
    "ThreadNames",
    "DIAGNOSTIC_EVENT",
    "TARGET_INFO_GPU",
    "TARGET_INFO_CUDA_DEVICE",
    "TARGET_INFO_SESSION_START_TIME",
    "META_DATA_CAPTURE",
    "META_DATA_EXPORT",
    "NVTX_PAYLOAD_SCHEMAS",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES",
)
"""What the product reads: most of the damage is done here."""
READ_COLUMNS = frozenset(
    words(
        "start end globalTid globalPid correlationId nameId callchainId deviceId contextId streamId copyKind srcKind "
        "dstKind eventType text textId domainId binaryData payload id value name symbol module stackDepth unresolved "
        "severity gpuId cudaId pid utcEpochNs schemaId payloadSize offset"
    )
)
HOSTILE = (
    "",
    "nul\0inside",
    "\0",
    "right\u202eto left \u2066marks",
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "[link](javascript:alert(1)) **bold** `code` | cell |\n\n# heading",
    "=cmd|' /C calc'!A0",
    "@SUM(1+1)",
    "\x1b[2J\x1b]0;title\x07",
    "a" * 1_000_000,
    "\n" * 300,
    "🔥" * 500,
    "\ud7ff\ue000\ufffe",
    "cudaMemcpyAsync\0_v3020",
    "%s %d {} {0} $HOME ${x}",
    "../../../../etc/passwd",
    "/home/someone/secret.py",
    "cudaFree\n",
    "-1",
    "12345678901234567890",
    "NaN",
)
API_NAMES = words(
    "cudaLaunchKernel_v7000 cuLaunchKernel cudaMemcpyAsync_v3020 cudaMemcpy_v3020 cudaMemset_v3020 cuLaunchKernelEx "
    "cudaMemsetAsync_v3020 "
    "cudaFree_v3020 cuMemFree_v2 cudaStreamSynchronize_ptsz cudaStreamSynchronize_ptsz_v7000 cuStreamSynchronize "
    "cudaDeviceSynchronize_v3020 cuCtxSynchronize cudaEventSynchronize_v3020 cudaEventRecord_v3020 cudaStreamWaitEvent "
    "cudaStreamQuery_v3020 cuStreamQuery cudaEventQuery cudaStreamIsCapturing_v10000 cudaGetDevice_v3020 "
    "cudaGraphLaunch_v10000 cudaGraphInstantiate_v10000 cuModuleLoadData cudaMalloc_v3020 cudaHostAlloc "
    "cudaThreadSynchronize cuMemcpyDtoHAsync_v2 cudaMemcpy2D_v3020 Unknown"
)

Mutation = Callable[[sqlite3.Connection, random.Random], "str | None"]
"""Damages the database and says how, in few words. None: this one has nothing that it could damage."""


def tables(db: sqlite3.Connection) -> list[str]:
    return [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY rowid")]


def columns(db: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]


def a_table(db: sqlite3.Connection, rng: random.Random, among: Sequence[str] = READ) -> str | None:
    """Mostly one of those that are read, with rows."""
    have = tables(db)
    chosen = have if among is READ and rng.random() < 0.1 else [table for table in among if table in have]
    filled = [table for table in chosen if db.execute(f'SELECT 1 FROM "{table}" LIMIT 1').fetchone()]
    return rng.choice(filled or chosen) if chosen else None


def a_column(db: sqlite3.Connection, rng: random.Random, table: str) -> str:
    have = columns(db, table)
    read = [column for column in have if column in READ_COLUMNS]
    return rng.choice(read if read and rng.random() < 0.85 else have)


def some_rows(db: sqlite3.Connection, rng: random.Random, table: str) -> list[int]:
    """One row, a few, every so many-th, a stretch, or all."""
    rows = [row[0] for row in db.execute(f'SELECT rowid FROM "{table}" ORDER BY rowid')]
    if not rows:
        return []
    match rng.randrange(6):
        case 0 | 1:
            return [rng.choice(rows)]
        case 2:
            return rng.sample(rows, min(len(rows), 7))
        case 3:
            return rows[rng.randrange(7) :: rng.randint(2, 9)]
        case 4:
            begin, end = sorted((rng.randrange(len(rows)), rng.randrange(len(rows))))
            return rows[begin : end + 1]
        case _:
            return rows


def rebuilt(db: sqlite3.Connection, table: str, declared: Sequence[str]) -> None:
    """The table again, with its columns declared as given, in the same order."""
    old = f"{table} before"
    names = ", ".join(f'"{column}"' for column in columns(db, table))
    db.execute(f'ALTER TABLE "{table}" RENAME TO "{old}"')
    db.execute(f'CREATE TABLE "{table}" ({", ".join(declared)})')
    db.execute(f'INSERT INTO "{table}" ({names}) SELECT {names} FROM "{old}"')
    db.execute(f'DROP TABLE "{old}"')


def loosened(db: sqlite3.Connection, table: str) -> None:
    """Without NOT NULL and keys, so that anything can be written."""
    info = db.execute(f'PRAGMA table_info("{table}")').fetchall()
    if any(row[3] or row[5] for row in info):
        rebuilt(db, table, [f'"{row[1]}" {row[2]}' for row in info])


def write(db: sqlite3.Connection, table: str, column: str, values: dict[int, Any]) -> None:
    db.executemany(
        f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = ?', [(value, row) for row, value in values.items()]
    )


def read(db: sqlite3.Connection, table: str, column: str, rows: Sequence[int]) -> dict[int, Any]:
    wanted = set(rows)
    return {r: v for r, v in db.execute(f'SELECT rowid, "{column}" FROM "{table}" ORDER BY rowid') if r in wanted}


def fits(value: Any) -> Any:
    """SQLite's whole numbers have 64 bits."""
    return max(-(2**63), min(2**63 - 1, value)) if isinstance(value, int) else value


def cells(db: sqlite3.Connection, rng: random.Random) -> str | None:
    """Some cells of one column become something else."""
    table = a_table(db, rng)
    if table is None:
        return None
    column = a_column(db, rng, table)
    loosened(db, table)
    values = read(db, table, column, some_rows(db, rng, table))
    if not values:
        return None
    numbers = [value for value in values.values() if isinstance(value, int)] or [0]
    constant = rng.choice(
        [0, 1, -1, 7, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**62, 2**63 - 1, -(2**63), -(2**31)]
        + [rng.choice(numbers)] * 4
    )
    by = rng.choice([1, -1]) * rng.randint(1, 9) * 10 ** rng.randint(0, 10)
    factor = rng.choice([-1, 2, 10, 1000, 1 << 24])
    others = list(values.values())
    rng.shuffle(others)
    kinds: dict[str, Callable[[Any], Any]] = {
        "NULL": lambda value: None,
        f"constant {constant}": lambda value: constant,
        f"shifted by {by}": lambda value: fits(value + by) if isinstance(value, int) else value,
        f"times {factor}": lambda value: fits(value * factor) if isinstance(value, int) else value,
        "shuffled": lambda value: others.pop(),
        "real": lambda value: value + 0.5 if isinstance(value, int) else 0.5,
        "infinite": lambda value: math.inf,
        "text": lambda value: f"x{value}"[:50],
        "blob": lambda value: b"\xff\x00" + str(value)[:50].encode(),
        "random": lambda value: rng.randint(-(2**63), 2**63 - 1),
        "off by one": lambda value: fits(value + rng.choice([-1, 1])) if isinstance(value, int) else value,
    }
    weights = [4, 6, 4, 1, 3, 1, 1, 1, 1, 1, 2]
    kind = rng.choices(list(kinds), weights)[0]
    write(db, table, column, {row: kinds[kind](value) for row, value in values.items()})
    return f"{table}.{column}: {len(values)} rows {kind}"


def copied_column(db: sqlite3.Connection, rng: random.Random) -> str | None:
    table = a_table(db, rng)
    if table is None:
        return None
    column, other = a_column(db, rng, table), a_column(db, rng, table)
    loosened(db, table)
    values = read(db, table, other, some_rows(db, rng, table))
    write(db, table, column, values)
    return f"{table}.{column}: {len(values)} rows from {other}"


def rows_damaged(db: sqlite3.Connection, rng: random.Random) -> str | None:
    """Rows are dropped, doubled, put in another order, or given a far row number."""
    table = a_table(db, rng)
    if table is None:
        return None
    rows = some_rows(db, rng, table)
    names = ", ".join(f'"{column}"' for column in columns(db, table))
    kind = rng.choice(["dropped", "doubled", "reordered", "renumbered", "cut off"])
    if kind == "dropped":
        db.executemany(f'DELETE FROM "{table}" WHERE rowid = ?', [(row,) for row in rows])
    elif kind == "cut off":
        rows = rows[:1]
        db.executemany(f'DELETE FROM "{table}" WHERE rowid >= ?', [(row,) for row in rows])
    else:
        loosened(db, table)
        content = db.execute(f'SELECT {names} FROM "{table}" ORDER BY rowid').fetchall()
        marks = ", ".join("?" * len(columns(db, table)))
        if kind == "reordered":
            db.execute(f'DELETE FROM "{table}"')
            rng.shuffle(content)
        else:
            content = rng.sample(content, min(len(content), rng.choice([1, 5, 100])))
        if kind == "renumbered" and content:
            db.execute(f'INSERT INTO "{table}" (rowid, {names}) VALUES (?, {marks})', (2**62, *content[0]))
        else:
            db.executemany(f'INSERT INTO "{table}" ({names}) VALUES ({marks})', content)
    return f"{table}: {len(rows)} rows {kind}"


def table_damaged(db: sqlite3.Connection, rng: random.Random) -> str | None:
    table = a_table(db, rng)
    if table is None:
        return None
    kind = rng.choice(
        ["dropped", "renamed", "emptied", "untyped", "all text", "columns reordered", "swapped", "split", "other case"]
    )
    if kind == "dropped":
        db.execute(f'DROP TABLE "{table}"')
    elif kind == "renamed":
        db.execute(f'ALTER TABLE "{table}" RENAME TO "{table}x"')
    elif kind == "other case":
        db.execute(f'ALTER TABLE "{table}" RENAME TO "{table.lower()}_"')
        db.execute(f'ALTER TABLE "{table.lower()}_" RENAME TO "{table.lower()}"')
    elif kind == "split":
        other = rng.choice([f"{table}_V2", f"{table}_V3", f"{table}2", table.lower() + "_v2"])
        rows = f'"{table}" WHERE rowid % {rng.randint(2, 5)} = 1'
        db.execute(f'CREATE TABLE "{other}" AS SELECT * FROM {rows}')
        db.execute(f"DELETE FROM {rows}")
        kind += f" with {other}"
    elif kind == "emptied":
        db.execute(f'DELETE FROM "{table}"')
    elif kind == "untyped":
        rebuilt(db, table, [f'"{column}"' for column in columns(db, table)])
    elif kind == "all text":
        rebuilt(db, table, [f'"{column}" TEXT' for column in columns(db, table)])
    elif kind == "columns reordered":
        names = columns(db, table)
        rebuilt(db, table, [f'"{column}" INTEGER' for column in rng.sample(names, len(names))])
    else:
        other = a_table(db, rng)
        if other is None or other == table:
            return None
        for before, after in renames_that_swap(table, other):
            db.execute(f'ALTER TABLE "{before}" RENAME TO "{after}"')
        kind += f" with {other}"
    return f"{table}: {kind}"


def renames_that_swap(one: str, other: str) -> tuple[tuple[str, str], ...]:
    return (one, "between"), (other, one), ("between", other)


def column_damaged(db: sqlite3.Connection, rng: random.Random) -> str | None:
    table = a_table(db, rng)
    if table is None:
        return None
    loosened(db, table)
    column = a_column(db, rng, table)
    kind = rng.choice(["dropped", "renamed", "upper case", "added", "generated", "swapped"])
    if kind == "dropped":
        if len(columns(db, table)) == 1:
            return None
        db.execute(f'ALTER TABLE "{table}" DROP COLUMN "{column}"')
    elif kind == "renamed":
        db.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "{column}_"')
    elif kind == "upper case":
        db.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "{column.upper()}"')
    elif kind == "added":
        db.execute(f'ALTER TABLE "{table}" ADD COLUMN "new {column}" TEXT DEFAULT \'x\'')
    elif kind == "generated":
        if len(columns(db, table)) == 1:
            return None
        db.execute(f'ALTER TABLE "{table}" DROP COLUMN "{column}"')
        db.execute(f'ALTER TABLE "{table}" ADD COLUMN "{column}" INTEGER AS (7) VIRTUAL')
    else:
        other = a_column(db, rng, table)
        if other == column:
            return None
        for before, after in renames_that_swap(column, other):
            db.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{before}" TO "{after}"')
        kind += f" with {other}"
    return f"{table}.{column}: {kind}"


def schema_damaged(db: sqlite3.Connection, rng: random.Random) -> str | None:
    """Views, indexes, triggers and virtual tables that nsys never writes, and declarations that are not true."""
    table = a_table(db, rng)
    if table is None:
        return None
    column = a_column(db, rng, table)
    kind = rng.choice(
        ["view", "endless view", "index", "partial index", "trigger", "virtual table", "not null", "no sql"]
    )
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS start, x AS id FROM n"
    if kind == "view":
        db.execute(f'CREATE VIEW "view of {table}" AS SELECT * FROM "{table}"')
    elif kind == "endless view":
        db.execute(f'ALTER TABLE "{table}" RENAME TO "{table}x"')
        db.execute(f'CREATE VIEW "{table}" AS {endless}')
    elif kind == "index":
        db.execute(f'CREATE INDEX "index of {table}" ON "{table}" ("{column}")')
    elif kind == "partial index":
        db.execute(f'CREATE INDEX "index of {table}" ON "{table}" ("{column}") WHERE "{column}" > 5')
    elif kind == "trigger":
        db.execute(f'CREATE TRIGGER "on {table}" INSERT ON "{table}" BEGIN DELETE FROM "{table}"; END')
    elif kind == "virtual table":
        db.execute(f'ALTER TABLE "{table}" RENAME TO "{table}x"')
        db.execute(f'CREATE VIRTUAL TABLE "{table}" USING fts5("{column}")')
    else:
        db.execute("PRAGMA writable_schema = ON")
        declared = ", ".join(f'"{name}" INTEGER NOT NULL' for name in columns(db, table))
        text = f'CREATE TABLE "{table}" ({declared})' if kind == "not null" else "not SQL"
        db.execute("UPDATE sqlite_master SET sql = ? WHERE name = ? AND type = 'table'", (text, table))
        db.execute("PRAGMA writable_schema = RESET")
    return f"{table}: {kind}"


def strings(db: sqlite3.Connection, rng: random.Random) -> str | None:
    """Texts become hostile ones."""
    places = {
        "StringIds": "value",
        "NVTX_EVENTS": "text",
        "META_DATA_CAPTURE": "value",
        "META_DATA_EXPORT": "value",
        "DIAGNOSTIC_EVENT": "text",
        "PROCESSES": "name",
        "TARGET_INFO_GPU": "name",
        "NVTX_PAYLOAD_SCHEMAS": "name",
    }
    table = a_table(db, rng, tuple(places))
    if table is None or places[table] not in columns(db, table):
        return None
    rows = some_rows(db, rng, table)
    text = rng.choice(HOSTILE)
    if len(text) > 10_000:
        rows = rows[:2]
    broken = rng.random() < 0.1
    value: Any = text.encode("utf-8", "surrogatepass")[:-1] + b"\xff" if broken else text
    changed = "CAST(? AS TEXT)" if broken else "?"
    db.executemany(
        f'UPDATE "{table}" SET "{places[table]}" = {changed} WHERE rowid = ?', [(value, row) for row in rows]
    )
    return f"{table}.{places[table]}: {len(rows)} rows {text[:12]!r}… {len(text)} long{', broken UTF-8' * broken}"


def calls_renamed(db: sqlite3.Connection, rng: random.Random) -> str | None:
    """What one API name stands for becomes another API."""
    if not {"StringIds", API} <= set(tables(db)) or "nameId" not in columns(db, API):
        return None
    ids = [row[0] for row in db.execute(f"SELECT DISTINCT nameId FROM {API}")]
    name = rng.choice(API_NAMES)
    if rng.random() < 0.5:
        of = rng.choice(ids)
        db.execute("UPDATE StringIds SET value = ? WHERE id = ?", (name, of))
        return f"name {of} is {name}"
    number = 10**9 + rng.randrange(1000)
    db.execute("INSERT INTO StringIds (id, value) VALUES (?, ?)", (number, name))
    rows = some_rows(db, rng, API)
    write(db, API, "nameId", dict.fromkeys(rows, number))
    return f"{len(rows)} calls are {name}"


def with_columns(db: sqlite3.Connection, wanted: str) -> Iterator[tuple[str, str]]:
    for table in EVENTS:
        if table in tables(db):
            for column in columns(db, table):
                if column in wanted.split():
                    yield table, column


def ids_reused(db: sqlite3.Connection, rng: random.Random) -> str | None:
    """Correlation ids of all tables fold onto few."""
    of = rng.choice([2, 3, 10, 50, 200])
    places = list(with_columns(db, "correlationId"))
    chosen = places if rng.random() < 0.7 else rng.sample(places, min(1, len(places)))
    for table, column in chosen:
        db.execute(f'UPDATE "{table}" SET "{column}" = "{column}" % {of} WHERE typeof("{column}") = \'integer\'')
    return f"correlation ids modulo {of} in {len(chosen)} tables"


def times_changed(db: sqlite3.Connection, rng: random.Random) -> str | None:
    """Times of many tables become coarse (and so equal), small, shifted or reversed, together or of one table alone."""
    kind = rng.choice(["coarse", "small", "shifted", "reversed", "no ends", "no lengths", "swapped"])
    amount = rng.choice([10, 1_000, 10_000, 100_000, 1_000_000])
    changed = {
        "coarse": f"{{0}} - {{0}} % {amount}",
        "small": f"{{0}} / {amount}",
        "shifted": f"{{0}} + {rng.choice([-1, 1]) * amount}",
        "reversed": "-{0}",
    }
    places = list(with_columns(db, "start end"))
    alone = rng.random() < 0.4
    if alone:
        of = rng.choice(places)[0] if places else ""
        places = [place for place in places if place[0] == of]
    for table, column in places:
        if kind in changed:
            new = changed[kind].format(f'"{column}"')
            db.execute(f'UPDATE "{table}" SET "{column}" = {new} WHERE typeof("{column}") = \'integer\'')
        elif column == "end" and "start" in columns(db, table):
            loosened(db, table)
            new = {"no ends": rng.choice(["NULL", "0", "start - 1"]), "no lengths": "start", "swapped": "start"}[kind]
            more = ', start = "end"' if kind == "swapped" else ""
            which = "" if rng.random() < 0.3 else f" WHERE rowid % {rng.randint(2, 9)} = 0"
            db.execute(f'UPDATE "{table}" SET "end" = {new}{more}{which}')
    where = f"of {places[0][0]}" if alone and places else "of all"
    return f"times {where} {kind} by {amount}"


def threads_mixed(db: sqlite3.Connection, rng: random.Random) -> str | None:
    """Calls come from other threads or processes than they did, or from ids beyond 63 bits."""
    if API not in tables(db):
        return None
    kind = rng.choice(["threads", "processes", "beyond 2^63"])
    values = read(db, API, "globalTid", some_rows(db, rng, API))
    step = {"threads": 1, "processes": 1 << 24, "beyond 2^63": -(2**63)}[kind]
    write(
        db,
        API,
        "globalTid",
        {r: fits(v + step * rng.randint(0, 2)) for r, v in values.items() if isinstance(v, int)},
    )
    if kind == "beyond 2^63":
        for table, column in with_columns(db, "globalTid globalPid"):
            db.execute(
                f'UPDATE "{table}" SET "{column}" = "{column}" | (1 << 63) WHERE typeof("{column}") = \'integer\''
            )
    return f"{len(values)} calls of other {kind}"


def process_doubled(db: sqlite3.Connection, rng: random.Random) -> str | None:
    """A second process that did the same, with the same ids, a little later, perhaps on another GPU."""
    later, other_gpu = rng.choice([0, 1, 1_000, 1_000_000]), rng.random() < 0.5
    for table in EVENTS:
        if table not in tables(db):
            continue
        loosened(db, table)
        new = {
            "start": f"start + {later}",
            "end": f'"end" + {later}',
            "globalTid": f'"globalTid" + {1 << 24}',
            "globalPid": f'"globalPid" + {1 << 24}',
        }
        if other_gpu:
            new["deviceId"] = '"deviceId" + 1'
        have = columns(db, table)
        chosen = ", ".join(new.get(column, f'"{column}"') for column in have)
        db.execute(f'INSERT INTO "{table}" SELECT {chosen} FROM "{table}"')
    return f"the process doubled, {later} ns later{', on another GPU' * other_gpu}"


def nested(db: sqlite3.Connection, rng: random.Random) -> str | None:
    """Calls come to lie inside others of their thread."""
    if API not in tables(db):
        return None
    rows = [row for row in db.execute(f'SELECT rowid, start, "end", globalTid FROM {API}') if None not in row]
    moved = 0
    for _ in range(rng.choice([1, 5, 30])):
        if len(rows) < 2:
            break
        (row, *_), (_, start, end, tid) = rng.sample(rows, 2)
        if all(isinstance(value, int) for value in (start, end)) and start <= end:
            low, high = sorted((rng.randint(start, end), rng.randint(start, end)))
            db.execute(f'UPDATE {API} SET start = ?, "end" = ?, globalTid = ? WHERE rowid = ?', (low, high, tid, row))
            moved += 1
    return f"{moved} calls inside others"


def overhead_added(db: sqlite3.Connection, rng: random.Random) -> str | None:
    if "PROFILER_OVERHEAD" not in tables(db):
        db.execute("CREATE TABLE PROFILER_OVERHEAD (start INT, end INT, globalTid INT, nameId INT, returnValue INT)")
    if not {"start", "end", "globalTid", "nameId"} <= set(columns(db, "PROFILER_OVERHEAD")) or API not in tables(db):
        return None
    rows = db.execute(f'SELECT start, "end", globalTid, nameId FROM {API}').fetchall()
    rows = rng.sample(rows, min(len(rows), rng.choice([1, 10, 100])))
    loosened(db, "PROFILER_OVERHEAD")
    db.executemany('INSERT INTO PROFILER_OVERHEAD (start, "end", globalTid, nameId) VALUES (?, ?, ?, ?)', rows)
    return f"{len(rows)} calls are profiler overhead too"


def payloads(db: sqlite3.Connection, rng: random.Random) -> str | None:
    """Bytes of Python backtraces are changed, cut off or added."""
    places = [place for place in with_columns(db, "binaryData payload") if any(read_blobs(db, *place))]
    if not places:
        return None
    table, column = rng.choice(places)
    blobs = [row for row in read_blobs(db, table, column) if isinstance(row[1], bytes) and row[1]]
    kind = rng.choice(["flipped", "cut off", "empty", "longer", "counts"])
    chosen = rng.sample(blobs, min(len(blobs), rng.choice([1, 10, 1000])))
    for row, blob in chosen:
        changed = bytearray(blob)
        if kind == "flipped":
            for _ in range(rng.randint(1, 4)):
                changed[rng.randrange(len(changed))] = rng.randrange(256)
        elif kind == "cut off":
            del changed[rng.randrange(len(changed)) :]
        elif kind == "empty":
            changed.clear()
        elif kind == "longer":
            changed += bytes(rng.randrange(256) for _ in range(rng.randint(1, 40)))
        else:
            at = 8 * rng.randrange(min(6, len(changed) // 8 + 1))
            number = rng.choice([0, 1, 2**16, 2**31, 2**32 - 1, 2**63, 2**64 - 1])
            changed[at : at + 8] = struct.pack("<Q", number)
        write(db, table, column, {row: bytes(changed)})
    return f"{table}.{column}: {len(chosen)} payloads {kind}"


def read_blobs(db: sqlite3.Connection, table: str, column: str) -> list[tuple[int, Any]]:
    return db.execute(f'SELECT rowid, "{column}" FROM "{table}" WHERE typeof("{column}") = \'blob\'').fetchall()


IN_THE_DATABASE: dict[Mutation, int] = {
    cells: 30,
    copied_column: 4,
    rows_damaged: 10,
    table_damaged: 5,
    column_damaged: 4,
    schema_damaged: 3,
    strings: 6,
    calls_renamed: 8,
    ids_reused: 6,
    times_changed: 10,
    threads_mixed: 6,
    process_doubled: 4,
    nested: 6,
    overhead_added: 4,
    payloads: 6,
}
"""With how often each is done."""


def bytes_damaged(path: Path, rng: random.Random) -> str:
    """The file itself: bytes flipped or zeroed, cut off, pages swapped, its header changed."""
    content = bytearray(path.read_bytes())
    size = len(content)
    page = 4096
    kind = rng.choice(["flipped", "zeroed", "cut off", "pages swapped", "header", "longer", "page repeated"])
    if kind == "flipped":
        for _ in range(rng.choice([1, 1, 10, 100])):
            content[rng.randrange(size)] = rng.randrange(256)
    elif kind == "zeroed":
        begin = rng.randrange(size)
        end = min(size, begin + rng.choice([1, 100, page, 10 * page]))
        content[begin:end] = bytes(end - begin)
    elif kind == "cut off":
        del content[rng.randrange(size) :]
    elif kind == "longer":
        content += bytes(rng.randrange(256) for _ in range(rng.choice([1, page])))
    elif kind == "header":
        at = rng.choice([16, 17, 18, 19, 20, 21, 28, 31, 35, 39, 44, 47, 52, 55, 59, 63, 95, 99])
        content[at] = rng.choice([0, 1, 2, 3, 4, 127, 128, 255])
        kind = f"header byte {at} is {content[at]}"
    elif size >= 3 * page:
        one, other = rng.randrange(1, size // page), rng.randrange(1, size // page)
        first, second = content[one * page : (one + 1) * page], content[other * page : (other + 1) * page]
        content[one * page : (one + 1) * page] = second
        if kind == "pages swapped":
            content[other * page : (other + 1) * page] = first
    path.write_bytes(content)
    return f"bytes {kind}"


def damaged(path: Path, rng: random.Random) -> list[str]:
    """Damages the file and says how."""
    done = []
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("PRAGMA synchronous = OFF")
        db.text_factory = lambda text: text.decode("utf-8", "replace")
        for _ in range(rng.randint(1, MUTATIONS)):
            mutation = rng.choices(list(IN_THE_DATABASE), list(IN_THE_DATABASE.values()))[0]
            db.execute("BEGIN")
            try:
                what = mutation(db, rng)
            except (sqlite3.Error, OverflowError, IndexError) as error:  # damage upon damage that cannot be
                what = f"{mutation.__name__} not possible ({error})"
            db.execute("COMMIT")
            done += [what] if what else []
    if rng.random() < 0.12:
        done.append(bytes_damaged(path, rng))
    return done


# ------------------------------------------------------------------------------------------------------------ verdicts


@dataclasses.dataclass(frozen=True)
class Outcome:
    """`verdict` is accepted, refused, or what is wrong; `why` the reason of a refusal, or where it went wrong."""

    verdict: str
    why: str = ""
    details: str = ""


class Wrong(Exception):
    """A promise that was not kept."""


MAY_BE_NEGATIVE = frozenset({"first_start_ns", "start_ns", "end_ns", "window_start_ns", "id", "pid", "tid"})


def require_sound(value: Any, where: str = "analysis") -> None:
    """No figure is negative, and every number is one."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            if field.name != "operations" or where != "analysis":
                require_sound(getattr(value, field.name), f"{where}.{field.name}")
    elif isinstance(value, tuple):
        for number, one in enumerate(value):
            require_sound(one, f"{where}[{number}]")
    elif isinstance(value, (int, float)):
        may_be_negative = where.rpartition(".")[2] in MAY_BE_NEGATIVE
        if not math.isfinite(value) or (value < 0 and not may_be_negative):
            raise Wrong(f"{where} is {value}")


def require_untouched(path: Path, before: bytes, folder: Path) -> None:
    if path.read_bytes() != before or list(folder.iterdir()) != [path]:
        raise Wrong("the trace or its folder was written to")


def require_conserved(analysis: Any) -> None:
    for trace in analysis.traces:
        for device in trace.devices:
            if device.idle_ns is not None:
                owners = ("busy", "stall", "host_bound", "device_side", "profiler", "outside", "not_captured")
                parts = {name: getattr(device, f"{name}_ns", 0) for name in owners}
                if sum(parts.values()) != device.window_ns:
                    raise Wrong(f"device {device.id} is not conserved: {parts} in {device.window_ns}")


def require_read_back(analysis: Any, folder: Path) -> None:
    from nsys_sync.render.json_report import render_json
    from nsys_sync.saved import read_analysis

    path = folder / "saved.json"
    text = render_json(analysis)
    path.write_text(text, "utf-8")
    back = read_analysis(path)
    same = dataclasses.replace(back, operations=None) == dataclasses.replace(analysis, operations=None)
    if not same and render_json(back) != text:
        raise Wrong("the JSON report does not read back equal")


def render_all(analysis: Any) -> None:
    from nsys_sync.render.html import render_html
    from nsys_sync.render.markdown import render_markdown
    from nsys_sync.render.tables import sites_table, to_csv_bytes, to_parquet_bytes
    from nsys_sync.render.terminal import render_terminal

    for width in (40, 100):
        text = render_terminal(analysis, width=width, color=False, top=10)
        if bad := next((char for char in text if not char.isprintable() and char != "\n"), None):
            raise Wrong(f"{bad!r} reaches the terminal")
    page = render_html(analysis)
    page.encode("utf-8", "replace")
    if "<script>alert" in page or "<img src=x" in page:
        raise Wrong("HTML of the trace reaches the page")
    render_markdown(analysis).encode("utf-8", "replace")
    for table in (sites_table(analysis), analysis.operations):
        to_csv_bytes(table)
        to_parquet_bytes(table)


def require_agreement(path: Path, rng: random.Random, analysis: Any) -> None:
    import test_attribution_oracle as agreement
    from attribution import stacks_of_calls
    from oracle import oracle

    import nsys_sync

    try:
        with closing(sqlite3.connect(path)) as db:
            if db.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
                return  # what a look-up finds is then not what reading all rows finds
        expected = oracle(path, None, stacks_of_calls(path))
    except sqlite3.DatabaseError:
        return  # a broken page or row that the product had no need to read
    agreement.compare_devices(analysis, expected)
    if analysis.stall_ns is not None:
        agreement.compare_operations(analysis, expected, clipped=False)
    if rng.randrange(RANGES_EVERY) == 0:
        device = rng.choice(analysis.traces[0].devices)
        at = [device.window_start_ns + rng.randint(-5, device.window_ns + 5) for _ in range(2)]
        low, high = min(at), max(*at, min(at) + 1)
        if low < device.window_start_ns + device.window_ns and high > device.window_start_ns:
            clipped = nsys_sync.analyze(path, time_range=(low, high))
            require_sound(clipped)
            require_conserved(clipped)
            agreement.compare_devices(clipped, expected := oracle(path, (low, high), stacks_of_calls(path)))
            if clipped.stall_ns is not None:
                agreement.compare_operations(clipped, expected, clipped=True)


def judged(path: Path, rng: random.Random, folder: Path) -> Outcome:
    import nsys_sync
    from nsys_sync.errors import TraceError
    from nsys_sync.trace import sqlite_file
    from nsys_sync.trace import tables as trace_tables

    # Small parts make the borders between them show in small files.
    sqlite_file.ROWS_PER_BATCH = rng.choice([7, 64, 1 << 17])
    trace_tables.ROWS_AT_ONCE = rng.choice([5, 100, 1 << 19])
    before = path.read_bytes()
    try:
        try:
            analysis = nsys_sync.analyze(path)
        except TraceError as error:
            message = str(error)
            require_untouched(path, before, folder)
            if "\n" in message or path.name not in message or re.search("memory|malloc", message):
                raise Wrong(f"refused with {message!r}") from error
            outcome = Outcome("refused", re.sub(r"[0-9]+|'[^']*'", "…", message.replace(str(path), "FILE"))[:90])
        else:
            require_untouched(path, before, folder)
            require_sound(analysis)
            require_conserved(analysis)
            require_read_back(analysis, folder)
            if rng.randrange(RENDERED_EVERY) == 0:
                render_all(analysis)
            require_agreement(path, rng, analysis)
            outcome = Outcome("accepted")
    except (Exception, RecursionError) as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if "/nsys_sync/" in frame.filename or "/tests/" in frame.filename] or frames
        where = f"{Path(own[-1].filename).name}:{own[-1].lineno}"
        shown = traceback.TracebackException.from_exception(error, capture_locals=True)
        return Outcome(type(error).__name__, f"{where} {str(error)[:300]!r}", "".join(shown.format()))
    return outcome


# ------------------------------------------------------------------------------------------------------------- running


@dataclasses.dataclass(frozen=True)
class Plan:
    seed: int
    names: list[str]
    folder: Path
    keep: Path | None


def one_run(plan: Plan, number: int) -> tuple[str, list[str], Outcome]:
    """The fixture, its damage, and the outcome."""
    rng = random.Random(f"{plan.seed}/{number}")
    name = rng.choice(plan.names)
    folder = plan.folder / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    path = folder / f"damaged {number}.sqlite"
    shutil.copyfile(cut_down(name, plan.folder), path)
    damage = damaged(path, rng)
    (plan.folder / "damage.txt").write_text(f"{name}: {'; '.join(damage)}", "utf-8", "replace")
    outcome = judged(path, rng, folder)
    if plan.keep is not None and outcome.verdict not in ("accepted", "refused"):
        shutil.copyfile(path, plan.keep / f"{plan.seed}-{number}.sqlite")
    return name, damage, outcome


def work(plan: Plan, numbers: range, parent: Connection) -> None:
    """One worker: makes the runs and tells the parent of each."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    sys.path.insert(0, str(TESTS))
    warnings.simplefilter("error")
    with (plan.folder / "hang.txt").open("w") as hang:
        for number in numbers:
            faulthandler.dump_traceback_later(SECONDS_A_RUN, exit=True, file=hang)
            parent.send((number, *one_run(plan, number)))
            faulthandler.cancel_dump_traceback_later()


def outcomes(plan: Plan, numbers: range) -> Iterator[tuple[int, str, Outcome]]:
    """(number, damage, outcome) of all runs. A worker that dies or hangs is an outcome too, and another goes on."""
    spawn = multiprocessing.get_context("spawn")
    while numbers:
        ours, theirs = spawn.Pipe(duplex=False)
        worker = spawn.Process(target=work, args=(plan, numbers[:RUNS_A_WORKER], theirs), daemon=True)
        worker.start()
        theirs.close()
        done = numbers[0]
        try:
            for _ in numbers[:RUNS_A_WORKER]:
                if not ours.poll(3 * SECONDS_A_RUN):
                    raise EOFError
                number, name, damage, outcome = ours.recv()
                done = number + 1
                yield number, f"{name}: {'; '.join(damage)}", outcome
        except EOFError:
            worker.kill()
            worker.join()
            stack = (plan.folder / "hang.txt").read_text()
            kind = "hangs" if stack else f"dies ({worker.exitcode})"
            lines = [line.strip() for line in stack.splitlines() if "nsys_sync" in line][:1]
            yield done, (plan.folder / "damage.txt").read_text("utf-8"), Outcome(kind, " ".join(lines), stack)
            done += 1
        finally:
            worker.kill()
            worker.join()
        numbers = range(done, numbers.stop)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seconds", type=float, help="stop after so many")
    parser.add_argument("--only", default="*", metavar="FIXTURE", help="a name or pattern, such as 'one_*'")
    parser.add_argument("--only-run", type=int, metavar="K", help="make run K again, and show where it went wrong")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the files of findings there")
    options = parser.parse_args()
    names = fixtures(options.only)
    if not names:
        parser.error(f"no fixture is named {options.only}")
    numbers = range(options.runs) if options.only_run is None else range(options.only_run, options.only_run + 1)
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    until = math.inf if options.seconds is None else time.monotonic() + options.seconds
    verdicts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    findings: Counter[str] = Counter()
    since = 0
    os.environ.update(WITHOUT_RESERVES)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, suppress(KeyboardInterrupt):
        plan = Plan(options.seed, names, Path(folder), options.keep)
        for number, damage, outcome in outcomes(plan, numbers):
            since += 1
            sound = outcome.verdict in ("accepted", "refused")
            verdicts[outcome.verdict if sound else "findings"] += 1
            if outcome.verdict == "refused":
                reasons[outcome.why] += 1
            if options.only_run is not None:
                print(damage, outcome.details, sep="\n")
            if not sound:
                since = 0
                alike = f"{outcome.verdict} {outcome.why.partition(' ')[0]}"
                findings[alike] += 1
                if findings[alike] <= 3:
                    line = f"seed {options.seed} run {number}: {outcome.verdict} {outcome.why} | {damage}"
                    print(line.encode("unicode_escape").decode("ascii"), flush=True)
            elif options.only_run is not None:
                print(outcome.verdict, outcome.why)
            if time.monotonic() > until:
                break
    for reason, count in reasons.most_common():
        print(f"refused {count:6} {reason}".encode("unicode_escape").decode("ascii"))
    for alike, count in findings.most_common():
        print(f"finding {count:6} {alike}")
    counts = ", ".join(f"{verdicts[name]} {name}" for name in ("accepted", "refused", "findings"))
    print(f"seed {options.seed}: {sum(verdicts.values())} runs, {counts}, {since} since the last finding")
    return 1 if findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
