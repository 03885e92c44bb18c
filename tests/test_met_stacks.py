"""Native and Python stacks as people's exports have them: missing, deep, unresolved, damaged, of another thread."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from conftest import Capture
from test_reading import chains, changed, facts, statements
from trace_builder import NVTX_MARK, SCHEMAS, NativeFrame, TraceBuilder, python_payload, wrapped_payload

from nsys_sync import analyze
from nsys_sync.model import Analysis
from nsys_sync.render.html import render_html
from nsys_sync.render.json_report import render_json
from nsys_sync.saved import read_analysis

KIND = "6 stacks"
CHAINS = "CUDA_CALLCHAINS"
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
CUDA: NativeFrame = ("cuStreamSynchronize", "/usr/lib/libcuda.so.550")


def with_stack(native: list[NativeFrame], schema: str = "3.20.3") -> TraceBuilder:
    b = TraceBuilder(schema)
    t = b.process(1).thread(1, "main")
    t.launch(0, 5, gpu=(10, 20))
    t.stream_sync(6, 25, native=native)
    return b


def located(found: Analysis) -> dict[str, int]:
    return dict(found.traces[0].coverage.located_by)


def symbols(found: Analysis) -> list[str]:
    return [found.native_frames[i].symbol for i in found.sites[0].native_stack]


def said(found: Analysis, topic: str) -> str:
    (text,) = [part for part in found.traces[0].coverage.not_captured if part.startswith(topic)]
    return text


# ---- native stacks


ABSENT = "the report says that there are none, and how to get them"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(f"DROP TABLE {CHAINS}", marks=pytest.mark.met(KIND, "callchains: no table", ABSENT)),
        pytest.param(f"DELETE FROM {CHAINS}", marks=pytest.mark.met(KIND, "callchains: a table without rows", ABSENT)),
        pytest.param(
            f"UPDATE {CALLS} SET callchainId = NULL",
            marks=pytest.mark.met(KIND, "callchains that no call refers to", ABSENT),
        ),
        pytest.param(
            f"ALTER TABLE {CALLS} DROP COLUMN callchainId",
            marks=pytest.mark.met(KIND, "calls without a column for callchains", ABSENT),
        ),
    ],
)
def test_no_callchains(change: str, tmp_path: Path) -> None:
    path = with_stack([CUDA, ("work", "/usr/lib/libx.so")]).write(tmp_path / "t.sqlite")
    found = analyze(changed(path, tmp_path, statements(change)))
    assert located(found) == {"thread": 1} and not found.native_frames
    assert "no native callchains were collected; capture with nsys profile" in said(found, "native stacks: ")


@pytest.mark.met(
    KIND, "a callchain without frames, among others", "that call is named by its thread; the others keep theirs"
)
@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_chain_without_frames(schema: str, tmp_path: Path) -> None:
    b = chains(schema, 0, 1 if schema == "3.7.2" else 0)
    middle = sorted({row["id"] for row in b.tables[CHAINS]})[1]
    b.tables[CHAINS] = [row for row in b.tables[CHAINS] if row["id"] != middle]
    found = analyze(b.write(tmp_path / "t.sqlite"))
    labels = sorted(site.location.label for site in found.sites)
    assert labels == ["thread python (pid 1, tid 1)", "work0", "work2"]


@pytest.mark.parametrize(
    "depth",
    [
        pytest.param(depth, marks=pytest.mark.met(KIND, f"callchains {depth} frames deep", "read whole, named as ever"))
        for depth in (500, 5_000)
    ],
)
def test_deep_callchains(depth: int, tmp_path: Path) -> None:
    frames = [CUDA, *((f"frame{i}", "/usr/lib/libx.so") for i in range(depth - 1))]
    found = analyze(with_stack(frames).write(tmp_path / "t.sqlite"))
    assert found.sites[0].location.label == "frame0"
    assert symbols(found) == [symbol for symbol, _ in frames]
    assert len(render_html(found)) < 200_000


@pytest.mark.met(
    KIND, "frames that were not resolved (0x7f12…)", "no operation is claimed, no address stands for a place"
)
@pytest.mark.parametrize("has_flag", [True, False])
def test_unresolved_frames(has_flag: bool, tmp_path: Path) -> None:
    """Addresses differ from run to run; where older exports have no column `unresolved`, the symbol shows it."""
    frames = [(f"0x7f12{i:04x}", "/usr/lib/libx.so") for i in range(30)]
    b = with_stack([CUDA, *frames])
    for row in b.tables[CHAINS]:
        row["unresolved"] = int(row["stackDepth"] > 0) if has_flag else None
    found = analyze(b.write(tmp_path / "t.sqlite"))
    (site,) = found.sites
    assert site.location.label == "thread main (pid 1, tid 1)" and site.kind.operation is None
    assert site.cause.id == "unknown"
    assert located(found) == {"thread": 1}


@pytest.mark.met(KIND, "resolved frames below unresolved ones", "the first resolved one outside CUDA's libraries")
def test_the_first_resolved_frame(tmp_path: Path) -> None:
    b = with_stack(
        [("0x7f00", "/usr/lib/libcuda.so.1"), ("0x7f11", "/opt/x.so"), ("[Unknown]", "/opt/x.so"), ("go", "/opt/x.so")]
    )
    found = analyze(b.write(tmp_path / "t.sqlite"))
    assert found.sites[0].location.label == "go"


@pytest.mark.parametrize(
    ("driver", "module"),
    [
        pytest.param(driver, module, marks=pytest.mark.met(KIND, f"modules {what}", "the frame outside CUDA is named"))
        for driver, module, what in (
            ("C:\\Windows\\System32\\nvcuda64.dll", "C:\\Program Files\\my app\\a.dll", "with Windows paths"),
            ("/usr/lib/libcuda.so.1", "/home/me/my libs/lib x.so", "with spaces in their paths"),
            ("/usr/lib/libcuda.so.1", "[vdso]", "without a path"),
            ("/opt/none.so", "/opt/x.so", "of which none is CUDA's"),
        )
    ],
)
def test_modules(driver: str, module: str, tmp_path: Path) -> None:
    inner = [] if "none" in driver else [("cuStreamSynchronize", driver)]
    found = analyze(with_stack([*inner, ("work", module), ("main", module)]).write(tmp_path / "t.sqlite"))
    assert found.sites[0].location.label == "work" and located(found) == {"native stack": 1}


def loose(connection: sqlite3.Connection) -> None:
    """The table of callchains without its constraints."""
    connection.execute(f"CREATE TABLE copied AS SELECT * FROM {CHAINS}")
    connection.execute(f"DROP TABLE {CHAINS}")
    connection.execute(f"ALTER TABLE copied RENAME TO {CHAINS}")


STACK = [CUDA, ("wait", "/opt/x.so"), ("work", "/opt/x.so"), ("main", "/opt/x.so")]
WHOLE = [symbol for symbol, _ in STACK]


@pytest.mark.parametrize(
    ("sql", "label", "expected"),
    [
        pytest.param(sql, label, expected, marks=pytest.mark.met(KIND, f"callchain frames {what}", answer))
        for sql, label, expected, what, answer in (
            (f"INSERT INTO {CHAINS} SELECT * FROM {CHAINS}", "wait", WHOLE, "written twice", "each once"),
            (
                f"INSERT INTO {CHAINS} SELECT * FROM {CHAINS} ORDER BY stackDepth DESC; DELETE FROM {CHAINS} "
                "WHERE rowid <= 4",
                "wait",
                WHOLE,
                "in another order",
                "by depth",
            ),
            (
                f"UPDATE {CHAINS} SET stackDepth = stackDepth * 7 - 9",
                "wait",
                WHOLE,
                "with gaps and negative depths",
                "by depth",
            ),
            (
                f"UPDATE {CHAINS} SET stackDepth = NULL WHERE stackDepth = 1",
                "work",
                [CUDA[0], "work", "main"],
                "without a depth",
                "left out: their place is not known",
            ),
            (
                f"UPDATE {CHAINS} SET symbol = NULL WHERE stackDepth = 1",
                "work",
                [CUDA[0], "[unknown]", "work", "main"],
                "without a symbol",
                "shown as unknown, and no site's name",
            ),
            (
                f"UPDATE {CHAINS} SET symbol = 999999 WHERE stackDepth = 1",
                "thread main (pid 1, tid 1)",
                [CUDA[0], "[unknown]", "work", "main"],
                "whose symbol's string is missing",
                "shown as unknown, and no site's name",
            ),
            (
                f"UPDATE {CHAINS} SET module = NULL",
                "thread main (pid 1, tid 1)",
                WHOLE,
                "without a module",
                "shown, but no site's name: they may be CUDA's own",
            ),
            (f"UPDATE {CHAINS} SET stackDepth = 'x' WHERE stackDepth = 3", "wait", WHOLE[:3], "of text", "left out"),
        )
    ],
)
def test_damaged_callchains(sql: str, label: str, expected: list[str], tmp_path: Path) -> None:
    path = with_stack(STACK).write(tmp_path / "t.sqlite")

    def change(connection: sqlite3.Connection) -> None:
        loose(connection)
        for statement in sql.split(";"):
            connection.execute(statement)

    found = analyze(changed(path, tmp_path, change))
    assert (found.sites[0].location.label, symbols(found)) == (label, expected)


@pytest.mark.met(KIND, "frames that name an operation, written twice or without a depth", "an answer, and no failure")
@pytest.mark.parametrize("column", ["stackDepth", "id", "symbol"])
def test_frames_that_rules_ask_for(column: str, capture: Capture, tmp_path: Path) -> None:
    def change(connection: sqlite3.Connection) -> None:
        loose(connection)
        connection.execute(f"UPDATE {CHAINS} SET {column} = NULL WHERE rowid % 3 = 0 AND id > 5 AND id < 60")

    path = capture("gpu_bound.schema-3.20.3")
    found = analyze(changed(path, tmp_path, change))
    assert found.stall_ns == analyze(path).stall_ns


@pytest.mark.met(KIND, "callchain ids with gaps", "the calls whose stack is missing have none; the others keep theirs")
@pytest.mark.parametrize("schema", SCHEMAS)
def test_ids_with_gaps(schema: str, tmp_path: Path) -> None:
    """Both ends are there, so it can be decided."""
    b = chains(schema, 0, 1 if schema == "3.7.2" else 0, calls=6, stacks=6)
    ids = sorted({row["id"] for row in b.tables[CHAINS]})
    b.tables[CHAINS] = [row for row in b.tables[CHAINS] if row["id"] not in ids[1:5]]
    found = analyze(b.write(tmp_path / "t.sqlite"))
    assert {site.location.label for site in found.sites} == {"work0", "work5", "thread python (pid 1, tid 1)"}


# ---- Python stacks


Frames = list[tuple[str, str, int]]


def with_python(frames: Frames, schema: str = "3.20.3") -> TraceBuilder:
    b = TraceBuilder(schema)
    t = b.process(1).thread(1, "main")
    t.launch(0, 5, gpu=(10, 20))
    t.stream_sync(6, 25, python=frames)
    return b


def set_payload(b: TraceBuilder, payload: bytes) -> None:
    for row in b.tables["NSYS_SYNC_PYTHON_BACKTRACE"]:
        row["payload"] = payload
    for row in b.tables["NVTX_EVENTS"]:
        if row["eventType"] == NVTX_MARK:
            row["binaryData"] = wrapped_payload(payload)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        pytest.param(line, shown, marks=pytest.mark.met(KIND, f"a Python frame with line {what}", answer))
        for line, shown, what, answer in (
            (0, None, "0", "the function without a line"),
            (2**31 - 1, 2**31 - 1, "2^31-1", "that line"),
            (2**31, None, "2^31", "the function without a line"),
            (2**32 - 1, None, "2^32-1 (Python's «none»)", "the function without a line"),
        )
    ],
)
@pytest.mark.parametrize("schema", SCHEMAS)
def test_lines(line: int, shown: int | None, schema: str, tmp_path: Path) -> None:
    path = with_python([("train", "/work/train.py", line)], schema).write(tmp_path / "t.sqlite")
    found = analyze(path)
    (site,) = found.sites
    assert (site.location.function, site.location.file, site.location.line) == ("train", "/work/train.py", shown)
    assert site.location.label == ("train.py train" if shown is None else f"train.py:{shown} train")
    (tmp_path / "saved.json").write_text(render_json(found))
    assert read_analysis(tmp_path / "saved.json").sites[0].location == site.location


@pytest.mark.met(KIND, "Python stacks whose function or file is no string of the export", "shown as unknown")
@pytest.mark.parametrize("number", [0, 999_999, 2**63 - 1, 2**64 - 1])
def test_string_ids_that_no_string_has(number: int, tmp_path: Path) -> None:
    b = with_python([("train", "/work/train.py", 7)])
    set_payload(b, python_payload([(number, number, 7)], source=2))
    found = analyze(b.write(tmp_path / "t.sqlite"))
    assert found.sites[0].location.label == "[unknown file]:7 [unknown function]"
    assert not found.frames[0].is_user_code


@pytest.mark.met(KIND, "a Python stack of 100,000 frames", "read whole; the reports stay small or plain JSON")
def test_a_hundred_thousand_frames(tmp_path: Path) -> None:
    frames = [(f"f{i % 50}", "/work/deep.py", i + 1) for i in range(100_000)]
    found = analyze(with_python(frames).write(tmp_path / "t.sqlite"))
    assert found.sites[0].location.label == "deep.py:1 f0" and len(found.sites[0].python_stack) == 100_000
    assert len(render_html(found)) < 200_000
    assert len(json.loads(render_json(found))["frames"]) == 100_000


@pytest.mark.met(KIND, "Python stacks of which every frame is a library's", "the innermost frame is the place")
def test_only_library_frames(tmp_path: Path) -> None:
    library = "/usr/lib/python3.12/site-packages/torch/_tensor.py"
    found = analyze(with_python([("item", library, 3), ("go", library, 9)]).write(tmp_path / "t.sqlite"))
    assert found.sites[0].location.label == "_tensor.py:3 item"


@pytest.mark.met(KIND, "a Python stack of another thread at the same time", "not claimed for the call")
@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_stack_of_another_thread(schema: str, tmp_path: Path) -> None:
    b = with_python([], schema)
    b.processes[0].thread(2, "other").python_stack(6, [("elsewhere", "/work/other.py", 1)])
    b.process(2).thread(1, "far").python_stack(6, [("far", "/work/far.py", 1)])
    found = analyze(b.write(tmp_path / "t.sqlite"))
    assert found.sites[0].location.label == "thread main (pid 1, tid 1)" and not found.sites[0].python_stack


@pytest.mark.met(KIND, "two Python stacks at one start and thread", "the deeper one, whatever the order of the rows")
@pytest.mark.parametrize("schema", SCHEMAS)
def test_two_stacks_of_one_call(schema: str, tmp_path: Path) -> None:
    b = with_python([("inner", "/work/a.py", 1), ("outer", "/work/a.py", 9)], schema)
    b.processes[0].thread(1, "main").python_stack(6, [("one", "/work/b.py", 2)])
    for seed in range(6):
        found = analyze(b.write(tmp_path / "t.sqlite", shuffle=seed))
        assert found.sites[0].location.label == "a.py:1 inner"


@pytest.mark.met(
    KIND, "Python samples only (no stacks of calls)", "the first sample inside the wait, and said to be one"
)
@pytest.mark.parametrize("schema", SCHEMAS)
def test_samples_only(schema: str, tmp_path: Path) -> None:
    b = with_python([], schema)
    t = b.processes[0].thread(1, "main")
    t.python_stack(3, [("before", "/work/a.py", 1)], source="sample")
    t.python_stack(15, [("during", "/work/a.py", 2)], source="sample")
    t.stream_sync(30, 31)
    found = analyze(b.write(tmp_path / "t.sqlite", shuffle=3))
    labels: Any = {site.location.label: dict(site.located_by) for site in found.sites}
    assert labels == {"a.py:2 during": {"python sample": 1}, "thread main (pid 1, tid 1)": {"thread": 1}}


@pytest.mark.met(KIND, "Python samples of several threads", "none is claimed for a wait: whose they are is not known")
def test_samples_of_several_threads(tmp_path: Path) -> None:
    b = with_python([])
    t = b.processes[0].thread(1)
    for function in ("one", "two"):
        t.python_stack(15, [(function, "/work/a.py", 2)], source="sample")
    assert located(analyze(b.write(tmp_path / "t.sqlite"))) == {"thread": 1}


@pytest.mark.met(KIND, "rows of all stacks in random order", "the same analysis")
@pytest.mark.parametrize("name", ["sync_heavy.schema-3.20.3", "nvtx_threads.schema-3.7.2"])
def test_stacks_in_random_order(name: str, capture: Capture, tmp_path: Path) -> None:
    def change(connection: sqlite3.Connection) -> None:
        for table in (CHAINS, "NVTX_EVENTS", "NSYS_SYNC_PYTHON_BACKTRACE"):
            if connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
                connection.execute(f'CREATE TABLE copied AS SELECT * FROM "{table}" ORDER BY random()')
                connection.execute(f'DROP TABLE "{table}"')
                connection.execute(f'ALTER TABLE copied RENAME TO "{table}"')

    path = capture(name)
    assert facts(analyze(changed(path, tmp_path, change))) == facts(analyze(path))
