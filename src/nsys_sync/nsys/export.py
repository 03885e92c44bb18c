"""Exports a report (`.nsys-rep`, `.qdrep`) to SQLite with its Python stacks, and keeps the result for the next time.

nsys before schema 3.13.2 drops the Python stacks from SQLite. They are then taken from its JSON export, which runs at
the same time and is read while it grows: nsys 2023.4 refuses to write to a pipe (it wants to create the file itself).
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from nsys_sync.errors import NsysError, OutputError, TraceError
from nsys_sync.nsys.find import Nsys
from nsys_sync.nsys.json_backtraces import add_python_backtraces
from nsys_sync.trace.sqlite_file import SqliteFile

REPORT_SUFFIXES = (".nsys-rep", ".qdrep")
RAW_SUFFIX = ".qdstrm"
"""Of what nsys captures before it makes a report of it. It stays where that failed."""
CACHE_FOLDER = ".nsys-sync"
EXPORT_VERSION = 1
"""Of what this package makes from a report or a folder: raise it, and every cached export is made anew."""
MAGIC = b"NVIDIA Tegra Profiler Report "
PACKED_MAGIC = (b"\x1f\x8b", b"PK\x03\x04")
SECONDS_BETWEEN_READS = 0.05
CHUNK = 1 << 20
SECONDS_UNTIL_STALE = 60
"""A folder just made may not be locked yet."""

Progress = Callable[[str, int], None]
"""Called with a step's name and its percentage, as nsys gives it."""
Seen = dict[str, list[int]]
"""Of each file that an export is made of: its name, and its size and time of change (ns)."""


@dataclass(frozen=True)
class Provenance:
    """What a cached export belongs to, and how to tell that it is whole."""

    files: Seen
    nsys_version: str
    export_version: int
    database_size: int
    database_crc32: int


def is_report(path: Path) -> bool:
    """Whether the path names a report of nsys, or what should have become one, rather than an export."""
    return path.suffix in (*REPORT_SUFFIXES, RAW_SUFFIX)


def cached_export(report: Path, nsys: Callable[[], Nsys], progress: Progress) -> Path:
    """The SQLite export of `report`: from the cache where that provably belongs to it, else made now.

    `nsys` is asked for only when needed. Raises TraceError for a report that cannot be read, NsysError where nsys
    fails.
    """
    require_report(report)
    files = seen([report])
    try:
        used = nsys()
    except NsysError:
        # Without nsys, an export that some nsys made of this very report is better than none.
        if kept := kept_export(report, files, None):
            return kept
        raise
    return kept_export(report, files, used.version_text) or keep_export(
        report, files, used.version_text, lambda database: export(report, database, used, progress)
    )


def kept_export(source: Path, files: Seen, nsys_version: str | None) -> Path | None:
    """The cached export of `source`, a report or a folder, where one provably belongs to the `files` it is made of.

    `nsys_version` is that of the nsys which must have made it; None: any.
    """
    for database in _places(source):
        if _is_ours_and_whole(database, files, nsys_version):
            return database
    return None


def keep_export(source: Path, files: Seen, nsys_version: str, make: Callable[[Path], None]) -> Path:
    """Makes the export of `source` with `make`, and keeps it. Raises OutputError where nothing can be kept.

    The cache lies beside the source, in the user's cache folder where that cannot be written.
    """
    places = _places(source)
    for database in places:
        if _can_write_into(database.parent):
            _provenance_file(database).unlink(missing_ok=True)
            try:
                make(database)
            finally:
                with suppress(OSError):  # it is empty only where nothing was exported
                    database.parent.rmdir()
            with suppress(OSError, OutputError):  # no room is left: the next time makes another export
                _write_provenance(database, _provenance(database, files, nsys_version))
            return database
    raise OutputError(
        f"{source.parent}: cannot be written, and neither can {places[-1].parent}. "
        f"Export to a place of your choice: nsys-sync export {source.name} -o FILE.sqlite"
    )


def seen(files: Iterable[Path]) -> Seen:
    """What the files are now, to be compared later."""
    return {file.name: [(found := file.stat()).st_size, found.st_mtime_ns] for file in files}


def require_report(report: Path) -> None:
    """Raises TraceError for what is no report of nsys, before nsys is asked."""
    if not report.exists():
        raise TraceError(f"{report}: no such file. Capture one with: nsys-sync profile train.py")
    if not report.is_file():
        raise TraceError(f"{report}: is no file. Name a report that nsys profile wrote")
    if report.suffix == RAW_SUFFIX:
        raise TraceError(f"{report}: is a raw capture, of which nsys has made no report. {_how_to_import(report)}")
    try:
        with report.open("rb") as file:
            head = file.read(len(MAGIC))
    except OSError as error:
        raise TraceError(
            f"{report}: cannot be read ({error.strerror}). Check its permissions: ls -l {report}"
        ) from error
    if not head or not head.strip(b"\0"):
        what = "holds only zeros" if head else "is empty (0 bytes)"
        raise TraceError(f"{report}: {what}. The disk may have been full: {_again(report)}")
    if head != MAGIC and not head.startswith(PACKED_MAGIC):
        raise TraceError(f"{report}: is no report of Nsight Systems. Name a file that nsys profile wrote")


def _how_to_import(raw: Path) -> str:
    return f"Import it with the nsys that captured it: NSYS_FOLDER/host-linux-x64/QdstrmImporter -i {raw}"


def _again(report: Path) -> str:
    """What to do about a report that is damaged: nsys leaves the raw capture beside it when importing fails."""
    raw = report.with_suffix(RAW_SUFFIX)
    return f"{raw.name} is still there. {_how_to_import(raw)} -f" if raw.is_file() else "capture again"


def report_version(report: Path) -> str | None:
    """The version of nsys that wrote the report, from its first bytes; None where they do not say."""
    with report.open("rb") as file:
        match = re.match(MAGIC + rb"([\d@]+)", file.read(80))
    return match[1].decode().replace("@", ".") if match else None


def export(report: Path, database: Path, nsys: Nsys, progress: Progress) -> None:
    """Writes the export under a temporary name beside `database`, then renames it. An existing file is replaced."""
    require_report(report)
    with made_whole(database, report.stat().st_mode) as made:
        folder = made.parent
        if nsys.knows("export", "--include-blobs"):
            _finish(_started(nsys, report, made, "sqlite", "--include-blobs=true"), report, nsys, "exporting", progress)
        else:
            _export_with_backtraces_from_json(report, made, folder, nsys, progress)
        _check(made, report)


def _export_with_backtraces_from_json(report: Path, made: Path, folder: Path, nsys: Nsys, progress: Progress) -> None:
    lines = folder / "export.json"
    to_json = _started(nsys, report, lines, "json")
    try:
        to_sqlite = _started(nsys, report, made, "sqlite")
        kept: list[str] = []
        failed: list[BaseException] = []

        def keep_backtraces() -> None:
            try:
                kept.extend(_nvtx_lines(lines, to_json))
            except OSError as error:
                failed.append(error)

        reader = threading.Thread(target=keep_backtraces, daemon=True)
        reader.start()
        _finish(to_sqlite, report, nsys, "exporting", progress)
        _finish(to_json, report, nsys, "exporting Python stacks", progress)
        reader.join()
        if failed:
            raise OutputError(f"{lines}: cannot be read back ({failed[0]})")
    finally:
        _end(to_json)
    try:
        add_python_backtraces(made, kept)
    except sqlite3.Error as error:
        raise OutputError(
            f"{report}: its Python stacks cannot be added to its export ({error}). Free some space, or name "
            "another place with export -o"
        ) from error


def _nvtx_lines(path: Path, writer: subprocess.Popen[bytes]) -> Iterator[str]:
    """The lines of NVTX marks and domains in a file that `writer` is still writing."""
    while not path.exists():
        if writer.poll() is not None and not path.exists():
            return
        time.sleep(SECONDS_BETWEEN_READS)
    wanted = re.compile(rb'^\{"Type":(?:34|75),.*', re.MULTILINE)
    with path.open("rb") as file:
        rest = b""
        while True:
            ended = writer.poll() is not None
            chunk = file.read(CHUNK)
            if chunk:
                text, newline, tail = (rest + chunk).rpartition(b"\n")
                rest = tail
                for match in wanted.finditer(text + newline):
                    yield match.group().decode("utf-8", "replace")
            elif ended:
                return
            else:
                time.sleep(SECONDS_BETWEEN_READS)


def _started(nsys: Nsys, report: Path, output: Path, kind: str, *more: str) -> subprocess.Popen[bytes]:
    command = [str(nsys.path), "export", f"--type={kind}", f"--output={output}", *more, str(report.resolve())]
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
    except OSError as error:
        raise NsysError(f"{nsys.path}: does not run ({error.strerror}). Check it with: nsys-sync doctor") from error


def _finish(process: subprocess.Popen[bytes], report: Path, nsys: Nsys, step: str, progress: Progress) -> None:
    """Waits, passing nsys's own percentages on. Raises NsysError when nsys fails."""
    assert process.stdout is not None
    said = ""
    try:
        for piece in _pieces(process.stdout):
            if match := re.search(r"(\d+)%", piece):
                progress(step, int(match[1]))
            elif piece.strip():
                said = f"{said} {piece.strip()}".strip()
        status = process.wait()
    finally:
        _end(process)
    if status != 0:
        raise NsysError(_what_failed(report, nsys, said, status))


def _pieces(stream: IO[bytes]) -> Iterator[str]:
    """What nsys prints, split at its carriage returns and at line ends, as it comes."""
    rest = b""
    while chunk := os.read(stream.fileno(), 4096):
        *whole, rest = re.split(rb"[\r\n]", rest + chunk)
        yield from (piece.decode("utf-8", "replace") for piece in whole)
    if rest:
        yield rest.decode("utf-8", "replace")


def _what_failed(report: Path, nsys: Nsys, said: str, status: int) -> str:
    written_by = report_version(report)
    if "newer than your current version" in said:
        return (
            f"{report}: was written by nsys {written_by or 'of a newer version'}, and the installed nsys "
            f"{nsys.version_text} ({nsys.path}) cannot read it. Install that version or newer, or export it where "
            f"it was captured: nsys export --type sqlite --include-blobs=true {report.name}"
        )
    if "No space left" in said:
        return f"{report}: no space left on the disk for its export. Free some, or name another place with export -o"
    ended = f"ended by signal {-status}, {signal.strsignal(-status)}" if status < 0 else f"exit status {status}"
    why = said.removeprefix("Exportation error:").strip()[:200] or ended
    return (
        f"{report}: nsys {nsys.version_text} cannot export it ({why}). If the capture was interrupted or the disk was "
        f"full, the report is damaged: {_again(report)}"
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _check(database: Path, report: Path) -> None:
    """nsys can exit with 0 and write nothing."""
    if not database.exists():
        raise NsysError(f"{report}: nsys reported success but wrote no export. Is the disk full? Try again with -o")
    with closing(SqliteFile(database)):
        pass


@contextmanager
def made_whole(database: Path, mode: int) -> Iterator[Path]:
    """A file to make, in a temporary folder on the same file system, that becomes `database` once it is whole.

    An existing file is replaced. `mode` is that of what it is made of: it holds the same, so no wider mode.
    What killed processes left of such folders goes: those that are old, and that no living process has locked.
    """
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        for left in database.parent.glob(f".{glob.escape(database.name)}.*"):
            with suppress(OSError):
                if left.is_dir() and time.time() - left.stat().st_mtime > SECONDS_UNTIL_STALE:
                    with _locked(left):
                        shutil.rmtree(left, ignore_errors=True)
        folder = tempfile.TemporaryDirectory(prefix=f".{database.name}.", dir=database.parent)
    except OSError as error:
        raise OutputError(
            f"{database.parent}: cannot be written ({error.strerror}). Name another place with -o"
        ) from error
    with folder as name, ExitStack() as lock:
        with suppress(OSError):  # some network file systems lock no folders: there, none goes
            lock.enter_context(_locked(Path(name)))
        made = Path(name) / "export.sqlite"
        yield made
        try:
            with made.open("rb+") as file:
                os.fsync(file.fileno())
            made.chmod(mode & 0o666)
            made.replace(database)
        except OSError as error:
            raise OutputError(
                f"{database}: cannot be written ({error.strerror}). Name another place with -o"
            ) from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Raises OSError where another process has it locked."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(opened)


def _can_write_into(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def users_cache() -> Path:
    """Where this program may keep files of its own; without a home folder, in the temporary one."""
    home = os.environ.get("HOME") or tempfile.gettempdir()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path(home) / ".cache") / "nsys-sync"


def _places(source: Path) -> tuple[Path, Path]:
    """Where an export of `source` may be kept."""
    path_hash = hashlib.sha256(os.fsencode(source.resolve())).hexdigest()[:16]
    return (
        source.parent / CACHE_FOLDER / f"{source.name}.sqlite",
        users_cache() / f"{path_hash}-{source.name}.sqlite",
    )


def _provenance_file(database: Path) -> Path:
    return database.with_suffix(".json")


def _write_provenance(database: Path, provenance: Provenance) -> None:
    """Comes last: without it, or with one that does not fit, the export is never trusted."""
    with made_whole(_provenance_file(database), database.stat().st_mode) as made:
        made.write_text(json.dumps(vars(provenance)), encoding="utf-8")


def _provenance(database: Path, files: Seen, nsys_version: str) -> Provenance:
    crc = 0
    with database.open("rb") as file:
        while chunk := file.read(CHUNK):
            crc = zlib.crc32(chunk, crc)
    return Provenance(
        files=files,
        nsys_version=nsys_version,
        export_version=EXPORT_VERSION,
        database_size=database.stat().st_size,
        database_crc32=crc,
    )


def _is_ours_and_whole(database: Path, files: Seen, nsys_version: str | None) -> bool:
    try:
        stored = json.loads(_provenance_file(database).read_text(encoding="utf-8"))
        if stored.get("files") != files or stored.get("database_size") != database.stat().st_size:
            return False
        version = nsys_version or str(stored.get("nsys_version"))
        return bool(stored == vars(_provenance(database, files, version)))
    except (OSError, ValueError, AttributeError):
        return False
