"""Steps per second under our capture, under nsys's usual Python options, and without a profiler, as ratios.

    python scripts/measure_overhead.py [--nsys PATH] [--repeat 3]

Needs a GPU, PyTorch, and nsys. `sync_heavy.py` has a sync on every other line, `overhead_loops.py gpu` is a GPU-bound
loop, and `overhead_loops.py launch` one that is bound by launches. The ways are interleaved, and the median counts.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from nsys_sync.nsys.find import find_nsys, inspect
from nsys_sync.nsys.profile import CaptureOptions, capture_command

WORKLOADS = Path(__file__).parent / "workloads"
PROGRAMS = {
    "sync_heavy.py": [str(WORKLOADS / "sync_heavy.py"), "60"],
    "GPU-bound loop": [str(WORKLOADS / "overhead_loops.py"), "gpu"],
    "launch-bound loop": [str(WORKLOADS / "overhead_loops.py"), "launch"],
}


def steps_per_second(output: str) -> float:
    """Both ways of printing it: `s/step 0.0123` and `steps/s 81.3`."""
    if match := re.search(r"steps/s ([\d.]+)", output):
        return float(match[1])
    match = re.search(r"s/step ([\d.e-]+)", output)
    if match is None:
        raise SystemExit(f"the program did not say how fast it was:\n{output[-2000:]}")
    return 1 / float(match[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nsys", type=Path)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    nsys = inspect(options.nsys) if options.nsys else find_nsys()
    print(f"nsys {nsys.version_text}; median of {options.repeat} runs each")
    with tempfile.TemporaryDirectory() as folder:
        for label, program in PROGRAMS.items():
            command = [sys.executable, *program]
            ours, _ = capture_command(nsys, CaptureOptions(output=f"{folder}/ours", force=True), command)
            plain = [
                str(nsys.path),
                "profile",
                "--python-sampling=true",
                "--backtrace=dwarf",
                "--force-overwrite=true",
                f"--output={folder}/plain",
                *command,
            ]
            ways = {"no profiler": command, "nsys-sync profile": ours, "plain nsys profile": plain}
            speeds: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(options.repeat):
                for way, line in ways.items():
                    done = subprocess.run(line, capture_output=True, text=True, check=False)
                    speeds[way].append(steps_per_second(done.stdout + done.stderr))
            median = {way: statistics.median(values) for way, values in speeds.items()}
            free = median["no profiler"]
            print(f"{label}: {free:.2f} steps/s without a profiler; time per step, as a multiple of that:")
            for way in list(ways)[1:]:
                print(f"  {way:20} {free / median[way]:.2f}")


if __name__ == "__main__":
    main()
