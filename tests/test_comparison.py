"""Two runs compared, with answers worked out by hand."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import render_sample
from conftest import FIXTURES, Capture
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import TraceBuilder

from nsys_sync import model
from nsys_sync.analysis.comparison import SHORTEST_WINDOW_NS, compare
from nsys_sync.pipeline import analyze

US, MS = 1_000, 1_000_000
KERNEL_NS, LAUNCH_NS, COPY_NS = MS, 10 * US, 2 * US
SCALAR = ("at::native::_local_scalar_dense_cuda(at::Tensor const&)", "THPVariable_item(_object*, _object*)")
NONZERO = ("at::native::nonzero_cuda(at::Tensor const&)", "THPVariable_nonzero(_object*, _object*, _object*)")
TRUTH = ("at::native::_local_scalar_dense_cuda(at::Tensor const&)", "THPVariable_is_nonzero(_object*)")
MASK = ("at::native::nonzero_cuda(at::Tensor const&)", "THPVariable_getitem(_object*, _object*)")


class Wait(NamedTuple):
    """One function that syncs once a step and returns `late_ns` after the GPU has become idle."""

    function: str
    line: int
    late_ns: int
    file: str = "/work/train.py"
    symbols: tuple[str, str] = SCALAR
    caller: str = "train_step"


def write_run(
    path: Path, waits: list[Wait], *, steps: int = 10, gpu: str = "NVIDIA H200", step_name: str = "step"
) -> Path:
    """Each wait is a launch of `LAUNCH_NS`, a kernel of `KERNEL_NS` from its end on (its last `COPY_NS` are a copy of
    one number), and a sync from half of the kernel until `late_ns` after it.

    So a wait takes LAUNCH_NS + KERNEL_NS + late_ns, and costs a stall of late_ns + LAUNCH_NS, until the next kernel.
    A last kernel ends the run: window = the sum over all waits + KERNEL_NS.
    """
    builder = TraceBuilder()
    builder.gpu(0, gpu)
    thread = builder.process(100).thread(100)
    now = 0
    for step in range(steps):
        began = now
        for wait in waits:
            ends = now + LAUNCH_NS + KERNEL_NS
            thread.launch(now, now + LAUNCH_NS, gpu=(now + LAUNCH_NS, ends - COPY_NS))
            stack = [(wait.function, wait.file, wait.line), (wait.caller, wait.file, 200), ("<module>", wait.file, 300)]
            native = [("cudaStreamSynchronize", "libcudart.so")]
            native += zip(wait.symbols, ("libtorch_cuda.so", "libtorch_python.so"), strict=True)
            native += [("_PyEval_EvalFrameDefault", "python3.12")]
            now = ends + wait.late_ns
            begins = ends - KERNEL_NS // 2
            thread.copy(begins, begins + COPY_NS, gpu=(ends - COPY_NS, ends), src="device", dst="pinned")
            thread.stream_sync(begins + COPY_NS, now, python=stack, native=native)
        if steps > 1:
            thread.nvtx(f"{step_name} {step}", began, now)
    thread.launch(now, now + LAUNCH_NS, gpu=(now + LAUNCH_NS, now + LAUNCH_NS + KERNEL_NS))
    return builder.write(path)


def run(tmp_path: Path, name: str, waits: list[Wait], **options: object) -> model.Analysis:
    return analyze(write_run(tmp_path / f"{name}.sqlite", waits, **options))  # type: ignore[arg-type]


def label(place: model.PlaceInRun | None) -> str | None:
    return place and place.location.label


def found(comparison: model.Comparison) -> dict[str, tuple[str, str, str | None]]:
    """Label before (else after) → status, certainty, label after."""
    return {
        str(label(pair.before or pair.after)): (pair.status, pair.certainty, label(pair.after))
        for pair in comparison.pairs
    }


BEFORE = [
    Wait("upload", 10, 100 * US),
    Wait("read_loss", 20, 200 * US),
    Wait("count_large", 30, 50 * US, symbols=NONZERO),
    Wait("download", 40, 300 * US),
    Wait("pick", 50, 80 * US, symbols=MASK),
]
AFTER = [
    Wait("upload", 10, 100 * US),
    Wait("read_loss", 60, 400 * US),  # moved by 40 lines, and slower
    Wait("find_large", 30, 50 * US, symbols=NONZERO),  # renamed
    Wait("pick", 50, 20 * US, symbols=MASK),  # faster
    Wait("branch", 70, 150 * US, symbols=TRUTH),  # new
]


def test_moved_renamed_fixed_and_new(tmp_path: Path) -> None:
    comparison = compare(run(tmp_path, "before", BEFORE), run(tmp_path, "after", AFTER))
    assert comparison.not_comparable == ()
    assert found(comparison) == {
        "train.py:20 read_loss": ("worse", "certain", "train.py:60 read_loss"),
        "train.py:70 branch": ("new", "certain", "train.py:70 branch"),
        "train.py:40 download": ("gone", "certain", None),
        "train.py:50 pick": ("better", "certain", "train.py:50 pick"),
        "train.py:10 upload": ("unchanged", "certain", "train.py:10 upload"),
        "train.py:30 count_large": ("unchanged", "open", "train.py:30 find_large"),
    }
    assert [pair.status for pair in comparison.pairs] == ["worse", "new", "gone", "better", "unchanged", "unchanged"]
    renamed = next(pair for pair in comparison.pairs if pair.certainty == "open")
    assert renamed.evidence == "same file, cause, Python callers and number of calls; function renamed"

    old, new = comparison.total_before, comparison.total_after
    assert old is not None
    assert new is not None
    # 10 steps; waits of 730 and 720 µs in all, five launches of 10 µs and kernels of 1 ms a step, and the last kernel
    assert (old.window_ns, new.window_ns) == (10 * (730 + 50 + 5000) * US + MS, 10 * (720 + 50 + 5000) * US + MS)
    assert (old.busy_ns, new.busy_ns) == (51 * MS, 51 * MS)
    assert (old.stall_ns, new.stall_ns) == (10 * 780 * US, 10 * 770 * US)
    assert (old.idle_ns, new.idle_ns) == (old.stall_ns, new.stall_ns)

    worse = comparison.pairs[0]
    assert worse.change_per_step
    assert worse.change_ns == 200 * US
    assert worse.before is not None
    assert worse.after is not None
    assert worse.before.in_all == model.SiteFigures(10, 10 * 210 * US, 10 * 700 * US)
    assert worse.after.per_step == model.SiteFigures(1, 410 * US, 900 * US)
    assert comparison.step_before == model.StepFigures(5780 * US, 5000 * US, 780 * US, 0, 730 * US + 5 * 500 * US, 5)


def test_the_same_with_the_file_renamed_too(tmp_path: Path) -> None:
    after = [wait._replace(file="/work/trainer.py") for wait in AFTER]
    comparison = compare(run(tmp_path, "before", BEFORE), run(tmp_path, "after", after))
    assert found(comparison) == {
        "train.py:20 read_loss": ("worse", "likely", "trainer.py:60 read_loss"),
        "trainer.py:70 branch": ("new", "certain", "trainer.py:70 branch"),
        "train.py:40 download": ("gone", "certain", None),
        "train.py:50 pick": ("better", "likely", "trainer.py:50 pick"),
        "train.py:10 upload": ("unchanged", "likely", "trainer.py:10 upload"),
        "train.py:30 count_large": ("unchanged", "open", "trainer.py:30 find_large"),
    }


def test_the_parts_of_the_window_add_up(capture: Capture) -> None:
    names = ("gpu_bound", "gpu_bound_fixed", "sync_heavy", "sync_free", "run_ahead")
    runs = [analyze(capture(f"{name}.schema-3.7.2")) for name in names]
    for old, new in [(a, b) for a in runs for b in runs]:
        comparison = compare(old, new)
        for total in (comparison.total_before, comparison.total_after):
            if total is not None:
                parts = (total.busy_ns, total.stall_ns, total.host_bound_ns, total.device_side_ns, total.profiler_ns)
                assert sum(part or 0 for part in parts) + total.outside_ns == total.window_ns


@pytest.mark.parametrize("schema", ["3.7.2", "3.20.3"])
def test_the_same_program_without_its_syncs(schema: str, capture: Capture) -> None:
    comparison = compare(*(analyze(capture(f"{name}.schema-{schema}")) for name in ("gpu_bound", "gpu_bound_fixed")))
    assert comparison.not_comparable == ()
    statuses = [(pair.before.location.function, pair.status) for pair in comparison.pairs if pair.before]
    gone = ["read_loss", "upload", "clip", "download", "sum_positive"]
    assert statuses == [*((name, "gone") for name in gone), ("main", "unchanged")]
    assert comparison.total_before == model.TimeShares(
        633_927_493, 530_056_486, 103_596_421, 97_628_562, 0, 5_967_859, 274_586, 0, 0
    )
    assert comparison.total_after == model.TimeShares(
        483_175_328, 476_214_385, 6_960_943, 0, 315_646, 6_645_297, 0, 0, 0
    )


@pytest.mark.parametrize("schema", ["3.7.2", "3.20.3"])
def test_two_programs(schema: str, capture: Capture) -> None:
    comparison = compare(*(analyze(capture(f"{name}.schema-{schema}")) for name in ("sync_heavy", "sync_free")))
    assert sorted({pair.status for pair in comparison.pairs}) == ["gone", "new"]
    assert sum(pair.status == "gone" for pair in comparison.pairs) == 14
    assert any("two programs" in note for note in comparison.notes)
    # two uploads on one line are one place
    assert next(pair.before.in_all.calls for pair in comparison.pairs if pair.before and pair.before.in_all) == 40


@pytest.mark.skipif(
    not (FIXTURES / "moved_after.schema-3.7.2.sqlite.xz").exists(),
    reason="moved_before and moved_after (scripts/workloads) are still to be captured on a GPU",
)
def test_real_captures_of_an_edited_program(capture: Capture) -> None:
    comparison = compare(*(analyze(capture(f"moved_{when}.schema-3.7.2")) for when in ("before", "after")))
    assert comparison.not_comparable == ()
    pairs = {
        (pair.before or pair.after).location.function: pair  # type: ignore[union-attr]
        for pair in comparison.pairs
    }
    for name, renamed in (("upload",) * 2, ("pick_positive",) * 2, ("read_loss",) * 2, ("count_large", "find_large")):
        after = pairs[name].after
        assert after is not None
        assert after.location.function == renamed
        assert pairs[name].status in ("unchanged", "better", "worse")
    moved = pairs["read_loss"]
    assert moved.before is not None
    assert moved.after is not None
    assert (moved.before.location.line, moved.after.location.line) == (37, 77)
    assert pairs["download"].status == "gone"
    assert pairs["branch_on_norm"].status == "new"


# ---- matching


def matched(old: list[model.Site], new: list[model.Site]) -> list[tuple[str | None, str | None, str, str]]:
    before = replace(render_sample.gpu_bound(), sites=tuple(old))
    after = replace(render_sample.gpu_bound(), sites=tuple(new))
    return sorted(
        (
            (label(pair.before), label(pair.after), pair.certainty, pair.evidence)
            for pair in compare(before, after).pairs
        ),
        key=str,
    )


def site(number: int, function: str, line: int, *, file: str = "~/a/train.py", cause: str = "scalar", text: str = ""):  # type: ignore[no-untyped-def]
    made = render_sample.make_site(
        number,
        function,
        line,
        1000,
        file=file,
        cause=model.Cause(cause, "certain", ()),
        source=text or None,
        stack=(),
    )
    return replace(made, location=replace(made.location, label=f"{file[2:]}:{line} {function}"))


def test_lines_of_one_function_keep_their_order() -> None:
    old = [site(1, "f", 10), site(2, "f", 20), site(3, "f", 30)]
    new = [site(4, "f", 30), site(5, "f", 20), site(6, "f", 40)]
    assert [pair[:3] for pair in matched(old, new)] == [
        ("a/train.py:10 f", "a/train.py:20 f", "certain"),
        ("a/train.py:20 f", "a/train.py:30 f", "certain"),
        ("a/train.py:30 f", "a/train.py:40 f", "certain"),
    ]


def test_which_line_of_a_function_is_gone_is_told_by_its_text_else_not_sure() -> None:
    old = [site(1, "f", 10, text="a.item()"), site(2, "f", 20, text="b.item()")]
    new = [site(3, "f", 10, text="b.item()")]
    assert [pair[:3] for pair in matched(old, new)] == [
        ("a/train.py:10 f", None, "certain"),
        ("a/train.py:20 f", "a/train.py:10 f", "certain"),
    ]
    old, new = [site(1, "f", 10), site(2, "f", 20)], [site(3, "f", 12)]
    assert [pair[:3] for pair in matched(old, new)] == [
        ("a/train.py:10 f", "a/train.py:12 f", "open"),
        ("a/train.py:20 f", None, "certain"),
    ]


def test_a_renamed_file_or_folder_and_a_function_renamed_in_it() -> None:
    old = [site(1, "f", 10), site(2, "g", 20, cause="mask", text="x[m]"), site(3, "f", 5, file="~/a/other.py")]
    new = [
        site(4, "f", 11, file="~/a/new.py"),
        site(5, "h", 20, file="~/a/new.py", cause="mask", text="x[m]"),
        site(6, "f", 5, file="~/b/other.py"),
    ]
    assert matched(old, new) == [
        ("a/other.py:5 f", "b/other.py:5 f", "certain", "same function, file name and cause; in another folder"),
        ("a/train.py:10 f", "a/new.py:11 f", "likely", "same function and cause; file renamed"),
        ("a/train.py:20 g", "a/new.py:20 h", "likely", "same file, cause and source line; function renamed"),
    ]


def test_what_leaves_a_choice_is_not_matched() -> None:
    old = [site(1, "forward", 10, file="~/a/x.py"), site(2, "forward", 20, file="~/a/y.py")]
    new = [site(3, "forward", 10, file="~/b/u.py"), site(4, "forward", 20, file="~/b/v.py")]
    assert all(None in pair for pair in matched(old, new))
    old, new = [site(1, "<module>", 10, file="~/a/x.py")], [site(2, "<module>", 10, file="~/b/y.py")]
    assert all(None in pair for pair in matched(old, new))
    old, new = [site(1, "f", 10, text="a.item()")], [site(2, "g", 10, text="b.item()")]
    assert all(None in pair for pair in matched(old, new))


def test_an_edited_line_and_another_cause() -> None:
    old, new = [site(1, "f", 10, text="a.item()")], [site(2, "f", 10, text="b.item()")]
    assert matched(old, new)[0][2:] == ("likely", "same function, file and cause; the line reads otherwise")
    old, new = [site(1, "f", 10, cause="unknown")], [site(2, "f", 10)]
    assert matched(old, new)[0][2:] == ("likely", "same function, file and kind; other cause")


def test_the_source_at_hand_in_one_run_makes_no_other_cause() -> None:
    for of_trace, of_source in (("truth-value", "is-nonzero"), ("truth-value", "python-max-min"), ("to-cpu", "numpy")):
        old, new = site(1, "f", 10, cause=of_trace), site(1, "f", 12, cause=of_source)
        (pair,) = matched([old], [new])
        assert pair[2:] == ("certain", "same function, file and cause")


def test_places_outside_python_are_matched_without_their_ids() -> None:
    def thread(number: int, pid: int) -> model.Site:
        where = model.Location(f"thread worker (pid {pid}, tid {pid})", None, None, None)
        return replace(site(number, "f", 1), location=where)

    (pair,) = matched([thread(1, 17)], [thread(2, 23)])
    assert pair[2:] == ("likely", "same place outside Python, and cause")


NAMES = st.sampled_from(["f", "g", "<module>"])
SITES = st.lists(
    st.tuples(
        NAMES,
        st.integers(1, 4),
        st.sampled_from(["~/a/x.py", "~/b/x.py", "~/a/y.py"]),
        st.sampled_from(["scalar", "mask"]),
        st.sampled_from(["", "a", "b"]),
    ),
    max_size=12,
    unique_by=lambda row: row[:4],
)


@settings(max_examples=150, deadline=None)
@given(SITES, SITES)
def test_matching_is_one_to_one_loses_nothing_and_is_stable(old: list, new: list) -> None:  # type: ignore[type-arg]
    runs = [
        [
            site(number, f, line, file=file, cause=cause, text=text)
            for number, (f, line, file, cause, text) in enumerate(rows)
        ]
        for rows in (old, new)
    ]
    before, after = (replace(render_sample.gpu_bound(), sites=tuple(sites)) for sites in runs)
    comparison = compare(before, after)
    for side, sites in (("before", runs[0]), ("after", runs[1])):
        shown = [one for pair in comparison.pairs if (place := getattr(pair, side)) for one in place.sites]
        assert sorted(shown) == sorted(one.id for one in sites)
    shuffled = compare(replace(before, sites=before.sites[::-1]), replace(after, sites=after.sites[::-1]))
    assert {(label(p.before), label(p.after)) for p in shuffled.pairs} == {
        (label(p.before), label(p.after)) for p in comparison.pairs
    }
    same = compare(before, before)
    assert all(label(pair.before) == label(pair.after) for pair in same.pairs)


def test_thousands_of_sites_on_both_sides_are_quick() -> None:
    before = render_sample.many(5000)
    moved = tuple(
        replace(one, location=replace(one.location, line=(one.location.line or 0) + 7), cause=one.cause)
        for one in before.sites
    )
    after = replace(before, sites=moved)
    began = time.process_time()
    comparison = compare(before, after)
    assert time.process_time() - began < 5
    assert len(comparison.pairs) >= 5000 - len(before.sites) // 10
    crowd = replace(before, sites=tuple(replace(one, location=before.sites[0].location) for one in before.sites))
    alike = replace(
        before,
        sites=tuple(
            replace(one, location=replace(before.sites[0].location, line=number))
            for number, one in enumerate(before.sites)
        ),
    )
    began = time.process_time()
    compare(crowd, alike)
    compare(alike, replace(alike, sites=alike.sites[:4000]))
    assert time.process_time() - began < 8


# ---- better, worse, unchanged


@pytest.mark.parametrize(
    ("late_ns", "status"),
    [
        (200 * US, "unchanged"),
        (210 * US, "unchanged"),  # 210 → 220 µs is less than 5 % of 220 µs
        (212 * US, "worse"),  # 12 µs is more than 5 % of 222 µs = 11.1 µs and a thousandth of the step
        (188 * US, "better"),
    ],
)
def test_five_percent_is_noise(late_ns: int, status: str, tmp_path: Path) -> None:
    old, new = (run(tmp_path, name, [Wait("f", 1, late)]) for name, late in (("a", 200 * US), ("b", late_ns)))
    assert [pair.status for pair in compare(old, new).pairs] == [status]


def test_what_a_step_would_not_notice_is_noise() -> None:
    """A figure that doubles, but is below a thousandth of the step of 31 ms."""
    analysis = render_sample.gpu_bound()
    steps = analysis.sites[0].per_step
    assert steps is not None

    def with_mean(ns: float) -> model.Analysis:
        per_step = replace(steps, stall_mean_ns=ns, stall_p50_ns=int(ns), stall_p95_ns=int(ns))
        return replace(analysis, sites=(replace(analysis.sites[0], per_step=per_step),))

    assert compare(with_mean(30_000.0), with_mean(60_000.0)).pairs[0].status == "unchanged"
    assert compare(with_mean(30_000.0), with_mean(62_000.0)).pairs[0].status == "worse"


def test_a_spread_wider_than_the_change_is_noise() -> None:
    """20 steps whose stall varies by 1.645 ms from median to p95: a standard error of 1 ms / √20 each, 316 µs both."""
    analysis = render_sample.gpu_bound()
    steps = analysis.sites[0].per_step
    assert steps is not None

    def with_mean(ns: float) -> model.Analysis:
        per_step = replace(steps, stall_mean_ns=ns, stall_p50_ns=1_000_000, stall_p95_ns=2_645_000)
        return replace(analysis, sites=(replace(analysis.sites[0], per_step=per_step),))

    (pair,) = compare(with_mean(2e6), with_mean(2.6e6)).pairs
    assert pair.status == "unchanged"
    assert pair.noise_ns == pytest.approx(2 * 316_228, rel=1e-3)
    assert compare(with_mean(2e6), with_mean(2.7e6)).pairs[0].status == "worse"


# ---- what may be compared


def without_figures(comparison: model.Comparison) -> bool:
    places = [place for pair in comparison.pairs for place in (pair.before, pair.after) if place]
    return (
        not comparison.devices
        and comparison.total_before is comparison.total_after is comparison.step_before is comparison.step_after is None
        and all(place.in_all is None and place.per_step is None for place in places)
        and all(pair.change_ns is None and pair.noise_ns is None for pair in comparison.pairs)
    )


def reasons(comparison: model.Comparison) -> list[tuple[str, str]]:
    return [(limit.forbids, limit.reason) for limit in comparison.not_comparable]


def test_another_gpu_forbids_every_figure(tmp_path: Path) -> None:
    comparison = compare(run(tmp_path, "a", BEFORE), run(tmp_path, "b", BEFORE, gpu="NVIDIA A100"))
    assert reasons(comparison) == [("everything", "other GPU: NVIDIA H200 before, NVIDIA A100 after")]
    assert without_figures(comparison)
    assert {pair.status for pair in comparison.pairs} == {"not compared"}


def test_another_number_of_gpus_or_ranks_forbids_every_figure(capture: Capture) -> None:
    one = analyze(capture("procs.schema-3.7.2"))
    two = analyze(capture("two_gpus.schema-3.7.2"))
    comparison = compare(one, two)
    assert ("everything", "other number of GPUs: 1 before, 2 after") in reasons(comparison)
    assert without_figures(comparison)
    ranks = analyze(capture("procs.schema-3.7.2"), capture("procs.schema-3.7.2"))
    assert ("everything", "other number of ranks: 1 before, 2 after") in reasons(compare(one, ranks))


def test_another_selection_forbids_every_figure_but_another_process_id_does_not(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a.sqlite", BEFORE)
    whole, part = analyze(path), analyze(path, nvtx="step *", skip_first=2)
    comparison = compare(whole, part)
    assert reasons(comparison)[0] == (
        "everything",
        "other selection: the whole trace before, NVTX ranges step *, the first 2 of each thread left out after",
    )
    assert without_figures(comparison)
    comparison = compare(replace(whole, selection="process 7"), replace(whole, selection="process 8"))
    assert comparison.not_comparable == ()


def test_another_number_of_steps_forbids_totals_only(tmp_path: Path) -> None:
    comparison = compare(run(tmp_path, "a", BEFORE, steps=10), run(tmp_path, "b", AFTER, steps=20))
    assert reasons(comparison) == [("totals", "other number of steps: 10 before, 20 after")]
    assert comparison.total_before is comparison.total_after is None
    assert comparison.devices == ()
    assert comparison.step_after is not None
    assert comparison.step_after.length_ns == 5770 * US
    assert found(comparison)["train.py:20 read_loss"][0] == "worse"
    assert all(place.in_all is None for pair in comparison.pairs for place in (pair.before, pair.after) if place)


def test_other_steps_forbid_totals_and_figures_per_step(tmp_path: Path) -> None:
    comparison = compare(run(tmp_path, "a", BEFORE), run(tmp_path, "b", BEFORE, step_name="iteration"))
    assert reasons(comparison) == [("totals", "other steps: 'step *' before, 'iteration *' after")]
    assert without_figures(comparison)


def test_steps_on_one_side_only_are_said(tmp_path: Path) -> None:
    comparison = compare(run(tmp_path, "a", BEFORE), run(tmp_path, "b", BEFORE, steps=1))
    assert comparison.not_comparable == ()
    assert comparison.total_before is not None
    assert comparison.step_before is None
    assert any("steps" in note for note in comparison.notes)


def test_idle_refused_on_one_side_forbids_idle_and_stall() -> None:
    known, refused = render_sample.gpu_bound(), render_sample.refused()
    comparison = compare(known, replace(refused, traces=(replace(refused.traces[0], steps=known.traces[0].steps),)))
    assert [limit.forbids for limit in comparison.not_comparable] == ["idle"]
    assert comparison.total_before is not None
    assert comparison.total_before.stall_ns is comparison.total_before.idle_ns is None
    assert comparison.total_before.window_ns == render_sample.WINDOW_NS
    assert all(pair.change_ns is None for pair in comparison.pairs)
    assert {pair.status for pair in comparison.pairs} <= {"gone", "new", "not compared"}
    assert all(pair.before.idle_ns is pair.before.stall_ns is None for pair in comparison.devices)


def test_a_capture_too_short_or_without_gpu_work(tmp_path: Path) -> None:
    analysis = run(tmp_path, "a", BEFORE)
    comparison = compare(analysis, replace(analysis, window_ns=SHORTEST_WINDOW_NS - 1))
    assert reasons(comparison) == [("everything", "too short after: a window of 999,999 ns")]
    assert without_figures(comparison)
    comparison = compare(analysis, render_sample.nothing())
    assert ("everything", "no GPU work on record after") in reasons(comparison)
    assert without_figures(comparison)


def test_sites_left_out_are_not_called_gone(tmp_path: Path) -> None:
    before = run(tmp_path, "a", BEFORE)
    after = analyze(tmp_path / "a.sqlite", top=2)
    comparison = compare(before, after)
    statuses = sorted(pair.status for pair in comparison.pairs)
    assert statuses == ["not compared"] * 3 + ["unchanged"] * 2
    assert any("left out sites" in note for note in comparison.notes)
