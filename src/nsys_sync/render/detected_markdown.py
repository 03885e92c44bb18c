"""The report of `detect` for a pull request's comment: a headline, a table, the rest folded away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsys_sync.render.actions import DYNAMIC_SHAPE, prose, source_text, verdict, verdict_sentence
from nsys_sync.render.detected import (
    advice_groups,
    detected_causes,
    detected_headline,
    detected_notes,
    detected_place,
    detected_verdicts,
    detected_what,
)
from nsys_sync.render.markdown import LEFT_OUT, SITES_SHOWN, advice_blocks
from nsys_sync.render.markdown_text import (
    code,
    details,
    escape_cell,
    fitted,
    html_code,
    html_text,
    listed,
    row,
    rule,
    with_code,
)
from nsys_sync.render.summary import location_parts
from nsys_sync.render.text import count

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nsys_sync.model import DetectedSite, Detection
    from nsys_sync.render.detected import Group


def render_detected_markdown(detection: Detection) -> str:
    """The report in at most `LARGEST_BYTES` of GitHub's Markdown."""
    return fitted(_blocks(detection), LEFT_OUT)


def _blocks(detection: Detection) -> Iterable[str]:
    yield f"**{with_code(detected_headline(detection))}**"
    for note in detected_notes(detection):
        yield with_code(note)
    if detection.sites:
        yield "\n".join(_table(detection))
        hidden = detection.sites[SITES_SHOWN:]
        if hidden:
            calls = count(sum(site.calls for site in hidden), "call")
            yield f"{count(len(hidden), 'more site')} below the table's end: {calls}."
        summed = detected_verdicts(detection)
        if summed:
            yield summed
        for group in advice_groups(detection, SITES_SHOWN):
            yield _group(group)
    yield details("What this cannot see", listed(detection.unseen))
    yield f"nsys-sync {escape_cell(detection.tool_version)}"


def _table(detection: Detection) -> Iterable[str]:
    causes = detected_causes(detection)
    yield row("#", "calls", "where", "whether it can go, and why it waits")
    yield rule("rrll")
    for rank, site in enumerate(detection.sites[:SITES_SHOWN], 1):
        why = f"**{escape_cell(verdict(site.dependency))}**; {with_code(detected_what(site, causes), 300)}"
        yield row(str(rank), count(site.calls), _where(site), why)


def _where(site: DetectedSite) -> str:
    name, file = location_parts(site.location, 1)
    source = source_text(site)
    return "<br>".join([f"{code(file)} {code(name)}", *([code(source, 120)] if source else [])])


def _group(group: Group) -> str:
    first = group.sites[0][1]
    more = f" and {count(len(group.sites) - 1)} more" if len(group.sites) > 1 else ""
    title = f": {html_text(prose(group.cause.title, 120))}" if group.cause else ""
    blocks = []
    for rank, site in group.sites:
        blocks.append(f"{rank}\\. {code(detected_place(site, 1))}: {count(site.calls, 'call')}")
        blocks.append(with_code(verdict_sentence(site)))
    if group.cause:
        blocks.append(with_code(prose(group.cause.explanation)))
        if group.cause.dynamic_shape:
            blocks.append(DYNAMIC_SHAPE)
    if group.advice:
        blocks += advice_blocks(group.advice)
    blocks += [f"→ {'or: ' if group.advice else ''}{with_code(prose(one.title, 160))}" for one in group.further[:2]]
    return details(f"What to do about {html_code(detected_place(first))}{more}{title}", *blocks)
