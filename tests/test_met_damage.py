"""Damage of any kind: what the fuzzer (scripts/fuzz.py) found, each by itself, and a part of the fuzzer's runs."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tracemalloc
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from attribution import attributed
from test_attribution_oracle import compare
from trace_builder import TraceBuilder

import nsys_sync
from nsys_sync import model
from nsys_sync.errors import TraceError
from nsys_sync.render.json_report import render_json
from nsys_sync.saved import read_analysis
from nsys_sync.trace import sqlite_file, tables

RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
FUZZER = Path(__file__).resolve().parents[1] / "scripts" / "fuzz.py"
met = pytest.mark.met


def one_wait(wait: int = 20) -> TraceBuilder:
    """A kernel, a wait for it, and a kernel launched only then: `wait` ns of stall at most."""
    b = TraceBuilder()
    t = b.process(100).thread(100)
    t.launch(0, 2, gpu=(2, 12))
    t.stream_sync(4, 4 + wait)
    t.launch(5 + wait, 6 + wait, gpu=(7 + wait, 9 + wait))
    return b


def changed(path: Path, *statements: str | tuple[str, Sequence[object]]) -> Path:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(*((statement,) if isinstance(statement, str) else statement))
    return path


def loose(table: str) -> tuple[str, str, str]:
    """Statements after which the table takes any value."""
    return (
        f"CREATE TABLE copied AS SELECT * FROM {table}",
        f"DROP TABLE {table}",
        f"ALTER TABLE copied RENAME TO {table}",
    )


def operations(analysis: model.Analysis) -> list[tuple[int, int, str]]:
    return [(row["start_ns"], row["end_ns"], row["api"]) for row in analysis.operations.to_pylist()]


def refusal(path: Path) -> str:
    with pytest.raises(TraceError) as caught:
        nsys_sync.analyze(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


# ----------------------------------------------------------------------------------------------------- calls and joins


@met("5 calls", "a call inside another, with one between them that never ended", "it belongs to the one that ended")
def test_a_call_is_in_none_that_never_ended(tmp_path: Path) -> None:
    b = TraceBuilder()
    t = b.process(100).thread(100)
    t.launch(0, 1, gpu=(1, 5))
    t.api("cudaGraphInstantiate_v10000", 10, 100)
    t.api("cudaEventRecord_v3020", 20, None)
    t.launch(30, 40, gpu=(50, 60))
    path = b.write(tmp_path / "trace.sqlite")
    compare(path)
    device = nsys_sync.analyze(path).traces[0].devices[0]
    # Begun at 10, after the gap did: the host was late. An operation there is not.
    assert (device.host_late_gaps, device.host_bound_ns) == (1, 45)


@met("5 calls", "calls of no length, with one between them that never ended", "rows that are alike are one call")
def test_alike_rows_around_an_unfinished_one_are_one_call(tmp_path: Path) -> None:
    b = one_wait()
    t = b.processes[0].thread(100)
    t.stream_sync(40, 40, correlation=70, row=None)
    t.stream_sync(40, None, correlation=71)
    t.stream_sync(40, 40, correlation=70, row=None)
    path = b.write(tmp_path / "trace.sqlite")
    compare(path)
    assert operations(nsys_sync.analyze(path)) == [
        (4, 24, "cudaStreamSynchronize"),
        (40, 40, "cudaStreamSynchronize"),
    ]


@met("4 ids and devices", "a correlation id of copies in two streams", "the wait for either is the copy's")
def test_a_copy_call_of_two_streams_and_its_synchronize_are_one(tmp_path: Path) -> None:
    b = TraceBuilder()
    t = b.process(100).thread(100)
    t.copy(0, 2, gpu=(3, 5), stream=13, correlation=7)
    b.processes[0].gpu_row("MEMCPY", (4, 9), stream=7, correlation=7, copyKind=2, srcKind=2, dstKind=1)
    t.stream_sync(3, 10, stream=7)
    path = b.write(tmp_path / "trace.sqlite")
    compare(path)
    assert operations(nsys_sync.analyze(path)) == [(0, 10, "cudaMemcpyAsync + cudaStreamSynchronize")]


@met("5 calls", "a blocking copy traced inside a query", "it is an operation: a query only asks")
def test_a_call_inside_a_query_stands_by_itself(tmp_path: Path) -> None:
    b = TraceBuilder()
    t = b.process(100).thread(100)
    t.launch(0, 2, gpu=(2, 12))
    t.api("cudaStreamQuery_v3020", 3, 30)
    t.copy(5, 20, gpu=(12, 18), dst="pageable")
    path = b.write(tmp_path / "trace.sqlite")
    compare(path)
    assert operations(nsys_sync.analyze(path)) == [(5, 20, "cudaMemcpyAsync")]


@met("4 ids and devices", "two strings with one id", "the last counts, for every reader of names")
@pytest.mark.parametrize("last", ["cudaStreamSynchronize_v3020", "cudaStreamQuery_v3020", "something else"])
def test_of_two_strings_with_one_id_the_last_counts(last: str, tmp_path: Path) -> None:
    path = one_wait().write(tmp_path / "trace.sqlite")
    of_sync = "(SELECT id FROM StringIds WHERE value LIKE 'cudaStreamSynchronize%')"
    changed(
        path,
        *loose("StringIds"),
        f"INSERT INTO StringIds SELECT id, 'cudaEventQuery_v3020' FROM StringIds WHERE id = {of_sync}",
        (f"INSERT INTO StringIds SELECT id, ? FROM StringIds WHERE id = {of_sync} LIMIT 1", [last]),
    )
    compare(path)
    assert len(operations(nsys_sync.analyze(path))) == (1 if "Synchronize" in last else 0)


@met("9 hostile names and size", "2,000 strings that look like queries", "no limit of SQLite's is met")
def test_many_names_of_queries(tmp_path: Path) -> None:
    path = one_wait().write(tmp_path / "trace.sqlite")
    with closing(sqlite3.connect(path)) as connection, connection:
        names = [(1000 + number, f"cublasGet{chr(65 + number % 26)}{number}") for number in range(2000)]
        connection.executemany("INSERT INTO StringIds VALUES (?, ?)", names)
    assert operations(nsys_sync.analyze(path)) == [(4, 24, "cudaStreamSynchronize")]


@met("2 missing parts", "no names of CUDA calls", "refused: which of them wait is not known")
@pytest.mark.parametrize("statement", ["DELETE FROM StringIds", "DROP TABLE StringIds"])
def test_calls_without_names(statement: str, tmp_path: Path) -> None:
    path = changed(one_wait().write(tmp_path / "trace.sqlite"), statement)
    assert "does not name its CUDA calls" in refusal(path)


@met("2 missing parts", "some CUDA calls without a name", "analysed, and said: waits cannot be told from them")
def test_some_calls_without_names(tmp_path: Path) -> None:
    path = one_wait().write(tmp_path / "trace.sqlite")
    changed(path, "DELETE FROM StringIds WHERE value LIKE 'cudaStreamSynchronize%'")
    compare(path)
    warnings = nsys_sync.analyze(path).traces[0].coverage.warnings
    assert any("1 of 3 CUDA calls have no name" in one for one in warnings)


@met(
    "4 ids and devices",
    "one correlation id on launches of two threads that begin at once",
    "the first to end, in any order",
)
@pytest.mark.parametrize("shuffle", range(4))
@pytest.mark.parametrize("at_once", [1, 1 << 19])
def test_launches_with_one_id_that_begin_at_once(
    at_once: int, shuffle: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thread 101's launch ends first, so the kernel is its, and thread 100, which launched nothing after its wait, has
    handed over: the gap from 1 to 11 is charged with the wait's 3 ns."""
    monkeypatch.setattr(tables, "ROWS_AT_ONCE", at_once)
    b = TraceBuilder()
    p = b.process(100)
    main, other = p.thread(100), p.thread(101)
    main.launch(-9, -8, gpu=(0, 1))
    main.stream_sync(3, 6)
    main.launch(10, 12, correlation=50)
    other.launch(10, 11, gpu=(11, 12), correlation=50)
    other.api("cudaLaunchKernel_v7000", 10, None, correlation=50)
    path = b.write(tmp_path / "trace.sqlite", shuffle=shuffle)
    compare(path)
    assert nsys_sync.analyze(path).stall_ns == 3


# ------------------------------------------------------------------------------------------------------ values and ids


@met("10 damage", "a process id that is text or a fraction", "refused, not taken for process 0")
@pytest.mark.parametrize("value", ["'x17'", "1.5", "x'00'"])
def test_a_process_that_is_no_number(value: str, tmp_path: Path) -> None:
    path = one_wait().write(tmp_path / "trace.sqlite")
    changed(path, *loose(KERNEL), f"UPDATE {KERNEL} SET globalPid = {value}")
    assert "something other than whole numbers" in refusal(path)


@met("10 damage", "a launch whose return value is no number", "it is not taken for one that CUDA refused")
@pytest.mark.parametrize("value", ["x'00'", "'x'", "1.5"])
def test_a_return_value_that_is_no_number(value: str, tmp_path: Path) -> None:
    b = one_wait()
    b.processes[0].thread(100).launch(24, 25)
    path = b.write(tmp_path / "trace.sqlite")
    changed(path, *loose(RUNTIME), f"UPDATE {RUNTIME} SET returnValue = {value}")
    compare(path)
    (device,) = nsys_sync.analyze(path).traces[0].devices
    assert device.not_captured_ns == 3, "nothing is known from the launch without work to the next work"


@met("10 damage", "a column whose values change type after the first batch", "refused in one line")
def test_a_type_that_changes_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = one_wait().write(tmp_path / "trace.sqlite")
    changed(path, *loose(RUNTIME), f"UPDATE {RUNTIME} SET correlationId = 'x' WHERE rowid = 3")
    monkeypatch.setattr(sqlite_file, "ROWS_PER_BATCH", 1)
    assert "SQLite cannot read it" in refusal(path)


@met("10 damage", "a row numbered 2^62", "analysed as ever, with no memory taken for the rows between")
@pytest.mark.parametrize("table", [RUNTIME, KERNEL])
def test_a_far_row_number(table: str, tmp_path: Path) -> None:
    path = one_wait().write(tmp_path / "trace.sqlite")
    expected = operations(nsys_sync.analyze(path))
    changed(path, f"UPDATE {table} SET rowid = {2**62} WHERE rowid = 2")
    tracemalloc.start()
    found = operations(nsys_sync.analyze(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == expected
    assert peak < 100_000_000


@met("10 damage", "device and correlation ids of 64 bits", "analysed, and the JSON report reads back equal")
@pytest.mark.parametrize("number", [2**63 - 1, -(2**63)])
def test_ids_of_64_bits(number: int, tmp_path: Path) -> None:
    path = one_wait().write(tmp_path / "trace.sqlite")
    changed(path, f"UPDATE {KERNEL} SET deviceId = {number}", f"UPDATE {RUNTIME} SET correlationId = {2**63 - 1}")
    compare(path)
    analysis = nsys_sync.analyze(path)
    saved = tmp_path / "saved.json"
    saved.write_text(render_json(analysis), "utf-8")
    assert [device.id for device in read_analysis(saved).traces[0].devices] == [number]
    assert render_json(read_analysis(saved)) == saved.read_text("utf-8")


@met("3 files", "a saved report", "reading it takes memory for what it holds, not for what it might")
def test_reading_a_small_file_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "saved.json"
    path.write_text(render_json(nsys_sync.analyze(one_wait().write(tmp_path / "trace.sqlite"))), "utf-8")
    read_analysis(path)
    tracemalloc.start()
    read_analysis(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5_000_000


@met("7 times", "kernels years apart", "every nanosecond counted, none below zero")
def test_a_window_of_years(tmp_path: Path) -> None:
    b = one_wait()
    b.processes[0].gpu_row("KERNEL", (2**60, 2**60 + 5))
    path = b.write(tmp_path / "trace.sqlite")
    compare(path)
    (device,) = nsys_sync.analyze(path).traces[0].devices
    assert device.window_ns == 2**60 + 5 - 2
    parts = ("busy", "stall", "host_bound", "device_side", "profiler", "unknown")
    columns = [getattr(device.timeline, f"{part}_ns") for part in parts]
    assert min(map(min, columns)) >= 0
    assert sum(map(sum, columns)) == device.window_ns


@met("6 stacks", "Python lines beyond 2^31", "the line is not known; the rest of the stack stands")
def test_a_python_line_that_can_be_none(tmp_path: Path) -> None:
    b = TraceBuilder()
    t = b.process(100).thread(100)
    t.launch(0, 2, gpu=(2, 12))
    t.stream_sync(4, 24, python=[("train", "/home/me/train.py", 2**32 - 1), ("main", "/home/me/train.py", 3)])
    t.launch(25, 26, gpu=(27, 29))
    (site,) = nsys_sync.analyze(b.write(tmp_path / "trace.sqlite")).sites
    assert site.location.function == "train"
    assert site.location.line in (None, 0)


@met("1 versions and layouts", "columns of the added Python stacks in capitals", "found as ever")
def test_added_stacks_with_a_column_in_capitals(tmp_path: Path) -> None:
    b = TraceBuilder("3.7.2")
    t = b.process(100).thread(100)
    t.launch(0, 2, gpu=(2, 12))
    t.stream_sync(4, 24, python=[("train", "/home/me/train.py", 7)])
    t.launch(25, 26, gpu=(27, 29))
    path = b.write(tmp_path / "trace.sqlite")
    changed(path, "ALTER TABLE NSYS_SYNC_PYTHON_BACKTRACE RENAME COLUMN payload TO PAYLOAD")
    (site,) = nsys_sync.analyze(path).sites
    assert site.location.line == 7


@met("7 times", "a Python stack of the year 2172", "left out, as calls of that time are")
@pytest.mark.parametrize("moment", [2**62, 2**63 - 1, -(2**63)])
def test_a_stack_of_an_impossible_time(moment: int, tmp_path: Path) -> None:
    b = one_wait()
    b.processes[0].thread(100).python_stack(30, [("train", "/home/me/train.py", 7)])
    path = b.write(tmp_path / "trace.sqlite")
    changed(path, f"UPDATE NVTX_EVENTS SET start = {moment} WHERE binaryData IS NOT NULL")
    compare(path)
    analysis = nsys_sync.analyze(path)
    assert analysis.stall_ns == 15
    assert not any("lost" in one for one in analysis.traces[0].coverage.warnings)


@met("3 files", "a header that names WAL as the way to read or to write, but not both", "no file is written beside it")
@pytest.mark.parametrize("at", [18, 19])
def test_half_a_wal_header(at: int, tmp_path: Path) -> None:
    path = one_wait().write(tmp_path / "trace.sqlite")
    content = bytearray(path.read_bytes())
    content[at] = 2
    path.write_bytes(content)
    assert operations(nsys_sync.analyze(path)) == [(4, 24, "cudaStreamSynchronize")]
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


# --------------------------------------------------------------------------------------------------- the fuzzer itself


@met("10 damage", "100 real exports damaged at random", "accepted and right by the oracle, or refused in one line")
def test_a_small_part_of_the_fuzzer() -> None:
    command = [sys.executable, str(FUZZER), "--seed", "6", "--runs", "100", "--only", "[mp]*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 findings" in done.stdout


@met("10 damage", "a promise that is not kept", "the fuzzer says so, in one line that makes the run again")
def test_the_fuzzer_finds_what_is_wrong(tmp_path: Path) -> None:
    broken = tmp_path / "sitecustomize.py"
    broken.write_text(
        "import importlib.abc, sys\n"
        "class Finder(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'nsys_sync.saved':\n"
        "            raise RuntimeError('broken on purpose')\n"
        "sys.meta_path.insert(0, Finder())\n"
    )

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(FUZZER), "--seed", "6", "--runs", "4", "--only", "one_healthy*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "RuntimeError" in done.stdout
    assert "broken on purpose" in done.stdout


@pytest.mark.met(
    "10 damage", "a launch whose row with the callchain was cut off, and not CUPTI's", "its work is not called lost"
)
def test_a_launch_cut_off_in_one_of_its_rows(tmp_path: Path) -> None:
    trace = TraceBuilder()
    thread = trace.process(1).thread(1)
    call = thread.copy(0, 5, gpu=(2, 4), kind="HtoD", backtrace=True)
    trace.tables["CUPTI_ACTIVITY_KIND_RUNTIME"][-2]["end"] = None
    thread.launch(10, 15, gpu=(20, 30))
    thread.stream_sync(16, 35)
    path = trace.write(tmp_path / "trace.sqlite")
    assert call.start == 0 and attributed(path).lost.signs == ()
    compare(path)
