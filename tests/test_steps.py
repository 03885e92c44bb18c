"""Which NVTX ranges are taken for the program's steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from attribution import attributed
from conftest import Capture
from trace_builder import SCHEMAS, ProcessBuilder, ThreadBuilder, TraceBuilder


def steps_of(path: Path) -> tuple[str, int] | None:
    one = attributed(path)
    return None if one.steps is None else (one.step_pattern, len(one.steps))


def program() -> tuple[TraceBuilder, ThreadBuilder]:
    b = TraceBuilder()
    thread = b.process(100).thread(100)
    launch(thread, -10)
    return b, thread


def launch(thread: ThreadBuilder, at: int) -> None:
    thread.launch(at, at + 1, gpu=(at + 2, at + 3))


def worker_of(thread: ThreadBuilder) -> ThreadBuilder:
    process: ProcessBuilder = thread.process
    return process.thread(101)


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("step {}", "step *"),
        ("Iteration {}/3", "Iteration */*"),
        ("iter_{}", "iter_*"),
        ("mini-batch {}", "mini-batch *"),
        ("train_step_{}", "train_step_*"),
        ("ProfilerStep#{}", "ProfilerStep#*"),
    ],
)
def test_a_name_that_numbers_steps_needs_to_cover_little(name: str, pattern: str, tmp_path: Path) -> None:
    b, thread = program()
    for number in range(3):
        thread.nvtx(name.format(number), 100 * number, 100 * number + 1)
    assert steps_of(b.write(tmp_path / "trace.sqlite")) == (pattern, 3)


@pytest.mark.parametrize("name", ["decode", "epoch {}", "request {}", "load batch {}"])
@pytest.mark.parametrize(("length", "found"), [(50, True), (49, False)])
def test_other_ranges_must_cover_half_of_the_time_after_the_first(
    name: str, length: int, found: bool, tmp_path: Path
) -> None:
    b, thread = program()
    thread.nvtx(name.format(0), -900, 0)  # the warm-up, which does not count
    for number in range(1, 4):
        thread.nvtx(name.format(number), 100 * number - length, 100 * number)
    assert steps_of(b.write(tmp_path / "trace.sqlite")) == ((name.format("*"), 4) if found else None)


def test_two_ranges_are_no_loop(tmp_path: Path) -> None:
    b, thread = program()
    for number in range(2):
        thread.nvtx(f"step {number}", 100 * number, 100 * number + 90)
    assert steps_of(b.write(tmp_path / "trace.sqlite")) is None


def test_steps_go_before_the_epochs_around_them(tmp_path: Path) -> None:
    b, thread = program()
    for epoch in range(3):
        thread.nvtx(f"epoch {epoch}", 100 * epoch, 100 * epoch + 100)
        for step in range(2):
            thread.nvtx(f"step {step}", 100 * epoch + 50 * step, 100 * epoch + 50 * step + 20)
    assert steps_of(b.write(tmp_path / "trace.sqlite")) == ("step *", 6)


def test_what_surrounds_the_layers_goes_before_them(tmp_path: Path) -> None:
    b, thread = program()
    for at in (0, 100, 200):
        thread.nvtx("train", at, at + 95)
        for layer in range(3):
            thread.nvtx(f"layer {layer}", at + 30 * layer, at + 30 * layer + 29)
        launch(thread, at + 10)
    assert steps_of(b.write(tmp_path / "trace.sqlite")) == ("train", 3)


def test_the_thread_that_launches_decides(tmp_path: Path) -> None:
    b, thread = program()
    loader = worker_of(thread)
    for number in range(3):
        loader.nvtx(f"batch {number}", 100 * number, 100 * number + 100)
        thread.nvtx(f"step {number}", 100 * number, 100 * number + 10)
        launch(thread, 100 * number + 1)
    launch(loader, 5)
    assert steps_of(b.write(tmp_path / "trace.sqlite")) == ("step *", 3)


def test_libraries_ranges_are_no_steps(tmp_path: Path) -> None:
    b, thread = program()
    for number in range(3):
        thread.nvtx(f"step {number}", 100 * number, 100 * number + 90, domain="NCCL")
        thread.nvtx("XlaModule:#hlo_module=jit_step,program_id=7#", 100 * number, 100 * number + 90, domain="TSL")
    assert steps_of(b.write(tmp_path / "trace.sqlite")) is None


def test_the_annotations_of_a_jax_program_can_be_steps(tmp_path: Path) -> None:
    b, thread = program()
    for number in range(3):
        thread.nvtx(f"step {number}", 100 * number, 100 * number + 90, domain="TSL")
    assert steps_of(b.write(tmp_path / "trace.sqlite")) == ("step *", 3)


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("nvtx_threads", ("step *", 15)),  # and not the 20 `eval` of its two threads
        ("sync_causes", None),  # each kind of sync three times, one after the other
        ("sync_heavy", ("step *", 20)),
        ("gpu_bound", ("step *", 40)),
        ("graph_node", ("decode", 50)),
        ("two_gpus", ("step *", 40)),
    ],
)
def test_real_captures(name: str, found: tuple[str, int] | None, schema: str, capture: Capture) -> None:
    assert steps_of(capture(f"{name}.schema-{schema}")) == found


@pytest.mark.parametrize("name", ["jax_waits", "sync_causes_other", "sync_causes_distributed"])
def test_real_captures_without_steps(name: str, capture: Capture) -> None:
    assert steps_of(capture(f"{name}.schema-3.7.2")) is None
