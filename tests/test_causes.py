"""Every cause on real captures of an H200, against a table made by hand; and what damaged stacks do to the claims."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path

import pytest
from conftest import Capture

from nsys_sync import analyze, model
from nsys_sync.analysis import site_keys
from nsys_sync.analysis.advice import CAUSES
from nsys_sync.analysis.causes import RULES, UNKNOWN, Facts, find_cause

WORKLOADS = Path(__file__).parent.parent / "scripts" / "workloads"

# function of sync_causes.py → (cause, dependency) of its sites, worst cause first where a line does two things.
# The source is at hand (WORKLOADS), which tells some causes and most dependencies.
EXPECTED: dict[str, list[tuple[str, str]]] = {
    "read_item": [("scalar-read", "unknown")],
    "read_float": [("scalar-read", "unknown")],
    "read_int": [("scalar-read", "unknown")],
    "read_complex": [("scalar-read", "unknown")],
    "read_list": [("tolist", "unknown")],
    "branch_bool": [("truth-value", "true")],
    "branch_if": [("truth-value", "true")],
    "branch_while": [("truth-value", "true")],
    "branch_assert": [("truth-value", "true")],
    "branch_and": [("truth-value", "true")],
    "branch_not": [("truth-value", "true")],
    "branch_is_nonzero": [("is-nonzero", "true")],
    "branch_contains": [("truth-value", "true")],
    "branch_all_builtin": [("python-max-min", "false")],
    "print_tensor": [("print", "false"), ("print", "false")],
    "format_tensor": [("print", "false"), ("print", "false")],
    "format_scalar": [("print", "false")],
    "log_tensor": [("print", "false"), ("print", "false")],
    "log_item": [("scalar-read", "false")],
    "print_item": [("scalar-read", "false")],
    "copy_to_cpu": [("to-cpu", "unknown")],
    "copy_to_cpu_by_to": [("to-cpu", "unknown")],
    "copy_into_cpu_tensor": [("to-cpu", "unknown")],
    "copy_to_numpy": [("numpy", "unknown")],
    "copy_to_numpy_by_force": [("numpy", "unknown")],
    "copy_by_legacy_type": [("legacy-type-download", "unknown")],
    "copy_by_type_name": [("legacy-type-download", "unknown")],
    "upload_by_cuda": [("upload", "false")],
    "upload_by_to": [("upload", "false")],
    "upload_by_to_small": [("upload", "false")],
    "upload_by_copy": [("upload", "false")],
    "upload_by_legacy_type": [("legacy-type", "false")],
    "upload_module": [("module-to", "false")],
    "construct_tensor": [("construct", "false")],
    "construct_scalar_tensor": [("construct", "false")],
    "construct_as_tensor": [("construct", "false")],
    "construct_as_tensor_of_array": [("construct", "false")],
    "construct_legacy": [("legacy-constructor", "false")],
    "construct_legacy_float": [("legacy-constructor", "false")],
    "construct_new_tensor": [("construct", "false")],
    "construct_full": [],
    "index_by_mask": [("mask-index", "true")],
    "assign_by_mask": [("mask-assign", "false")],
    "assign_scalar_by_mask": [],
    "index_by_list": [("cpu-index", "false")],
    "index_by_cpu_tensor": [("cpu-index", "false")],
    "index_by_gpu_tensor": [],
    "assign_by_list": [("cpu-index", "false")],
    "assign_scalar_by_index": [("assign-value", "false")],
    "assign_scalar_at_position": [("assign-value", "false")],
    "assign_cpu_tensor_at_position": [("assign-value", "false")],
    "assign_array_at_position": [("assign-value", "false")],
    "assign_at_gpu_scalar": [("assign-value", "false"), ("gpu-scalar", "false")],
    "index_by_gpu_scalar": [("gpu-scalar", "false")],
    "slice_by_gpu_scalar": [("gpu-index", "true")],
    "range_of_gpu_scalar": [("gpu-index", "true")],
    "arange_of_gpu_scalar": [("gpu-index", "true")],
    "split_by_gpu_sizes": [("gpu-index", "true")],
    "shape_nonzero": [("nonzero", "true")],
    "shape_nonzero_method": [("nonzero", "true")],
    "shape_argwhere": [("nonzero", "true")],
    "shape_where": [("nonzero", "true")],
    "shape_masked_select": [("masked-select", "true")],
    "shape_unique": [("unique", "true")],
    "shape_unique_dim": [("unique", "true"), ("unique", "true")],
    "shape_unique_consecutive": [("unique", "true")],
    "shape_repeat_interleave": [("repeat-interleave", "true")],
    "shape_repeat_interleave_known": [],
    "shape_bincount": [("operator-read", "true"), ("operator-read", "true")],
    "shape_one_hot": [("operator-read", "true")],
    "builtin_max": [("python-max-min", "false")],
    "builtin_min_of_list": [("python-max-min", "false")],
    "builtin_sum": [],
    "builtin_sorted": [("python-max-min", "false")],
    "compare_equal": [("compare", "true")],
    "compare_allclose": [("compare", "true")],
    "clip_error_if_nonfinite": [("clip-grad", "true")],
    "clip_plain": [],
    "step_grad_scaler": [("grad-scaler", "true")],
    "backward": [("scalar-read", "unknown")],  # of item_in_backward, on autograd's thread
    "wait_for_device": [("device-synchronize", "explicit")],
    "wait_for_stream": [("stream-synchronize", "explicit")],
    "wait_for_event": [("event-synchronize", "explicit")],
    "wait_for_nothing": [("stream-synchronize", "explicit")],
    "collate": [("upload", "false")],  # of iterate_data_loader
    "iterate_data_loader_on_default_device": [("data-loader", "false"), ("scalar-read", "unknown")],
    "seed_from_gpu": [("scalar-read", "unknown")],
    "multinomial": [],
    "pad_sequence": [],
    "histogram": [],
    "cholesky": [("linalg-check", "false")],
    "inverse": [("linalg-check", "false")],
    "ctc_loss": [("operator-read", "true"), ("operator-upload", "unknown")],
    "state_dict_to_cpu": [("to-cpu", "unknown")],
    "save_state": [("checkpoint", "true")],
    "<module>": [("device-synchronize", "explicit")],
}
ALLOCATOR = {
    "empty_cache": [("empty-cache", "false")],
    "allocator_retry": [("allocator-retry", "false")],
    "<module>": [("device-synchronize", "explicit")],
}
OTHER = {
    "cupy_get": "cupy-read",
    "cupy_asnumpy": "cupy-read",
    "cupy_item": "cupy-read",
    "cupy_float": "cupy-read",
    "cupy_truth": "cupy-truth",
    "cupy_nonzero": "cupy-nonzero",
    "cupy_mask": "cupy-nonzero",
    "cupy_unique": "cupy-nonzero",
    "cupy_print": "cupy-print",
    "cupy_tolist": "cupy-read",
    "cupy_device_synchronize": "device-synchronize",
    "cupy_stream_synchronize": "stream-synchronize",
    "cupy_event_synchronize": "event-synchronize",
    "triton_autotune": "triton-benchmark",
    "triton_do_bench": "triton-benchmark",
    "numba_synchronize": "numba",
    "<module>": "device-synchronize",
}
DISTRIBUTED = dict.fromkeys(("barrier", "gather_object", "broadcast_objects", "ddp_step"), "distributed") | {
    "<module>": "device-synchronize"
}


@cache
def analysis(path: Path) -> model.Analysis:
    return analyze(path, source_root=WORKLOADS)


def by_function(found: model.Analysis) -> dict[str, list[tuple[str, str]]]:
    result: dict[str, list[tuple[str, str]]] = {}
    for site in found.sites:
        result.setdefault(site.location.function or "?", []).append((site.cause.id, site.dependency.kind))
    return result


@pytest.mark.parametrize("schema", ["3.7.2", "3.20.3"])
def test_each_function_gets_its_cause_and_dependency(capture: Capture, schema: str) -> None:
    found = by_function(analysis(capture(f"sync_causes.schema-{schema}")))
    wrong = {
        function: (sorted(expected), sorted(found.get(function, [])))
        for function, expected in EXPECTED.items()
        if sorted(expected) != sorted(found.get(function, []))
    }
    assert not wrong
    assert set(found) <= set(EXPECTED)
    assert not any(site.cause.id == UNKNOWN for site in analysis(capture(f"sync_causes.schema-{schema}")).sites)


def test_the_allocators_waits_are_told_apart(capture: Capture) -> None:
    assert by_function(analysis(capture("sync_causes_allocator.schema-3.7.2"))) == ALLOCATOR


def test_other_libraries_are_told_apart(capture: Capture) -> None:
    found = {
        site.location.function: site.cause.id for site in analysis(capture("sync_causes_other.schema-3.7.2")).sites
    }
    assert found == OTHER


def test_waits_of_distributed_training(capture: Capture) -> None:
    found = {
        site.location.function: site.cause.id
        for site in analysis(capture("sync_causes_distributed.schema-3.7.2")).sites
    }
    assert found == DISTRIBUTED


def test_without_the_source_nothing_is_claimed_that_only_the_source_tells(capture: Capture) -> None:
    found = {
        site.location.function: (site.cause.id, site.dependency.kind)
        for site in analyze(capture("sync_causes.schema-3.7.2"), no_source=True).sites
    }
    assert found["builtin_max"] == ("truth-value", "true")
    assert found["branch_is_nonzero"] == ("truth-value", "true")
    assert found["copy_to_numpy"] == ("to-cpu", "unknown")
    assert found["print_item"] == ("scalar-read", "unknown")
    assert found["print_tensor"] == ("print", "false")


def test_every_site_says_what_its_claim_rests_on_and_what_to_do(capture: Capture) -> None:
    found = analysis(capture("sync_causes.schema-3.7.2"))
    texts = {text.id: text for text in found.causes}
    advice = {one.id: one for one in found.advice}
    assert set(texts) == {site.cause.id for site in found.sites}
    assert set(advice) == {one for site in found.sites for one in site.advice}
    for site in found.sites:
        assert site.cause.evidence and all(site.cause.evidence)
        assert site.advice, site.cause.id
        assert site.dependency.kind == "unknown" or site.dependency.evidence
        if site.location.function != "<module>":  # below functions that have been changed since the capture
            assert site.source is not None and site.source.basis, site.location
    shapes = {text.id for text in texts.values() if text.dynamic_shape}
    assert {"mask-index", "nonzero", "masked-select", "unique", "repeat-interleave", "gpu-index"} <= shapes
    assert not {"scalar-read", "upload", "print", "device-synchronize"} & shapes


def test_rules_and_texts_name_the_same_causes() -> None:
    by_source_or_calls = {"is-nonzero", "python-max-min", "pinned-allocation", UNKNOWN}
    assert {rule.cause for rule in RULES} | by_source_or_calls == set(CAUSES)


# What damage may turn a claim into: less, but nothing else. A READ by PyTorch is still one, an upload is one.
WEAKER = {UNKNOWN, "operator-read", "operator-upload", "upload", "memcpy", "memset", "free"}

BOTH_WAYS = {"tensor.to()", "module.to()", "tensor.copy_()", "tensor.type()"}
"""The same frames for uploads and downloads: such a stack contradicts neither."""


def recorded(capture: Capture, monkeypatch: pytest.MonkeyPatch, *names: str) -> list[Facts]:
    seen: dict[Facts, None] = {}

    def record(facts: Facts) -> object:
        seen.setdefault(facts)
        return find_cause(facts)

    monkeypatch.setattr(site_keys, "find_cause", record)
    for name in names:
        analyze(capture(name), no_source=True)
    return list(seen)


def damaged(facts: Facts, others: list[Facts], draw: random.Random) -> Iterator[tuple[str, Facts]]:
    stack = facts.native or ()
    at, to = draw.randrange(len(stack)), draw.randrange(len(stack))
    yield "cut inside", replace(facts, native=stack[at:])
    yield "cut outside", replace(facts, native=stack[:at])
    yield "gone", replace(facts, native=None)
    yield "empty", replace(facts, native=())
    yield "frames lost", replace(facts, native=tuple(frame for frame in stack if draw.random() > 0.1))
    yield "shuffled", replace(facts, native=tuple(draw.sample(stack, len(stack))))
    swapped = list(stack)
    swapped[at], swapped[to] = swapped[to], swapped[at]
    yield "two swapped", replace(facts, native=tuple(swapped))
    yield "reversed", replace(facts, native=stack[::-1])
    yield (
        "unresolved",
        replace(
            facts,
            native=tuple(("0x7f00", module) if draw.random() < 0.4 else (name, module) for name, module in stack),
        ),
    )
    yield "modules lost", replace(facts, native=tuple((name, "[unknown]") for name, _ in stack))
    other = draw.choice(others)
    contradicted = other.apis[-1] != facts.apis[-1] or {other.copy_kind, facts.copy_kind} == {"DtoH", "HtoD"}
    if contradicted and find_cause(other).operation not in BOTH_WAYS:
        yield "another call's", replace(facts, native=other.native)


def test_damaged_stacks_weaken_a_claim_and_never_turn_it_into_another(
    capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("sync_causes.schema-3.7.2", "sync_causes_allocator.schema-3.7.2", "sync_causes_other.schema-3.7.2")
    facts = [one for one in recorded(capture, monkeypatch, *names) if one.native]
    assert len(facts) > 100
    draw = random.Random(20261129)
    wrong: dict[tuple[str, str, str], int] = {}
    kept = 0
    for one in facts:
        truth = find_cause(one).cause.id
        allowed = WEAKER | {truth} | ({"cupy-read"} if truth.startswith("cupy-") else set())
        # Of a call without a native stack, Python's frames and the kind of call still tell something.
        allowed.add(find_cause(replace(one, native=None)).cause.id)
        for _ in range(20):
            for damage, changed in damaged(one, facts, draw):
                claim = find_cause(changed).cause.id
                kept += claim == truth
                if claim not in allowed:
                    wrong[damage, truth, claim] = wrong.get((damage, truth, claim), 0) + 1
    assert not wrong
    assert kept > 1_000  # damage that leaves what a rule needs leaves the claim


def test_a_stack_of_another_call_is_not_believed() -> None:
    item = (
        ("0x7f", "libcupti.so.12"),
        ("cudaStreamSynchronize", "libcudart.so.13"),
        ("at::native::_local_scalar_dense_cuda(at::Tensor const&)", "libtorch_cuda.so"),
        ("torch::autograd::THPVariable_item(_object*, _object*)", "libtorch_python.so"),
        ("_PyEval_EvalFrameDefault", "python3.12"),
    )
    read = Facts(("cudaMemcpyAsync", "cudaStreamSynchronize"), "DtoH", "device", "pinned", item, (), True)
    assert find_cause(read).cause.id == "scalar-read"
    assert find_cause(read).cause.certainty == "certain"
    upload = replace(read, copy_kind="HtoD", src_memory="pageable", dst_memory="device")
    assert find_cause(upload).cause.id == "upload"
    assert find_cause(upload).cause.certainty == "likely"
    of_event = replace(read, apis=("cudaEventSynchronize",), copy_kind=None, src_memory=None, dst_memory=None)
    assert find_cause(of_event).cause.id == UNKNOWN
    assert find_cause(replace(read, native=item[:-1])).cause.id == UNKNOWN
    assert find_cause(replace(read, native=item[1:])).cause.id == "scalar-read"
    assert find_cause(replace(read, native=(item[2], *item[:2], *item[3:]))).cause.id == UNKNOWN


def test_unknown_says_what_is_known() -> None:
    found = find_cause(Facts(("cudaStreamSynchronize",), None, None, None, None, (), False))
    assert (found.cause.id, found.cause.certainty) == (UNKNOWN, "open")
    assert found.cause.evidence == ("cudaStreamSynchronize; it has no stack",)


def test_another_version_of_the_source_is_not_believed(capture: Capture, tmp_path: Path) -> None:
    """Every line is one further down: the functions' names still fit, what is written there does not."""
    text = (WORKLOADS / "sync_heavy.py").read_text("utf-8")
    (tmp_path / "sync_heavy.py").write_text(text.replace("def ", "def ", 1).replace('"""\n', '"""\n\n', 1), "utf-8")
    moved = analyze(capture("profiled_sync_heavy.schema-3.7.2"), source_root=tmp_path)
    assert not any(site.source for site in moved.sites)
    assert any("no source line was read" in warning for warning in moved.traces[0].coverage.warnings)
    right = analyze(capture("profiled_sync_heavy.schema-3.7.2"), source_root=WORKLOADS)
    assert all(site.source for site in right.sites)
    assert not any("source" in warning for warning in right.traces[0].coverage.warnings)
    lines = {site.location.function: site.source.text for site in right.sites if site.source}
    assert lines["log_loss"] == "return loss.item()"


def test_one_line_that_does_not_show_its_call_is_not_shown(capture: Capture, tmp_path: Path) -> None:
    text = (WORKLOADS / "sync_heavy.py").read_text("utf-8").replace("return x.detach().cpu()", "return x.detach()")
    (tmp_path / "sync_heavy.py").write_text(text, "utf-8")
    found = analyze(capture("profiled_sync_heavy.schema-3.7.2"), source_root=tmp_path)
    without = {site.location.function for site in found.sites if site.source is None}
    assert without == {"to_cpu"}


def test_the_demos_source_is_the_program_of_its_capture(capture: Capture, tmp_path: Path) -> None:
    (tmp_path / "sync_heavy.py").write_bytes((files("nsys_sync") / "data" / "sync_heavy.py.txt").read_bytes())
    found = analyze(capture("sync_heavy.schema-3.20.3"), source_root=tmp_path)
    assert all(site.source for site in found.sites)


def test_what_else_is_said_of_sync_heavy(capture: Capture) -> None:
    """Three reads on one line, two waits for nothing at the end of each step, and the CPU making its batches."""
    found = analysis(capture("profiled_sync_heavy.schema-3.7.2"))
    sites = {site.location.function: site for site in found.sites}
    merge = found.merges[0]
    assert (merge.sites, merge.runs, merge.reads) == ((sites["metrics"].id,), 10, 30)
    assert sites["event_sync"].redundant_calls == sites["event_sync"].calls == 10
    assert sites["log_loss"].redundant_calls is None
    regions = {region.name: region for region in found.traces[0].regions}
    assert (regions["step *"].ranges, regions["step *"].ranges_with_operations) == (10, 10)
    work = found.traces[0].host_work
    assert work is not None and work.lines[0].location.function == "load_batch_pageable"


def test_waits_of_jax_are_found_by_samples(capture: Capture) -> None:
    """No CUDA call waits; the source line tells the array's own method, which has no frame."""
    found = analysis(capture("jax_waits.schema-3.7.2"))
    assert not found.sites
    work = found.traces[0].host_work
    assert work is not None
    waits = {(one.location.function, one.wait): one.samples for one in work.hidden_waits}
    assert set(waits) == {("wait", "JAX: block_until_ready()"), ("read", "JAX: float(array)")}


def test_what_a_function_returns_is_followed_to_its_callers(capture: Capture, tmp_path: Path) -> None:
    """train_step of sync_heavy.py drops what log_loss, to_cpu and metrics return."""
    program = (WORKLOADS / "sync_heavy.py").read_text("utf-8")

    def of(function: str, changed: str) -> model.Dependency:
        (tmp_path / "sync_heavy.py").write_text(changed, "utf-8")
        found = analyze(capture("profiled_sync_heavy.schema-3.7.2"), source_root=tmp_path)
        return next(site.dependency for site in found.sites if site.location.function == function)

    dropped = of("log_loss", program)
    assert (dropped.kind, dropped.certainty, dropped.reason) == ("false", "likely", "the value is never used")
    assert dropped.evidence == ("on line 23 it is returned; line 80 does nothing with it",)
    assert of("metrics", program).kind == "false"
    assert of("log_loss", program.replace("    log_loss(loss)", "    print(log_loss(loss))")).kind == "false"
    assert of("log_loss", program.replace("    log_loss(loss)", "    if log_loss(loss) > 1: pass")).kind == "true"
    assert of("log_loss", program.replace("    log_loss(loss)", "    keep(log_loss(loss))")).kind == "unknown"
    # The line where the trace has the call calls something else: another version.
    assert of("log_loss", program.replace("    log_loss(loss)", "    log_loss2(loss)")).kind == "unknown"


def test_an_allocation_of_pinned_memory_is_explained_where_it_costs_time(capture: Capture) -> None:
    found = analysis(capture("sync_causes_allocator.schema-3.7.2"))
    work = found.traces[0].host_work
    assert work is not None
    assert [call.api for call in work.calls if call.cause == "pinned-allocation"] == ["cudaHostAlloc"]
    assert "pinned-allocation" in {text.id for text in found.causes}
    assert set(CAUSES["pinned-allocation"].advice) <= {one.id for one in found.advice}


def test_without_a_python_stack_no_need_is_claimed(capture: Capture, tmp_path: Path) -> None:
    """One print of a tensor selects by a mask and tests values inside: none of it is the program's."""
    path = tmp_path / "one_print.sqlite"
    shutil.copyfile(capture("one_print.schema-3.7.2"), path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TABLE NSYS_SYNC_PYTHON_BACKTRACE")
    found = analyze(path)
    assert {site.cause.id for site in found.sites} >= {"masked-select", "truth-value"}
    assert {site.dependency.kind for site in found.sites if site.cause.id != "device-synchronize"} == {"unknown"}
    whole = analyze(capture("one_print.schema-3.7.2"), source_root=WORKLOADS)
    assert {(site.cause.id, site.dependency.kind) for site in whole.sites} == {
        ("print", "false"),
        ("device-synchronize", "explicit"),
    }


def test_text_of_a_tensor_can_be_needed(capture: Capture, tmp_path: Path) -> None:
    text = (WORKLOADS / "sync_causes.py").read_text("utf-8")
    (tmp_path / "sync_causes.py").write_text(text.replace('return f"{small}"', 'return seen[f"{small}"]'), "utf-8")
    found = analyze(capture("sync_causes.schema-3.7.2"), source_root=tmp_path)
    kinds = {site.dependency.kind for site in found.sites if site.location.function == "format_tensor"}
    assert kinds == {"true"}
    certain = {site.cause.id for site in found.sites if site.dependency.certainty == "certain"}
    assert not {"print", "compare"} & certain


@pytest.mark.parametrize("name", ["memcpy_sync", "memcpy_sync_all"])
def test_blocking_cuda_calls_say_themselves_what_they_are(capture: Capture, name: str) -> None:
    found = analyze(capture(f"{name}.schema-3.20.3"), no_source=True)
    causes = {(site.location.function, site.cause.id, site.cause.certainty) for site in found.sites}
    assert {
        ("blocking_copy", "memcpy", "certain"),
        ("blocking_upload", "memcpy", "certain"),
        ("free_under_load", "free", "certain"),
    } <= causes
