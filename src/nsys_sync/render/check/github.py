"""A check as GitHub's workflow commands: printed by a step, they annotate the lines of the pull request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsys_sync.render.check.words import sentence, share, spot, stale_sentence, to_try, why

if TYPE_CHECKING:
    from nsys_sync.model import CheckResult

_DATA = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_ESCAPED = str.maketrans(_DATA)
_ESCAPED_PROPERTY = str.maketrans({**_DATA, ":": "%3A", ",": "%2C"})


def render_check_github(result: CheckResult) -> str:
    """An `::error` for every site that breaks a budget, a `::warning` for every stale entry of the allow-list.

    GitHub shows the first 10 errors and 10 warnings of a step, and 50 annotations of a job; the worst sites of each
    budget come first. A site whose file is not at hand is annotated without a place.
    """
    lines = []
    for budget in result.budgets:
        title = f"nsys-sync {budget.kind}"
        if budget.state != "held" and not budget.violations:
            lines.append(_command("error", sentence(budget, result), title=title))
        for violation in budget.violations:
            message = [f"{spot(violation)}: {share(violation, budget)}", why(violation, result)]
            advice = to_try(violation)
            message += [f"Try: {advice}"] if advice else []
            message.append(f"Budget: {sentence(budget, result)}")
            place = {}
            if violation.path is not None:
                place["file"] = violation.path
                if violation.site.location.line is not None:
                    place["line"] = str(violation.site.location.line)
            lines.append(_command("error", "\n".join(message), **place, title=title))
    lines += [_command("warning", stale_sentence(entry), title="nsys-sync allow-list") for entry in result.stale]
    return "".join(f"{line}\n" for line in lines)


def _command(command: str, message: str, **properties: str) -> str:
    values = ",".join(f"{key}={value.translate(_ESCAPED_PROPERTY)}" for key, value in properties.items())
    return f"::{command} {values}::{message.translate(_ESCAPED)}"
