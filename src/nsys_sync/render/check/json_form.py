"""A check as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nsys_sync.model import AllowedSite, CheckResult, Violation

SCHEMA_VERSION = "1.0"
"""The first number changes when a reader of the old form would break."""


def render_check_json(result: CheckResult) -> str:
    """Strict JSON, one object, ending with a newline: the fields of `CheckResult`, sites by id and place.

    `site` is an id of the JSON report of the same trace, which has all that is known of it.
    """
    analysis = result.analysis
    form = {
        "schema_version": SCHEMA_VERSION,
        "tool_version": analysis.tool_version,
        "held": result.held,
        "traces": [trace.name for trace in analysis.traces],
        "selection": analysis.selection,
        "window_ns": analysis.window_ns,
        "budgets": [
            {
                "kind": budget.kind,
                "target": budget.target,
                "state": budget.state,
                "measured": budget.measured,
                "limit": budget.limit,
                "of": budget.of,
                "reason": budget.reason,
                "violations": [_violation(violation) for violation in budget.violations],
            }
            for budget in result.budgets
        ],
        "allowed": [_allowed(one) for one in result.allowed],
        "stale": [asdict(entry) for entry in result.stale],
    }
    text = json.dumps(form, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace").decode() + "\n"


def _allowed(one: AllowedSite) -> dict[str, Any]:
    return {"site": one.site.id, "location": asdict(one.site.location), "entry": asdict(one.entry)}


def _violation(violation: Violation) -> dict[str, Any]:
    site = violation.site
    return {
        "site": site.id,
        "location": asdict(site.location),
        "path": violation.path,
        "amount": violation.amount,
        "calls": site.calls,
        "stall_ns": site.stall.total_ns if site.stall else None,
        "blocked_ns": site.blocked.total_ns,
        "cause": site.cause.id,
        "dependency": site.dependency.kind,
        "advice": violation.advice.id if violation.advice else None,
    }
