"""The sentences of a check that all its formats have in common. Every text is harmless on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsys_sync.render.actions import causes_by_id, how_often, prose, verdict, what
from nsys_sync.render.summary import place
from nsys_sync.render.text import clip, count, duration, plain_name, ratio

if TYPE_CHECKING:
    from nsys_sync.model import Allowed, Budget, CheckResult, Violation

SHOWN = 10
"""Sites of one kind that people get to see; machines get all."""
_REASON_LENGTH = 400


def outcome(result: CheckResult) -> str:
    """The answer in one sentence."""
    number = len(result.budgets)
    if result.held:
        return f"Held: {'' if number == 1 else 'all '}{count(number, 'budget')}."
    states = [budget.state for budget in result.budgets]
    parts = [f"{count(states.count(state))} {state}" for state in ("broken", "not known", "held") if state in states]
    return f"{'Broken' if 'broken' in states else 'Not known'}: of {count(number, 'budget')}, {', '.join(parts)}."


def budget_title(budget: Budget) -> str:
    """What was asked for."""
    target = plain_name(budget.target or "", 120)
    if budget.kind == "max-stall":
        return f"stall at most {_told_apart(budget.limit, budget.measured)} of the window"
    if budget.kind == "max-syncs-per-step":
        return f"at most {count(budget.limit, 'sync')} in any step"
    if budget.kind == "sync-free":
        return f"no sync inside NVTX range '{target}'"
    if budget.kind == "forbid":
        return f"no sync of cause '{target}'"
    return f"no site that is not in {target}"


def _told_apart(part: float | None, other: float | None) -> str:
    """`part` in percent, with enough digits to read otherwise than `other` where it is another."""
    short = ratio(part)
    if part is None or other is None or part == other or short != ratio(other):
        return short
    digits = next((n for n in range(2, 15) if f"{100 * part:.{n}f}" != f"{100 * other:.{n}f}"), 15)
    return f"{100 * part:.{digits}f} %"


def measured(budget: Budget, result: CheckResult) -> str:
    """What was found, with its unit and what it is a part of; or why that is not known."""
    if budget.state == "not known":
        return plain_name(budget.reason, _REASON_LENGTH)
    of = plain_name(budget.of, 200)
    if budget.kind == "max-stall":
        return f"{_told_apart(budget.measured, budget.limit)} {of} of {duration(result.analysis.window_ns)}"
    if budget.measured is None:  # the allowed sites' part of them is not known
        return f"{count(len(budget.violations), 'site')} {of}"
    if budget.kind == "baseline":
        return f"{count(budget.measured)} new {of}"
    return f"{count(budget.measured, 'sync')} {of}"


def sentence(budget: Budget, result: CheckResult) -> str:
    """What was asked for and what was found."""
    return f"{budget_title(budget)}: {measured(budget, result)}"


def spot(violation: Violation) -> str:
    """Where the site is: as an editor takes it, where its file is at hand."""
    site = violation.site
    if violation.path is None:
        return clip(place(site, 1), 160)
    line = "" if site.location.line is None else f":{site.location.line}"
    return f"{plain_name(violation.path)}{line} {plain_name(site.location.function or '', 120)}".rstrip()


def share(violation: Violation, budget: Budget) -> str:
    """The site's part of what was measured."""
    stall = violation.site.stall
    cost = f"stall {duration(stall.total_ns)}" if stall else f"blocked {duration(violation.site.blocked.total_ns)}"
    calls = count(violation.site.calls, "call")
    if violation.amount is None or budget.kind == "forbid":
        return f"{calls}, {cost}"
    if budget.kind == "max-stall":
        return f"{ratio(violation.amount)} of the window ({cost} over {calls})"
    return f"{count(violation.amount)} in the step ({calls} in all, {cost})"


def why(violation: Violation, result: CheckResult) -> str:
    """Whether the sync can go, how often it happens, and why it waits."""
    site = violation.site
    often = how_often(site)
    reason = what(site, causes_by_id(result.analysis))
    return f"{verdict(site.dependency)}{f', {often}' if often else ''}; {reason}"


def to_try(violation: Violation) -> str | None:
    """The first piece of advice, in a line."""
    return prose(violation.advice.title, 160) if violation.advice else None


def allowed_sentences(result: CheckResult) -> list[str]:
    """The sites that no budget counts, worst first, and why."""
    sentences = [
        f"{clip(place(allowed.site, 1), 160)}: {prose(allowed.entry.reason, _REASON_LENGTH)}"
        for allowed in result.allowed[:SHOWN]
    ]
    more = len(result.allowed) - SHOWN
    return [*sentences, f"{count(more, 'more site')}, in the JSON form."] if more > 0 else sentences


def stale_sentence(entry: Allowed) -> str:
    """An entry of the allow-list that is for nothing."""
    names = [
        f"{key} '{plain_name(glob, 120)}'" for key, glob in (("function", entry.function), ("file", entry.file)) if glob
    ]
    reason = prose(entry.reason, _REASON_LENGTH)
    return f"The allow-list's {' in '.join(names)} ({reason}) matches no site of this trace: remove the entry."
