"""A check for a pull request's comment or `$GITHUB_STEP_SUMMARY`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsys_sync.render.check.words import (
    SHOWN,
    allowed_sentences,
    budget_title,
    measured,
    outcome,
    share,
    spot,
    stale_sentence,
    to_try,
    why,
)
from nsys_sync.render.markdown import LEFT_OUT, advice_blocks, coverage_blocks
from nsys_sync.render.markdown_text import (
    code,
    details,
    escape_cell,
    fitted,
    html_text,
    listed,
    row,
    rule,
    with_code,
)
from nsys_sync.render.summary import headline
from nsys_sync.render.text import count, plain_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nsys_sync.model import Budget, CheckResult

_MARKS = {"held": "✅ held", "broken": "❌ **broken**", "not known": "❓ **not known**"}
_BUDGETS_SHOWN = 50


def render_check_markdown(result: CheckResult) -> str:
    """The check in at most `LARGEST_BYTES` of GitHub's Markdown, whatever the trace holds."""
    return fitted(_blocks(result), LEFT_OUT)


def _blocks(result: CheckResult) -> Iterable[str]:
    yield f"**nsys-sync check. {escape_cell(outcome(result))}**"
    yield with_code(headline(result.analysis))
    if result.analysis.selection:
        yield f"Selection: {with_code(plain_name(result.analysis.selection))}"
    lines = [row("", "budget", "found"), rule("lll")]
    lines += [
        row(_MARKS[budget.state], escape_cell(budget_title(budget), 300), escape_cell(measured(budget, result), 700))
        for budget in result.budgets[:_BUDGETS_SHOWN]
    ]
    yield "\n".join(lines)
    if len(result.budgets) > _BUDGETS_SHOWN:
        yield f"{count(len(result.budgets) - _BUDGETS_SHOWN, 'more budget')}, in the JSON form."
    for entry in result.stale:
        yield f"⚠️ {with_code(stale_sentence(entry))}"
    for budget in result.budgets:
        if budget.violations:
            yield _violations(budget, result)
    tried = {
        violation.advice.id: violation.advice for b in result.budgets for violation in b.violations if violation.advice
    }
    for advice in tried.values():
        first, *rest = advice_blocks(advice)
        yield details(html_text(f"How to: {advice.title}"), first, *rest)
    if result.allowed:
        yield details("Allowed, and counted in no budget", listed(allowed_sentences(result)))
    yield details("Coverage: what the trace can tell", *coverage_blocks(result.analysis))


def _violations(budget: Budget, result: CheckResult) -> str:
    lines = [row("where", "how much", "whether it can go, and why it waits", "try"), rule("llll")]
    lines += [
        row(
            code(spot(violation)),
            escape_cell(share(violation, budget)),
            with_code(why(violation, result), 300),
            with_code(to_try(violation) or ""),
        )
        for violation in budget.violations[:SHOWN]
    ]
    blocks = ["\n".join(lines)]
    if len(budget.violations) > SHOWN:
        blocks.append(f"{count(len(budget.violations) - SHOWN, 'more site')}, in the JSON form.")
    title = f"{count(len(budget.violations), 'site breaks', 'sites break')}: {budget_title(budget)}"
    return details(html_text(title, 300), *blocks)
