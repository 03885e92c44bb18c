"""The gate: holds an analysis to budgets. What cannot be told never passes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import NamedTuple

import pyarrow.compute as pc

from nsys_sync import model
from nsys_sync.analysis.advice import CAUSES
from nsys_sync.analysis.causes import RULES, UNKNOWN, told_by
from nsys_sync.analysis.verdict import IN_TRACE
from nsys_sync.errors import UsageError

_OF_SITES = {*(rule.cause for rule in RULES), *IN_TRACE, UNKNOWN}
SITE_CAUSES = tuple(cause for cause in CAUSES if cause in _OF_SITES)
"""Those that a sync site can have; of the others, none would ever be found."""
HOW_TO_GET_STACKS = "capture with nsys-sync profile"
RANGES_NAMED = 8
"""NVTX ranges named where the one asked for is not in the trace."""


@dataclass(frozen=True)
class Budgets:
    """Limits on a trace, None or empty where there is none. Raises UsageError for values that make no sense.

    `max_stall_ratio` is the stall of all sites as a share of the window, 0 to 1; `max_syncs_per_step` the most sync
    operations in any step; `sync_free_ranges` are NVTX names or patterns inside which there is to be no sync operation;
    `forbidden_causes` ids of causes; `baseline` the name of an analysis beyond whose sites there is to be none. No
    budget counts the sites that `allow` matches.
    """

    max_stall_ratio: float | None = None
    max_syncs_per_step: int | None = None
    sync_free_ranges: tuple[str, ...] = ()
    forbidden_causes: tuple[str, ...] = ()
    baseline: str | None = None
    allow: tuple[model.Allowed, ...] = ()

    def __post_init__(self) -> None:
        if self.max_stall_ratio is not None and not 0 <= self.max_stall_ratio <= 1:
            raise UsageError("max-stall: must lie between 0% and 100%, such as 5%")
        if self.max_syncs_per_step is not None and self.max_syncs_per_step < 0:
            raise UsageError("max-syncs-per-step: must not be negative")
        for cause in self.forbidden_causes:
            if cause not in SITE_CAUSES:
                near = get_close_matches(cause, SITE_CAUSES, n=3, cutoff=0.5)
                meant = f"Did you mean {' or '.join(near)}?" if near else f"Known are: {', '.join(SITE_CAUSES)}"
                what = "no sync has the cause" if cause in CAUSES else "there is no cause"
                raise UsageError(f"forbid: {what} {cause!r}. {meant}")
        if not all(self.sync_free_ranges):
            raise UsageError("sync-free: the name of a range is empty")
        for entry in self.allow:
            if not entry.function and not entry.file:
                raise UsageError("allow: an entry names neither a function nor a file")
            if not entry.reason.strip():
                raise UsageError(f"allow: {entry.function or entry.file!r} has no reason. Say why it may sync")

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to hold a trace to."""
        limits = (self.max_stall_ratio, self.max_syncs_per_step, self.baseline)
        return not any(limit is not None for limit in limits) and not self.sync_free_ranges + self.forbidden_causes


def check(
    analysis: model.Analysis,
    budgets: Budgets,
    baseline: model.Analysis | None = None,
    paths: Mapping[str, str] | None = None,
) -> model.CheckResult:
    """Holds `analysis` to `budgets`. `baseline` is the analysis that `budgets.baseline` names.

    `paths` gives files of sites their place relative to the folder that annotations are for.
    """
    if (baseline is None) != (budgets.baseline is None):
        raise UsageError("baseline: give both its name and its analysis")
    entries = [[entry for entry in budgets.allow if _matches(entry, site)] for site in analysis.sites]
    counted = [site for site, matching in zip(analysis.sites, entries, strict=True) if not matching]
    allowed = [(site, matching[0]) for site, matching in zip(analysis.sites, entries, strict=True) if matching]
    gate = _Gate(analysis, counted, [site for site, _ in allowed], paths or {})
    results: list[model.Budget] = []
    if budgets.max_stall_ratio is not None:
        results.append(gate.stall(budgets.max_stall_ratio))
    if budgets.max_syncs_per_step is not None:
        results.append(gate.syncs_per_step(budgets.max_syncs_per_step))
    results += [gate.sync_free(pattern) for pattern in dict.fromkeys(budgets.sync_free_ranges)]
    results += [gate.forbidden(cause) for cause in dict.fromkeys(budgets.forbidden_causes)]
    if baseline is not None:
        results.append(gate.no_new_site(budgets.baseline or "", baseline))
    results = [_unless_lost(budget, analysis) for budget in results]
    used = {id(entry) for matching in entries for entry in matching}
    return model.CheckResult(
        held=all(budget.state == "held" for budget in results),
        budgets=tuple(results),
        allowed=tuple(model.AllowedSite(site, entry) for site, entry in allowed),
        # A site that was left out of the analysis may be the one that an entry is for.
        stale=() if analysis.omitted else tuple(entry for entry in budgets.allow if id(entry) not in used),
        analysis=analysis,
    )


def new_sites(sites: Iterable[model.Site], known: Iterable[model.Site]) -> list[model.Site]:
    """Those of `sites` at a place that is not among the places of `known`.

    A place is a line with a cause. It is known where it stands, else, as lines move, by file name, function and cause,
    each known place standing for one: a second read in a function that had one is new.
    """
    known_places = {_place(site): _moved(site) for site in known}
    places: dict[Hashable, list[model.Site]] = {}
    for site in sites:
        places.setdefault(_place(site), []).append(site)
    left = Counter(moved for place, moved in known_places.items() if place not in places)
    result = []
    for place, at_place in places.items():
        moved = _moved(at_place[0])
        if place in known_places:
            continue
        if left[moved]:
            left[moved] -= 1
        else:
            result += at_place
    return result


class _StepCount(NamedTuple):
    """A step and its operations that count; `at_most` where the allowed ones in it are not known."""

    trace: model.TraceReport
    step: int
    operations: int
    at_most: bool


@dataclass(frozen=True)
class _Gate:
    """`counted` are the sites that no entry of the allow-list matches, worst first."""

    analysis: model.Analysis
    counted: Sequence[model.Site]
    allowed: Sequence[model.Site]
    paths: Mapping[str, str]

    def stall(self, limit: float) -> model.Budget:
        window_ns = self.analysis.window_ns
        of = "of the window"
        reasons = [device.refused for trace in self.analysis.traces for device in trace.devices if device.refused]
        if reasons:
            return _not_known("max-stall", None, limit, of, reasons[0])
        if not window_ns:
            return _not_known("max-stall", None, limit, of, "the trace has no GPU work on record")
        omitted = self.analysis.omitted
        stalls = [site.stall.total_ns if site.stall else None for site in self.counted]
        stalls += [omitted.stall_ns] if omitted else []
        lost = sum(device.not_captured_ns or 0 for trace in self.analysis.traces for device in trace.devices)
        total = 0
        for stall in stalls:
            if stall is None and not lost:
                reason = _lost_events(self.analysis) or "a site has no idle figure"
                return _not_known("max-stall", None, limit, of, reason)
            total += stall or 0
        if total <= limit * window_ns < total + lost:
            low, high = total / window_ns, (total + lost) / window_ns
            reason = f"it lies between {low:.1%} and {high:.1%}: {_lost_events(self.analysis)}"
            return _not_known("max-stall", None, limit, of, reason)
        unsure = _not_on_record(self.analysis, beyond_window=True)
        if unsure and total <= limit * window_ns:
            return _not_known("max-stall", None, limit, of, unsure)
        rest, worst = total, []
        for site in sorted(self.counted, key=lambda site: -_stall_ns(site)):
            if rest <= limit * window_ns or not _stall_ns(site):
                break
            worst.append(self._violation(site, _stall_ns(site) / window_ns))
            rest -= _stall_ns(site)
        return _judged("max-stall", None, total / window_ns, limit, of, worst, total > limit * window_ns)

    def syncs_per_step(self, limit: int) -> model.Budget:
        kind: model.BudgetKind = "max-syncs-per-step"
        without = [trace.name for trace in self.analysis.traces if trace.steps is None or not trace.steps.steps]
        if without or not self.analysis.traces:
            which = f" in {without[0]}" if len(self.analysis.traces) > 1 else ""
            reason = f"no NVTX range gives steps{which}; name one with --nvtx"
            return _not_known(kind, None, limit, "in any step", reason)
        counts = list(self._steps())
        worst = max(counts, key=lambda count: count.operations)
        steps = worst.trace.steps
        assert steps is not None
        number = sum(len(trace.steps.steps) for trace in self.analysis.traces if trace.steps)
        of = f"in {steps.steps[worst.step].name!r}, the worst of {_count(number, 'step')} {steps.pattern!r}"
        of = f"at most, {of}" if worst.at_most else of
        if worst.at_most and worst.operations > limit:
            reason = "a saved analysis does not say in which steps the allowed sites sync; give the trace itself"
            return _not_known(kind, None, limit, of, reason)
        if worst.operations <= limit:
            return _judged(kind, None, worst.operations, limit, of, [], False)
        calls = self._calls_in(worst)
        in_steps = [(site, calls(site)) for site in self.counted]
        in_steps.sort(key=lambda pair: -pair[1])
        violations = [self._violation(site, n if self._has_operations else None) for site, n in in_steps if n]
        return _judged(kind, None, worst.operations, limit, of, violations, True)

    def _steps(self) -> Iterable[_StepCount]:
        table = self.analysis.operations
        always, varying = 0, False
        if not self._has_operations:
            for site in self.allowed:
                per_step = site.per_step
                if per_step is None or not per_step.steps_with_calls:
                    continue
                # Equal in every step: the mean is the largest.
                if per_step.calls_mean == per_step.calls_max:
                    always += per_step.calls_max
                else:
                    varying = True
        allowed = {site.id for site in self.allowed}
        for trace in self.analysis.traces:
            free: Counter[int] = Counter()
            if allowed and self._has_operations:
                own = table.filter(pc.equal(table["trace"], trace.name)).select(["site_id", "step"]).to_pydict()
                free.update(s for id, s in zip(own["site_id"], own["step"], strict=True) if id in allowed)
            for index, step in enumerate(trace.steps.steps if trace.steps else ()):
                yield _StepCount(trace, index, step.operations - free[index] - always, varying)

    def _calls_in(self, step: _StepCount) -> Callable[[model.Site], int]:
        """How many operations a site has in the step; the most in any where the analysis is a saved one."""
        if not self._has_operations:
            return lambda site: site.per_step.calls_max if site.per_step else 0
        table = self.analysis.operations
        inside = pc.and_(pc.equal(table["trace"], step.trace.name), pc.equal(table["step"], step.step))
        calls = Counter(table.filter(inside)["site_id"].to_pylist())
        return lambda site: calls[site.id]

    @property
    def _has_operations(self) -> bool:
        return bool(self.analysis.operations.num_rows)

    def sync_free(self, pattern: str) -> model.Budget:
        kind: model.BudgetKind = "sync-free"
        everything = [region for trace in self.analysis.traces for region in trace.regions if region.ranges]
        regions = [one for one in everything if one.name == pattern or fnmatchcase(one.name, pattern)]
        if not regions:
            names = list(dict.fromkeys(region.name for region in everything))
            if not names:
                return _not_known(kind, pattern, 0, "", "the trace has no NVTX range of the program's own")
            near = get_close_matches(pattern, names, n=RANGES_NAMED, cutoff=0) or names[:RANGES_NAMED]
            more = f" and {len(names) - len(near)} more" if len(names) > len(near) else ""
            reason = f"there is no such range in this analysis, which has {', '.join(near)}{more}"
            return _not_known(kind, pattern, 0, "", reason)
        inside = {site for region in regions for site in region.sites}
        operations, allowed = sum(region.operations for region in regions), {site.id for site in self.allowed}
        sites = [site for site in self.counted if site.id in inside]
        of = f"in {_count(sum(region.ranges for region in regions), 'range')}"
        if not operations or (inside and allowed >= inside):
            return _judged(kind, pattern, 0, 0, of, [], False)
        if not sites:
            omitted = self.analysis.omitted
            why = f"its sites were left out ({omitted.reason})" if omitted else "its sites are not in the analysis"
            verb = "is" if operations == 1 else "are"
            return _not_known(kind, pattern, 0, of, f"{_count(operations, 'sync operation')} {verb} inside, and {why}")
        # How many of the operations inside are the allowed sites', the analysis does not say.
        measured = None if allowed & inside else operations
        return _judged(kind, pattern, measured, 0, of, [self._violation(site, None) for site in sites], True)

    def forbidden(self, cause: str) -> model.Budget:
        sites = [site for site in self.counted if site.cause.id == cause]
        of = f"by {len(sites)} of {_count(len(self.counted), 'site')}"
        unknown = sum(site.cause.id == UNKNOWN for site in self.counted)
        if unknown and cause != UNKNOWN:
            of += f" (the cause of {unknown} is not known)"
        reason = "" if sites else _left_out(self.analysis) or _untold(cause, self.counted)
        if reason:
            return _not_known("forbid", cause, 0, of, reason)
        violations = [self._violation(site, site.calls) for site in sites]
        return _judged("forbid", cause, sum(site.calls for site in sites), 0, of, violations, bool(sites))

    def no_new_site(self, name: str, baseline: model.Analysis) -> model.Budget:
        sites = new_sites(self.counted, baseline.sites)
        of = f"of {_count(len(self.counted), 'site')}"
        if self.analysis.sites and baseline.sites and _any_in_python(self.analysis) != _any_in_python(baseline):
            which = "the baseline has none" if _any_in_python(self.analysis) else "only the baseline has them"
            reason = f"places cannot be matched without Python stacks, and {which}; {HOW_TO_GET_STACKS}"
            return _not_known("baseline", name, 0, of, reason)
        if baseline.omitted:
            return _not_known("baseline", name, 0, of, f"{_left_out(baseline)} of the baseline")
        if not sites and self.analysis.omitted:
            return _not_known("baseline", name, 0, of, _left_out(self.analysis))
        if baseline.selection != self.analysis.selection:
            of += f" (the baseline's selection is another: {baseline.selection or 'all of its trace'})"
        violations = [self._violation(site, None) for site in sites]
        return _judged("baseline", name, len(sites), 0, of, violations, bool(sites))

    def _violation(self, site: model.Site, amount: float | None) -> model.Violation:
        causes = {cause.id: cause for cause in self.analysis.causes}
        advice = {advice.id: advice for advice in self.analysis.advice}
        return model.Violation(
            site=site,
            cause=causes.get(site.cause.id),
            advice=next((advice[id] for id in site.advice if id in advice), None),
            path=self.paths.get(site.location.file) if site.location.file else None,
            amount=amount,
        )


def _judged(
    kind: model.BudgetKind,
    target: str | None,
    measured: float | None,
    limit: float,
    of: str,
    violations: Sequence[model.Violation],
    broken: bool,
) -> model.Budget:
    state: model.BudgetState = "broken" if broken else "held"
    return model.Budget(kind, target, state, measured, limit, of, "", tuple(violations))


def _lost_events(analysis: model.Analysis) -> str:
    return next((trace.coverage.lost_events for trace in analysis.traces if trace.coverage.lost_events), "")


def _unless_lost(budget: model.Budget, analysis: model.Analysis) -> model.Budget:
    """What is not on record holds no budget, and makes no site new. The stall has bounds, and judges by itself."""
    reason = _not_on_record(analysis, beyond_window=False)
    if budget.kind == "max-stall" or not reason or (budget.state == "broken" and budget.kind != "baseline"):
        return budget
    return budget if budget.reason else replace(budget, state="not known", measured=None, reason=reason, violations=())


def _not_on_record(analysis: model.Analysis, *, beyond_window: bool) -> str:
    """Why there may be more waits than the analysis has; with `beyond_window` only if outside the GPU's window."""
    for trace in analysis.traces:
        coverage = trace.coverage
        if coverage.unfinished_waits:
            waits = _count(coverage.unfinished_waits, "synchronize call")
            return f"{waits} in {trace.name} never ended, so what they cost is not known"
        if coverage.lost_events and (coverage.lost_beyond_window or not beyond_window):
            return coverage.lost_events
    return ""


def _not_known(kind: model.BudgetKind, target: str | None, limit: float, of: str, reason: str) -> model.Budget:
    return model.Budget(kind, target, "not known", None, limit, of, reason, ())


def _left_out(analysis: model.Analysis) -> str:
    omitted = analysis.omitted
    if omitted is None:
        return ""
    return f"{_count(omitted.sites, 'site')} {'was' if omitted.sites == 1 else 'were'} left out ({omitted.reason})"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _untold(cause: str, sites: Sequence[model.Site]) -> str:
    """Why it cannot be told that none of the sites has the cause; empty where it can."""
    found: dict[str, list[model.Site]] = {}
    for site in sites:
        lacks = _lacks(cause, site)
        if lacks is not None:
            found.setdefault(lacks, []).append(site)
    return "; ".join(
        f"{_count(len(lacking), 'site')} may have it ({lacking[0].location.label[:80]}"
        f"{' and others' if len(lacking) > 1 else ''}), with {lacks}"
        for lacks, lacking in found.items()
    )


def _lacks(cause: str, site: model.Site) -> str | None:
    """What is missing to say that the site does not have the cause, and how to get it; None where that is known."""
    if cause == UNKNOWN:
        return None
    if site.cause.id == UNKNOWN:
        return f"no known cause; {HOW_TO_GET_STACKS} --all-backtraces, or allow what no rule fits"
    asked = IN_TRACE.get(cause, cause)
    told = told_by(cause, site.kind)
    if "Python" in told and not _in_python(site):
        return f"no Python stack; {HOW_TO_GET_STACKS} --all-backtraces, or allow what has none"
    by_calls = not any(fact.startswith(("native frame", "Python frame")) for fact in site.cause.evidence)
    if "native" in told and by_calls and not site.native_stack:
        return f"no native stack; {HOW_TO_GET_STACKS} --all-backtraces"
    if asked != cause and site.cause.id == asked and site.source is None:
        if not _in_python(site):
            return f"no Python stack; {HOW_TO_GET_STACKS} --all-backtraces, or allow what has none"
        return "no source line; say where the sources are with --source-root"
    return None


def _in_python(site: model.Site) -> bool:
    """Whether a Python stack is known of all its operations."""
    return all(how in ("exact stack", "python sample") for how, _ in site.located_by)


def _any_in_python(analysis: model.Analysis) -> bool:
    return any(_in_python(site) for site in analysis.sites)


def _stall_ns(site: model.Site) -> int:
    return site.stall.total_ns if site.stall else 0


def _matches(entry: model.Allowed, site: model.Site) -> bool:
    """Both globs match, where both are given. A place without a function goes by its label; a file glob may leave out
    leading folders."""
    location = site.location
    if entry.function and not fnmatchcase(location.function or location.label, entry.function):
        return False
    if not entry.file:
        return True
    file = (location.file or "").replace("\\", "/")
    return bool(file) and (fnmatchcase(file, entry.file) or fnmatchcase(file, f"*/{entry.file}"))


def _place(site: model.Site) -> Hashable:
    location = site.location
    return location.file, location.line, _name(location), _cause_in_trace(site)


def _moved(site: model.Site) -> Hashable:
    location = site.location
    file = (location.file or "").replace("\\", "/").rpartition("/")[2]
    return file, _name(location), _cause_in_trace(site)


def _cause_in_trace(site: model.Site) -> str:
    """The source may have been at hand for one of two analyses only."""
    return IN_TRACE.get(site.cause.id, site.cause.id)


def _name(location: model.Location) -> str:
    """Process and thread ids differ from run to run."""
    return location.function or re.sub(r"\b([pt]id) \d+", r"\1", location.label)
