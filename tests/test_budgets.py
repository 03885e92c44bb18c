"""The gate: what is held, broken or not known, on real captures and on results made by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Capture
from render_sample import gpu_bound, make_site, ranks, refused

from nsys_sync import analyze
from nsys_sync.analysis.budgets import SITE_CAUSES, Budgets, check, new_sites
from nsys_sync.analysis.sites import limited
from nsys_sync.errors import UsageError
from nsys_sync.model import (
    Allowed,
    Analysis,
    Budget,
    Cause,
    CheckResult,
    Kind,
    Location,
    Omitted,
    Region,
    Site,
)
from nsys_sync.render.check.words import sentence

HEAVY, FREE = "sync_heavy.schema-3.20.3", "sync_free.schema-3.20.3"
ENTIRE = Allowed("*", None, "all of it")


@pytest.fixture(scope="module")
def heavy(capture: Capture) -> Analysis:
    return analyze(capture(HEAVY))


@pytest.fixture(scope="module")
def free(capture: Capture) -> Analysis:
    return analyze(capture(FREE))


def saved(analysis: Analysis) -> Analysis:
    """As it is read back from JSON: without operations."""
    return replace(analysis, operations=analysis.operations.slice(0, 0))


def with_regions(analysis: Analysis, *regions: Region) -> Analysis:
    return replace(analysis, traces=(replace(analysis.traces[0], regions=regions),))


def functions(budget: Budget) -> list[str | None]:
    return [violation.site.location.function for violation in budget.violations]


def only(result: CheckResult) -> Budget:
    (budget,) = result.budgets
    return budget


# ---- real captures


def test_a_program_without_syncs_in_its_loop_holds_everything(free: Analysis) -> None:
    budgets = Budgets(0.01, 0, (), ("print", "mask-index", "upload"), "itself")
    result = check(free, budgets, free)
    assert result.held and [budget.state for budget in result.budgets] == ["held"] * 6
    assert not result.allowed and not result.stale
    stall, steps = result.budgets[:2]
    assert stall.measured == free.sites[0].stall.total_ns / free.window_ns  # type: ignore[union-attr]
    assert (steps.measured, steps.of) == (0, "in 'step 0', the worst of 20 steps 'step *'")


def test_a_program_full_of_syncs_is_told_each_line(heavy: Analysis) -> None:
    result = check(heavy, Budgets(0.05, 10, (), ("print", "mask-index")))
    assert not result.held
    stall, steps, printing, masks = result.budgets
    # Without the first two, 3.4 % of the window are left.
    assert (stall.state, functions(stall)) == ("broken", ["log_loss", "load_batch_pageable"])
    assert stall.measured == pytest.approx(0.09694, abs=1e-5)
    assert steps.measured == 23 and steps.of.startswith("in 'step 0'")
    assert sum(violation.amount or 0 for violation in steps.violations) == 23
    assert functions(steps)[:2] == ["print_tensor", "metrics"] and "main" not in functions(steps)
    assert (functions(printing), printing.measured) == (["print_tensor"], 16)
    assert (functions(masks), masks.measured) == (["select_by_mask"], 20)
    first = stall.violations[0]
    assert first.cause and first.cause.id == "scalar-read" and first.advice and first.site.location.line == 20


def test_allowed_sites_count_in_no_budget(heavy: Analysis) -> None:
    allow = (Allowed("print_*", None, "debugging"), Allowed("gone", None, "removed long ago"))
    result = check(heavy, Budgets(0.097, 15, (), ("print",), None, allow))
    assert result.held
    assert [budget.measured for budget in result.budgets[1:]] == [15, 0]
    assert [(one.site.location.function, one.entry.reason) for one in result.allowed] == [("print_tensor", "debugging")]
    assert result.stale == allow[1:]
    everything = check(heavy, Budgets(0, 0, (), SITE_CAUSES, None, (ENTIRE,)))
    assert everything.held and not everything.stale


def test_allowed_by_file(heavy: Analysis) -> None:
    def held(file: str, function: str | None = None) -> bool:
        return check(heavy, Budgets(max_stall_ratio=0, allow=(Allowed(function, file, "r"),))).held

    assert held("sync_heavy.py") and held("*/sync_heavy.py")
    assert held("/workspace/*") and held("workspace/sync_heavy.py")
    assert not held("heavy.py") and not held("*/other.py") and not held("sync_heavy.py", "log_loss")


def test_no_new_site_against_a_baseline(heavy: Analysis, free: Analysis) -> None:
    against_free = only(check(heavy, Budgets(baseline="free.json"), saved(free)))
    assert against_free.state == "broken" and against_free.measured == len(heavy.sites) == 15
    assert check(heavy, Budgets(baseline="same.json"), saved(heavy)).held
    assert check(free, Budgets(baseline="heavy.json"), free).held


def test_lines_may_move_and_a_second_read_in_a_function_is_new(heavy: Analysis) -> None:
    def moved(analysis: Analysis) -> Analysis:
        return replace(
            analysis,
            sites=tuple(
                replace(site, id=f"moved {i}", location=replace(site.location, line=(site.location.line or 0) + 7))
                for i, site in enumerate(analysis.sites)
            ),
        )

    assert check(moved(heavy), Budgets(baseline="b"), heavy).held
    reading = heavy.sites[0]
    second = replace(reading, id="another", location=replace(reading.location, line=999))
    result = only(check(replace(moved(heavy), sites=(*moved(heavy).sites, second)), Budgets(baseline="b"), heavy))
    assert [violation.site.id for violation in result.violations] == ["another"]
    # A place whose kinds of operation vary from run to run (print) is one place.
    other_kind = replace(reading, id="other kind", kind=replace(reading.kind, label="other"))
    assert not new_sites([reading, other_kind], [reading])
    assert new_sites([replace(reading, cause=replace(reading.cause, id="print"))], [reading])


def test_steps_of_a_saved_analysis(heavy: Analysis) -> None:
    """Which of them the allowed sites are in is known only where they are in all of them alike."""

    def judged(limit: int, function: str) -> Budget:
        allow = (Allowed(function, None, "r"),)
        return only(check(saved(heavy), Budgets(max_syncs_per_step=limit, allow=allow)))

    assert (judged(22, "log_loss").state, judged(22, "log_loss").measured) == ("held", 22)
    assert judged(21, "log_loss").state == "broken" and judged(20, "metrics").state == "held"
    assert judged(23, "print_tensor").state == "held"
    assert judged(22, "print_tensor").state == "not known" and "saved" in judged(22, "print_tensor").reason
    assert check(saved(heavy), Budgets(max_syncs_per_step=23)).held
    broken = judged(21, "log_loss")
    assert functions(broken)[0] == "print_tensor" and {one.amount for one in broken.violations} == {None}


def test_ranks_are_held_to_their_worst_step(capture: Capture) -> None:
    analysis = analyze(capture("two_gpus.schema-3.20.3"), capture(HEAVY))
    budget = only(check(analysis, Budgets(max_syncs_per_step=15, allow=(Allowed("print_tensor", None, "r"),))))
    assert (budget.state, budget.measured) == ("held", 15)


def test_sync_free_ranges_of_a_real_capture(capture: Capture) -> None:
    analysis = analyze(capture("nvtx_threads.schema-3.20.3"))
    by_name = {region.name: region for region in analysis.traces[0].regions}
    for name, region in by_name.items():
        budget = only(check(analysis, Budgets(sync_free_ranges=(name,))))
        assert budget.state == ("broken" if region.operations else "held")
        assert budget.measured == region.operations
        assert {violation.site.id for violation in budget.violations} == {*region.sites}
    assert by_name["step *"].operations


# ---- made by hand


def test_inside_ranges_that_are_to_have_no_sync() -> None:
    inside = Region("step *", 20, 80, 76, 20, ("site0001", "site0003"))
    analysis = with_regions(gpu_bound(), inside, Region("forward", 20, 0, 0, 0, ()), Region("layer[*]", 3, 0, 0, 0, ()))

    def judged(pattern: str, *allow: str) -> Budget:
        entries = tuple(Allowed(function, None, "r") for function in allow)
        return only(check(analysis, Budgets(sync_free_ranges=(pattern,), allow=entries)))

    assert judged("forward").state == judged("layer[*]").state == judged("f*").state == "held"
    broken = judged("step *")
    assert (broken.state, broken.measured, broken.of) == ("broken", 80, "in 20 ranges")
    assert functions(broken) == ["read_loss", "clip"]
    partly = judged("step *", "clip")
    assert (partly.state, partly.measured, functions(partly)) == ("broken", None, ["read_loss"])
    assert judged("step *", "clip", "read_*").state == "held"
    missing = judged("stepp *")
    assert missing.state == "not known" and "no such range" in missing.reason and "step *" in missing.reason
    assert judged("*").state == "broken"


def test_what_cannot_be_told_never_passes() -> None:
    without_steps = replace(gpu_bound(), traces=(replace(gpu_bound().traces[0], steps=None),))
    left_out = Omitted(3, 9, 5, 7, "--top 6")
    missing = Region("step *", 2, 5, 0, 1, ("left out",))
    cases: dict[str, tuple[Analysis, Budgets, Analysis | None, str]] = {
        "no idle figure": (refused(), Budgets(1), None, "50 CUDA graph launches"),
        "no GPU work": (replace(gpu_bound(), window_ns=0), Budgets(1), None, "no GPU work"),
        "no steps": (without_steps, Budgets(None, 99), None, "name one with --nvtx"),
        "no ranges": (with_regions(gpu_bound()), Budgets(sync_free_ranges=("*",)), None, "no NVTX range"),
        "ranges never entered": (
            with_regions(gpu_bound(), Region("a", 0, 0, 0, 0, ())),
            Budgets(sync_free_ranges=("a",)),
            None,
            "no NVTX range",
        ),
        "the range's sites left out": (
            replace(with_regions(gpu_bound(), missing), omitted=left_out),
            Budgets(sync_free_ranges=("step *",)),
            None,
            "--top 6",
        ),
        "causes left out": (
            replace(gpu_bound(), omitted=left_out),
            Budgets(forbidden_causes=("print",)),
            None,
            "3 sites were left out (--top 6)",
        ),
        "baseline incomplete": (
            gpu_bound(),
            Budgets(baseline="b"),
            replace(gpu_bound(), omitted=left_out),
            "of the baseline",
        ),
        "sites left out": (replace(gpu_bound(), omitted=left_out), Budgets(baseline="b"), gpu_bound(), "--top 6"),
        "stall left out not known": (
            replace(gpu_bound(), omitted=replace(left_out, stall_ns=None)),
            Budgets(1),
            None,
            "no idle figure",
        ),
    }
    for case, (analysis, budgets, baseline, reason) in cases.items():
        result = check(analysis, budgets, baseline)
        budget = only(result)
        assert (result.held, budget.state, budget.measured) == (False, "not known", None), case
        assert reason in budget.reason, (case, budget.reason)


STACKLESS = (("native stack", 40),)


def forbidding(cause: str, *sites: Site) -> Budget:
    return only(check(replace(gpu_bound(), sites=sites), Budgets(forbidden_causes=(cause,))))


def test_a_cause_that_only_a_python_stack_tells() -> None:
    """The operations copy to the host: they may print, but they are no upload of a module."""
    read = Cause("scalar-read", "certain", ("native frame THPVariable_item",))
    located = make_site(1, "f", 1, 100, cause=read)
    lost = replace(make_site(2, "g", 2, 100, cause=read), located_by=STACKLESS)
    for cause in ("print", "clip-grad", "grad-scaler", "checkpoint", "data-loader", "triton-benchmark", "distributed"):
        assert forbidding(cause, located).state == "held", cause
        told = forbidding(cause, located, lost)
        assert (told.state, told.measured) == ("not known", None), cause
        assert (
            told.reason.startswith("1 site may have it (g ")
            and "no Python stack; capture with nsys-sync profile" in told.reason
        )
    for cause in ("module-to", "upload", "mask-index", "unknown"):
        assert forbidding(cause, located, lost).state == "held", cause
    printing = replace(make_site(3, "h", 3, 100), cause=Cause("print", "certain", ()))
    assert forbidding("print", lost, printing).state == "broken"


def test_a_cause_that_only_the_source_tells() -> None:
    truth, copy = (Cause(id, "certain", ("native frame",)) for id in ("truth-value", "to-cpu"))
    for cause, of_trace in (("python-max-min", truth), ("is-nonzero", truth), ("numpy", copy)):
        told = forbidding(cause, make_site(1, "f", 1, 100, cause=of_trace))
        assert told.state == "not known" and "no source line; say where the sources are" in told.reason
        assert forbidding(cause, make_site(1, "f", 1, 100, cause=of_trace, source="if x:")).state == "held"
    assert forbidding("python-max-min", make_site(1, "f", 1, 100, cause=copy)).state == "held"


def test_a_cause_that_is_not_known_may_be_any() -> None:
    site = make_site(1, "f", 1, 100, cause=Cause("unknown", "open", ()))
    assert forbidding("mask-index", site).state == "not known" and forbidding("unknown", site).state == "broken"


def test_a_cause_that_the_calls_alone_said_may_be_another() -> None:
    """An upload without a native stack may be that of an index."""
    kind = Kind("HtoD", ("cudaMemcpyAsync", "cudaStreamSynchronize"), "HtoD", "pageable", "device", None)
    alone = replace(make_site(1, "f", 1, 100, native=(), cause=Cause("upload", "likely", ("HtoD copy",))), kind=kind)
    assert forbidding("cpu-index", alone).state == "not known"
    assert forbidding("scalar-read", alone).state == "held"
    assert forbidding("cpu-index", replace(alone, native_stack=(0,))).state == "held"
    free = Kind("cudaFree", ("cudaFree",), None, None, None, None)
    alone = replace(make_site(1, "f", 1, 100, native=(), cause=Cause("free", "certain", ("cudaFree",))), kind=free)
    assert forbidding("allocator-retry", alone).state == "not known"
    assert forbidding("empty-cache", replace(alone, located_by=(("thread", 40),))).state == "not known"
    assert forbidding("print", alone).state == forbidding("memset", alone).state == "held"


def test_causes_of_captures_without_stacks_or_source(capture: Capture) -> None:
    with_stacks = analyze(capture("sync_causes.schema-3.7.2"), no_source=True)
    for cause in ("python-max-min", "is-nonzero"):
        assert only(check(with_stacks, Budgets(forbidden_causes=(cause,)))).state == "not known"
    without = analyze(capture("sync_heavy.schema-3.20.3.noblobs"))
    assert only(check(without, Budgets(forbidden_causes=("print",)))).state == "not known"


def test_a_baseline_with_other_stacks_says_nothing() -> None:
    located = make_site(1, "f", 1, 100)
    lost = replace(located, located_by=STACKLESS, location=Location("aten::item", None, None, None))
    for sites, known, why in (((located,), (lost,), "the baseline has none"), ((lost,), (located,), "only the base")):
        analysis, baseline = (replace(gpu_bound(), sites=one) for one in (sites, known))
        told = only(check(analysis, Budgets(baseline="b"), baseline))
        assert told.state == "not known" and why in told.reason
    nothing = replace(gpu_bound(), sites=())
    assert only(check(nothing, Budgets(baseline="b"), replace(gpu_bound(), sites=(lost,)))).state == "held"
    assert only(check(replace(nothing, sites=(lost,)), Budgets(baseline="b"), nothing)).state == "broken"


def test_the_source_at_hand_makes_no_new_site() -> None:
    for of_trace, of_source in (("truth-value", "is-nonzero"), ("truth-value", "python-max-min"), ("to-cpu", "numpy")):
        known, sharpened = (make_site(1, "f", 1, 100, cause=Cause(id, "likely", ())) for id in (of_trace, of_source))
        assert not new_sites([sharpened], [known]) and not new_sites([known], [sharpened])
        moved = replace(sharpened, location=replace(sharpened.location, line=9))
        assert not new_sites([moved], [known])


def test_ids_do_not_depend_on_the_source_at_hand(capture: Capture) -> None:
    trace = capture("sync_causes.schema-3.7.2")
    with_source = analyze(trace, source_root=Path(__file__).parent.parent / "scripts" / "workloads")
    without = analyze(trace, no_source=True)
    causes = {site.cause.id for site in with_source.sites}
    assert {"python-max-min", "is-nonzero"} <= causes
    assert [site.id for site in with_source.sites] == [site.id for site in without.sites]
    assert check(with_source, Budgets(baseline="b"), without).held
    assert check(without, Budgets(baseline="b"), with_source).held


def test_a_limit_is_still_held() -> None:
    site = make_site(1, "f", 1, 100)
    analysis = replace(gpu_bound(), window_ns=1000, sites=(site,))
    assert check(analysis, Budgets(max_stall_ratio=0.1)).held
    assert not check(analysis, Budgets(max_stall_ratio=0.0999)).held


def test_figures_at_the_limit_can_be_told_apart() -> None:
    analysis = replace(gpu_bound(), window_ns=1_000_000_000, sites=(make_site(1, "f", 1, 57_515_000),))

    def said(limit: float) -> str:
        result = check(analysis, Budgets(max_stall_ratio=limit))
        return sentence(only(result), result)

    assert said(0.057514).startswith("stall at most 5.751 % of the window: 5.752 % of the window")
    assert said(0.05).startswith("stall at most 5.0 % of the window: 5.8 %")
    assert said(0.057515).startswith("stall at most 5.8 % of the window: 5.8 %")


def test_one_of_a_kind_is_no_plural() -> None:
    analysis = with_regions(gpu_bound(), Region("a", 1, 0, 0, 0, ()))
    assert only(check(analysis, Budgets(sync_free_ranges=("a",)))).of == "in 1 range"
    trace = gpu_bound().traces[0]
    assert trace.steps is not None
    one = replace(trace, steps=replace(trace.steps, steps=trace.steps.steps[:1]))
    budget = only(check(replace(gpu_bound(), traces=(one,)), Budgets(max_syncs_per_step=99)))
    assert "the worst of 1 step '" in budget.of


def test_a_least_stall_is_named_as_typed() -> None:
    for ns, typed in ((2_000_000_000, "2s"), (1_500_000, "1500us"), (1_500_000_001, "1500000001ns")):
        _, omitted = limited(gpu_bound().sites, None, ns)
        assert omitted and omitted.reason == f"--min-stall {typed}"


def test_sites_left_out_count_where_they_can() -> None:
    analysis = ranks()
    budget = only(check(analysis, Budgets(max_stall_ratio=0.01)))
    assert budget.measured is not None and budget.measured > sum(site.stall_ratio or 0 for site in analysis.sites) / 4
    # An entry may be for a site that was left out.
    assert not check(analysis, Budgets(max_stall_ratio=1, allow=(Allowed("left_out", None, "r"),))).stale


def test_a_place_without_python_is_allowed_by_its_label() -> None:
    site = make_site(1, "f", 1, 100)
    thread = replace(site.location, label="thread worker (pid 1, tid 2)", function=None, file=None)
    site = replace(site, location=thread)
    analysis = replace(gpu_bound(), sites=(site,))
    assert check(analysis, Budgets(max_stall_ratio=0, allow=(Allowed("thread worker *", None, "r"),))).held
    assert not check(analysis, Budgets(max_stall_ratio=0, allow=(Allowed(None, "*", "r"),))).held
    other = replace(site, id="other", location=replace(site.location, label="thread worker (pid 5, tid 6)"))
    assert not new_sites([other], [site])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Budgets(max_stall_ratio=1.5), "between 0% and 100%"),
        (lambda: Budgets(max_syncs_per_step=-1), "negative"),
        (lambda: Budgets(forbidden_causes=("mask-indx",)), "Did you mean mask-index"),
        (lambda: Budgets(forbidden_causes=("zzzzzz",)), "Known are: scalar-read"),
        (lambda: Budgets(forbidden_causes=("pinned-allocation",)), "no sync has the cause"),
        (lambda: Budgets(sync_free_ranges=("",)), "empty"),
        (lambda: Budgets(allow=(Allowed(None, None, "r"),)), "neither a function nor a file"),
        (lambda: Budgets(allow=(Allowed("f", None, " "),)), "no reason"),
        (lambda: check(gpu_bound(), Budgets(baseline="b")), "baseline"),
    ],
)
def test_senseless_budgets(make: Callable[[], object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make()
