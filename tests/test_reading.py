"""Exports of every age give the same analysis: real ones taken back to older forms, and what payloads can hold."""

from __future__ import annotations

import json
import shutil
import sqlite3
import struct
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from conftest import Capture
from trace_builder import NVTX_MARK, TraceBuilder, python_payload, wrapped_payload

from nsys_sync import analyze
from nsys_sync.errors import TraceError
from nsys_sync.model import Analysis
from nsys_sync.render.json_report import render_json

OLD, NEW = "schema-3.7.2", "schema-3.20.3"
CAPTURES = ("nvtx_threads", "two_gpus", "memcpy_sync_all")
Change = Callable[[sqlite3.Connection], object]


def changed(path: Path, place: Path, change: Change) -> Path:
    """A copy of the export, of the same name, with the change made."""
    copy = place / "changed" / path.name
    copy.parent.mkdir(exist_ok=True)
    shutil.copy(path, copy)
    with closing(sqlite3.connect(copy)) as connection, connection:
        change(connection)
    return copy


def statements(*sql: str) -> Change:
    return lambda connection: [connection.execute(statement) for statement in sql]


def tables(connection: sqlite3.Connection) -> list[str]:
    return [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]


def drop_tables(*prefixes: str) -> Change:
    def change(connection: sqlite3.Connection) -> None:
        for table in tables(connection):
            if table.startswith(prefixes):
                connection.execute(f'DROP TABLE "{table}"')

    return change


def rewritten(connection: sqlite3.Connection, table: str, columns: Sequence[str], rows_order: str = "") -> None:
    """The table with its columns in this order; names it does not have become new columns with odd contents."""
    have = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
    chosen = ", ".join(f'"{name}"' if name in have else f"'new' || rowid AS \"{name}\"" for name in columns)
    connection.execute(f'CREATE TABLE temporary_copy AS SELECT {chosen} FROM "{table}" {rows_order}')
    connection.execute(f'DROP TABLE "{table}"')
    connection.execute(f'ALTER TABLE temporary_copy RENAME TO "{table}"')


def reorder(connection: sqlite3.Connection) -> None:
    """Columns backwards with new ones among them, rows in another order, and no declared types or constraints."""
    for table in tables(connection):
        columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
        backwards = ["addedFirst", *columns[::-1]]
        backwards.insert(len(backwards) // 2, "addedInTheMiddle")
        order = "" if table in {"DIAGNOSTIC_EVENT"} else "ORDER BY abs(rowid * 2654435761 % 4294967296)"
        if connection.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0]:
            rewritten(connection, table, backwards, order)


def rename_tables(name: Callable[[str], str]) -> Change:
    def change(connection: sqlite3.Connection) -> None:
        for table in tables(connection):
            if name(table) != table:
                # By way of a third name: SQLite knows no case.
                connection.execute(f'ALTER TABLE "{table}" RENAME TO "renamed {table}"')
                connection.execute(f'ALTER TABLE "renamed {table}" RENAME TO "{name(table)}"')

    return change


def in_capitals(table: str) -> bool:
    return table.isupper() and not table.startswith("NSYS_SYNC")


def lower_case_columns(connection: sqlite3.Connection) -> None:
    for table in tables(connection):
        columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
        for column in columns:
            if column != column.lower():
                connection.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "renamed {column}"')
                connection.execute(f'ALTER TABLE "{table}" RENAME COLUMN "renamed {column}" TO "{column.lower()}"')


def split(table: str, variant: str) -> Change:
    """Every other row of the table goes into another of its names, and its columns into another order."""

    def change(connection: sqlite3.Connection) -> None:
        if table not in tables(connection):
            return
        columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
        backwards = ", ".join(f'"{column}"' for column in columns[::-1])
        connection.execute(f'CREATE TABLE "{variant}" AS SELECT {backwards} FROM "{table}" WHERE rowid % 2')
        connection.execute(f'DELETE FROM "{table}" WHERE rowid % 2')

    return change


def early_2021(connection: sqlite3.Connection) -> None:
    """Another name for the GPUs and their number, no schema version, fewer columns."""
    connection.execute("ALTER TABLE TARGET_INFO_GPU RENAME TO TARGET_INFO_CUDA_GPU")
    connection.execute("ALTER TABLE TARGET_INFO_CUDA_GPU RENAME COLUMN id TO deviceId")
    old_metadata(connection)
    connection.execute("DELETE FROM EXPORT_META_DATA WHERE name LIKE 'EXPORT_SCHEMA%'")
    for table, columns in {
        "CUPTI_ACTIVITY_KIND_RUNTIME": ("eventClass", "returnValue"),
        "CUPTI_ACTIVITY_KIND_KERNEL": ("graphNodeId", "greenContextId", "mangledName", "launchType"),
        "CUPTI_ACTIVITY_KIND_MEMCPY": ("graphNodeId", "greenContextId", "virtualAddress", "copyCount"),
        "CUPTI_ACTIVITY_KIND_MEMSET": ("graphNodeId", "greenContextId"),
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": ("syncType", "deprecatedSyncType", "greenContextId", "deviceId"),
    }.items():
        for column in columns:
            if column in [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]:
                connection.execute(f'ALTER TABLE "{table}" DROP COLUMN "{column}"')


def no_null(connection: sqlite3.Connection) -> None:
    """Until 2021 every column was NOT NULL: what was missing was written as 0 or empty."""
    for table in tables(connection):
        if table.startswith(("CUPTI", "NVTX_EVENTS", "PROFILER")):
            for row in connection.execute(f'PRAGMA table_info("{table}")').fetchall():
                if row[1] in ("end", "correlationId", "text"):
                    value = "''" if row[1] == "text" else "0"
                    where = " AND textId IS NULL" if row[1] == "text" else ""
                    connection.execute(f'UPDATE "{table}" SET "{row[1]}" = {value} WHERE "{row[1]}" IS NULL{where}')


def all_tables(connection: sqlite3.Connection) -> None:
    """As with --lazy=false: tables that hold nothing are there."""
    gpu = "start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER, correlationId INTEGER"
    there = tables(connection)
    for table, columns in {
        "CUPTI_ACTIVITY_KIND_DRIVER": "start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER, "
        "correlationId INTEGER, nameId INTEGER NOT NULL, callchainId INTEGER",
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{gpu}, globalPid INTEGER, graphId INTEGER",
        "CUPTI_ACTIVITY_KIND_MEMSET": f"{gpu}, globalPid INTEGER",
        "CUDA_GRAPH_NODE_EVENTS": "start INTEGER, end INTEGER",
        "PROFILER_OVERHEAD": "start INTEGER, end INTEGER, globalTid INTEGER, nameId INTEGER",
        "DIAGNOSTIC_EVENT": "timestamp INTEGER, severity INTEGER, text TEXT",
        "TARGET_INFO_CUDA_DEVICE": "gpuId INTEGER, cudaId INTEGER, pid INTEGER",
    }.items():
        if table not in there:
            connection.execute(f"CREATE TABLE {table} ({columns})")


def old_metadata(connection: sqlite3.Connection) -> None:
    """2022: another table name; up to 3.11 keys spelt OUTUPT."""
    connection.execute("ALTER TABLE META_DATA_EXPORT RENAME TO EXPORT_META_DATA")
    connection.execute("INSERT INTO EXPORT_META_DATA VALUES ('EXPORT_PARAM_OUTUPT_FORMAT', 'sqlite')")


DRIFTS: dict[str, Change] = {
    "names of early 2021, without columns that came later": early_2021,
    "0 where later exports have NULL (until 2021)": no_null,
    "tables with the suffix _V2": rename_tables(lambda t: f"{t}_V2" if t.startswith("CUPTI") else t),
    "tables with the suffix _V3": rename_tables(lambda t: f"{t}_V3" if in_capitals(t) else t),
    "tables named in lower case": rename_tables(str.lower),
    "columns named in lower case": lower_case_columns,
    "metadata keys in lower case": statements(
        "UPDATE META_DATA_EXPORT SET name = lower(name)", "UPDATE META_DATA_CAPTURE SET name = lower(name)"
    ),
    "MEMCPY2 beside MEMCPY": split("CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMCPY2"),
    "KERNEL and KERNEL_V3, each with some of the rows": split(
        "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_KERNEL_V3"
    ),
    "RUNTIME and RUNTIME_V2, each with some of the rows": split(
        "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_RUNTIME_V2"
    ),
    "kernels as CONCURRENT_KERNEL": rename_tables(
        lambda t: "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL" if t == "CUPTI_ACTIVITY_KIND_KERNEL" else t
    ),
    "no metadata (2021)": drop_tables("META_DATA", "EXPORT_META", "ANALYSIS_", "TARGET_INFO_SESSION"),
    "metadata of 2022": old_metadata,
    "no enumerations": drop_tables("ENUM_"),
    "columns, rows and types otherwise": reorder,
    "empty tables": all_tables,
    "another schema number": statements(
        "UPDATE META_DATA_EXPORT SET value = '3.1.7' WHERE name = 'EXPORT_SCHEMA_VERSION'",
    ),
    "a schema from the future": statements(
        "UPDATE META_DATA_EXPORT SET value = '4.0.0' WHERE name = 'EXPORT_SCHEMA_VERSION'",
    ),
    "a table that nobody knows": statements("CREATE TABLE CUPTI_ACTIVITY_KIND_NOVELTY (start, end)"),
    "NULL correlation ids": statements(
        "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME (start, end, eventClass, globalTid, nameId, returnValue) "
        "SELECT start, start, eventClass, globalTid, nameId, 0 FROM CUPTI_ACTIVITY_KIND_RUNTIME LIMIT 1",
    ),
}


def facts(analysis: Analysis) -> dict[str, Any]:
    """Everything but what the export says of itself."""
    found: dict[str, Any] = json.loads(render_json(analysis))
    for trace in found["traces"]:
        for key in ("nsys_version", "schema_version", "capture_start_utc", "name"):
            trace.pop(key)
        trace["coverage"].pop("not_captured")
        if trace["host_work"]:
            trace["host_work"].pop("sampling_period_ns")
    for site in found["sites"]:
        for share in (*site["processes"], *site["threads"], *site["examples"], *site["ranks"]):
            share.pop("trace")
    return found


@pytest.fixture(scope="module")
def known(capture: Capture) -> Callable[[str], dict[str, Any]]:
    cache: dict[str, dict[str, Any]] = {}

    def of(name: str) -> dict[str, Any]:
        if name not in cache:
            cache[name] = facts(analyze(capture(name)))
        return cache[name]

    return of


@pytest.mark.parametrize("schema", [OLD, NEW])
@pytest.mark.parametrize("name", CAPTURES)
@pytest.mark.parametrize(
    "drift",
    [
        pytest.param(drift, marks=pytest.mark.met("1 versions and layouts", drift, "the same analysis"))
        for drift in DRIFTS
    ],
)
def test_schema_drift(
    drift: str, name: str, schema: str, capture: Capture, known: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    name = f"{name}.{schema}"
    assert facts(analyze(changed(capture(name), tmp_path, DRIFTS[drift]))) == known(name)


def test_versions_are_shown_where_they_are_known(capture: Capture, tmp_path: Path) -> None:
    path = capture(f"two_gpus.{OLD}")
    trace = analyze(path).traces[0]
    assert (trace.nsys_version, trace.schema_version) == ("2023.4.4.54", "3.7.2")
    trace = analyze(changed(path, tmp_path, old_metadata)).traces[0]
    assert (trace.nsys_version, trace.schema_version) == ("2023.4.4.54", "3.7.2")
    trace = analyze(changed(path, tmp_path, DRIFTS["no metadata (2021)"])).traces[0]
    assert (trace.nsys_version, trace.schema_version) == (None, None)


def test_empty_tables_are_said_to_be_missing(capture: Capture, tmp_path: Path) -> None:
    """A table without rows says as little as no table (--lazy=false writes them all)."""
    path = capture(f"two_gpus.{NEW}")
    names = ("NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "PROFILER_OVERHEAD")
    gone = analyze(changed(path, tmp_path, drop_tables(*names))).traces[0].coverage.not_captured
    emptied = changed(path, tmp_path, lambda c: [c.execute(f"DELETE FROM {n}") for n in names if n in tables(c)])
    assert {part.split(":")[0] for part in analyze(emptied).traces[0].coverage.not_captured} >= {
        part.split(":")[0] for part in gone
    }


# ---- Python stacks


@pytest.mark.parametrize("name", ["nvtx_threads", "two_gpus", "gpu_bound", "sync_heavy"])
def test_blobs_and_our_own_table_give_the_same_stacks(name: str, capture: Capture) -> None:
    old, new = analyze(capture(f"{name}.{OLD}")), analyze(capture(f"{name}.{NEW}"))

    def stacks(one: Analysis) -> list[object]:
        return [(site.id, site.located_by, [one.frames[i] for i in site.python_stack]) for site in one.sites]

    assert stacks(old) == stacks(new) and all(site.python_stack for site in new.sites)
    assert old.operations.drop_columns("trace").equals(new.operations.drop_columns("trace"))


def one_sync(**options: Any) -> TraceBuilder:
    trace = TraceBuilder(**options)
    thread = trace.process(1).thread(1)
    thread.launch(0, 5, gpu=(10, 20))
    thread.stream_sync(6, 25, python=[("train", "/work/train.py", 7)])
    return trace


def how(path: Path) -> dict[str, int]:
    return dict[str, int](analyze(path).traces[0].coverage.located_by)


def refusal(path: Path) -> str:
    (text,) = [part for part in analyze(path).traces[0].coverage.not_captured if part.startswith("Python stacks: ")]
    return text


@pytest.mark.met("6 stacks", "Python payloads of a layout not known", "no Python stack is claimed; the report says why")
@pytest.mark.parametrize(
    "change",
    [
        "UPDATE NVTX_PAYLOAD_SCHEMA_ENTRIES SET \"offset\" = 12 WHERE name = 'Line'",
        "UPDATE NVTX_PAYLOAD_SCHEMA_ENTRIES SET name = 'LineNumber' WHERE name = 'Line'",
        "UPDATE NVTX_PAYLOAD_SCHEMAS SET payloadSize = 32 WHERE name = 'PythonFrame'",
        'INSERT INTO NVTX_PAYLOAD_SCHEMA_ENTRIES (domainId, schemaId, idx, flags, name, "offset") '
        "SELECT domainId, schemaId, 9, NULL, 'Column', 20 FROM NVTX_PAYLOAD_SCHEMAS WHERE name = 'PythonFrame'",
        "DROP TABLE NVTX_PAYLOAD_SCHEMAS",
        "UPDATE NVTX_PAYLOAD_SCHEMAS SET name = 'Other'",
    ],
)
def test_an_unknown_layout_is_refused_in_words(change: str, tmp_path: Path) -> None:
    path = one_sync().write(tmp_path / "t.sqlite")
    assert how(path) == {"exact stack": 1}
    path = changed(path, tmp_path, statements(change))
    assert how(path) == {"thread": 1}
    assert "layout that this version of nsys-sync does not know" in refusal(path)


@pytest.mark.met("6 stacks", "Python stacks that the export left out", "the report says how to get them")
def test_stacks_left_out_of_the_export(tmp_path: Path) -> None:
    assert "--include-blobs=true" in refusal(one_sync(blobs=False).write(tmp_path / "new.sqlite"))
    old = one_sync(schema="3.7.2").write(tmp_path / "old.sqlite")
    without = changed(old, tmp_path, statements("DROP TABLE NSYS_SYNC_PYTHON_BACKTRACE"))
    assert "before schema 3.13.2" in refusal(without)


GOOD = python_payload([(1, 2, 7)], source=2)
BAD_PAYLOADS = {
    "nothing": b"",
    "a byte": b"\x01",
    "cut in the header": GOOD[:11],
    "no frames": python_payload([], source=2),
    "cut in a frame": GOOD[:-5],
    "more frames than bytes": struct.pack("<IIII", 1, 2, 1000, 0) + GOOD[16:],
    "four thousand million frames": struct.pack("<IIII", 1, 2, 0xFFFFFFFF, 0) + GOOD[16:],
}
BAD_WRAPPERS = {
    "nothing": b"",
    "cut in the wrapper": wrapped_payload(GOOD)[:31],
    "no payload": struct.pack("<QQQQ", 0, 0, 0, 32),
    "two payloads": struct.pack("<QQQQ", 2, 0, len(GOOD), 32) + GOOD,
    "size beyond the end": struct.pack("<QQQQ", 1, 0, len(GOOD) + 1, 32) + GOOD,
    "offset beyond the end": struct.pack("<QQQQ", 1, 0, len(GOOD), 33) + GOOD,
    "offset before the payload": struct.pack("<QQQQ", 1, 0, len(GOOD), 8) + GOOD,
    "huge size": struct.pack("<QQQQ", 1, 0, 2**64 - 1, 32) + GOOD,
    "huge offset": struct.pack("<QQQQ", 1, 0, len(GOOD), 2**63) + GOOD,
} | {name: wrapped_payload(payload) for name, payload in BAD_PAYLOADS.items()}


@pytest.mark.met(
    "6 stacks",
    "Python payloads that are empty, truncated, without frames, or with impossible sizes",
    "left out; no other stack is lost and none made up",
)
@pytest.mark.parametrize("case", BAD_WRAPPERS)
def test_a_damaged_payload_is_ignored(case: str, tmp_path: Path) -> None:
    """It takes no other event with it, and no stack is made up for its call."""
    trace = one_sync()
    process = trace.processes[0]
    thread = process.thread(1)
    thread.stream_sync(30, 40)
    trace.row(
        "NVTX_EVENTS",
        start=30,
        eventType=NVTX_MARK,
        globalTid=thread.global_tid,
        domainId=process.python_domain(thread),
        binaryData=BAD_WRAPPERS[case],
    )
    assert how(trace.write(tmp_path / "t.sqlite")) == {"exact stack": 1, "thread": 1}


@pytest.mark.met(
    "6 stacks", "the same in the table that our own export adds", "left out; no other stack is lost and none made up"
)
@pytest.mark.parametrize("case", BAD_PAYLOADS)
def test_a_damaged_payload_in_our_table_is_ignored(case: str, tmp_path: Path) -> None:
    trace = one_sync(schema="3.7.2")
    thread = trace.processes[0].thread(1)
    thread.stream_sync(30, 40)
    trace.row("NSYS_SYNC_PYTHON_BACKTRACE", start=30, globalTid=thread.global_tid, payload=BAD_PAYLOADS[case])
    assert how(trace.write(tmp_path / "t.sqlite")) == {"exact stack": 1, "thread": 1}


@pytest.mark.met("6 stacks", "nothing but damaged Python payloads", "the thread is named instead of a line")
def test_only_damaged_payloads(tmp_path: Path) -> None:
    trace = one_sync(schema="3.7.2")
    trace.tables["NSYS_SYNC_PYTHON_BACKTRACE"][0]["payload"] = b"\x00"
    assert how(trace.write(tmp_path / "t.sqlite")) == {"thread": 1}


def test_names_arrive_escaped(tmp_path: Path) -> None:
    trace = TraceBuilder()
    thread = trace.process(1).thread(1)
    thread.launch(0, 5, gpu=(10, 20))
    thread.stream_sync(6, 25, python=[("<lambda>", "/work/a&b <c>.py", 7), ("<module>", "/work/main.py", 1)])
    found = analyze(trace.write(tmp_path / "t.sqlite"))
    assert (found.sites[0].location.function, found.sites[0].location.file) == ("<lambda>", "/work/a&b <c>.py")
    assert [frame.function for frame in found.frames] == ["<lambda>", "<module>"]


# ---- native stacks


def chains(schema: str, first_row: int, first_chain: int, calls: int = 3, stacks: int = 3) -> TraceBuilder:
    """`calls` syncs whose rows ask for ids from `first_row`, and stacks numbered from `first_chain`."""
    trace = TraceBuilder(schema)
    thread = trace.process(1).thread(1)
    for i in range(calls):
        at = 100 * i
        thread.launch(at, at + 5, gpu=(at + 10, at + 20))
        frames = [("wait", "/usr/lib/libcuda.so.1"), (f"work{i}", "/usr/lib/libx.so")]
        thread.stream_sync(at + 6, at + 25, native=frames)
    for row in trace.tables["CUPTI_ACTIVITY_KIND_RUNTIME"]:
        if row["callchainId"] is not None:
            row["callchainId"] += first_row
    shift = first_chain - min(row["id"] for row in trace.tables["CUDA_CALLCHAINS"])
    kept = []
    for row in trace.tables["CUDA_CALLCHAINS"]:
        row["id"] += shift
        if row["id"] < first_chain + stacks:
            kept.append(row)
    trace.tables["CUDA_CALLCHAINS"] = kept
    return trace


@pytest.mark.met(
    "6 stacks", "native stack ids off by one, or not", "each call has its own stack: the ids decide, not the version"
)
@pytest.mark.parametrize("schema", ["3.7.2", "3.9.0", "3.20.3"])
@pytest.mark.parametrize("first_chain", [0, 1])
def test_callchain_ids_of_both_conventions(schema: str, first_chain: int, tmp_path: Path) -> None:
    """The ids decide, not the schema's number: the fix came without one."""
    found = analyze(chains(schema, 0, first_chain).write(tmp_path / "t.sqlite"))
    assert {site.location.label for site in found.sites} == {"work0", "work1", "work2"}
    for site in found.sites:
        symbols = [found.native_frames[i].symbol for i in site.native_stack]
        assert symbols == ["wait", site.location.label]
        assert site.examples[0].start_ns == 100 * int(site.location.label[-1]) + 6


@pytest.mark.met(
    "6 stacks", "native stack ids of which it cannot be decided", "no native stack is claimed; the report says so"
)
@pytest.mark.parametrize(("first_row", "first_chain", "stacks"), [(0, 0, 2), (0, 1, 2), (0, 5, 3), (3, 0, 3)])
def test_callchains_that_cannot_be_matched_are_not_used(
    first_row: int, first_chain: int, stacks: int, tmp_path: Path
) -> None:
    found = analyze(chains("3.9.0", first_row, first_chain, stacks=stacks).write(tmp_path / "t.sqlite"))
    assert not found.native_frames and all(not site.native_stack for site in found.sites)
    (text,) = [part for part in found.traces[0].coverage.not_captured if part.startswith("native stacks: ")]
    assert "cannot be matched" in text


@pytest.mark.met("6 stacks", "native stacks beside Python lines (a real capture)", "they name the same operation")
def test_native_stacks_agree_with_python_lines(capture: Capture) -> None:
    """An off-by-one would give .item() the stack of another call."""
    bindings = {"tensor.item()": "THPVariable_item", "tensor.cpu()": "THPVariable_cpu", "bool(tensor)": "_nonzero"}
    for schema in (OLD, NEW):
        found = analyze(capture(f"nvtx_threads.{schema}"))
        checked = 0
        for site in found.sites:
            if binding := bindings.get(site.kind.operation or ""):
                assert any(binding in found.native_frames[i].symbol for i in site.native_stack)
                checked += 1
        assert checked >= 4


# ---- rows


def test_duplicate_rows_are_one_call(tmp_path: Path) -> None:
    """The class-67 row with the callchain and the versioned row inside it, of one and of slightly other length."""
    trace = TraceBuilder()
    thread = trace.process(1).thread(1)
    thread.launch(0, 5, gpu=(10, 20))
    thread.stream_sync(6, 25, backtrace=True)
    thread.stream_sync(30, 45, backtrace=True, inner=(31, 44))
    found = analyze(trace.write(tmp_path / "t.sqlite"))
    assert found.operations["blocked_ns"].to_pylist() == [19, 15]


def test_one_correlation_id_on_unrelated_calls(tmp_path: Path) -> None:
    trace = TraceBuilder()
    thread = trace.process(1).thread(1)
    call = thread.launch(0, 5, gpu=(10, 20))
    thread.device_sync(6, 25, correlation=call.correlation)
    thread.api("cudaEventDestroy_v3020", 26, 27, correlation=call.correlation)
    thread.launch(30, 35, gpu=(40, 50))
    found = analyze(trace.write(tmp_path / "t.sqlite"))
    (device,) = found.traces[0].devices
    assert (device.busy_ns, device.stall_ns, device.host_bound_ns) == (20, 19, 1)
    assert found.sites[0].kind.apis == ("cudaDeviceSynchronize",)


def test_ends_that_are_missing(tmp_path: Path) -> None:
    trace = one_sync()
    thread = trace.processes[0].thread(1)
    thread.launch(30, 35, gpu=(40, None))
    thread.launch(50, 55, gpu=(60, 70))
    thread.stream_sync(56, None)
    thread.nvtx("open", 26, None)
    found = analyze(trace.write(tmp_path / "t.sqlite"))
    coverage = found.traces[0].coverage
    assert (coverage.unfinished_gpu_rows, coverage.unfinished_calls, coverage.operations) == (1, 1, 1)
    (device,) = found.traces[0].devices
    # The work launched at 30 ran nobody knows how long: until the next work at 60 the device is not known to be idle.
    assert (device.window_ns, device.busy_ns, device.idle_ns, device.not_captured_ns) == (60, 20, 10, 30)


def test_sparse_columns(tmp_path: Path) -> None:
    """2,000 rows without a value, and then text or bytes: a reader that guesses types from the first rows fails."""
    trace = TraceBuilder()
    thread = trace.process(1).thread(1)
    for i in range(2_000):
        trace.row("NVTX_EVENTS", start=i, end=None, eventType=NVTX_MARK, globalTid=thread.global_tid)
        thread.api("cudaGetDevice_v3020", i, i + 1, correlation=i + 10_000)
    trace.tables["CUPTI_ACTIVITY_KIND_RUNTIME"][0]["correlationId"] = None
    thread.launch(3_000, 3_005, gpu=(3_010, 3_020))
    thread.stream_sync(3_006, 3_025, python=[("train", "/work/train.py", 7)])
    thread.nvtx("registered", 2_999, 3_030, registered=True)
    thread.nvtx("written out", 3_005, 3_030)
    found = analyze(trace.write(tmp_path / "t.sqlite"))
    assert found.sites[0].location.label == "train.py:7 train"
    assert found.sites[0].nvtx_ranges[0].name == "written out"
    assert analyze(tmp_path / "t.sqlite", nvtx="registered").window_ns == 31


def test_only_queries(tmp_path: Path) -> None:
    trace = TraceBuilder()
    process = trace.process(1)
    process.thread(1).api("cudaEventQuery_v3020", 0, 1)
    process.gpu_row("KERNEL", (0, 5))
    with pytest.raises(TraceError, match="of CUDA API calls only queries"):
        analyze(trace.write(tmp_path / "t.sqlite"))


def test_correlation_ids_of_any_size(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for pid in (1, 2):
        thread = trace.process(pid).thread(pid)
        for i, correlation in enumerate((2**63 - 1, 2**62, 2**33)):
            at = 100 * i + 10 * pid
            thread.launch(at, at + 1, gpu=(at + 2, at + 5), correlation=correlation)
        thread.stream_sync(at + 2, at + 6)
    found = analyze(trace.write(tmp_path / "t.sqlite"))
    assert found.traces[0].devices[0].device_side_without_launch_ns == 0
    assert not [warning for warning in found.traces[0].coverage.warnings if "launch call" in warning]


def test_negative_times(tmp_path: Path) -> None:
    trace = TraceBuilder()
    thread = trace.process(1).thread(1)
    for at in (-5_000, -3_000):
        thread.launch(at, at + 10, gpu=(at + 100, at + 1_000))
        thread.stream_sync(at + 100, at + 1_000, python=[("train", "/work/train.py", 7)])
    found = analyze(trace.write(tmp_path / "t.sqlite"))
    (device,) = found.traces[0].devices
    assert (device.window_start_ns, device.window_ns, device.busy_ns) == (-4_900, 2_900, 1_800)
    assert (device.stall_ns, device.host_bound_ns) == (900, 200)
    (device,) = analyze(tmp_path / "t.sqlite", time_range=(None, -2_900)).traces[0].devices
    assert (device.window_ns, device.busy_ns, device.idle_ns) == (2_000, 900, 1_100)


REQUIRED = {
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start", "end", "globalTid", "correlationId", "nameId"),
    "CUPTI_ACTIVITY_KIND_KERNEL": ("start", "end", "deviceId", "globalPid", "correlationId"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": ("start", "end", "deviceId", "globalPid", "correlationId"),
}


@pytest.mark.parametrize(
    ("table", "column"), [(table, column) for table, names in REQUIRED.items() for column in names]
)
def test_a_missing_column_is_named(table: str, column: str, capture: Capture, tmp_path: Path) -> None:
    """Without it the figures would be wrong: no busy time, or no launch of any work."""
    path = changed(capture(f"two_gpus.{NEW}"), tmp_path, statements(f'ALTER TABLE {table} DROP COLUMN "{column}"'))
    with pytest.raises(TraceError, match=f"{table} has no column {column}"):
        analyze(path)


# ---- devices


def test_devices_are_mapped_where_the_export_says_how(capture: Capture) -> None:
    """Both processes call their GPU 0; the newer export knows that they are two."""
    new = analyze(capture(f"two_gpus_visible.{NEW}")).traces[0]
    assert [device.id for device in new.devices] == [0, 1]
    assert len({device.processes for device in new.devices}) == 2
    assert not [part for part in new.coverage.not_captured if "which GPU" in part]
    old = analyze(capture(f"two_gpus_visible.{OLD}")).traces[0]
    assert len(old.devices) == 1
    (text,) = [part for part in old.coverage.not_captured if "which GPU" in part]
    assert "CUDA_VISIBLE_DEVICES" in text


def test_devices_that_need_no_map(capture: Capture) -> None:
    for schema in (OLD, NEW):
        trace = analyze(capture(f"two_gpus.{schema}")).traces[0]
        assert [device.id for device in trace.devices] == [0, 1]
        assert not [part for part in trace.coverage.not_captured if "which GPU" in part]


def test_a_map_with_gaps(capture: Capture, tmp_path: Path) -> None:
    """Rows without a value are no mapping."""

    def change(connection: sqlite3.Connection) -> None:
        rewritten(connection, "TARGET_INFO_CUDA_DEVICE", ["gpuId", "cudaId", "pid"])
        connection.execute("INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (0, NULL, NULL), (NULL, 1, 5)")

    path = capture(f"two_gpus.{NEW}")
    assert facts(analyze(changed(path, tmp_path, change))) == facts(analyze(path))


# ---- damage in tables that matter little


def test_a_name_cut_inside_a_letter(capture: Capture, tmp_path: Path) -> None:
    """Linux cuts thread names after 15 bytes, wherever that is: one bad name must not cost the whole analysis."""
    path = capture(f"two_gpus.{NEW}")
    cut = (
        "UPDATE StringIds SET value = CAST(x'64617461e695' AS TEXT) WHERE id = (SELECT nameId FROM ThreadNames LIMIT 1)"
    )
    found = analyze(changed(path, tmp_path, statements(cut)))
    assert found.stall_ns == analyze(path).stall_ns


DAMAGE = {
    "process": "UPDATE PROCESSES SET globalPid = 'abc'",
    "thread": "UPDATE ThreadNames SET globalTid = 'abc'",
    "session start": "UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = 'abc'",
    "gpu": "UPDATE TARGET_INFO_GPU SET id = 'abc'",
    "device map": "UPDATE TARGET_INFO_CUDA_DEVICE SET gpuId = 'abc'",
    "string id": "UPDATE StringIds SET id = 'abc' WHERE rowid = 3",
    "NVTX thread": "UPDATE NVTX_EVENTS SET globalTid = 'abc'",
    "NVTX end": "UPDATE NVTX_EVENTS SET end = 'x' WHERE eventType IN (59, 60)",
    "NVTX end of bytes": "UPDATE NVTX_EVENTS SET end = x'00' WHERE rowid % 2",
    "NVTX end that is no whole number": "UPDATE NVTX_EVENTS SET end = 1.5",
    "NVTX domain": "UPDATE NVTX_EVENTS SET domainId = 'abc'",
    "NVTX domain of bytes": "UPDATE NVTX_EVENTS SET domainId = x'00' WHERE rowid % 2",
    "NVTX text id": "UPDATE NVTX_EVENTS SET textId = 'abc'",
    "NVTX name that is no text": "UPDATE NVTX_EVENTS SET text = CAST(x'ff00' AS TEXT) WHERE eventType = 59",
    "NVTX name of bytes": "UPDATE NVTX_EVENTS SET text = x'ff00' WHERE eventType = 59",
    "name that is no text": "UPDATE StringIds SET value = CAST(x'ff41' AS TEXT)",
    "start of calls": "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET start = 'abc'",
    "no start of a call": "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET end = 1.5 WHERE rowid = 9",
    "times without end": "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = -9223372036854775808 WHERE rowid = 9",
    "no names": "DELETE FROM StringIds",
    "no calls": "DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME",
}


@pytest.mark.parametrize("case", DAMAGE)
def test_odd_values_give_an_answer_or_an_error_of_ours(case: str, capture: Capture, tmp_path: Path) -> None:
    def change(connection: sqlite3.Connection) -> None:
        table = DAMAGE[case].split()[1 if DAMAGE[case].startswith("UPDATE") else 2]
        columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
        rewritten(connection, table, columns)
        connection.execute(DAMAGE[case])

    path = changed(capture(f"two_gpus.{NEW}"), tmp_path, change)
    try:
        json.loads(render_json(analyze(path)))
    except TraceError as error:
        assert str(path) in str(error) and "\n" not in str(error)
