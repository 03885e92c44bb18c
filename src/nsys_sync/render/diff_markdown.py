"""A comparison in GitHub's Markdown, short enough for a comment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsys_sync.render import comparison as words
from nsys_sync.render.markdown_text import code, escape_cell, row
from nsys_sync.render.summary import DEVICES_SHOWN, device_title
from nsys_sync.render.text import count, plain_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nsys_sync.model import Comparison, Pair
    from nsys_sync.render.comparison import Row

LARGEST_BYTES = 58_000
"""GitHub refuses comments above 65,536 characters."""
PLACES_SHOWN = 20
_SENTENCE = 2_000
_CELL = 160


def render_diff_markdown(comparison: Comparison, *, top: int | None = None) -> str:
    """At most `top` places, fewer where the text would pass `LARGEST_BYTES`; it says how many it left out."""
    head = "\n".join(_head(comparison)) + "\n"
    titles = words.cause_titles(comparison)
    lines: list[str] = []
    budget = LARGEST_BYTES - len(head.encode()) - 400
    for pair in comparison.pairs[: PLACES_SHOWN if top is None else top]:
        line = _place_row(pair, titles, figures=words.basis(comparison) is not None)
        budget -= len(line.encode()) + 1
        if budget < 0:
            break
        lines.append(line)
    more = len(comparison.pairs) - len(lines)
    if more:
        lines += ["", f"{count(more, 'more place')}, of smaller change or none, in the HTML and JSON forms."]
    return head + "".join(f"{line}\n" for line in lines)


def _head(comparison: Comparison) -> Iterable[str]:
    yield f"**{_prose(words.headline(comparison))}**"
    yield ""
    for after in (False, True):
        yield f"- {_prose(words.run_sentence(comparison, after=after))}"
    for sentence in words.limit_sentences(comparison)[:12]:
        yield f"- {_prose(sentence)}"
    old, new = comparison.total_before, comparison.total_after
    if old is not None and new is not None:
        yield from _table("time" if len(comparison.devices) < 2 else "sum over the GPUs", words.window_rows(old, new))
        for sentence in words.explanation(comparison):
            yield from ("", _prose(sentence))
        if len(comparison.devices) > 1:
            for pair in comparison.devices[:DEVICES_SHOWN]:
                title = f"{device_title(pair.before)} of {plain_name(pair.before_trace, 60)}"
                rows = words.window_rows(words.device_shares(pair.before), words.device_shares(pair.after))
                yield from _table(escape_cell(title), rows)
    steps = words.step_rows(comparison)
    if steps:
        yield from _table("per step, median", steps)
    yield ""
    basis = words.basis(comparison)
    yield f"Sync places: {words.places_sentence(comparison.pairs)}{f' (figures {basis})' if basis else ''}"
    if comparison.pairs:
        yield ""
        figures = ("stall before | after | calls | ", "---:|---:|---:|") if basis else ("", "")
        yield f"| | {figures[0]}where | why it waits | match |"
        yield f"|---|{figures[1]}---|---|---|"


def _place_row(pair: Pair, titles: dict[str, str], *, figures: bool) -> str:
    old, new, _ = words.stall_cells(pair)
    calls = " → ".join(dict.fromkeys(words.calls_cells(pair)))
    numbers = f"{old} | {new} | {calls} | " if figures else ""
    where = code(words.place_text(pair), 2 * _CELL)
    moved = words.what_moved(pair)
    if moved:
        where += f" ({moved})"
    for line in words.source_lines(pair):
        where += f"<br>{code(line, _CELL)}"
    strong = f"**{pair.status}**" if pair.status in ("worse", "new") else pair.status
    why = escape_cell(words.cause_text(pair, titles), _CELL)
    return f"| {strong} | {numbers}{where} | {why} | {escape_cell(words.match_text(pair), _CELL)} |"


def _table(title: str, rows: Sequence[Row]) -> Iterable[str]:
    yield from ("", f"| {title} | before | after | change |", "|---|---:|---:|---:|")
    for one in rows:
        yield row(escape_cell(one.label), one.before, one.after, one.change)


def _prose(sentence: str) -> str:
    return escape_cell(sentence, _SENTENCE)
