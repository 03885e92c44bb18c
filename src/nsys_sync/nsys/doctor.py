"""Whether `nsys-sync profile` will give exact stacks on this machine, and what to do where it will not."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from nsys_sync.errors import NsysError
from nsys_sync.nsys.find import IMPORTERS, OVERRIDE, Nsys, all_installed, find_nsys

NOT_KNOWN = "not known"
SECONDS_TO_ANSWER = 20
GUIDE = "https://docs.nvidia.com/nsight-systems/InstallationGuide/"

STACK_OPTIONS = ("--python-backtrace", "--cudabacktrace")
OTHER_OPTIONS = {
    "--python-sampling": "calls without an exact stack get no sampled one either",
    "--capture-range-end": "a capture range ends the program",
    "--cuda-graph-trace": "CUDA graphs are traced as this nsys likes",
}
PYTHON_LIBRARIES = ("libToolsInjectionPythonBacktrace64.so", "libToolsInjectionPython64.so")
PARANOID_FOR_SAMPLING = 2
CAP_SYS_ADMIN, CAP_PERFMON = 1 << 21, 1 << 38
SPACE_FAILED, SPACE_WARNING = 100 << 20, 2 << 30

ASK_PYTHON = "import platform; print(platform.python_implementation(), platform.python_version())"
ASK_LIBCUDA = (
    "import ctypes, sys; v = ctypes.c_int(); "
    "print(ctypes.CDLL(sys.argv[1]).cuDriverGetVersion(ctypes.byref(v)), v.value)"
)

Version = tuple[int, ...]


@dataclass(frozen=True)
class Check:
    """One finding. `failed` means no exact stacks here; `warning` that they come with a limit, or may not come.

    What could not be found out is never `ok`. `remedy` may have several lines.
    """

    name: str
    status: Literal["ok", "warning", "failed"]
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class Machine:
    """Where the checks look: this machine, or one made up by a test."""

    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    python: str = sys.executable
    libcuda: str = "libcuda.so.1"
    find: Callable[[], Nsys] = find_nsys
    installed: Callable[[], Iterable[Nsys]] = all_installed
    seconds_to_answer: float = SECONDS_TO_ANSWER

    def read(self, path: str) -> str | None:
        """The text of a file such as `proc/version`, or None."""
        try:
            return (self.root / path).read_text(errors="replace")
        except OSError:
            return None

    def which(self, program: str) -> str | None:
        """The program's path on this machine's PATH."""
        return shutil.which(program, path=self.environment.get("PATH", os.defpath))

    def ask(self, *command: str) -> Answer:
        """What the program says. Returns in any case, even when the program hangs in the kernel."""
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
                env=dict(self.environment),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            return Answer(None, str(error))
        try:
            text, _ = process.communicate(timeout=self.seconds_to_answer)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)
            if process.stdout:
                process.stdout.close()
            return Answer(None, f"no answer within {self.seconds_to_answer:g} s")
        return Answer(process.returncode, text)

    @property
    def in_wsl(self) -> bool:
        """Windows Subsystem for Linux."""
        return "microsoft" in (self.read("proc/version") or "").lower()

    @property
    def in_container(self) -> bool:
        """Docker, Podman, Kubernetes, Apptainer."""
        if (self.root / ".dockerenv").exists() or (self.root / "run/.containerenv").exists():
            return True
        if any(name in self.environment for name in ("KUBERNETES_SERVICE_HOST", "APPTAINER_NAME", "SINGULARITY_NAME")):
            return True
        return re.search(r"docker|kubepods|containerd|libpod", self.read("proc/1/cgroup") or "") is not None


@dataclass(frozen=True)
class Answer:
    """What a program said. `status` is None when it did not run or did not answer."""

    status: int | None
    text: str

    @property
    def reason(self) -> str:
        """Its last line: where programs say why they failed."""
        lines = self.text.split("\n")
        return next((line.strip()[:160] for line in reversed(lines) if line.strip()), f"exit status {self.status}")


def diagnose(machine: Machine | None = None) -> tuple[Check, ...]:
    """All checks, in the order in which to remedy them."""
    machine = machine or Machine()
    checks = [_system(machine)]
    try:
        nsys = machine.find()
    except NsysError as error:
        nsys = None
        found = str(error).removesuffix(" How to install it: nsys-sync doctor")
        checks.append(Check("nsys", "failed", found, how_to_install(machine)))
    if nsys:
        checks.append(_nsys(machine, nsys))
    checks += _others(machine, nsys)
    if nsys:
        checks += [_importer(machine, nsys), _options(machine, nsys), _export(machine, nsys)]
    checks += [_gpu(machine, nsys), *_pythons(machine, nsys), _sampling(machine, nsys), _temporary_folder(machine)]
    return tuple(checks)


def exact_stacks(checks: Iterable[Check]) -> bool:
    """Whether nothing stands in the way of exact stacks."""
    return all(check.status != "failed" for check in checks)


def how_to_install(machine: Machine) -> str:
    """How to install nsys on this system, one way a line."""
    system = _os_release(machine)
    like = f"{system.get('ID', '')} {system.get('ID_LIKE', '')}".split()
    ways = []
    if "debian" in like:
        ways.append(f"add NVIDIA's repository ({GUIDE}), then: sudo apt-get install nsight-systems-cli")
        ways.append("without root, on x86_64: scripts/install_nsys.sh DIR of nsys-sync's repository")
    elif {"rhel", "fedora", "centos"} & set(like):
        ways.append(f"add NVIDIA's repository ({GUIDE}), then: sudo dnf install nsight-systems-cli")
    elif {"suse", "sles", "opensuse"} & set(like):
        ways.append(f"add NVIDIA's repository ({GUIDE}), then: sudo zypper install nsight-systems-cli")
    else:
        ways.append(f"Linux packages and a .run installer: {GUIDE}")
    if machine.in_container:
        ways.append("in a container: in the image, or mount the host's: docker run -v /opt/nvidia:/opt/nvidia:ro")
    if machine.in_wsl:
        ways.append("in WSL: the Linux package inside WSL; the nsys of Windows does not see its programs")
    if "CONDA_PREFIX" in machine.environment:
        ways.append("an nsys outside the conda environment is as good")
    ways.append(f"if it is installed elsewhere: export {OVERRIDE}=/path/to/nsys")
    return "\n".join(ways)


def _system(machine: Machine) -> Check:
    name = _os_release(machine).get("PRETTY_NAME") or f"{NOT_KNOWN} (no /etc/os-release)"
    where = [what for what, here in (("in a container", machine.in_container), ("in WSL", machine.in_wsl)) if here]
    return Check("system", "warning" if name.startswith(NOT_KNOWN) else "ok", ", ".join([name, *where]))


def _os_release(machine: Machine) -> dict[str, str]:
    text = machine.read("etc/os-release") or machine.read("usr/lib/os-release") or ""
    pairs = (line.partition("=") for line in text.split("\n") if "=" in line)
    return {key.strip(): value.strip().strip("\"'") for key, _, value in pairs}


def _nsys(machine: Machine, nsys: Nsys) -> Check:
    source = f", from {OVERRIDE}" if machine.environment.get(OVERRIDE) else ""
    found = f"{nsys.version_text} at {nsys.path}{source}"
    if re.search(r"\s", os.path.realpath(nsys.path)):
        return Check("nsys", "failed", f"{found}: nsys cannot capture from a folder with a space", "move it elsewhere")
    return Check("nsys", "ok", found)


def _others(machine: Machine, used: Nsys | None) -> Iterable[Check]:
    for other in machine.installed():
        if used and os.path.realpath(other.path) == os.path.realpath(used.path):
            continue
        captures_only = "" if other.can_import else ": captures, but cannot import (a copy for Nsight Compute)"
        yield Check("other nsys", "ok", f"{other.version_text} at {other.path}{captures_only}")


def _importer(machine: Machine, nsys: Nsys) -> Check:
    home = Path(os.path.realpath(nsys.path)).parent.parent
    importer = next((home / place for place in IMPORTERS if (home / place).exists()), None)
    if importer is None:
        found = "none beside this nsys: it captures (.qdstrm), but cannot make a report. Nsight Compute's copy is such"
        return Check("importer", "failed", found, how_to_install(machine))
    answer = machine.ask(str(importer), "--version")
    if answer.status == 0:
        return Check("importer", "ok", str(importer))
    remedy = "where a library is missing, install it; else install nsys again"
    return Check("importer", "failed", f"{importer} does not run: {answer.reason}", remedy)


def _options(machine: Machine, nsys: Nsys) -> Check:
    try:
        missing = [option for option in (*STACK_OPTIONS, *OTHER_OPTIONS) if not nsys.knows("profile", option)]
    except NsysError as error:
        return Check("options", "failed", f"{NOT_KNOWN}: {error}", how_to_install(machine))
    if not missing:
        return Check("options", "ok", "all that profile needs")
    essential = [option for option in missing if option in STACK_OPTIONS]
    found = f"this nsys lacks {', '.join(missing)}"
    found += ": no exact stacks" if essential else "".join(f"; {OTHER_OPTIONS[option]}" for option in missing)
    return Check(
        "options", "failed" if essential else "warning", found, f"install a newer nsys\n{how_to_install(machine)}"
    )


def _export(machine: Machine, nsys: Nsys) -> Check:
    try:
        blobs = nsys.knows("export", "--include-blobs")
    except NsysError as error:
        return Check("export", "warning", f"{NOT_KNOWN}: {error}", how_to_install(machine))
    if blobs:
        return Check("export", "ok", "Python stacks come with the SQLite export (--include-blobs)")
    found = "no --include-blobs: Python stacks come by a JSON export, which is several times slower"
    return Check("export", "warning", found, "exact all the same; a newer nsys exports faster")


def _gpu(machine: Machine, nsys: Nsys | None) -> Check:
    smi = machine.which("nvidia-smi")
    in_wsl = machine.root / "usr/lib/wsl/lib/nvidia-smi"
    if smi is None and in_wsl.exists():
        smi = str(in_wsl)
    said = machine.ask(smi) if smi else Answer(None, "nvidia-smi was not found")
    listed = machine.ask(smi, "-L") if smi and said.status is not None else said
    kernel_module = machine.read("proc/driver/nvidia/version") or ""
    driver = _first(r"Driver Version:\s*([\d.]+)", said.text)
    driver = driver or _first(r"Kernel Module\s.*?(\d+\.\d+(?:\.\d+)?)", kernel_module)
    gpus = re.findall(r"^GPU \d+: (.*?)(?: \(UUID|$)", listed.text, re.MULTILINE)

    remedy = "run it where the GPU is"
    if machine.in_container:
        remedy += "; in a container: docker run --gpus all"
    if machine.in_wsl:
        remedy += "; in WSL: install NVIDIA's driver in Windows, not in WSL"
    if driver is None and not gpus:
        return Check("GPU and driver", "failed", f"no NVIDIA driver found ({said.reason})", remedy)
    if not gpus and listed.status is not None:
        return Check("GPU and driver", "failed", f"driver {driver or NOT_KNOWN}, no GPU: {listed.reason}", remedy)

    cuda = _version(_first(r"CUDA(?: \w+)? Version:\s*(\d+\.\d+)", said.text)) or _cuda_of_libcuda(machine)
    what = f"{len(gpus)} x {gpus[0]}" if gpus else f"GPU {NOT_KNOWN} ({listed.reason})"
    found = f"{what}, driver {driver or NOT_KNOWN}, CUDA {_text(cuda)}"
    if nsys is None:
        return Check("GPU and driver", "ok" if gpus and cuda else "warning", found)
    knows = _newest_cupti(nsys)
    found += f"; this nsys was made for CUDA up to {_text(knows)}"
    if not gpus or cuda is None or knows is None:
        return Check("GPU and driver", "warning", found, "look at the warnings of nsys-sync profile after the run")
    if cuda > knows:
        remedy = f"nsys may drop calls it does not know; best is an nsys made for CUDA {_text(cuda)} or newer: {GUIDE}"
        return Check("GPU and driver", "warning", found, remedy)
    return Check("GPU and driver", "ok", found)


def _cuda_of_libcuda(machine: Machine) -> Version | None:
    # In a process of its own: a broken driver may hang or crash it.
    answer = machine.ask(machine.python, "-c", ASK_LIBCUDA, machine.libcuda)
    number = re.fullmatch(r"0 (\d+)\s*", answer.text) if answer.status == 0 else None
    return (int(number[1]) // 1000, int(number[1]) % 1000 // 10) if number else None


def _newest_cupti(nsys: Nsys) -> Version | None:
    names = (file.name for file in _beside(nsys).glob("libcupti.so.*"))
    versions = [_version(_first(r"^libcupti\.so\.(\d+\.\d+)$", name)) for name in names]
    return max((version for version in versions if version), default=None)


def _pythons(machine: Machine, nsys: Nsys | None) -> Iterable[Check]:
    """The Python on PATH decides, being that of the user's environment; that of nsys-sync only when there is none."""
    on_path = machine.which("python") or machine.which("python3")
    oldest, newest = _pythons_of(nsys) if nsys else (None, None)
    if on_path:
        yield _python(machine, "Python on PATH", on_path, oldest, newest, "failed")
    if on_path is None or Path(on_path).parent.absolute() != Path(machine.python).parent.absolute():
        yield _python(
            machine, "Python of nsys-sync", machine.python, oldest, newest, "warning" if on_path else "failed"
        )


def _python(
    machine: Machine,
    name: str,
    path: str,
    oldest: Version | None,
    newest: Version | None,
    if_bad: Literal["warning", "failed"],
) -> Check:
    answer = machine.ask(path, "-c", ASK_PYTHON)
    match = re.search(r"^(\w+) (\d+\.\d+)(\S*)\s*$", answer.text, re.MULTILINE) if answer.status == 0 else None
    if not match:
        return Check(name, "warning", f"version {NOT_KNOWN}: {path}: {answer.reason}", "profile another Python")
    known = f"this nsys knows {_text(oldest)} to {_text(newest)}" if oldest or newest else f"nsys's range: {NOT_KNOWN}"
    found = f"{match[1]} {match[2]}{match[3]} ({path}); {known}"
    version = _version(match[2])
    if match[1] != "CPython":
        return Check(name, if_bad, f"{found}, of CPython only: no Python stacks", "profile the program with CPython")
    if version and newest and version > newest:
        return Check(
            name,
            if_bad,
            f"{found}: no Python stacks",
            f"profile with Python {_text(newest)} or older, or install a newer nsys: {GUIDE}",
        )
    if version and oldest and version < oldest:
        return Check(name, if_bad, f"{found}: no Python stacks", f"profile with Python {_text(oldest)} or newer")
    if oldest is None or newest is None:
        return Check(name, "warning", found, "look at the first report: it says whether Python stacks came")
    return Check(name, "ok", found)


def _pythons_of(nsys: Nsys) -> tuple[Version | None, Version | None]:
    """The oldest and newest Python that nsys names: its library lists them as texts, `3.9`, `3.10`, and so on.

    Seen in 2023.4.4 (3.9 to 3.12; with 3.13 it silently writes no Python stack) and 2025.3.1 (to 3.13).
    """
    for library in PYTHON_LIBRARIES:
        try:
            data = (_beside(nsys) / library).read_bytes()
        except OSError:
            continue
        named = sorted({(3, int(minor)) for minor in re.findall(rb"(?<=\0)3\.(\d{1,2})(?=\0)", data)})
        at_least = re.search(rb"Python Sampling requires Python version (\d+)\.(\d+) or later", data)
        oldest = (int(at_least[1]), int(at_least[2])) if at_least else None
        return oldest, named[-1] if len(named) > 1 else None
    return None, None


def _sampling(machine: Machine, nsys: Nsys | None) -> Check:
    """Without CPU sampling nsys takes no stack at all."""
    level = _first(r"^\s*(-?\d+)\s*$", machine.read("proc/sys/kernel/perf_event_paranoid") or "")
    capabilities = int(_first(r"CapEff:\s*([0-9a-fA-F]+)", machine.read("proc/self/status") or "") or "0", 16)
    privileged = bool(capabilities & (CAP_SYS_ADMIN | CAP_PERFMON))
    forbidden = level is not None and int(level) > PARANOID_FOR_SAMPLING and not privileged
    answer = machine.ask(str(nsys.path), "status", "-e") if nsys else Answer(None, "there is no nsys to ask")
    verdict = _first(r"(?:CPU Profiling|Sampling) Environment(?: \(process-tree\))?:\s*(\w+)", answer.text)
    rights = f"perf_event_paranoid {level or NOT_KNOWN}{', privileged' if privileged else ''}"
    if verdict == "OK":
        return Check("CPU sampling", "ok", f"works, says nsys; {rights}")
    if verdict is None and not forbidden:
        reason = answer.reason if answer.status != 0 else "nsys does not say"
        remedy = "without it there is no stack at all; see: nsys status -e"
        found = f"{NOT_KNOWN} whether it works: {reason}; {rights}"
        return Check("CPU sampling", "failed" if nsys else "warning", found, remedy)
    reasons = []
    remedies = []
    if forbidden:
        reasons.append(f"the kernel forbids it: {rights}, at most {PARANOID_FOR_SAMPLING} is needed")
        where = " on the container's host" if machine.in_container else ""
        remedies.append(f"sudo sysctl kernel.perf_event_paranoid={PARANOID_FOR_SAMPLING}{where}, or run as root")
    if verdict is not None and (machine.in_container or not forbidden):
        blocked = re.search(r"perf_event_open syscall available: Fail", answer.text) is not None
        reasons.append("perf_event_open is blocked" if blocked else f"nsys status -e says {verdict}; {rights}")
        if machine.in_container:
            remedies.append(
                "start the container with --cap-add=SYS_ADMIN, or with a seccomp profile that allows perf_event_open "
                "(--security-opt seccomp=unconfined allows all)"
            )
        elif machine.in_wsl:
            remedies.append("WSL's kernel may lack perf events: wsl --update in Windows, or profile on Linux itself")
        else:
            remedies.append("allow perf_event_open (a sandbox or seccomp filter denies it); see: nsys status -e")
    return Check("CPU sampling", "failed", f"no stack at all: {'; '.join(reasons)}", "\n".join(remedies))


def _temporary_folder(machine: Machine) -> Check:
    name = "temporary folder"
    # nsys takes the first of these that is set, and stops when it is no folder.
    variable = next((name for name in ("TMPDIR", "TMP", "TEMP", "TEMPDIR") if name in machine.environment), None)
    folder = Path(machine.environment[variable]) if variable else machine.root / "tmp"
    change = f"export {variable or 'TMPDIR'}=FOLDER, to one where you may write, with some GB free"
    if (variable and not machine.environment[variable]) or not folder.is_dir():
        given = f"{variable}={machine.environment[variable]}" if variable else str(folder)
        return Check(name, "failed", f"{given} is no folder: nsys does not start", change)
    # Another user of the machine may have made the folders of nsys first.
    for place in (folder, folder / "nvidia", folder / "nvidia/nsight_systems"):
        if os.path.lexists(place) and not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
            return Check(name, "failed", f"{place}: not a folder you may write to, and nsys must", change)
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Check(name, "warning", f"{folder}: free space {NOT_KNOWN}: {error}", change)
    found = f"{folder}: {free / (1 << 30):.1f} GiB free"
    if free < SPACE_WARNING:
        return Check(name, "failed" if free < SPACE_FAILED else "warning", f"{found}, a trace may need more", change)
    return Check(name, "ok", found)


def _beside(nsys: Nsys) -> Path:
    return Path(os.path.realpath(nsys.path)).parent


def _first(pattern: str, text: str) -> str | None:
    match = re.search(pattern, text)
    return match[1] if match else None


def _version(text: str | None) -> Version | None:
    return tuple(int(part) for part in text.split(".")) if text else None


def _text(version: Version | None) -> str:
    return ".".join(map(str, version)) if version else NOT_KNOWN
