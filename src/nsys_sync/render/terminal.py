"""The report for a terminal, as text with or without colour codes."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nsys_sync.render.actions import (
    DYNAMIC_SHAPE,
    SYNCS_IN_RANGES,
    causes_by_id,
    code_lines,
    cost_phrase,
    host_line,
    host_work_sentences,
    how_often,
    merge_sentences,
    prose,
    redundant_sentences,
    region_sentences,
    source_text,
    todos,
    verdict,
    verdict_sentence,
    verdicts_sentence,
    what,
)
from nsys_sync.render.summary import (
    MESSAGE_LENGTH,
    any_startup_stall,
    coverage_sentences,
    device_parts,
    device_startup_sentence,
    device_title,
    folded_coverage_sentence,
    folded_sentence,
    gaps_sentence,
    headline,
    no_sites_sentence,
    omitted_sentence,
    order_of,
    place,
    place_parts,
    polling_sentences,
    shown_devices,
    shown_traces,
    sites_sum,
    startup_sentences,
    steps_sentence,
    trace_title,
)
from nsys_sync.render.text import clip, count, duration, plain_name, ratio

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import RenderableType

    from nsys_sync.model import Advice, Analysis, CauseText, Device, Site, TraceReport
    from nsys_sync.render.actions import Todo

STYLES = {
    "busy": "blue",
    "communication": "cyan",
    "stall": "bold red",
    "host-bound": "yellow",
    "device-side": "magenta",
    "profiler": "bright_black",
    "outside": "bright_black",
    "unknown": "",
}
VERDICT_STYLES = {"false": "green", "true": "yellow", "explicit": "cyan", "unknown": "dim"}
_ACTIONS_SHOWN = 5
_TABLE_FROM_WIDTH = 64
_WIDE_FROM_WIDTH = 116
_STARTUP_WIDTH = len("in start-up") + 2


def render_terminal(analysis: Analysis, *, width: int, color: bool, top: int) -> str:
    """The report in `width` columns, at most `top` sites; the first line is the answer."""
    width = max(width, 20)
    return printed(_report(analysis, width, top), width=width, color=color)


def printed(parts: Iterable[RenderableType], *, width: int, color: bool) -> str:
    """What rich makes of the parts in `width` columns, without blanks at line ends."""
    out = io.StringIO()
    # The environment is kept out (NO_COLOR, COLUMNS, TERM): the caller has decided.
    console = Console(
        file=out,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        legacy_windows=False,
        markup=False,
        highlight=False,
        emoji=False,
        _environ={},
    )
    for part in parts:
        console.print(part)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _report(analysis: Analysis, width: int, top: int) -> Iterable[RenderableType]:
    yield Text(headline(analysis), style="bold")
    if analysis.selection:
        yield Text(f"Selection: {plain_name(analysis.selection)}")
    devices = shown_devices(analysis)
    for trace in shown_traces(analysis):
        yield ""
        yield from _trace(trace, [device for of_trace, device in devices if of_trace is trace], width)
    folded = folded_sentence(analysis)
    if folded:
        yield ""
        yield Text(folded)
    yield ""
    yield from _sites(analysis, width, top)
    yield from _what_to_do(analysis, max(top, 0))
    for trace in shown_traces(analysis):
        yield from _host_bound(trace, causes_by_id(analysis), several=len(analysis.traces) > 1)
    for trace in shown_traces(analysis):
        yield ""
        name = f" of {plain_name(trace.name)}" if len(analysis.traces) > 1 else ""
        yield Text(f"Coverage{name}", style="bold")
        yield from bullets(coverage_sentences(trace.coverage))
    folded = folded_coverage_sentence(analysis)
    if folded:
        yield ""
        yield Text(folded)


def _trace(trace: TraceReport, devices: Sequence[Device], width: int) -> Iterable[RenderableType]:
    yield Text(trace_title(trace), style="bold")
    if not trace.devices:
        yield indented("No GPU work on record.")
    for device in devices:
        yield indented(f"{device_title(device)}: window {duration(device.window_ns)}")
        if device.refused:
            yield Padding(
                Text(f"idle time not known: {plain_name(device.refused, MESSAGE_LENGTH)}", style="yellow"),
                (0, 0, 0, 4),
            )
        yield Padding(_window(device, width), (0, 0, 0, 4))
        startup = device_startup_sentence(device)
        if startup:
            yield Padding(Text(startup), (0, 0, 0, 4))
        gaps = gaps_sentence(device)
        if gaps:
            yield Padding(Text(gaps, style="dim"), (0, 0, 0, 4))
    if trace.steps:
        yield indented(steps_sentence(trace.steps))
    for sentence in (*startup_sentences(trace), *polling_sentences(trace)):
        yield indented(sentence)


def _window(device: Device, width: int) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    bar_width = min(24, width - 66)
    for part in device_parts(device):
        cells = [Text(duration(part.ns)), Text(ratio(part.ns, device.window_ns)), Text(part.label, STYLES[part.key])]
        if bar_width >= 10:
            filled = round(bar_width * (part.ns or 0) / device.window_ns) if device.window_ns else 0
            cells.append(Text("█" * filled, STYLES[part.key]))
        table.add_row(*cells)
    return table


def _sites(analysis: Analysis, width: int, top: int) -> Iterable[RenderableType]:
    shown = analysis.sites[: max(top, 0)]
    if not analysis.sites:
        yield Text(no_sites_sentence(analysis))
    elif shown:
        total = len(analysis.sites) + (analysis.omitted.sites if analysis.omitted else 0)
        window = duration(analysis.window_ns)
        yield Text(f"Sync sites by {order_of(shown)} (% of the window of {window})", style="bold")
        startup_width = _STARTUP_WIDTH if any_startup_stall(shown) else 0
        as_table = width - startup_width >= _TABLE_FROM_WIDTH
        causes = causes_by_id(analysis)
        yield _table(shown, causes, width, startup_width) if as_table else _list(shown, causes, width)
        if len(shown) < total:
            yield Text(f"{count(len(shown))} of {count(total, 'site')} shown.", style="dim")
    hidden = analysis.sites[len(shown) :]
    if hidden:
        yield Text(f"{count(len(hidden), 'more site')} below the table's end: {sites_sum(hidden)}.")
    omitted = omitted_sentence(analysis)
    if omitted:
        yield Text(omitted)


def _table(sites: Sequence[Site], causes: dict[str, CauseText], width: int, startup_width: int) -> Table:
    wide = width - startup_width >= _WIDE_FROM_WIDTH
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("stall", justify="right", no_wrap=True)
    if startup_width:
        table.add_column("in start-up", justify="right", no_wrap=True)
    table.add_column("window", justify="right", no_wrap=True)
    table.add_column("calls", justify="right", no_wrap=True)
    table.add_column("blocked", justify="right", no_wrap=True)
    table.add_column("where" if wide else "where, whether it can go, and why it waits", overflow="fold", ratio=1)
    if wide:
        table.add_column("whether it can go, and why it waits", overflow="fold", ratio=1)
    room = max((width - startup_width - 46) // 2 if wide else width - startup_width - 42, 24)
    parents = _parents(sites, room)
    for rank, site in enumerate(sites, 1):
        where, why = _where(site, parents, room), _why(site, causes)
        stall = site.stall.total_ns if site.stall else None
        cells = [
            Text(str(rank)),
            Text(duration(stall), style=STYLES["stall"] if stall else ""),
            *([Text(duration(site.startup_stall_ns), style="dim")] if startup_width else []),
            Text(ratio(site.stall_ratio)),
            Text(count(site.calls)),
            Text(duration(site.blocked.total_ns)),
        ]
        cells += [where, why] if wide else [Text("\n").join([where, why])]
        table.add_row(*cells)
    return table


def _list(sites: Sequence[Site], causes: dict[str, CauseText], width: int) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    parents = _parents(sites, width - 4)
    for rank, site in enumerate(sites, 1):
        stall = duration(site.stall.total_ns if site.stall else None)
        startup = f", {duration(site.startup_stall_ns)} of it in start-up" if site.startup_stall_ns else ""
        text = Text(f"stall {stall} ({ratio(site.stall_ratio)}){startup}\n", STYLES["stall"] if site.stall else "")
        rest = Text(f"\n{count(site.calls, 'call')}, blocked {duration(site.blocked.total_ns)}\n")
        table.add_row(Text(f"{rank}."), Text.assemble(text, _where(site, parents, width), rest, _why(site, causes)))
    return table


def _parents(sites: Sequence[Site], room: int) -> int | None:
    """How many folders of a path fit: the same for all rows, so that they can be compared."""
    for parents in (None, 1):
        if all(sum(map(len, place_parts(site, parents))) < room for site in sites):
            return parents
    return 0


def _where(site: Site, parents: int | None, room: int) -> Text:
    name, where = (clip(part, 2 * room) for part in place_parts(site, parents))
    text = Text.assemble((where, "bold"), " " if where else "", name)
    source = source_text(site)
    if source:
        text.append(f"\n{clip(source, 2 * room)}", "italic")
    return text


def _why(site: Site, causes: dict[str, CauseText]) -> Text:
    """`can go (likely), every step: one number is read: tensor.item()`."""
    often = how_often(site)
    return Text.assemble(
        (verdict(site.dependency), VERDICT_STYLES[site.dependency.kind]),
        f", {often}" if often else "",
        (f"; {what(site, causes)}", "dim"),
    )


def _what_to_do(analysis: Analysis, top: int) -> Iterable[RenderableType]:
    summed = verdicts_sentence(analysis)
    steps = todos(analysis, top)
    notes = [*redundant_sentences(analysis.sites, _ACTIONS_SHOWN), *merge_sentences(analysis, _ACTIONS_SHOWN)]
    if summed or steps or notes:
        yield ""
        yield Text("What to do", style="bold")
    if summed:
        yield indented(summed)
    for todo in steps:
        yield ""
        yield from _todo(todo)
    if notes:
        yield ""
    yield from bullets(notes)
    for trace in shown_traces(analysis):
        regions = region_sentences(trace.regions, _ACTIONS_SHOWN)
        if regions:
            yield ""
            name = f" of {plain_name(trace.name)}" if len(analysis.traces) > 1 else ""
            yield Text(f"Syncs inside NVTX ranges{name}", style="bold")
            yield indented(SYNCS_IN_RANGES)
            yield from bullets(regions)


def _todo(todo: Todo) -> Iterable[RenderableType]:
    for rank, site in todo.sites:
        yield hanging(f"{rank}.", Text.assemble((clip(place(site, 1), 160), "bold"), f": {cost_phrase(site)}"))
        yield Padding(Text(verdict_sentence(site), VERDICT_STYLES[site.dependency.kind]), (0, 0, 0, 4))
    if todo.cause and todo.cause.dynamic_shape:
        yield Padding(Text(DYNAMIC_SHAPE, "magenta"), (0, 0, 0, 4))
    for advice in todo.advice:
        yield from advice_parts(advice)
    for advice in todo.further:
        yield Padding(Text(f"→ {'or: ' if todo.advice else ''}{prose(advice.title, 160)}"), (0, 0, 0, 4))


def advice_parts(advice: Advice) -> Iterable[RenderableType]:
    yield Padding(Text(f"→ {prose(advice.title, 160)}", "bold"), (0, 0, 0, 4))
    yield Padding(Text(prose(advice.text)), (0, 0, 0, 6))
    for label, code, style in (("before", advice.before, "dim"), ("after", advice.after, "green")):
        if code.strip():
            yield Padding(Text(f"{label}:", "dim"), (0, 0, 0, 6))
            yield Padding(Text("\n".join(code_lines(code)), style), (0, 0, 0, 8))
    if advice.beware:
        yield Padding(Text(f"Beware: {prose(advice.beware)}", "yellow"), (0, 0, 0, 6))
    yield Padding(Text(plain_name(advice.link), "dim"), (0, 0, 0, 6))


def _host_bound(trace: TraceReport, causes: Mapping[str, CauseText], *, several: bool) -> Iterable[RenderableType]:
    if trace.host_work is None:
        return
    work = trace.host_work
    intro, rest = host_work_sentences(work, _ACTIONS_SHOWN, causes)
    if intro or rest:
        yield ""
        yield Text(f"Host-bound{f' in {plain_name(trace.name)}' if several else ''}", style="bold")
    if intro:
        yield indented(intro)
    lines = work.lines[:_ACTIONS_SHOWN]
    if lines:
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(justify="right", no_wrap=True)
        table.add_column(overflow="fold")
        for line in lines:
            table.add_row(
                Text(f"about {duration(line.estimate_ns)}", STYLES["host-bound"]), Text(host_line(line, work))
            )
        yield Padding(table, (0, 0, 0, 4))
    if len(work.lines) > len(lines):
        yield indented(f"{count(len(work.lines) - len(lines), 'more line')}, in the JSON report.")
    yield from bullets(rest)


def indented(text: str) -> Padding:
    """A paragraph two columns in."""
    return Padding(Text(text), (0, 0, 0, 2))


def bullets(sentences: Iterable[str]) -> Iterable[RenderableType]:
    """A list, one item a sentence."""
    for sentence in sentences:
        yield hanging("-", Text(sentence))


def hanging(mark: str, text: Text) -> Table:
    """A text beside its mark."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(f" {mark}"), text)
    return grid
