"""Host-bound time explained: by hand, on generated traces against a slow reading, and on real captures."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from attribution import attributed
from conftest import Capture
from hypothesis import given
from strategies import Plan, dense_plans
from test_attribution_oracle import generated
from trace_builder import SCHEMAS, ProcessBuilder, TraceBuilder

from nsys_sync.analysis.host_work import LISTED_LINES, _shares, host_work
from nsys_sync.analysis.options import Options
from nsys_sync.analysis.samples import python_samples
from nsys_sync.errors import TraceError
from nsys_sync.model import HostWork
from nsys_sync.trace.api_names import base_name

MS = 1_000_000
SITE = "/usr/lib/python3.12/site-packages"
MAIN = ("<module>", "/home/me/train.py", 90)
LOAD = ("load", "/home/me/train.py", 7)


def sampled(schema: str = "3.20.3") -> TraceBuilder:
    b = TraceBuilder(schema)
    b.row("META_DATA_CAPTURE", name="PYTHON_BACKTRACE_SAMPLING_OPTIONS:SAMPLING_RATE", value="1000")
    return b


def explain(b: TraceBuilder, tmp_path: Path, options: Options | None = None) -> HostWork:
    work = host_work(attributed(b.write(tmp_path / "trace.sqlite"), options))
    assert work is not None
    return work


def late_work(process: ProcessBuilder, tid: int = 100, gap: tuple[int, int] = (10 * MS, 20 * MS)) -> None:
    """GPU work up to the gap's start and from its end, where the host launched it: the gap is host-bound."""
    thread = process.thread(tid)
    thread.launch(0, 1000, gpu=(2000, gap[0]))
    thread.launch(gap[1] - 5000, gap[1] - 1000, gpu=(gap[1], gap[1] + MS))


@pytest.mark.parametrize("schema", SCHEMAS)
def test_lines_share_the_host_bound_time_by_their_samples(schema: str, tmp_path: Path) -> None:
    b = sampled(schema)
    p = b.process(100)
    late_work(p)
    thread = p.thread(100)
    collate = ("default_collate", f"{SITE}/torch/utils/data/_utils/collate.py", 3)
    step = ("step", f"{SITE}/torch/optim/sgd.py", 12)
    for at, frames in (
        (9, [LOAD, MAIN]),  # the GPU still works
        (11, [LOAD, MAIN]),
        (12, [("randn", f"{SITE}/torch/_x.py", 1), LOAD, MAIN]),
        (13, [collate, LOAD, MAIN]),
        (14, [collate, LOAD, MAIN]),
        (15, [step, ("update", "/home/me/train.py", 30), MAIN]),
        (16, [("helper", f"{SITE}/lib.py", 5)]),  # no user code: the innermost frame
        (21, [LOAD, MAIN]),
    ):
        thread.python_stack(at * MS, frames, "sample")
    work = explain(b, tmp_path)
    assert (work.host_bound_ns, work.samples, work.sampling_period_ns) == (10 * MS, 6, MS)
    assert [(line.location.label, line.work, line.inner, line.samples) for line in work.lines] == [
        ("train.py:7 load", "data loading", "default_collate (torch/utils/data/_utils/collate.py)", 2),
        *sorted(
            [
                ("train.py:7 load", "Python", None, 1),
                ("train.py:7 load", "Python", "randn (torch/_x.py)", 1),
                ("train.py:30 update", "optimizer", "step (torch/optim/sgd.py)", 1),
                ("lib.py:5 helper", "Python", None, 1),
            ],
            key=lambda line: [(entry.location.label, entry.inner) for entry in work.lines].index((line[0], line[2])),
        ),
    ]
    assert work.lines[0].location.file == "~/train.py"
    assert sum(line.estimate_ns for line in work.lines) == work.host_bound_ns
    assert work.not_sampled is None and work.hidden_waits == ()


PYTHON = "/usr/lib/python3.12"
STACKS: tuple[tuple[str, list[tuple[str, str]]], ...] = (
    ("data loading", [("__getitem__", "/home/me/d.py"), ("fetch", f"{SITE}/torch/utils/data/_utils/fetch.py")]),
    ("waiting for another thread or process", [("wait", f"{PYTHON}/threading.py"), ("get", f"{PYTHON}/queue.py")]),
    (
        "waiting for data loader workers",
        [("wait", f"{PYTHON}/threading.py"), ("_try_get_data", f"{SITE}/torch/utils/data/dataloader.py")],
    ),
    ("compiling", [("run", f"{SITE}/torch/fx/node.py"), ("_compile", f"{SITE}/torch/_dynamo/convert_frame.py")]),
    ("optimizer", [("zero_grad", f"{SITE}/torch/optim/sgd.py"), ("_fn", f"{SITE}/torch/_dynamo/eval_frame.py")]),
    ("Python", [("run", f"{SITE}/triton/runtime/jit.py")]),  # a launch
    (
        "importing modules",
        [("<module>", f"{SITE}/jax/_src/interpreters/mlir.py"), ("_load", "<frozen importlib._bootstrap>")],
    ),
    ("backward", [("backward", f"{SITE}/torch/autograd/__init__.py")]),
    ("module forward", [("forward", f"{SITE}/torch/nn/modules/linear.py")]),
    ("tokenising", [("_encode", f"{SITE}/transformers/tokenization_utils_fast.py")]),
    ("reading or writing files", [("load", f"{SITE}/torch/serialization.py")]),
    ("printing or logging", [("_str_intern", f"{SITE}/torch/_tensor_str.py")]),
    ("garbage collection", [("_xla_gc_callback", f"{SITE}/jax/_src/lib/__init__.py")]),
    ("waiting for JAX", [("_value", f"{SITE}/jax/_src/array.py")]),
    ("Python", [("load", "/home/me/torch/optim/mine.py")]),  # the user's own line says what it is
)


@pytest.mark.parametrize(("expected", "frames"), STACKS)
def test_work_is_told_by_frames(expected: str, frames: list[tuple[str, str]], tmp_path: Path) -> None:
    b = sampled()
    p = b.process(100)
    late_work(p)
    p.thread(100).python_stack(15 * MS, [*((*frame, 3) for frame in frames), MAIN], "sample")
    assert [line.work for line in explain(b, tmp_path).lines] == [expected]


def two_python_threads(b: TraceBuilder, *, exact: bool = True) -> ProcessBuilder:
    """The main thread launches late work; a helper began like every thread does, and runs `helper`."""
    p = b.process(100)
    late_work(p)
    main, other = p.thread(100), p.thread(101)
    helper = [("helper", "/home/me/train.py", 40), ("run", "/usr/lib/python3.12/threading.py", 1)]
    helper.append(("_bootstrap", "/usr/lib/python3.12/threading.py", 1))
    if exact:
        main.stream_sync(1100, 1200, python=[("begin", "/home/me/train.py", 3), MAIN])
        other.stream_sync(1100, 1200, python=helper)
    for at in (12, 13):
        main.python_stack(at * MS, [LOAD, MAIN], "sample")
        main.python_stack(at * MS, helper, "sample")
    return p


def test_of_several_threads_the_launching_one_counts(tmp_path: Path) -> None:
    b = sampled()
    two_python_threads(b)
    work = explain(b, tmp_path)
    assert work.samples == 2
    assert [(line.location.label, line.samples) for line in work.lines] == [("train.py:7 load", 2)]


def test_samples_of_threads_that_cannot_be_told_apart_are_left_out(tmp_path: Path) -> None:
    b = sampled()
    two_python_threads(b, exact=False)
    work = explain(b, tmp_path)
    assert work.samples == 0 and work.lines == ()
    assert work.not_sampled is not None and "several Python threads" in work.not_sampled


def test_threads_that_begin_alike_are_told_by_no_one(tmp_path: Path) -> None:
    """Two threads run the same function, and only one of them has an exact stack."""
    b = sampled()
    p = two_python_threads(b)
    p.thread(100).python_stack(14 * MS, [LOAD, MAIN], "sample")
    p.thread(100).python_stack(14 * MS, [("other", "/home/me/train.py", 8), MAIN], "sample")
    assert explain(b, tmp_path).samples == 0


def test_a_thread_without_python_is_explained_by_the_only_python_thread(tmp_path: Path) -> None:
    b = sampled()
    p = b.process(100)
    late_work(p, tid=105)
    p.thread(100).stream_sync(1100, 1200, python=[MAIN])
    p.thread(100).python_stack(15 * MS, [("backward", f"{SITE}/torch/_tensor.py", 1), MAIN], "sample")
    assert explain(b, tmp_path).samples == 1


def test_a_thread_without_python_is_not_explained_by_several(tmp_path: Path) -> None:
    b = sampled()
    p = b.process(100)
    late_work(p, tid=105)
    for at in (12, 13):
        p.thread(100).python_stack(at * MS, [LOAD, MAIN], "sample")
        p.thread(100).python_stack(at * MS, [("helper", "/home/me/train.py", 40)], "sample")
    assert "several Python threads" in (explain(b, tmp_path).not_sampled or "")


def test_why_nothing_was_sampled(tmp_path: Path) -> None:
    b = TraceBuilder()
    late_work(b.process(100))
    work = explain(b, tmp_path)
    assert work.lines == () and work.sampling_period_ns is None
    assert work.not_sampled is not None and "Python" in work.not_sampled
    b.processes[0].thread(100).stream_sync(1100, 1200, python=[MAIN])
    assert "no Python samples" in (explain(b, tmp_path).not_sampled or "")
    b.processes[0].thread(100).python_stack(1100, [MAIN], "sample")
    assert "in host-bound time" in (explain(b, tmp_path).not_sampled or "")


def test_nothing_to_explain(tmp_path: Path) -> None:
    b = TraceBuilder()
    b.process(100).thread(100).launch(0, 5, gpu=(10, 20))
    work = explain(b, tmp_path)
    assert (work.host_bound_ns, work.lines, work.not_sampled, work.calls) == (0, (), None, ())


def test_calls_in_host_bound_time(tmp_path: Path) -> None:
    b = TraceBuilder()
    p = b.process(100)
    late_work(p)
    thread = p.thread(100)
    thread.api("cudaHostAlloc_v3020", 9 * MS, 12 * MS)  # one of its 3 ms is before the gap
    thread.api("cudaMalloc_v3020", 13 * MS, 13 * MS + 200_000)
    thread.api("cudaMalloc_v3020", 14 * MS, 14 * MS + 100_000)
    thread.api("cudaFuncGetAttributes_v3020", 15 * MS, 15 * MS + 20_000)
    p.thread(101).api("cudaHostAlloc_v3020", 15 * MS, 16 * MS)  # on a thread that launched nothing
    work = explain(b, tmp_path)
    assert [(call.api, call.calls, call.total_ns) for call in work.calls] == [
        ("cudaHostAlloc", 1, 2 * MS),
        ("cudaMalloc", 2, 300_000),
    ]


def test_a_time_range_clips_and_a_process_restricts(tmp_path: Path) -> None:
    b = sampled()
    p = b.process(100)
    late_work(p)
    p.thread(100).stream_sync(1100, 1200, python=[MAIN])
    for at in (11, 13, 15, 17):
        p.thread(100).python_stack(at * MS, [LOAD, MAIN], "sample")
    b.process(200).thread(200).api("cudaMalloc_v3020", 0, 1)
    work = explain(b, tmp_path, Options(time_range=(12 * MS, 16 * MS)))
    assert (work.host_bound_ns, work.samples) == (4 * MS, 2)
    assert explain(b, tmp_path, Options(pid=100)).host_bound_ns == 10 * MS - 100  # less the wait's own stall
    assert explain(b, tmp_path, Options(pid=200)).host_bound_ns == 0


def test_hidden_waits_are_found_by_their_innermost_frames(tmp_path: Path) -> None:
    b = sampled()
    p = b.process(100)
    late_work(p)
    thread = p.thread(100)
    array = f"{SITE}/jax/_src/array.py"
    value, read = ("_value", array, 637), ("__float__", array, 295)
    wrapper = ("wrapper", f"{SITE}/jax/_src/profiler.py", 420)
    user = ("read", "/home/me/train.py", 32)
    for at in (1, 3):
        thread.python_stack(at * MS, [value, wrapper, read, user, MAIN], "sample")
    thread.python_stack(5 * MS, [("wait", "/home/me/train.py", 28), MAIN], "sample")
    thread.python_stack(6 * MS, [("bind", f"{SITE}/jax/_src/core.py", 1), ("__getitem__", array, 1), user], "sample")
    thread.stream_sync(7 * MS, 8 * MS)
    thread.python_stack(7 * MS + 9, [value, wrapper, read, user, MAIN], "sample")  # an operation shows this one
    path = b.write(tmp_path / "trace.sqlite")
    work = host_work(attributed(path))
    assert work is not None
    assert [(w.location.label, w.wait, w.samples, w.estimate_ns) for w in work.hidden_waits] == [
        ("train.py:32 read", "JAX: float(array)", 2, 2 * MS)
    ]
    source = {("/home/me/train.py", 28): "    return a.block_until_ready()"}
    work = host_work(attributed(path), lambda file, line: source.get((file, line)))
    assert work is not None
    assert [(w.location.label, w.wait, w.samples) for w in work.hidden_waits] == [
        ("train.py:32 read", "JAX: float(array)", 2),
        ("train.py:28 wait", "JAX: block_until_ready()", 1),
    ]


def test_shares_add_up() -> None:
    assert _shares(10, [1, 1, 1]) == [4, 3, 3]
    assert _shares(7, [5, 2]) == [5, 2]
    assert sum(_shares(10**15 + 7, list(range(1, 1000)))) == 10**15 + 7


@generated
@given(plan=dense_plans)
def test_calls_as_a_slow_reading_finds_them(plan: Plan, tmp_path: Path) -> None:
    try:
        one = attributed(plan.build().write(tmp_path / "trace.sqlite", shuffle=plan.shuffle))
    except TraceError:
        return
    work = host_work(one)
    assert (work is None) == all(one.refusal(account) for account in one.accounts)
    if work is None:
        return
    calls = one.calls
    names = [base_name(one.trace.api_names[name]) for name in calls.name_of(np.arange(len(calls)))]
    synchronizing = {*one.operations.call.tolist(), *one.operations.copy_call.tolist()}
    total: Counter[str] = Counter()
    seen: dict[str, set[int]] = {}
    host_bound = 0
    for account in one.accounts:
        bound = account.host_bound
        for start, end, thread in zip(bound.start, bound.end, account.host_bound_thread, strict=True):
            if one.refusal(account):
                continue
            host_bound += int(end - start)
            for i, name in enumerate(names):
                length = int(min(end, calls.end[i]) - max(start, calls.start[i]))
                if calls.thread[i] == thread and length > 0 and i not in synchronizing:
                    total[name] += length
                    seen.setdefault(name, set()).add(i)
    assert work.host_bound_ns == host_bound
    expected = {(name, len(seen[name]), ns) for name, ns in total.items() if ns >= host_bound * 0.01}
    assert {(call.api, call.calls, call.total_ns) for call in work.calls} == expected
    assert [call.total_ns for call in work.calls] == sorted((call.total_ns for call in work.calls), reverse=True)


# ------------------------------------------------------------------------------------------------------ real captures


@pytest.mark.parametrize("schema", SCHEMAS)
def test_sync_heavy_waits_for_its_batches(capture: Capture, schema: str) -> None:
    work = host_work(attributed(capture(f"sync_heavy.schema-{schema}")))
    assert work is not None
    assert (work.host_bound_ns, work.samples, work.sampling_period_ns) == (142_551_164, 128, MS)
    first, second = work.lines[:2]
    assert (first.location.function, first.location.line, first.samples) == ("load_batch_pageable", 15, 70)
    assert (second.location.function, second.location.line) == ("load_batch_pageable", 17)
    assert first.estimate_ns == pytest.approx(78 * MS, rel=0.01)
    assert {line.work for line in work.lines if line.inner and "autograd" in line.inner} == {"backward"}
    assert len(work.lines) <= LISTED_LINES and sum(line.estimate_ns for line in work.lines) <= work.host_bound_ns
    assert work.calls[0].api == "cudaLaunchKernel"
    assert work.hidden_waits == ()


def test_an_export_without_blobs_says_so(capture: Capture) -> None:
    work = host_work(attributed(capture("sync_heavy.schema-3.20.3.noblobs")))
    assert work is not None and work.lines == ()
    assert work.not_sampled is not None and "--include-blobs" in work.not_sampled


def test_graphs_without_rows_have_no_host_bound_time(capture: Capture) -> None:
    assert host_work(attributed(capture("graph_whole.schema-3.7.2"))) is None


def test_threads_of_a_real_program_are_told_apart(capture: Capture) -> None:
    """nvtx_threads: both workers begin in threading.py, and the main thread waits in join() in every tick."""
    one = attributed(capture("nvtx_threads.schema-3.20.3"))
    samples = python_samples(one.trace.python, one.calls)
    assert (samples.owner >= 0).all()
    by_owner = Counter(samples.owner.tolist())
    assert len(by_owner) == 3 and max(by_owner.values()) == 128
    work = host_work(one)
    assert work is not None and work.samples == 43
    assert work.lines[0].location.label == "nvtx_threads.py:24 load_batch"
    assert not [line for line in work.lines if re.search("join|lock", line.inner or "")]
