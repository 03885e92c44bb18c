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
from nsys_sync.render.plots import DEVICES_SHOWN, plots

if TYPE_CHECKING:
    from nsys_sync.model import Analysis, Site

PAGE_BYTES = 1_980_000
"""Details of the sites furthest down are left out where the page would grow past this."""
ROWS = 5_000
_TEMPLATES = Path(__file__).parent / "templates"


def render_html(analysis: Analysis) -> str:
    """The whole page. It stays below 2 MB for 5,000 sites, and says what it left out for that."""
    script = (_TEMPLATES / "report.js").read_text("utf-8")
    omitted = summary.omitted_sentence(analysis)
    values = {
        "analysis": analysis,
        "title": ", ".join(trace.name for trace in analysis.traces[:3]) or "no trace",
        "headline": summary.headline(analysis),
        "devices": [
            (trace, device, summary.device_parts(device)) for trace in analysis.traces for device in trace.devices
        ],
        "devices_plotted": DEVICES_SHOWN,
        "several_traces": len(analysis.traces) > 1,
        "plots": plots(analysis),
        "startup": [sentence for trace in analysis.traces for sentence in summary.startup_sentences(trace)],
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
        rows.append(macros.row(rank, site, text.clip(name, 160), text.clip(where, 200)))
    budget -= sum(map(_size, rows))

    several = len(analysis.traces) > 1
    native_ids: dict[tuple[int, ...], str] = {}
    native_stacks: list[Markup] = []
    detailed = without_stack = 0
    for index, site in enumerate(sites):
        native_id, extra = native_ids.get(site.native_stack), None
        if site.native_stack and native_id is None:
            native_id = f"n{len(native_ids) + 1}"
            extra = macros.native([analysis.native_frames[i] for i in site.native_stack], native_id)
        stack = [analysis.frames[i] for i in site.python_stack]
        detail = macros.detail(site, stack, native_id, len(site.native_stack), _located(site), several)
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
        stalls = [site.stall.total_ns for site in rest if site.stall]
        notes.append(
            f"{text.count(len(rest), 'site is', 'sites are')} not listed here: "
            f"{text.count(sum(site.calls for site in rest), 'call')}, "
            f"stall {text.duration(sum(stalls) if len(stalls) == len(rest) else None)}, "
            f"blocked {text.duration(sum(site.blocked.total_ns for site in rest))}. The JSON report has them."
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
        return text.plain(value)
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
        clip=text.clip,
        count=text.count,
        coverage_sentences=summary.coverage_sentences,
        device_title=summary.device_title,
        duration=text.duration,
        exact=lambda ns: text.NOT_KNOWN if ns is None else f"{ns:,} ns",
        gaps_sentence=lambda device: summary.gaps_sentence(device) or "",
        ratio=text.ratio,
        steps_sentence=summary.steps_sentence,
        time_point=text.time_point,
        trace_title=summary.trace_title,
        trusted_svg=Markup,
    )
    return environment
