"""`nsys-sync doctor` on made-up machines: files under a folder, and shell scripts for nsys, nvidia-smi and Python."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nsys_sync.cli import doctor as command
from nsys_sync.cli.main import app
from nsys_sync.errors import NsysError
from nsys_sync.nsys.doctor import Check, Machine, diagnose, exact_stacks, how_to_install
from nsys_sync.nsys.find import Nsys, inspect

REAL_NSYS = Path(os.environ.get("NSYS_SYNC_NSYS") or "/opt/nsys/bin/nsys")
OPTIONS = "--python-backtrace= --cudabacktrace= --python-sampling= --capture-range-end= --cuda-graph-trace="
STATUS = "Linux perf_event_open syscall available: {0}\nCPU Profiling Environment (process-tree): {0}"
SMI = "| NVIDIA-SMI 550.54.14   Driver Version: 550.54.14   CUDA Version: {cuda}  |"
LIBRARY = b"\x7fELF\x003.9\x003.10\x003.11\x003.12\x00%s. Python Sampling requires Python version 3.9 or later.\x00"


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def nsys_at(
    home: Path,
    *,
    options: str = OPTIONS,
    export: str = "--include-blobs",
    status: str = STATUS.format("OK"),
    importer: str | None = "echo 2025.3.1",
    cupti: str = "12.4",
) -> Nsys:
    body = f"""case "$*" in
--version) echo 'NVIDIA Nsight Systems version 2025.3.1.90-253135822126v0';;
'profile --help') echo '{options}';;
'export --help') echo '{export}';;
'status -e') {status if status.startswith("exec") else f"echo '{status}'"};;
esac"""
    program = script(home / "target-linux-x64/nsys", body)
    (program.parent / f"libcupti.so.{cupti}").touch()
    (program.parent / "libcupti.so.9.1").touch()
    (program.parent / "libToolsInjectionPython64.so").write_bytes(LIBRARY)
    if importer:
        script(home / "host-linux-x64/QdstrmImporter", importer)
    return inspect(program)


def python_at(path: Path, said: str) -> Path:
    return script(path, f"echo '{said}'")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine on which everything is well."""
    root = tmp_path / "root"
    for place, text in {
        "etc/os-release": 'ID=ubuntu\nID_LIKE=debian\nPRETTY_NAME="Ubuntu 24.04 LTS"\n',
        "proc/version": "Linux version 6.8",
        "proc/1/cgroup": "0::/init.scope",
        "proc/self/status": "CapEff:\t0000000000000000\n",
        "proc/sys/kernel/perf_event_paranoid": "2\n",
    }.items():
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text(text)
    (root / "tmp").mkdir()
    script(
        root / "bin/nvidia-smi",
        f'[ "$1" = -L ] && echo "GPU 0: NVIDIA H200 (UUID: GPU-1)" || echo "{SMI.format(cuda="12.4")}"',
    )
    python = python_at(root / "bin/python", "CPython 3.12.3")
    nsys = nsys_at(tmp_path / "nsys")
    return Machine(
        root=root,
        environment={"PATH": str(root / "bin")},
        python=str(python),
        libcuda="libno-such-library.so",
        find=lambda: nsys,
        installed=lambda: [nsys],
        seconds_to_answer=20,
    )


def with_nsys(machine: Machine, nsys: Nsys, *others: Nsys) -> Machine:
    return replace(machine, find=lambda: nsys, installed=lambda: [*others, nsys])


def check(machine: Machine, name: str) -> Check:
    [found] = [one for one in diagnose(machine) if one.name == name]
    return found


def write(machine: Machine, place: str, text: str) -> None:
    (machine.root / place).parent.mkdir(parents=True, exist_ok=True)
    (machine.root / place).write_text(text)


def test_a_good_machine_has_nothing_to_remedy(machine: Machine) -> None:
    checks = diagnose(machine)
    assert [one for one in checks if one.status != "ok"] == []
    assert [one for one in checks if one.remedy] == []
    assert exact_stacks(checks)


def test_no_nsys_says_how_to_install_it(machine: Machine) -> None:
    def missing() -> Nsys:
        raise NsysError("nsys was not found. How to install it: nsys-sync doctor")

    none = replace(machine, find=missing, installed=list)
    found = check(none, "nsys")
    assert (found.status, found.found) == ("failed", "nsys was not found.")
    assert "apt-get install nsight-systems-cli" in found.remedy
    assert not exact_stacks(diagnose(none))
    assert check(none, "CPU sampling").status == "warning"
    assert "not known" in check(none, "Python on PATH").found


@pytest.mark.parametrize(
    ("release", "says"),
    [
        ("ID=debian", "scripts/install_nsys.sh"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"', "dnf install"),
        ('ID="opensuse-leap"\nID_LIKE="suse opensuse"', "zypper install"),
        ("ID=arch", ".run installer"),
        ("", ".run installer"),
    ],
)
def test_how_to_install_depends_on_the_system(machine: Machine, release: str, says: str) -> None:
    write(machine, "etc/os-release", release)
    assert says in how_to_install(machine)
    assert "NSYS_SYNC_NSYS" in how_to_install(machine)


def test_how_to_install_in_containers_wsl_and_conda(machine: Machine) -> None:
    assert "container" not in how_to_install(machine)
    write(machine, "run/.containerenv", "")
    write(machine, "proc/version", "Linux version 5.15.90.1-microsoft-standard-WSL2")
    conda = replace(machine, environment={**machine.environment, "CONDA_PREFIX": "/opt/conda"})
    text = how_to_install(conda)
    assert "docker run -v" in text and "in WSL" in text and "conda" in text
    assert check(conda, "system").found == "Ubuntu 24.04 LTS, in a container, in WSL"


def test_an_unknown_system_is_not_ok(machine: Machine) -> None:
    (machine.root / "etc/os-release").unlink()
    assert check(machine, "system").status == "warning"


def test_which_nsys_and_which_others(machine: Machine, tmp_path: Path) -> None:
    compute = nsys_at(tmp_path / "nsight-compute/host", importer=None)
    both = with_nsys(machine, machine.find(), compute)
    assert "2025.3.1.90 at" in check(both, "nsys").found
    other = check(both, "other nsys")
    assert other.status == "ok" and str(compute.path) in other.found and "cannot import" in other.found
    override = replace(machine, environment={**machine.environment, "NSYS_SYNC_NSYS": "x"})
    assert check(override, "nsys").found.endswith("from NSYS_SYNC_NSYS")


def test_nsight_computes_copy_captures_but_cannot_import(machine: Machine, tmp_path: Path) -> None:
    compute = with_nsys(machine, nsys_at(tmp_path / "compute", importer=None))
    found = check(compute, "importer")
    assert found.status == "failed" and "captures" in found.found and "apt-get" in found.remedy


def test_an_importer_that_does_not_run(machine: Machine, tmp_path: Path) -> None:
    broken = nsys_at(tmp_path / "broken", importer="echo 'libssh.so.4: cannot open shared object file' >&2; exit 127")
    found = check(with_nsys(machine, broken), "importer")
    assert found.status == "failed" and "libssh.so.4" in found.found


def test_nsys_in_a_folder_with_a_space_cannot_capture(machine: Machine, tmp_path: Path) -> None:
    assert check(with_nsys(machine, nsys_at(tmp_path / "a b")), "nsys").status == "failed"


@pytest.mark.parametrize(
    ("lacks", "status"),
    [
        ("--python-backtrace=", "failed"),
        ("--cudabacktrace=", "failed"),
        ("--python-sampling=", "warning"),
        ("--capture-range-end=", "warning"),
        ("--cuda-graph-trace=", "warning"),
    ],
)
def test_options_that_nsys_lacks(machine: Machine, tmp_path: Path, lacks: str, status: str) -> None:
    old = nsys_at(tmp_path / "old", options=OPTIONS.replace(lacks, ""))
    found = check(with_nsys(machine, old), "options")
    assert found.status == status and lacks.rstrip("=") in found.found and found.remedy


def test_no_blobs_means_the_slower_json_route(machine: Machine, tmp_path: Path) -> None:
    old = with_nsys(machine, nsys_at(tmp_path / "old", export="--type"))
    assert check(old, "export").status == "warning" and "JSON" in check(old, "export").found
    assert exact_stacks(diagnose(old))


def test_a_driver_newer_than_nsys_is_a_warning(machine: Machine, tmp_path: Path) -> None:
    old = with_nsys(machine, nsys_at(tmp_path / "old", cupti="11.8"))
    found = check(old, "GPU and driver")
    assert found.status == "warning"
    assert found.found == "1 x NVIDIA H200, driver 550.54.14, CUDA 12.4; this nsys was made for CUDA up to 11.8"
    assert "12.4 or newer" in found.remedy


def test_versions_compare_as_numbers(machine: Machine, tmp_path: Path) -> None:
    assert check(with_nsys(machine, nsys_at(tmp_path / "new", cupti="12.10")), "GPU and driver").status == "ok"


def test_no_driver(machine: Machine) -> None:
    (machine.root / "bin/nvidia-smi").unlink()
    found = check(machine, "GPU and driver")
    assert found.status == "failed" and "no NVIDIA driver" in found.found
    write(machine, ".dockerenv", "")
    write(machine, "proc/version", "microsoft")
    assert "--gpus all" in check(machine, "GPU and driver").remedy
    assert "in Windows" in check(machine, "GPU and driver").remedy


def test_nvidia_smi_of_wsl(machine: Machine) -> None:
    target = machine.root / "usr/lib/wsl/lib/nvidia-smi"
    target.parent.mkdir(parents=True)
    (machine.root / "bin/nvidia-smi").rename(target)
    assert check(machine, "GPU and driver").status == "ok"


def test_a_driver_without_gpu(machine: Machine) -> None:
    script(machine.root / "bin/nvidia-smi", 'echo "Driver Version: 550.1 CUDA Version: 12.4"; echo "No devices found"')
    found = check(machine, "GPU and driver")
    assert found.status == "failed" and "no GPU: No devices found" in found.found


def test_nvidia_smi_that_hangs_ends_and_is_not_known(machine: Machine) -> None:
    module = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build"
    write(machine, "proc/driver/nvidia/version", module)
    script(machine.root / "bin/nvidia-smi", "/bin/sleep 100 & /bin/sleep 100")
    start = time.monotonic()
    found = check(replace(machine, seconds_to_answer=0.5), "GPU and driver")
    assert time.monotonic() - start < 10
    assert found.status == "warning" and found.remedy
    assert found.found.startswith("GPU not known (no answer within 0.5 s), driver 580.159.04, CUDA not known")


def test_cuda_version_from_libcuda_without_nvidia_smi(machine: Machine) -> None:
    write(machine, "proc/driver/nvidia/version", "Kernel Module  550.54.14  x")
    (machine.root / "bin/nvidia-smi").unlink()
    python = script(
        machine.root / "bin/python", 'case "$2" in *ctypes*) echo "0 13010";; *) echo CPython 3.12.1;; esac'
    )
    found = check(replace(machine, python=str(python)), "GPU and driver").found
    assert "driver 550.54.14, CUDA 13.1" in found


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("CPython 3.9.1", "ok"),
        ("CPython 3.12.0rc1", "ok"),
        ("CPython 3.13.0", "failed"),
        ("CPython 3.8.10", "failed"),
        ("PyPy 3.10.14", "failed"),
        ("nonsense", "warning"),
    ],
)
def test_the_python_on_path_against_those_nsys_knows(machine: Machine, said: str, status: str) -> None:
    python_at(machine.root / "bin/python", said)
    found = check(machine, "Python on PATH")
    assert found.status == status
    assert bool(found.remedy) == (status != "ok")


def test_the_python_of_nsys_sync_only_warns_beside_another(machine: Machine, tmp_path: Path) -> None:
    own = python_at(tmp_path / "pipx/bin/python", "CPython 3.14.0")
    other = replace(machine, python=str(own))
    assert check(other, "Python of nsys-sync").status == "warning"
    (machine.root / "bin/python").unlink()
    assert check(other, "Python of nsys-sync").status == "failed"


def test_a_library_that_names_no_python_is_not_known(machine: Machine) -> None:
    (machine.find().path.parent / "libToolsInjectionPython64.so").write_bytes(b"\x003.14\x00")
    found = check(machine, "Python on PATH")
    assert found.status == "warning" and "not known" in found.found
    (machine.find().path.parent / "libToolsInjectionPython64.so").unlink()
    assert check(machine, "Python on PATH").status == "warning"


def failing(machine: Machine, tmp_path: Path) -> Machine:
    return with_nsys(machine, nsys_at(tmp_path / "failing", status=STATUS.format("Fail")))


def test_sampling_forbidden_by_the_kernel(machine: Machine, tmp_path: Path) -> None:
    write(machine, "proc/sys/kernel/perf_event_paranoid", "4\n")
    found = check(failing(machine, tmp_path), "CPU sampling")
    assert found.status == "failed" and "perf_event_paranoid 4" in found.found
    assert "sysctl kernel.perf_event_paranoid=2" in found.remedy and "seccomp" not in found.remedy


def test_sampling_blocked_in_a_container(machine: Machine, tmp_path: Path) -> None:
    write(machine, "proc/1/cgroup", "0::/kubepods/besteffort/pod1")
    found = check(failing(machine, tmp_path), "CPU sampling")
    assert found.status == "failed" and "perf_event_open is blocked" in found.found
    assert "--cap-add=SYS_ADMIN" in found.remedy and "sysctl" not in found.remedy
    write(machine, "proc/sys/kernel/perf_event_paranoid", "3")
    assert "on the container's host" in check(failing(machine, tmp_path), "CPU sampling").remedy


def test_sampling_of_old_nsys_and_of_root(machine: Machine, tmp_path: Path) -> None:
    write(machine, "proc/sys/kernel/perf_event_paranoid", "4")
    write(machine, "proc/self/status", "CapEff:\t000001fffeffffff\n")
    old = with_nsys(machine, nsys_at(tmp_path / "old", status="Sampling Environment: OK"))
    assert check(old, "CPU sampling").status == "ok"
    wsl = failing(machine, tmp_path)
    write(machine, "proc/version", "Microsoft")
    assert "wsl --update" in check(wsl, "CPU sampling").remedy


@pytest.mark.parametrize("status", ["exec /bin/sleep 100", "who knows"])
def test_sampling_of_which_nsys_says_nothing_is_not_known(machine: Machine, tmp_path: Path, status: str) -> None:
    silent = with_nsys(machine, nsys_at(tmp_path / "silent", status=status))
    found = check(replace(silent, seconds_to_answer=1), "CPU sampling")
    assert found.status == "failed" and "not known" in found.found


def test_an_unreadable_paranoid_level_is_not_known(machine: Machine) -> None:
    (machine.root / "proc/sys/kernel/perf_event_paranoid").unlink()
    assert "perf_event_paranoid not known" in check(machine, "CPU sampling").found


@pytest.mark.parametrize("value", ["", "/no/such/folder", "/etc/os-release"])
def test_tmpdir_that_is_no_folder_keeps_nsys_from_starting(machine: Machine, value: str) -> None:
    wrong = replace(machine, environment={**machine.environment, "TMPDIR": value})
    found = check(wrong, "temporary folder")
    assert found.status == "failed" and f"TMPDIR={value} is no folder" in found.found


def test_a_file_in_the_place_of_the_folder_of_nsys(machine: Machine) -> None:
    write(machine, "tmp/nvidia", "")
    found = check(machine, "temporary folder")
    assert found.status == "failed" and "tmp/nvidia" in found.found and "TMPDIR" in found.remedy


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_the_folder_of_nsys_of_another_user(machine: Machine) -> None:
    (machine.root / "tmp/nvidia").mkdir(mode=0o555)
    assert check(machine, "temporary folder").status == "failed"


def run(monkeypatch: pytest.MonkeyPatch, answer: Callable[[], tuple[Check, ...]]) -> tuple[int, str]:
    monkeypatch.setattr(command, "diagnose", answer)
    result = CliRunner().invoke(app, ["doctor"])
    return result.exit_code, result.output


def test_the_command_prints_reasons_and_remedies_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = Check("nsys", "failed", "at /a\x1b[31m\nb", "this\nor that")
    status, text = run(monkeypatch, lambda: (Check("system", "ok", "Debian"), bad))
    assert status == 1
    assert text.split("\n")[:4] == [
        "ok      system: Debian",
        "failed  nsys: at /a\\x1b[31m\\nb",
        "            this",
        "            or that",
    ]
    assert "will not give exact stacks here: nsys." in text


def test_exit_status_is_0_when_nothing_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    status, text = run(monkeypatch, lambda: (Check("system", "ok", "Debian"),))
    assert (status, "will give exact stacks here" in text) == (0, True)
    status, text = run(monkeypatch, lambda: (Check("export", "warning", "slow"),))
    assert (status, "Mind the warnings" in text) == (0, True)


def test_an_empty_machine_raises_nothing(tmp_path: Path) -> None:
    def missing() -> Nsys:
        raise NsysError("none")

    empty = Machine(tmp_path, {}, str(tmp_path / "python"), "none.so", missing, list)
    assert {one.status for one in diagnose(empty)} == {"failed", "warning"}


@pytest.mark.skipif(not REAL_NSYS.exists(), reason="no real nsys")
def test_a_real_nsys() -> None:
    nsys = inspect(REAL_NSYS)
    checks = {one.name: one for one in diagnose(Machine(find=lambda: nsys, installed=lambda: [nsys]))}
    assert nsys.version_text in checks["nsys"].found
    assert checks["importer"].status == checks["options"].status == "ok"
    assert checks["CPU sampling"].status in ("ok", "failed")
    assert any("this nsys knows 3.9 to 3." in one.found for one in checks.values())


def test_this_machine_gives_an_answer() -> None:
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code in (0, 1)
    assert "exact stacks" in result.output
    assert f"{sys.version_info[0]}.{sys.version_info[1]}" in result.output
