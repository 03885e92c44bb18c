"""`nsys-sync detect` on a stand-in for PyTorch (`stand_in/torch`), which warns from C code as PyTorch does.

`scripts/check_detect_on_gpu.py` holds the same claims to a real PyTorch and GPU.
"""

from __future__ import annotations

import csv
import io
import json
import os
import pickle
import pty
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import nsys_sync
from nsys_sync import model
from nsys_sync.analysis.detection import detection
from nsys_sync.live.findings import Findings, RunningFrame, Wait, read_findings
from nsys_sync.live.watched import _Filters, command

STAND_IN = Path(__file__).parent / "stand_in" / "torch"
PACKAGE_IN = Path(nsys_sync.__file__).parents[1]
HAS_SPANS = sys.version_info >= (3, 11)
Ran = subprocess.CompletedProcess[str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The working directory; the stand-in is installed beside it."""
    shutil.copytree(STAND_IN, tmp_path / "site-packages" / "torch")
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{PACKAGE_IN}{os.pathsep}{folder.parent / 'site-packages'}",
        "PYTHONDONTWRITEBYTECODE": "1",
        **more,
    }


def run(folder: Path, *arguments: str, stdin: str | None = None, **more: str) -> Ran:
    return subprocess.run(
        arguments,
        cwd=folder,
        capture_output=True,
        text=True,
        input=stdin,
        env=environment(folder, **more),
        timeout=60,
    )


def detect(folder: Path, *arguments: str, stdin: str | None = None, **more: str) -> Ran:
    return run(folder, sys.executable, "-m", "nsys_sync.cli.main", "detect", *arguments, stdin=stdin, **more)


def detected(folder: Path, program: str, *arguments: str) -> dict[str, Any]:
    """The JSON report on a program, which must end well."""
    (folder / "train.py").write_text(program, "utf-8")
    done = detect(folder, "-o", "found.json", *arguments, "train.py")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((folder / "found.json").read_text("utf-8"))
    return found


def seen(found: dict[str, Any]) -> dict[tuple[int, str], int]:
    """(line, cause) → calls."""
    calls: dict[tuple[int, str], int] = {}
    for site in found["sites"]:
        key = site["location"]["line"], site["cause"]["id"]
        calls[key] = calls.get(key, 0) + site["calls"]
    return calls


def watched(folder: Path, *program: str, stdin: str | None = None, **more: str) -> tuple[Ran, Findings]:
    """What `detect` starts, alone."""
    findings = folder.parent / f"findings{time.monotonic_ns()}"
    findings.mkdir()
    done = run(folder, *command(sys.executable, findings, program), stdin=stdin, **more)
    return done, read_findings(findings)


# ---- the program runs as with python

PROGRAMS = {
    "arguments": "import sys; print(sys.argv, sys.path[0], sys.orig_argv[1:])",
    "its module": "print(sorted(globals()), __name__, __file__, __spec__, __package__, __doc__, type(__loader__))",
    "standard input": "print(input()); import sys; print(sys.stdin.read())",
    "exit with a number": "import sys; sys.exit(3)",
    "exit with a text": "import sys; sys.exit('no data')",
    "exit without": "raise SystemExit",
    "exception": "def f(x):\n    return 1 / x\nf(0)",
    "exceptions": "try:\n    {}['a']\nexcept KeyError as e:\n    raise ValueError('b') from e",
    "exception group": "raise ExceptionGroup('g', [ValueError('a'), TypeError('b')])",
    "syntax error": "print('a')\nif True\n    pass",
    "keyboard interrupt": "def f(): raise KeyboardInterrupt\nf()",
    "abrupt exit": "import os; print('a', flush=True); os._exit(5)",
    "signal": "import os, signal; print('a', flush=True); os.kill(os.getpid(), signal.SIGTERM)",
    "abort": "import os; os.abort()",
    "at exit": "import atexit, sys\natexit.register(print, 'last')\nprint('first')\n1 / 0",
    "own hook": "import sys\nsys.excepthook = lambda *e: print(e[0], e[2].tb_frame.f_code.co_name)\n1 / 0",
    "thread": "import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start(); t.join(); print(t.name)",
    "pickle": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))))",
    "a warning": "import warnings\nfor _ in range(3):\n    warnings.warn('old')\nwarnings.warn('new')",
    "warning filters": "import warnings\nwarnings.simplefilter('error')\nwarnings.warn('x')",
    "recorded warnings": "import warnings\nwith warnings.catch_warnings(record=True) as w:\n"
    "    warnings.simplefilter('always')\n    warnings.warn('x')\nprint([str(one.message) for one in w])",
    "another program": "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'raise SystemExit(4)'])",
    "spawned processes": "import multiprocessing as m\ndef f(x): return x * x\nif __name__ == '__main__':\n"
    "    with m.get_context('spawn').Pool(1) as p: print(p.map(f, [1, 2]))",
    "forked processes": "import multiprocessing as m\ndef f(x): return x * x\n"
    "with m.get_context('fork').Pool(2) as p: print(p.map(f, [1, 2]))",
    "without torch": "import sys; print('torch' in sys.modules)",
    "torch": "import torch\nprint(type(torch.__spec__.loader), type(torch.__loader__), torch)\n"
    "print(torch.cuda.is_initialized())",
    "torch's wait": "import torch\ntorch.tensor(1, device='cuda')\ntorch.cuda.synchronize()\nprint(torch._C.waits)",
    "error below a wait": "import torch\ndef f(): raise ValueError\n"
    "torch._C._cuda_synchronize = f\ntorch.cuda.synchronize()",
    "error in a wait": "import torch\ntorch.cuda.Event().synchronize(1)",
    "mode": "import torch\nprint(torch.cuda.get_sync_debug_mode())\ntorch.cuda.set_sync_debug_mode('default')\n"
    "print(torch.cuda.get_sync_debug_mode())",
    "mode error": "import torch\ntorch.cuda.set_sync_debug_mode('error')\nprint(torch.cuda.get_sync_debug_mode())\n"
    "torch.Tensor().item()",
    "mode warn": "import torch\ntorch.cuda.set_sync_debug_mode('warn')\nfor _ in range(3): torch.Tensor().item()",
    "its own sync_free": "import torch\nfrom nsys_sync import sync_free\nwith sync_free():\n    torch.Tensor().item()",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_runs_as_with_python(name: str, folder: Path) -> None:
    if name == "exception group" and not HAS_SPANS:
        pytest.skip("Python 3.11 has them")
    (folder / "train.py").write_text(PROGRAMS[name] + "\n", "utf-8")
    plain = run(folder, sys.executable, "train.py", "-x", "a b", stdin="one\ntwo\n")
    done, _ = watched(folder, "train.py", "-x", "a b", stdin="one\ntwo\n")
    assert (done.returncode, done.stdout, done.stderr) == (plain.returncode, plain.stdout, plain.stderr)


def test_modules_folders_and_links_run_as_with_python(folder: Path) -> None:
    package = folder / "package"
    package.mkdir()
    text = "import sys\nprint(sys.argv, sys.path[0], __name__, __spec__ and __spec__.name, __file__)\n1 / 0\n"
    for path in ("package/__init__.py", "package/other.py", "package/__main__.py", "no_ending"):
        (folder / path).write_text("" if "init" in path else text, "utf-8")
    (folder / "link.py").symlink_to("package/other.py")
    for program in (
        *(["-m", "package"], ["-m", "package.other", "-m", "x"], ["-m", "missing"], ["./package", "1"]),
        *(["no_ending"], ["link.py"], ["./package/../link.py"], [str(folder / "link.py")]),
    ):
        plain = run(folder, sys.executable, *program)
        done, _ = watched(folder, *program)
        assert (done.returncode, done.stdout, done.stderr) == (plain.returncode, plain.stdout, plain.stderr), program


def test_settings_of_the_environment_hold(folder: Path) -> None:
    (folder / "train.py").write_text("import sys, warnings\nprint(sys.path[0])\nwarnings.warn('x')\n", "utf-8")
    for more in ({"PYTHONSAFEPATH": "1"}, {"PYTHONWARNINGS": "error"}, {"PYTHONWARNINGS": "ignore"}):
        plain = run(folder, sys.executable, "train.py", **more)
        done, _ = watched(folder, "train.py", **more)
        assert (done.returncode, done.stdout, done.stderr) == (plain.returncode, plain.stdout, plain.stderr), more


def test_open_files_reach_the_program(folder: Path) -> None:
    (folder / "train.py").write_text("import os; os.write(9, b'written')\n", "utf-8")
    line = f'exec "{sys.executable}" -m nsys_sync.cli.main detect train.py 9>written'
    done = run(folder, "bash", "-c", line)
    assert done.returncode == 0 and (folder / "written").read_text() == "written", done.stderr


@pytest.mark.parametrize(
    ("program", "status"),
    [("raise SystemExit(7)", 7), ("1 / 0", 1), ("import os; os.kill(os.getpid(), 9)", 137), ("pass", 0)],
)
def test_the_exit_status_is_the_programs(program: str, status: int, folder: Path) -> None:
    (folder / "train.py").write_text(f"print('out', flush=True)\n{program}\n", "utf-8")
    done = detect(folder, "train.py")
    assert (done.returncode, done.stdout) == (status, "out\n")
    assert "Nothing was seen: the program did not import PyTorch" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_reach_the_program(number: signal.Signals, folder: Path) -> None:
    (folder / "train.py").write_text(
        "import signal, sys, time\nfor n in (2, 10, 15): signal.signal(n, lambda n, _: sys.exit(n))\n"
        "print('ready', flush=True)\ntime.sleep(30)\n",
        "utf-8",
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "nsys_sync.cli.main", "detect", "train.py"],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(number)
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == number
    assert f"The program ended with exit status {int(number)}" in said


def test_a_key_at_the_terminal_reaches_the_program_once(folder: Path) -> None:
    (folder / "train.py").write_text(
        "import signal, sys, time\nhits = []\nsignal.signal(2, lambda *_: hits.append(1))\n"
        "print('ready', flush=True)\nend = time.time() + 1.5\nwhile time.time() < end: time.sleep(0.1)\n"
        "print('hits', len(hits), sys.stdin.isatty())\n",
        "utf-8",
    )
    child, terminal = pty.fork()
    if not child:
        os.chdir(folder)
        command_line = [sys.executable, "-m", "nsys_sync.cli.main", "detect", "train.py"]
        os.execvpe(sys.executable, command_line, environment(folder))
    said = b""
    try:
        while b"ready" not in said:
            said += os.read(terminal, 1024)
        os.write(terminal, b"\x03")
        while b"What this cannot see" not in said:
            said += os.read(terminal, 1024)
    finally:
        os.close(terminal)
        os.waitpid(child, 0)
    assert b"hits 1 True" in said
    assert b"\x1b[1mNothing was seen" in said


# ---- what is seen

LOOP = """\
import torch
device = torch.tensor and "cuda"
x = torch.tensor(1, device="cuda")
DEVICE = "cuda:0"

def load(a, b):
    return a.to(DEVICE), b.cuda()

def select(y):
    mask = (y > 0)
    return y[mask]

def at(y, i):
    return y[i]

def cut(y, n):
    return y[:n]

def branch(t):
    if t > 0:
        return 1

def metrics(loss, acc):
    return loss.item(), acc.item(), loss.item()

def other(y):
    return torch.bincount(y)

def positions(y):
    return torch.nonzero(y)

def wait():
    torch.cuda.synchronize()
    torch.cuda.Event().synchronize()
    torch.cuda.current_stream().synchronize()

def show(loss):
    print("loss", loss.item())

for i in range(3):
    load(x, x), select(x), at(x, x), cut(x, x), branch(x), metrics(x, x), other(x), positions(x), wait()
show(x)
x.backward(lambda: x.cpu())
"""
LOOP_CALLS = {
    (7, "upload"): 6,
    (11, "mask-index"): 3,
    (14, "unknown"): 3,
    (17, "gpu-index"): 3,
    (20, "truth-value"): 3,
    (24, "scalar-read"): 9,
    (27, "unknown"): 3,
    (30, "nonzero"): 3,
    (33, "device-synchronize"): 3,
    (34, "event-synchronize"): 3,
    (35, "stream-synchronize"): 3,
    (38, "scalar-read"): 1,
    (43, "to-cpu"): 1,
}


def test_every_wait_is_counted_at_its_line_with_its_cause(folder: Path) -> None:
    found = detected(folder, LOOP)
    assert seen(found) == LOOP_CALLS
    assert found["calls"] == sum(LOOP_CALLS.values())
    sites = {(site["location"]["line"], site["operation"]): site for site in found["sites"]}
    if HAS_SPANS:
        assert {operation for line, operation in sites if line == 7} == {".to()", ".cuda()"}
    read = sites[24, ".item()"]
    assert read["location"]["label"] == "train.py:24 metrics" and read["location"]["function"] == "metrics"
    assert read["source"] == {
        "text": "return loss.item(), acc.item(), loss.item()",
        "basis": "unchanged since the program began",
    }
    assert read["cause"]["certainty"] == "likely"
    assert read["cause"]["evidence"] == ["line 24 was at `.item()` when PyTorch warned"]
    assert read["dependency"]["kind"] == "unknown"
    assert read["advice"][0] in {advice["id"] for advice in found["advice"]}
    assert [thread["name"] for thread in read["threads"]] == ["MainThread"]
    assert read["threads"][0]["calls"] == 9
    assert read["stack_variants"] == (3 if HAS_SPANS else 1)
    assert [frame["function"] for frame in read["python_stack"]] == ["metrics", "<module>"]
    assert sites[38, ".item()"]["dependency"]["kind"] == "false"
    assert sites[20, "if"]["dependency"]["reason"] == "control flow: if"
    assert sites[27, "torch.bincount()"]["cause"]["certainty"] == "open"
    assert sites[27, "torch.bincount()"]["advice"] == []
    explicit = sites[33, "torch.cuda.synchronize()"]
    assert explicit["cause"]["certainty"] == "certain" and explicit["dependency"]["kind"] == "explicit"
    assert [site["calls"] for site in found["sites"]] == sorted((s["calls"] for s in found["sites"]), reverse=True)
    assert found["torch_version"] == "2.11.0+stand.in" and found["watched_processes"] == 1
    assert (found["schema_version"], found["program"], found["exit_status"]) == ("1.0", "train.py", 0)
    assert any("profile measures" in text for text in found["unseen"])


def test_no_filter_hides_a_wait_nor_makes_it_an_error(folder: Path) -> None:
    found = detected(
        folder,
        "import torch, warnings\n"
        "x = torch.tensor(1, device='cuda')\n"
        "def read(): return x.item()\n"
        "for action in ('ignore', 'error', 'default', 'once'):\n"
        "    warnings.simplefilter(action); read()\n"
        "    warnings.filterwarnings(action, message='called'); read()\n"
        "    with warnings.catch_warnings(record=True) as caught:\n"
        "        warnings.simplefilter('always'); read()\n"
        "        warnings.resetwarnings(); read()\n"
        "        with warnings.catch_warnings():\n"
        "            warnings.simplefilter('error'); read()\n"
        "    assert not caught, caught\n"
        "    warnings.filters.clear(); read()\n"
        "    del warnings.filters[:]; read()\n"
        "    warnings.filters.insert(0, ('error', None, Warning, None, 0)); read()\n"
        "    saved = warnings.filters[:]\n"
        "    warnings.filters = saved; read()\n"
        "    warnings.filters = warnings.filters.copy(); read()\n",
    )
    assert seen(found) == {(3, "scalar-read"): 40}


def test_what_pytorch_says_of_the_mode_is_not_said_to_the_program(folder: Path) -> None:
    """The mode is of our setting. A program that sets it first hears of it."""
    says = {"STAND_IN_WARNS_OF_THE_MODE": "1"}
    (folder / "train.py").write_text("import torch\ntorch.cuda._lazy_init()\ntorch.Tensor().item()\n", "utf-8")
    done, findings = watched(folder, "train.py", **says)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(findings.waits) == 1
    own = "import torch\ntorch._C._cuda_set_sync_debug_mode(1)\ntorch.Tensor().item()\n"
    (folder / "train.py").write_text(own, "utf-8")
    done, _ = watched(folder, "train.py", **says)
    assert "Synchronization debug mode is a prototype" in done.stderr


def test_the_entry_of_ours_stays_in_front_and_at_home() -> None:
    ours, error = ("ignore", object(), Warning, None, 0), ("error", None, Warning, None, 0)
    filters = _Filters(ours, [error, ours])
    assert list(filters) == [ours, error]
    filters.remove(ours)
    filters.insert(0, ("once", None, Warning, None, 0))
    assert filters[0] is ours and [one[0] for one in filters] == ["ignore", "once", "error"]
    assert type(pickle.loads(pickle.dumps(_Filters(("ignore", len, Warning, None, 0), [error])))) is list
    assert pickle.loads(pickle.dumps(_Filters(ours, [error]))) == [error]
    assert warnings.filters is not filters


def test_cuda_is_initialised_by_the_program_alone(folder: Path) -> None:
    found = detected(
        folder,
        "import os, torch\n"
        "assert not torch.cuda.is_initialized()\n"
        "if not (child := os.fork()):\n"
        "    torch.tensor(1, device='cuda').item()\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "assert not torch.cuda.is_initialized()\n"
        "for _ in range(2): torch.tensor(1, device='cuda').item()\n",
    )
    assert seen(found) == {(4, "scalar-read"): 1, (8, "scalar-read"): 2}
    assert found["watched_processes"] == 2
    assert len({thread["pid"] for site in found["sites"] for thread in site["threads"]}) == 2


def test_processes_forked_later_count_for_themselves(folder: Path) -> None:
    found = detected(
        folder,
        "import os, torch\n"
        "x = torch.tensor(1, device='cuda')\n"
        "def read(): x.item()\n"
        "read()\n"
        "if not (child := os.fork()):\n"
        "    read(); read()\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "read()\n",
    )
    assert seen(found) == {(3, "scalar-read"): 4}
    assert sorted(thread["calls"] for thread in found["sites"][0]["threads"]) == [2, 2]


def test_threads_are_named(folder: Path) -> None:
    found = detected(
        folder,
        "import threading, torch\n"
        "x = torch.tensor(1, device='cuda')\n"
        "def read(): [x.item() for _ in range(5)]\n"
        "threads = [threading.Thread(target=read, name=f'reader {i}') for i in range(4)]\n"
        "for one in threads: one.start()\n"
        "for one in threads: one.join()\n"
        "assert threading.active_count() == 1\n",
    )
    assert seen(found) == {(3, "scalar-read"): 20}
    assert sorted((t["name"], t["calls"]) for t in found["sites"][0]["threads"]) == [
        (f"reader {i}", 5) for i in range(4)
    ]


@pytest.mark.parametrize("end", ["os._exit(0)", "os.execv('/bin/true', ['true'])", "os.kill(os.getpid(), 9)"])
def test_what_was_seen_survives_the_program(end: str, folder: Path) -> None:
    (folder / "train.py").write_text(
        f"import os, torch\nx = torch.tensor(1, device='cuda')\nfor _ in range(1000): x.item()\n{end}\n", "utf-8"
    )
    done = detect(folder, "-o", "found.json", "train.py")
    assert done.returncode == (137 if "kill" in end else 0)
    assert seen(json.loads((folder / "found.json").read_text())) == {(3, "scalar-read"): 1000}


def test_the_programs_own_mode_is_kept_and_still_counted(folder: Path) -> None:
    found = detected(
        folder,
        "import torch, warnings\n"
        "x = torch.tensor(1, device='cuda')\n"
        "torch.cuda.set_sync_debug_mode('default')\n"
        "x.item()\n"
        "torch.cuda.set_sync_debug_mode('warn')\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    x.item()\n"
        "assert len(caught) == 1 and caught[0].lineno == 8\n"
        "torch.cuda.set_sync_debug_mode('error')\n"
        "try: x.item()\n"
        "except RuntimeError: pass\n"
        "else: raise AssertionError\n"
        "torch.cuda.set_sync_debug_mode(0)\n"
        "x.item()\n",
    )
    assert seen(found) == {(4, "scalar-read"): 1, (8, "scalar-read"): 1, (15, "scalar-read"): 1}


@pytest.mark.met("11 circumstances", "detect on a full disk", "the program goes on")
def test_a_full_disk_ends_the_recording_and_not_the_program(folder: Path) -> None:
    (folder / "train.py").write_text(LOOP + "print('done')\n", "utf-8")
    done = run(folder, *command(sys.executable, folder / "missing", ["train.py"]))
    assert (done.returncode, done.stdout) == (0, "loss 0.5\ndone\n"), done.stderr


def test_nothing_to_see_is_said(folder: Path) -> None:
    for program, says in {
        "pass": "Nothing was seen: the program did not import PyTorch",
        "import torch": "Nothing was seen: the program did not use CUDA through PyTorch",
        "import torch; torch.tensor(1, device='cuda')": "No sync was seen",
    }.items():
        (folder / "train.py").write_text(program, "utf-8")
        done = detect(folder, "train.py")
        assert done.returncode == 0 and done.stderr.startswith(says) and "What this cannot see" in done.stderr


# ---- formats


def test_formats_agree(folder: Path) -> None:
    (folder / "train.py").write_text(LOOP, "utf-8")
    formats = [option for one in ("terminal", "json", "html", "markdown", "csv", "parquet") for option in ("-f", one)]
    done = detect(folder, "-o", "out/", *formats, "train.py")
    assert done.returncode == 0 and done.stdout == "loss 0.5\n"
    out = folder / "out"
    found = json.loads((out / "train.detect.sync.json").read_text("utf-8"))
    by_json = [(site["id"], site["location"]["line"], site["cause"]["id"], site["calls"]) for site in found["sites"]]
    rows = pq.read_table(out / "train.detect.sync.parquet").to_pylist()
    assert [(row["site_id"], row["line"], row["cause"], row["calls"]) for row in rows] == by_json
    cells = list(csv.DictReader(io.StringIO((out / "train.detect.sync.csv").read_text("utf-8"))))
    assert [(row["site_id"], int(row["line"]), row["cause"], int(row["calls"])) for row in cells] == by_json
    page = (out / "train.detect.sync.html").read_text("utf-8")
    assert page.count("<tbody id=") == len(by_json) and "http-equiv" in page and "<script" not in page
    comment = (out / "train.detect.sync.md").read_text("utf-8")
    assert comment.startswith(f"**{len(by_json)} sync sites")
    for text in (done.stderr, page, comment):
        assert "No time was measured" in text and "What this cannot see" in text
        assert f"{len(by_json)} sync sites: the CPU was made to wait for the GPU 44 times" in text
        assert "asked for" in text and "return loss.item(), acc.item(), loss.item()" in text
    assert "\x1b" not in done.stderr


def test_standard_output_on_request_the_fewest_sites_and_no_source(folder: Path) -> None:
    (folder / "train.py").write_text(LOOP, "utf-8")
    done = detect(folder, "--top", "2", "--no-source", "-f", "json", "-o", "-", "train.py")
    assert done.stderr == "" and done.stdout.startswith("loss 0.5\n{")
    found = json.loads(done.stdout.partition("\n")[2])
    assert len(found["sites"]) == 2 and found["calls"] == 44
    assert found["omitted_calls"] == 44 - sum(site["calls"] for site in found["sites"])
    assert all(site["source"] is None for site in found["sites"])
    # Without the source only the explicit calls say what they are.
    assert {site["cause"]["id"] for site in found["sites"]} == {"unknown"}


def test_whose_code_it_is_can_be_said(folder: Path) -> None:
    (folder / "vendored.py").write_text("def read(x):\n    return x.item()\n", "utf-8")
    program = "import torch, vendored\nvendored.read(torch.tensor(1, device='cuda'))\n"
    assert seen(detected(folder, program)) == {(2, "scalar-read"): 1}
    site = detected(folder, program, "--library-code", "*/vendored.py")["sites"][0]
    assert site["location"]["label"] == "train.py:2 <module>"
    assert site["cause"]["evidence"][0].endswith("/work/vendored.py:2 was at `.item()` when PyTorch warned")


@pytest.mark.met("11 circumstances", "detect that cannot write", "the program's status")
def test_a_report_that_cannot_be_written_leaves_the_programs_status(folder: Path) -> None:
    (folder / "train.py").write_text("raise SystemExit(6)", "utf-8")
    done = detect(folder, "-o", "/proc/nowhere.json", "train.py")
    assert done.returncode == 6 and "no sync report: /proc/nowhere.json: cannot be written" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "no program given"),
        (["missing.py"], "missing.py: no such file"),
        (["-f", "json", "-f", "csv", "-o", "-", "train.py"], "-o - can take one format"),
        (["--top", "0", "train.py"], "--top"),
    ],
)
def test_wrong_usage(arguments: list[str], says: str, folder: Path) -> None:
    (folder / "train.py").write_text("print('ran')", "utf-8")
    done = detect(folder, *arguments)
    assert done.returncode == 2 and says in done.stderr and done.stdout == ""


def test_everything_after_the_program_is_the_programs(folder: Path) -> None:
    (folder / "train.py").write_text("import sys; print(sys.argv)", "utf-8")
    assert detect(folder, "train.py", "--top", "-o", "x").stdout == "['train.py', '--top', '-o', 'x']\n"
    assert detect(folder, "-m", "train", "-m", "y").stdout == f"['{folder}/train.py', '-m', 'y']\n"


# ---- where a wait is, and why, by hand

TORCH = "/env/lib/python3.12/site-packages/torch"
USER = "/work/train.py"


def why(
    frames: Sequence[RunningFrame], texts: Mapping[str, str] | None = None, folder: str | None = TORCH
) -> model.DetectedSite:
    findings = Findings((Wait(1, "MainThread", None, None, tuple(frames), 2),), "2.11.0", folder, 1, 0)
    found = detection(findings, program="train.py", exit_status=0, read_sources=lambda paths: texts or {})
    (site,) = found.sites
    return site


def frame(file: str, function: str, line: int, span: tuple[int, int, int, int] | None = None) -> RunningFrame:
    return RunningFrame(file, function, line, span)


@pytest.mark.parametrize(
    ("file", "function", "cause"),
    [
        ("_tensor_str.py", "_str", "print"),
        ("_tensor.py", "__format__", "print"),
        ("_tensor.py", "__contains__", "truth-value"),
        ("nn/utils/clip_grad.py", "clip_grad_norm_", "clip-grad"),
        ("amp/grad_scaler.py", "_maybe_opt_step", "grad-scaler"),
        ("distributed/distributed_c10d.py", "barrier", "distributed"),
        ("utils/data/_utils/pin_memory.py", "pin_memory", "data-loader"),
        ("serialization.py", "_save", "checkpoint"),
        ("cuda/streams.py", "synchronize", "stream-synchronize"),
        # These depend on the direction of a copy, which is not known.
        ("serialization.py", "load", "unknown"),
        ("nn/modules/module.py", "_apply", "unknown"),
        ("nn/modules/module.py", "forward", "unknown"),
    ],
)
def test_frames_of_the_library_tell_the_cause(file: str, function: str, cause: str) -> None:
    site = why([frame(f"{TORCH}/{file}", function, 5), frame(USER, "step", 3), frame(USER, "<module>", 9)])
    assert site.cause.id == cause
    assert site.location.label == "train.py:3 step"
    assert site.cause.certainty == ("open" if cause == "unknown" else "certain")
    assert [one.is_user_code for one in site.python_stack] == [False, True, True]


def test_a_pytorch_built_from_source_is_no_users_code() -> None:
    site = why(
        [frame("/home/me/pytorch/torch/_tensor_str.py", "_str", 5), frame(USER, "f", 1)],
        folder="/home/me/pytorch/torch",
    )
    assert (site.location.line, site.cause.id) == (1, "print")
    assert site.python_stack[0].file == "~/pytorch/torch/_tensor_str.py"


def test_without_a_line_of_the_users_the_innermost_is_named() -> None:
    site = why([frame(f"{TORCH}/_tensor_str.py", "_str", 5)])
    assert (site.location.file, site.location.line, site.cause.id) == (f"{TORCH}/_tensor_str.py", 5, "print")


@pytest.mark.parametrize(("call", "cause"), [("to('cuda')", "module-to"), ("cuda()", "module-to"), ("cpu()", "to-cpu")])
def test_where_a_module_goes_says_the_users_line(call: str, cause: str) -> None:
    text = f"model.{call}\n"
    frames = [
        frame(f"{TORCH}/nn/modules/module.py", "convert", 9),
        frame(f"{TORCH}/nn/modules/module.py", "_apply", 8),
        frame(USER, "<module>", 1, (1, 0, 1, len(text) - 1)),
    ]
    assert why(frames, {USER: text}).cause.id == cause
    assert why(frames).cause.id == "unknown"


def test_a_wait_in_a_library_has_the_cause_of_its_own_line() -> None:
    optimizer = "/env/lib/python3.12/site-packages/optim/fast.py"
    frames = [frame(optimizer, "step", 2, (2, 11, 2, 21)), frame(USER, "<module>", 1, (1, 0, 1, 11))]
    texts = {optimizer: "def step(s):\n    return s.x.item()\n", USER: "opt.step(x)\n"}
    site = why(frames, texts)
    assert (site.cause.id, site.operation, site.location.file) == ("scalar-read", ".item()", USER)
    assert site.cause.evidence == ("site-packages/optim/fast.py:2 was at `.item()` when PyTorch warned",)
    assert site.source is not None and site.source.text == "opt.step(x)"


def test_an_operator_in_a_backward_pass_is_counted_at_its_call() -> None:
    frames = [
        frame(f"{TORCH}/autograd/graph.py", "_engine_run_backward", 7),
        frame(f"{TORCH}/autograd/__init__.py", "backward", 6),
        frame(f"{TORCH}/_tensor.py", "backward", 5),
        frame(USER, "step", 1, (1, 0, 1, 15)),
    ]
    site = why(frames, {USER: "loss.backward()\n"})
    assert (site.cause.id, site.operation) == ("unknown", ".backward()")
    assert site.cause.evidence == (
        "PyTorch passes the warnings of a backward pass on when it ends, at the line that called it",
    )


def test_waits_without_a_kept_stack_are_said() -> None:
    findings = Findings((Wait(1, None, None, None, (), 3),), "2.11.0", None, 1, 4)
    found = detection(findings, program="train.py", exit_status=0, read_sources=lambda paths: {})
    assert (found.calls, found.lost_calls, found.sites) == (7, 7, ())


def test_nothing_private_in_what_is_reported() -> None:
    site = why([frame("/home/alice/train.py", "step", 3), frame("/root/main.py", "<module>", 1)])
    assert "alice" not in repr(site) and "/root" not in repr(site)
    assert site.location.file == "~/train.py"
