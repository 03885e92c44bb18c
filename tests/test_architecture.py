"""The shape of DESIGN.md section 3, held by reading the sources."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import nsys_sync

PACKAGE = Path(nsys_sync.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))

# Who must not import what: a folder or module of the package, and prefixes of module names.
FORBIDDEN = {
    "trace": ("nsys_sync.analysis", "nsys_sync.render", "nsys_sync.cli", "nsys_sync.pipeline", "nsys_sync.model"),
    "analysis": (
        *("nsys_sync.render", "nsys_sync.cli", "nsys_sync.pipeline", "nsys_sync.nsys"),
        *("nsys_sync.trace.read", "nsys_sync.trace.sqlite_file"),
        *("sqlite3", "adbc_driver_sqlite", "adbc_driver_manager"),
    ),
    "render": ("nsys_sync.trace", "nsys_sync.analysis", "nsys_sync.pipeline", "nsys_sync.cli", "nsys_sync.nsys"),
    "nsys": ("nsys_sync.analysis", "nsys_sync.render", "nsys_sync.cli", "nsys_sync.pipeline"),
    "live": (
        *("nsys_sync.trace", "nsys_sync.render", "nsys_sync.cli", "nsys_sync.pipeline", "nsys_sync.nsys"),
        *("nsys_sync.model", "pandas", "numpy", "torch"),
    ),
    "model.py": ("nsys_sync",),
    "errors.py": ("nsys_sync",),
    "source_files.py": ("nsys_sync",),
    "home_folders.py": ("nsys_sync",),
    "saved.py": tuple(f"nsys_sync.{part}" for part in ("trace", "analysis", "render", "pipeline", "cli", "nsys")),
    "pipeline.py": ("nsys_sync.render", "nsys_sync.cli", "sqlite3", "adbc_driver_sqlite", "adbc_driver_manager"),
}
NVIDIA_NAMES = re.compile(
    r"CUPTI_ACTIVITY_|NVTX_EVENTS|NVTX_PAYLOAD_|StringIds|CUDA_CALLCHAINS|PROFILER_OVERHEAD|ThreadNames|DIAGNOSTIC_EVENT"
    r"|TARGET_INFO_|META_DATA_(?:CAPTURE|EXPORT)|EXPORT_META_DATA|ENUM_[A-Z]+_|\bPROCESSES\b"
    r"|\b(?:globalTid|globalPid|correlationId|nameId|callchainId|deviceId|copyKind|stackDepth|domainId)\b"
)
HEAVY = ("pandas", "pyarrow", "numpy", "matplotlib", "jinja2", "adbc_driver_sqlite")


def within(part: str) -> list[Path]:
    return [path for path in SOURCES if path.relative_to(PACKAGE).parts[0] == part]


def imports(path: Path) -> Iterator[str]:
    """Full names of all that is imported, at the top, inside functions, and for type checking."""
    here = ("nsys_sync", *path.relative_to(PACKAGE).with_suffix("").parts)
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join((*here[: -node.level], node.module or "")).rstrip(".") if node.level else node.module or ""
            yield from (f"{base}.{alias.name}" for alias in node.names)


def strings(path: Path) -> Iterator[str]:
    """Every string and name in the code, documentation aside."""
    tree = ast.parse(path.read_text("utf-8"))
    prose = {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    prose |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in prose:
            yield node.value


@pytest.mark.parametrize("part", FORBIDDEN)
def test_data_goes_one_way(part: str) -> None:
    assert within(part)
    broken = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in within(part)
        for name in imports(path)
        if any(name == prefix or name.startswith(f"{prefix}.") for prefix in FORBIDDEN[part])
    ]
    assert not broken


def test_the_search_sees_imports_inside_functions_and_of_names() -> None:
    assert "nsys_sync.pipeline.analyze" in set(imports(PACKAGE / "cli" / "report.py"))
    assert "nsys_sync.trace.tables.Trace" in set(imports(PACKAGE / "analysis" / "attributed.py"))


def test_only_the_commands_end_the_process() -> None:
    ends = re.compile(r"\bsys\.exit\b|\bos\._exit\b|\btyper\.(?:Exit|Abort)\b|\bSystemExit\b|(?<![\w.])(?:exit|quit)\(")
    outside = [path for path in SOURCES if path not in within("cli") and ends.search(path.read_text("utf-8"))]
    assert not outside


def test_only_the_commands_print() -> None:
    for path in SOURCES:
        calls = [
            node.func.id
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        ]
        assert path in within("cli") or not {"print", "input"} & set(calls), path


def test_nvidias_names_live_where_exports_are_read() -> None:
    own = {*within("trace"), *within("nsys")}
    elsewhere = [
        f"{path.relative_to(PACKAGE)}: {text!r}"
        for path in SOURCES
        if path not in own
        for text in strings(path)
        if NVIDIA_NAMES.search(text)
    ]
    assert not elsewhere
    assert any(NVIDIA_NAMES.search(text) for path in own for text in strings(path))


def test_no_module_of_leftovers() -> None:
    assert not [path for path in SOURCES if path.stem in {"utils", "util", "helpers", "misc", "common"}]


def loaded_by(code: str) -> set[str]:
    shown = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(shown.stdout.split())


def test_starting_the_command_imports_nothing_heavy() -> None:
    assert not loaded_by("import nsys_sync.cli.main") & set(HEAVY)
    assert not loaded_by("import nsys_sync") & set(HEAVY)
    for command in ("report", "diff"):
        code = f"import nsys_sync.cli.main as m\ntry:\n    m.app(['{command}', '--help'])\nexcept SystemExit: pass"
        assert not loaded_by(code) & set(HEAVY)


def test_a_test_run_with_the_plugin_imports_nothing_heavy() -> None:
    assert not loaded_by("import nsys_sync.live.pytest_plugin") & {*HEAVY, "torch", "rich", "typer"}


def test_an_analysis_needs_no_renderer() -> None:
    assert not loaded_by("from nsys_sync import analyze") & {"matplotlib", "jinja2", "rich", "typer"}
