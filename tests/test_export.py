"""The export step and its cache, with a real nsys (scripts/install_nsys.sh) and a report of a CPU-only program."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nsys_sync.errors import NsysError
from nsys_sync.nsys import export
from nsys_sync.nsys.find import Nsys, find_nsys

NSYS_SYNC = str(Path(sys.executable).with_name("nsys-sync"))
KILLS = 24


def silent(step: str, percent: int) -> None:
    pass


def no_nsys() -> Nsys:
    raise NsysError("nsys was not found")


@pytest.fixture(scope="module")
def real_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        find_nsys()
    except NsysError:
        assert "CI" not in os.environ, "CI must install nsys: a skipped end-to-end test proves nothing"
        pytest.skip("no nsys on this machine: scripts/install_nsys.sh DIR, then export NSYS_SYNC_NSYS=DIR/bin/nsys")
    folder = tmp_path_factory.mktemp("report")
    (folder / "busy.py").write_text("import time\nend = time.time() + 1.5\nwhile time.time() < end: sum(range(1000))\n")
    subprocess.run([NSYS_SYNC, "profile", "--no-report", "busy.py"], cwd=folder, check=True)
    return folder / "busy.nsys-rep"


@pytest.fixture
def report(real_report: Path, tmp_path: Path) -> Path:
    target = tmp_path / "busy.nsys-rep"
    shutil.copy2(real_report, target)
    return target


def backtraces(database: Path) -> int:
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        assert connection.execute("PRAGMA quick_check").fetchone() == ("ok",)
        return int(connection.execute("SELECT count(*) FROM NSYS_SYNC_PYTHON_BACKTRACE").fetchone()[0])


def test_the_cache_is_used_again_and_only_then(report: Path) -> None:
    made = export.cached_export(report, find_nsys, silent)
    assert made == report.parent / ".nsys-sync" / "busy.nsys-rep.sqlite"
    assert backtraces(made) > 500
    first = made.stat().st_mtime_ns
    assert export.cached_export(report, find_nsys, silent).stat().st_mtime_ns == first
    assert export.cached_export(report, no_nsys, silent) == made  # needs no nsys
    os.utime(report, ns=(0, 12345))
    assert export.cached_export(report, find_nsys, silent).stat().st_mtime_ns > first


@pytest.mark.met("3 files", "a kept export that is damaged, or of another nsys", "made anew")
@pytest.mark.parametrize("damage", ["zeroed", "zeros in the middle", "cut", "gone", "another nsys", "another version"])
def test_a_damaged_or_foreign_cache_is_never_trusted(report: Path, damage: str) -> None:
    made = export.cached_export(report, find_nsys, silent)
    count, provenance = backtraces(made), made.with_suffix(".json")
    content, stored = made.read_bytes(), json.loads(provenance.read_text())
    middle = len(content) // 2
    if damage == "zeroed":
        made.write_bytes(bytes(len(content)))
    elif damage == "zeros in the middle":
        made.write_bytes(content[:middle] + bytes(4096) + content[middle + 4096 :])
    elif damage == "cut":
        made.write_bytes(content[:middle])
    elif damage == "gone":
        made.unlink()
    elif damage == "another nsys":
        provenance.write_text(json.dumps({**stored, "nsys_version": "2030.1"}))
    else:
        provenance.write_text(json.dumps({**stored, "export_version": -1}))
    assert backtraces(export.cached_export(report, find_nsys, silent)) == count


@pytest.mark.met("11 circumstances", "kill -9 at any moment of an export", "made anew")
def test_a_kill_at_any_moment_leaves_nothing_that_is_trusted(report: Path) -> None:
    expected = backtraces(export.cached_export(report, find_nsys, silent))
    begin = time.monotonic()
    shutil.rmtree(report.parent / ".nsys-sync")
    subprocess.run([NSYS_SYNC, "report", str(report)], capture_output=True, cwd=report.parent)
    whole = time.monotonic() - begin
    trusted = 0
    for number in range(KILLS):
        shutil.rmtree(report.parent / ".nsys-sync", ignore_errors=True)
        process = subprocess.Popen(
            [NSYS_SYNC, "report", str(report)],
            cwd=report.parent,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        time.sleep(whole * (0.2 + 0.8 * number / KILLS))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        database = report.parent / ".nsys-sync" / "busy.nsys-rep.sqlite"
        if export.kept_export(report, export.seen([report]), find_nsys().version_text):
            trusted += 1
            assert backtraces(database) == expected
        assert backtraces(export.cached_export(report, find_nsys, silent)) == expected
    assert trusted < KILLS  # some kills came before the end
    assert not list(report.parent.glob("*.html")) and not list(report.parent.glob("*.part"))


@pytest.mark.met("3 files", "a report in a folder that cannot be written", "the user's cache")
def test_a_folder_that_cannot_be_written_uses_the_users_cache(
    report: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (report.parent / ".nsys-sync").write_text("in the way")  # root can write into any folder
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = export.cached_export(report, find_nsys, silent)
    assert made.parent == tmp_path / "cache" / "nsys-sync" and backtraces(made) > 500
    assert export.cached_export(report, find_nsys, silent) == made


@pytest.mark.met("3 files", "a report named .qdrep", "exported")
def test_old_reports_have_another_ending(report: Path) -> None:
    old = report.with_suffix(".qdrep")
    report.rename(old)
    assert backtraces(export.cached_export(old, find_nsys, silent)) > 500


def test_progress_is_nsyss_own(report: Path) -> None:
    seen: list[tuple[str, int]] = []
    export.cached_export(report, find_nsys, lambda step, percent: seen.append((step, percent)))
    assert ("exporting", 100) in seen
    assert all(0 <= percent <= 100 for _, percent in seen)


@pytest.mark.met("11 circumstances", "SIGTERM during an export", "status 143, and nothing beside the report")
def test_sigterm_leaves_nothing_behind(report: Path) -> None:
    process = subprocess.Popen(
        [NSYS_SYNC, "report", str(report)], cwd=report.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    folder = report.parent / ".nsys-sync"
    while not folder.exists() or not list(folder.iterdir()):  # until the export has begun
        assert process.poll() is None
        time.sleep(0.01)
    process.terminate()
    assert process.wait(timeout=30) == 128 + signal.SIGTERM
    assert not folder.exists()
