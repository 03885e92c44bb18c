"""Two analyses side by side: which places are the same, what became of each, and whether figures may be compared.

**Places.** The unit is one Python line with one cause: a line can hold several kinds of operation (`print(tensor)` has
two), between which time moves from run to run. Two places are matched one to one, by the best evidence first, in the
order of `_EVIDENCE`; each round looks places up by a key, so the work grows with their number and not its square.
Function, file and cause decide; the quoted source line, else the order within the function, tells lines of one function
apart, so line numbers may move. Weaker rounds, in which a file or function was renamed, match only where
they leave no choice.

**Better and worse.** A change of stall counts where it is more than noise, which is the largest of: 5 % of the larger
figure; twice the standard error of both figures, estimated from the spread of the site's steps (or calls) between
median and 95th percentile; and a thousandth of the window (or of the median step). Stall alone decides: blocked time
costs nothing while the GPU works.

**What may be compared.** Another GPU, number of GPUs or ranks, selection, or a window too short forbid every figure.
Another number or pattern of steps forbids totals; per-step figures stand where the pattern is the same. An idle figure
refused on one side forbids idle and stall.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import median
from typing import TypeVar

from nsys_sync import __version__, model
from nsys_sync.analysis.verdict import IN_TRACE

RELATIVE_NOISE = 0.05
WINDOW_NOISE = 0.001
STANDARD_ERRORS = 2.0
_P95_IN_SIGMAS = 1.645
SHORTEST_WINDOW_NS = 1_000_000
"""Below this, launch latencies of microseconds are a large part of any difference."""
_Number = TypeVar("_Number", int, float)
NOT_KEPT = "not among the sites kept in the other analysis"


@dataclass(frozen=True)
class _Place:
    """The sites of one line and cause. `callers` are the functions of the user's own code that led to it."""

    sites: tuple[model.Site, ...]
    callers: tuple[str, ...]

    @property
    def location(self) -> model.Location:
        return self.sites[0].location

    @property
    def cause(self) -> str:
        return self.sites[0].cause.id

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(sorted({site.kind.label for site in self.sites}))

    @property
    def text(self) -> str | None:
        source = self.sites[0].source
        return " ".join(source.text.split()) if source else None

    @property
    def stall_ns(self) -> int | None:
        return _sum(site.stall.total_ns if site.stall else None for site in self.sites)


def compare(before: model.Analysis, after: model.Analysis) -> model.Comparison:
    """What changed from one run to the other. Both are left as they are."""
    limits = tuple(_limits(before, after))
    forbidden = {limit.forbids for limit in limits}
    everything = "everything" in forbidden
    totals = not everything and "totals" not in forbidden
    idle = not everything and "idle" not in forbidden
    per_step = not everything and _same_steps(before, after)
    matches, lone_before, lone_after = _matched(_places(before), _places(after))
    step_ns = max(_median_step(before), _median_step(after)) if per_step else 0
    judge = _Judge(before, after, totals=totals, per_step=per_step, idle=idle, step_ns=step_ns)
    pairs = [judge.pair(*match) for match in matches]
    pairs += [judge.lone(place, None) for place in lone_before]
    pairs += [judge.lone(None, place) for place in lone_after]
    return model.Comparison(
        schema_version=model.COMPARISON_SCHEMA_VERSION,
        tool_version=__version__,
        before=_compared(before),
        after=_compared(after),
        not_comparable=limits,
        notes=tuple(_notes(before, after, matched=bool(matches))),
        total_before=_total(before, idle) if totals else None,
        total_after=_total(after, idle) if totals else None,
        devices=_devices(before, after, idle) if totals else (),
        step_before=_step_figures(before, idle) if per_step else None,
        step_after=_step_figures(after, idle) if per_step else None,
        pairs=tuple(sorted(pairs, key=_order)),
        causes=tuple({cause.id: cause for cause in (*after.causes, *before.causes)}.values()),
    )


# ---------------------------------------------------------------------------------------------------- what is the same


def _places(analysis: model.Analysis) -> list[_Place]:
    """In the order of the sites, worst first."""
    lines: dict[Hashable, list[model.Site]] = defaultdict(list)
    for site in analysis.sites:
        location = site.location
        where = (location.file, location.line, location.function) if location.file else location.label
        lines[(where, IN_TRACE.get(site.cause.id, site.cause.id))].append(site)
    return [_Place(tuple(sites), _callers(analysis, sites[0])) for sites in lines.values()]


def _callers(analysis: model.Analysis, site: model.Site) -> tuple[str, ...]:
    own = [analysis.frames[index] for index in site.python_stack if analysis.frames[index].is_user_code]
    names = tuple(frame.function for frame in own[1:])
    return names if any(not name.startswith("<") for name in names) else ()


@dataclass(frozen=True)
class _Evidence:
    """One round of matching: places with equal keys (None: takes no part) are the same.

    `in_order`: several places of one function are paired by the order of their lines. Otherwise a key must leave no
    choice: all its places of a run lie in one function. `renamed`: the file must be the same, or the one that the
    earlier rounds found it renamed to, and the function is another.
    """

    text: str
    certainty: model.Certainty
    key: Callable[[_Place], Hashable | None]
    in_order: bool = False
    renamed: bool = False


def _in_python(*parts: Callable[[_Place], Hashable | None]) -> Callable[[_Place], Hashable | None]:
    """The parts together, where the place is in Python and every part is known."""

    def key(place: _Place) -> Hashable | None:
        if place.location.file is None:
            return None
        values = tuple(part(place) for part in parts)
        return None if any(value is None for value in values) else values

    return key


def _file(place: _Place) -> str | None:
    return place.location.file


def _file_name(place: _Place) -> str | None:
    return (place.location.file or "").replace("\\", "/").rsplit("/", 1)[-1]


def _function(place: _Place) -> str | None:
    return place.location.function


def _named_function(place: _Place) -> str | None:
    """`<module>` and `<lambda>` are names of many functions."""
    function = place.location.function
    return None if function is None or function.startswith("<") else function


def _cause(place: _Place) -> str:
    """Only one of the runs may have had its source at hand."""
    return IN_TRACE.get(place.cause, place.cause)


def _known_cause(place: _Place) -> str | None:
    return None if place.cause == "unknown" else _cause(place)


def _kinds(place: _Place) -> tuple[str, ...]:
    return place.kinds


def _text(place: _Place) -> str | None:
    return place.text


def _some_callers(place: _Place) -> tuple[str, ...] | None:
    return place.callers or None


def _frequency(place: _Place) -> float:
    steps = [site.per_step for site in place.sites if site.per_step]
    if len(steps) == len(place.sites) and all(one.calls_mean for one in steps):
        return sum(one.calls_mean for one in steps)
    return sum(site.calls for site in place.sites)


def _label(place: _Place) -> Hashable | None:
    """Process and thread ids differ from run to run."""
    return None if place.location.file is not None else re.sub(r"\b([pt]id) \d+", r"\1", place.location.label)


def _label_and_cause(place: _Place) -> Hashable | None:
    label = _label(place)
    return None if label is None else (label, _cause(place))


_EVIDENCE = (
    _Evidence(
        "same function, file, cause and source line", "certain", _in_python(_file, _function, _cause, _text), True
    ),
    _Evidence("same function, file and cause", "certain", _in_python(_file, _function, _cause, _kinds), True),
    _Evidence("same function, file and cause", "certain", _in_python(_file, _function, _cause), True),
    _Evidence("same function, file and source line; other cause", "likely", _in_python(_file, _function, _text), True),
    _Evidence("same function, file and kind; other cause", "likely", _in_python(_file, _function, _kinds), True),
    _Evidence(
        "same function, file name and cause; in another folder",
        "certain",
        _in_python(_file_name, _function, _cause, _kinds),
    ),
    _Evidence(
        "same function, file name and cause; in another folder", "certain", _in_python(_file_name, _function, _cause)
    ),
    _Evidence(
        "same function, cause and source line; file renamed", "certain", _in_python(_named_function, _cause, _text)
    ),
    _Evidence("same function and cause; file renamed", "likely", _in_python(_named_function, _cause)),
    _Evidence(
        "same file, cause and source line; function renamed", "likely", _in_python(_known_cause, _text), renamed=True
    ),
    _Evidence(
        "same file, cause, Python callers and number of calls; function renamed",
        "open",
        _in_python(_known_cause, _kinds, _some_callers, _frequency),
        renamed=True,
    ),
    _Evidence("same place outside Python, and cause", "likely", _label_and_cause, True),
)
_CHOSEN = "; which of its lines is not sure"
_EDITED = "; the line reads otherwise"


def _matched(
    before: Sequence[_Place], after: Sequence[_Place]
) -> tuple[list[tuple[_Place, _Place, model.Certainty, str]], list[_Place], list[_Place]]:
    """Pairs with their evidence, and what is left on each side."""
    matches: list[tuple[_Place, _Place, model.Certainty, str]] = []
    left, right = list(before), list(after)
    for evidence in _EVIDENCE:
        buckets: dict[Hashable, tuple[list[_Place], list[_Place]]] = {}
        new_names = _new_names(matches) if evidence.renamed else {}
        for side, places in enumerate((left, right)):
            for place in places:
                key = evidence.key(place)
                if key is not None and evidence.renamed:
                    file = place.location.file
                    key = (file if side else new_names.get(file, file), key)
                if key is not None:
                    buckets.setdefault(key, ([], []))[side].append(place)
        taken = set[int]()
        for olds, news in buckets.values():
            for old, new, chosen in _paired(olds, news, evidence):
                if evidence.renamed and not _may_be_renamed(old, new):
                    continue
                matches.append((old, new, *_how_sure(old, new, evidence, chosen=chosen)))
                taken |= {id(old), id(new)}
        left = [place for place in left if id(place) not in taken]
        right = [place for place in right if id(place) not in taken]
    return matches, left, right


def _how_sure(old: _Place, new: _Place, evidence: _Evidence, *, chosen: bool) -> tuple[model.Certainty, str]:
    if chosen:
        return "open", evidence.text + _CHOSEN
    if old.text is None or new.text is None or old.text == new.text:
        return evidence.certainty, evidence.text
    return "likely" if evidence.certainty == "certain" else evidence.certainty, evidence.text + _EDITED


def _new_names(matches: Iterable[tuple[_Place, _Place, model.Certainty, str]]) -> dict[str | None, str | None]:
    """Files of the first run and what they are called in the second, where all their matches agree."""
    found: dict[str | None, set[str | None]] = defaultdict(set)
    for old, new, *_ in matches:
        found[old.location.file].add(new.location.file)
    return {old: next(iter(new)) for old, new in found.items() if len(new) == 1}


def _may_be_renamed(old: _Place, new: _Place) -> bool:
    """Lines whose texts are known and differ are two lines."""
    return old.text is None or new.text is None or old.text == new.text


def _paired(olds: list[_Place], news: list[_Place], evidence: _Evidence) -> Iterable[tuple[_Place, _Place, bool]]:
    """Places with one key, and whether a choice had to be made: with more on one side, equal line numbers go first."""
    if not olds or not news:
        return
    if not evidence.in_order and (len({_home(one) for one in olds}) > 1 or len({_home(one) for one in news}) > 1):
        return
    if len(olds) == len(news):
        for old, new in zip(sorted(olds, key=_line), sorted(news, key=_line), strict=True):
            yield old, new, False
        return
    if not evidence.in_order and evidence.certainty != "certain":
        return
    by_line = {_line(new): new for new in news}
    same = [(old, by_line.pop(_line(old))) for old in olds if _line(old) in by_line]
    taken = {id(place) for pair in same for place in pair}
    rest = [sorted((one for one in places if id(one) not in taken), key=_line) for places in (olds, news)]
    for old, new in [*same, *zip(*rest, strict=False)]:
        yield old, new, True


def _home(place: _Place) -> tuple[str | None, str | None]:
    return place.location.file, place.location.function


def _line(place: _Place) -> int:
    return place.location.line or 0


# -------------------------------------------------------------------------------------------------- what became of each


@dataclass(frozen=True)
class _Judge:
    """Says of each place what became of it, with the figures that may be given. `step_ns` is the longer median step."""

    before: model.Analysis
    after: model.Analysis
    totals: bool
    per_step: bool
    idle: bool
    step_ns: float

    def pair(self, old: _Place, new: _Place, certainty: model.Certainty, evidence: str) -> model.Pair:
        shown = self._shown(old), self._shown(new)
        per_step = self._is_per_step(*shown)
        change = self._change(*shown, per_step=per_step)
        noise: float | None = None
        status: model.PairStatus = "not compared"
        if change is not None:
            noise = self._noise(old, new, shown, per_step=per_step)
            status = "unchanged" if abs(change) <= noise else "worse" if change > 0 else "better"
        return model.Pair(status, certainty, evidence, *shown, change, per_step, noise)

    def lone(self, old: _Place | None, new: _Place | None) -> model.Pair:
        """A place in one run; where the other analysis left sites out, it may be one of those."""
        omitted = (self.after if old else self.before).omitted
        status: model.PairStatus = "gone" if old else "new"
        certainty: model.Certainty = "certain"
        evidence = "no such function and cause in the other run"
        if omitted is not None and omitted.sites:
            status, certainty, evidence = "not compared", "open", NOT_KEPT
        before, after = (None if place is None else self._shown(place) for place in (old, new))
        per_step = self._is_per_step(before, after)
        change = self._change(before, after, per_step=per_step) if status != "not compared" else None
        return model.Pair(status, certainty, evidence, before, after, change, per_step, None)

    def _shown(self, place: _Place) -> model.PlaceInRun:
        in_all = per_step = None
        if self.totals:
            in_all = model.SiteFigures(
                calls=sum(site.calls for site in place.sites),
                stall_ns=place.stall_ns if self.idle else None,
                blocked_ns=sum(site.blocked.total_ns for site in place.sites),
            )
        steps = [site.per_step for site in place.sites if site.per_step]
        if self.per_step and len(steps) == len(place.sites):
            stall = _sum(one.stall_mean_ns for one in steps)
            per_step = model.SiteFigures(
                calls=sum(one.calls_mean for one in steps),
                stall_ns=stall if self.idle else None,
                blocked_ns=sum(one.blocked_mean_ns for one in steps),
            )
        source = place.sites[0].source
        return model.PlaceInRun(
            sites=tuple(site.id for site in place.sites),
            location=place.location,
            cause=place.cause,
            dependency=place.sites[0].dependency,
            kinds=place.kinds,
            source=source.text if source else None,
            in_all=in_all,
            per_step=per_step,
        )

    def _is_per_step(self, *shown: model.PlaceInRun | None) -> bool:
        """Steps vary less than whole runs, but say nothing of places outside them."""
        if not self.per_step:
            return False
        return not self.totals or any(place and place.per_step and place.per_step.calls for place in shown)

    def _change(self, *shown: model.PlaceInRun | None, per_step: bool) -> float | None:
        if not (self.idle and (self.totals or per_step)):
            return None
        before, after = (
            0 if place is None else figures.stall_ns if (figures := _figures(place, per_step=per_step)) else None
            for place in shown
        )
        return None if before is None or after is None else after - before

    def _noise(
        self, old: _Place, new: _Place, shown: tuple[model.PlaceInRun, model.PlaceInRun], *, per_step: bool
    ) -> float:
        figures = [_figures(place, per_step=per_step) for place in shown]
        larger = max((one.stall_ns or 0 if one else 0) for one in figures)
        extent = self.step_ns if per_step else max(self.before.window_ns, self.after.window_ns)
        error = sqrt(sum(_variance(site, per_step=per_step) for place in (old, new) for site in place.sites))
        return max(RELATIVE_NOISE * larger, STANDARD_ERRORS * error, WINDOW_NOISE * extent)


def _figures(place: model.PlaceInRun, *, per_step: bool) -> model.SiteFigures | None:
    return place.per_step if per_step else place.in_all


def _variance(site: model.Site, *, per_step: bool) -> float:
    """Of the mean per step, or of the sum over the calls."""
    if per_step:
        steps = site.per_step
        if steps is None or steps.stall_p95_ns is None or steps.stall_p50_ns is None or not steps.steps:
            return 0.0
        return _deviation(steps.stall_p50_ns, steps.stall_p95_ns) ** 2 / steps.steps
    if site.stall is None:
        return 0.0
    return _deviation(site.stall.p50_ns, site.stall.p95_ns) ** 2 * site.calls


def _deviation(p50_ns: int, p95_ns: int) -> float:
    return (p95_ns - p50_ns) / _P95_IN_SIGMAS


_GROUPS: dict[model.PairStatus, int] = {
    "worse": 0,
    "new": 0,
    "better": 1,
    "gone": 1,
    "unchanged": 2,
    "not compared": 3,
}


def _order(pair: model.Pair) -> tuple[int, float]:
    """In all where that is known: figures per step and in all do not rank together."""
    stalls = [place.in_all.stall_ns or 0 if place and place.in_all else 0 for place in (pair.before, pair.after)]
    return _GROUPS[pair.status], -abs(stalls[1] - stalls[0] or pair.change_ns or 0)


# ------------------------------------------------------------------------------------------------ what may be compared


def _limits(before: model.Analysis, after: model.Analysis) -> Iterable[model.NotComparable]:
    for two_or_more, (old, new) in (
        ("ranks", (len(before.traces), len(after.traces))),
        ("GPUs", (len(_gpus(before)), len(_gpus(after)))),
    ):
        if old != new:
            yield model.NotComparable("everything", f"other number of {two_or_more}: {old} before, {new} after")
    names = [sorted({name for name in _gpus(one) if name}) for one in (before, after)]
    if all(names) and names[0] != names[1]:
        yield model.NotComparable("everything", f"other GPU: {', '.join(names[0])} before, {', '.join(names[1])} after")
    if _selection(before) != _selection(after):
        yield model.NotComparable(
            "everything",
            f"other selection: {before.selection or 'the whole trace'} before, "
            f"{after.selection or 'the whole trace'} after",
        )
    for when, one in (("before", before), ("after", after)):
        if not _gpus(one):
            yield model.NotComparable("everything", f"no GPU work on record {when}")
        elif one.window_ns < SHORTEST_WINDOW_NS:
            yield model.NotComparable("everything", f"too short {when}: a window of {one.window_ns:,} ns")
    yield from _step_limits(before, after)
    for when, one in (("before", before), ("after", after)):
        refused = [device.refused for trace in one.traces for device in trace.devices if device.idle_ns is None]
        if refused:
            yield model.NotComparable("idle", f"idle time is not known {when}: {refused[0] or 'no reason given'}")
        lost = [trace.coverage.lost_events for trace in one.traces if trace.coverage.lost_events]
        if lost and not refused:
            yield model.NotComparable("idle", f"idle time is not comparable {when}: {lost[0]}")


def _step_limits(before: model.Analysis, after: model.Analysis) -> Iterable[model.NotComparable]:
    old, new = _step_counts(before), _step_counts(after)
    if not sum(old) or not sum(new):
        return
    if _patterns(before) != _patterns(after):
        patterns = [", ".join(_patterns(one)) for one in (before, after)]
        yield model.NotComparable("totals", f"other steps: '{patterns[0]}' before, '{patterns[1]}' after")
    elif sorted(old) != sorted(new):
        if sum(old) != sum(new):
            numbers = f"{sum(old):,} before, {sum(new):,} after"
        else:
            numbers = "spread otherwise over the ranks"
        yield model.NotComparable("totals", f"other number of steps: {numbers}")


def _notes(before: model.Analysis, after: model.Analysis, *, matched: bool) -> Iterable[str]:
    for when, one in (("before", before), ("after", after)):
        if one.omitted is not None and one.omitted.sites:
            yield (
                f"The analysis {when} left out sites ({one.omitted.reason}), so that those found on the other side "
                "alone cannot be called gone or new."
            )
        if not any(_gpus(one)) and _gpus(one):
            yield f"The GPU's model is not known {when}: take the two for comparable only if it is the same."
    versions = [sorted({trace.nsys_version or "unknown" for trace in one.traces}) for one in (before, after)]
    if versions[0] != versions[1]:
        yield f"Made by different nsys: {', '.join(versions[0])} before, {', '.join(versions[1])} after."
    known = [sum(_step_counts(one)) for one in (before, after)]
    if bool(known[0]) != bool(known[1]):
        yield (
            f"Only the run {'before' if known[0] else 'after'} has steps (NVTX ranges), so that nothing says whether "
            "both did the same work."
        )
    if before.sites and after.sites and not matched:
        yield "No place of one run is in the other: these may be two programs."


def _gpus(analysis: model.Analysis) -> list[str | None]:
    return [device.name for trace in analysis.traces for device in trace.devices]


def _selection(analysis: model.Analysis) -> str | None:
    """A process has another id in each run."""
    return None if analysis.selection is None else re.sub(r"(^|; )process \d+", r"\1process", analysis.selection)


def _step_counts(analysis: model.Analysis) -> list[int]:
    return [len(trace.steps.steps) if trace.steps else 0 for trace in analysis.traces]


def _patterns(analysis: model.Analysis) -> list[str]:
    return sorted({trace.steps.pattern for trace in analysis.traces if trace.steps and trace.steps.steps})


def _same_steps(before: model.Analysis, after: model.Analysis) -> bool:
    return bool(_patterns(before)) and _patterns(before) == _patterns(after)


# ------------------------------------------------------------------------------------------------------- side by side


def _compared(analysis: model.Analysis) -> model.Compared:
    patterns = _patterns(analysis)
    return model.Compared(
        name=", ".join(trace.name for trace in analysis.traces),
        tool_version=analysis.tool_version,
        selection=analysis.selection,
        gpus=tuple(name or "not known" for name in _gpus(analysis)),
        step_pattern=", ".join(patterns) if patterns else None,
        steps=sum(_step_counts(analysis)) if patterns else None,
    )


def _total(analysis: model.Analysis, idle: bool) -> model.TimeShares:
    devices = [device for trace in analysis.traces for device in trace.devices]

    def known(values: Iterable[int | None]) -> int | None:
        return _sum(values) if idle else None

    return model.TimeShares(
        window_ns=sum(device.window_ns for device in devices),
        busy_ns=sum(device.busy_ns for device in devices),
        idle_ns=known(device.idle_ns for device in devices),
        stall_ns=known(device.stall_ns for device in devices),
        host_bound_ns=known(device.host_bound_ns for device in devices),
        device_side_ns=known(device.device_side_ns for device in devices),
        profiler_ns=sum(device.profiler_ns or 0 for device in devices),
        not_captured_ns=sum(device.not_captured_ns or 0 for device in devices),
        outside_ns=sum(device.outside_ns for device in devices),
    )


def _devices(before: model.Analysis, after: model.Analysis, idle: bool) -> tuple[model.ComparedDevice, ...]:
    """By their place: first with first. Both runs have as many, else no totals are given."""
    sides = [
        [
            (trace.name, device if idle else _without_idle(device))
            for trace in one.traces
            for device in sorted(trace.devices, key=lambda one: one.id)
        ]
        for one in (before, after)
    ]
    return tuple(
        model.ComparedDevice(old, new, old_trace, new_trace)
        for (old_trace, old), (new_trace, new) in zip(*sides, strict=True)
    )


def _without_idle(device: model.Device) -> model.Device:
    """Idle time of every kind becomes not known, in the timeline too."""
    timeline = device.timeline
    nothing = (0,) * len(timeline.busy_ns)
    kinds = (timeline.stall_ns, timeline.host_bound_ns, timeline.device_side_ns, timeline.unknown_ns)
    unknown = tuple(sum(parts) for parts in zip(*kinds, strict=True))
    return replace(
        device,
        idle_ns=None,
        stall_ns=None,
        host_bound_ns=None,
        device_side_ns=None,
        device_side_without_launch_ns=None,
        startup_stall_ns=None,
        startup_host_bound_ns=None,
        gaps=None,
        host_late_gaps=None,
        timeline=replace(timeline, stall_ns=nothing, host_bound_ns=nothing, device_side_ns=nothing, unknown_ns=unknown),
        zoom=None,
    )


def _steps(analysis: model.Analysis) -> list[model.Step]:
    return [step for trace in analysis.traces if trace.steps for step in trace.steps.steps]


def _median_step(analysis: model.Analysis) -> float:
    return median(step.end_ns - step.start_ns for step in _steps(analysis))


def _step_figures(analysis: model.Analysis, idle: bool) -> model.StepFigures:
    steps = _steps(analysis)

    def known(values: Sequence[int | None]) -> float | None:
        some = [value for value in values if value is not None]
        return median(some) if idle and len(some) == len(steps) else None

    return model.StepFigures(
        length_ns=_median_step(analysis),
        busy_ns=median(step.busy_ns for step in steps),
        stall_ns=known([step.stall_ns for step in steps]),
        host_bound_ns=known([step.host_bound_ns for step in steps]),
        blocked_ns=median(step.blocked_ns for step in steps),
        operations=median(step.operations for step in steps),
    )


def _sum(values: Iterable[_Number | None]) -> _Number | None:
    """None where any of the values is."""
    total: _Number | int = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total
