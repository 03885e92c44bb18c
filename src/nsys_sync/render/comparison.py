"""The sentences and rows that all forms of a comparison have in common, so that they cannot disagree.

Like `summary`, every function returns text that is harmless on a terminal; HTML and Markdown escape it once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nsys_sync.model import TimeShares
from nsys_sync.render.summary import MESSAGE_LENGTH, PART_LABELS, location_parts
from nsys_sync.render.text import NOT_KNOWN, clip, count, duration, plain_name, ratio, short_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsys_sync.model import Comparison, Device, Location, Pair, PairStatus, PlaceInRun, SiteFigures

STATUSES: tuple[PairStatus, ...] = ("worse", "new", "better", "gone", "unchanged", "not compared")
GLOSSARY: tuple[tuple[str, str], ...] = (
    ("gone, new", "The place is in one of the two runs only."),
    (
        "better, worse",
        "Its stall changed by more than noise: 5 % of the larger figure, twice the standard error by the spread of "
        "steps or calls, and a thousandth of the window (or step), whichever is largest.",
    ),
    (
        "place",
        "One Python line and cause. The same in both runs by function, file and cause; line numbers may move, and "
        "where a file or function was renamed the match says how sure it is.",
    ),
)
_PARTS = ("busy", "stall", "host-bound", "device-side", "profiler", "unknown", "outside")
_CERTAINTY = {"certain": "certain", "likely": "likely", "open": "not sure"}


class Row(NamedTuple):
    """One figure side by side, as text. `key` is the part of the window, or empty."""

    key: str
    label: str
    before: str
    after: str
    change: str


def signed(change: float | None) -> str:
    """`+1.20 ms`, `-1.20 ms`, `0 ns`, not known."""
    return f"+{duration(change)}" if change is not None and change > 0 else duration(change)


def relative(before: float | None, after: float | None) -> str:
    """The change in percent of `before`; empty where that says nothing."""
    if not before or after is None or before == after:
        return ""
    shown = ratio(after - before, before)
    return f"+{shown}" if after > before and shown[0].isdigit() else shown


def headline(comparison: Comparison) -> str:
    """The answer in one sentence."""
    old, new = comparison.total_before, comparison.total_after
    places = _places_phrase(comparison.pairs)
    reasons = reasons_against(comparison, "everything")
    if reasons:
        return f"Not comparable: {'; '.join(reasons)}. Without figures: {places}"
    if old is not None and new is not None:
        text = f"Window {_from_to(old.window_ns, new.window_ns)}"
        if old.stall_ns is not None and new.stall_ns is not None:
            text += f", GPU idle {_from_to(old.idle_ns, new.idle_ns)}, stall {_from_to(old.stall_ns, new.stall_ns)}"
        return f"{text}; {places}"
    first, second = comparison.step_before, comparison.step_after
    if first is not None and second is not None:
        text = f"Per step {_from_to(first.length_ns, second.length_ns)}"
        if first.stall_ns is not None and second.stall_ns is not None:
            text += f", stall {_from_to(first.stall_ns, second.stall_ns)} (medians)"
        return f"{text}; {places}"
    return f"Totals are not comparable: {'; '.join(reasons_against(comparison, 'totals'))}. Without figures: {places}"


def reasons_against(comparison: Comparison, forbids: str) -> list[str]:
    """Why figures of a kind are not given."""
    return [plain_name(limit.reason, MESSAGE_LENGTH) for limit in comparison.not_comparable if limit.forbids == forbids]


def limit_sentences(comparison: Comparison) -> list[str]:
    """What is not compared and why, then what weakens the rest."""
    sentences = []
    for forbids, text in (
        ("everything", "The two are not comparable, so no figures are given"),
        ("totals", "Totals are not comparable"),
        ("idle", "Idle time and stall are not compared"),
    ):
        reasons = reasons_against(comparison, forbids)
        if reasons:
            per_step = "; per-step figures are" if forbids == "totals" and comparison.step_before else ""
            sentences.append(f"{text}{per_step}: {'; '.join(reasons)}.")
    return [*sentences, *(plain_name(note, MESSAGE_LENGTH) for note in comparison.notes)]


def run_sentence(comparison: Comparison, *, after: bool) -> str:
    """`Before: gpu_bound.sqlite, NVIDIA H200, 40 steps 'step *'`."""
    run = comparison.after if after else comparison.before
    parts = [plain_name(run.name, 160), ", ".join(dict.fromkeys(plain_name(name, 60) for name in run.gpus)) or "no GPU"]
    if len(run.gpus) > 1:
        parts[-1] = f"{len(run.gpus)} GPUs: {clip(parts[-1], 160)}"
    if run.steps is not None and run.step_pattern is not None:
        parts.append(f"{count(run.steps, 'step')} '{plain_name(run.step_pattern, 80)}'")
    if run.selection:
        parts.append(f"selection: {plain_name(run.selection, 160)}")
    return f"{'After' if after else 'Before'}: {', '.join(parts)}"


def window_rows(old: TimeShares, new: TimeShares) -> list[Row]:
    """Window, its parts, and idle time, side by side."""
    rows = [_row("", "window", old.window_ns, new.window_ns)]
    for key in _PARTS:
        before, after = _part(old, key), _part(new, key)
        if key not in ("unknown", "outside") or before or after:
            label = "stall" if key == "stall" else PART_LABELS[key]
            rows.append(_row(key, label, before, after))
    idle = "idle: stall, host-bound and device-side"
    return [*rows, _row("", idle, old.idle_ns, new.idle_ns)]


def device_shares(device: Device) -> TimeShares:
    """A device's parts in the form of the totals."""
    return TimeShares(
        window_ns=device.window_ns,
        busy_ns=device.busy_ns,
        idle_ns=device.idle_ns,
        stall_ns=device.stall_ns,
        host_bound_ns=device.host_bound_ns,
        device_side_ns=device.device_side_ns,
        profiler_ns=device.profiler_ns or 0,
        not_captured_ns=device.not_captured_ns or 0,
        outside_ns=device.outside_ns,
    )


def step_rows(comparison: Comparison) -> list[Row]:
    """Medians per step side by side; none where steps are not comparable."""
    old, new = comparison.step_before, comparison.step_after
    if old is None or new is None:
        return []
    operations = Row(
        "", "syncs", count(old.operations), count(new.operations), _signed_count(new.operations - old.operations)
    )
    return [
        _row("", "length", old.length_ns, new.length_ns),
        _row("busy", "busy", old.busy_ns, new.busy_ns),
        _row("stall", "stall", old.stall_ns, new.stall_ns),
        _row("host-bound", "host-bound", old.host_bound_ns, new.host_bound_ns),
        _row("", "CPU blocked in syncs", old.blocked_ns, new.blocked_ns),
        operations,
    ]


def explanation(comparison: Comparison) -> list[str]:
    """Where the difference of the windows comes from: the parts' differences, which add up to it exactly."""
    old, new = comparison.total_before, comparison.total_after
    if old is None or new is None:
        return []
    change = new.window_ns - old.window_ns
    several = " (sum over the GPUs)" if len(comparison.before.gpus) > 1 else ""
    if change:
        how = "longer" if change > 0 else "shorter"
        percent = relative(old.window_ns, new.window_ns)
        first = f"The window{several} is {duration(abs(change))} {how}{f' ({percent})' if percent else ''}"
    else:
        first = f"The window{several} is as long as before"
    changes = [(key, _part(old, key), _part(new, key)) for key in _PARTS]
    exactly = [(key, after - before) for key, before, after in changes if before is not None and after is not None]
    if len(exactly) < len(changes):
        busy = _more_or_less("busy", new.busy_ns - old.busy_ns)
        return [f"{first}: {busy}; what became of the idle time is not known."]
    known = sorted(((key, ns) for key, ns in exactly if ns), key=lambda pair: -abs(pair[1]))
    if not known:
        return [f"{first}, and so is each part of it."]
    parts = ", ".join(_more_or_less(key, ns) for key, ns in known)
    sentences = [f"{first}: {parts}."]
    if len(known) > 1:
        exact = " ".join(f"{'-' if ns < 0 else '+'} {abs(ns):,}" for _, ns in known)
        exact = exact.removeprefix("+ ") if exact.startswith("+") else f"-{exact[2:]}"
        sentences.append(f"These add up to the difference exactly: {exact} = {change:,} ns.")
    return [*sentences, *_stall_sentence(comparison, old, new)]


def _stall_sentence(comparison: Comparison, old: TimeShares, new: TimeShares) -> list[str]:
    """Which places the change of stall comes from."""
    total = _difference(old.stall_ns, new.stall_ns)
    if not total:
        return []
    parts, explained = [], 0.0
    for status in STATUSES:
        changes = [_in_all_change(pair) for pair in comparison.pairs if pair.status == status]
        amount = sum(change or 0 for change in changes)
        explained += amount
        if amount:
            parts.append(f"{status} {signed(amount)} ({count(len(changes), 'place')})")
    rest = total - explained
    if rest:
        parts.append(f"sites that are not listed {signed(rest)}")
    return [f"Of the stall's {signed(total)}: {', '.join(parts)}."] if parts else []


def places_sentence(pairs: Sequence[Pair]) -> str:
    """How many places became what: `5 gone, 1 unchanged`."""
    numbers = [(status, sum(pair.status == status for pair in pairs)) for status in STATUSES]
    return ", ".join(f"{count(number)} {status}" for status, number in numbers if number) or "none"


def place_text(pair: Pair, parents: int = 0) -> str:
    """`train.py:20 read_loss`; where something moved, both: `train.py:20 read → train.py:61 fetch`."""
    old, new = pair.before, pair.after
    if old is None or new is None:
        one = old or new
        return _place(one.location, parents) if one else NOT_KNOWN
    texts = _place(old.location, parents), _place(new.location, parents)
    if texts[0] == texts[1] and old.location.file != new.location.file:
        texts = _place(old.location, 3), _place(new.location, 3)
    return texts[0] if texts[0] == texts[1] else f"{texts[0]} → {texts[1]}"


def what_moved(pair: Pair) -> str | None:
    """`function renamed`, `moved by 40 lines`; None where nothing did."""
    if pair.before is None or pair.after is None:
        return None
    old, new = pair.before.location, pair.after.location
    parts = []
    if old.file != new.file:
        same_name = short_file(old.file or "", 0) == short_file(new.file or "", 0)
        parts.append("in another folder" if same_name else "file renamed")
    if old.function != new.function:
        parts.append("function renamed")
    if old.line is not None and new.line is not None and old.line != new.line:
        lines = abs(new.line - old.line)
        parts.append(f"moved {'down' if new.line > old.line else 'up'} by {count(lines, 'line')}")
    return ", ".join(parts) or None


def match_text(pair: Pair) -> str:
    """How sure the match is, and by what: `certain: same function, file and cause`."""
    if pair.before is None or pair.after is None:
        return plain_name(pair.evidence)
    return f"{_CERTAINTY[pair.certainty]}: {plain_name(pair.evidence)}"


def stall_cells(pair: Pair) -> tuple[str, str, str]:
    """Stall before, after, and the change: in all where totals are comparable, else per step. Else dashes."""
    figures = [_shown_figures(place) for place in (pair.before, pair.after)]
    if not any(figures):
        return "–", "–", "–"
    old, new = (
        0 if place is None else one.stall_ns if one else None
        for place, one in zip((pair.before, pair.after), figures, strict=True)
    )
    if pair.status == "not compared" and (pair.before is None or pair.after is None):
        shown = ["–" if place is None else duration(ns) for place, ns in ((pair.before, old), (pair.after, new))]
        return shown[0], shown[1], "–"
    return duration(old), duration(new), signed(_difference(old, new))


def calls_cells(pair: Pair) -> tuple[str, str]:
    """Calls before and after, as `stall_cells`."""
    figures = [_shown_figures(place) for place in (pair.before, pair.after)]
    if not any(figures):
        return "–", "–"
    shown = [
        ("–" if pair.status == "not compared" else "0") if place is None else count(one.calls if one else None)
        for place, one in zip((pair.before, pair.after), figures, strict=True)
    ]
    return shown[0], shown[1]


def detail_text(pair: Pair) -> str:
    """What else changed: `per step: stall 1.33 ms → 0 ns, calls 1 → 0; blocked 231 ms → 0 ns`; may be empty."""
    parts = []
    lone = pair.before is None or pair.after is None
    if lone and pair.status == "not compared":
        return ""
    steps = [place.per_step if place else None for place in (pair.before, pair.after)]
    in_all = [place.in_all if place else None for place in (pair.before, pair.after)]
    if any(steps) and any(in_all) and any(one.calls for one in steps if one):
        stalls = " → ".join(duration(one.stall_ns if one else 0) for one in steps)
        calls = " → ".join(count(one.calls if one else 0) for one in steps)
        parts.append(f"per step: stall {stalls}, calls {calls}")
    shown = in_all if any(in_all) else steps
    if any(shown):
        parts.append("blocked " + " → ".join(duration(one.blocked_ns if one else 0) for one in shown))
    return "; ".join(parts)


def basis(comparison: Comparison) -> str | None:
    """What the figures of the places are over."""
    if comparison.total_before is not None:
        return "in all"
    return "means per step" if comparison.step_before is not None else None


def source_lines(pair: Pair) -> list[str]:
    """The quoted line, or both where they differ; empty where none is quoted."""
    lines = [
        plain_name(" ".join(place.source.split()), 160) for place in (pair.before, pair.after) if place and place.source
    ]
    return list(dict.fromkeys(lines))


def cause_text(pair: Pair, titles: dict[str, str]) -> str:
    """Why the place waits; both where that changed."""
    causes = [titles.get(place.cause, place.cause) for place in (pair.before, pair.after) if place]
    return " → ".join(plain_name(one, 120) for one in dict.fromkeys(causes))


def cause_titles(comparison: Comparison) -> dict[str, str]:
    return {cause.id: cause.title for cause in comparison.causes}


def _shown_figures(place: PlaceInRun | None) -> SiteFigures | None:
    return (place.in_all or place.per_step) if place else None


def _place(location: Location, parents: int) -> str:
    name, where = location_parts(location, parents)
    return clip(f"{where} {name}" if where else name, 200)


def _places_phrase(pairs: Sequence[Pair]) -> str:
    return f"sync places: {places_sentence(pairs)}"


def _from_to(before: float | None, after: float | None) -> str:
    percent = relative(before, after)
    return f"{duration(before)} → {duration(after)}{f' ({percent})' if percent else ''}"


def _row(key: str, label: str, before: float | None, after: float | None) -> Row:
    change = signed(_difference(before, after))
    percent = relative(before, after)
    return Row(key, label, duration(before), duration(after), f"{change} ({percent})" if percent else change)


def _signed_count(number: float) -> str:
    return f"+{count(number)}" if number > 0 else count(number)


def _part(shares: TimeShares, key: str) -> int | None:
    values = {
        "busy": shares.busy_ns,
        "stall": shares.stall_ns,
        "host-bound": shares.host_bound_ns,
        "device-side": shares.device_side_ns,
        "profiler": shares.profiler_ns,
        "unknown": shares.not_captured_ns,
        "outside": shares.outside_ns,
    }
    return values[key]


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def _more_or_less(key: str, ns: int) -> str:
    label = {"outside": "outside the activity", "unknown": "not captured"}.get(key, key)
    return f"{label} {duration(abs(ns))} {'more' if ns > 0 else 'less'}"


def _in_all_change(pair: Pair) -> float | None:
    values = [
        0 if place is None else place.in_all.stall_ns if place.in_all else None for place in (pair.before, pair.after)
    ]
    if pair.status == "not compared" and (pair.before is None or pair.after is None):
        return None
    return _difference(values[0], values[1])
