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

from nsys_sync.render import actions, summary, text
from nsys_sync.render.plots import plots

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsys_sync.model import Advice, Analysis, Merge, Region, Site, TraceReport

PAGE_BYTES = 1_980_000
"""Details of the sites furthest down are left out where the page would grow past this."""
DETAIL_BYTES = 250_000
"""Kept for the details of the worst sites, whatever the number of rows."""
ROWS = 5_000
RICH_ROWS = 100
"""Rows, at most, and those that show the source line and the calls too."""
FRAMES = 64
"""Frames of one stack, and..."""
RANKS = 16
"""...ranks of one site that are listed; the worst of them."""
REGIONS = 60
HOST_LINES = 20
"""Of these, at most, there is a row for each trace."""
REGION_SITES = 3
ADVICE = 6
MERGES = 2
"""Of these, at most, each region or site names some."""
_LONGEST = 1_200
"""Characters of any one text: sentences and messages are shorter, and names have bounds of their own."""
TEMPLATES = Path(__file__).parent / "templates"


def render_html(analysis: Analysis) -> str:
    """The whole page. It stays below 2 MB for 5,000 sites, and says what it left out for that."""
    script = (TEMPLATES / "report.js").read_text("utf-8")
    omitted = summary.omitted_sentence(analysis)
    anchors = _Anchors(analysis)
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
        "todos": actions.todos(analysis),
        "verdicts": actions.VERDICTS,
        "verdicts_sentence": actions.verdicts_sentence(analysis),
        "action_notes": [*actions.redundant_sentences(analysis.sites), *actions.merge_sentences(analysis)],
        "syncs_in_ranges": actions.SYNCS_IN_RANGES,
        "regions": [(trace, _most_syncs(trace)) for trace in summary.shown_traces(analysis) if trace.regions],
        "host_work": [
            (
                trace,
                trace.host_work,
                *actions.host_work_sentences(trace.host_work, causes=actions.causes_by_id(analysis)),
            )
            for trace in summary.shown_traces(analysis)
            if trace.host_work
        ],
        "host_lines": HOST_LINES,
        "anchors": anchors,
        "style": Markup((TEMPLATES / "report.css").read_text("utf-8")),
        "script": Markup(script),
        "script_hash": b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    }
    page = environment().get_template("report.html.j2")
    frame = page.render(values, rows=[], native_stacks=[], notes=[])
    rows, native_stacks, notes = _site_rows(analysis, anchors, PAGE_BYTES - len(frame.encode()))
    return page.render(values, rows=rows, native_stacks=native_stacks, notes=[*notes, omitted] if omitted else notes)


class _Anchors:
    """Where in the page the texts stand that many sites have: each is there once, under its position's name."""

    def __init__(self, analysis: Analysis) -> None:
        self.causes = actions.causes_by_id(analysis)
        self._causes = {cause.id: f"c{number}" for number, cause in enumerate(analysis.causes, 1)}
        self._advice = {advice.id: (f"a{number}", advice) for number, advice in enumerate(analysis.advice, 1)}
        self._ranks = {site.id: (rank, site) for rank, site in enumerate(analysis.sites[:ROWS], 1)}
        self._sites = {site.id: site for site in analysis.sites}
        self._merges: dict[str, list[Merge]] = {}
        for merge in analysis.merges:
            for site_id in dict.fromkeys(merge.sites if merge.runs else ()):
                self._merges.setdefault(site_id, []).append(merge)

    def cause(self, cause_id: str) -> str | None:
        """Where the explanation of a cause stands; None where there is none."""
        return self._causes.get(cause_id) if cause_id in self.causes else None

    def advice(self, ids: Sequence[str]) -> list[tuple[str, Advice]]:
        """The pieces of advice, each with where it stands."""
        return [self._advice[one] for one in ids[:ADVICE] if one in self._advice]

    def ranked(self, site_ids: Sequence[str]) -> list[tuple[int, Site]]:
        """The first of the sites, each with its rank, which is also where it stands."""
        return [self._ranks[one] for one in site_ids[:REGION_SITES] if one in self._ranks]

    def merge_sentences(self, site: Site) -> list[str]:
        """Which of the site's reads could be one."""
        return [actions.merge_sentence(merge, self._sites) for merge in self._merges.get(site.id, [])[:MERGES]]


def _most_syncs(trace: TraceReport) -> list[Region]:
    return sorted(trace.regions, key=lambda region: -region.operations)[:REGIONS]


def _site_rows(analysis: Analysis, anchors: _Anchors, budget: int) -> tuple[list[Markup], list[Markup], list[str]]:
    """Table rows with details while the budget lasts, the native stacks they point to, and what was left out."""
    macros: Any = environment().get_template("site.html.j2").module
    sites = analysis.sites[:ROWS]
    rows: list[Markup] = []
    for rank, site in enumerate(sites, 1):
        name, where = summary.place_parts(site, parents=3 if rank <= 1000 else 1)
        what = actions.what(site, anchors.causes)
        row = macros.row(rank, site, text.clip(name, 160), text.clip(where, 200), what, rank <= RICH_ROWS)
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
        detail = macros.detail(site, anchors, stack, native_id, ranks, _located(site), several)
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


def _marked(prose: str | None) -> Any:
    """A sentence in which `code` stands in backquotes."""
    if prose is None:
        return None
    parts = actions.prose(prose, _LONGEST).split("`")
    if len(parts) % 2 == 0:
        return "`".join(parts)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if position % 2 else part for position, part in enumerate(parts)
    )


def _size(markup: str) -> int:
    return len(markup) if markup.isascii() else len(markup.encode())


def _finalize(value: Any) -> Any:
    if value is None:
        return text.NOT_KNOWN
    if isinstance(value, str) and not isinstance(value, Markup):
        return text.plain_name(value, _LONGEST)
    return value


@cache
def environment() -> Environment:
    """Jinja with the package's templates and filters; all text is made plain and escaped."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals["dynamic_shape"] = actions.DYNAMIC_SHAPE
    made.filters.update(
        cause_title=lambda cause: actions.prose(cause.title, 120),
        code_lines=actions.code_lines,
        cost_phrase=actions.cost_phrase,
        clip=lambda name, length: None if name is None else text.clip(name, length),
        count=text.count,
        coverage_sentences=summary.coverage_sentences,
        device_startup_sentence=lambda device: summary.device_startup_sentence(device) or "",
        device_title=summary.device_title,
        duration=text.duration,
        exact=lambda ns: text.NOT_KNOWN if ns is None else f"{ns:,} ns",
        how_often=lambda site: actions.how_often(site) or "",
        location=actions.location,
        marked=_marked,
        place=summary.place,
        redundant_sentence=lambda site: actions.redundant_sentence(site) or "",
        safe_link=lambda link: actions.safe_link(link) or "",
        source_text=lambda site: actions.source_text(site) or "",
        verdict=actions.verdict,
        verdict_facts=actions.verdict_facts,
        gaps_sentence=lambda device: summary.gaps_sentence(device) or "",
        ratio=text.ratio,
        startup_sentences=summary.startup_sentences,
        polling_sentences=summary.polling_sentences,
        steps_sentence=summary.steps_sentence,
        time_point=text.time_point,
        trace_title=summary.trace_title,
        trusted_svg=Markup,
    )
    return made
