"""The sentences on a `Detection` that the terminal report and the page have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nsys_sync.render.actions import VERDICTS, prose
from nsys_sync.render.summary import location_parts
from nsys_sync.render.text import clip, count, plain_name

if TYPE_CHECKING:
    from nsys_sync.model import Advice, CauseText, DetectedSite, Detection

NO_TIME = "No time was measured: more calls need not cost more. What each costs, says nsys-sync profile."


class Group(NamedTuple):
    """Sites of one cause with the same advice, most calls first, with their ranks.

    `advice` is the piece to show in full, None where it stands in full further up; `further` those to name only.
    """

    cause: CauseText | None
    sites: tuple[tuple[int, DetectedSite], ...]
    advice: Advice | None
    further: tuple[Advice, ...]


def detected_headline(detection: Detection) -> str:
    """The answer in one sentence."""
    if detection.calls:
        sites = len(detection.sites) + detection.omitted_sites
        text = f"{count(sites, 'sync site')}: the CPU was made to wait for the GPU {count(detection.calls, 'time')}"
        if detection.sites:
            most = detection.sites[0]
            text += f"; most often at {detected_place(most)}, {count(most.calls, 'call')}"
        return text
    if detection.torch_version is None:
        return "Nothing was seen: the program did not import PyTorch"
    if not detection.watched_processes:
        return "Nothing was seen: the program did not use CUDA through PyTorch"
    return "No sync was seen"


def detected_notes(detection: Detection) -> list[str]:
    """What to know before reading the sites."""
    notes = [NO_TIME] if detection.calls else []
    if detection.exit_status:
        notes.append(f"The program ended with exit status {detection.exit_status}; this is what it did until then.")
    if detection.watched_processes > 1:
        notes.append(f"Calls are summed over {count(detection.watched_processes, 'process', 'processes')}.")
    if detection.omitted_sites:
        left_out = count(detection.omitted_sites, "site was", "sites were")
        notes.append(f"{left_out} left out, with {count(detection.omitted_calls, 'call')}.")
    if detection.lost_calls:
        notes.append(f"{count(detection.lost_calls, 'call')} could not be told apart by stack, and are in no site.")
    return notes


def detected_verdicts(detection: Detection) -> str | None:
    """How the sites divide into what can go and what cannot; None without any."""
    shares = []
    for kind, label in VERDICTS.items():
        sites = [site for site in detection.sites if site.dependency.kind == kind]
        if sites:
            shares.append(f"{count(len(sites), 'site')} {label} ({count(sum(s.calls for s in sites), 'call')})")
    return f"{', '.join(shares)}." if shares else None


def detected_place(site: DetectedSite, parents: int = 0) -> str:
    """Function and `file.py:line` in one line."""
    name, where = location_parts(site.location, parents)
    return clip(f"{name} {where}" if where else name, 160)


def detected_what(site: DetectedSite, causes: dict[str, CauseText]) -> str:
    """Why the site waits, with its operation."""
    operation = plain_name(site.operation, 80) if site.operation else ""
    cause = causes.get(site.cause.id)
    if cause is None:
        return f"why is not known: {operation}" if operation else "why is not known"
    sure = " (likely)" if site.cause.certainty == "likely" else ""
    shape = " (data-dependent shape)" if cause.dynamic_shape else ""
    named = f": {operation}" if operation and operation not in cause.title else ""
    return prose(cause.title, 120) + sure + named + shape


def detected_causes(detection: Detection) -> dict[str, CauseText]:
    """The texts of the causes that are known."""
    return {cause.id: cause for cause in detection.causes if cause.id != "unknown"}


def advice_groups(detection: Detection, most: int) -> list[Group]:
    """What to do about the first `most` sites of which more is known than that they wait."""
    causes, texts = detected_causes(detection), {advice.id: advice for advice in detection.advice}
    groups: dict[tuple[str, tuple[str, ...]], list[tuple[int, DetectedSite]]] = {}
    for rank, site in enumerate(detection.sites[:most], 1):
        if site.cause.id in causes:
            groups.setdefault((site.cause.id, site.advice), []).append((rank, site))
    result, shown = [], set[str]()
    for (cause, ids), sites in groups.items():
        known = [texts[one] for one in ids if one in texts]
        first = known[0] if known and known[0].id not in shown else None
        shown |= {first.id} if first else set()
        result.append(Group(causes.get(cause), tuple(sites), first, tuple(known[1 if first else 0 :])))
    return result
