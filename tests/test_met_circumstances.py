"""Each command where the machine gives little: memory, room on the disk, a reader, a wide terminal, a home folder."""

from __future__ import annotations

import fcntl
import functools
import json
import os
import pty
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from test_cli import COMMAND, TIMEOUT_S, run, state, steps_trace
from test_detect import environment as detect_environment
from test_detect import folder as stand_in  # noqa: F401 (a fixture)

from nsys_sync import analyze
from nsys_sync.render.json_report import render_json

met = functools.partial(pytest.mark.met, "11 circumstances")
ESCAPE = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
BUDGETS = ("--max-stall", "5%", "--forbid", "print")
STEP = "import torch\nx = torch.tensor(1, device='cuda')\nfor _ in range(3):\n    print(x.item())\n"


def formats(*names: str) -> list[str]:
    return [option for name in names for option in ("-f", name)]


EVERY_FORMAT = {
    "report": formats("terminal", "html", "markdown", "json", "csv", "parquet"),
    "diff": formats("terminal", "html", "markdown", "json"),
    "check": formats("terminal", "markdown", "json", "junit", "sarif"),
}
COMMANDS: dict[str, tuple[str, ...]] = {
    "report": ("report", "t.sqlite", "-f", "terminal"),
    "report in every format": ("report", "t.sqlite", "-o", "out/", *EVERY_FORMAT["report"]),
    "demo": ("demo", "-f", "terminal"),
    "diff": ("diff", "t.sqlite", "t.json", "-f", "terminal"),
    "diff in every format": ("diff", "t.json", "t.sqlite", "-o", "out/", *EVERY_FORMAT["diff"]),
    "check": ("check", "t.json", *BUDGETS),
    "check in every format": ("check", "t.json", *BUDGETS, "-o", "out/", *EVERY_FORMAT["check"]),
    "check on GitHub": ("check", "t.json", *BUDGETS, "-f", "github"),
    "export --scrub": ("export", "t.sqlite", "--scrub"),
    "profile --dry-run": ("profile", "--dry-run", "train.py"),
    "detect": ("detect", "train.py"),
    "detect in every format": ("detect", "-o", "out/", *EVERY_FORMAT["report"], "train.py"),
    "doctor": ("doctor",),
    "--version": ("--version",),
    "--help": ("--help",),
    "check --help": ("check", "--help"),
}
STATUS = {
    **dict.fromkeys(COMMANDS, 0),
    **{name: 1 for name in COMMANDS if name.startswith("check ") or name == "check"},
}
STATUS |= {"doctor": 1, "check --help": 0}
PRINTS_NOTHING = {"export --scrub"}
NSYS = """#!/bin/sh
case $1 in --version) echo 'version 2023.4.4';; esac
echo ' --python-backtrace= --python-sampling= --python-sampling-frequency= --cudabacktrace= --cuda-graph-trace= '
"""


@pytest.fixture
def folder(stand_in: Path, small_saved: bytes) -> Path:  # noqa: F811
    """A folder with a trace, its saved report and a program; an nsys that says its version is beside it."""
    steps_trace().write(stand_in / "t.sqlite")
    (stand_in / "t.json").write_bytes(small_saved)
    (stand_in / "train.py").write_text(STEP, "utf-8")
    (stand_in / "pyproject.toml").write_text("")
    (stand_in.parent / "nsys").write_text(NSYS)
    (stand_in.parent / "nsys").chmod(0o755)
    return stand_in


@pytest.fixture(scope="module")
def small_saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    trace = steps_trace().write(tmp_path_factory.mktemp("saved") / "t.sqlite")
    return render_json(analyze(trace)).encode()


def ran(
    name: str,
    folder: Path,
    shell: str = 'exec "$@"',
    unset: Sequence[str] = (),
    limits: Mapping[int, int] | None = None,
    **more: str,
) -> subprocess.CompletedProcess[bytes]:
    """One of COMMANDS, started by a line of shell."""

    def limit() -> None:
        for kind, most in (limits or {}).items():
            resource.setrlimit(kind, (most, most))

    environment = detect_environment(folder, NSYS_SYNC_NSYS=str(folder.parent / "nsys"), **more)
    return subprocess.run(
        ["bash", "-c", shell, "bash", COMMAND, *COMMANDS[name]],
        cwd=folder,
        env={key: value for key, value in environment.items() if key not in unset},
        capture_output=True,
        preexec_fn=limit if limits else None,
        stdin=subprocess.DEVNULL,
        timeout=4 * TIMEOUT_S,
    )


def holds(name: str, done: subprocess.CompletedProcess[bytes]) -> None:
    """It ended as it always does."""
    said = done.stderr.decode(errors="replace")
    assert done.returncode == STATUS[name], said
    assert "Traceback" not in said and "nsys-sync: error" not in said
    assert "atplotlib" not in said and "font" not in said
    assert bool(done.stdout) == (name not in PRINTS_NOTHING)


def one_line(done: subprocess.CompletedProcess[bytes], *says: str, status: int = 1) -> None:
    said = done.stderr.decode(errors="replace")
    assert (done.returncode, done.stdout) == (status, b""), said
    assert said.startswith("nsys-sync: error: ") and said.count("\n") == 1, said
    assert all(part in said for part in says), said


# ---- memory and threads

READS_TRACES = ("report in every format", "diff", "check", "export --scrub", "detect")


@met("ulimit -v below 1 GB", "one line: how much there is, how much is needed; --help and --version still answer")
def test_too_little_memory(folder: Path) -> None:
    before = state(folder)
    for name in READS_TRACES:
        one_line(ran(name, folder, limits={resource.RLIMIT_AS: 600 << 20}), "ulimit -v allows 600 MB", "1024")
    one_line(ran("report", folder, limits={resource.RLIMIT_AS: 64 << 20}), "ulimit -v allows 64 MB")
    assert state(folder) == before
    for name in ("--version", "--help", "check --help", "doctor"):
        holds(name, ran(name, folder, limits={resource.RLIMIT_AS: 64 << 20}))


@met("ulimit -v of 1 GB", "every command works")
def test_just_enough_memory(folder: Path) -> None:
    for name in READS_TRACES:
        holds(name, ran(name, folder, limits={resource.RLIMIT_AS: 1 << 30}))


@pytest.mark.parametrize(
    ("error", "says"),
    [
        pytest.param(
            "MemoryError()", "not enough memory", marks=met("memory ends while a trace is read", "one line, status 1")
        ),
        pytest.param(
            "pyarrow.ArrowMemoryError('malloc of size 64 failed')",
            "not enough memory",
            marks=met("memory ends within Arrow", "one line, status 1"),
        ),
        pytest.param(
            'RuntimeError("can\'t start new thread")',
            "no thread can be started",
            marks=met("no thread can be started (ulimit -u)", "one line, status 1"),
        ),
        pytest.param(
            "OSError(28, 'No space left on device', '/tmp/x')",
            "/tmp/x: No space left on device",
            marks=met("the temporary folder is full", "one line, with another to choose"),
        ),
    ],
)
def test_what_runs_out_in_the_middle(error: str, says: str, folder: Path) -> None:
    code = (
        "import sys, pyarrow, nsys_sync.pipeline as p\nfrom nsys_sync.cli.main import main\n"
        f"def analyze(*a, **k): raise {error}\np.analyze = analyze\n"
        "sys.argv = ['nsys-sync', 'report', 't.sqlite']\nmain()"
    )
    before = state(folder)
    one_line(run("-c", code, cwd=folder, command=(sys.executable,), env=detect_environment(folder)), says)
    assert state(folder) == before


@met("a machine of many cores", "numpy starts no thread a core, and programs that are started see nothing of that")
def test_programs_have_the_environment_as_it_was(folder: Path) -> None:
    (folder / "train.py").write_text("import os; print(os.environ.get('OPENBLAS_NUM_THREADS'))")
    assert ran("detect", folder, unset=["OPENBLAS_NUM_THREADS"]).stdout == b"None\n"
    assert ran("detect", folder, OPENBLAS_NUM_THREADS="7").stdout == b"7\n"


# ---- a full disk

WRITES = ("report in every format", "demo", "check in every format", "export --scrub")


@met("a full disk (ulimit -f 0)", "one line that names the file, and nothing half-written; what needs no file works")
def test_no_room_for_any_file(folder: Path) -> None:
    before = state(folder)
    for name in WRITES:
        done = ran(name, folder, limits={resource.RLIMIT_FSIZE: 0})
        one_line(done, "No usable temporary directory" if name == "demo" else "File too large")
        assert {path for path in state(folder) if path != "out"} == {*before}, name
        shutil.rmtree(folder / "out", ignore_errors=True)
    for name in ("check", "doctor"):
        holds(name, ran(name, folder, limits={resource.RLIMIT_FSIZE: 0}))
    one_line(ran("detect", folder, limits={resource.RLIMIT_FSIZE: 0}), "No usable temporary directory")


@met("a disk with room for the first file of several (64 kB)", "one line; the whole files stay, and no part of one")
def test_room_for_some(folder: Path) -> None:
    before = state(folder)
    done = ran("report in every format", folder, limits={resource.RLIMIT_FSIZE: 20 << 10})
    one_line(done, "out/t.sync.html: cannot be written (File too large)")
    assert not list((folder / "out").iterdir())
    (folder / "out").rmdir()
    assert state(folder) == before


@met("a full temporary folder", "what needs it says so in one line, and how to name another; the rest works")
def test_a_full_temporary_folder(folder: Path) -> None:
    mounted = 'mount -t tmpfs -o size=4k none "$TMPDIR" && cat /dev/zero >"$TMPDIR"/x 2>/dev/null; exec "$@"'
    full = folder.parent / "full"
    full.mkdir()
    if subprocess.run(["unshare", "-m", "bash", "-c", mounted, "bash", "true"], env={"TMPDIR": str(full)}).returncode:
        pytest.skip("nothing can be mounted here")
    shell = f"exec unshare -m bash -c '{mounted}' bash \"$@\""
    for name in ("report", "export --scrub"):
        holds(name, ran(name, folder, shell, TMPDIR=str(full)))
    done = ran("demo", folder, shell, TMPDIR=str(full))
    one_line(done, "No space left on device", "export TMPDIR=FOLDER") if done.returncode else holds("demo", done)


# ---- standard streams


@met("standard output on a full disk (>/dev/full)", "one line and status 1, also for --help, --version and doctor")
def test_a_full_standard_output(folder: Path) -> None:
    for name in ("report", "check", "profile --dry-run", "doctor", "--version", "check --help"):
        done = ran(name, folder, 'exec "$@" >/dev/full')
        assert done.returncode == 1, name
        assert b"standard output: cannot be written (No space left on device)" in done.stderr, name
        assert done.stderr.count(b"\n") == 1 and b"Traceback" not in done.stderr, name


@met("a reader that has enough (| head)", "no complaint; the exit status stays the command's answer")
def test_a_reader_that_has_enough(folder: Path) -> None:
    for name in ("report", "report in every format", "diff", "check", "profile --dry-run"):
        done = ran(name, folder, '"$@" | (exec 0<&-; exit); exit ${PIPESTATUS[0]}')
        assert done.returncode == STATUS[name], name
        assert all(line.startswith("Wrote ") for line in done.stderr.decode().splitlines()), (name, done.stderr)
    for name in ("doctor", "check --help"):
        assert ran(name, folder, '"$@" | (exec 0<&-; exit); exit ${PIPESTATUS[0]}').stderr == b"", name


@met("standard error that nobody reads, is full or closed", "the reports, and the exit status, as always")
def test_standard_error_that_cannot_be_written(folder: Path) -> None:
    for name in ("check in every format", "export --scrub", "--version"):
        for shell in (
            'exec "$@" 2>/dev/full',
            'exec "$@" 2>&-',
            '"$@" 2>&1 >out.txt | (exec 0<&-); exit ${PIPESTATUS[0]}',
        ):
            done = ran(name, folder, shell)
            assert done.returncode == STATUS[name], (name, shell, done.stderr)
            (folder / "t.scrubbed.sqlite").unlink(missing_ok=True)
    json.loads((folder / "out" / "t.check.json").read_bytes())


@met("closed standard output (>&-)", "one line where it was to be printed on; files are written")
def test_a_closed_standard_output(folder: Path) -> None:
    done = ran("report", folder, 'exec "$@" >&-')
    assert done.returncode == 1 and done.stderr == b"nsys-sync: error: standard output is closed. Name a file with -o\n"
    assert ran("detect", folder, 'exec "$@" >&- <&-').returncode == 0
    assert ran("export --scrub", folder, 'exec "$@" >&- <&- 2>&-').returncode == 0
    assert (folder / "t.scrubbed.sqlite").stat().st_size > 0


# ---- terminals


def in_terminal(name: str, folder: Path, columns: int, **more: str) -> bytes:
    """What it shows in a terminal so wide, without the escape codes if there should be none."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = detect_environment(folder, **{"NSYS_SYNC_NSYS": str(folder.parent / "nsys"), "TERM": "xterm", **more})
    environment = {key: value for key, value in environment.items() if key not in ("COLUMNS", "LINES")}
    with subprocess.Popen(
        [COMMAND, *COMMANDS[name]], cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                chunk = os.read(ours, 65536)
            except OSError:  # what Linux says when the last program has closed it
                break
            if not chunk:
                break
            shown += chunk
        os.close(ours)
        assert process.wait(timeout=TIMEOUT_S) == STATUS[name], shown
    return shown.replace(b"\r\n", b"\n")


def widest(shown: bytes) -> int:
    return max(len(line) for line in ESCAPE.sub(b"", shown).decode().splitlines())


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param(40, marks=met("a terminal 40 columns wide", "wrapped at 40; no number and no place is cut")),
        pytest.param(300, marks=met("a terminal 300 columns wide", "nothing is wider than it, and nothing lost")),
    ],
)
def test_narrow_and_wide_terminals(columns: int, folder: Path) -> None:
    for name in ("diff", "check", "detect", "check --help", "report"):
        shown = in_terminal(name, folder, columns)
        assert widest(shown) <= columns, name
        assert b"\x1b[" in shown, name
    shown = ESCAPE.sub(b"", shown)
    for part in ("read_loss", "train.py:10", "6.80 µs", "3.60 µs", "45.6 %"):
        assert part.encode() in shown, part
    shown = in_terminal("doctor", folder, columns)
    assert all(len(line) <= columns or len(line.split()) == 1 for line in shown.decode().splitlines())


@met("a terminal 20 columns wide", "wrapped at 20")
def test_a_terminal_of_a_watch(folder: Path) -> None:
    shown = in_terminal("report", folder, 20)
    assert widest(shown) <= 20 and b"read_loss" in shown


@met("a terminal that says it has 0 columns", "as for a file: 100 columns")
def test_a_terminal_without_a_width(folder: Path) -> None:
    assert 60 < widest(in_terminal("report", folder, 0)) <= 100


@pytest.mark.parametrize(
    "env",
    [
        pytest.param({"NO_COLOR": "1"}, marks=met("NO_COLOR in a terminal", "no escape code in any report")),
        pytest.param({"TERM": "dumb"}, marks=met("TERM=dumb in a terminal", "no escape code in any report")),
    ],
)
def test_terminals_without_colour(env: dict[str, str], folder: Path) -> None:
    for name in ("report", "diff", "check", "detect"):
        assert b"\x1b" not in in_terminal(name, folder, 80, **env), name


@met("COLUMNS=40 and no terminal", "wrapped at 40, as by other programs")
def test_columns_without_a_terminal(folder: Path) -> None:
    for name in ("report", "diff", "check"):
        assert widest(ran(name, folder, COLUMNS="40").stdout) <= 40, name
    assert widest(ran("report", folder, unset=["COLUMNS"]).stdout) > 60
    assert widest(ran("report", folder, COLUMNS="-1").stdout) > 60


# ---- language

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""}


@pytest.mark.parametrize(
    "env",
    [
        pytest.param(ASCII, marks=met("LC_ALL=C without Python's UTF-8 mode", "`?` for what ASCII lacks"), id="C"),
        pytest.param(
            {"PYTHONIOENCODING": "ascii"}, marks=met("PYTHONIOENCODING=ascii", "`?` for what ASCII lacks"), id="ascii"
        ),
    ],
)
def test_no_letters_beyond_ascii(env: dict[str, str], folder: Path) -> None:
    for name in ("report in every format", "check", "detect", "doctor", "check --help"):
        done = ran(name, folder, **env)
        holds(name, done)
        assert done.stdout.isascii(), name
    assert "µs" in (folder / "out" / "t.sync.md").read_text("utf-8")  # files are UTF-8 all the same


@met("LANG=C", "as always: Python's UTF-8 mode")
def test_the_c_locale(folder: Path) -> None:
    for name in ("report", "check --help"):
        holds(name, ran(name, folder, unset=["LC_ALL"], LANG="C"))


@met("LC_ALL of a locale that is not installed", "as always")
def test_a_locale_that_there_is_not(folder: Path) -> None:
    holds("report", ran("report", folder, LC_ALL="xx_YY.UTF-8"))


# ---- folders


@pytest.mark.parametrize(
    ("env", "unset"),
    [
        pytest.param({}, ["HOME"], marks=met("HOME unset", "every command works"), id="unset"),
        pytest.param({"HOME": "/proc/none"}, [], marks=met("HOME that is no folder", "every command works"), id="no"),
        pytest.param(
            {"HOME": "/proc", "XDG_CACHE_HOME": "/proc/x", "MPLCONFIGDIR": "/proc/x"},
            [],
            marks=met("HOME and cache that cannot be written", "every command works, without a complaint"),
            id="unwritable",
        ),
    ],
)
def test_no_home(env: dict[str, str], unset: list[str], folder: Path) -> None:
    for name in ("report in every format", "export --scrub", "detect", "doctor"):
        holds(name, ran(name, folder, unset=unset, **env))


@met("TMPDIR that is no folder", "every command works, doctor warns")
def test_no_temporary_folder(folder: Path) -> None:
    for name in ("demo", "export --scrub", "detect"):
        holds(name, ran(name, folder, TMPDIR="/proc/none"))
    assert b"TMPDIR=/proc/none is no folder" in ran("doctor", folder, TMPDIR="/proc/none").stdout


@met("a current folder that was removed", "one line; what needs no folder works")
def test_a_removed_folder(folder: Path) -> None:
    shell = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
    for name in ("report", "check", "detect", "export --scrub"):
        done = ran(name, folder, shell)
        assert done.returncode in (1, 2), name
        assert done.stderr.startswith(b"nsys-sync: error: ") and done.stderr.count(b"\n") == 1, (name, done.stderr)
    for name in ("--help", "--version"):
        holds(name, ran(name, folder, shell))


@met("umask 077", "files that only the user can read")
def test_a_strict_umask(folder: Path) -> None:
    holds("report in every format", ran("report in every format", folder, 'umask 077; exec "$@"'))
    holds("export --scrub", ran("export --scrub", folder, 'umask 077; exec "$@"'))
    modes = {path.stat().st_mode & 0o777 for path in (folder / "out").iterdir()}
    assert modes == {0o600}


# ---- signals

SLOW = (
    "import signal, sys, time, nsys_sync.pipeline as p\nfrom nsys_sync.cli.main import main\n"
    # What a shell starts in the background ignores SIGINT, and so does all that is started there.
    "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "def analyze(*a, **k): print('reading', flush=True); time.sleep(60)\n"
    "p.analyze = analyze\nsys.argv = ['nsys-sync', 'report', 't.sqlite']\nmain()"
)


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, marks=met("Ctrl-C in the middle", "status 130, nothing said, nothing left")),
        pytest.param(signal.SIGTERM, marks=met("SIGTERM in the middle", "status 143, nothing said, nothing left")),
        pytest.param(signal.SIGHUP, marks=met("the terminal is closed in the middle", "status 129, nothing left")),
    ],
)
def test_signals(number: signal.Signals, folder: Path) -> None:
    before = state(folder)
    with subprocess.Popen(
        [sys.executable, "-c", SLOW],
        cwd=folder,
        env=detect_environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"reading\n"
        process.send_signal(number)
        _, said = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, said.strip()) == (128 + number, b"")
    assert state(folder) == before
