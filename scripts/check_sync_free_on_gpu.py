"""Holds `sync_free`, `allow_sync` and the pytest plugin to what they claim, on a real PyTorch and GPU.

    PYTHONPATH=src python scripts/check_sync_free_on_gpu.py

Prints one line a claim and ends with status 1 if one does not hold. The parts with pytest and xdist are run where these
are installed. Lines `seen`, `not seen` at the end are facts about PyTorch, and no claims.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import torch

THIS = Path(__file__).resolve()
SOURCES = THIS.parent.parent / "src"
TURNS = 10_000
ROUNDS = 7
# Timings on a shared machine; that nothing is replaced is checked exactly, beside them.
LARGEST_RATIO = 2.0

failed: list[str] = []


def claim(text: str, holds: bool, found: object = "") -> None:
    print(f"{'ok  ' if holds else 'MISS'} {text}{'' if holds else f'   found: {found}'}", flush=True)
    if not holds:
        failed.append(text)


# --- what nothing costs: measured first, before nsys_sync is imported -------------------------------------------------

event = torch.cuda.Event()
stream = torch.cuda.current_stream()


def nanoseconds(call: Callable[[], Any]) -> float:
    """A call, best of the rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter_ns()
        for _ in range(TURNS):
            call()
        best = min(best, (time.perf_counter_ns() - begin) / TURNS)
    return best


def costs() -> dict[str, float]:
    event.record()
    return {
        "event.query": nanoseconds(event.query),
        "event.synchronize": nanoseconds(lambda: event.synchronize()),
        "stream.synchronize": nanoseconds(lambda: stream.synchronize()),
        "torch.cuda.synchronize": nanoseconds(lambda: torch.cuda.synchronize()),
        "tensor.item": nanoseconds(lambda: one.item()),
    }


def identities() -> dict[str, Any]:
    return {
        "torch.cuda.synchronize": vars(torch.cuda)["synchronize"],
        "torch.cuda.Stream.synchronize": vars(torch.cuda.Stream)["synchronize"],
        "torch.cuda.Event.synchronize": vars(torch.cuda.Event)["synchronize"],
        "torch._C._cuda_synchronize": vars(torch._C)["_cuda_synchronize"],
        "torch._C._accelerator_synchronizeDevice": vars(torch._C).get("_accelerator_synchronizeDevice"),
    }


def as_any_program() -> None:
    """Threads and a backward pass: after that event.query takes five times as long, with nsys_sync or without."""
    (torch.randn(1000, device="cuda", requires_grad=True) * 2).sum().backward()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: (torch.cuda.Event().query(), one.item()), range(84)))


one = torch.ones((), device="cuda")
originals = identities()
costs()  # warm up
print("     event.query takes", round(costs()["event.query"]), "ns in a new process")
as_any_program()
before = costs()

from nsys_sync import SyncError, allow_sync, sync_free  # noqa: E402

HAS_PYTEST = importlib.util.find_spec("pytest") is not None
HAS_XDIST = HAS_PYTEST and importlib.util.find_spec("xdist") is not None
if HAS_PYTEST:
    importlib.import_module("nsys_sync.live.pytest_plugin")


def check_cost(when: str) -> None:
    after = costs()
    for name, time_before in before.items():
        ratio = after[name] / time_before
        claim(
            f"{name}: {after[name]:.0f} ns {when}, {ratio:.2f} times {time_before:.0f} ns without nsys_sync",
            ratio < LARGEST_RATIO,
            ratio,
        )
    unchanged = identities()
    claim(f"no function of PyTorch is replaced {when}", all(unchanged[name] is originals[name] for name in originals))


# --- the operations. Where a call must fail, its line ends in `# here` ------------------------------------------------

x = torch.randn(1 << 16, device="cuda", requires_grad=True)
values = torch.randn(1 << 16, device="cuda")
mask = values > 0
pageable = torch.randn(1 << 20)
pinned = torch.randn(1 << 20).pin_memory()
downloads = torch.empty(1 << 16).pin_memory()
held_before = torch.cuda.synchronize


def reads_item() -> None:
    values.sum().item()  # here


def converts_to_float() -> None:
    float(values[0])  # here


def branches() -> None:
    if values[0] > 0:  # here
        pass


def downloads_pageable() -> None:
    values.cpu()  # here


def makes_a_list() -> None:
    values[:4].tolist()  # here


def finds_nonzero() -> None:
    torch.nonzero(values)  # here


def indexes_by_mask() -> None:
    values[mask]  # here


def selects_by_mask() -> None:
    torch.masked_select(values, mask)  # here


def prints() -> None:
    str(values)  # here


def formats() -> None:
    _ = f"{values[0]:.3f}"  # here


def uploads_pageable() -> None:
    pageable.to("cuda")  # here


def waits_for_device() -> None:
    torch.cuda.synchronize()  # here


def waits_by_a_name_held_before() -> None:
    held_before()  # here


def waits_for_accelerator() -> None:
    torch.accelerator.synchronize()  # here


def waits_for_stream() -> None:
    torch.cuda.Stream().synchronize()  # here


def waits_for_current_stream() -> None:
    torch.cuda.current_stream().synchronize()  # here


def waits_for_default_stream() -> None:
    torch.cuda.default_stream().synchronize()  # here


def waits_for_external_stream() -> None:
    torch.cuda.ExternalStream(copying.cuda_stream).synchronize()  # here


def waits_for_event() -> None:
    event.synchronize()  # here


class MyEvent(torch.cuda.Event):
    pass


class MyStream(torch.cuda.Stream):
    pass


def waits_for_event_of_a_subclass() -> None:
    MyEvent().synchronize()  # here


def waits_for_stream_of_a_subclass() -> None:
    MyStream().synchronize()  # here


class ReadsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        gradient.sum().item()  # here
        return gradient


class WaitsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        torch.cuda.synchronize()  # here
        return gradient


def backward_of_a_mask() -> None:
    with allow_sync("the forward pass is not what is looked at"):
        loss = x[mask].sum()
    loss.backward()  # here


def backward_in_python() -> None:
    ReadsInBackward.apply(x).sum().backward()


def backward_with_an_explicit_call() -> None:
    WaitsInBackward.apply(x).sum().backward()


def reads_gradient(gradient: torch.Tensor) -> None:
    gradient.sum().item()  # here


def backward_with_a_hook() -> None:
    y = x * 2
    y.register_hook(reads_gradient)
    y.sum().backward()


IMPLICIT = [
    *(reads_item, converts_to_float, branches, downloads_pageable, makes_a_list, finds_nonzero, indexes_by_mask),
    *(selects_by_mask, prints, formats, uploads_pageable, waits_for_stream, waits_for_current_stream),
    *(waits_for_default_stream, waits_for_external_stream, waits_for_stream_of_a_subclass),
]
EXPLICIT = [
    *(waits_for_device, waits_by_a_name_held_before, waits_for_accelerator),
    *(waits_for_event, waits_for_event_of_a_subclass),
]
BACKWARD = {
    backward_of_a_mask: backward_of_a_mask,
    backward_in_python: ReadsInBackward.backward,
    backward_with_an_explicit_call: WaitsInBackward.backward,
    backward_with_a_hook: reads_gradient,
}


def line_of(function: Callable[..., Any]) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(number for number, text in enumerate(lines) if text.rstrip().endswith("# here"))


def found_by(work: Callable[[], Any]) -> BaseException | None:
    try:
        with sync_free():
            work()
    except (SyncError, RuntimeError, TypeError, AttributeError) as error:
        return error
    return None


def names_line(error: BaseException | None, where: Callable[..., Any]) -> bool:
    file = re.escape(THIS.name)
    source = inspect.getsource(where)
    here = next(text.strip() for text in source.splitlines() if text.rstrip().endswith("# here"))
    first = str(error).split("\n")[0]
    return (
        isinstance(error, SyncError)
        and re.search(rf"(?:^|/){file}:{line_of(where)} makes the CPU wait for the GPU", first) is not None
        and first.endswith(here)
        and "nsys-sync profile" in str(error)
    )


def check_lines() -> None:
    for work in IMPLICIT:
        error = found_by(work)
        claim(f"{work.__name__}: SyncError at its line", names_line(error, work), error)
        cause = error.__cause__ if error is not None else None
        claim(
            f"{work.__name__}: from PyTorch's RuntimeError",
            isinstance(cause, RuntimeError) and "called a synchronizing CUDA operation" in str(cause),
            cause,
        )
    for work in EXPLICIT:
        error = found_by(work)
        claim(f"{work.__name__}: SyncError at its line", names_line(error, work), error)
        error = found_by(allow_sync("checked")(work))
        claim(f"{work.__name__}: passes within allow_sync", error is None, error)
    for work, where in BACKWARD.items():
        error = found_by(work)
        claim(f"{work.__name__}: SyncError at its line", names_line(error, where), error)
        error = found_by(allow_sync("checked")(work))
        claim(f"{work.__name__}: passes within allow_sync", error is None, error)
    claim("after all of these the mode is the default one", torch.cuda.get_sync_debug_mode() == 0)


model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
batch = torch.randn(64, 256).pin_memory()
copying = torch.cuda.Stream()


def sync_free_step() -> torch.Tensor:
    with torch.cuda.stream(copying):
        inputs = batch.to("cuda", non_blocking=True)
    torch.cuda.current_stream().wait_stream(copying)
    loss: torch.Tensor = model(inputs).square().mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    done = torch.cuda.Event()
    done.record()
    done.query()
    downloads.copy_(values.detach(), non_blocking=True)
    return loss


def check_passes() -> None:
    sync_free_step()
    error = found_by(lambda: [sync_free_step() for _ in range(20)])
    claim("20 training steps without a sync pass", error is None, error)
    error = found_by(lambda: sync_free_step().item())
    claim("the same step with .item() does not", isinstance(error, SyncError), error)


def check_nesting() -> None:
    mode = torch.cuda.get_sync_debug_mode
    for earlier in (0, 1, 2):
        torch.cuda.set_sync_debug_mode(earlier)
        seen = []
        with sync_free():
            seen.append(mode())
            with allow_sync("nested"):
                seen.append(mode())
                with sync_free():
                    seen.append(mode())
                seen.append(mode())
            seen.append(mode())
        seen.append(mode())
        claim(f"nested, mode {earlier} before", seen == [2, earlier, 2, earlier, 2, earlier], seen)
        found_by(reads_item)
        claim(f"mode {earlier} is back after a failure", mode() == earlier, mode())
    torch.cuda.set_sync_debug_mode(0)
    with sync_free():
        with allow_sync("nested"):
            reads_item()
            waits_for_event()
        error = found_by(reads_item)
    claim("a block within a block, after allow_sync, still fails", names_line(error, reads_item), error)


class Held:
    """Another thread inside `block`."""

    def __init__(self, block: Any) -> None:
        self.block, self.opened, self.close = block, threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.hold)

    def hold(self) -> None:
        with self.block:
            self.opened.set()
            self.close.wait(60)

    def __enter__(self) -> None:
        self.thread.start()
        self.opened.wait(60)

    def __exit__(self, *_: object) -> None:
        self.close.set()
        self.thread.join(60)


def elsewhere(work: Callable[[], Any]) -> BaseException | None:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).exception(60)


def check_threads() -> None:
    with sync_free():
        error = elsewhere(waits_for_event) or elsewhere(waits_for_device)
        claim("explicit calls of a thread outside every block pass", error is None, error)
        error = elsewhere(reads_item)
        claim(
            "an implicit sync of a thread outside gets PyTorch's own RuntimeError, as documented",
            type(error) is RuntimeError and "called a synchronizing CUDA operation" in str(error),
            error,
        )

    def allowed() -> None:
        with allow_sync("another thread logs"):
            reads_item()
            waits_for_device()

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with sync_free():
            error = elsewhere(allowed)
            mode = torch.cuda.get_sync_debug_mode()
    claim("a thread inside allow_sync may do both", error is None and mode == 2, (error, mode))
    claim("the block of the other thread says so", any("another thread logs" in str(w.message) for w in told), told)

    with Held(sync_free()):
        with sync_free():
            pass
        claim("the mode stays while another thread's block is open", torch.cuda.get_sync_debug_mode() == 2)
        waits_for_device()
    claim("and is back when that ends", torch.cuda.get_sync_debug_mode() == 0)

    with ThreadPoolExecutor(8) as pool:
        works = (IMPLICIT + EXPLICIT) * 4
        errors = list(pool.map(found_by, works))
    wrong = [(work.__name__, error) for work, error in zip(works, errors, strict=True) if not names_line(error, work)]
    claim(f"{len(works)} failing blocks on 8 threads at once each name their own line", not wrong, wrong)

    with ThreadPoolExecutor(1) as pool:
        error = found_by(lambda: pool.submit(reads_item).result(60))
    claim("a worker's sync is found where its result is asked for", names_line(error, reads_item), error)
    claim("the mode is the default one after all threads", torch.cuda.get_sync_debug_mode() == 0)


def check_why_error_and_not_warn() -> None:
    """The reason for the mode: a filter that some library sets hides what is only a warning."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                reads_item()
        claim("in warn mode, `simplefilter('ignore')` hides a sync", not told, told)
    finally:
        torch.cuda.set_sync_debug_mode("default")

    def under_a_filter() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reads_item()

    error = found_by(under_a_filter)
    claim("in sync_free it does not", names_line(error, reads_item), error)


def check_imports() -> None:
    for code, expected in (
        ("import nsys_sync\nwith nsys_sync.allow_sync('logging'): pass", False),
        ("import nsys_sync\nnsys_sync.sync_free", False),
        ("import nsys_sync.live.pytest_plugin", False),
        ("import nsys_sync\nwith nsys_sync.sync_free(): pass", True),
    ):
        if "pytest" in code and not HAS_PYTEST:
            continue
        code += "\nimport sys; print('torch' in sys.modules)"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=False
        )
        claim(f"{code.splitlines()[-2]}: torch imported: {expected}", done.stdout.strip() == str(expected), done)


TESTS = """\
import pytest, torch
from nsys_sync import allow_sync

@pytest.fixture
def ones():
    made = torch.ones(8, device="cuda")
    assert made.sum().item() == 8
    yield made
    torch.cuda.synchronize()

@pytest.mark.sync_free
def test_marked_reads(ones):
    ones.sum().item()

@pytest.mark.sync_free
def test_marked_waits(ones):
    torch.cuda.current_stream().synchronize()

@pytest.mark.sync_free
def test_marked_passes(ones):
    total = ones.sum()
    with allow_sync("the end"):
        assert total.item() == 8

def test_fixture_reads(ones, sync_free):
    ones.tolist()
    with sync_free():
        ones.tolist()

def test_unmarked(ones):
    assert ones.sum().item() == 8
"""
LINES = {"test_marked_reads": 13, "test_marked_waits": 17, "test_fixture_reads": 28}


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(SOURCES), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "CI": "1", **more}


def check_pytest() -> None:
    installed = any(point.value == "nsys_sync.live.pytest_plugin" for point in entry_points(group="pytest11"))
    plugin = [] if installed else ["-p", "nsys_sync.live.pytest_plugin"]
    print(f"     (the plugin is {'installed' if installed else 'given by -p'})")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "test_step.py").write_text(TESTS, "utf-8")

        def pytest(*options: str, **more: str) -> str:
            command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *plugin, *options]
            return subprocess.run(
                command, cwd=folder, capture_output=True, text=True, env=environment(**more), check=False
            ).stdout

        for way in ([], ["-n", "2"]) if HAS_XDIST else ([],):
            shown = pytest(*way)
            told = f"pytest {' '.join(way)}".strip()
            claim(f"{told}: 3 tests fail and 2 pass", "3 failed, 2 passed" in shown, shown)
            for test, line in LINES.items():
                expected = f"FAILED test_step.py::{test} - nsys_sync.SyncError: test_step.py:{line} makes the CPU wait"
                claim(f"{told}: {test} names line {line}", expected in shown, shown)
        shown = pytest("-rs", "-k", "marked_reads or marked_waits", CUDA_VISIBLE_DEVICES="")
        claim("pytest without a GPU: skipped, with the reason", "2 skipped" in shown and "no CUDA GPU" in shown, shown)


def looked_at() -> dict[str, Callable[[], Any]]:
    cudart: Any = torch.cuda.cudart()
    generic = torch.Event("cuda")
    generic.record()
    calls: dict[str, Callable[[], Any]] = {
        "pageable upload, non_blocking=True": lambda: pageable.to("cuda", non_blocking=True),
        "pinned upload, blocking": lambda: pinned.to("cuda"),
        "download, non_blocking=True": lambda: values.to("cpu", non_blocking=True),
        "download into pageable memory, non_blocking=True": lambda: pageable[: 1 << 16].copy_(
            values, non_blocking=True
        ),
        "torch.tensor([...], device='cuda')": lambda: torch.tensor([1.0, 2.0], device="cuda"),
        "torch.Event.synchronize": generic.synchronize,
        "torch.Stream.synchronize": torch.Stream("cuda").synchronize,
        "torch.unique": lambda: torch.unique(values),
        "repeat_interleave": lambda: torch.repeat_interleave(torch.ones(4, dtype=torch.long, device="cuda")),
        "x[mask] = 0": lambda: torch.zeros_like(values).__setitem__(mask, 0),
        "sparse.coalesce": lambda: values.to_sparse().coalesce(),
        "torch.ops.aten.nonzero": lambda: torch.ops.aten.nonzero(values),
        "torch.equal": lambda: torch.equal(values, values),
        "torch.cuda.empty_cache": torch.cuda.empty_cache,
        "torch.cuda.graph": capture_graph,
    }
    if hasattr(cudart, "cudaDeviceSynchronize"):
        calls["torch.cuda.cudart().cudaDeviceSynchronize"] = cudart.cudaDeviceSynchronize
    return calls


def capture_graph() -> None:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.ones(8, device="cuda")


def main() -> int:
    print(f"PyTorch {torch.__version__}, Python {sys.version.split()[0]}, {torch.cuda.get_device_name()}")
    check_cost("after the import")
    check_lines()
    check_passes()
    check_nesting()
    check_threads()
    check_why_error_and_not_warn()
    check_imports()
    with sync_free():
        inside = nanoseconds(event.query)
    print(f"     (inside a block event.query takes {inside:.0f} ns, {before['event.query']:.0f} without nsys_sync)")
    if HAS_PYTEST:
        check_pytest()
    else:
        print("     (pytest is not installed: not checked)")
    if HAS_PYTEST and not HAS_XDIST:
        print("     (xdist is not installed: not checked)")
    check_cost("after all blocks")
    for name, work in looked_at().items():
        error = found_by(work)
        other = "" if error is None or isinstance(error, SyncError) else f": {error}"
        print(f"     {'not seen' if error is None else 'seen' if not other else 'failed'}: {name}{other}")
    for text in failed:
        print(f"MISS {text}")
    print(f"{len(failed)} claims do not hold" if failed else "every claim holds")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
