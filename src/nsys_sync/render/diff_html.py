"""A comparison as one self-contained page without scripts; see `html` for how text from a trace is escaped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from nsys_sync.render import comparison as words
from nsys_sync.render import text
from nsys_sync.render.html import TEMPLATES, environment
from nsys_sync.render.plots import compared_timelines_plot
from nsys_sync.render.summary import DEVICES_SHOWN, device_title

if TYPE_CHECKING:
    from nsys_sync.model import Comparison

PAGE_BYTES = 1_980_000


def render_diff_html(comparison: Comparison, *, top: int | None = None) -> str:
    """The whole page, at most `top` places. It stays below 2 MB, and says what it left out for that."""
    devices = comparison.devices[:DEVICES_SHOWN]
    several = len(comparison.devices) > 1
    drawn = [compared_timelines_plot(pair, number, several=several) for number, pair in enumerate(devices, 1)]
    old, new = comparison.total_before, comparison.total_after
    tables = []
    if old is not None and new is not None:
        tables.append(("Sums over the GPUs" if several else "", words.window_rows(old, new)))
    if several:
        tables += [
            (
                f"{device_title(pair.before)} of {text.plain_name(pair.before_trace, 80)}",
                words.window_rows(words.device_shares(pair.before), words.device_shares(pair.after)),
            )
            for pair in devices
        ]
    values: dict[str, Any] = {
        "comparison": comparison,
        "title": f"{text.plain_name(comparison.before.name, 80)} → {text.plain_name(comparison.after.name, 80)}",
        "headline": words.headline(comparison),
        "runs": [words.run_sentence(comparison, after=after) for after in (False, True)],
        "limits": words.limit_sentences(comparison),
        "tables": tables,
        "folded": len(comparison.devices) - len(devices),
        "explanation": words.explanation(comparison),
        "steps": words.step_rows(comparison),
        "plots": [plot for plot in drawn if plot is not None],
        "places": words.places_sentence(comparison.pairs),
        "basis": words.basis(comparison),
        "glossary": words.GLOSSARY,
        "style": Markup((TEMPLATES / "report.css").read_text("utf-8")),
    }
    page = environment().get_template("diff.html.j2")
    place_row: Any = environment().get_template("diff_place.html.j2").module.row  # type: ignore[attr-defined]
    titles = words.cause_titles(comparison)
    budget = PAGE_BYTES - len(page.render(values, rows=[], more=0).encode())
    rows: list[Markup] = []
    for pair in comparison.pairs[:top]:
        stall = words.stall_cells(pair) if words.basis(comparison) else None
        row = place_row(pair, words, titles, stall, words.calls_cells(pair))
        budget -= len(row.encode())
        if budget < 0:
            break
        rows.append(row)
    return page.render(values, rows=rows, more=len(comparison.pairs) - len(rows))
