"""The report as one self-contained page: no request, readable without scripts.

Everything from a trace passes `finalize`, which makes control and bidirectional characters visible, and then jinja's
autoescape. The exceptions are the package's own script and style, and the SVG of `plots`, which escapes by itself.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from nsys_sync.render import summary, text
from nsys_sync.render.plots import plots

if TYPE_CHECKING:
    from nsys_sync.model import Analysis, Site

PAGE_BYTES = 1_980_000
"""Details of the sites furthest down are left out where the page would grow past this."""
DETAIL_BYTES = 250_000
"""Kept for the details of the worst sites, whatever the number of rows."""
ROWS = 5_000
FRAMES = 64
"""Frames of one stack, and..."""
RANKS = 16
"""...ranks of one site that are listed; the worst of them."""
_LONGEST = 1_200
"""Characters of any one text: sentences and messages are shorter, and names have bounds of their own."""
_TEMPLATES = Path(__file__).parent / "templates"


def render_html(analysis: Analysis) -> str:
    """The whole page. It stays below 2 MB for 5,000 sites, and says what it left out for that."""
    script = (_TEMPLATES / "report.js").read_text("utf-8")
    omitted = summary.omitted_sentence(analysis)
    values = {
        "analysis": analysis,
        "title": ", ".join(text.plain_name(trace.name, 80) for trace in analysis.traces[:3]) or "no trace",
        "headline": summary.headline(analysis),
        "traces": summary.shown_traces(analysis),
        "devices": [(trace, device, summary.device_parts(device)) for trace, device in summary.shown_devices(analysis)],
        "folded": summary.folded_sentence(analysis),
        "folded_coverage": summary.folded_coverage_sentence(analysis),
        "gpus": sum(len(trace.devices) for trace in analysis.traces),
        "no_sites": summary.no_sites_sentence(analysis),
        "order": summary.order_of(analysis.sites),
        "several_traces": len(analysis.traces) > 1,
        "plots": plots(analysis),
        "style": Markup((_TEMPLATES / "report.css").read_text("utf-8")),
        "script": Markup(script),
        "script_hash": b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    }
    page = _environment().get_template("report.html.j2")
    frame = page.render(values, rows=[], native_stacks=[], notes=[])
    rows, native_stacks, notes = _site_rows(analysis, PAGE_BYTES - len(frame.encode()))
    return page.render(values, rows=rows, native_stacks=native_stacks, notes=[*notes, omitted] if omitted else notes)


def _site_rows(analysis: Analysis, budget: int) -> tuple[list[Markup], list[Markup], list[str]]:
    """Table rows with details while the budget lasts, the native stacks they point to, and what was left out."""
    macros: Any = _environment().get_template("site.html.j2").module
    sites = analysis.sites[:ROWS]
    rows: list[Markup] = []
    for rank, site in enumerate(sites, 1):
        name, where = summary.place_parts(site, parents=3 if rank <= 1000 else 1)
        row = macros.row(rank, site, text.clip(name, 160), text.clip(where, 200))
        budget -= _size(row)
        if budget < DETAIL_BYTES:  # names of many bytes: fewer rows then
            budget += _size(row)
            break
        rows.append(row)
    sites = sites[: len(rows)]

    several = len(analysis.traces) > 1
    native_ids: dict[tuple[int, ...], str] = {}
    native_stacks: list[Markup] = []
    detailed = without_stack = 0
    for index, site in enumerate(sites):
        native_id, extra = native_ids.get(site.native_stack), None
        if site.native_stack and native_id is None:
            native_id = f"n{len(native_ids) + 1}"
            native = [analysis.native_frames[i] for i in site.native_stack[:FRAMES]]
            extra = macros.native(native, native_id, len(site.native_stack))
        stack = [analysis.frames[i] for i in site.python_stack[:FRAMES]]
        ranks = sorted(site.ranks, key=lambda rank: (-(rank.stall_ns or 0), -rank.blocked_ns))[:RANKS]
        detail = macros.detail(site, stack, native_id, ranks, _located(site), several)
        budget -= _size(detail) + (_size(extra) + 70 if extra else 0)
        if budget < 0:
            break
        if extra is not None and native_id is not None:
            native_ids[site.native_stack] = native_id
            native_stacks.append(extra)
        rows[index] += detail
        detailed += 1
        without_stack += site.stack_omitted

    notes = []
    if detailed < len(sites):
        notes.append(
            f"Details stand under the first {text.count(detailed, 'site')} only, to keep the page small: "
            f"{text.count(len(sites) - detailed, 'site is', 'sites are')} without. The JSON report has them."
        )
    if without_stack:
        notes.append(
            f"{text.count(without_stack, 'site with details is', 'sites with details are')} without stacks, "
            "which are kept for the worst sites only."
        )
    if len(analysis.sites) > len(sites):
        rest = analysis.sites[len(sites) :]
        notes.append(
            f"{text.count(len(rest), 'site is', 'sites are')} not listed here: {summary.sites_sum(rest)}. "
            "The JSON report has them."
        )
    return rows, native_stacks, notes


def _located(site: Site) -> str:
    if not site.located_by:
        return ""
    (first, calls), *others = site.located_by
    more = "".join(f", {text.count(calls)} by {method}" for method, calls in others)
    return f"{text.count(calls)} of {text.count(site.calls, 'call')} located by {first}{more}"


def _size(markup: str) -> int:
    return len(markup) if markup.isascii() else len(markup.encode())


def _finalize(value: Any) -> Any:
    if value is None:
        return text.NOT_KNOWN
    if isinstance(value, str) and not isinstance(value, Markup):
        return text.plain_name(value, _LONGEST)
    return value


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        clip=lambda name, length: None if name is None else text.clip(name, length),
        count=text.count,
        coverage_sentences=summary.coverage_sentences,
        device_startup_sentence=lambda device: summary.device_startup_sentence(device) or "",
        device_title=summary.device_title,
        duration=text.duration,
        exact=lambda ns: text.NOT_KNOWN if ns is None else f"{ns:,} ns",
        gaps_sentence=lambda device: summary.gaps_sentence(device) or "",
        ratio=text.ratio,
        startup_sentences=summary.startup_sentences,
        steps_sentence=summary.steps_sentence,
        time_point=text.time_point,
        trace_title=summary.trace_title,
        trusted_svg=Markup,
    )
    return environment
