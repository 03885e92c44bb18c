"""Whether the CPU needs what a site waits for, and what to try: the cause's usual answer, sharpened by the source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from nsys_sync import model
from nsys_sync.analysis.advice import CAUSES, FIRST_IF_SHOWN, FIRST_IF_UNUSED, OF_OPERATOR
from nsys_sync.analysis.causes import Finding
from nsys_sync.analysis.source import Family, SourceUse
from nsys_sync.analysis.source_rules import NEVER_USED

FAMILY: Mapping[str, Family] = {
    "scalar-read": "scalar",
    "tolist": "list",
    "truth-value": "truth",
    "to-cpu": "download",
    "legacy-type-download": "download",
    "numpy": "download",
    "checkpoint": "download",
    "print": "print",
    **dict.fromkeys(("mask-index", "mask-assign", "gpu-index", "gpu-scalar", "cpu-index", "assign-value"), "index"),
}
"""What on a source line to look for, by cause."""
IN_TRACE: Mapping[str, str] = {"python-max-min": "truth-value", "is-nonzero": "truth-value", "numpy": "to-cpu"}
"""Causes that only the source line tells from another one, and that other."""
COMPARING_BUILTINS = frozenset({"max", "min", "sorted", "all", "any"})
WRITTEN_OTHERWISE = frozenset({"bool", "print", "format", "XTensor"})
"""Calls that Python makes by itself, or names that stand for several."""
ONLY_USUALLY = frozenset({"print", "truth-value", "is-nonzero", "compare"})
"""Causes whose usual verdict the stack does not prove: text may be a key, and a truth value need not be tested."""
TRUTH = re.compile(
    r"\b(if|elif|while|assert|and|or|not|in|bool|max|min|sorted|all|any|is_nonzero|filter|sort)\b|[<>=!]=|[<>]"
)
CALLS_SHOWN: Mapping[str, str] = {
    **{
        name: rf"\b{name}\b"
        for name in ("synchronize", "step", "clip_grad_norm_", "empty_cache", "save", "barrier", "all_gather_object")
    },
    "__next__": r"\b(for|next|list|tuple|set|zip|enumerate|map|sum|min|max)\b|\*",
}
"""By the library's Python function that the user's line called: what the line must show."""


@dataclass(frozen=True)
class Verdict:
    """What is said of a site beyond its figures."""

    cause: model.Cause
    dependency: model.Dependency
    advice: tuple[str, ...]
    source: model.SourceLine | None


def explain(finding: Finding, use: SourceUse | None, basis: str | None, *, in_python: bool = True) -> Verdict:
    """`use` is what the source line says, `basis` why that file is taken for the one that ran. `in_python`: the Python
    line is known. Without it, a read deep inside a print looks like any other.
    """
    cause = _sharpened(finding.cause, use)
    entry = CAUSES[cause.id]
    kind, reason, certainty, evidence = entry.dependency, entry.reason, cause.certainty, cause.evidence
    advice = (
        (*OF_OPERATOR.get(finding.operation or "", ()), *entry.advice) if cause.id == "operator-read" else entry.advice
    )
    if kind == "true" and not in_python:
        kind, reason = "unknown", "no Python stack tells what asked for it"
    if kind == "unknown":
        certainty, evidence = "open", ()
    elif certainty == "certain" and (not in_python or cause.id in ONLY_USUALLY):
        certainty = "likely"
    if use is not None and use.dependency is not None and (kind in ("unknown", "true") or cause.id in ONLY_USUALLY):
        if use.dependency == "false" and entry.dependency != "false":
            advice = (*(FIRST_IF_UNUSED if use.reason == NEVER_USED else FIRST_IF_SHOWN), *advice)
        kind, reason, certainty, evidence = use.dependency, use.reason, use.certainty, (use.evidence,)
    return Verdict(
        cause=cause,
        dependency=model.Dependency(kind, reason, certainty, evidence),
        advice=tuple(dict.fromkeys(advice)),
        source=model.SourceLine(use.text, basis) if use is not None and basis is not None else None,
    )


def shows_call(finding: Finding, use: SourceUse, called: str | None) -> bool | None:
    """Whether the source line shows the call that the stacks name; None where that cannot be told.

    `called` is the library's Python function that the line called, None where the line itself waited.
    """
    if called is not None:
        return re.search(CALLS_SHOWN[called], use.text) is not None if called in CALLS_SHOWN else None
    if finding.cause.certainty != "certain" or finding.operation is None or finding.cause.id == "operator-read":
        return None
    if finding.cause.id == "truth-value":
        return TRUTH.search(use.text) is not None
    name = re.search(r"(\w+)\(", finding.operation)
    if name is None or name.group(1) in WRITTEN_OTHERWISE:
        return "[" in use.text if re.match(r"tensor\[", finding.operation) else None
    return re.search(rf"\b{re.escape(name.group(1))}\b", use.text) is not None


def _sharpened(cause: model.Cause, use: SourceUse | None) -> model.Cause:
    """What the trace cannot tell apart, the source line can."""
    if use is None or use.operation is None:
        return cause
    if cause.id == "truth-value" and use.through in COMPARING_BUILTINS:
        return model.Cause("python-max-min", "likely", (*cause.evidence, use.evidence))
    if cause.id == "truth-value" and use.through == "is_nonzero":
        return model.Cause("is-nonzero", "likely", (*cause.evidence, use.evidence))
    if cause.id == "to-cpu" and "numpy" in use.operation:
        return model.Cause("numpy", "likely", (*cause.evidence, use.evidence))
    return cause
