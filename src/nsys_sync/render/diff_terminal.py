"""A comparison for a terminal, as text with or without colour codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nsys_sync.render import comparison as words
from nsys_sync.render.summary import DEVICES_SHOWN, device_title
from nsys_sync.render.terminal import STYLES, bullets, indented, printed
from nsys_sync.render.text import count, plain_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

    from nsys_sync.model import Comparison, Pair
    from nsys_sync.render.comparison import Row

_STATUS_STYLES = {"worse": "bold red", "new": "bold red", "better": "green", "gone": "green"}
_TABLE_FROM_WIDTH = 84


def render_diff_terminal(comparison: Comparison, *, width: int, color: bool, top: int) -> str:
    """The comparison in `width` columns, at most `top` places; the first line is the answer."""
    width = max(width, 20)
    return printed(_report(comparison, width, top), width=width, color=color)


def _report(comparison: Comparison, width: int, top: int) -> Iterable[RenderableType]:
    yield Text(words.headline(comparison), style="bold")
    yield Text(words.run_sentence(comparison, after=False), style="dim")
    yield Text(words.run_sentence(comparison, after=True), style="dim")
    limits = words.limit_sentences(comparison)
    if limits:
        yield ""
        yield from bullets(limits)
    old, new = comparison.total_before, comparison.total_after
    if old is not None and new is not None:
        several = " (sums over the GPUs)" if len(comparison.devices) > 1 else ""
        yield ""
        yield Text(f"Where the time went{several}", style="bold")
        yield Padding(_rows(words.window_rows(old, new)), (0, 0, 0, 2))
        for sentence in words.explanation(comparison):
            yield indented(sentence)
        yield from _devices(comparison)
    steps = words.step_rows(comparison)
    if steps:
        yield ""
        yield Text("Per step (medians, which need not add up)", style="bold")
        yield Padding(_rows(steps), (0, 0, 0, 2))
    yield ""
    yield from _places(comparison, width, top)


def _devices(comparison: Comparison) -> Iterable[RenderableType]:
    if len(comparison.devices) < 2:
        return
    for pair in comparison.devices[:DEVICES_SHOWN]:
        titles = dict.fromkeys(
            f"{device_title(device)} of {plain_name(trace, 80)}"
            for device, trace in ((pair.before, pair.before_trace), (pair.after, pair.after_trace))
        )
        yield ""
        yield indented(" → ".join(titles))
        rows = words.window_rows(words.device_shares(pair.before), words.device_shares(pair.after))
        yield Padding(_rows(rows), (0, 0, 0, 4))
    more = len(comparison.devices) - DEVICES_SHOWN
    if more > 0:
        yield indented(f"{count(more, 'more GPU')}, in the JSON form.")


def _rows(rows: Sequence[Row]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("", overflow="fold")
    for name in ("before", "after", "change"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(Text(row.label, STYLES.get(row.key, "")), row.before, row.after, row.change)
    return table


def _places(comparison: Comparison, width: int, top: int) -> Iterable[RenderableType]:
    pairs = comparison.pairs[: max(top, 0)]
    if not comparison.pairs:
        yield Text("No sync operations on either side.")
        return
    basis = words.basis(comparison)
    yield Text(
        f"Sync places: {words.places_sentence(comparison.pairs)}{f' (figures {basis})' if basis else ''}", "bold"
    )
    titles = words.cause_titles(comparison)
    if width >= _TABLE_FROM_WIDTH and basis:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
        table.add_column("", no_wrap=True)
        for name in ("stall before", "after", "calls"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("where, and how the two were matched", overflow="fold", ratio=1)
        for pair in pairs:
            old, new, _ = words.stall_cells(pair)
            table.add_row(_status(pair), old, new, _calls(pair), _where(pair, titles))
        yield table
    else:
        for pair in pairs:
            yield _status(pair)
            text = _where(pair, titles)
            if basis:
                old, new, change = words.stall_cells(pair)
                text.append(f"\nstall {old} → {new} ({change}), calls {_calls(pair)}")
            yield Padding(text, (0, 0, 0, 2))
    more = len(comparison.pairs) - len(pairs)
    if more > 0:
        yield Text(f"{count(more, 'more place')}, of smaller change or none; --top shows more.", style="dim")


def _status(pair: Pair) -> Text:
    return Text(pair.status, _STATUS_STYLES.get(pair.status, ""))


def _calls(pair: Pair) -> str:
    before, after = words.calls_cells(pair)
    return before if before == after else f"{before} → {after}"


def _where(pair: Pair, titles: dict[str, str]) -> Text:
    text = Text(words.place_text(pair), "bold")
    moved = words.what_moved(pair)
    if moved:
        text.append(f" ({moved})", "yellow")
    for line in words.source_lines(pair):
        text.append(f"\n{line}", "italic")
    text.append(f"\n{words.cause_text(pair, titles)}", "dim")
    if pair.before is not None and pair.after is not None:
        text.append(f"; match {words.match_text(pair)}", "dim")
    elif pair.status == "not compared":
        text.append(f"; {words.match_text(pair)}", "dim")
    detail = words.detail_text(pair)
    if detail:
        text.append(f"\n{detail}", "dim")
    return text
