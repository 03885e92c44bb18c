"""A check in every format, each read by a real parser of it."""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import render_sample
from conftest import Capture
from jsonschema import Draft4Validator, FormatChecker
from junitparser import Failure, JUnitXml
from render_sample import gpu_bound
from test_render_markdown import own_links, require_harmless, tables

from nsys_sync import analyze
from nsys_sync.analysis.budgets import Budgets, check
from nsys_sync.model import Allowed, Analysis, Budget, CheckResult, Region, Violation
from nsys_sync.render.check.github import render_check_github
from nsys_sync.render.check.json_form import render_check_json
from nsys_sync.render.check.junit import render_check_junit
from nsys_sync.render.check.markdown import render_check_markdown
from nsys_sync.render.check.sarif import render_check_sarif
from nsys_sync.render.check.terminal import render_check_terminal
from nsys_sync.render.markdown_text import LARGEST_BYTES

HEAVY = "sync_heavy.schema-3.20.3"
BUDGETS = Budgets(
    0.05, 100, ("nope",), ("print",), None, (Allowed("gone", None, "was logged"), Allowed("main", None, "end"))
)


@pytest.fixture(scope="module")
def broken(capture: Capture) -> CheckResult:
    return check(analyze(capture(HEAVY)), BUDGETS, paths={"/workspace/sync_heavy.py": "src/sync_heavy.py"})


@pytest.fixture(scope="module")
def held(capture: Capture) -> CheckResult:
    return check(analyze(capture("sync_free.schema-3.20.3")), Budgets(0.05, 0))


def everything_broken(analysis: Analysis) -> CheckResult:
    """Every site breaks every kind of budget, as far as budgets of any kind can name it."""
    first = {advice.id: advice for advice in analysis.advice}
    causes = {cause.id: cause for cause in analysis.causes}
    violations = tuple(
        Violation(
            site,
            causes.get(site.cause.id),
            next((first[id] for id in site.advice if id in first), None),
            site.location.file if number % 2 else None,
            [None, 0.5, 3.0][number % 3],
        )
        for number, site in enumerate(analysis.sites)
    )
    name = analysis.selection or "x"
    budgets = (
        Budget("max-stall", None, "broken", 0.5, 0.1, name, "", violations),
        Budget("max-syncs-per-step", None, "broken", 7, 1, name, "", violations),
        Budget("sync-free", name, "broken", None, 0, name, "", violations),
        Budget("forbid", name, "broken", 5, 0, name, "", violations),
        Budget("baseline", name, "broken", 5, 0, name, "", violations),
        Budget("sync-free", name, "not known", None, 0, name, name, ()),
        Budget("sync-free", name, "held", 0, 0, name, "", ()),
    )
    entry = Allowed(name, name, name)
    allowed = check(analysis, Budgets(1, allow=(Allowed("*", None, name),))).allowed
    return CheckResult(False, budgets, allowed, (entry,) * 20, analysis)


SAMPLES: dict[str, Callable[[], Analysis]] = {
    "hostile": render_sample.hostile,
    "many sites": lambda: render_sample.many(5_000),
    "no idle figure": render_sample.refused,
    "names of marks": lambda: render_sample.long_names(
        "`|\\`*_[x](y)<script>#12 @me\n\n# h\n::error::x%0A\r]]>\x00\x0b\ufffe\ud800&"
    ),
    "long names": lambda: render_sample.long_names("%:,\n" * 5_000),
}


# ---- GitHub's workflow commands


def commands(text: str) -> list[tuple[str, dict[str, str], str]]:
    """As GitHub's runner reads them: `::command key=value,key=value::message`, one a line."""

    def unescaped(value: str, names: str = "") -> str:
        for name, mark in (
            ("%0D", "\r"),
            ("%0A", "\n"),
            *((f"%{ord(mark):02X}", mark) for mark in names),
            ("%25", "%"),
        ):
            value = value.replace(name, mark)
        return value

    found = []
    for line in text.split("\n")[:-1]:
        match = re.fullmatch(r"::([a-z-]+)(?: ([^:]*))?::(.*)", line)
        assert match, line[:200]
        properties = dict(one.split("=", 1) for one in (match[2] or "").split(",") if one)
        found.append(
            (match[1], {key: unescaped(value, ":,") for key, value in properties.items()}, unescaped(match[3]))
        )
    return found


def test_annotations_of_a_real_capture(broken: CheckResult) -> None:
    found = commands(render_check_github(broken))
    assert [command for command, *_ in found] == ["error"] * 4 + ["warning"]
    assert [(place.get("file"), place.get("line")) for _, place, _ in found] == [
        ("src/sync_heavy.py", "20"),
        ("src/sync_heavy.py", "17"),
        (None, None),
        ("src/sync_heavy.py", "44"),
        (None, None),
    ]
    assert found[0][1]["title"] == "nsys-sync max-stall"
    lines = found[0][2].split("\n")
    assert lines[0] == "src/sync_heavy.py:20 log_loss: 3.2 % of the window (stall 7.13 ms over 20 calls)"
    assert lines[1].endswith("every step; reads a scalar (.item(), float()): tensor.item()")
    assert lines[2] == "Try: Use the tensor instead of its number"
    assert lines[3] == "Budget: stall at most 5.0 % of the window: 9.7 % of the window of 222 ms"
    assert "there is no such range in this analysis" in found[2][2]
    assert "function 'gone' (was logged) matches no site" in found[4][2]


def test_nothing_held_is_annotated(held: CheckResult) -> None:
    assert render_check_github(held) == ""


@pytest.mark.parametrize("name", SAMPLES)
def test_annotations_of_any_names(name: str) -> None:
    result = everything_broken(SAMPLES[name]())
    found = commands(render_check_github(result))
    violations = [violation for budget in result.budgets for violation in budget.violations]
    assert len(found) == len(violations) + 1 + len(result.stale)
    for (command, place, _), violation in zip(found, violations, strict=False):
        assert command == "error" and {*place} <= {"file", "line", "title"}
        assert place.get("file") == violation.path


# ---- JUnit


def junit(result: CheckResult) -> tuple[JUnitXml, str]:
    text = render_check_junit(result)
    return JUnitXml.fromstring(text.encode()), text


def test_junit_of_a_real_capture(broken: CheckResult) -> None:
    suites, text = junit(broken)
    (suite,) = suites
    cases = list(suite)
    assert (suites.tests, suites.failures, suites.errors) == (suite.tests, suite.failures, suite.errors) == (4, 3, 0)
    assert [case.name for case in cases] == [
        "stall at most 5.0 % of the window",
        "at most 100 syncs in any step",
        "no sync inside NVTX range 'nope'",
        "no sync of cause 'print'",
    ]
    assert [bool(case.result) for case in cases] == [True, False, True, True]
    (failure,) = cases[0].result
    assert isinstance(failure, Failure) and failure.message == "9.7 % of the window of 222 ms"
    assert "- src/sync_heavy.py:20 log_loss: 3.2 % of the window" in failure.text
    assert "  Try: Use the tensor instead of its number" in failure.text
    tree = ElementTree.fromstring(text)
    assert "main" in tree.findtext("testsuite/system-out", "") and "gone" in tree.findtext("testsuite/system-err", "")


@pytest.mark.parametrize("name", SAMPLES)
def test_junit_of_any_names(name: str) -> None:
    result = everything_broken(SAMPLES[name]())
    suites, text = junit(result)
    assert suites.tests == len(result.budgets) and suites.failures == 6
    assert not re.search("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", text)


# ---- SARIF


@cache
def validator() -> Draft4Validator:
    packed = Path(__file__).parent / "schemas" / "sarif-2.1.0.json.xz"
    return Draft4Validator(json.loads(lzma.decompress(packed.read_bytes())), format_checker=FormatChecker())


def sarif(result: CheckResult) -> dict[str, Any]:
    """The one run, after the official schema and what GitHub asks for beyond it."""
    log = json.loads(render_check_sarif(result))
    errors = [f"{'/'.join(map(str, error.path))}: {error.message[:200]}" for error in validator().iter_errors(log)]
    assert not errors
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules)
    for found in run["results"]:
        assert rules[found["ruleIndex"]]["id"] == found["ruleId"]
        uri = found["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        assert re.fullmatch(r"[A-Za-z0-9/._~%:-]+", uri) and not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:|/", uri), uri
        assert found["partialFingerprints"] and found["message"]["text"]
    result_run: dict[str, Any] = run
    return result_run


def test_the_schema_finds_faults(broken: CheckResult) -> None:
    log = json.loads(render_check_sarif(broken))
    log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["region"]["startLine"] = 0
    assert not validator().is_valid(log)


def test_sarif_of_a_real_capture(broken: CheckResult) -> None:
    run = sarif(broken)
    rules = {rule["id"]: rule for rule in run["tool"]["driver"]["rules"]}
    assert {*rules} == {"max-stall/scalar-read", "max-stall/upload", "sync-free", "forbid/print"}
    assert rules["forbid/print"]["helpUri"].startswith("https://docs.pytorch.org/")
    first = run["results"][0]
    assert first["partialFingerprints"] == {"nsysSyncSite/v1": broken.budgets[0].violations[0].site.id}
    place = first["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "src/sync_heavy.py"}, "region": {"startLine": 20}}
    unknown = next(one for one in run["results"] if one["ruleId"] == "sync-free")
    assert unknown["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == f"{HEAVY}.sqlite"
    assert "gone" in run["invocations"][0]["toolConfigurationNotifications"][0]["message"]["text"]


def test_sarif_of_what_is_held(held: CheckResult) -> None:
    assert sarif(held)["results"] == []


@pytest.mark.parametrize("name", SAMPLES)
def test_sarif_of_any_names(name: str) -> None:
    result = everything_broken(SAMPLES[name]())
    if name == "many sites":
        result = replace(result, budgets=tuple(replace(one, violations=one.violations[:50]) for one in result.budgets))
    assert len(sarif(result)["results"]) == sum(max(1, len(one.violations)) for one in result.budgets[:6])


# ---- Markdown, terminal, JSON


@pytest.mark.parametrize("name", SAMPLES)
def test_markdown_of_any_names(name: str) -> None:
    result = everything_broken(SAMPLES[name]())
    text = render_check_markdown(result)
    assert len(text.encode()) <= LARGEST_BYTES
    found = tables(require_harmless(text, own_links(result.analysis)))
    assert found[0] == [3] * 8 and all(len({*rows}) == 1 for rows in found)


def test_markdown_of_a_real_capture(broken: CheckResult) -> None:
    text = render_check_markdown(broken)
    require_harmless(text, own_links(broken.analysis))
    assert text.startswith(
        "**nsys-sync check. Broken: of 4 budgets, 2 broken, 1 not known, 1 held.**\n\nGPU idle 75.6 %"
    )
    assert "| ❌ **broken** | stall at most 5.0 % of the window | 9.7 % of the window of 222 ms |" in text
    assert (
        "| `src/sync_heavy.py:44 print_tensor` | 16 calls, stall 202 µs | can go (likely), 2 of 20 steps; prints"
        in text
    )
    assert "<details><summary>How to: Take the output out of the loop</summary>" in text


def test_terminal(broken: CheckResult, held: CheckResult) -> None:
    text = render_check_terminal(broken, width=100, color=False)
    assert text.startswith("Broken: of 4 budgets, 2 broken, 1 not known, 1 held.\n")
    assert "\nheld  at most 100 syncs in any step: 23 syncs in 'step 0', the worst of 20 steps 'step *'\n" in text
    assert " - src/sync_heavy.py:20 log_loss: 3.2 % of the window (stall 7.13 ms over 20 calls)\n" in text
    assert "Warning: The allow-list's function 'gone' (was logged) matches no site" in text
    assert "317 of 317 sync operations located by an exact Python stack." in text
    assert render_check_terminal(held, width=100, color=False).startswith("Held: all 2 budgets.\n")


@pytest.mark.parametrize("name", SAMPLES)
def test_terminal_of_any_names(name: str) -> None:
    text = render_check_terminal(everything_broken(SAMPLES[name]()), width=60, color=False)
    assert text.replace("\n", "").isprintable() and len(text) < 200_000


def test_json(broken: CheckResult) -> None:
    form = json.loads(render_check_json(broken))
    assert (form["schema_version"], form["held"], form["window_ns"]) == ("1.0", False, broken.analysis.window_ns)
    assert [(one["kind"], one["state"]) for one in form["budgets"]] == [
        ("max-stall", "broken"),
        ("max-syncs-per-step", "held"),
        ("sync-free", "not known"),
        ("forbid", "broken"),
    ]
    violation = form["budgets"][0]["violations"][0]
    assert violation["path"] == "src/sync_heavy.py" and violation["location"]["line"] == 20
    assert (violation["cause"], violation["advice"]) == ("scalar-read", "use-tensor-itself")
    assert form["stale"] == [{"function": "gone", "file": None, "reason": "was logged"}]
    assert form["allowed"][0]["location"]["function"] == "main"


def test_ranges_whose_count_is_not_known() -> None:
    region = Region("step *", 20, 80, 76, 20, ("site0001", "site0003"))
    analysis = replace(gpu_bound(), traces=(replace(gpu_bound().traces[0], regions=(region,)),))
    result = check(analysis, Budgets(sync_free_ranges=("step *",), allow=(Allowed("clip", None, "r"),)))
    assert "no sync inside NVTX range 'step *': 1 site in 20 ranges" in render_check_terminal(
        result, width=100, color=False
    )
