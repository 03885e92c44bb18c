"""A check as JUnit's XML, which every CI system reads: one test case a budget."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree

from nsys_sync.render.check.words import (
    allowed_sentences,
    budget_title,
    measured,
    sentence,
    share,
    spot,
    stale_sentence,
    to_try,
    why,
)

if TYPE_CHECKING:
    from nsys_sync.model import Budget, CheckResult


def render_check_junit(result: CheckResult) -> str:
    """A budget that is not held is a failure, with its sites as text; stale entries go to `system-err`.

    XML cannot hold control characters at all, not even escaped: the words have made them visible.
    """
    failures = sum(budget.state != "held" for budget in result.budgets)
    numbers = {"name": "nsys-sync check", "tests": str(len(result.budgets)), "failures": str(failures), "errors": "0"}
    suites = ElementTree.Element("testsuites", numbers)
    suite = ElementTree.SubElement(suites, "testsuite", {**numbers, "skipped": "0", "time": "0"})
    for budget in result.budgets:
        case = ElementTree.SubElement(
            suite, "testcase", classname=f"nsys-sync.{budget.kind}", name=budget_title(budget), time="0"
        )
        if budget.state != "held":
            failure = ElementTree.SubElement(
                case, "failure", type=f"{budget.kind} {budget.state}", message=measured(budget, result)
            )
            failure.text = "\n".join([sentence(budget, result), *_sites(budget, result)])
    if result.allowed:
        allowed = [f"Allowed: {one}" for one in allowed_sentences(result)]
        ElementTree.SubElement(suite, "system-out").text = "\n".join(allowed)
    if result.stale:
        stale = [f"Warning: {stale_sentence(entry)}" for entry in result.stale]
        ElementTree.SubElement(suite, "system-err").text = "\n".join(stale)
    ElementTree.indent(suites)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(suites, "unicode")}\n'


def _sites(budget: Budget, result: CheckResult) -> list[str]:
    lines = []
    for violation in budget.violations:
        lines.append(f"- {spot(violation)}: {share(violation, budget)}")
        lines.append(f"  {why(violation, result)}")
        advice = to_try(violation)
        if advice:
            lines.append(f"  Try: {advice}")
    return lines
