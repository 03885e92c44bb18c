"""The texts of causes and advice: complete, of one style, and code that parses. Whether the advice holds is checked on
a GPU by `scripts/check_advice_on_gpu.py`, whose own lists are checked here."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

import pytest

from nsys_sync import model
from nsys_sync.analysis.advice import ADVICE, CAUSES, FIRST_IF_SHOWN, FIRST_IF_UNUSED, OF_OPERATOR, CauseEntry

CAUSE_IDS = [
    "scalar-read",
    "tolist",
    "truth-value",
    "is-nonzero",
    "python-max-min",
    "print",
    "to-cpu",
    "numpy",
    "checkpoint",
    "upload",
    "module-to",
    "construct",
    "legacy-constructor",
    "legacy-type",
    "legacy-type-download",
    "mask-index",
    "mask-assign",
    "nonzero",
    "masked-select",
    "unique",
    "repeat-interleave",
    "gpu-scalar",
    "gpu-index",
    "cpu-index",
    "assign-value",
    "compare",
    "operator-read",
    "operator-upload",
    "linalg-check",
    "clip-grad",
    "grad-scaler",
    "device-synchronize",
    "stream-synchronize",
    "event-synchronize",
    "memcpy",
    "memset",
    "free",
    "empty-cache",
    "allocator-retry",
    "pinned-allocation",
    "distributed",
    "data-loader",
    "cupy-read",
    "cupy-truth",
    "cupy-nonzero",
    "cupy-print",
    "numba",
    "triton-benchmark",
    "xla",
    "unknown",
]
DEPENDENCIES = {
    "false": """python-max-min print upload module-to construct legacy-constructor legacy-type mask-assign
        gpu-scalar cpu-index assign-value linalg-check memset free empty-cache allocator-retry pinned-allocation
        data-loader cupy-print""",
    "true": """truth-value is-nonzero checkpoint mask-index nonzero masked-select unique repeat-interleave gpu-index
        compare operator-read clip-grad grad-scaler cupy-truth cupy-nonzero""",
    "explicit": "device-synchronize stream-synchronize event-synchronize triton-benchmark",
    "unknown": """scalar-read tolist to-cpu legacy-type-download operator-upload numpy memcpy distributed cupy-read
        numba xla unknown""",
}
DYNAMIC = {
    "mask-index",
    "mask-assign",
    "nonzero",
    "masked-select",
    "unique",
    "repeat-interleave",
    "gpu-index",
    "cupy-nonzero",
}
HOSTS = {"docs.pytorch.org", "docs.cupy.dev", "nvidia.github.io", "triton-lang.org", "docs.jax.dev"}
CAUSE_TITLE, ADVICE_TITLE, REASON = 40, 50, 60
ADVICE_PER_CAUSE = 4
SNIPPET_LINES, SNIPPET_WIDTH = 8, 90


def script() -> ModuleType:
    path = Path(__file__).parents[1] / "scripts" / "check_advice_on_gpu.py"
    spec = importlib.util.spec_from_file_location("check_advice_on_gpu", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_cause_is_there_and_no_other() -> None:
    assert set(CAUSES) == set(CAUSE_IDS)
    assert list(CAUSES)[-1] == "unknown"
    assert all(id == cause.text.id for id, cause in CAUSES.items())
    assert all(id == advice.id for id, advice in ADVICE.items())


def test_dependencies_and_dynamic_shapes() -> None:
    expected = {id: kind for kind, ids in DEPENDENCIES.items() for id in ids.split()}
    assert {id: cause.dependency for id, cause in CAUSES.items()} == expected
    assert {id for id, cause in CAUSES.items() if cause.text.dynamic_shape} == DYNAMIC


def test_all_advice_exists_and_is_used() -> None:
    used = {id for cause in CAUSES.values() for id in cause.advice} | {*FIRST_IF_UNUSED, *FIRST_IF_SHOWN}
    used |= {id for helps in OF_OPERATOR.values() for id in helps}
    assert used == set(ADVICE)


@pytest.mark.parametrize("cause", CAUSES.values(), ids=list(CAUSES))
def test_cause(cause: CauseEntry) -> None:
    assert 0 < len(cause.text.title) <= CAUSE_TITLE
    assert not cause.text.title.endswith(".")
    assert_prose(cause.text.explanation)
    assert 0 < len(cause.reason) <= REASON and not cause.reason.endswith(".")
    assert 1 <= len(cause.advice) <= ADVICE_PER_CAUSE
    assert len(set(cause.advice)) == len(cause.advice)


@pytest.mark.parametrize("advice", ADVICE.values(), ids=list(ADVICE))
def test_advice(advice: model.Advice) -> None:
    # NVTX ranges carry the id, and nsys-sync shows digits in their names as `*`.
    assert not any(character.isdigit() for character in advice.id)
    assert 0 < len(advice.title) <= ADVICE_TITLE and not advice.title.endswith(".")
    assert_prose(advice.text)
    if advice.beware is not None:
        assert_prose(advice.beware)
    assert advice.before != advice.after
    for code in (advice.before, advice.after):
        ast.parse(code)
        lines = code.splitlines()
        assert 1 <= len(lines) <= SNIPPET_LINES
        assert code == code.strip() and "\t" not in code
        assert all(len(line) <= SNIPPET_WIDTH for line in lines)
    link = urlsplit(advice.link)
    assert link.scheme == "https" and link.hostname in HOSTS and link.path.endswith(".html")


def assert_prose(text: str) -> None:
    assert text.endswith((".", ".)")) and text == text.strip()
    assert "\t" not in text and "\n" not in text and "  " not in text


def test_the_script_lists_only_advice_that_exists() -> None:
    checks = script()
    lists = (checks.SYNCS_LEFT, checks.NOT_FEWER, checks.UNSEEN, checks.NOT_IN_TRACE, checks.TOLERANCES)
    for ids in (*lists, checks.READ_LATER):
        assert set(ids) <= set(ADVICE)


def test_before_and_after_assign_a_name_in_common() -> None:
    checks = script()
    for advice in ADVICE.values():
        before, after = (checks.used_and_assigned(code)[1] for code in (advice.before, advice.after))
        assert before & after, advice.id


def test_the_script_needs_no_torch_to_be_imported() -> None:
    script()
    assert "torch" not in sys.modules
