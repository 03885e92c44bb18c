"""The real command, in a process of its own: every error, every output, and nothing left behind."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import lzma
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import Capture
from trace_builder import TraceBuilder

COMMAND = str(Path(sys.executable).with_name("nsys-sync"))
ALL_FORMATS = ("terminal", "html", "json", "csv", "parquet")
NOBODY = 65534
TIMEOUT_S = 15


def run(
    *arguments: str | bytes | Path,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    user: int | None = None,
    command: Sequence[str] = (COMMAND, "report"),
) -> subprocess.CompletedProcess[bytes]:
    environment = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ} | dict(env or {})
    return subprocess.run(
        [*command, *arguments], cwd=cwd, env=environment, user=user, capture_output=True, timeout=TIMEOUT_S
    )


def state(folder: Path) -> dict[str, tuple[int, str]]:
    """Every file below, with its time of change and contents."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mtime_ns,
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() and os.access(path, os.R_OK) else "",
        )
        for path in folder.rglob("*")
    }


def refused(*arguments: str | bytes | Path, cwd: Path, status: int = 1, says: Sequence[str] = ()) -> str:
    """Runs the command, which must fail with one clear line and change nothing. Returns the line."""
    before = state(cwd)
    done = run(*arguments, cwd=cwd)
    said = done.stderr.decode()
    assert done.returncode == status, said
    assert done.stdout == b""
    assert said.startswith("nsys-sync: error: ") and said.endswith("\n") and said.count("\n") == 1, said
    for part in says:
        assert part in said
    assert state(cwd) == before
    return said


def report_json(*arguments: str | bytes | Path, cwd: Path) -> dict[str, object]:
    done = run(*arguments, "--format", "json", "-o", "-", cwd=cwd)
    assert done.returncode == 0, done.stderr.decode()
    result: dict[str, object] = json.loads(done.stdout)
    return result


def steps_trace(steps: int = 3, **options: object) -> TraceBuilder:
    """Per step of 10 µs: kernel 100…3000 waited for by read_loss, kernel 4200…6000 waited for by wait_for_device.

    read_loss is charged 1200 ns after its wait and, with wait_for_device, all but 700 of the 4100 ns until the next.
    """
    trace = TraceBuilder(**options)  # type: ignore[arg-type]
    thread = trace.process(4242).thread(4242)
    for step in range(steps):
        at = 10_000 * step
        thread.launch(at, at + 50, gpu=(at + 100, at + 3000))
        thread.stream_sync(at + 200, at + 3000, python=[("read_loss", "/work/train.py", 10), ("main", "/work/m.py", 1)])
        thread.launch(at + 4000, at + 4100, gpu=(at + 4200, at + 6000))
        thread.device_sync(at + 4200, at + 6000, python=[("wait", "/work/train.py", 20), ("main", "/work/m.py", 2)])
        thread.nvtx(f"step {step}", at + 100, at + 6000)
    return trace


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one small trace, `t.sqlite`."""
    place = tmp_path / "place"
    place.mkdir()
    steps_trace().write(place / "t.sqlite")
    return place


@pytest.fixture(scope="module")
def small_trace(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return steps_trace().write(tmp_path_factory.mktemp("small") / "t.sqlite").read_bytes()


# ---- errors: input


def edit(*statements: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with sqlite3.connect(path) as connection:
            for statement in statements:
                connection.execute(statement)
        connection.close()

    return change


def other_database(path: Path) -> None:
    path.unlink()
    edit("CREATE TABLE customers (id INTEGER, name TEXT)", "INSERT INTO customers VALUES (1, 'x')")(path)


def swap_for_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def drop_all_of_cuda(path: Path) -> None:
    edit(*(f"DROP TABLE IF EXISTS CUPTI_ACTIVITY_KIND_{t}" for t in GPU_TABLES), "DROP TABLE CUDA_CALLCHAINS")(path)


GPU_TABLES = ("RUNTIME", "DRIVER", "KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE", "SYNCHRONIZATION")
BAD_INPUT: dict[str, tuple[Callable[[Path], object], Sequence[str]]] = {
    "no such file": (Path.unlink, ["t.sqlite: no such file", "nsys-sync export --force"]),
    "a folder": (swap_for_folder, ["t.sqlite: is a folder"]),
    "empty": (lambda path: path.write_bytes(b""), ["is empty (0 bytes)", "nsys-sync export"]),
    "only zeros": (lambda path: path.write_bytes(bytes(8192)), ["holds only zeros", "nsys-sync export"]),
    "text": (lambda path: path.write_text("start,end\n1,2\n"), ["is not an SQLite database", "nsys-sync export"]),
    "only the magic": (lambda path: path.write_bytes(b"SQLite format 3\0"), ["nsys-sync export"]),
    "only a header": (lambda path: path.write_bytes(path.read_bytes()[:100]), ["is cut off", "nsys-sync export"]),
    "another database": (other_database, ["no export of Nsight Systems", "nsys-sync export"]),
    "no CUDA events": (drop_all_of_cuda, ["no CUDA activity was captured", "--trace=cuda"]),
    "no GPU rows": (edit("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL"), ["has CUDA calls but no GPU activity"]),
    "GPU tables without rows": (edit("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL"), ["CUDA calls but no GPU activity"]),
    "no API calls": (edit("DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME"), ["no CUDA API calls"]),
    "column of calls missing": (
        edit("ALTER TABLE CUPTI_ACTIVITY_KIND_RUNTIME DROP COLUMN globalTid"),
        ["CUPTI_ACTIVITY_KIND_RUNTIME has no column globalTid", "nsys-sync export"],
    ),
    "ends of calls missing": (
        edit('ALTER TABLE CUPTI_ACTIVITY_KIND_RUNTIME DROP COLUMN "end"'),
        ["CUPTI_ACTIVITY_KIND_RUNTIME has no column end"],
    ),
    "ends of kernels missing": (
        edit('ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN "end"'),
        ["CUPTI_ACTIVITY_KIND_KERNEL has no column end"],
    ),
    "text in a number": (edit("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'soon'"), ["nsys-sync export"]),
}


BAD_FILES = {
    "no such file": "a file that is not there",
    "a folder": "a folder in the place of an export",
    "empty": "an export of 0 bytes",
    "only zeros": "an export of zeros",
    "text": "a text file",
    "only the magic": "the first 16 bytes of an export",
    "only a header": "the first 100 bytes of an export",
    "another database": "an SQLite database of another program",
}


def marked(case: str) -> pytest.MarkDecorator | tuple[()]:
    return pytest.mark.met("3 files", BAD_FILES[case], "refused, with what to type next") if case in BAD_FILES else ()


@pytest.mark.parametrize("case", [pytest.param(case, marks=marked(case)) for case in BAD_INPUT])
def test_input_that_cannot_be_analysed(case: str, folder: Path) -> None:
    spoil, says = BAD_INPUT[case]
    spoil(folder / "t.sqlite")
    refused("t.sqlite", cwd=folder, says=says)


def test_empty_tables_are_no_calls_either(folder: Path) -> None:
    """`nsys export --lazy=false` writes every table, empty ones too."""
    edit(*(f"DELETE FROM CUPTI_ACTIVITY_KIND_{table}" for table in ("RUNTIME", "KERNEL", "SYNCHRONIZATION")))(
        folder / "t.sqlite"
    )
    refused("t.sqlite", cwd=folder, says=["no CUDA activity was captured"])


@pytest.mark.met("3 files", "a file named .nsys-rep that is no report", "refused")
def test_what_is_named_like_a_report_and_is_none(folder: Path) -> None:
    (folder / "run.nsys-rep").write_bytes(b"QDSTRM" * 100)
    refused("run.nsys-rep", cwd=folder, says=["run.nsys-rep: is no report of Nsight Systems"])


@pytest.mark.met("3 files", "an export that this user may not read", "refused, with ls -l to type")
def test_unreadable_input(folder: Path) -> None:
    (folder / "t.sqlite").chmod(0)
    if os.access(folder / "t.sqlite", os.R_OK):
        pytest.skip("this user can read everything")
    refused("t.sqlite", cwd=folder, says=["cannot be read (Permission denied)"])


@pytest.mark.met("3 files", "/dev/zero, and a pipe that nobody writes to", "refused at once")
def test_input_that_would_never_end(folder: Path) -> None:
    """Nobody writes to the pipe: opening it would wait for ever."""
    os.mkfifo(folder / "pipe.sqlite")
    refused("/dev/zero", cwd=folder)
    refused("pipe.sqlite", cwd=folder)


def test_every_trace_is_checked(folder: Path) -> None:
    refused("t.sqlite", "u.sqlite", cwd=folder, says=["u.sqlite: no such file"])


@pytest.mark.met("3 files", "an export cut at any byte", "refused, and nothing left beside it")
def test_truncated_at_any_byte(small_trace: bytes, tmp_path: Path) -> None:
    from nsys_sync import analyze
    from nsys_sync.errors import TraceError

    path = tmp_path / "cut.sqlite"
    page = int.from_bytes(small_trace[16:18], "big")
    size = len(small_trace)
    for offset in sorted({*range(0, 101, 7), 16, 99, *range(100, size, page // 2), *range(page, size, page), size - 1}):
        path.write_bytes(small_trace[:offset])
        with pytest.raises(TraceError, match="nsys-sync export"):
            analyze(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["cut.sqlite"]


@pytest.mark.met("3 files", "64 zero bytes anywhere in an export", "an answer, or one line")
def test_damage_in_the_middle_is_an_error_or_no_harm(small_trace: bytes, tmp_path: Path) -> None:
    """64 zero bytes at any place: an answer or one of our errors, never anything else."""
    from nsys_sync import analyze
    from nsys_sync.errors import TraceError

    path = tmp_path / "damaged.sqlite"
    for offset in range(100, len(small_trace), 1531):
        path.write_bytes(small_trace[:offset] + bytes(64) + small_trace[offset + 64 :])
        try:
            analyze(path)
        except TraceError:
            continue


# ---- errors: usage and selection

BAD_USAGE: dict[str, tuple[list[str], Sequence[str]]] = {
    "unknown ending": (["-o", "out.pdf"], [".html", "--format"]),
    "several formats, one file": (["-o", "out.html", "-f", "html", "-f", "json"], ["out.html", "folder"]),
    "several formats, standard output": (["-o", "-", "-f", "json", "-f", "csv"], ["-o -"]),
    "operations in JSON": (["--operations", "-f", "json"], ["--operations", "csv", "parquet"]),
    "operations without a format": (["--operations"], ["--operations"]),
    "range without a colon": (["--range", "1s"], ["--range", "1.5s:2s"]),
    "range without a unit": (["--range", "1:2"], ["--range", "unit"]),
    "range backwards": (["--range", "2s:1s"], ["--range", "ends before it begins"]),
    "range of nothing": (["--range", ":"], ["--range"]),
    "stall without a unit": (["--min-stall", "5"], ["--min-stall", "unit"]),
    "negative stall": (["--min-stall", "-5us"], ["--min-stall"]),
    "skip without ranges": (["--skip-first", "2"], ["--skip-first", "--nvtx"]),
    "overwrites the trace": (["-f", "json", "-o", "t.sqlite"], ["would overwrite the trace"]),
    "overwrites the trace by another name": (["-f", "json", "-o", "../place/./t.sqlite"], ["would overwrite"]),
    "no such format": (["-f", "pdf"], ["pdf"]),
    "no such option": (["--colour"], ["--colour"]),
    "negative skip": (["--nvtx", "x", "--skip-first", "-1"], ["--skip-first"]),
    "top of nothing": (["--top", "0"], ["--top"]),
    "pid is no number": (["--pid", "python"], ["--pid"]),
}


@pytest.mark.parametrize("case", BAD_USAGE)
def test_wrong_usage(case: str, folder: Path) -> None:
    options, says = BAD_USAGE[case]
    refused("t.sqlite", *options, cwd=folder, status=2, says=says)


def test_no_trace_at_all(folder: Path) -> None:
    refused(cwd=folder, status=2)


@pytest.mark.met("3 files", "an output that is a link to the trace", "refused: it would overwrite it")
def test_a_link_to_the_trace_is_the_trace(folder: Path) -> None:
    (folder / "soft.json").symlink_to("t.sqlite")
    (folder / "hard.json").hardlink_to(folder / "t.sqlite")
    for name in ("soft.json", "hard.json"):
        refused("t.sqlite", "-f", "json", "-o", name, cwd=folder, status=2, says=["would overwrite the trace"])


EMPTY_SELECTION: dict[str, tuple[list[str], Sequence[str]]] = {
    "range after the end": (["--range", "1s:2s"], ["holds no GPU activity"]),
    "range before the beginning": (["--range", "-2s:-1s"], ["holds no GPU activity"]),
    "range that only touches": (["--range", "26us:1s"], ["holds no GPU activity"]),
    "range far away": (["--range", "99999999s:"], ["holds no GPU activity"]),
    "unknown NVTX name": (["--nvtx", "epoch *"], ["no NVTX range is named 'epoch *'", "step *"]),
    "all skipped": (["--nvtx", "step *", "--skip-first", "3"], ["--skip-first 3", "none of the 3"]),
    "no such process": (["--pid", "7"], ["no CUDA calls of process 7", "4242"]),
    "no such device": (["--device", "3"], ["no activity of device 3", "Devices in this trace: 0"]),
}


@pytest.mark.parametrize("case", EMPTY_SELECTION)
def test_a_choice_that_leaves_nothing(case: str, folder: Path) -> None:
    options, says = EMPTY_SELECTION[case]
    refused("t.sqlite", *options, cwd=folder, says=says)


# ---- errors: output


@pytest.mark.met(
    "11 circumstances", "an output in a folder that is not there", "one line, with another place to choose"
)
@pytest.mark.parametrize("where", ["nowhere/out.html", "/proc/out.html", "t.sqlite/out.html", "no/where/"])
def test_output_that_cannot_be_written(where: str, folder: Path) -> None:
    refused("t.sqlite", "-f", "html", "-o", where, cwd=folder, says=["cannot be written", "-o"])


def test_one_format_that_cannot_be_written_leaves_no_part(folder: Path) -> None:
    (folder / "t.sync.json").mkdir()
    before = {*state(folder)}
    done = run("t.sqlite", "-f", "csv", "-f", "json", cwd=folder)
    assert done.returncode == 1 and b"Traceback" not in done.stderr
    assert {*state(folder)} - before <= {"t.sync.csv"}


@pytest.mark.met("3 files", "-o that names a pipe or a device", "written to, never replaced")
def test_a_device_stays_a_device(folder: Path) -> None:
    """`-o /dev/null` and a pipe are written to, never replaced by a file."""
    os.mkfifo(folder / "pipe.json")
    reader = subprocess.Popen(["cat", "pipe.json"], cwd=folder, stdout=subprocess.PIPE)
    try:
        done = run("t.sqlite", "-f", "json", "-o", "pipe.json", cwd=folder)
        assert (folder / "pipe.json").is_fifo(), done.stderr.decode()
        assert done.returncode == 0
        assert json.loads(reader.communicate(timeout=20)[0])["schema_version"]
    finally:
        reader.kill()
        reader.wait()


@pytest.mark.met("3 files", "-o that names a link", "its target is written")
def test_output_through_a_link_goes_to_its_target(folder: Path) -> None:
    (folder / "target").mkdir()
    (folder / "link.json").symlink_to("target/real.json")
    assert run("t.sqlite", "-f", "json", "-o", "link.json", cwd=folder).returncode == 0
    assert (folder / "link.json").is_symlink()
    assert json.loads((folder / "target" / "real.json").read_bytes())["schema_version"]


@pytest.mark.met("11 circumstances", "standard output that is full or closed", "one line, status 1")
def test_full_or_closed_standard_output(folder: Path) -> None:
    for redirection in (">/dev/full", ">&-"):
        line = f'exec "$0" report t.sqlite -f json -o - {redirection}'
        done = subprocess.run(["bash", "-c", line, COMMAND], cwd=folder, capture_output=True, timeout=60)
        assert b"Traceback" not in done.stderr, redirection
        assert done.returncode == 1 and done.stderr.startswith(b"nsys-sync: error: ")


def test_a_reader_that_has_enough(folder: Path) -> None:
    for options in ("-f terminal", "-f json -o -"):
        line = f'"$0" report t.sqlite {options} | (exec 0<&-; exit); echo "${{PIPESTATUS[0]}}"'
        done = subprocess.run(["bash", "-c", line, COMMAND], cwd=folder, capture_output=True, timeout=60)
        assert done.stderr == b"" and done.stdout.strip() in {b"0", b"1"}


# ---- input is left alone


@pytest.mark.met("3 files", "a read-only export in a read-only folder", "analysed, and nothing changed")
def test_the_input_is_never_changed(capture: Capture, tmp_path: Path) -> None:
    path = tmp_path / "in" / "procs.sqlite"
    path.parent.mkdir()
    path.write_bytes(capture("procs.schema-3.20.3").read_bytes())
    path.chmod(0o444)
    path.parent.chmod(0o555)
    before = state(tmp_path)
    assert run(path, "-f", "terminal", cwd=tmp_path).returncode == 0
    assert state(tmp_path) == before
    path.parent.chmod(0o755)


@pytest.mark.met("3 files", "an export in write-ahead mode", "analysed, with nothing beside it")
def test_write_ahead_mode_leaves_nothing_beside_the_input(folder: Path) -> None:
    edit("PRAGMA journal_mode = WAL")(folder / "t.sqlite")
    assert {*state(folder)} == {"t.sqlite"}
    before = state(folder)
    assert run("t.sqlite", "-f", "terminal", cwd=folder).returncode == 0
    assert state(folder) == before


@pytest.mark.met("3 files", "an unprivileged user in a folder that he may not write", "analysed; writing is refused")
def test_a_user_without_rights(folder: Path) -> None:
    """Reads from a folder where nothing may be written, and says so where it should write there."""
    try:
        reached = run(folder / "t.sqlite", "-f", "csv", "-o", "-", cwd=folder, user=NOBODY).returncode == 0
    except PermissionError:
        reached = False
    if not reached:
        pytest.skip("cannot run as another user here")
    folder.chmod(0o555)
    before = state(folder)
    done = run("t.sqlite", cwd=folder, user=NOBODY)
    assert done.returncode == 1
    assert done.stderr.startswith(b"nsys-sync: error: t.sync.html: cannot be written (Permission denied)")
    (folder / "t.sqlite").chmod(0)
    done = run("t.sqlite", cwd=folder, user=NOBODY)
    assert done.returncode == 1 and b"t.sqlite: cannot be read (Permission denied)" in done.stderr
    assert {*state(folder)} == {*before}


@pytest.mark.met("3 files", "blanks, quotes, `?`, `#`, `%` or no ending in the name", "analysed; so are outputs named")
@pytest.mark.parametrize(
    "name",
    ["a b.sqlite", 'it\'s "so" 100%.sqlite', "a?b#c&mode=rw.sqlite", "%41.sqlite", "схема-数.sqlite", "noending"],
)
def test_odd_file_names(name: str, folder: Path) -> None:
    (folder / "t.sqlite").rename(folder / name)
    assert run(name, "-f", "json", cwd=folder).returncode == 0
    written = f"{Path(name).stem}.sync.json"
    assert {*state(folder)} == {name, written}
    assert json.loads((folder / written).read_bytes())["traces"][0]["name"] == name


@pytest.mark.met("3 files", "a link to an export, and a name that begins with a dash", "analysed")
def test_leading_dash_and_link(folder: Path) -> None:
    (folder / "t.sqlite").rename(folder / "-t.sqlite")
    (folder / "link.sqlite").symlink_to("-t.sqlite")
    assert run("-f", "csv", "--", "-t.sqlite", cwd=folder).returncode == 0
    assert run("link.sqlite", "-f", "csv", cwd=folder).returncode == 0
    assert (folder / "-t.sync.csv").read_bytes() == (folder / "link.sync.csv").read_bytes()


@pytest.mark.met("3 files", "a name that is no UTF-8, in every format", "analysed")
def test_file_names_that_are_no_text(folder: Path) -> None:
    name = b"t\xff.sqlite"
    (folder / "t.sqlite").rename(folder / os.fsdecode(name))
    done = run(name, *(option for one in ALL_FORMATS for option in ("-f", one)), cwd=folder)
    assert done.returncode == 0, done.stderr.decode(errors="replace")


@pytest.mark.met("3 files", "a newline and escape codes in the name", "shown escaped")
def test_names_cannot_steer_the_terminal(folder: Path) -> None:
    (folder / "t.sqlite").rename(folder / "t\n\x1b[31m.sqlite")
    done = run("t\n\x1b[31m.sqlite", cwd=folder)
    assert done.returncode == 0
    assert b"\x1b" not in done.stdout + done.stderr and done.stderr.count(b"\n") == 1
    refused("no\n\x1b[31m.sqlite", cwd=folder, says=["no\\n\\x1b[31m.sqlite"])


# ---- outputs


def test_by_default_a_report_and_a_page_in_the_current_folder(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    before = state(folder)
    done = run(folder / "t.sqlite", cwd=elsewhere)
    assert done.returncode == 0 and done.stdout.decode().startswith("GPU idle 45.6 %")
    assert done.stderr.decode() == "Wrote t.sync.html\n"
    assert {*state(elsewhere)} == {"t.sync.html"} and state(folder) == before
    assert (elsewhere / "t.sync.html").read_text("utf-8").startswith("<!doctype html>")


def test_output_may_be_written_again(folder: Path) -> None:
    assert run("t.sqlite", "-f", "json", cwd=folder).returncode == 0
    first = (folder / "t.sync.json").read_bytes()
    assert run("t.sqlite", "-f", "json", cwd=folder).returncode == 0
    assert (folder / "t.sync.json").read_bytes() == first
    assert (folder / "t.sync.json").stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_the_ending_chooses_the_format(folder: Path) -> None:
    for ending in ("json", "csv", "parquet"):
        done = run("t.sqlite", "-o", f"out.{ending}", cwd=folder)
        assert done.returncode == 0 and done.stdout.startswith(b"GPU idle"), ending
    assert {*state(folder)} == {"t.sqlite", "out.json", "out.csv", "out.parquet"}
    assert json.loads((folder / "out.json").read_bytes())["schema_version"].startswith("1.")
    assert pq.read_table(folder / "out.parquet").num_rows == 2


def test_a_folder_takes_all_formats(folder: Path) -> None:
    (folder / "out").mkdir()
    done = run("t.sqlite", "-o", "out", *(option for one in ALL_FORMATS for option in ("-f", one)), cwd=folder)
    assert done.returncode == 0 and done.stdout.startswith(b"GPU idle")
    assert {path.name for path in (folder / "out").iterdir()} == {
        *("t.sync.html", "t.sync.json", "t.sync.csv", "t.sync.parquet")
    }


@pytest.mark.parametrize("one", ["terminal", "html", "csv"])
def test_standard_output_is_the_file(one: str, folder: Path) -> None:
    done = run("t.sqlite", "-o", "-", "-f", one, cwd=folder)
    assert done.returncode == 0 and done.stderr == b"" and {*state(folder)} == {"t.sqlite"}
    run("t.sqlite", "-o", "out.file", "-f", one, cwd=folder)
    assert (folder / "out.file").read_bytes() == done.stdout


def test_formats_agree(folder: Path) -> None:
    """Window 25,900: busy 14,100, stall 10,400 (read_loss 6,800, wait 3,600), host-bound 1,400."""
    formats = [option for one in ("json", "csv", "parquet") for option in ("-f", one)]
    assert run("t.sqlite", *formats, cwd=folder).returncode == 0
    found = json.loads((folder / "t.sync.json").read_bytes())
    device = found["traces"][0]["devices"][0]
    assert (device["window_ns"], device["busy_ns"], device["stall_ns"]) == (25_900, 14_100, 10_400)
    assert (device["host_bound_ns"], device["device_side_ns"]) == (1_400, 0)
    by_json = [(site["location"]["label"], site["calls"], site["stall"]["total_ns"]) for site in found["sites"]]
    assert by_json == [("train.py:10 read_loss", 3, 6_800), ("train.py:20 wait", 3, 3_600)]
    rows = list(csv.DictReader(io.StringIO((folder / "t.sync.csv").read_text("utf-8"))))
    assert [(row["label"], int(row["calls"]), int(row["stall_ns"])) for row in rows] == by_json
    table = pq.read_table(folder / "t.sync.parquet").to_pylist()
    assert [(row["label"], row["calls"], row["stall_ns"]) for row in table] == by_json


@pytest.mark.parametrize("name", ["sync_heavy.schema-3.20.3", "two_gpus.schema-3.7.2"])
def test_one_row_an_operation(name: str, capture: Capture, tmp_path: Path) -> None:
    formats = [option for one in ("json", "csv", "parquet") for option in ("-f", one)]
    done = run(capture(name), "--operations", "-o", tmp_path, *formats, cwd=tmp_path)
    assert done.returncode == 0
    found = json.loads((tmp_path / f"{name}.sync.json").read_bytes())
    table = pq.read_table(tmp_path / f"{name}.sync.operations.parquet")
    rows = list(csv.DictReader(io.StringIO((tmp_path / f"{name}.sync.operations.csv").read_text("utf-8"))))
    stall = sum(device["stall_ns"] for device in found["traces"][0]["devices"])
    assert pa.compute.sum(table["stall_ns"]).as_py() == stall == sum(int(row["stall_ns"]) for row in rows)
    assert table.num_rows == len(rows) == sum(site["calls"] for site in found["sites"])
    assert table.num_rows == found["traces"][0]["coverage"]["operations"]
    assert {*table["site_id"].to_pylist()} == {site["id"] for site in found["sites"]}
    assert table["blocked_ns"].to_pylist() == [
        row["end_ns"] - row["start_ns"] for row in table.select(["start_ns", "end_ns"]).to_pylist()
    ]


def test_demo(tmp_path: Path) -> None:
    done = run(cwd=tmp_path, command=(COMMAND, "demo"))
    assert done.returncode == 0 and done.stdout.startswith(b"GPU idle")
    assert [path.name for path in tmp_path.iterdir()] == ["sync_heavy.sync.html"]
    table = run("-f", "csv", "-o", "-", cwd=tmp_path, command=(COMMAND, "demo"))
    assert table.stdout.startswith(b'"rank"') and table.stdout.count(b"\n") > 14


def test_version_and_help(tmp_path: Path) -> None:
    for arguments in (["--version"], ["report", "--help"], ["demo", "-h"]):
        done = run(cwd=tmp_path, command=(COMMAND, *arguments))
        assert done.returncode == 0 and done.stdout and not done.stderr, arguments


@pytest.mark.met("11 circumstances", "NO_COLOR, LANG=C, COLUMNS, FORCE_COLOR without a terminal", "no escape codes")
@pytest.mark.parametrize(
    "env",
    [
        {"NO_COLOR": "1"},
        {"LANG": "C"},
        {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"COLUMNS": "40"},
        {"COLUMNS": "wide", "TERM": "no-such-terminal", "FORCE_COLOR": "1"},
    ],
    ids=" ".join,
)
def test_environments(env: dict[str, str], folder: Path) -> None:
    done = run("t.sqlite", "-f", "terminal", cwd=folder, env=env)
    assert done.returncode == 0 and done.stderr == b"" and b"\x1b" not in done.stdout
    assert b"GPU idle 45.6 %" in done.stdout and b"read_loss" in done.stdout


# ---- nothing private

HOME, OTHER_HOME, USER, HOST = "/home/alice/secret", "/root/secret", "alice", "gpubox17"


def private_trace() -> TraceBuilder:
    trace = TraceBuilder()
    for key, value in (
        ("PROCESS_0:USER_NAME", USER),
        ("PROCESS_0:COMMAND_LINE", f"python {HOME}/train.py --token hunter2"),
        ("PROCESS_0:WORKING_DIRECTORY", HOME),
        ("PROCESS_0:ENVIRONMENT:API_KEY", "hunter2"),
        ("HOST_NAME", HOST),
    ):
        trace.row("META_DATA_CAPTURE", name=key, value=value)
    for key, value in (("EXPORT_USER", USER), ("EXPORT_HOST", HOST), ("EXPORT_COMMAND_LINE", f"nsys {HOME}/x")):
        trace.row("META_DATA_EXPORT", name=key, value=value)
    process = trace.process(100, name=f"{HOME}/env/bin/python3.12")
    thread = process.thread(100)
    for i, path in enumerate([f"{HOME}/train.py", f"{OTHER_HOME}/train.py", f"/scratch/{USER}/train.py"]):
        at = 10_000 * i
        thread.launch(at, at + 50, gpu=(at + 100, at + 3000))
        frames = [(f"work_{i}", path, 1), ("main", f"{HOME}/main.py", 2)]
        thread.stream_sync(at + 200, at + 3000, python=frames, native=[("wait", f"{HOME}/lib/libx.so")])
    thread.launch(40_000, 40_050, gpu=(40_100, 43_000))
    thread.stream_sync(40_200, 43_000)
    thread.nvtx(f"load {HOME}/data", 40_150, 43_500)
    trace.diagnostic(f"Cannot open {HOME}/report.qdstrm on {HOST}")
    return trace


def test_nothing_private_in_any_output(folder: Path) -> None:
    private_trace().write(folder / "t.sqlite")
    formats = [option for one in ALL_FORMATS for option in ("-f", one)]
    done = run("t.sqlite", *formats, cwd=folder)
    assert done.returncode == 0
    assert run("t.sqlite", "--operations", "-f", "csv", "-f", "parquet", cwd=folder).returncode == 0
    outputs = {"terminal": done.stdout}
    for path in folder.glob("t.sync*"):
        text = repr(pq.read_table(path).to_pylist()).encode() if path.suffix == ".parquet" else path.read_bytes()
        outputs[path.name] = text
    assert len(outputs) == 7 and b"train.py" in outputs["t.sync.json"]
    found = [
        (name, word, text[max(0, text.find(word.encode()) - 60) :][:100])
        for name, text in outputs.items()
        for word in ("/home/", "/root", USER, HOST, "hunter2")
        if word.encode() in text
    ]
    assert not found


def test_traces_of_one_name_are_told_apart_without_saying_whose(folder: Path) -> None:
    for user in ("alice", "bob"):
        (folder / "home" / user).mkdir(parents=True)
        (folder / "home" / user / "t.sqlite").write_bytes((folder / "t.sqlite").read_bytes())
    traces = report_json("home/alice/t.sqlite", "home/bob/t.sqlite", cwd=folder)["traces"]
    names = [trace["name"] for trace in traces]  # type: ignore[attr-defined]
    assert len({*names}) == 2


def test_the_packed_capture_of_the_demo_is_a_fixture() -> None:
    import nsys_sync

    packed = Path(nsys_sync.__file__).parent / "data" / "sync_heavy.sqlite.xz"
    fixture = Path(__file__).parent / "fixtures" / "sync_heavy.schema-3.20.3.sqlite.xz"
    assert lzma.decompress(packed.read_bytes()) == lzma.decompress(fixture.read_bytes())
