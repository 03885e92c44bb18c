"""`profile` and `export` with a real nsys (scripts/install_nsys.sh): programs that need no GPU."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from nsys_sync.errors import NsysError, UsageError
from nsys_sync.nsys.find import Nsys, find_nsys
from nsys_sync.nsys.profile import CaptureOptions, capture_command, program_command

NSYS_SYNC = str(Path(sys.executable).with_name("nsys-sync"))
FAKE = Nsys(Path("/fake/nsys"), (2023, 4, 4), "2023.4.4", True)


@pytest.fixture(scope="module", autouse=True)
def nsys() -> Nsys:
    try:
        found = find_nsys()
    except NsysError:
        assert "CI" not in os.environ, "CI must install nsys: a skipped end-to-end test proves nothing"
        pytest.skip("no nsys on this machine: scripts/install_nsys.sh DIR, then export NSYS_SYNC_NSYS=DIR/bin/nsys")
    return found


def profile(
    folder: Path, *arguments: str, stdin: str | None = None, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [NSYS_SYNC, "profile", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        input=stdin,
        env={**os.environ, **(environment or {})},
        timeout=180,
    )


def program(folder: Path, text: str, name: str = "program.py") -> None:
    """Runs a little: nsys 2023.4 now and then aborts Python programs that end at once."""
    (folder / name).write_text(f"import time; time.sleep(0.4)\n{text}", encoding="utf-8")


def options_of(command: Sequence[str]) -> dict[str, str]:
    return dict(part.split("=", 1) for part in command if part.startswith("--") and "=" in part)


def test_the_command_has_what_exact_stacks_need(nsys: Nsys) -> None:
    command, warnings = capture_command(nsys, CaptureOptions(output="a b"), ["python", "train.py", "--force"])
    assert warnings == []
    assert options_of(command) == {
        "--trace": "cuda,nvtx",
        "--sample": "process-tree",
        "--cpuctxsw": "none",
        "--cudabacktrace": "sync:0",
        "--python-backtrace": "cuda",
        "--python-sampling": "true",
        "--python-sampling-frequency": "1000",
        "--cuda-graph-trace": "node",
        "--output": "a b",
        "--force-overwrite": "false",
    }
    assert command[-3:] == ["python", "train.py", "--force"]


def test_a_capture_range_does_not_kill_the_program(nsys: Nsys) -> None:
    given = options_of(capture_command(nsys, CaptureOptions("x", capture_range="nvtx:epoch@train"), ["p"])[0])
    assert (given["--capture-range"], given["--nvtx-capture"]) == ("nvtx", "epoch@train")
    assert (given["--capture-range-end"], given["--kill"]) == ("stop", "none")
    with pytest.raises(UsageError):
        capture_command(nsys, CaptureOptions("x", capture_range="nvtx:"), ["p"])


def test_all_backtraces_keep_launches_out_by_their_threshold(nsys: Nsys) -> None:
    given = options_of(
        capture_command(nsys, CaptureOptions("x", all_backtraces=True, backtrace_threshold_ns=10), ["p"])[0]
    )
    assert given["--cudabacktrace"] == "all:10,kernel:1000000000,other:1000000000"


def test_the_users_own_argument_wins(nsys: Nsys) -> None:
    options = CaptureOptions("x", nsys_arguments=("--trace=cuda", "-s", "none"))
    command, _ = capture_command(nsys, options, ["p"])
    assert [part for part in command if part.startswith("--trace")] == ["--trace=cuda"]
    assert not [part for part in command if part.startswith("--sample=")]


def test_what_an_old_nsys_cannot_do_is_said(tmp_path: Path) -> None:
    old = tmp_path / "nsys"
    old.write_text("#!/bin/sh\necho '  --trace= --sample= --cudabacktrace= --output='\n")
    old.chmod(0o755)
    command, warnings = capture_command(Nsys(old, (2021, 1), "2021.1", True), CaptureOptions("x"), ["p"])
    assert "--python-backtrace" not in options_of(command)
    assert any("--python-backtrace: Python stacks of syncs" in warning for warning in warnings)


def test_what_runs_with_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program(tmp_path, "", "-dash.py")
    assert program_command(["-dash.py", "-x"], None)[1:] == ["./-dash.py", "-x"]
    assert program_command(["-x"], "pkg")[1:] == ["-m", "pkg", "-x"]
    assert program_command(["true"], None) == ["true"]
    for wrong in (["nosuch.py"], ["no-such-program"], []):
        with pytest.raises(UsageError):
            program_command(wrong, None)


def test_a_program_without_cuda(tmp_path: Path) -> None:
    program(tmp_path, "import sys; print('out', *sys.argv[1:]); print('err', file=sys.stderr)")
    done = profile(tmp_path, "program.py", "--force", "-o", "a b")
    assert (done.returncode, done.stdout) == (0, "out --force -o a b\n")
    assert "err\n" in done.stderr
    assert "no CUDA activity was captured. Did the program use the GPU" in done.stderr
    assert (tmp_path / "program.nsys-rep").exists()
    again = profile(tmp_path, "program.py")
    assert again.returncode == 2 and "exists" in again.stderr


def test_output_goes_where_ours_goes_even_to_a_file(tmp_path: Path) -> None:
    program(tmp_path, "import sys; print('first'); sys.stdout.flush(); print('second')")
    with (tmp_path / "log").open("w") as log:
        log.write("before\n")
        log.flush()
        subprocess.run([NSYS_SYNC, "profile", "--no-report", "program.py"], cwd=tmp_path, stdout=log, check=True)
    assert (tmp_path / "log").read_text() == "before\nfirst\nsecond\n"


def test_standard_input_reaches_the_program(tmp_path: Path) -> None:
    program(tmp_path, "print(input().upper())")
    assert profile(tmp_path, "--no-report", "program.py", stdin="typed\n").stdout == "TYPED\n"


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("raise SystemExit(7)", 7),
        ("raise ValueError('on purpose')", 1),
        ("import os, signal, time; time.sleep(0.3); os.kill(os.getpid(), signal.SIGKILL)", 137),
    ],
)
def test_the_exit_status_is_the_programs(text: str, status: int, tmp_path: Path) -> None:
    program(tmp_path, text)
    assert profile(tmp_path, "--no-report", "program.py").returncode == status
    assert (tmp_path / "program.nsys-rep").exists()


def test_a_range_that_never_opens_is_named(tmp_path: Path) -> None:
    program(tmp_path, "raise SystemExit(3)")
    done = profile(tmp_path, "--capture-range", "cudaProfilerApi", "program.py")
    assert done.returncode in (3, 134)  # the library that nsys 2023.4.4 injects aborts at exit then
    assert "the capture range cudaProfilerApi never opened" in done.stderr
    assert not (tmp_path / "program.nsys-rep").exists()


def test_a_module_and_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    program(tmp_path / "pkg", "import sys; print(sys.argv[1:])", "__main__.py")
    done = profile(tmp_path, "--no-report", "-o", "out", "-m", "pkg", "--force", "-o", "x")
    assert (done.returncode, done.stdout) == (0, "['--force', '-o', 'x']\n")
    assert (tmp_path / "out.nsys-rep").exists()


@pytest.mark.parametrize("name", ["with space.py", "ünïcode.py", "-dash.py"])
def test_odd_names_in_odd_folders(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "sp ace ünï"
    folder.mkdir()
    program(folder, "import helper; print('ran')", name)
    program(folder, "", "helper.py")
    done = profile(folder, "--no-report", "-o", "re port", "--", name)
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr
    assert (folder / "re port.nsys-rep").exists()


def test_patterns_in_the_reports_name(tmp_path: Path) -> None:
    program(tmp_path, "")
    done = profile(tmp_path, "--no-report", "-o", "r%q{RANK}_100%%", "program.py", environment={"RANK": "3"})
    assert done.returncode == 0
    assert (tmp_path / "r3_100%.nsys-rep").exists()


def test_dry_run_prints_a_command_for_a_shell(tmp_path: Path) -> None:
    program(tmp_path, "", "a b.py")
    done = profile(tmp_path, "--dry-run", "a b.py", "it's")
    assert done.returncode == 0 and list(tmp_path.iterdir()) == [tmp_path / "a b.py"]
    assert "--output='a b'" in done.stdout or "'--output=a b'" in done.stdout
    assert done.stdout.rstrip().endswith("""'a b.py' 'it'"'"'s'""")


LOOP = """
import sys, time
print("started", flush=True)
try:
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(9)
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("started", flush=True)
time.sleep(60)
"""


def started(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [NSYS_SYNC, "profile", "program.py"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "started\n"
    time.sleep(1)
    return process


@pytest.mark.met("11 circumstances", "Ctrl-C during profile", "the capture is kept")
def test_control_c_reaches_the_program_and_the_capture_is_kept(tmp_path: Path) -> None:
    program(tmp_path, LOOP)
    process = started(tmp_path)
    os.killpg(process.pid, signal.SIGINT)  # what a terminal does
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (9, "interrupted\n")
    assert "no CUDA activity was captured" in err
    assert (tmp_path / "program.nsys-rep").exists()


@pytest.mark.met("11 circumstances", "Ctrl-C twice on a program that ignores it", "both nsys and program end")
def test_a_second_control_c_ends_it(tmp_path: Path) -> None:
    program(tmp_path, STUBBORN)
    process = started(tmp_path)
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(1)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode != 0
    for _ in range(50):
        left = subprocess.run(["pgrep", "-af", str(tmp_path)], capture_output=True, text=True).stdout
        if not left:
            break
        time.sleep(0.2)
    assert left == ""


def test_export_of_a_real_report(tmp_path: Path) -> None:
    program(tmp_path, "import time; time.sleep(0.2)")
    assert profile(tmp_path, "--no-report", "program.py").returncode == 0

    def export(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [NSYS_SYNC, "export", *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=120
        )

    assert export("program.nsys-rep").returncode == 0
    with sqlite3.connect(tmp_path / "program.sqlite") as database:
        (samples,) = database.execute("SELECT count(*) FROM NSYS_SYNC_PYTHON_BACKTRACE").fetchone()
    assert samples > 50  # 1 kHz over 0.2 s and more
    again = export("program.nsys-rep")
    assert again.returncode == 1 and "exists" in again.stderr
    assert export("program.nsys-rep", "--force").returncode == 0
    secret = "NSYS_SYNC_NSYS" if "NSYS_SYNC_NSYS" in os.environ else "PATH"
    assert secret.encode() in (tmp_path / "program.sqlite").read_bytes()
    assert export("program.nsys-rep", "--scrub", "-o", "clean.sqlite").returncode == 0
    assert secret.encode() not in (tmp_path / "clean.sqlite").read_bytes()
    assert export("program.sqlite", "--scrub", "-o", "clean2.sqlite").returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "clean.sqlite",
        "clean2.sqlite",
        "program.nsys-rep",
        "program.py",
        "program.sqlite",
    ]


@pytest.mark.met("3 files", "a report that is none, is cut, or of a newer nsys", "refused, with what to do")
def test_reports_that_nsys_cannot_read(tmp_path: Path) -> None:
    program(tmp_path, "")
    assert profile(tmp_path, "--no-report", "program.py").returncode == 0
    whole = (tmp_path / "program.nsys-rep").read_bytes()

    def refused(content: bytes) -> str:
        (tmp_path / "bad.nsys-rep").write_bytes(content)
        done = subprocess.run([NSYS_SYNC, "report", "bad.nsys-rep"], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
        assert not (tmp_path / ".nsys-sync" / "bad.nsys-rep.sqlite").exists()
        return done.stderr

    assert "is empty (0 bytes)" in refused(b"")
    assert "holds only zeros" in refused(bytes(5000))
    assert "is no report of Nsight Systems" in refused(b"hello")
    assert "cannot export it" in refused(whole[: len(whole) // 2])
    newer = whole.replace(b"Profiler Report 20", b"Profiler Report 29", 1)
    assert "was written by nsys 29" in refused(newer) and "cannot read it" in refused(newer)


def test_a_program_that_never_ran_is_no_success(tmp_path: Path) -> None:
    fake = tmp_path / "nsys"
    fake.write_text("#!/bin/sh\ncase $1 in --version) echo 'version 2023.4.4';; esac\nexit 0\n")
    fake.chmod(0o755)
    program(tmp_path, "print('ran')")
    done = profile(tmp_path, "program.py", environment={"NSYS_SYNC_NSYS": str(fake)})
    assert (done.returncode, done.stdout) == (1, "")
    assert "nsys wrote no report" in done.stderr


@pytest.mark.met("11 circumstances", "profile with a socket as its output", "the program's output arrives")
def test_output_to_a_socket_is_not_lost(tmp_path: Path) -> None:
    import socket

    program(tmp_path, "import sys; print('out'); print('err', file=sys.stderr)")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [NSYS_SYNC, "profile", "--no-report", "program.py"], cwd=tmp_path, stdout=theirs, stderr=theirs
        )
        assert process.wait(timeout=120) == 0
        theirs.close()
        said = b"".join(iter(lambda: ours.recv(4096), b"")).decode()
    assert "out" in said and "err" in said  # the two streams share the socket, and mix


def test_the_programs_own_arguments_and_umask_are_left_alone(tmp_path: Path) -> None:
    program(tmp_path, "", "ü.py")
    program(tmp_path, "import os, sys; print(sys.argv[1:], oct(os.umask(0)))")
    done = profile(tmp_path, "--no-report", "program.py", "--config", "ü.py")
    assert done.stdout == f"['--config', 'ü.py'] {oct(current_umask())}\n"


def current_umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def test_nvtx_ranges_need_not_be_registered_strings(nsys: Nsys) -> None:
    given = options_of(capture_command(nsys, CaptureOptions("x", capture_range="nvtx:epoch"), ["p"])[0])
    assert given["--env-var"] == "NSYS_NVTX_PROFILER_REGISTER_ONLY=0"


@pytest.mark.parametrize("arguments", [["-o", ""], ["-o", "folder/"], ["--delay", "-1s"], ["--duration", "0s"]])
def test_wrong_usage(arguments: list[str], tmp_path: Path) -> None:
    program(tmp_path, "print('ran')")
    done = profile(tmp_path, *arguments, "program.py")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_a_device_is_never_replaced(tmp_path: Path) -> None:
    program(tmp_path, "")
    assert profile(tmp_path, "--no-report", "program.py").returncode in (0, 134)
    os.mkfifo(tmp_path / "pipe")
    done = subprocess.run(
        [NSYS_SYNC, "export", "program.nsys-rep", "--force", "-o", "pipe"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2 and (tmp_path / "pipe").is_fifo()


NVTX_LIBRARY = """
#include <nvtx3/nvToolsExt.h>
void push(const char *name) { nvtxRangePushA(name); }
void pop(void) { nvtxRangePop(); }
"""
NVTX_PROGRAM = """
import ctypes, time
nvtx = ctypes.CDLL("./libranges.so")
for i in range(3):
    nvtx.push(b"step %d" % i); time.sleep(0.05); nvtx.pop()
nvtx.push(b"epoch"); nvtx.push(b"inside"); time.sleep(0.2); nvtx.pop(); nvtx.pop()
time.sleep(0.2)
raise SystemExit(5)
"""


@pytest.mark.parametrize(
    ("capture_range", "names"),
    [("none", {"step 0", "step 1", "step 2", "epoch", "inside"}), ("nvtx:epoch", {"inside"})],
)
def test_an_nvtx_program_whole_or_within_a_range(
    nsys: Nsys, capture_range: str, names: set[str], tmp_path: Path
) -> None:
    """With strings that are not registered, as PyTorch's ranges; the headers are those that nsys brings."""
    headers = Path(os.path.realpath(nsys.path)).parent / "nvtx" / "include"
    compiler = shutil.which("cc")
    if compiler is None or not headers.is_dir():
        pytest.skip("no C compiler, or no NVTX headers with this nsys")
    (tmp_path / "ranges.c").write_text(NVTX_LIBRARY)
    build = [compiler, "-shared", "-fPIC", f"-I{headers}", "ranges.c", "-o", "libranges.so", "-ldl"]
    subprocess.run(build, cwd=tmp_path, check=True)
    program(tmp_path, NVTX_PROGRAM)
    done = profile(tmp_path, "--no-report", "--capture-range", capture_range, "program.py")
    assert done.returncode == 5, done.stderr
    subprocess.run([NSYS_SYNC, "export", "program.nsys-rep"], cwd=tmp_path, capture_output=True, check=True)
    with sqlite3.connect(tmp_path / "program.sqlite") as database:
        rows = database.execute('SELECT text FROM NVTX_EVENTS WHERE "eventType" = 59 AND text IS NOT NULL').fetchall()
    found = {name for (name,) in rows}
    assert names <= found
    assert capture_range == "none" or not any(name.startswith("step") for name in found)
