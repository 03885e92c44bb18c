"""What to do about the sites, in the words that the terminal report and the page have in common.

Like `summary`, every function returns text that is harmless on a terminal; HTML escapes it once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nsys_sync.render.summary import LISTED, location_parts, place
from nsys_sync.render.text import NOT_KNOWN, clip, count, duration, plain_name, ratio

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TypeAlias

    from nsys_sync.model import (
        Advice,
        Analysis,
        CauseText,
        Certainty,
        Dependency,
        DependencyKind,
        DetectedSite,
        HostLine,
        HostWork,
        Location,
        Merge,
        Region,
        Site,
    )

    AnySite: TypeAlias = Site | DetectedSite

TODO_SITES = 5
"""Sites that get a part of their own under "what to do"."""
EVIDENCE_SHOWN = 3
SYNCS_IN_RANGES = (
    "Counted are syncs on the range's own thread and on threads without ranges; in start/end ranges, on all threads."
)
DYNAMIC_SHAPE = "Data-dependent shape: also breaks CUDA-graph capture."
VERDICTS: dict[DependencyKind, str] = {
    "false": "can go",
    "true": "needed",
    "explicit": "asked for",
    "unknown": NOT_KNOWN,
}
_TEXT_LENGTH = 600
_FACT_LENGTH = 200


class Todo(NamedTuple):
    """Sites of one cause with the same advice, worst first, with their ranks.

    `advice` are the pieces to show in full, `further` those to name only: they follow, or stand in full further up.
    """

    cause: CauseText | None
    sites: tuple[tuple[int, Site], ...]
    advice: tuple[Advice, ...]
    further: tuple[Advice, ...]


def causes_by_id(analysis: Analysis) -> dict[str, CauseText]:
    """The texts to give to `what`. A cause that is not known has none, as its title would say nothing."""
    return {cause.id: cause for cause in analysis.causes if cause.id != "unknown"}


def verdict(dependency: Dependency) -> str:
    """Whether the sync can go, in a few words: `can go (likely)`, `needed: control flow`."""
    reason = f": {plain_name(dependency.reason, 80)}" if dependency.kind == "true" and dependency.reason else ""
    sure = "" if dependency.kind == "unknown" else _certainty(dependency.certainty)
    return VERDICTS[dependency.kind] + reason + sure


def verdict_sentence(site: AnySite) -> str:
    """The verdict and what says so."""
    dependency = site.dependency
    if dependency.kind == "unknown":
        text = "Not known whether it can go"
    elif dependency.kind == "true" and dependency.reason:
        text = f"Needed for {plain_name(dependency.reason, 80)}"
    else:
        text = VERDICTS[dependency.kind].capitalize()
    sure = "" if dependency.kind == "unknown" else _certainty(dependency.certainty)
    facts = verdict_facts(site)
    return f"{text}{sure}: {facts}" if facts else f"{text}{sure}."


def verdict_facts(site: AnySite) -> str:
    """What says that the verdict is so; empty where nothing does."""
    dependency = site.dependency
    reason = [dependency.reason] if dependency.reason and dependency.kind != "true" else []
    facts = [plain_name(fact, _FACT_LENGTH).rstrip(".") for fact in (*reason, *dependency.evidence)][:EVIDENCE_SHOWN]
    return f"{'; '.join(facts)}." if facts else ""


def verdicts_sentence(analysis: Analysis) -> str | None:
    """How the stall of the sites divides into what can go and what cannot; None where no verdict is known."""
    if not any(site.dependency.kind != "unknown" for site in analysis.sites):
        return None
    known = all(site.stall is not None for site in analysis.sites)
    measure = "stall" if known else "time blocked"

    def sum_of(sites: Iterable[Site]) -> int:
        return sum(site.stall.total_ns if known and site.stall else site.blocked.total_ns for site in sites)

    shares = []
    for kind, label in VERDICTS.items():
        sites = [site for site in analysis.sites if site.dependency.kind == kind]
        if sites:
            shares.append(f"{duration(sum_of(sites))} {label} ({count(len(sites), 'site')})")
    which = "the sites not left out" if analysis.omitted else "the sites"
    return f"Of {duration(sum_of(analysis.sites))} {measure} in {which}: {', '.join(shares)}."


def what(site: Site, causes: dict[str, CauseText]) -> str:
    """Why the site waits, with its operation: `one number is read: tensor.item()`. Else what it calls."""
    cause = causes.get(site.cause.id)
    if cause is None:
        return plain_name(site.kind.label, 160)
    operation = f": {plain_name(site.kind.operation, 80)}" if site.kind.operation else ""
    shape = " (data-dependent shape)" if cause.dynamic_shape else ""
    return prose(cause.title, 120) + _certainty(site.cause.certainty) + operation + shape


def how_often(site: Site) -> str | None:
    """`every step`, `3 of 20 steps`, `once`; None where no steps are known."""
    if site.calls == 1:
        return "once"
    steps = site.per_step
    if steps is None or steps.steps < 2:
        return None
    if not steps.steps_with_calls:
        return "outside the steps"
    if steps.steps_with_calls == steps.steps:
        return "every step"
    return f"{count(steps.steps_with_calls)} of {count(steps.steps, 'step')}"


def todos(analysis: Analysis, top: int | None = None) -> list[Todo]:
    """What to do about the worst of the `top` sites that cost something and of which more is known than that."""
    worth = [
        (rank, site)
        for rank, site in enumerate(analysis.sites[:top], 1)
        if (site.stall is None or site.stall.total_ns) and (site.advice or site.dependency.kind != "unknown")
    ][:TODO_SITES]
    causes, texts = causes_by_id(analysis), {advice.id: advice for advice in analysis.advice}
    groups: dict[tuple[str, tuple[str, ...]], list[tuple[int, Site]]] = {}
    for rank, site in worth:
        groups.setdefault((site.cause.id, site.advice), []).append((rank, site))
    result, shown = [], set[str]()
    for (cause, ids), sites in groups.items():
        known = [texts[one] for one in ids if one in texts][:2]
        full = tuple(known[:1]) if known and known[0].id not in shown else ()
        shown.update(advice.id for advice in full)
        result.append(Todo(causes.get(cause), tuple(sites), full, tuple(known[len(full) :])))
    return result


def cost_phrase(site: Site) -> str:
    """What the site costs and how often it happens."""
    cost = f"blocked {duration(site.blocked.total_ns)}"
    if site.stall is not None:
        cost = f"stall {duration(site.stall.total_ns)} ({ratio(site.stall_ratio)} of the window)"
    often = how_often(site)
    calls = count(site.calls, "call")
    return f"{cost}, {calls}" + (f", {often}" if often and often != "once" else "")


def redundant_sentence(site: Site) -> str | None:
    """How many explicit waits had nothing to wait for."""
    if not site.redundant_calls:
        return None
    which = "can go" if site.redundant_calls == site.calls else "those can go"
    return f"{count(site.redundant_calls)} of {count(site.calls, 'wait')} found nothing to wait for: {which}."


def redundant_sentences(sites: Sequence[Site], most: int = LISTED) -> list[str]:
    """The same for all sites, each with its place."""
    sentences = [(site, sentence) for site in sites if (sentence := redundant_sentence(site))]
    result = [f"{clip(place(site), 120)}: {sentence}" for site, sentence in sentences[:most]]
    return _and_more(result, len(sentences) - most, "more site with redundant waits", "more sites with redundant waits")


def merge_sentence(merge: Merge, sites: dict[str, Site]) -> str:
    """Which reads could be one, and how many that would save."""
    distinct = list(dict.fromkeys(merge.sites))
    places = [clip(place(sites[one]), 120) for one in distinct[:LISTED] if one in sites]
    if len(distinct) > len(places):
        places.append(count(len(distinct) - len(places), "site not shown", "sites not shown"))
    reads = f"{count(merge.reads, 'read')} in {count(merge.runs, 'run')}"
    each = merge.reads / merge.runs
    which = f"these {count(each)} reads" if each == int(each) else f"these reads ({count(each)} a run on average)"
    how = "can be 1 (put the values together on the GPU, read once)"
    return f"{', '.join(places)}: {which} {how}: {reads}, of which {count(merge.runs)} would be left."


def merge_sentences(analysis: Analysis, most: int = LISTED) -> list[str]:
    """The merges that save most reads, of which at least one site is shown."""
    sites = {site.id: site for site in analysis.sites}
    shown = [merge for merge in analysis.merges if any(one in sites for one in merge.sites) and merge.runs]
    shown.sort(key=lambda merge: merge.runs - merge.reads)
    result = [merge_sentence(merge, sites) for merge in shown[:most]]
    return _and_more(result, len(shown) - most, "more group of reads", "more groups of reads")


def region_sentences(regions: Sequence[Region], most: int = LISTED) -> list[str]:
    """The syncs inside each NVTX range that has some, most first, and the names of those without."""
    with_syncs = sorted((region for region in regions if region.operations), key=lambda region: -region.operations)
    result = [_region_sentence(region) for region in with_syncs[:most]]
    result = _and_more(result, len(with_syncs) - most, "more range with syncs", "more ranges with syncs")
    free = [region for region in regions if region.ranges and not region.operations]
    if free:
        names = ", ".join(plain_name(region.name, 80) for region in free[:LISTED])
        more = len(free) - LISTED
        result.append(f"sync-free: {names}{f' and {count(more)} more' if more > 0 else ''}")
    return result


def _region_sentence(region: Region) -> str:
    name = plain_name(region.name, 80)
    text = f"{name}: {count(region.operations, 'sync')} in {count(region.ranges_with_operations)} of "
    text += f"{count(region.ranges, 'range')}"
    if region.ranges < 2:
        return text
    if not region.operations_after_first:
        return f"{text}, none after each thread's first (warm-up)"
    return f"{text}, {count(region.operations_after_first)} of them after each thread's first (warm-up)"


def host_work_sentences(
    work: HostWork, most: int = LISTED, causes: Mapping[str, CauseText] | None = None
) -> tuple[str | None, list[str]]:
    """What the lines of `HostWork.lines` are, or why there are none; and what else is known of host-bound time.

    `causes` (by id) say why a call is slow, where that is known.
    """
    intro = None
    if work.lines:
        intro = (
            f"What Python did in {duration(work.host_bound_ns)} of host-bound time, "
            f"estimated from {count(work.samples, 'sample')}{_rate(work)}:"
        )
    elif work.not_sampled and work.host_bound_ns:
        reason = plain_name(work.not_sampled, _TEXT_LENGTH).rstrip(".")
        intro = f"What Python did in {duration(work.host_bound_ns)} of host-bound time is not known: {reason}."
    rest = []
    if work.calls:
        calls = [
            f"{plain_name(call.api, 80)} {duration(call.total_ns)} over {count(call.calls, 'call')}"
            for call in work.calls[:most]
        ]
        more = f" and {count(len(work.calls) - most)} more" if len(work.calls) > most else ""
        rest.append(f"CUDA calls in the host-bound time (exact): {', '.join(calls)}{more}.")
        slow = {call.cause: call.api for call in work.calls if call.cause in (causes or {})}
        rest += [
            f"{plain_name(api, 80)} {prose(causes[cause].title, 80)}: {prose(causes[cause].explanation)}"
            for cause, api in slow.items()
            if cause and causes
        ]
    waits = [
        f"Hidden wait for the GPU, which no CUDA call shows: {plain_name(wait.wait, 80)} at "
        f"{location(wait.location)}, about {duration(wait.estimate_ns)}, "
        f"estimated from {count(wait.samples, 'sample')}{_rate(work)}."
        for wait in work.hidden_waits[:most]
    ]
    return intro, rest + _and_more(waits, len(work.hidden_waits) - most, "more hidden wait", "more hidden waits")


def host_line(line: HostLine, work: HostWork) -> str:
    """One line of `HostWork.lines` without its estimate."""
    inner = f", in {plain_name(line.inner, 120)}" if line.inner else ""
    samples = f"{count(line.samples)} of {count(work.samples, 'sample')}"
    return f"{plain_name(line.work, 80)}: {location(line.location)} ({samples}{inner})"


def location(where: Location) -> str:
    """Function and `file.py:line` of any location."""
    name, file = location_parts(where, 1)
    return clip(f"{name} {file}" if file else name, 160)


def prose(text: str, length: int = _TEXT_LENGTH) -> str:
    """A text that may be wrapped in its source, in one line."""
    return plain_name(" ".join(text.split()), length)


def code_lines(code: str, most: int = 30) -> list[str]:
    """A piece of code line by line, each harmless."""
    lines = [plain_name(line, 160) for line in code.strip("\n").split("\n")[: most + 1]]
    return [*lines[:most], "…"] if len(lines) > most else lines


def source_text(site: AnySite) -> str | None:
    """The site's line of source without its indentation."""
    return plain_name(site.source.text.strip(), 200) if site.source else None


def safe_link(link: str) -> str | None:
    """The link where it is one to a page: nothing else becomes a link in the page."""
    harmless = link.startswith("https://") and link.isascii() and link.isprintable() and " " not in link
    return link if harmless and len(link) <= _TEXT_LENGTH else None


def _certainty(certainty: Certainty) -> str:
    return " (likely)" if certainty == "likely" else ""


def _rate(work: HostWork) -> str:
    if work.sampling_period_ns is None:
        return " (sampling period not known)"
    return f", 1 per {duration(work.sampling_period_ns).removeprefix('1.00 ')}"


def _and_more(sentences: list[str], more: int, noun: str, nouns: str) -> list[str]:
    return [*sentences, f"{count(more, noun, nouns)}, in the JSON report."] if more > 0 else sentences
