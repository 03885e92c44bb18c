"""Captures that `nsys-sync profile` itself made on a GPU (scripts/profile_on_gpu.sh), exported by `export --scrub`.

What to expect comes from reading the workloads, line by line.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from conftest import FIXTURES, Capture

import nsys_sync
from nsys_sync.model import Analysis
from nsys_sync.trace.read import read_trace
from nsys_sync.trace.sqlite_file import SqliteFile
from nsys_sync.trace.tables import PythonEvents

OLD, NEW = "schema-3.7.2", "schema-3.20.3"
ITEM, ITEM_FRAME = "tensor.item()", "THPVariable_item"
COPY_FRAME = "cudaMemcpy"
Place = tuple[str, int, str, str | None]
SYNCS: dict[str, dict[Place, tuple[int, str]]] = {
    # capture: line and function: calls, operation, and a frame that the native stack must contain
    "profiled_sync_heavy": {
        # Ten steps; `print_tensor` only in step 0: a print of a GPU tensor takes eight operations.
        ("sync_heavy.py", 19, "load_batch_pageable", "tensor.to()"): (10, "THPVariable_to"),
        ("sync_heavy.py", 19, "load_batch_pageable", "tensor.cuda()"): (10, "THPVariable_cuda"),
        ("sync_heavy.py", 23, "log_loss", ITEM): (10, ITEM_FRAME),
        ("sync_heavy.py", 28, "select_by_mask", "tensor[mask]"): (10, "THPVariable_getitem"),
        ("sync_heavy.py", 32, "count_nonzero", "torch.nonzero()"): (10, "THPVariable_nonzero"),
        ("sync_heavy.py", 36, "branch_on_tensor", "bool(tensor)"): (10, "THPVariable_is_nonzero"),
        ("sync_heavy.py", 42, "make_tensor_on_gpu", "torch.tensor(device=…)"): (10, "THPVariable_tensor"),
        ("sync_heavy.py", 46, "to_cpu", "tensor.cpu()"): (10, "THPVariable_cpu"),
        ("sync_heavy.py", 50, "slice_by_gpu_index", "slice by a GPU index"): (10, "THPVariable_index_scalar"),
        ("sync_heavy.py", 54, "print_tensor", "print(tensor)"): (8, "THPVariable_"),
        ("sync_heavy.py", 58, "explicit_sync", "torch.cuda.synchronize()"): (10, "THCPModule_cudaSynchronize"),
        ("sync_heavy.py", 64, "event_sync", "event.synchronize()"): (10, "THCPEvent_synchronize"),
        ("sync_heavy.py", 68, "unique", "torch.unique()"): (10, "THPVariable__unique2"),
        ("sync_heavy.py", 72, "metrics", ITEM): (30, ITEM_FRAME),
        ("sync_heavy.py", 109, "main", "torch.cuda.synchronize()"): (1, "THCPModule_cudaSynchronize"),
    },
    "profiled_procs": {
        ("procs.py", 8, "item_loop", ITEM): (20, ITEM_FRAME),
        ("procs.py", 13, "cpu_loop", "tensor.cpu()"): (20, "THPVariable_cpu"),
        ("procs.py", 23, "worker", "torch.cuda.synchronize()"): (2, "THCPModule_cudaSynchronize"),
    },
    "profiled_raises": {("raises.py", 12, "read", ITEM): (5, ITEM_FRAME)},
    # Its own name is not ASCII: it was started through a link.
    "profiled_file_name": {("program.py", 12, "read", ITEM): (50, ITEM_FRAME)},
    "profiled_module": {
        ("__main__.py", 11, "download", "tensor.cpu()"): (20, "THPVariable_cpu"),
        ("__main__.py", 19, "<module>", "torch.cuda.synchronize()"): (1, "THCPModule_cudaSynchronize"),
    },
    "profiled_copies": {
        ("memcpy_sync.py", 11, "blocking_copy", None): (10, COPY_FRAME),
        ("memcpy_sync.py", 15, "blocking_upload", None): (10, COPY_FRAME),
        ("memcpy_sync.py", 21, "free_under_load", None): (10, "cudaFree"),
    },
}
ALL = [*((name, OLD) for name in SYNCS), ("profiled_raises", NEW)]


def by_place(analysis: Analysis) -> Counter[tuple[object, ...]]:
    """Operations by file name, line, function and what the line does."""
    table = analysis.operations
    columns = (table[name].to_pylist() for name in ("file", "line", "function", "operation"))
    return Counter((Path(str(file)).name, *rest) for file, *rest in zip(*columns, strict=True))


@pytest.mark.parametrize(("name", "schema"), ALL)
def test_every_sync_is_at_its_line_with_an_exact_stack(capture: Capture, name: str, schema: str) -> None:
    analysis = nsys_sync.analyze(capture(f"{name}.{schema}"))
    expected = SYNCS[name]
    assert by_place(analysis) == {place: calls for place, (calls, _) in expected.items()}
    (trace,) = analysis.traces
    assert trace.coverage.located_by == (("exact stack", sum(calls for calls, _ in expected.values())),)
    assert {site.located_by[0][0] for site in analysis.sites} == {"exact stack"}


@pytest.mark.parametrize(("name", "schema"), ALL)
def test_native_stack_and_python_line_belong_together(capture: Capture, name: str, schema: str) -> None:
    analysis = nsys_sync.analyze(capture(f"{name}.{schema}"))
    frames_at: dict[tuple[int | None, str | None], set[str]] = {}
    for (_, line, function, _), (_, frame) in SYNCS[name].items():
        frames_at.setdefault((line, function), set()).add(frame)
    for site in analysis.sites:
        wanted = frames_at[site.location.line, site.location.function]
        symbols = [analysis.native_frames[i].symbol for i in site.native_stack]
        assert any(part in symbol for part in wanted for symbol in symbols), (site.location.label, symbols)


def test_each_process_has_its_own_lines(capture: Capture) -> None:
    sites = nsys_sync.analyze(capture(f"profiled_procs.{OLD}")).sites
    calls = {site.location.function: [share.calls for share in site.processes] for site in sites}
    assert calls == {"item_loop": [20], "cpu_loop": [20], "worker": [1, 1]}


def python_events(path: Path) -> list[tuple[object, ...]]:
    """(start, globalTid, whether a sample, the decoded frames) of each Python event."""
    python: PythonEvents = read_trace(SqliteFile(path), ("python",)).python
    assert python.refused is None
    frames = [
        (python.functions[function], python.files[file], int(line))
        for function, file, line in zip(python.frame_function, python.frame_file, python.frame_line, strict=True)
    ]
    columns = (python.start_ns, python.global_tid, python.is_sample, python.first, python.count)
    return sorted(
        (int(start), int(tid), bool(sample), frames[first : first + count])
        for start, tid, sample, first, count in zip(*columns, strict=True)
    )


HAVE_BOTH = sorted(
    name
    for name in (path.name.removesuffix(f".{NEW}.sqlite.xz") for path in FIXTURES.glob(f"*.{NEW}.sqlite.xz"))
    if (FIXTURES / f"{name}.{OLD}.sqlite.xz").exists()
)


@pytest.mark.parametrize("name", HAVE_BOTH)
def test_python_events_are_the_same_by_json_and_by_blobs(capture: Capture, name: str) -> None:
    by_json, by_blobs = (python_events(capture(f"{name}.{schema}")) for schema in (OLD, NEW))
    assert by_json and by_json == by_blobs


def test_python_events_of_the_program_that_raises(capture: Capture) -> None:
    samples = Counter(event[2] for event in python_events(capture(f"profiled_raises.{OLD}")))
    assert samples == {True: 12, False: 5}
