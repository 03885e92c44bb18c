"""The report of `detect` for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

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
from nsys_sync.render.summary import location_parts
from nsys_sync.render.terminal import VERDICT_STYLES, advice_parts, bullets, hanging, indented, printed
from nsys_sync.render.text import clip, count

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

    from nsys_sync.model import CauseText, DetectedSite, Detection
    from nsys_sync.render.detected import Group

_ADVISED = 5
_FURTHER = 2


def render_detected_terminal(detection: Detection, *, width: int, color: bool, top: int) -> str:
    """The report in `width` columns, at most `top` sites; the first line is the answer."""
    width = max(width, 20)
    return printed(_report(detection, width, max(top, 0)), width=width, color=color)


def _report(detection: Detection, width: int, top: int) -> Iterable[RenderableType]:
    yield Text(detected_headline(detection), style="bold")
    for note in detected_notes(detection):
        yield Text(note)
    shown = detection.sites[:top]
    if shown:
        yield ""
        yield Text("Sync sites by calls", style="bold")
        yield _table(shown, detected_causes(detection), width)
        hidden = detection.sites[top:]
        if hidden:
            calls = count(sum(site.calls for site in hidden), "call")
            yield Text(f"{count(len(hidden), 'more site')} below the table's end: {calls}.", style="dim")
        yield ""
        yield Text("What to do", style="bold")
        summed = detected_verdicts(detection)
        if summed:
            yield indented(summed)
        for group in advice_groups(detection, min(top, _ADVISED)):
            yield ""
            yield from _group(group)
    yield ""
    yield Text("What this cannot see", style="bold")
    yield from bullets(detection.unseen)


def _table(sites: Sequence[DetectedSite], causes: dict[str, CauseText], width: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("calls", justify="right", no_wrap=True)
    table.add_column("where, whether it can go, and why it waits", overflow="fold", ratio=1)
    for rank, site in enumerate(sites, 1):
        name, where = (clip(part, 2 * width) for part in location_parts(site.location, None))
        text = Text.assemble((where, "bold"), " " if where else "", name)
        source = source_text(site)
        if source:
            text.append(f"\n{clip(source, 2 * width)}", "italic")
        text.append("\n")
        text.append(verdict(site.dependency), VERDICT_STYLES[site.dependency.kind])
        text.append(f"; {detected_what(site, causes)}", "dim")
        table.add_row(Text(str(rank)), Text(count(site.calls)), text)
    return table


def _group(group: Group) -> Iterable[RenderableType]:
    for rank, site in group.sites:
        calls = count(site.calls, "call")
        yield hanging(f"{rank}.", Text.assemble((detected_place(site, 1), "bold"), f": {calls}"))
        yield Padding(Text(verdict_sentence(site), VERDICT_STYLES[site.dependency.kind]), (0, 0, 0, 4))
    if group.cause and group.cause.dynamic_shape:
        yield Padding(Text(DYNAMIC_SHAPE, "magenta"), (0, 0, 0, 4))
    if group.advice:
        yield from advice_parts(group.advice)
    for advice in group.further[:_FURTHER]:
        yield Padding(Text(f"→ {'or: ' if group.advice else ''}{prose(advice.title, 160)}"), (0, 0, 0, 4))
