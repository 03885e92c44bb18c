"""The report for a pull request's comment or `$GITHUB_STEP_SUMMARY`: a headline, a table, the rest folded away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsys_sync.render.actions import (
    DYNAMIC_SHAPE,
    SYNCS_IN_RANGES,
    causes_by_id,
    code_lines,
    cost_phrase,
    host_line,
    host_work_sentences,
    merge_sentences,
    prose,
    redundant_sentences,
    region_sentences,
    safe_link,
    source_text,
    todos,
    verdict,
    verdict_sentence,
    verdicts_sentence,
    what,
)
from nsys_sync.render.markdown_text import (
    code,
    details,
    escape_cell,
    fenced,
    fitted,
    html_code,
    html_text,
    listed,
    row,
    rule,
    with_code,
)
from nsys_sync.render.summary import (
    coverage_sentences,
    device_parts,
    device_title,
    folded_coverage_sentence,
    folded_sentence,
    gaps_sentence,
    headline,
    no_sites_sentence,
    omitted_sentence,
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
    from collections.abc import Iterable, Sequence

    from nsys_sync.model import Advice, Analysis, Site, TraceReport
    from nsys_sync.render.actions import Todo

SITES_SHOWN = 10
_LINES_SHOWN = 8
LEFT_OUT = "The rest is left out, to fit a comment; the HTML report has everything."


def render_markdown(analysis: Analysis) -> str:
    """The report in at most `LARGEST_BYTES` of GitHub's Markdown, whatever the trace holds."""
    return fitted(_blocks(analysis), LEFT_OUT)


def _blocks(analysis: Analysis) -> Iterable[str]:
    yield f"**{with_code(headline(analysis))}**"
    if analysis.selection:
        yield f"Selection: {with_code(plain_name(analysis.selection))}"
    yield from _sites(analysis)
    summed = verdicts_sentence(analysis)
    if summed:
        yield with_code(summed)
    for todo in todos(analysis, SITES_SHOWN):
        yield _todo(todo)
    notes = [*redundant_sentences(analysis.sites), *merge_sentences(analysis)]
    if notes:
        yield details("Waits that can go or be joined", listed(notes))
    for trace in shown_traces(analysis):
        regions = region_sentences(trace.regions)
        if regions:
            yield details(f"Syncs inside NVTX ranges{_of(trace, analysis)}", SYNCS_IN_RANGES, listed(regions))
    yield details("Where the GPU's time went", *_time(analysis))
    for trace in shown_traces(analysis):
        host_bound = list(_host_bound(trace))
        if host_bound:
            yield details(f"Host-bound time{_of(trace, analysis)}", *host_bound)
    yield details("Coverage: what the trace can tell", *coverage_blocks(analysis))
    yield f"nsys-sync {escape_cell(analysis.tool_version)}"


def coverage_blocks(analysis: Analysis) -> Iterable[str]:
    """What the traces can and cannot tell."""
    for trace in shown_traces(analysis):
        yield escape_cell(trace_title(trace))
        yield listed(coverage_sentences(trace.coverage))
    folded = folded_coverage_sentence(analysis)
    if folded:
        yield with_code(folded)


def advice_blocks(advice: Advice) -> Iterable[str]:
    """One thing to try, in full."""
    link = safe_link(advice.link)
    page = f" ([documentation](<{link}>))" if link and not {*link} & {*"<>\\|`"} else ""
    yield f"**→ {with_code(prose(advice.title, 160))}**{page}"
    yield with_code(prose(advice.text))
    for label, text in (("before", advice.before), ("after", advice.after)):
        if text.strip():
            yield f"{label}:"
            yield fenced(code_lines(text), "python")
    if advice.beware:
        yield f"Beware: {with_code(prose(advice.beware))}"


def where(site: Site) -> str:
    """A site's place and line of source, in a cell."""
    name, file = place_parts(site, 1)
    source = source_text(site)
    parts = [f"{code(file)} {code(name)}" if file else escape_cell(name)]
    return "<br>".join([*parts, code(source, 120)] if source else parts)


def _sites(analysis: Analysis) -> Iterable[str]:
    shown = analysis.sites[:SITES_SHOWN]
    if not shown:
        yield escape_cell(no_sites_sentence(analysis))
    else:
        yield "\n".join(_table(shown, analysis))
    rest = []
    hidden = analysis.sites[SITES_SHOWN:]
    if hidden:
        rest.append(f"{count(len(hidden), 'more site')} below the table's end: {sites_sum(hidden)}.")
    omitted = omitted_sentence(analysis)
    if omitted:
        rest.append(omitted)
    if rest:
        yield with_code(" ".join(rest))


def _table(sites: Sequence[Site], analysis: Analysis) -> Iterable[str]:
    causes = causes_by_id(analysis)
    yield row("#", "stall", "window", "calls", "blocked", "where", "whether it can go, and why it waits")
    yield rule("rrrrrll")
    for rank, site in enumerate(sites, 1):
        yield row(
            str(rank),
            duration(site.stall.total_ns if site.stall else None),
            ratio(site.stall_ratio),
            count(site.calls),
            duration(site.blocked.total_ns),
            where(site),
            f"**{escape_cell(verdict(site.dependency))}**; {with_code(what(site, causes), 300)}",
        )


def _todo(todo: Todo) -> str:
    first = todo.sites[0]
    more = f" and {count(len(todo.sites) - 1)} more" if len(todo.sites) > 1 else ""
    title = f": {html_text(prose(todo.cause.title, 120))}" if todo.cause else ""
    blocks = []
    for rank, site in todo.sites:
        blocks.append(f"{rank}\\. {code(clip(place(site, 1), 160))}: {escape_cell(cost_phrase(site))}")
        blocks.append(with_code(verdict_sentence(site)))
        if site.cause.evidence:
            facts = "; ".join(plain_name(fact, 200) for fact in site.cause.evidence[:3])
            blocks.append(f"Why it waits: {with_code(facts)}")
    if todo.cause:
        blocks.append(with_code(prose(todo.cause.explanation)))
        if todo.cause.dynamic_shape:
            blocks.append(DYNAMIC_SHAPE)
    for advice in todo.advice:
        blocks += advice_blocks(advice)
    blocks += [f"→ {'or: ' if todo.advice else ''}{with_code(prose(one.title, 160))}" for one in todo.further]
    return details(f"What to do about {html_code(clip(place(first[1]), 120))}{more}{title}", *blocks)


def _time(analysis: Analysis) -> Iterable[str]:
    devices = shown_devices(analysis)
    for trace in shown_traces(analysis):
        yield f"**{escape_cell(trace_title(trace))}**"
        for device in (device for of_trace, device in devices if of_trace is trace):
            lines = [row(escape_cell(device_title(device)), "time", "share of the window"), rule("lrr")]
            lines += [
                row(part.label, duration(part.ns), ratio(part.ns, device.window_ns)) for part in device_parts(device)
            ]
            lines.append(row("window", duration(device.window_ns), ""))
            yield "\n".join(lines)
            if device.refused:
                yield f"Idle time not known: {with_code(plain_name(device.refused, 600))}"
            gaps = gaps_sentence(device)
            if gaps:
                yield gaps
        sentences = [steps_sentence(trace.steps)] if trace.steps else []
        sentences += [*startup_sentences(trace), *polling_sentences(trace)]
        if sentences:
            yield listed(sentences)
    folded = folded_sentence(analysis)
    if folded:
        yield folded


def _host_bound(trace: TraceReport) -> Iterable[str]:
    if trace.host_work is None:
        return
    work = trace.host_work
    intro, rest = host_work_sentences(work)
    if intro:
        yield with_code(intro)
    if work.lines:
        lines = [row("about", "what Python did"), rule("rl")]
        lines += [
            row(duration(one.estimate_ns), escape_cell(host_line(one, work), 400)) for one in work.lines[:_LINES_SHOWN]
        ]
        yield "\n".join(lines)
        if len(work.lines) > _LINES_SHOWN:
            yield f"{count(len(work.lines) - _LINES_SHOWN, 'more line')}, in the JSON report."
    if rest:
        yield listed(rest)


def _of(trace: TraceReport, analysis: Analysis) -> str:
    return f" of {html_code(trace.name)}" if len(analysis.traces) > 1 else ""
