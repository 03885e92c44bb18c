"""Folders that `nsys export --type parquetdir` wrote: the same analysis as of the SQLite export, or a clear refusal."""

from __future__ import annotations

import json
import lzma
import os
import random
import shutil
import sqlite3
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import FIXTURES, Capture
from test_cli import COMMAND, refused, run, state
from test_export import real_report  # noqa: F401 (a fixture)

import nsys_sync
from nsys_sync.errors import NsysSyncError, OutputError, TraceError
from nsys_sync.nsys.find import find_nsys
from nsys_sync.nsys.parquet import INDEXES, TABLES, cached_conversion, convert
from nsys_sync.render.json_report import render_json
from nsys_sync.trace import schema
from nsys_sync.trace.sqlite_file import SqliteFile
from nsys_sync.trace.table_names import canonical

NSYSS_OWN = "nvtx_threads.schema-3.7.2"
UNSIGNED = frozenset(
    {"globalTid", "globalPid", "endGlobalTid", "contextId", "streamId", "nameId", "rangeId", "category", "domainId"}
    | {"demangledName", "shortName", "mangledName", "bytes", "copyKind", "graphNodeId", "originalIP", "pid"}
)
"""Columns that are UINT64 in nsys's Parquet files."""
BOOLEAN = frozenset({"unresolved", "isDiscrete", "isGreenContext"})
DAMAGES_PER_FILE = 3


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("test_cli.TIMEOUT_S", 120)


def silent(step: str, percent: int) -> None:
    pass


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of nsys's own folder, in a folder of its own."""
    place = tmp_path / "place" / "nvtx_threads_pqtdir"
    place.mkdir(parents=True)
    with tarfile.open(FIXTURES / f"{NSYSS_OWN}.pqtdir.tar.xz") as archive:
        for entry in archive:
            content = archive.extractfile(entry)
            assert content is not None
            (place / entry.name).write_bytes(content.read())
    return place


@pytest.fixture(scope="session")
def nsyss_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The SQLite export of the same report, by the same nsys: without Python stacks too."""
    path = tmp_path_factory.mktemp("sqlite") / "nvtx_threads.sqlite"
    path.write_bytes(lzma.decompress((FIXTURES / f"{NSYSS_OWN}.sqlite.xz").read_bytes()))
    return path


def write_folder(database: Path, folder: Path, *, rows_per_group: int = 300) -> Path:
    """Every table of an SQLite export as a Parquet file with the column types that nsys gives it."""
    folder.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(database)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            columns = connection.execute(f'PRAGMA table_info("{table}")').fetchall()
            rows = connection.execute(f'SELECT * FROM "{table}"').fetchall()
            fields = [
                pa.field(name, _nsyss_type(name, kind, [row[i] for row in rows]), not not_null)
                for i, name, kind, not_null, *_ in columns
            ]
            arrays = [
                pa.array([_as_nsys(row[i], field.type) for row in rows], field.type) for i, field in enumerate(fields)
            ]
            table_of_all = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
            path = folder / f"{table}.parquet"
            pq.write_table(table_of_all, path, row_group_size=rows_per_group, version="1.0", store_schema=False)
    return folder


def _nsyss_type(name: str, declared: str, values: Sequence[Any]) -> pa.DataType:
    if any(isinstance(value, bytes) for value in values):
        return pa.binary()
    if declared == "INTEGER":
        return pa.uint64() if name in UNSIGNED else pa.bool_() if name in BOOLEAN else pa.int64()
    return {"TEXT": pa.string(), "REAL": pa.float64()}.get(declared, pa.string())


def _as_nsys(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_boolean(kind):
        return bool(value)
    return value % 2**64 if pa.types.is_uint64(kind) else value


def analysis(trace: Path) -> Any:
    """All that is in the JSON report, the trace's name aside."""
    text = render_json(nsys_sync.analyze(trace, no_source=True))
    return json.loads(text.replace(json.dumps(trace.name), '"the trace"'))


def rows(database: Path, table: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(database)) as connection:
        connection.text_factory = bytes
        return connection.execute(f'SELECT * FROM "{table}"').fetchall()


def replace_table(folder: Path, table: str, **columns: pa.Array) -> None:
    """Some columns of a table written anew, with another type or other values."""
    path = folder / f"{table}.parquet"
    found = pq.read_table(path)
    for name, values in columns.items():
        found = found.set_column(found.schema.get_field_index(name), name, values)
    pq.write_table(found, path)


# ---- the same analysis


@pytest.mark.met("3 files", "a folder that nsys export --type parquetdir wrote", "the analysis of the SQLite export")
def test_nsyss_own_folder_gives_the_analysis_of_its_sqlite_export(folder: Path, nsyss_sqlite: Path) -> None:
    ours = analysis(folder)
    assert len(ours["sites"]) == 8 and ours["window_ns"] == 137_040_718
    expected = analysis(nsyss_sqlite)
    # From META_DATA_CAPTURE, which nsys 2023.4.4 leaves out of Parquet folders.
    assert expected["traces"][0]["host_work"].pop("sampling_period_ns") == 1_000_000
    assert ours["traces"][0]["host_work"].pop("sampling_period_ns") is None
    unsaid = [
        line for line in ours["traces"][0]["coverage"]["not_captured"] if line.startswith("the capture's options")
    ]
    ours["traces"][0]["coverage"]["not_captured"].remove(*unsaid)
    assert ours == expected
    (missing,) = [line for line in ours["traces"][0]["coverage"]["not_captured"] if line.startswith("Python stacks")]
    assert "name the report (.nsys-rep) itself" in missing


@pytest.mark.met("3 files", "Parquet folders of many captures, old and new", "the analysis of their SQLite exports")
@pytest.mark.parametrize(
    "name",
    [
        "gpu_bound.schema-3.20.3",
        "graph_node.schema-3.7.2",
        "graph_whole.schema-3.20.3",
        "memcpy_sync_all.schema-3.7.2",
        "procs.schema-3.20.3",
        "two_gpus_visible.schema-3.20.3",
        "nvtx_threads.schema-3.7.2",
    ],
)
def test_a_folder_of_the_same_tables_gives_the_same_analysis(capture: Capture, tmp_path: Path, name: str) -> None:
    database = capture(name)
    from_folder, from_sqlite = analysis(write_folder(database, tmp_path / "f_pqtdir")), analysis(database)
    assert from_folder == from_sqlite
    assert from_folder["frames"], "the Python stacks are among the binary payloads"


@pytest.mark.met(
    "3 files", "a Parquet folder made by the nsys that is installed", "its tables as nsys's SQLite has them"
)
@pytest.mark.parametrize("lazy", ["true", "false"])
def test_the_installed_nsys_writes_the_same_tables_both_ways(
    real_report: Path,  # noqa: F811
    tmp_path: Path,
    lazy: str,
) -> None:
    nsys = find_nsys()
    for kind, name in (("sqlite", "t.sqlite"), ("parquetdir", "t_pqtdir")):
        command = [str(nsys.path), "export", f"--type={kind}", f"--lazy={lazy}", f"--output={tmp_path / name}"]
        subprocess.run([*command, str(real_report)], check=True, capture_output=True)
    convert(tmp_path / "t_pqtdir", tmp_path / "made.sqlite", silent)
    with closing(SqliteFile(tmp_path / "made.sqlite")) as made, closing(SqliteFile(tmp_path / "t.sqlite")) as nsyss:
        wanted = {canonical(table) for table in TABLES} - {canonical(schema.EXPORT_METADATA)}
        expected = {table for table in nsyss.tables if canonical(table) in wanted}
        # 2023.4.4 leaves it out of Parquet folders.
        assert expected - set(made.tables) <= {schema.CAPTURE_METADATA}
    assert {"StringIds", "NVTX_EVENTS", "PROCESSES", "ThreadNames"} <= expected
    for table in expected - {schema.CAPTURE_METADATA}:
        assert rows(tmp_path / "made.sqlite", table) == rows(tmp_path / "t.sqlite", table), table


def test_every_table_that_an_analysis_asks_for_is_taken(capture: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[str] = set()
    for method in ("has", "source"):
        real = getattr(SqliteFile, method)

        def spy(file: SqliteFile, table: str, *columns: str, real: Any = real) -> Any:
            asked.add(table)
            return real(file, table, *columns)

        monkeypatch.setattr(SqliteFile, method, spy)
    for name in ("nvtx_threads.schema-3.7.2", "two_gpus.schema-3.20.3"):
        nsys_sync.analyze(capture(name), no_source=True)
    assert {"StringIds", "TARGET_INFO_GPU", "CUDA_CALLCHAINS", "DIAGNOSTIC_EVENT"} <= asked
    assert {canonical(table) for table in asked} <= {canonical(table) for table in TABLES}
    assert set(INDEXES) <= set(TABLES)


@pytest.mark.met("3 files", "all commands with a Parquet folder: report, diff, check, export", "as with any trace")
def test_every_command_takes_a_folder(folder: Path, nsyss_sqlite: Path) -> None:
    place = folder.parent
    shutil.copyfile(nsyss_sqlite, place / "t.sqlite")
    before = state(folder)
    for command, status in (
        (["report", folder.name, "t.sqlite", "-f", "markdown"], 0),
        (["diff", folder.name, "t.sqlite", "-o", "diff.json"], 0),
        (["check", f"{folder.name}/", "--max-stall", "1%"], 1),
        (["export", folder.name], 0),
        (["export", folder.name, "--scrub", "-o", "clean.sqlite"], 0),
    ):
        done = run(*command, cwd=place, command=(COMMAND,))
        assert done.returncode == status, done.stderr.decode()
    pairs = json.loads((place / "diff.json").read_text())["pairs"]
    assert len(pairs) == 8 and {pair["status"] for pair in pairs} == {"unchanged"}
    for made in ("nvtx_threads_pqtdir.sqlite", "clean.sqlite"):
        assert analysis(place / made) == analysis(folder)
    assert (place / "nvtx_threads_pqtdir-and-1-more.sync.md").exists()
    assert state(folder) == before


@pytest.mark.met(
    "3 files", "a Parquet folder named `.`, as the current folder", "read; the report has the folder's name"
)
def test_the_current_folder(folder: Path) -> None:
    done = run(".", "--format", "html", cwd=folder)
    assert done.returncode == 0, done.stderr.decode()
    assert (folder / "nvtx_threads_pqtdir.sync.html").exists()
    assert (folder.parent / ".nsys-sync" / "nvtx_threads_pqtdir.sqlite").exists()


# ---- column types


@pytest.mark.met("3 files", "Parquet numbers of 2^63 and above", "the same 64 bits as in nsys's SQLite export")
def test_unsigned_numbers_wrap_as_in_nsyss_sqlite(folder: Path, tmp_path: Path) -> None:
    count = pq.read_metadata(folder / "CUPTI_ACTIVITY_KIND_MEMSET.parquet").num_rows
    high = pa.array([2**64 - 1, 2**63, 2**63 - 1, None, *[7] * (count - 4)], pa.uint64())
    replace_table(folder, "CUPTI_ACTIVITY_KIND_MEMSET", globalPid=high)
    convert(folder, tmp_path / "made.sqlite", silent)
    with closing(sqlite3.connect(tmp_path / "made.sqlite")) as made:
        found = made.execute("SELECT globalPid FROM CUPTI_ACTIVITY_KIND_MEMSET").fetchall()
    assert [value for (value,) in found][:5] == [-1, -(2**63), 2**63 - 1, None, 7]


@pytest.mark.met(
    "3 files", "a Parquet folder that another program wrote again, with its own column types", "the same analysis"
)
def test_what_other_writers_make_of_the_types(folder: Path) -> None:
    """As pandas, Polars and Spark do: categories, large strings, decimals, timestamps, narrow numbers, lists."""
    expected = analysis(folder)
    for table in ("PROCESSES", "StringIds", "META_DATA_EXPORT"):
        columns = pq.read_table(folder / f"{table}.parquet")
        text = "value" if "value" in columns.schema.names else "name"
        replace_table(folder, table, **{text: columns[text].combine_chunks().dictionary_encode()})
    runtime = pq.read_table(folder / "CUPTI_ACTIVITY_KIND_RUNTIME.parquet")
    replace_table(
        folder,
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        start=runtime["start"].cast(pa.timestamp("ns")),
        end=runtime["end"].cast(pa.duration("ns")),
        correlationId=runtime["correlationId"].cast(pa.uint32()),
        nameId=pa.array([Decimal(value) for value in runtime["nameId"].to_pylist()], pa.decimal128(20, 0)),
        returnValue=pa.nulls(len(runtime)),
        eventClass=pa.array([[value] for value in runtime["eventClass"].to_pylist()], pa.list_(pa.int64())),
    )
    kernel = pq.read_table(folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet")
    pq.write_table(
        kernel.select(kernel.schema.names[::-1]).append_column("added later", pa.array(["x"] * len(kernel))),
        folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet",
        compression="zstd",
    )
    nvtx = pq.read_table(folder / "NVTX_EVENTS.parquet")
    replace_table(folder, "NVTX_EVENTS", text=nvtx["text"].cast(pa.large_string()))
    assert analysis(folder) == expected


@pytest.mark.met("3 files", "a Parquet folder with `_V2` tables and lower-case names", "the same analysis")
def test_other_names_of_tables(folder: Path) -> None:
    expected = analysis(folder)
    shutil.rmtree(folder.parent / ".nsys-sync")
    for old, new in (("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_KERNEL_V2"), ("StringIds", "stringids")):
        (folder / f"{old}.parquet").rename(folder / f"{new}.parquet")
    assert analysis(folder) == expected


@pytest.mark.met("3 files", "a Parquet folder with names that are no UTF-8", "read, the broken letters replaced")
def test_text_that_is_no_utf8(folder: Path) -> None:
    names = pq.read_table(folder / "StringIds.parquet")
    cut = [value.encode() for value in names["value"].to_pylist()]
    cut = [value + b"\xc3" if value.startswith(b"python") else value for value in cut]
    replace_table(folder, "StringIds", value=pa.array(cut, pa.binary()).view(pa.string()))
    assert len(analysis(folder)["sites"]) == 8


# ---- the cache


@pytest.mark.met("3 files", "a Parquet folder that changed since it was read", "read again, never from the cache")
@pytest.mark.parametrize("change", ["a file", "a file of the same size", "a file less", "a file more"])
def test_the_cache_is_used_again_and_only_then(folder: Path, change: str) -> None:
    made = cached_conversion(folder, silent)
    assert made == folder.parent / ".nsys-sync" / "nvtx_threads_pqtdir.sqlite"
    first = made.stat().st_ino
    assert cached_conversion(folder, silent).stat().st_ino == first
    nvtx, memset = folder / "NVTX_EVENTS.parquet", folder / "CUPTI_ACTIVITY_KIND_MEMSET.parquet"
    if change == "a file":
        replace_table(folder, "NVTX_EVENTS")
    elif change == "a file of the same size":
        os.utime(nvtx, ns=(0, 12345))  # older than before: newer is not what is asked
    elif change == "a file less":
        memset.unlink()
    else:
        shutil.copy(memset, folder / "CUPTI_ACTIVITY_KIND_MEMSET_V2.parquet")
    assert cached_conversion(folder, silent).stat().st_ino != first


def test_a_damaged_cache_is_never_trusted(folder: Path) -> None:
    made = cached_conversion(folder, silent)
    content = made.read_bytes()
    made.write_bytes(content[:5000] + bytes(4096) + content[9096:])
    assert cached_conversion(folder, silent).read_bytes() == content


@pytest.mark.met(
    "3 files", "a Parquet folder where nothing can be written", "the export made of it lies in the user's cache"
)
def test_a_read_only_place_uses_the_users_cache(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (folder.parent / ".nsys-sync").write_text("in the way")  # root can write into any folder
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = cached_conversion(folder, silent)
    assert made.parent == tmp_path / "cache" / "nsys-sync"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder.parent / ".nsys-sync"))
    with pytest.raises(OutputError, match=r"nsys-sync export nvtx_threads_pqtdir -o FILE\.sqlite"):
        cached_conversion(folder, silent)


def test_what_is_made_is_as_private_as_the_folder(folder: Path) -> None:
    folder.chmod(0o755)
    (folder / "NVTX_EVENTS.parquet").chmod(0o600)
    made = cached_conversion(folder, silent)
    assert [path.stat().st_mode & 0o777 for path in (made, made.with_suffix(".json"))] == [0o600, 0o600]


@pytest.mark.met("3 files", "a Parquet folder behind a link, or named with spaces, Unicode, quotes, `?` or `%`", "read")
@pytest.mark.parametrize(
    "name", ["a link", "sp ace", "ünïcode 語", "what?mode=ro", "100%25 #1", 'it\'s "quoted"', "-x;"]
)
def test_odd_names(folder: Path, name: str) -> None:
    other = folder.parent / name
    if name == "a link":
        other.symlink_to(folder, target_is_directory=True)
    else:
        folder.rename(other)
    done = run("--format", "json", "-o", "-", "--", name, cwd=folder.parent)
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout)["traces"][0]["name"] == name
    assert (folder.parent / ".nsys-sync" / f"{name}.sqlite").exists()


# ---- refusals


def empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def only(*names: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        empty(folder)
        for name in names:
            (folder / name).write_bytes(b"PAR1 and more PAR1")

    return change


def arrow(folder: Path) -> None:
    for path in folder.iterdir():
        path.rename(path.with_suffix(".arrow"))


def without(table: str) -> Callable[[Path], None]:
    return lambda folder: (folder / f"{table}.parquet").unlink()


def content(table: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        path = folder / f"{table}.parquet"
        path.write_bytes(change(path.read_bytes()))

    return write


def swapped(table: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / f"{table}.parquet"
        path.unlink()
        make(path)

    return change


def two_of_one_name(folder: Path) -> None:
    shutil.copy(folder / "StringIds.parquet", folder / "STRINGIDS.parquet")


def floats(folder: Path) -> None:
    found = pq.read_table(folder / "CUPTI_ACTIVITY_KIND_RUNTIME.parquet")
    replace_table(folder, "CUPTI_ACTIVITY_KIND_RUNTIME", start=found["start"].cast(pa.float64(), safe=False))


RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
AGAIN = "nsys-sync export --force -o nvtx_threads.sqlite nvtx_threads.nsys-rep"
REFUSED: dict[str, tuple[Callable[[Path], None], Sequence[str]]] = {
    "an empty folder": (empty, ["nvtx_threads_pqtdir: is a folder without files", "--type parquetdir"]),
    "a folder of other files": (only("notes.txt", "t.csv"), ["is a folder without tables of Nsight", ".nsys-rep"]),
    "a folder of other Parquet files": (only("customers.parquet"), ["is a folder without tables of Nsight"]),
    "a folder of Arrow files (--type arrowdir)": (arrow, ["is a folder of Arrow files", AGAIN]),
    "a Parquet folder without StringIds": (without("StringIds"), ["has no StringIds.parquet", "whole folder", AGAIN]),
    "a Parquet folder without CUDA events": (
        lambda folder: [path.unlink() for path in folder.glob("CUPTI_*")] and None,
        ["no CUDA activity was captured"],
    ),
    "a Parquet folder without CUDA calls": (without(RUNTIME), ["has GPU activity but no CUDA API calls"]),
    "a file of 0 bytes in a Parquet folder": (
        content(RUNTIME, lambda old: b""),
        [f"nvtx_threads_pqtdir/{RUNTIME}.parquet: is empty (0 bytes)", AGAIN],
    ),
    "a file of zeros in a Parquet folder": (
        content(RUNTIME, lambda old: bytes(len(old))),
        [f"{RUNTIME}.parquet: begins with zeros"],
    ),
    "a file in a Parquet folder that is still being written": (
        content(RUNTIME, lambda old: old[:30_000]),
        [f"{RUNTIME}.parquet: is cut off, or its export is not finished"],
    ),
    "a file in a Parquet folder of which the disk took a part": (
        content(RUNTIME, lambda old: old[:8] + bytes(len(old) - 4000) + old[-3992:]),
        [f"{RUNTIME}.parquet: is damaged"],
    ),
    "a file in a Parquet folder whose end is damaged": (
        content("StringIds", lambda old: old[:-600] + bytes(592) + old[-8:]),
        ["StringIds.parquet: is damaged"],
    ),
    "an unfinished file of a table that is not read": (
        content("TARGET_INFO_CUDA_STREAM", lambda old: b"PAR1"),
        ["TARGET_INFO_CUDA_STREAM.parquet: is cut off, or its export is not finished"],
    ),
    "text under a Parquet file's name": (
        content(RUNTIME, lambda old: b"start,end\n1,2\n"),
        [f"{RUNTIME}.parquet: is no Parquet file"],
    ),
    "a folder under a Parquet file's name (as Spark writes)": (
        swapped(RUNTIME, Path.mkdir),
        [f"{RUNTIME}.parquet: is no file"],
    ),
    "a pipe under a Parquet file's name": (swapped(RUNTIME, os.mkfifo), [f"{RUNTIME}.parquet: is no file"]),
    "a dangling link in a Parquet folder": (
        swapped(RUNTIME, lambda path: path.symlink_to("gone")),
        [f"{RUNTIME}.parquet: cannot be read (No such file or directory)"],
    ),
    "two files of one table, by case": (two_of_one_name, ["StringIds.parquet: is damaged", "already exists"]),
    "a Parquet folder whose times are no whole numbers": (floats, ["holds something other than whole numbers"]),
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.met("3 files", case, "refused, in one line")) for case in REFUSED]
)
def test_refusals(folder: Path, case: str) -> None:
    change, says = REFUSED[case]
    change(folder)
    before = state(folder)
    with pytest.raises(TraceError) as caught:
        nsys_sync.analyze(folder)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 700
    for part in says:
        assert part in message
    assert state(folder) == before
    assert not [path for path in (folder.parent / ".nsys-sync").glob("*") if "damaged" in message]


@pytest.mark.met("3 files", "a Parquet folder that this user may not read", "refused, in one line")
def test_a_folder_that_may_not_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", refuse)  # root can read any folder
    with pytest.raises(TraceError, match=r"the folder cannot be read \(Permission denied\).*ls -ld"):
        nsys_sync.analyze(folder)


@pytest.mark.met("3 files", "a Parquet folder that is written while it is read", "refused, in one line")
def test_a_folder_that_changes_while_it_is_read(folder: Path) -> None:
    def touch(step: str, percent: int) -> None:
        os.utime(folder / "NVTX_EVENTS.parquet", ns=(0, percent))

    with pytest.raises(TraceError, match="changed while it was read"):
        cached_conversion(folder, touch)
    assert not (folder.parent / ".nsys-sync").exists()


def test_refusals_of_the_command_are_one_line(folder: Path) -> None:
    place = folder.parent
    (place / "none").mkdir()
    refused("none", cwd=place, says=["none: is a folder without files"])
    table = f"{folder.name}/StringIds.parquet"
    refused(folder.name, "-o", table, cwd=place, status=2, says=["would overwrite the trace itself"])
    export = ("export", folder.name, "--force", "-o", table)
    done = run(*export, cwd=place, command=(COMMAND,))
    assert done.returncode == 2 and b"would overwrite the trace itself" in done.stderr


@pytest.mark.met("10 damage", "a Parquet folder with damage anywhere in any file", "an answer, or refused in one line")
def test_damage_anywhere_is_an_error_or_no_harm(folder: Path, tmp_path: Path) -> None:
    """Zeros, garbage, a hole, or a cut, at any place: an answer or one of our errors, never anything else."""
    chance = random.Random(7)
    refusals = 0
    for path in sorted(folder.glob("*.parquet")):
        whole = path.read_bytes()
        if canonical(path.stem) not in {canonical(table) for table in TABLES}:
            continue
        for _ in range(DAMAGES_PER_FILE):
            at, length = chance.randrange(len(whole)), chance.choice((1, 8, 64, 1000))
            kind = chance.choice(("zeros", "garbage", "hole", "cut", "one bit"))
            damaged = bytearray(whole)
            if kind == "zeros":
                damaged[at : at + length] = bytes(min(length, len(whole) - at))
            elif kind == "garbage":
                damaged[at : at + length] = chance.randbytes(min(length, len(whole) - at))
            elif kind == "hole":
                del damaged[at : at + length]
            elif kind == "cut":
                del damaged[at:]
            else:
                damaged[at] ^= 1 << chance.randrange(8)
            path.write_bytes(damaged)
            said = ""
            try:
                convert(folder, tmp_path / "made.sqlite", silent)
            except NsysSyncError as error:
                refusals += 1
                said = str(error)
            assert "\n" not in said
        path.write_bytes(whole)
    assert refusals > 20
    convert(folder, tmp_path / "made.sqlite", silent)
    assert len(analysis(tmp_path / "made.sqlite")["sites"]) == 8
