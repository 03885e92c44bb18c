"""Files as people have them: cut, locked, being written, huge and empty, oddly named, in odd places."""

from __future__ import annotations

import functools
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from test_cli import COMMAND, edit, run, state, steps_trace
from test_export import real_report, report, silent  # noqa: F401 (fixtures)

from nsys_sync import analyze
from nsys_sync.errors import NsysSyncError, OutputError, TraceError
from nsys_sync.nsys import export
from nsys_sync.nsys.find import Nsys, find_nsys

met = functools.partial(pytest.mark.met, "3 files")
TEN_GB = 10 << 30
KB_ALLOWED = 3_000_000
STALL_NS = 10_400
"""Of `steps_trace`, by hand: see test_cli.test_formats_agree."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one small trace, `t.sqlite`."""
    place = tmp_path / "place"
    place.mkdir()
    steps_trace().write(place / "t.sqlite")
    return place


def refusal(path: Path) -> str:
    """What is said of it: one line, which names the file; and nothing beside it is changed."""
    before = state(path.parent)
    with pytest.raises(TraceError) as caught:
        analyze(path)
    said = str(caught.value)
    assert said.startswith(f"{path}: ") and "\n" not in said
    assert state(path.parent) == before
    return said


def stall_of(path: Path) -> int | None:
    """The analysis's answer; nothing beside the input is changed."""
    before = state(path.parent)
    stall = analyze(path).stall_ns
    assert state(path.parent) == before
    return stall


# ---- somebody else has it open


@contextmanager
def another_process(code: str, folder: Path) -> Iterator[None]:
    """Runs `code` there, and holds what it holds until the block ends."""
    held = f"import fcntl, sqlite3\n{code}\nprint('held', flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", held], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        yield
        process.kill()


OPENED = "c = sqlite3.connect('t.sqlite', isolation_level=None)\n"
SPILLED = (
    f"{OPENED}c.execute('PRAGMA cache_size = 2')\nc.execute('BEGIN')\nc.execute('CREATE TABLE more (x)')\n"
    "c.executemany('INSERT INTO more VALUES (?)', [('y' * 1000,)] * 1000)"
)


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(
            f"{OPENED}c.execute('BEGIN EXCLUSIVE')",
            marks=met("locked: another program writes the export", "refused: the database is locked"),
            id="exclusive",
        ),
        pytest.param(
            "f = open('t.sqlite', 'r+b'); fcntl.lockf(f, fcntl.LOCK_EX)",
            marks=met("locked by fcntl, as by a backup program", "refused: the database is locked"),
            id="fcntl",
        ),
        pytest.param(
            SPILLED,
            marks=met("half of a transaction is in the export, its writer still running", "refused: it is locked"),
            id="spilled",
        ),
    ],
)
def test_a_locked_export(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, timeout=0))  # it waits 5 s otherwise
    with another_process(code, folder):
        assert "database is locked" in refusal(folder / "t.sqlite")


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(
            f"{OPENED}c.execute('BEGIN').execute('SELECT * FROM StringIds').fetchone()",
            marks=met("another program reads the export", "analysed"),
            id="reader",
        ),
        pytest.param(
            "f = open('t.sqlite', 'rb'); fcntl.flock(f, fcntl.LOCK_EX)",
            marks=met("locked by flock, which SQLite does not heed", "analysed"),
            id="flock",
        ),
        pytest.param(
            f"{OPENED}c.execute('BEGIN IMMEDIATE'); c.execute('CREATE TABLE more (x)')",
            marks=met("another program has begun to write, and nothing is in the export yet", "analysed as it was"),
            id="begun",
        ),
    ],
)
def test_an_export_that_others_use(code: str, folder: Path) -> None:
    with another_process(code, folder):
        assert stall_of(folder / "t.sqlite") == STALL_NS


@met("a journal beside the export: its writer died in the middle", "refused, and the journal left alone")
def test_a_hot_journal(folder: Path, tmp_path: Path) -> None:
    with another_process(SPILLED, folder):
        shutil.copytree(folder, tmp_path / "died")
    assert (tmp_path / "died" / "t.sqlite-journal").stat().st_size > 0
    assert "SQLite cannot read it" in refusal(tmp_path / "died" / "t.sqlite")


@met("a write-ahead log beside the export, with changes in it", "refused, with how to merge them in a copy")
def test_a_write_ahead_log_with_changes(folder: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(folder / "t.sqlite")) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE more (x)")
        connection.commit()
        shutil.copytree(folder, tmp_path / "copied")
    assert "wal_checkpoint(TRUNCATE)" in refusal(tmp_path / "copied" / "t.sqlite")


@met("an export that grows while it is read", "analysed: what its header says is there")
def test_a_file_that_grows(folder: Path) -> None:
    ended = threading.Event()

    def grow() -> None:
        with (folder / "t.sqlite").open("ab") as file:
            while not ended.wait(0.001):
                file.write(bytes(4096))
                file.flush()

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        assert analyze(folder / "t.sqlite").stall_ns == STALL_NS
    finally:
        ended.set()
        writer.join()


@met("an export of which nsys has written a part so far", "refused: cut off, or empty")
def test_an_export_that_nsys_still_writes(folder: Path) -> None:
    whole = (folder / "t.sqlite").read_bytes()
    (folder / "t.sqlite").write_bytes(whole[: len(whole) * 2 // 3])
    assert "is cut off" in refusal(folder / "t.sqlite")
    (folder / "t.sqlite").write_bytes(b"")
    assert "is empty (0 bytes)" in refusal(folder / "t.sqlite")


# ---- larger than the machine


def swollen(path: Path) -> None:
    os.truncate(path, TEN_GB)


def header_alone(path: Path) -> None:
    os.truncate(path, 100)
    swollen(path)


def said_to_be_large(path: Path) -> None:
    with path.open("r+b") as file:
        page = int.from_bytes(file.read(18)[16:], "big")
        file.seek(28)
        file.write((TEN_GB // page).to_bytes(4, "big"))
    swollen(path)


def only_zeros(path: Path) -> None:
    os.truncate(path, 0)
    swollen(path)


SPARSE = [
    pytest.param(only_zeros, "holds only zeros", marks=met("10 GB of zeros", "refused at once")),
    pytest.param(header_alone, "SQLite cannot read it", marks=met("a header and 10 GB of nothing", "refused at once")),
    pytest.param(swollen, None, marks=met("an export, then a hole up to 10 GB", "analysed, with its memory alone")),
    pytest.param(
        said_to_be_large,
        None,
        marks=met("an export whose header says 10 GB, most of it a hole", "analysed, with its memory alone"),
    ),
]


@pytest.mark.parametrize(("spoil", "says"), SPARSE)
def test_ten_gigabytes_of_little(spoil: Callable[[Path], None], says: str | None, folder: Path) -> None:
    spoil(folder / "t.sqlite")
    limited = ("bash", "-c", f'ulimit -v {KB_ALLOWED}; exec "$0" "$@"', COMMAND, "report")
    done = run("t.sqlite", "-f", "csv", "-o", "-", cwd=folder, command=limited)
    if says is None:
        assert done.returncode == 0 and b"read_loss" in done.stdout, done.stderr.decode()
    else:
        assert done.returncode == 1 and says in done.stderr.decode() and done.stderr.count(b"\n") == 1
    assert [path.name for path in folder.iterdir()] == ["t.sqlite"]


@met("export --scrub of an export with a hole up to 10 GB", "a small copy; the hole is not written out")
def test_a_scrub_keeps_holes(folder: Path) -> None:
    swollen(folder / "t.sqlite")
    done = run("t.sqlite", "--scrub", "-o", "s.sqlite", cwd=folder, command=(COMMAND, "export"))
    assert done.returncode == 0, done.stderr.decode()
    assert (folder / "s.sqlite").stat().st_size < 1 << 20
    assert analyze(folder / "s.sqlite").stall_ns == STALL_NS


@met("a saved JSON report of 10 GB", "refused at once: none is so large")
def test_a_saved_report_of_ten_gigabytes(folder: Path) -> None:
    only_zeros(folder / "t.sqlite")
    (folder / "t.sqlite").rename(folder / "t.json")
    done = run("t.json", "--max-stall", "5%", cwd=folder, command=(COMMAND, "check"))
    assert done.returncode == 1 and b"is larger than 256 MiB" in done.stderr and done.stderr.count(b"\n") == 1


# ---- no regular file


@pytest.mark.parametrize(
    ("target", "says"),
    [
        pytest.param("gone.sqlite", "no such file", marks=met("a link to nothing", "refused: no such file")),
        pytest.param("t.sqlite", "no such file", marks=met("a link to itself", "refused")),
        pytest.param("/dev/zero", "is a device or a pipe", marks=met("a link to /dev/zero", "refused")),
        pytest.param(".", "is a folder", marks=met("a link to a folder", "refused")),
    ],
)
def test_links_to_no_file(target: str, says: str, folder: Path) -> None:
    (folder / "t.sqlite").unlink()
    (folder / "t.sqlite").symlink_to(target)
    try:
        assert says in refusal(folder / "t.sqlite")
    except OSError as error:  # `Path.exists` of a loop raises before Python 3.13, and the command says so in one line
        assert target == "t.sqlite"
        assert "Too many levels of symbolic links" in str(error)
        done = run("t.sqlite", cwd=folder)
        assert done.returncode == 1 and done.stderr.count(b"\n") == 1 and b"Traceback" not in done.stderr


@met("links to links to an export, in other folders", "analysed, and written beside none of them")
def test_links_to_links(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.sqlite").symlink_to("../place/t.sqlite")
    (tmp_path / "b.sqlite").symlink_to("other/a.sqlite")
    before = state(tmp_path)
    assert analyze(tmp_path / "b.sqlite").stall_ns == STALL_NS
    assert state(tmp_path) == before


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("a\nb.sqlite", marks=met("a newline in the name", "analysed")),
        pytest.param("?mode=rwc&vfs=none.sqlite", marks=met("`?` and `&`, as in a URI, in the name", "analysed")),
        pytest.param("%2e%2e%2ft.sqlite", marks=met("`%` escapes in the name", "analysed")),
        pytest.param('#1 "it\'s" `$(x)`.sqlite', marks=met("`#`, quotes and `$(…)` in the name", "analysed")),
        pytest.param("-o.sqlite", marks=met("a name that begins with a dash, after --", "analysed")),
        pytest.param("‮схема-数-🙂.sqlite", marks=met("Unicode in the name, right-to-left marks too", "analysed")),
        pytest.param("t\udcff\udcfe.sqlite", marks=met("a name that is no UTF-8", "analysed")),
        pytest.param("x" * 240 + ".sqlite", marks=met("a name as long as names can be", "analysed")),
        pytest.param("file:t.sqlite", marks=met("a name like a URI", "analysed")),
        pytest.param(":memory:", marks=met("a name that means no file to SQLite", "analysed")),
    ],
)
def test_odd_names(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "t.sqlite").rename(folder / name)
    monkeypatch.chdir(folder)
    assert analyze(name).stall_ns == STALL_NS
    assert [path.name for path in folder.iterdir()] == [name]


# ---- places where nothing may be written

READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && cd "$1" && shift && exec "$@"'


@pytest.fixture
def read_only() -> tuple[str, ...]:
    """What makes a command run where the folder, its first argument, is on a read-only file system."""
    mounted = ("unshare", "-m", "bash", "-c", READ_ONLY, "bash")
    if shutil.which("unshare") is None or subprocess.run([*mounted, "/tmp", "true"], capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    return mounted


@met("an export on a read-only file system", "analysed; a file beside it is refused, by name")
def test_a_read_only_file_system(folder: Path, read_only: tuple[str, ...]) -> None:
    command = (*read_only, str(folder), COMMAND, "report", "t.sqlite")
    done = run("-f", "csv", "-o", "-", cwd=folder, command=command)
    assert done.returncode == 0 and b"read_loss" in done.stdout, done.stderr.decode()
    done = run(cwd=folder, command=command)
    assert done.returncode == 1 and done.stdout == b""
    assert done.stderr.startswith(b"nsys-sync: error: t.sync.html: cannot be written (Read-only file system)")
    assert done.stderr.count(b"\n") == 1


@met("an export in write-ahead mode on a read-only file system", "analysed")
def test_write_ahead_mode_on_a_read_only_file_system(folder: Path, read_only: tuple[str, ...]) -> None:
    edit("PRAGMA journal_mode = WAL")(folder / "t.sqlite")
    command = (*read_only, str(folder), COMMAND, "report", "t.sqlite", "-f", "csv", "-o", "-")
    done = run(cwd=folder, command=command)
    assert done.returncode == 0 and b"read_loss" in done.stdout, done.stderr.decode()


# ---- reports, with a real nsys


def cut_reports(whole: bytes) -> Iterator[tuple[str, bytes]]:
    for part in (1, 29, 30, 80, 200, 4096, len(whole) // 4, len(whole) // 2, len(whole) - 100, len(whole) - 1):
        yield f"cut at {part}", whole[:part]
    yield "zeros at the end", whole[: len(whole) // 2] + bytes(len(whole) - len(whole) // 2)
    yield "zeros at the beginning", bytes(len(whole) // 2) + whole[len(whole) // 2 :]


@met("a report that is cut at any place, or holds zeros in part", "refused, and no folder is left beside it")
def test_damaged_reports(report: Path) -> None:  # noqa: F811
    whole = report.read_bytes()
    for case, content in cut_reports(whole):
        report.write_bytes(content)
        with pytest.raises(NsysSyncError) as caught:
            analyze(report)
        assert str(caught.value).startswith(f"{report}: ") and "\n" not in str(caught.value), case
        assert "apture again" in str(caught.value) or "is no report" in str(caught.value), case
        assert [path.name for path in report.parent.iterdir()] == [report.name], case


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", marks=met("0 bytes as a report, its raw capture beside it", "refused: how to import it")),
        pytest.param(
            bytes(500), marks=met("zeros as a report, its raw capture beside it", "refused: how to import it")
        ),
    ],
)
def test_a_raw_capture_beside_a_damaged_report(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "run.nsys-rep").write_bytes(content)
    (tmp_path / "run.qdstrm").write_bytes(b"raw")
    said = refusal(tmp_path / "run.nsys-rep")
    assert "run.qdstrm is still there" in said and f"QdstrmImporter -i {tmp_path}/run.qdstrm -f" in said


@met("a raw capture (.qdstrm), of which nsys made no report", "refused: how to import it")
def test_a_raw_capture(tmp_path: Path) -> None:
    raw = tmp_path / "run.qdstrm"
    raw.write_bytes(b"\0\xff\0\xffNVIDIA Nsight Systems Stream 2023.4.4")
    assert f"QdstrmImporter -i {raw}" in refusal(raw)
    done = run("run.qdstrm", cwd=tmp_path, command=(COMMAND, "export"))
    assert done.returncode == 1 and b"is a raw capture" in done.stderr and done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    ("make", "says"),
    [
        pytest.param(os.mkfifo, "is no file", marks=met("a pipe named like a report", "refused")),
        pytest.param(os.mkdir, "is a folder without files", marks=met("a folder named like a report", "refused")),
        pytest.param(
            lambda path: path.symlink_to("gone"), "no such file", marks=met("a report's link to nothing", "refused")
        ),
        pytest.param(
            lambda path: path.symlink_to("/dev/zero"), "is no file", marks=met("/dev/zero as a report", "refused")
        ),
    ],
)
def test_what_is_named_like_a_report(make: Callable[[Path], None], says: str, tmp_path: Path) -> None:
    make(tmp_path / "run.nsys-rep")
    assert says in refusal(tmp_path / "run.nsys-rep")


@met("a report of 10 GB, most of it a hole", "refused at once")
def test_a_report_of_ten_gigabytes(report: Path) -> None:  # noqa: F811
    swollen(report)
    with pytest.raises(NsysSyncError, match="cannot export it"):
        export.cached_export(report, find_nsys, silent)
    only_zeros(report)
    with pytest.raises(TraceError, match="holds only zeros"):
        export.cached_export(report, find_nsys, silent)
    assert [path.name for path in report.parent.iterdir()] == [report.name]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("a b?c#d%41&.nsys-rep", marks=met("`?`, `#`, `%` and blanks in a report's name", "exported")),
        pytest.param('it\'s "so" $(x).nsys-rep', marks=met("quotes and `$(…)` in a report's name", "exported")),
        pytest.param("-x.nsys-rep", marks=met("a report's name that begins with a dash", "exported")),
        pytest.param("схема-数.nsys-rep", marks=met("Unicode in a report's name", "exported")),
        pytest.param("a\nb.nsys-rep", marks=met("a newline in a report's name", "exported")),
        pytest.param("t\udcff.nsys-rep", marks=met("a report's name that is no UTF-8", "exported")),
    ],
)
def test_odd_names_of_reports(name: str, report: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    report.rename(report.with_name(name))
    monkeypatch.chdir(report.parent)
    made = export.cached_export(Path(name), find_nsys, silent)
    assert made == Path(".nsys-sync") / f"{name}.sqlite" and made.stat().st_size > 0
    assert {path.name for path in report.parent.iterdir()} == {".nsys-sync", name}


@met("a report and an unprivileged user who may write nowhere near it", "exported into the user's cache")
def test_a_user_who_may_write_nowhere_near(report: Path, tmp_path: Path, read_only: tuple[str, ...]) -> None:  # noqa: F811
    place = tmp_path / "place"
    place.mkdir()
    report.rename(place / "busy.nsys-rep")
    command = (*read_only, str(place), COMMAND, "report", "busy.nsys-rep")
    nsys = {"NSYS_SYNC_NSYS": str(find_nsys().path)}
    done = run(cwd=tmp_path, command=command, env={**nsys, "XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert b"no CUDA activity was captured" in done.stderr, done.stderr.decode()  # so it was exported and read
    assert len(list((tmp_path / "cache" / "nsys-sync").glob("*.sqlite"))) == 1
    done = run(cwd=tmp_path, command=command, env={**nsys, "XDG_CACHE_HOME": "/proc/none"})
    assert done.returncode == 1 and done.stderr.count(b"\n") == 1
    assert b"Export to a place of your choice: nsys-sync export busy.nsys-rep -o FILE.sqlite" in done.stderr
    assert [path.name for path in place.iterdir()] == ["busy.nsys-rep"]


@pytest.mark.met("11 circumstances", "a disk with room for the export and not for its Python stacks", "one line")
def test_no_room_for_the_stacks(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    def full(database: Path, lines: list[str]) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(export, "add_python_backtraces", full)
    monkeypatch.setattr(Nsys, "knows", lambda *asked: False)
    with pytest.raises(OutputError, match="Python stacks cannot be added to its export"):
        export.cached_export(report, find_nsys, silent)
    assert [path.name for path in report.parent.iterdir()] == [report.name]


@met("what an export left that was killed (kill -9)", "cleared away by the next export, unless one still works in it")
def test_what_killed_exports_left(report: Path) -> None:  # noqa: F811
    cache = report.parent / ".nsys-sync"
    names = [f".{report.name}.sqlite.{end}" for end in ("killed", "alive", "young")]
    for name in names:
        (cache / name).mkdir(parents=True)
        (cache / name / "export.sqlite").write_bytes(b"half")
    for name in names[:2]:
        os.utime(cache / name, (0, time.time() - 2 * export.SECONDS_UNTIL_STALE))
    (cache / ".other.nsys-rep.sqlite.killed").mkdir()
    with export._locked(cache / names[1]):
        export.cached_export(report, find_nsys, silent)
    left = {path.name for path in cache.iterdir()}
    assert left == {*names[1:], ".other.nsys-rep.sqlite.killed", f"{report.name}.sqlite", f"{report.name}.json"}
