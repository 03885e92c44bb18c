"""Holds `nsys-sync detect` to what it claims, on a real PyTorch and GPU.

    PYTHONPATH=src python scripts/check_detect_on_gpu.py

Needs nsys-sync's own dependencies beside PyTorch. Prints one line a claim and ends with status 1 if one does not hold.
Lines `fact` are about PyTorch, and no claims.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WORKLOADS = Path(__file__).resolve().parent / "workloads"
SOURCES = Path(__file__).resolve().parent.parent / "src"
STEPS = 5
WARM_UP = 3
ALL_STEPS = STEPS + WARM_UP
PRINTS = 2  # i == 0, in the warm-up and in the loop

failed: list[str] = []


def claim(text: str, holds: bool, found: object = "") -> None:
    print(f"{'ok  ' if holds else 'MISS'} {text}{'' if holds else f'   found: {found}'}", flush=True)
    if not holds:
        failed.append(text)


def fact(text: str) -> None:
    print(f"fact {text}", flush=True)


def run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{SOURCES}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(os.pathsep),
    }
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def detect(folder: Path, *program: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    with tempfile.TemporaryDirectory() as out:
        report = Path(out) / "found.json"
        command = [sys.executable, "-m", "nsys_sync.cli.main", "detect", "-f", "terminal", "-f", "json"]
        done = run([*command, "-o", f"{out}/", *program], folder)
        written = list(Path(out).glob("*.json"))
        if not written:
            sys.exit(f"no report:\n{done.stderr}")
        report = written[0]
        return done, json.loads(report.read_text("utf-8"))


def without_timings(text: str) -> list[str]:
    return [re.sub(r"s/step .*", "s/step", line) for line in text.splitlines()]


def check_as_with_python(folder: Path, *program: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    plain = run([sys.executable, *program], folder)
    done, found = detect(folder, *program)
    shown = " ".join(program)
    claim(f"{shown}: exit status {plain.returncode}", done.returncode == plain.returncode, done.returncode)
    claim(
        f"{shown}: standard output is the same, timings aside",
        without_timings(done.stdout) == without_timings(plain.stdout),
        done.stdout[-2000:],
    )
    # PyTorch's warning that the mode is a prototype is not shown: a program that sets the mode itself had it already.
    said_first = re.sub(r".*Synchronization debug mode is a prototype.*\n.*\n", "", plain.stderr)
    claim(f"{shown}: what it says on standard error comes first", done.stderr.startswith(said_first), done.stderr)
    said = set(plain.stderr.splitlines())  # sync_causes.py lets logging show the error mode's exception
    leaked = [line for line in done.stderr.splitlines() if "called a synchronizing" in line and line not in said]
    claim(f"{shown}: no warning of the mode is shown", not leaked, leaked)
    return done, found


def sites_of(found: dict[str, Any], function: str) -> list[dict[str, Any]]:
    return [site for site in found["sites"] if site["location"]["function"] == function]


def described(sites: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (
            site["location"]["line"],
            site["cause"]["id"],
            site["operation"],
            site["calls"],
            [f"{frame['file'].split('site-packages/')[-1]}:{frame['line']}" for frame in site["python_stack"][:4]],
        )
        for site in sites
    ]


# ---- sync_heavy: every function, the line it must be found at (part of its text), its cause, its calls (None: any)

HEAVY: list[tuple[str, str, str, int | None]] = [
    ("load_batch_pageable", "return x.to(dev), y.cuda()", "upload", 2 * ALL_STEPS),
    ("log_loss", "return loss.item()", "scalar-read", ALL_STEPS),
    ("select_by_mask", "return x[mask]", "mask-index", None),
    ("count_nonzero", "return torch.nonzero(x > 1.5)", "nonzero", None),
    ("branch_on_tensor", "if t > 0:", "truth-value", ALL_STEPS),
    ("make_tensor_on_gpu", "return torch.tensor(", "construct", ALL_STEPS),
    ("to_cpu", "return x.detach().cpu()", "to-cpu", ALL_STEPS),
    ("slice_by_gpu_index", "return x[:n]", "gpu-index", None),
    ("print_tensor", 'print("loss", t)', "print", None),
    ("explicit_sync", "torch.cuda.synchronize()", "device-synchronize", ALL_STEPS),
    ("event_sync", "e.synchronize()", "event-synchronize", ALL_STEPS),
    ("unique", "return torch.unique(", "unique", None),
    ("metrics", "return loss.item(), acc.item(), gn.item()", "scalar-read", 3 * ALL_STEPS),
    ("main", "torch.cuda.synchronize()", "device-synchronize", 2),
]


def check_heavy() -> None:
    done, found = check_as_with_python(WORKLOADS, "sync_heavy.py", str(STEPS))
    lines = (WORKLOADS / "sync_heavy.py").read_text("utf-8").splitlines()
    for function, text, cause, calls in HEAVY:
        sites = sites_of(found, function)
        at_line = sites and all(text in lines[site["location"]["line"] - 1] for site in sites)
        claim(f"sync_heavy {function}: found at its line, and there alone", bool(at_line), described(sites))
        claim(
            f"sync_heavy {function}: {cause}",
            bool(sites) and {site["cause"]["id"] for site in sites} == {cause},
            described(sites),
        )
        if calls is not None:
            claim(
                f"sync_heavy {function}: {calls} calls",
                sum(site["calls"] for site in sites) == calls,
                described(sites),
            )
    moved = sites_of(found, "<module>")
    claim("sync_heavy: the model's upload is a module-to", {s["cause"]["id"] for s in moved} == {"module-to"}, moved)
    others = [s for s in found["sites"] if s["location"]["function"] not in {*(row[0] for row in HEAVY), "<module>"}]
    claim("sync_heavy: nothing else is found", not others, described(others))
    claim(
        "sync_heavy: the report says what it cannot see",
        "What this cannot see" in done.stderr and "No time was measured" in done.stderr,
        done.stderr[-1000:],
    )
    print(done.stderr)


# ---- sync_causes: cause by function. The mode's own answers (its last lines) say which must be found at all.

CAUSES = {
    **dict.fromkeys(("read_item", "read_float", "read_int", "read_complex", "log_item", "print_item"), "scalar-read"),
    "read_list": "tolist",
    **dict.fromkeys(("branch_bool", "branch_if", "branch_while", "branch_assert", "branch_and"), "truth-value"),
    **dict.fromkeys(("branch_not", "branch_contains"), "truth-value"),
    "branch_is_nonzero": "is-nonzero",
    **dict.fromkeys(("branch_all_builtin", "builtin_max", "builtin_min_of_list", "builtin_sorted"), "python-max-min"),
    **dict.fromkeys(("print_tensor", "format_tensor", "format_scalar", "log_tensor"), "print"),
    **dict.fromkeys(("copy_to_cpu", "copy_to_cpu_by_to", "state_dict_to_cpu"), "to-cpu"),
    **dict.fromkeys(("copy_to_numpy", "copy_to_numpy_by_force"), "numpy"),
    **dict.fromkeys(("upload_by_cuda", "upload_by_to", "upload_by_to_small", "collate"), "upload"),
    "upload_module": "module-to",
    **dict.fromkeys(("construct_tensor", "construct_scalar_tensor", "construct_as_tensor"), "construct"),
    **dict.fromkeys(("construct_as_tensor_of_array", "construct_new_tensor"), "construct"),
    "index_by_mask": "mask-index",
    "assign_by_mask": "mask-assign",
    "index_by_list": "cpu-index",
    **dict.fromkeys(("slice_by_gpu_scalar", "range_of_gpu_scalar"), "gpu-index"),
    **dict.fromkeys(("shape_nonzero", "shape_nonzero_method", "shape_argwhere", "shape_where"), "nonzero"),
    "shape_masked_select": "masked-select",
    "shape_unique": "unique",
    "shape_repeat_interleave": "repeat-interleave",
    **dict.fromkeys(("compare_equal", "compare_allclose"), "compare"),
    "clip_error_if_nonfinite": "clip-grad",
    "step_grad_scaler": "grad-scaler",
    "backward": "scalar-read",
    **dict.fromkeys(("wait_for_device",), "device-synchronize"),
    **dict.fromkeys(("wait_for_stream", "wait_for_nothing"), "stream-synchronize"),
    "wait_for_event": "event-synchronize",
    "seed_from_gpu": "scalar-read",
    **dict.fromkeys(("cholesky", "inverse"), "linalg-check"),
    "save_state": "checkpoint",
    # Copies and indexes whose direction or kind no Python frame and no syntax tells.
    **dict.fromkeys(("copy_into_cpu_tensor", "copy_by_legacy_type", "copy_by_type_name", "upload_by_copy"), "unknown"),
    **dict.fromkeys(("upload_by_legacy_type", "construct_legacy", "construct_legacy_float"), "unknown"),
    **dict.fromkeys(("index_by_cpu_tensor", "index_by_gpu_scalar", "assign_array_at_position"), "unknown"),
    **dict.fromkeys(("shape_bincount", "shape_one_hot"), "unknown"),
}
EXPLICIT = {"wait_for_device", "wait_for_event", "wait_for_stream", "wait_for_nothing"}
ELSEWHERE = {"item_in_backward": "backward", "iterate_data_loader": "collate"}
"""Functions whose wait is in another of the user's."""


def check_causes() -> None:
    done, found = check_as_with_python(WORKLOADS, "sync_causes.py", "2")
    said: dict[str, str] = dict(re.findall(r"^DEBUGMODE (\w+) (.*)$", done.stdout, re.MULTILINE))
    claim("sync_causes: the mode answered for its functions", len(said) > 80, len(said))
    for function, answer in said.items():
        sites = sites_of(found, ELSEWHERE.get(function, function))
        if function in EXPLICIT:
            continue
        if function == "log_tensor":  # in error mode, logging swallows the exception, and the answer is "no"
            claim("sync_causes log_tensor: seen", bool(sites))
        elif answer in ("yes", "no"):
            claim(f"sync_causes {function}: seen is what the mode sees ({answer})", bool(sites) == (answer == "yes"))
        else:
            fact(f"sync_causes {function}: the mode's answer was {answer!r}; sites {described(sites)}")
    for function, cause in CAUSES.items():
        sites = sites_of(found, function)
        if said.get(function) == "no" and function not in EXPLICIT:
            fact(f"sync_causes {function}: this PyTorch does not see it")
            continue
        claim(
            f"sync_causes {function}: {cause}",
            bool(sites) and {site["cause"]["id"] for site in sites} == {cause},
            described(sites),
        )
    for site in found["sites"]:
        if site["location"]["function"] not in CAUSES:
            fact(f"sync_causes {site['location']['function']}: {described([site])}")
    fact(f"sync_causes: not seen: {', '.join(name for name, answer in said.items() if answer == 'no')}")


def check_allocator() -> None:
    _, found = check_as_with_python(WORKLOADS, "sync_causes.py", "1", "allocator")
    names = {site["location"]["function"] for site in found["sites"]}
    claim("what waits below PyTorch's copies is not seen, and named as such", not names & {"empty_cache"}, names)
    claim("the allocator is in the list", any("cudaFree" in text for text in found["unseen"]), found["unseen"])


# ---- ways to run, and to end

SCRIPTS = {
    "exits.py": "import sys, torch\nprint(torch.ones((), device='cuda').item())\nsys.exit(3)\n",
    "abrupt.py": "import os, torch\nx = torch.ones((), device='cuda')\nfor _ in range(100): x.item()\nos._exit(4)\n",
    "forks.py": "import os, sys, torch\n"
    "assert not torch.cuda.is_initialized()\n"
    "child = os.fork()\n"
    "x = torch.ones((), device='cuda')\n"
    "x.item()\n"
    "if not child: os._exit(0)\n"
    "print(os.waitpid(child, 0)[1])\n",
    "workers.py": "import torch\n"
    "from torch.utils.data import DataLoader\n"
    "data = [torch.full((4,), float(i)) for i in range(16)]\n"
    "total = 0.0\n"
    "for batch in DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context='fork'):\n"
    "    total += batch.to('cuda').sum().item()\n"
    "print(total)\n",
    "filters.py": "import warnings, torch\n"
    "x = torch.ones((), device='cuda')\n"
    "warnings.simplefilter('error')\n"
    "x.item()\n"
    "with warnings.catch_warnings(record=True) as caught:\n"
    "    warnings.resetwarnings()\n"
    "    x.item()\n"
    "print(len(caught))\n",
    "backward.py": "import torch\n"
    "x = torch.ones(100, device='cuda', requires_grad=True)\n"
    "y = x[torch.arange(100) % 2 == 0]\n"
    "z = torch.linalg.det(torch.eye(4, device='cuda', requires_grad=True) * 2)\n"
    "(y.sum() + z).backward()\n"
    "print(x.grad is not None)\n",
    "compiled.py": "import torch\n"
    "@torch.compile\n"
    "def f(x): return (x * 2).sum().item() + 1\n"
    "print(f(torch.ones(4, device='cuda')), f(torch.ones(4, device='cuda')))\n",
    "mode.py": "import torch\n"
    "x = torch.ones((), device='cuda')\n"
    "print(torch.cuda.get_sync_debug_mode())\n"
    "torch.cuda.set_sync_debug_mode('error')\n"
    "try: x.item()\n"
    "except RuntimeError as error: print(error)\n"
    "torch.cuda.set_sync_debug_mode('default')\n"
    "x.item()\n",
    "operator.py": "import torch\nx = torch.ones((), device='cuda')\ntorch.ops.aten._local_scalar_dense(x)\n",
}


def calls(found: dict[str, Any]) -> list[tuple[int, str, int]]:
    return sorted((s["location"]["line"], s["cause"]["id"], s["calls"]) for s in found["sites"])


def check_ways(folder: Path) -> None:
    for name, text in SCRIPTS.items():
        (folder / name).write_text(text, "utf-8")
    expected: dict[str, list[tuple[int, str, int]]] = {
        "exits.py": [(2, "scalar-read", 1)],
        "abrupt.py": [(3, "scalar-read", 100)],
        "forks.py": [(5, "scalar-read", 2)],
        "workers.py": [(6, "scalar-read", 4), (6, "upload", 4)],
        "filters.py": [(4, "scalar-read", 1), (7, "scalar-read", 1)],
        "mode.py": [(8, "scalar-read", 1)],
    }
    for name in expected:
        _, found = check_as_with_python(folder, name)
        claim(f"{name}: {expected[name]}", calls(found) == expected[name], calls(found))
        if name == "forks.py":
            claim("forks.py: both processes", found["watched_processes"] == 2, found["watched_processes"])
    for name in ("backward.py", "compiled.py", "operator.py"):
        done, found = detect(folder, name)
        fact(f"{name}: exit status {done.returncode}, {described(found['sites'])}")
        said = [line for line in done.stderr.splitlines() if "synchronizing" in line]
        fact(f"{name}: PyTorch said itself: {said}")
    _, found = check_as_with_python(WORKLOADS, "raises.py")
    claim("raises.py: what was seen before the exception", calls(found)[0] == (6, "scalar-read", 1), calls(found))
    _, found = check_as_with_python(WORKLOADS, "-m", "syncing_package", "5")
    downloads = sites_of(found, "download")
    claim("-m syncing_package 5: six downloads", [s["calls"] for s in downloads] == [6], described(found["sites"]))
    _, found = check_as_with_python(WORKLOADS, "procs.py")
    fact(f"procs.py (spawned processes): {described(found['sites'])}")


def check_steps() -> None:
    for name in ("plain", "detect"):
        program = ["sync_heavy.py", "30"]
        done = run([sys.executable, *program], WORKLOADS) if name == "plain" else detect(WORKLOADS, *program)[0]
        fact(f"{name}: {re.findall(r's/step .*', done.stdout)}")


if __name__ == "__main__":
    check_heavy()
    check_causes()
    check_allocator()
    with tempfile.TemporaryDirectory() as scripts:
        check_ways(Path(scripts))
    check_steps()
    print(f"{len(failed)} missed" if failed else "all hold")
    sys.exit(bool(failed))
