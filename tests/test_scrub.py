"""A scrubbed export holds nothing private, in any byte, and gives the same analysis."""

from __future__ import annotations

import dataclasses
import re
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from conftest import FIXTURES, Capture
from trace_builder import NVTX_MARK, SCHEMAS, ProcessBuilder, TraceBuilder, python_payload, wrapped_payload

from nsys_sync import analyze, model
from nsys_sync.errors import TraceError
from nsys_sync.nsys.scrub import scrub

CAPTURES = sorted(path.name.removesuffix(".sqlite.xz") for path in FIXTURES.glob("*.sqlite.xz"))
GARBAGE = b"\xde\xad\xbe\xef"


def execute(path: Path, *statements: str | tuple[str, tuple[Any, ...]]) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(*((statement,) if isinstance(statement, str) else statement))


def query(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def tables(path: Path) -> set[str]:
    return {name for (name,) in query(path, "SELECT name FROM sqlite_master")}


def copy_of(path: Path, folder: Path) -> Path:
    """A copy of the same name, as the analysis shows the file's name."""
    folder.mkdir(exist_ok=True)
    copy = folder / path.name
    copy.write_bytes(path.read_bytes())
    return copy


def shown(path: Path) -> tuple[model.Analysis, Any]:
    """All of an analysis but the processes that called nothing of CUDA, which a scrub removes."""
    analysis = analyze(path)
    cuda = {pid for (pid,) in query(path, 'SELECT "globalTid" >> 24 & 16777215 FROM CUPTI_ACTIVITY_KIND_RUNTIME')}

    def without(processes: tuple[model.Process, ...]) -> tuple[model.Process, ...]:
        return tuple(process for process in processes if process.pid in cuda)

    reports = tuple(
        dataclasses.replace(
            report,
            processes=without(report.processes),
            coverage=dataclasses.replace(
                report.coverage, processes_without_gpu_rows=without(report.coverage.processes_without_gpu_rows)
            ),
        )
        for report in analysis.traces
    )
    return dataclasses.replace(analysis, traces=reports, operations=None), analysis.operations.to_pylist()


def program(
    b: TraceBuilder, pid: int = 100, file: str = "/home/alice/train.py", name: str = "/opt/py/bin/python3"
) -> ProcessBuilder:
    """Three steps, each with a copy and a synchronize that has a stack."""
    process = b.process(pid, name)
    thread = process.thread(pid)
    for i in range(3):
        at = i * 1_000_000
        thread.nvtx(f"step {i}", at, at + 900_000)
        thread.launch(at + 1_000, at + 5_000, gpu=(at + 10_000, at + 200_000))
        thread.copy(at + 6_000, at + 8_000, gpu=(at + 200_000, at + 220_000), dst="pinned")
        thread.stream_sync(
            at + 9_000,
            at + 250_000,
            native=[("THPVariable_item", "/home/alice/env/lib/libtorch_python.so")],
            python=[("train", file, 7), ("&lt;module&gt;", file, 20)],
        )
    return process


def written(b: TraceBuilder, folder: Path) -> Path:
    return b.write(folder / "t.sqlite")


# ---- the same analysis


@pytest.mark.parametrize("name", CAPTURES)
def test_a_scrubbed_capture_gives_the_same_analysis(name: str, capture: Capture, tmp_path: Path) -> None:
    original = capture(name)
    copy = copy_of(original, tmp_path)
    scrub(copy)
    assert shown(copy) == shown(original)
    again = copy.read_bytes()
    scrub(copy)
    assert shown(copy) == shown(original)
    assert len(copy.read_bytes()) == len(again)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_same_analysis_with_homes_users_and_warnings(schema: str, tmp_path: Path) -> None:
    b = TraceBuilder(schema)
    b.row("META_DATA_EXPORT", name="EXPORT_USER", value="alice")
    b.row("META_DATA_CAPTURE", name="PROCESS_0:USER_NAME", value="alice")
    b.row("META_DATA_EXPORT", name="EXPORT_HOST", value="node17.cluster.example")
    program(b, 100)
    program(b, 200, "/data/alice/train.py")
    program(b, 300, "/root/torchinductor_alice/x.py")
    program(b, 400, "/home/bob/.venv/lib/python3.12/site-packages/torch/_tensor_str.py")
    b.diagnostic("CUDA trace data will be collected using libraries for driver version 13.0.")
    b.diagnostic("Installed driver is not supported (see --help)/usage.", severity=3)
    original = written(b, tmp_path)
    copy = copy_of(original, tmp_path / "copy")
    scrub(copy)
    assert shown(copy) == shown(original)
    assert not re.search(rb"alice|bob|node17|/root|/home", copy.read_bytes())
    files = {frame.file for frame in analyze(copy).frames}
    assert {"~/train.py", "/data/USER/train.py", "~/torchinductor_USER/x.py"} <= files


@pytest.mark.parametrize("user", ["lib", "torch", "python3", "site", "packages", "py", "libtorch_python"])
def test_a_user_named_like_a_library_folder_changes_no_meaning(user: str, tmp_path: Path) -> None:
    b = TraceBuilder()
    b.row("META_DATA_EXPORT", name="EXPORT_USER", value=user)
    program(b, 100, "/venv/lib/python3.12/site-packages/torch/_tensor_str.py")
    program(b, 200, f"/data/{user}/train.py")
    original = written(b, tmp_path)
    copy = copy_of(original, tmp_path / "copy")
    scrub(copy)
    before, after = analyze(original), analyze(copy)
    assert [frame.is_user_code for frame in after.frames] == [frame.is_user_code for frame in before.frames]
    assert [(site.kind, site.stall) for site in after.sites] == [(site.kind, site.stall) for site in before.sites]
    assert f"/data/{user}/".encode() not in copy.read_bytes()


# ---- nothing private remains

SECRETS = {
    "environment": "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI",
    "command": "--api-key=sk-live-51H8",
    "folder": "/mnt/projects/secret-merger",
    "host": "node17.cluster.example",
    "session": "0f8fad5b-d9cb-469f-a165-70867728950e",
    "uuid": "d5c7e8a1-2f3b-4c4d-9e5f-6a7b8c9d0e1f",
    "mac": "02:42:ac:11:00:02",
    "future": "what-a-later-nsys-may-add",
    "other process": "/usr/sbin/payroll-daemon",
}


def hostile(folder: Path, schema: str = "3.20.3") -> Path:
    """An export in which every place that can hold something private does."""
    b = TraceBuilder(schema)
    for name, value in (
        ("PROCESS_0:ENVIRONMENT_VARIABLE", SECRETS["environment"]),
        ("PROCESS_0:ENVIRONMENT_VARIABLE", "LOGNAME=carol"),
        ("PROCESS_0:ENVIRONMENT_VARIABLE", "HOME=/mnt/home/dave"),
        ("PROCESS_0:COMMAND", "/opt/secret-merger/python"),
        ("PROCESS_0:ARGUMENT_0", SECRETS["command"]),
        ("PROCESS_0:WORKING_DIR", SECRETS["folder"]),
        ("PROCESS_0:COLLECT_FUTURE", SECRETS["future"]),
        ("PROCESS_0:COLLECT_FUTURE_SWITCH", "true"),
        ("DEVICE_DISPLAY_NAME", SECRETS["host"]),
        ("PROFILING_SESSION_UUID", SECRETS["session"]),
    ):
        b.row("META_DATA_CAPTURE", name=name, value=value)
    for name, value in (
        ("EXPORT_HOST", SECRETS["host"]),
        ("EXPORT_USER", "alice"),
        ("EXPORT_PARAM_INPUT_PATH_ABS", f"{SECRETS['folder']}/t.nsys-rep"),
        ("EXPORT_PARAM_LAZY", "true"),
    ):
        b.row("META_DATA_EXPORT", name=name, value=value)
    process = program(b)
    program(b, 300, "/mnt/home/dave/train.py")
    other = b.process(200, SECRETS["other process"]).thread(200, "payroll-worker")
    other.nvtx("payroll run", 0, 10)
    thread = process.thread(101, "loader of carol")
    thread.nvtx("alice on node17", 0, 10)
    thread.nvtx("load /home/erin/secret.bin", 20, 30)
    domain = process.domain("mine", thread)
    b.row(
        "NVTX_EVENTS",
        start=5,
        eventType=NVTX_MARK,
        globalTid=thread.global_tid,
        domainId=domain,
        jsonText=SECRETS["future"],
        **({} if b.old else {"binaryData": SECRETS["future"].encode()}),
    )
    b.row("NVTX_EVENTS", start=6, eventType=9999, globalTid=thread.global_tid, text=SECRETS["future"])
    b.string("PATH=/home/alice/bin\0" + SECRETS["environment"] + "\0LOGNAME=carol")
    b.string(SECRETS["command"])
    b.diagnostic(f"Injection failed in {SECRETS['folder']}/lib.so for python {SECRETS['command']} of alice")
    b.diagnostic("see /tmp/nvidia/session_42/pid_99_stdout.log", severity=1)
    path = written(b, folder)
    execute(
        path,
        f"UPDATE TARGET_INFO_GPU SET uuid = '{SECRETS['uuid']}', busLocation = '0000:5b:00.0'",
        "CREATE TABLE TARGET_INFO_NIC_INFO (name TEXT, mac TEXT)",
        f"INSERT INTO TARGET_INFO_NIC_INFO VALUES ('mlx5_0', '{SECRETS['mac']}')",
        "CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid INTEGER, name TEXT NOT NULL, value TEXT NOT NULL)",
        f"INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (1, 'Hostname', '{SECRETS['host']}'), (1, 'CpuCores', '24')",
        "CREATE TABLE ProcessStreams (globalPid INTEGER, content TEXT)",
        f"INSERT INTO ProcessStreams VALUES (1, '{SECRETS['future']}')",
        f"CREATE TABLE FUTURE_EVENTS (start INTEGER, text TEXT -- {SECRETS['future']}\n)",
        f"CREATE VIEW FUTURE_VIEW AS SELECT '{SECRETS['future']}' AS text",
        f"ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN futureText TEXT DEFAULT '{SECRETS['future']}'",
        f"CREATE INDEX future_index ON StringIds(value) WHERE value <> '{SECRETS['future']}'",
        # a number column can hold text in SQLite
        f"UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET \"srcDeviceId\" = '{SECRETS['future']}'",
        # and freed pages keep what was deleted
        "CREATE TABLE gone (text TEXT)",
        f"INSERT INTO gone VALUES ('{SECRETS['future'] * 5000}')",
        "DROP TABLE gone",
    )
    return path


@pytest.mark.parametrize("schema", SCHEMAS)
def test_nothing_private_is_in_any_byte(schema: str, tmp_path: Path) -> None:
    path = hostile(tmp_path, schema)
    raw = path.read_bytes()
    private = [
        *SECRETS.values(),
        *("alice", "carol", "dave", "erin", "node17", "payroll", "secret-merger", "0000:5b", "pid_99", "LOGNAME"),
        *("wJalrXUtn", "sk-live", "session_42", "futureText", "FUTURE_EVENTS"),
    ]
    absent_in_old = {"pid_99", "session_42"} if schema == SCHEMAS[0] else set()
    assert [word for word in private if word.encode() not in raw and word not in absent_in_old] == []
    scrub(path)
    left = path.read_bytes()
    assert [word for word in private if word.encode() in left] == []
    assert GARBAGE not in left
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_reader_needs_stays(tmp_path: Path) -> None:
    path = hostile(tmp_path)
    before = analyze(path)
    scrub(path)
    after = analyze(path)
    assert [site.stall for site in after.sites] == [site.stall for site in before.sites]
    assert [site.python_stack for site in after.sites] == [site.python_stack for site in before.sites]
    assert {frame.file for frame in after.frames} == {"~/train.py"}
    names = {name for (name,) in query(path, "SELECT text FROM NVTX_EVENTS WHERE text IS NOT NULL")}
    assert {"step 0", "USER on HOST", "load ~/secret.bin"} <= names
    assert query(path, "SELECT name, value FROM TARGET_INFO_SYSTEM_ENV") == [("CpuCores", "24")]
    assert query(path, "SELECT text FROM DIAGNOSTIC_EVENT") == [("Injection failed in …/lib.so for python … of USER",)]
    settings = dict(query(path, "SELECT name, value FROM META_DATA_CAPTURE"))
    assert settings["PROCESS_0:COLLECT_FUTURE_SWITCH"] == "true"
    assert "PROCESS_0:COLLECT_FUTURE" not in settings
    assert query(path, "SELECT name FROM PROCESSES") == [("python3",), ("python3",)]
    assert not {"TARGET_INFO_NIC_INFO", "ProcessStreams", "FUTURE_VIEW", "future_index"} & tables(path)


def test_it_says_what_was_removed(tmp_path: Path) -> None:
    result = scrub(hostile(tmp_path))
    counts = dict(result.removed)
    assert counts["processes without CUDA calls"] == 1
    assert counts["environment variables of the profiled program"] == 3
    assert counts["tables that the analysis does not read"] == 2  # views and empty tables hold nothing
    assert counts["NVTX payloads other than Python stacks"] == 1
    assert "processes without CUDA calls: 1" in str(result)
    assert not re.search("alice|payroll|secret-merger|node17", str(result))


def test_a_second_scrub_finds_nothing_to_remove_but_keeps_all(tmp_path: Path) -> None:
    path = hostile(tmp_path)
    scrub(path)
    first = path.read_bytes()
    assert str(scrub(path)) == "nothing had to be removed"
    assert path.read_bytes() == first


def test_different_people_stay_different_paths(tmp_path: Path) -> None:
    b = TraceBuilder()
    program(b, 100, "/opt/home/ann/x.py")
    program(b, 200, "/opt/home/ben/x.py")
    path = written(b, tmp_path)
    sites = len(analyze(path).sites)
    scrub(path)
    assert len(analyze(path).sites) == sites
    kept = {value for (value,) in query(path, "SELECT value FROM StringIds WHERE value LIKE '%x.py'")}
    assert kept == {"/opt/home/USER/x.py", "/opt/home/USER2/x.py"}


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("/home/alice/bin/python3.12", "python3.12"),
        ("C:\\Users\\alice\\My Tool.exe", "My Tool.exe"),
        ("python train.py --token=secret/part", "python train.py"),
        ("python", "python"),
    ],
)
def test_a_process_keeps_its_programs_base_name(name: str, kept: str, tmp_path: Path) -> None:
    b = TraceBuilder()
    program(b, name=name)
    path = written(b, tmp_path)
    scrub(path)
    assert query(path, "SELECT name FROM PROCESSES") == [(kept,)]


def test_folders_are_renamed_on_request(tmp_path: Path) -> None:
    b = TraceBuilder()
    program(b, file="/tmp/workspace/train.py")
    path = written(b, tmp_path)
    scrub(path, renamed_folders=[("/tmp/workspace/", "/workspace/")])
    assert {frame.file for frame in analyze(path).frames} == {"/workspace/train.py"}


# ---- payloads


@pytest.mark.parametrize("schema", SCHEMAS)
def test_padding_of_payloads_is_zero_and_frames_stay(schema: str, tmp_path: Path) -> None:
    b = TraceBuilder(schema)
    program(b)
    path = written(b, tmp_path)
    column, table = ("payload", "NSYS_SYNC_PYTHON_BACKTRACE") if b.old else ("binaryData", "NVTX_EVENTS")
    sql = f"SELECT {column} FROM {table} WHERE {column} IS NOT NULL"
    before = [blob for (blob,) in query(path, sql)]
    assert all(GARBAGE in blob for blob in before)
    scrub(path)
    assert [blob for (blob,) in query(path, sql)] == [blob.replace(GARBAGE, bytes(4)) for blob in before]


def malformed() -> Iterator[bytes]:
    good = wrapped_payload(python_payload([(1, 2, 3)], source=2))
    yield b""
    yield good[:20]
    yield good[:-1]
    yield struct.pack("<Q", 2) + good[8:]
    yield good[:16] + struct.pack("<QQ", 2**63, 32) + good[32:]
    yield good[:24] + struct.pack("<Q", 2**64 - 8) + good[32:]
    yield good[:40] + struct.pack("<I", 2**32 - 1) + good[44:]
    yield good[:40] + struct.pack("<I", 0) + good[44:]


@pytest.mark.parametrize("blob", list(malformed()))
def test_malformed_payloads_hold_nothing_and_stay_malformed(blob: bytes, tmp_path: Path) -> None:
    b = TraceBuilder()
    program(b)
    original = written(b, tmp_path)
    execute(original, ('UPDATE NVTX_EVENTS SET "binaryData" = ? WHERE "binaryData" IS NOT NULL', (blob + b"",)))
    copy = copy_of(original, tmp_path / "copy")
    scrub(copy)
    assert shown(copy) == shown(original)
    assert GARBAGE not in copy.read_bytes()


def test_payloads_of_an_unknown_layout_go(tmp_path: Path) -> None:
    b = TraceBuilder()
    program(b)
    original = written(b, tmp_path)
    execute(original, "UPDATE NVTX_PAYLOAD_SCHEMA_ENTRIES SET name = 'of alice', offset = 12 WHERE name = 'Line'")
    copy = copy_of(original, tmp_path / "copy")
    scrub(copy)
    assert shown(copy) == shown(original)
    assert not query(copy, 'SELECT 1 FROM NVTX_EVENTS WHERE "binaryData" IS NOT NULL')
    assert b"alice" not in copy.read_bytes()


# ---- drifting schemas and odd files


@pytest.mark.parametrize("schema", SCHEMAS)
def test_missing_tables_and_columns_are_no_error(schema: str, tmp_path: Path) -> None:
    complete = hostile(tmp_path, schema)
    every = [
        (table, column)
        for table in sorted(tables(complete) - {"FUTURE_VIEW", "future_index"})
        if not table.startswith(("sqlite_", "ENUM_"))
        for (column,) in query(complete, f"SELECT name FROM pragma_table_info('{table}') WHERE pk = 0")
    ]
    assert len(every) > 50
    (tmp_path / "less").mkdir()
    for table, column in every:
        path = copy_of(complete, tmp_path / "less")
        try:
            execute(path, "DROP INDEX future_index", f'ALTER TABLE "{table}" DROP COLUMN "{column}"')
        except sqlite3.OperationalError:
            continue  # the last column of its table
        scrub(path)
        left = path.read_bytes()
        # Without the command line in the settings nothing says that the profiler's message quotes it.
        known = {"command"} if table == "META_DATA_CAPTURE" else set()
        assert {name for name, word in SECRETS.items() if word.encode() in left} <= known, (table, column)
    for table in {table for table, _ in every}:
        path = copy_of(complete, tmp_path / "less")
        execute(path, f'DROP TABLE "{table}"')
        scrub(path)


def test_the_metadata_table_of_2022_is_cleaned_too(tmp_path: Path) -> None:
    path = hostile(tmp_path)
    execute(path, "ALTER TABLE META_DATA_EXPORT RENAME TO EXPORT_META_DATA")
    scrub(path)
    left = {name for (name,) in query(path, "SELECT name FROM EXPORT_META_DATA")}
    assert "EXPORT_SCHEMA_VERSION" in left
    assert not {"EXPORT_HOST", "EXPORT_USER", "EXPORT_PARAM_INPUT_PATH_ABS"} & left
    assert b"node17" not in path.read_bytes()


def test_text_that_is_no_utf8_is_no_error(tmp_path: Path) -> None:
    b = TraceBuilder()
    program(b).thread(101).nvtx("placeholder", 0, 10)
    b.string("environment")
    path = written(b, tmp_path)
    execute(
        path,
        "UPDATE NVTX_EVENTS SET text = CAST(x'2F686F6D652F616C6963652FFF' AS TEXT) WHERE text = 'placeholder'",
        "UPDATE StringIds SET value = CAST(x'FFFE' AS TEXT) WHERE value = 'environment'",
    )
    scrub(path)
    assert query(path, "SELECT CAST(text AS BLOB) FROM NVTX_EVENTS WHERE text LIKE '~%'") == [(b"~/\xff",)]


def test_text_in_place_of_numbers_goes(tmp_path: Path) -> None:
    path = hostile(tmp_path)
    execute(
        path,
        "CREATE TABLE TARGET_INFO_SESSION_START_TIME AS SELECT 'secret time' AS utcEpochNs",
        "UPDATE NVTX_EVENTS SET \"domainId\" = 'secret domain', color = 'secret color' WHERE \"eventType\" <> 75",
        'INSERT INTO NVTX_EVENTS (start, "eventType", "globalTid", "domainId") VALUES (0, 75, \'secret tid\', 9)',
    )
    assert b"secret tid" in path.read_bytes()
    scrub(path)
    assert not re.search(rb"secret (time|domain|color|tid)", path.read_bytes())


def test_a_view_in_place_of_a_table_is_left_out(tmp_path: Path) -> None:
    path = hostile(tmp_path)
    execute(
        path,
        'CREATE VIEW PROFILER_OVERHEAD AS SELECT start, "end", "globalTid", "nameId", \'secret view\' AS returnValue '
        "FROM CUPTI_ACTIVITY_KIND_RUNTIME LIMIT 1",
    )
    scrub(path)
    assert "PROFILER_OVERHEAD" not in tables(path)
    assert b"secret view" not in path.read_bytes()


def test_a_write_ahead_log_is_played_back_and_leaves_no_file(tmp_path: Path) -> None:
    path = hostile(tmp_path)
    execute(path, "PRAGMA journal_mode = WAL")
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO ProcessStreams VALUES (2, 'late secret')")
    connection.commit()
    log = Path(f"{path}-wal").read_bytes()
    connection.close()
    Path(f"{path}-wal").write_bytes(log)
    scrub(path)
    assert list(tmp_path.iterdir()) == [path]
    assert b"late secret" not in path.read_bytes()


def test_a_link_is_followed(tmp_path: Path) -> None:
    path = hostile(tmp_path)
    link = tmp_path / "link.sqlite"
    link.symlink_to(path)
    scrub(link)
    assert link.is_symlink()
    assert b"node17" not in path.read_bytes()


def test_odd_file_names(tmp_path: Path) -> None:
    path = hostile(tmp_path).rename(tmp_path / "a b%20?#'\"ü.sqlite")
    scrub(path)
    assert b"node17" not in path.read_bytes()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "content", [b"", b"no database at all, but long enough to be one", b"SQLite format 3\0" + bytes(4)]
)
def test_what_is_no_database_is_refused_in_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    path.write_bytes(content)
    with pytest.raises(TraceError) as refused:
        scrub(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert path.read_bytes() == content


def test_another_programs_database_is_refused_and_untouched(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    execute(path, "CREATE TABLE passwords (text TEXT)")
    before = path.read_bytes()
    with pytest.raises(TraceError, match=r"no export of Nsight Systems"):
        scrub(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = hostile(tmp_path)
    execute(path, "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET \"nameId\" = 'text' WHERE rowid = 1")
    before = path.read_bytes()
    with pytest.raises(TraceError, match=r"cannot be scrubbed \(NOT NULL"):
        scrub(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_an_export_without_cuda_calls_keeps_no_process(tmp_path: Path) -> None:
    b = TraceBuilder()
    b.process(100, "/usr/bin/payroll").thread(100, "payroll").nvtx("payroll", 0, 10)
    path = written(b, tmp_path)
    scrub(path)
    assert b"payroll" not in path.read_bytes()
