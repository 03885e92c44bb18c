"""Runs a program under `nsys profile` so that every sync gets its exact Python stack, at low overhead.

Why each option is what it is: DESIGN.md section 1. nsys's own messages and the program's output share one stream in
nsys; a small shell wrapper keeps them apart and notes the program's exit status, which nsys loses when it fails.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from nsys_sync.errors import NsysError, UsageError
from nsys_sync.nsys.export import users_cache
from nsys_sync.nsys.find import Nsys

WITHOUT_BACKTRACE_NS = 1_000_000_000
WRAPPER = (
    'status=$1 out=$2 err=$3; shift 3; umask {umask:04o}; trap : INT TERM HUP; echo $$ >"$status.pid"; '
    '"$@" >>"$out" 2>>"$err"; s=$?; echo $s >"$status"; exit $s'
)
"""Traps, not ignores: a shell that ignored SIGINT would hand that on to the program. nsys sets the umask to 0."""
SHORT_OPTIONS = {
    "-t": "--trace",
    "-s": "--sample",
    "-b": "--backtrace",
    "-c": "--capture-range",
    "-o": "--output",
    "-f": "--force-overwrite",
    "-y": "--delay",
    "-d": "--duration",
    "-p": "--nvtx-capture",
}
IMPORTER_DAMAGE = re.compile(
    r"[Uu]nknown (?:\w+ )*(?:API )?function index|[Ff]ailed to import|[Ii]mporter error", re.ASCII
)
SIGNALLED = 128
SECONDS_BETWEEN_LOOKS = 0.05
SECONDS_TO_DRAIN = 0.2
PYTHON_SUFFIXES = frozenset({".py", ".pyw", ".pyz"})


@dataclass(frozen=True)
class CaptureOptions:
    """What the user asked for. `None` leaves nsys's default. Times in seconds, the threshold in ns."""

    output: str
    force: bool = False
    all_backtraces: bool = False
    backtrace_threshold_ns: int = 0
    sampling_hz: int = 1000
    capture_range: str = "none"
    delay_s: float | None = None
    duration_s: float | None = None
    graph_trace: str = "node"
    nsys_arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Captured:
    """How it ended. `report` is None where nsys wrote none; `messages` is what nsys printed; `program` what was run."""

    exit_status: int
    report: Path | None
    messages: str
    program: tuple[str, ...]


def capture_command(nsys: Nsys, options: CaptureOptions, program: Sequence[str]) -> tuple[list[str], list[str]]:
    """The nsys command for `program`, and warnings about what the nsys in use cannot do. Raises UsageError."""
    wanted = {
        "--trace": "cuda,nvtx",
        "--sample": "process-tree",
        "--cpuctxsw": "none",
        "--cudabacktrace": _backtraces(options),
        "--python-backtrace": "cuda",
        "--python-sampling": "true",
        "--python-sampling-frequency": str(options.sampling_hz),
        "--cuda-graph-trace": options.graph_trace,
        "--output": options.output,
        "--force-overwrite": "true" if options.force else "false",
        **_capture_range(options.capture_range),
    }
    if options.delay_s is not None:
        wanted["--delay"] = f"{options.delay_s:g}"
    if options.duration_s is not None:
        wanted |= {"--duration": f"{options.duration_s:g}", "--kill": "none"}
    warnings = []
    needed_for = {
        "--python-backtrace": "Python stacks of syncs",
        "--python-sampling": "Python samples",
        "--python-sampling-frequency": "the sampling frequency",
        "--cudabacktrace": "stacks of syncs",
        "--cuda-graph-trace": "the work inside CUDA graphs",
        "--capture-range-end": "programs that go on after the capture range",
        "--kill": "programs that go on after the capture",
    }
    for option, purpose in needed_for.items():
        if option in wanted and not nsys.knows("profile", option):
            del wanted[option]
            warnings.append(f"nsys {nsys.version_text} does not know {option}: {purpose} cannot be captured as wanted")
    given = {SHORT_OPTIONS.get(name, name) for name in map(_option_name, options.nsys_arguments)}
    ours = [f"{name}={value}" for name, value in wanted.items() if name not in given]
    return [str(nsys.path), "profile", *ours, *options.nsys_arguments, *program], warnings


def _option_name(argument: str) -> str:
    name = argument.split("=", 1)[0].split(" ", 1)[0]
    return name if name.startswith("--") else name[:2]


def _backtraces(options: CaptureOptions) -> str:
    if not options.all_backtraces:
        return f"sync:{options.backtrace_threshold_ns}"
    # Only `all` gives syncs and copies both; kernel launches and the rest are kept out by their threshold.
    return f"all:{options.backtrace_threshold_ns},kernel:{WITHOUT_BACKTRACE_NS},other:{WITHOUT_BACKTRACE_NS}"


def _capture_range(wanted: str) -> dict[str, str]:
    """Without the last two nsys ends by killing the program: --capture-range-end defaults to stop-shutdown."""
    ends = {"--capture-range-end": "stop", "--kill": "none"}
    if wanted == "none":
        return {}
    if wanted == "cudaProfilerApi":
        return {"--capture-range": "cudaProfilerApi", **ends}
    if wanted.startswith("nvtx:") and len(wanted) > len("nvtx:"):
        # PyTorch's ranges are no registered strings, and nsys looks at those alone unless told otherwise.
        return {
            "--capture-range": "nvtx",
            "--nvtx-capture": wanted.removeprefix("nvtx:"),
            "--env-var": "NSYS_NVTX_PROFILER_REGISTER_ONLY=0",
            **ends,
        }
    raise UsageError(f"--capture-range {wanted}: must be cudaProfilerApi, nvtx:NAME, nvtx:NAME@DOMAIN or none")


def program_command(arguments: Sequence[str], module: str | None) -> list[str]:
    """`train.py …` and `-m pkg …` run with the shell's Python; anything else is a program. Raises UsageError."""
    if module is not None:
        return [users_python(), "-m", module, *arguments]
    if not arguments:
        raise UsageError("no program given. Type: nsys-sync profile train.py")
    program = arguments[0]
    if Path(program).suffix in PYTHON_SUFFIXES:
        if not Path(program).is_file():
            raise UsageError(f"{program}: no such file")
        # A name that begins with a dash must not look like an option of Python.
        return [users_python(), f"./{program}" if program.startswith("-") else program, *arguments[1:]]
    if shutil.which(program) is None:
        raise UsageError(f"{program}: no such program. For a Python module, type: nsys-sync profile -m {program}")
    return list(arguments)


def users_python() -> str:
    """The Python that typing `python` in the user's shell would start: nsys-sync may be installed in another one."""
    return shutil.which("python") or shutil.which("python3") or sys.executable


def report_path(output: str) -> Path | None:
    """Where nsys will write, None where the name has patterns that only nsys can fill in."""
    if "%" in output.replace("%%", ""):
        return None
    output = output.replace("%%", "%")
    return Path(output if output.endswith(".nsys-rep") else f"{output}.nsys-rep")


def named_in_ascii(program: Sequence[str]) -> list[str]:
    """The same program through a link, where the path of its Python file is not plain ASCII.

    The Python backtraces of nsys 2023.4.4 end the program with a segmentation fault at the first frame whose file
    name is not ASCII (measured with a CUDA program; nsys alone does the same). The link stays, and is the same for
    the same program: reports name it.
    """
    for position, part in enumerate(program[:2]):  # `train.py`, or `python train.py`: what follows are its arguments
        path = Path(part).absolute()
        runs_it = position == 0 or "python" in Path(program[0]).name
        if runs_it and path.suffix in PYTHON_SUFFIXES and path.is_file() and not str(path).isascii():
            target = path.parent if path.name.isascii() else path
            readable = re.sub(r"[^A-Za-z0-9]+", "-", path.parent.name).strip("-")
            name = f"{readable}-{hashlib.sha256(os.fsencode(target)).hexdigest()[:8]}"
            link = _link(_folder_of_links() / (name if target == path.parent else f"{name}.py"), target)
            started = link / path.name if target == path.parent else link
            return [*program[:position], str(started), *program[position + 1 :]]
    return list(program)


def _folder_of_links() -> Path:
    for folder in (users_cache() / "links", Path(tempfile.gettempdir()) / f"nsys-sync-links-{os.getuid()}"):
        with suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if str(folder).isascii() and folder.stat().st_uid == os.getuid():
                return folder
    return Path(tempfile.mkdtemp(prefix="nsys-sync-links-"))


def _link(link: Path, target: Path) -> Path:
    if not link.is_symlink() or link.readlink() != target:
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    return link


def capture(command: Sequence[str], program: Sequence[str]) -> Captured:
    """Runs the command that `capture_command` made for `program`. The program's output goes where ours goes.

    The first SIGINT or SIGTERM is passed to nsys, which passes it to the program and still writes the report; the
    second kills both.
    """
    with tempfile.TemporaryDirectory(prefix="nsys-sync-") as folder:
        status_file, said = Path(folder) / "status", Path(folder) / "messages"
        wrapped = list(command[: len(command) - len(program)])
        streams = [_reopenable(1, Path(folder)), _reopenable(2, Path(folder))]
        started = named_in_ascii(program)
        wrapper = WRAPPER.format(umask=_umask())
        wrapped += ["sh", "-c", wrapper, "sh", str(status_file), *(path for path, _ in streams), *started]
        try:
            # A session of its own: a Ctrl-C that reached all of nsys's processes would end them without a report.
            with said.open("wb") as messages_file:
                process = subprocess.Popen(
                    wrapped, stdout=messages_file, stderr=subprocess.STDOUT, start_new_session=True
                )
        except OSError as error:
            raise NsysError(
                f"{command[0]}: does not run ({error.strerror}). Check it with: nsys-sync doctor"
            ) from error
        group_file = Path(f"{status_file}.pid")
        with _signals_passed_to(process, group_file, status_file) as received:
            nsys_status = process.wait()
            # After a Ctrl-C that the program ignores, nsys writes its report and ends; the program goes on.
            while not status_file.exists() and _program_group(group_file) is not None:
                time.sleep(SECONDS_BETWEEN_LOOKS)
        messages = said.read_text(encoding="utf-8", errors="replace")
        if any(carrier for _, carrier in streams):
            time.sleep(SECONDS_TO_DRAIN)
        ran = status_file.exists() and status_file.read_text().strip() != ""
        # Without a status the program did not run to its end: nsys's own success is none then.
        if ran:
            exit_status = int(status_file.read_text())
        else:
            exit_status = nsys_status or (SIGNALLED + received[0] if received else 1)
        _after_what_the_program_wrote()
    if exit_status < 0:
        exit_status = SIGNALLED - exit_status
    return Captured(exit_status, _written_report(messages), messages, tuple(started))


def _reopenable(descriptor: int, folder: Path) -> tuple[str, threading.Thread | None]:
    """A path that the program's shell can append to and that means our stream; nsys keeps no inherited descriptors.

    Sockets cannot be opened again, nor can files of another user: a pipe of our own carries those bytes over.
    """
    path = f"/proc/{os.getpid()}/fd/{descriptor}"
    with suppress(OSError), open(path, "ab"):  # noqa: PTH123
        return path, None
    pipe = folder / f"stream{descriptor}"
    os.mkfifo(pipe)
    # Open for writing too: the reader then sees no end until we close it, however often the program opens it.
    kept_open = os.open(pipe, os.O_RDWR)

    def carry() -> None:
        with suppress(OSError):
            while chunk := os.read(kept_open, 65536):
                os.write(descriptor, chunk)

    carrier = threading.Thread(target=carry, daemon=True)
    carrier.start()
    return str(pipe), carrier


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def _after_what_the_program_wrote() -> None:
    """The program appended through descriptors of its own, so ours are behind where the streams are files."""
    for descriptor in (1, 2):
        try:
            os.lseek(descriptor, 0, os.SEEK_END)
        except OSError:
            continue


def _program_group(group_file: Path) -> int | None:
    """The process group of the program, which nsys starts in one of its own; None before and after it runs."""
    with suppress(OSError, ValueError):
        pid = int(group_file.read_text())
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return None if state in ("Z", "X") else os.getpgid(pid)  # containers often have nobody to reap the dead
    return None


@contextmanager
def _signals_passed_to(process: subprocess.Popen[bytes], group_file: Path, status_file: Path) -> Iterator[list[int]]:
    received: list[int] = []

    def passed_on(number: int, _: FrameType | None) -> None:
        received.append(number)
        if len(received) == 1 and status_file.exists():
            # The program has ended, and nsys is writing the report: a signal would make it throw the capture away.
            os.write(2, b"nsys-sync: nsys is writing the report; once more to give it up\n")
            return
        if len(received) == 1 and process.returncode is None:
            process.send_signal(number)
            return
        deadly = number if len(received) == 1 else signal.SIGKILL
        for group in (_program_group(group_file), process.pid if process.returncode is None else None):
            if group is not None:
                with suppress(ProcessLookupError):
                    os.killpg(group, deadly)

    handled = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, passed_on) for number in handled}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _written_report(messages: str) -> Path | None:
    """nsys names what it wrote after a line `Generated:`; it can name nothing and still exit with 0."""
    _, found, after = messages.rpartition("Generated:")
    if not found:
        return None
    for line in after.splitlines():
        path = Path(line.strip())
        if path.suffix == ".nsys-rep" and path.exists():
            return path
    return None


def importer_damage(messages: str) -> list[str]:
    """Complaints of nsys's importer, each once: events are missing from the report."""
    pieces = re.split(r"[\r\n]+", messages)
    return list(dict.fromkeys(piece.strip() for piece in pieces if IMPORTER_DAMAGE.search(piece)))


def left_behind(messages: str) -> Path | None:
    """A raw capture (.qdstrm) that nsys could not turn into a report."""
    for name in re.findall(r"[^\s']+\.qdstrm", messages):
        if Path(name).exists():
            return Path(name)
    return None
