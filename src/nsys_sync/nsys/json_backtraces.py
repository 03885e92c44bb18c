"""Python backtraces for exports that drop them (before schema 3.13.2): from nsys's JSON export into the SQLite one."""

from __future__ import annotations

import base64
import binascii
import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from nsys_sync.errors import TraceError
from nsys_sync.trace.schema import NVTX_DOMAIN_CREATE, NVTX_MARK, OUR_BACKTRACES, PYTHON_DOMAIN

Backtrace = tuple[int, int, bytes]


def python_backtraces(lines: Iterable[str]) -> Iterator[Backtrace]:
    """(start, globalTid, payload) of each Python backtrace in the lines of `nsys export --type json`.

    A domain is declared (`Type` 75) before its marks (`Type` 34) appear; ids are those of the SQLite export of the
    same report. Raises TraceError for a line that is no JSON.
    """
    domains: set[tuple[int, str]] = set()
    for number, line in enumerate(lines, 1):
        if f'"Type":{NVTX_MARK}' not in line and f'"Type":{NVTX_DOMAIN_CREATE}' not in line:
            continue
        try:
            event = json.loads(line)["NvtxEvent"]
            tid, domain = int(event["GlobalTid"]), event.get("DomainId", "0")
            if event["Type"] == NVTX_DOMAIN_CREATE and event.get("Text") == PYTHON_DOMAIN:
                domains.add((tid >> 24, domain))
            elif event["Type"] == NVTX_MARK and (tid >> 24, domain) in domains:
                for part in event["Payload"]["BinaryData"]:
                    yield int(event["Timestamp"]), tid, base64.b64decode(part["Data"])
        except (ValueError, KeyError, TypeError, binascii.Error) as error:
            raise TraceError(f"line {number} of the JSON export is no NVTX event. Export the report again") from error


def add_python_backtraces(database: Path, lines: Iterable[str]) -> int:
    """Writes the backtraces into `database` as NSYS_SYNC_PYTHON_BACKTRACE, replacing it. Returns how many."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(f"DROP TABLE IF EXISTS {OUR_BACKTRACES}")
        connection.execute(
            f"CREATE TABLE {OUR_BACKTRACES} (start INTEGER NOT NULL, globalTid INTEGER NOT NULL, payload BLOB NOT NULL)"
        )
        return connection.executemany(
            f"INSERT INTO {OUR_BACKTRACES} VALUES (?, ?, ?)", python_backtraces(lines)
        ).rowcount
