"""Does the advice hold? Runs `before` and `after` of each on a GPU: same values, a wait before, none after.

    python scripts/check_advice_on_gpu.py [--only ID ...]
    nsys-sync profile --capture-range cudaProfilerApi scripts/check_advice_on_gpu.py --capture
    python scripts/check_advice_on_gpu.py --verify TRACE.sqlite

The first asks PyTorch (`torch.cuda.set_sync_debug_mode`), which does not see every wait. The second runs each snippet
in an NVTX range of its own, and the third counts the sync operations in these ranges, so that nothing is overlooked.
Needs PyTorch, NumPy, CuPy, Numba, and Triton; `--verify` needs only nsys-sync.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import gc
import io
import os
import sys
import tempfile
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nsys_sync.analysis.advice import ADVICE
from nsys_sync.model import Advice

REPETITIONS = 3
SYNCS_LEFT = {
    "accumulate-on-gpu": 1,
    "read-together": 1,
    "read-one-step-late": 3,
    "copy-asynchronously": 1,
    "check-at-the-end": 1,
    "read-between-graphs": 1,
    "show-now-and-then": 1,
    "copy-state-asynchronously": 1,
    "upload-once": 1,
    "keep-index-on-gpu": 1,
    "time-with-events": 1,
    "cupy-accumulate": 1,
    "cupy-read-together": 1,
    "cupy-copy-asynchronously": 1,
    "numba-device-arrays": 2,
    "numba-copy-asynchronously": 1,
    "find-with-debug-mode": 1,
}
"""How many waits `after` may keep, explicit ones included: what is read once at the end, or late."""
NOT_FEWER = {
    "copy-asynchronously": "one wait, but later",
    "copy-state-asynchronously": "a small model may have a single tensor",
    "cupy-copy-asynchronously": "one wait, but later",
    "numba-copy-asynchronously": "one wait, but later",
    "find-with-debug-mode": "only finds the line",
}
"""Advice whose `after` may wait as often as its `before`."""
UNSEEN = {
    "remove-synchronize": "explicit wait",
    "time-with-events": "explicit wait",
    "wait-on-gpu": "explicit wait",
    "remove-barrier": "torch.distributed",
    "remove-empty-cache": "the allocator",
    "same-buffer-sizes": "the allocator",
    "reuse-pinned-memory": "the allocator",
    "copy-with-async-call": "not PyTorch",
    "fill-with-async-call": "not PyTorch",
    "allocate-from-pool": "not PyTorch",
    "cupy-accumulate": "not PyTorch",
    "cupy-read-together": "not PyTorch",
    "cupy-copy-asynchronously": "not PyTorch",
    "cupy-where": "not PyTorch",
    "cupy-where-for-mask": "not PyTorch",
    "numba-device-arrays": "not PyTorch",
    "numba-copy-asynchronously": "not PyTorch",
    "triton-fixed-config": "explicit wait",
    "jax-read-later": "not PyTorch",
}
"""Waits in `before` that PyTorch's debug mode does not see, and why."""
NOT_IN_TRACE = {
    "same-buffer-sizes": "waits only when the GPU's memory is full",
    "reuse-pinned-memory": "an allocation of pinned memory is slow, but no sync operation",
    "fill-with-async-call": "cudaMemset did not block where it was measured",
    "jax-read-later": "JAX waits without a CUDA call",
    **dict.fromkeys(
        ("numba-device-arrays", "numba-copy-asynchronously"),
        "an nsys older than the driver loses the copies of Numba",
    ),
    "find-with-debug-mode": "both are PyTorch's own, and run once",
}
"""`before` that need not hold a sync operation, and why."""
TOLERANCES = {"bfloat-without-scaler": (0.1, 0.1)}
"""Relative and absolute, where rounding differs on purpose."""
READ_LATER = {"read-one-step-late": "history"}
"""A list that in `after` lacks the values still on their way."""

Namespace = dict[str, Any]


class NotComparable(Exception):
    """A value such as a stream or a module."""


def base_namespace() -> Namespace:
    """What the snippets use, the same each time."""
    import numpy as np
    import torch
    from torch import nn
    from torch.nn import functional as F
    from torch.utils.data import DataLoader

    torch.manual_seed(0)
    device = torch.device("cuda")
    x = torch.randn(4096, device=device)
    mask = x > 0.5
    counts = torch.randint(1, 4, (64,), device=device)
    model = nn.Linear(64, 10).to(device)
    inputs = torch.randn(32, 64, device=device)
    model(inputs).square().mean().backward()
    root = torch.randn(16, 16, device=device)
    cpu_rows = [torch.randn(256) for _ in range(8)]
    return {
        "__name__": "snippet",
        "torch": torch,
        "np": np,
        "nn": nn,
        "F": F,
        "DataLoader": DataLoader,
        "deque": deque,
        "time": time,
        "device": device,
        "x": x,
        "y": x.clone(),
        "work": torch.randn(1024, 1024, device=device),
        "mask": mask,
        "count": int(mask.sum()),
        "packed": torch.randn(int(mask.sum()), device=device),
        "index": torch.tensor([5, 17, 40], device=device),
        "position": torch.tensor(5, device=device),
        "counts": counts,
        "total_count": int(counts.sum()),
        "labels": torch.arange(64, device=device) % 10,
        "logits": torch.randn(64, 10, device=device),
        "keep": torch.arange(64, device=device) % 3 > 0,
        "tokens": torch.arange(8, device=device),
        "loss": torch.tensor(1.5, device=device),
        "accuracy": torch.tensor(0.25, device=device),
        "norm": torch.tensor(3.0, device=device),
        "scale": torch.tensor(8.0, device=device),
        "penalty": torch.tensor(float("nan"), device=device),
        "losses": list(torch.rand(4, device=device).unbind()),
        "images": [torch.rand(16, 3, device=device) for _ in range(3)],
        "batch": torch.randn(1 << 20),
        "batches": cpu_rows[:3],
        "gpu_batches": list(torch.randn(3, 256, device=device).unbind()),
        "dataset": cpu_rows,
        "matrix": root @ root.T + 16 * torch.eye(16, device=device),
        "model": model,
        "inputs": inputs,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "scaler": torch.amp.GradScaler("cuda"),
        "file": io.BytesIO(),
        "side": torch.cuda.Stream(),
    }


def add_graph(names: Namespace) -> None:
    import torch

    graph, graph_input = torch.cuda.CUDAGraph(), torch.zeros(256, device=names["device"])
    # NCCL's own thread may be asking for its events meanwhile, if the process group is up.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        graph_loss = graph_input.square().mean()
    names |= {"graph": graph, "graph_input": graph_input, "graph_loss": graph_loss}


def add_distributed(names: Namespace) -> None:
    import torch.distributed as dist

    if not dist.is_initialized():
        meeting = Path(tempfile.mkdtemp()) / "meeting"
        dist.init_process_group("nccl", init_method=f"file://{meeting}", rank=0, world_size=1)
    names["dist"] = dist


def add_cupy(names: Namespace) -> None:
    import cupy
    import cupyx
    import numpy as np

    generator = np.random.default_rng(0)
    host_values = generator.standard_normal(1 << 20).astype(np.float32)
    pinned_values = cupyx.empty_pinned(host_values.shape, host_values.dtype)
    pinned_values[...] = host_values
    values = cupy.asarray(generator.standard_normal(1 << 20).astype(np.float32))
    names |= {"cupy": cupy, "cupyx": cupyx, "host_values": host_values, "pinned_values": pinned_values}
    names |= {"values": values, "table": values.reshape(4, -1)}


def add_numba(names: Namespace) -> None:
    import numpy as np
    from numba import cuda

    if not hasattr(add_numba, "double"):

        @cuda.jit
        def double(array: Any) -> None:
            at = cuda.grid(1)
            if at < array.size:
                array[at] *= 2

        add_numba.double = double
    numbers = np.arange(1024, dtype=np.float32)
    names |= {"cuda": cuda, "double": add_numba.double, "numbers": numbers, "device_numbers": cuda.to_device(numbers)}
    # Numba frees memory later, in batches, and each cudaFree waits: not in the middle of a snippet.
    cuda.current_context().deallocations.clear()


def add_triton(names: Namespace) -> None:
    import triton
    import triton.language as tl

    source = Path(tempfile.mkdtemp()) / "copy_kernel.py"
    source.write_text(
        "@triton.jit\n"
        "def copy_kernel(source, target, size, BLOCK: tl.constexpr):\n"
        "    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
        "    tl.store(target + at, tl.load(source + at, mask=at < size), mask=at < size)\n"
    )
    names |= {"triton": triton, "tl": tl}
    exec(compile(source.read_text(), str(source), "exec"), names)
    # A new autotuner each time: it has tuned for no size yet.
    configs = [triton.Config({"BLOCK": block}) for block in (256, 512)]
    names["tuned_copy"] = triton.autotune(configs=configs, key=["size"])(names["copy_kernel"])


def add_jax(names: Namespace) -> None:
    import jax
    from jax import numpy as jnp

    names |= {"jax": jax, "jnp": jnp, "step": jax.jit(lambda state: state * 1.5), "state": jnp.float32(1.0)}


ADDITIONS: dict[str, Callable[[Namespace], None]] = {
    "graph": add_graph,
    "dist": add_distributed,
    "cupy": add_cupy,
    "values": add_cupy,
    "table": add_cupy,
    "double": add_numba,
    "triton": add_triton,
    "tuned_copy": add_triton,
    "copy_kernel": add_triton,
    "jax": add_jax,
    "step": add_jax,
}
"""What else a snippet needs, by the names that it uses but does not assign."""
LIBRARIES = {add_cupy: "cupy", add_numba: "numba", add_triton: "triton", add_jax: "jax"}


def used_and_assigned(code: str) -> tuple[set[str], set[str]]:
    names = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)]
    assigned = {name.id for name in names if isinstance(name.ctx, ast.Store)}
    return {name.id for name in names} - assigned, assigned


def additions(advice: Advice) -> list[Callable[[Namespace], None]]:
    used = used_and_assigned(advice.before)[0] | used_and_assigned(advice.after)[0]
    return list(dict.fromkeys(ADDITIONS[name] for name in ADDITIONS if name in used))


def missing_libraries(advice: Advice) -> list[str]:
    wanted = [LIBRARIES[addition] for addition in additions(advice) if addition in LIBRARIES]
    missing = [name for name in wanted if find_spec(name) is None]
    return missing or (["a Numba that compiles"] if "numba" in wanted and not numba_compiles() else [])


@cache
def numba_compiles() -> bool:
    """Numba 0.68 does not with NumPy 2.5."""
    names: Namespace = {}
    add_numba(names)
    try:
        names["double"][8, 128](names["device_numbers"])
    except AttributeError:
        return False
    return True


class Snippets:
    """The snippets as files: Triton reads the source of a kernel, and stacks show the line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def code(self, advice: Advice, which: str) -> Any:
        source = advice.before if which == "before" else advice.after
        path = self.folder / f"{advice.id.replace('-', '_')}_{which}.py"
        if not path.exists():
            path.write_text(source + "\n", encoding="utf-8")
        return compile(source + "\n", str(path), "exec")


def fresh_namespace(advice: Advice) -> Namespace:
    import torch

    names = base_namespace()
    for add in additions(advice):
        add(names)
    gc.collect()
    torch.cuda.synchronize()
    return names


def run(code: Any, names: Namespace) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        exec(code, names)


def counted_syncs(code: Any, names: Namespace) -> int:
    """Waits that PyTorch sees."""
    import torch

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            run(code, names)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing CUDA operation" in str(warning.message) for warning in caught)


def plain(value: Any) -> Any:
    """A value on the CPU, in tensors, lists and Python's own types."""
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, (bool, int, float, complex, str, type(None))):
        return value
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, deque)):
        return [plain(one) for one in value]
    if hasattr(value, "copy_to_host"):
        return plain(value.copy_to_host())
    if type(value).__module__.startswith("cupy") and hasattr(value, "get") and hasattr(value, "dtype"):
        return plain(value.get())
    if isinstance(value, (np.ndarray, np.generic)) or type(value).__module__.startswith("jax"):
        return torch.from_numpy(np.array(value))
    raise NotComparable(type(value).__name__)


def assert_same(before: Any, after: Any, tolerance: tuple[float, float] | None) -> None:
    import torch

    if isinstance(before, str) or before is None:
        assert before == after, f"{before!r} became {after!r}"
    elif isinstance(before, dict):
        assert list(before) == list(after), f"keys {list(before)} became {list(after)}"
        for key in before:
            assert_same(before[key], after[key], tolerance)
    elif isinstance(before, list) and isinstance(after, list):
        assert len(before) == len(after), f"{len(before)} values became {len(after)}"
        for one, other in zip(before, after, strict=True):
            assert_same(one, other, tolerance)
    else:
        # A Python number may become a tensor without dimensions: that is what much of the advice is about.
        both_tensors = isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor)
        relative, absolute = tolerance or (None, None)
        torch.testing.assert_close(
            torch.as_tensor(before),
            torch.as_tensor(after),
            rtol=relative,
            atol=absolute,
            check_dtype=both_tensors,
            equal_nan=True,
        )


def compared(advice: Advice, before: Namespace, after: Namespace) -> list[str]:
    """Names whose values agree; AssertionError where one does not."""
    assigned = used_and_assigned(advice.before)[1] & used_and_assigned(advice.after)[1]
    same = []
    for name in sorted(assigned & before.keys() & after.keys()):
        try:
            one, other = plain(before[name]), plain(after[name])
        except NotComparable:
            continue
        if READ_LATER.get(advice.id) == name:
            one = one[: len(other)]
            assert other, f"{name} is empty"
        try:
            assert_same(one, other, TOLERANCES.get(advice.id))
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
        same.append(name)
    assert same, "no name that both assign and whose values can be compared"
    return same


def check(advice: Advice, snippets: Snippets) -> tuple[str, str, str, list[str]]:
    """Waits seen in before and in after, names compared, and what is wrong."""
    import torch

    codes = {which: snippets.code(advice, which) for which in ("before", "after")}
    seen: dict[str, int | None] = {"before": None, "after": None}
    names: list[str] = []
    wrong: list[str] = []
    try:
        results = {}
        for which, code in codes.items():
            results[which] = fresh_namespace(advice)
            run(code, results[which])
        torch.cuda.synchronize()
        names = compared(advice, results["before"], results["after"])
        results.clear()
        for which, code in codes.items():
            seen[which] = counted_syncs(code, fresh_namespace(advice))
        if advice.id not in SYNCS_LEFT:
            fresh = fresh_namespace(advice)
            torch.cuda.set_sync_debug_mode("error")
            try:
                run(codes["after"], fresh)
            finally:
                torch.cuda.set_sync_debug_mode("default")
    except Exception as error:
        wrong.append(f"{type(error).__name__}: {error}".strip().replace("\n", " ")[:300])
    before, after = seen["before"], seen["after"]
    if before is not None and after is not None:
        left = SYNCS_LEFT.get(advice.id, 0)
        if after > left:
            wrong.append(f"after waits {after} times, {left} allowed")
        if not before and advice.id not in UNSEEN:
            wrong.append("before does not wait")
        if before and after >= before and advice.id not in NOT_FEWER:
            wrong.append(f"after waits {after} times, before {before}")
    return str(before), str(after), ", ".join(names), wrong


def show(rows: list[tuple[str, ...]], heads: tuple[str, ...]) -> None:
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads))]
    for row in [heads, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def check_all(chosen: list[Advice]) -> int:
    rows, missed = [], 0
    with tempfile.TemporaryDirectory() as folder:
        snippets = Snippets(Path(folder))
        for advice in chosen:
            if missing := missing_libraries(advice):
                rows.append((advice.id, "", "", "", f"not checked: no {', '.join(missing)} here"))
                continue
            before, after, names, wrong = check(advice, snippets)
            missed += bool(wrong)
            note = "; ".join(wrong) or ("ok" if advice.id not in UNSEEN else f"ok (not seen: {UNSEEN[advice.id]})")
            rows.append((advice.id, before, after, names, ("MISS: " if wrong else "") + note))
    show(rows, ("advice", "before", "after", "compared", "result"))
    print(f"{len(chosen)} pieces of advice, {missed} missed")
    return 1 if missed else 0


@contextlib.contextmanager
def nvtx_range(name: str) -> Iterator[None]:
    import torch

    torch.cuda.nvtx.range_push(name)
    try:
        yield
    finally:
        torch.cuda.nvtx.range_pop()


def capture(chosen: list[Advice]) -> int:
    import torch

    possible = [advice for advice in chosen if not missing_libraries(advice)]
    failed = []
    pending = torch.randn(2048, 2048, device="cuda")
    with tempfile.TemporaryDirectory() as folder:
        snippets = Snippets(Path(folder))

        def run_both(advice: Advice) -> None:
            for which in ("before", "after"):
                code, names = snippets.code(advice, which), fresh_namespace(advice)
                # Work that is under way: what waits, waits for it.
                for _ in range(10):
                    torch.mm(pending, pending)
                with nvtx_range(f"advice {advice.id} {which}"):
                    run(code, names)
                torch.cuda.synchronize()

        for advice in list(possible):
            try:
                run_both(advice)
            except Exception as error:
                failed.append(f"{advice.id}: {type(error).__name__}: {error}")
                possible.remove(advice)
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStart()
        # An nsys older than the driver loses events at the beginning of the range.
        for _ in range(500):
            torch.mm(pending, pending)
            pending[0, 0].item()
        for _ in range(REPETITIONS):
            for advice in possible:
                run_both(advice)
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()
    print(f"captured {len(possible)} of {len(chosen)}", *failed, sep="\n")
    return 1 if failed else 0


def verify(trace: str, chosen: list[Advice]) -> int:
    from nsys_sync import analyze

    operations = analyze(trace).operations
    ranges = operations.column("nvtx_range").to_pylist()
    causes = operations.column("cause").to_pylist() if "cause" in operations.column_names else [None] * len(ranges)
    found: dict[str, Counter[str]] = {}
    for name, cause in zip(ranges, causes, strict=True):
        if name:
            found.setdefault(name, Counter())[str(cause)] += 1

    rows, missed = [], 0
    for advice in chosen:
        before, after = (found.get(f"advice {advice.id} {which}", Counter()) for which in ("before", "after"))
        wrong = []
        # Not one a run: an nsys older than the driver loses some events.
        if advice.id not in NOT_IN_TRACE and not before.total():
            wrong.append(f"before has no sync operation in {REPETITIONS} runs")
        allowed = SYNCS_LEFT.get(advice.id, 0) * REPETITIONS
        if after.total() > allowed:
            wrong.append(f"after has {after.total()} sync operations, {allowed} allowed")
        missed += bool(wrong)
        shown = [", ".join(f"{cause} {calls}" for cause, calls in one.most_common()) for one in (before, after)]
        rows.append((advice.id, *shown, f"MISS: {'; '.join(wrong)}" if wrong else NOT_IN_TRACE.get(advice.id, "ok")))
    show(rows, ("advice", "before", "after", "result"))
    print(f"{len(chosen)} pieces of advice, {missed} missed")
    return 1 if missed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="ID", choices=list(ADVICE), help="only these")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--capture", action="store_true", help="run each in an NVTX range, for nsys")
    what.add_argument("--verify", metavar="TRACE", help="count the sync operations of such a trace")
    options = parser.parse_args()
    chosen = [ADVICE[id] for id in options.only or ADVICE]
    if options.verify:
        return verify(options.verify, chosen)
    # JAX would take most of the GPU's memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    status = capture(chosen) if options.capture else check_all(chosen)
    if "torch.distributed" in sys.modules and sys.modules["torch.distributed"].is_initialized():
        sys.modules["torch.distributed"].destroy_process_group()
    return status


if __name__ == "__main__":
    sys.exit(main())
