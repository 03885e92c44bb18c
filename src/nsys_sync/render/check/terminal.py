"""A check for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from nsys_sync.render.check.words import (
    SHOWN,
    allowed_sentences,
    outcome,
    sentence,
    share,
    spot,
    stale_sentence,
    to_try,
    why,
)
from nsys_sync.render.summary import coverage_sentences, folded_coverage_sentence, shown_traces, trace_title
from nsys_sync.render.terminal import bullets, hanging, indented, printed
from nsys_sync.render.text import count, plain_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from nsys_sync.model import CheckResult

_STYLES = {"held": "green", "broken": "bold red", "not known": "bold yellow"}


def render_check_terminal(result: CheckResult, *, width: int, color: bool) -> str:
    """The first line is the answer; then each budget with the sites that break it."""
    return printed(_parts(result), width=max(width, 20), color=color)


def _parts(result: CheckResult) -> Iterable[RenderableType]:
    yield Text(outcome(result), "bold")
    if result.analysis.selection:
        yield Text(f"Selection: {plain_name(result.analysis.selection)}")
    for budget in result.budgets:
        yield ""
        yield Text.assemble((budget.state, _STYLES[budget.state]), f"  {sentence(budget, result)}")
        for violation in budget.violations[:SHOWN]:
            text = Text.assemble(
                (spot(violation), "bold"), f": {share(violation, budget)}\n", (why(violation, result), "dim")
            )
            advice = to_try(violation)
            if advice:
                text.append(f"\n→ {advice}")
            yield hanging("-", text)
        if len(budget.violations) > SHOWN:
            yield indented(f"{count(len(budget.violations) - SHOWN, 'more site')}, in the JSON form.")
    if result.allowed:
        yield ""
        yield Text("Allowed, and counted in no budget", "bold")
        yield from bullets(allowed_sentences(result))
    if result.stale:
        yield ""
    for entry in result.stale:
        yield Text(f"Warning: {stale_sentence(entry)}", "yellow")
    for trace in shown_traces(result.analysis):
        yield ""
        yield Text(f"Coverage of {trace_title(trace)}", "bold")
        yield from bullets(coverage_sentences(trace.coverage))
    folded = folded_coverage_sentence(result.analysis)
    if folded:
        yield Text(folded)
