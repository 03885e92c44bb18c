"""A check as SARIF 2.1.0, which GitHub's code scanning and editors read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from nsys_sync.render.actions import prose, safe_link
from nsys_sync.render.check.words import sentence, share, spot, stale_sentence, to_try, why
from nsys_sync.render.text import plain_name

if TYPE_CHECKING:
    from nsys_sync.model import Budget, CheckResult, Violation

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def render_check_sarif(result: CheckResult) -> str:
    """One rule for each budget and cause, one result for each site that breaks a budget.

    GitHub refuses results without a file. A site whose file is not at hand has the path of its trace; what has no file
    at all is said of the trace itself.
    """
    rules: dict[str, dict[str, Any]] = {}
    results = []
    for budget in result.budgets:
        if budget.state != "held" and not budget.violations:
            rules.setdefault(budget.kind, _rule(budget, None))
            place: list[dict[str, Any]] = [{"physicalLocation": _artifact(_trace(result), None)}]
            text = sentence(budget, result)
            results.append(_result(rules, budget.kind, text, place, f"{budget.kind} {budget.target or ''}".rstrip()))
        for violation in budget.violations:
            id = f"{budget.kind}/{_plain(violation.site.cause.id)}"
            rules.setdefault(id, _rule(budget, violation))
            advice = to_try(violation)
            text = f"{spot(violation)}: {share(violation, budget)}. {why(violation, result)}."
            text += f" Try: {advice}." if advice else ""
            text += f" Budget: {sentence(budget, result)}."
            results.append(_result(rules, id, text, [_location(violation, result)], violation.site.id))
    driver = {"name": "nsys-sync", "version": _plain(result.analysis.tool_version), "rules": list(rules.values())}
    notes = [{"level": "warning", "message": {"text": stale_sentence(entry)}} for entry in result.stale]
    run: dict[str, Any] = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": True, "toolConfigurationNotifications": notes}],
        "results": results,
    }
    text = json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, ensure_ascii=False, indent=1)
    return text + "\n"


def _rule(budget: Budget, violation: Violation | None) -> dict[str, Any]:
    level = {"defaultConfiguration": {"level": "error"}}
    kinds = {
        "max-stall": "GPU stall beyond the budget",
        "max-syncs-per-step": "Too many syncs in a step",
        "sync-free": "Sync inside an NVTX range that is to have none",
        "forbid": "Sync of a forbidden cause",
        "baseline": "Sync site that the baseline has not",
    }
    title = kinds[budget.kind]
    if violation is None:
        return {"id": budget.kind, "shortDescription": {"text": title}, **level}
    cause, advice = violation.cause, violation.advice
    rule: dict[str, Any] = {
        "id": f"{budget.kind}/{_plain(violation.site.cause.id)}",
        "shortDescription": {"text": f"{title}: {prose(cause.title, 120)}" if cause else title},
        "fullDescription": {"text": prose(cause.explanation) if cause else title},
        **level,
    }
    if advice:
        rule["help"] = {"text": f"{prose(advice.title, 160)}. {prose(advice.text)}"}
        link = safe_link(advice.link)
        if link:
            rule["helpUri"] = link
    return rule


def _result(
    rules: dict[str, dict[str, Any]], id: str, text: str, locations: list[dict[str, Any]], fingerprint: str
) -> dict[str, Any]:
    return {
        "ruleId": id,
        "ruleIndex": list(rules).index(id),
        "level": "error",
        "message": {"text": text},
        "locations": locations,
        "partialFingerprints": {"nsysSyncSite/v1": _plain(fingerprint)},
    }


def _location(violation: Violation, result: CheckResult) -> dict[str, Any]:
    location = violation.site.location
    if location.file is None:
        artifact = _artifact(_trace(result), None)
    else:
        artifact = _artifact(violation.path or location.file.replace("\\", "/").lstrip("/"), location.line)
    name = _plain(location.function or location.label)
    return {"physicalLocation": artifact, "logicalLocations": [{"fullyQualifiedName": name}]}


def _artifact(path: str, line: int | None) -> dict[str, Any]:
    # With `./`, the name of a first folder such as `c:` is no scheme.
    uri = quote(plain_name(path, 1000))
    artifact: dict[str, Any] = {"artifactLocation": {"uri": f"./{uri}" if ":" in uri.split("/")[0] else uri}}
    if line is not None and line > 0:
        artifact["region"] = {"startLine": line}
    return artifact


def _trace(result: CheckResult) -> str:
    return result.analysis.traces[0].name if result.analysis.traces else "trace"


def _plain(text: str) -> str:
    return plain_name(text, 200)
