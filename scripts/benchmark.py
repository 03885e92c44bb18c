"""Speed and memory of `nsys-sync report`, as ratios to what SQLite alone needs on the same file.

    python scripts/benchmark.py [--rows 1500000] [--rows 15000000] [--nsys /path/to/nsys] [--folder DIR]

Grows a real capture (sync_heavy) to the wanted number of API and GPU rows by repeating it later in time, with new
correlation ids and callchains, then measures in this order, each several times, keeping the best:

- SQLite: scan and sum 7 columns each of CUPTI_ACTIVITY_KIND_RUNTIME and _KERNEL, the columns that an analysis needs;
- nsys-sync: `report --format json`, interpreter start and imports aside (a fresh process, timed inside);
- where nsys is given: `nsys analyze` with its rules cuda_api_sync and gpu_gaps.
"""

from __future__ import annotations

import argparse
import lzma
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

CAPTURE = Path(__file__).parents[1] / "tests" / "fixtures" / "sync_heavy.schema-3.7.2.sqlite.xz"
BACKTRACES = CAPTURE.with_name("sync_heavy.schema-3.7.2.python.json.xz")
COUNTED = tuple(f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("RUNTIME", "KERNEL", "MEMCPY", "MEMSET"))
GROWN = (*COUNTED, "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "CUDA_CALLCHAINS", "NVTX_EVENTS", "PROFILER_OVERHEAD")
BACKTRACE_TABLE = "NSYS_SYNC_PYTHON_BACKTRACE"
SCANS = (
    "SELECT sum(start), sum(end), sum(globalTid / 1000), sum(correlationId), sum(nameId), sum(returnValue), "
    "sum(callchainId) FROM CUPTI_ACTIVITY_KIND_RUNTIME",
    "SELECT sum(start), sum(end), sum(deviceId), sum(contextId), sum(streamId), sum(correlationId), "
    "sum(globalPid / 1000) FROM CUPTI_ACTIVITY_KIND_KERNEL",
)
TIMED_REPORT = """
import resource, sys, time
from pathlib import Path
import nsys_sync.cli.outputs as outputs, nsys_sync.render.json_report
from nsys_sync.pipeline import analyze
begin = time.perf_counter()
plan = outputs.plan([outputs.Format.json], sys.argv[2], "benchmark", [Path(sys.argv[1])], per_operation=False)
outputs.write(analyze(sys.argv[1]), plan, top=None, per_operation=False)
print(time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def grow(target: Path, rows: int) -> int:
    """Writes the capture, repeated until it has about `rows` API and GPU rows. Returns how many it has."""
    from nsys_sync.nsys.json_backtraces import add_python_backtraces

    target.write_bytes(lzma.decompress(CAPTURE.read_bytes()))
    with lzma.open(BACKTRACES, "rt", encoding="utf-8") as lines:
        add_python_backtraces(target, lines)
    with closing(sqlite3.connect(target)) as connection, connection:
        connection.execute("PRAGMA synchronous = off")
        one = sum(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in COUNTED)
        copies = max(rows // one, 1)
        low, high = connection.execute("SELECT min(start), max(end) FROM CUPTI_ACTIVITY_KIND_RUNTIME").fetchone()
        steps = {
            "start": high - low + 1_000_000,
            "end": high - low + 1_000_000,
            "correlationId": 1
            + connection.execute("SELECT max(correlationId) FROM CUPTI_ACTIVITY_KIND_RUNTIME").fetchone()[0],
            "callchainId": (
                chains := connection.execute("SELECT count(DISTINCT id) FROM CUDA_CALLCHAINS").fetchone()[0]
            ),
            "id": chains,
        }
        for table in (*GROWN, BACKTRACE_TABLE):
            columns = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
            grown = [f"{name} + k * {steps[name]}" if name in steps else name for name in columns]
            connection.execute(f"CREATE TEMP TABLE once AS SELECT * FROM {table}")
            connection.execute(
                f"INSERT INTO {table} WITH RECURSIVE copy(k) AS "
                f"(SELECT 1 WHERE {copies} > 1 UNION ALL SELECT k + 1 FROM copy WHERE k < {copies - 1}) "
                f"SELECT {', '.join(grown)} FROM copy CROSS JOIN once"
            )
            connection.execute("DROP TABLE once")
        return copies * one


def sqlite_seconds(trace: Path) -> float:
    with closing(sqlite3.connect(f"file:{trace}?mode=ro", uri=True)) as connection:
        begin = time.perf_counter()
        for scan in SCANS:
            connection.execute(scan).fetchall()
        return time.perf_counter() - begin


def report_seconds(trace: Path, folder: Path) -> tuple[float, float]:
    """Seconds, and the process's largest memory in MB."""
    command = [sys.executable, "-c", TIMED_REPORT, str(trace), str(folder / "report.json")]
    seconds, megabytes = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(seconds), float(megabytes)


def nsys_seconds(nsys: str, trace: Path) -> float:
    begin = time.perf_counter()
    subprocess.run(
        [nsys, "analyze", "--rule", "cuda_api_sync,gpu_gaps", "--format", "csv", "--output", "-", str(trace)],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, action="append", help="default: 1500000 and 15000000")
    parser.add_argument("--nsys", default=shutil.which("nsys"), help="compare with this nsys; default: the one on PATH")
    parser.add_argument(
        "--folder", type=Path, help="where to put the grown traces (up to 3 GB); default: a temporary one"
    )
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    reports: list[tuple[int, float]] = []
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        for wanted in options.rows or [1_500_000, 15_000_000]:
            trace = folder / "trace.sqlite"
            rows = grow(trace, wanted)
            size = trace.stat().st_size / 1e6
            scans, times, memory = [], [], 0.0
            for _ in range(options.repeat):
                scans.append(sqlite_seconds(trace))
                seconds, megabytes = report_seconds(trace, folder)
                times.append(seconds)
                memory = max(memory, megabytes)
            reports.append((rows, min(times)))
            print(f"{rows:,} API and GPU rows, {size:,.0f} MB:")
            print(f"  SQLite, 7 + 7 columns summed   {min(scans):8.3f} s")
            print(f"  nsys-sync report --format json {min(times):8.3f} s = {min(times) / min(scans):.2f} times SQLite")
            print(f"  its largest memory             {memory:8.0f} MB")
            if options.nsys:
                nvidia = nsys_seconds(options.nsys, trace)
                print(f"  nsys analyze, two rules        {nvidia:8.3f} s = {nvidia / min(times):.1f} times nsys-sync")
            trace.unlink()
    if len(reports) > 1:
        (few, quick), (many, slow) = reports[0], reports[-1]
        print(f"{many / few:.1f} times the rows cost {slow / quick:.1f} times the time")


if __name__ == "__main__":
    main()
