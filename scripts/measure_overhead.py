"""Steps per second under our capture, under nsys's usual Python options, and without a profiler, as ratios.

    python scripts/measure_overhead.py [--nsys PATH] [--repeat 3] [--each-flag] [PROGRAM...]

Needs a GPU, PyTorch, and nsys. `sync_heavy` has a sync on every other line, `gpu` is a GPU-bound loop, and `launch` one
that is bound by launches. The ways are interleaved, and the median counts. `--each-flag` also takes single options out
of our capture, to see what each costs.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from nsys_sync.nsys.find import Nsys, find_nsys, inspect
from nsys_sync.nsys.profile import CaptureOptions, capture_command

WORKLOADS = Path(__file__).parent / "workloads"
PROGRAMS = {
    "sync_heavy": [str(WORKLOADS / "sync_heavy.py"), "100"],
    "gpu": [str(WORKLOADS / "overhead_loops.py"), "gpu"],
    "launch": [str(WORKLOADS / "overhead_loops.py"), "launch"],
}
NO_PYTHON = ("--python-backtrace=none", "--python-sampling=false")
PARTS = {
    "CUDA and NVTX trace only": ("--sample=none", "--cudabacktrace=none", *NO_PYTHON),
    "no stacks, but CPU sampling": ("--cudabacktrace=none", *NO_PYTHON),
    "without Python": NO_PYTHON,
    "without Python sampling": ("--python-sampling=false",),
    "Python sampling at 100 Hz": ("--python-sampling-frequency=100",),
    "without Python backtraces": ("--python-backtrace=none",),
}
"""What differs from our command."""
SECONDS_FOR_PROGRAM = 120


def commands(nsys: Nsys, program: list[str], folder: str, *, each_flag: bool) -> dict[str, list[str]]:
    def ours(*arguments: str) -> list[str]:
        options = CaptureOptions(output=f"{folder}/ours", force=True, nsys_arguments=arguments)
        return capture_command(nsys, options, program)[0]

    plain = ["--python-sampling=true", "--backtrace=dwarf", "--force-overwrite=true"]
    ways = {
        "no profiler": program,
        "nsys-sync profile": ours(),
        "plain nsys profile": [str(nsys.path), "profile", *plain, f"--output={folder}/plain", *program],
    }
    if each_flag:
        del ways["plain nsys profile"]
        ways |= {part: ours(*arguments) for part, arguments in PARTS.items()}
    return ways


def steps_per_second(command: list[str], seconds_for_import: float, folder: str) -> float | None:
    """What the program printed: `s/step 0.0123` or `steps/s 81.3`; None where it printed neither.

    nsys then imports what it captured. That is none of the program's time, so it is ended when it takes long.
    """
    output = Path(folder, "output")
    with output.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
    begin, found, said_at = time.monotonic(), None, 0.0
    while process.poll() is None:
        time.sleep(0.05)
        now = time.monotonic()
        if found is None and (found := _figure(output)) is not None:
            said_at = now
        if now > (said_at + seconds_for_import if found is not None else begin + SECONDS_FOR_PROGRAM):
            _end(process)
    return found if found is not None else _figure(output)


def _figure(output: Path) -> float | None:
    text = output.read_text(encoding="utf-8", errors="replace")
    if match := re.search(r"steps/s ([\d.]+)\s", text):
        return float(match[1])
    match = re.search(r"s/step ([\d.e-]+)\s", text)
    return 1 / float(match[1]) if match else None


def _end(process: subprocess.Popen[bytes]) -> None:
    """nsys, and the agent that it started in a session of its own."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().split(b"\0")
            if b"--start-agent" in line and f"--session-name=profile-{process.pid}".encode() in line:
                os.kill(int(folder.name), signal.SIGKILL)
        except OSError:
            continue
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=f"of {', '.join(PROGRAMS)}; all by default")
    parser.add_argument("--nsys", type=Path)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--each-flag", action="store_true", help="measure our options singly, not the plain command")
    parser.add_argument("--import-seconds", type=float, default=60, help="end nsys's import after this time")
    options = parser.parse_args()
    if unknown := set(options.programs) - set(PROGRAMS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}. Choose from {', '.join(PROGRAMS)}")
    nsys = inspect(options.nsys) if options.nsys else find_nsys()
    print(f"nsys {nsys.version_text}; median of {options.repeat} runs each", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for label in options.programs or PROGRAMS:
            ways = commands(nsys, [sys.executable, *PROGRAMS[label]], folder, each_flag=options.each_flag)
            speeds: dict[str, list[float]] = {way: [] for way in ways}
            begin = time.monotonic()
            for _ in range(options.repeat):
                for way, command in ways.items():
                    speed = steps_per_second(command, options.import_seconds, folder)
                    if speed is None:
                        output = Path(folder, "output").read_text(encoding="utf-8", errors="replace")
                        print(f"{way}: {label} did not say how fast it was:\n{output[-1000:]}", flush=True)
                    else:
                        speeds[way].append(speed)
            _show(label, speeds, time.monotonic() - begin)


def _show(label: str, speeds: dict[str, list[float]], seconds: float) -> None:
    median = {way: statistics.median(values) for way, values in speeds.items() if values}
    free = median["no profiler"]
    print(f"{label}: {free:.2f} steps/s without a profiler; time per step, as a multiple of that ({seconds:.0f} s):")
    for way, values in speeds.items():
        if values:
            each = ", ".join(f"{value:.2f}" for value in values)
            print(f"  {way:28} {free / median[way]:.3f}  (steps/s: {each})", flush=True)


if __name__ == "__main__":
    main()
