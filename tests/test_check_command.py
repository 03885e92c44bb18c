"""`nsys-sync check` in a process of its own: exit status, every usage error, every format, nothing half-written."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import Capture
from test_cli import COMMAND, run, state

from nsys_sync import analyze
from nsys_sync.cli.config import read_config
from nsys_sync.cli.outputs import plan
from nsys_sync.errors import ConfigError, TraceError, UsageError
from nsys_sync.saved import read_analysis

CHECK = (COMMAND, "check")
HEAVY, FREE = "sync_heavy.schema-3.20.3", "sync_free.schema-3.20.3"


@pytest.fixture
def folder(tmp_path: Path, capture: Capture) -> Path:
    """A repository without a table of its own, with both programs' traces and the source of one."""
    place = tmp_path / "repository"
    (place / "workspace").mkdir(parents=True)
    (place / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    (place / "workspace" / "sync_heavy.py").write_text("# here\n")
    (place / "heavy.sqlite").symlink_to(capture(HEAVY))
    (place / "free.sqlite").symlink_to(capture(FREE))
    return place


def checked(*arguments: str | Path, cwd: Path, status: int) -> str:
    """Runs the check, which must end so without a word on standard error but what it wrote. Returns what it printed."""
    done = run(*arguments, cwd=cwd, command=CHECK)
    assert done.returncode == status, done.stderr.decode()
    said = done.stderr.decode()
    assert all(line.startswith("Wrote ") for line in said.splitlines()), said
    return done.stdout.decode()


def refused(*arguments: str | Path, cwd: Path, says: Sequence[str], status: int = 2) -> None:
    before = state(cwd)
    done = run(*arguments, cwd=cwd, command=CHECK)
    said = done.stderr.decode()
    assert done.returncode == status and done.stdout == b"", (said, done.stdout)
    assert said.startswith("nsys-sync: error: ") and said.count("\n") == 1, said
    for part in says:
        assert part in said, said
    assert state(cwd) == before


def configure(folder: Path, table: str) -> None:
    (folder / "pyproject.toml").write_text(f"[tool.nsys-sync]\n{table}\n")


# ---- held, broken, allowed, baseline


def test_held_and_broken(folder: Path) -> None:
    budgets = ["--max-stall", "5%", "--max-syncs-per-step", "0", "--sync-free", "step *", "--forbid", "print"]
    before = state(folder)
    assert checked("free.sqlite", *budgets, cwd=folder, status=0).startswith("Held: all 4 budgets.\n")
    shown = checked("heavy.sqlite", *budgets, cwd=folder, status=1)
    assert shown.startswith("Broken: of 4 budgets, 4 broken.\n")
    assert "workspace/sync_heavy.py:20 log_loss" in shown and "→ Use the tensor instead of its number" in shown
    assert state(folder) == before


def test_not_known_is_not_held(folder: Path) -> None:
    shown = checked("free.sqlite", "--sync-free", "train_step", cwd=folder, status=1)
    assert shown.startswith("Not known: of 1 budget, 1 not known.")
    assert "there is no such range in this analysis, which has step *" in " ".join(shown.split())


def test_allowed_and_stale(folder: Path) -> None:
    budgets = ["--forbid", "print", "--allow", "print_tensor=seen by a person", "--allow", "*/gone.py=was slow"]
    shown = checked("heavy.sqlite", *budgets, cwd=folder, status=0)
    assert "print_tensor /workspace/sync_heavy.py:44: seen by a person" in shown
    assert "Warning: The allow-list's file '*/gone.py' (was slow) matches no site" in shown


def test_baseline_and_saved_analyses(folder: Path) -> None:
    for name in ("heavy", "free"):
        assert run(f"{name}.sqlite", "-f", "json", "-o", f"{name}.json", cwd=folder).returncode == 0
    checked("heavy.sqlite", "--baseline", "heavy.json", cwd=folder, status=0)
    checked("heavy.json", "--baseline", "heavy.json", "--max-syncs-per-step", "23", cwd=folder, status=0)
    checked("free.sqlite", "--baseline", "free.json", cwd=folder, status=0)
    shown = checked("heavy.json", "--baseline", "free.json", cwd=folder, status=1)
    assert "no site that is not in free.json: 15 new of 15 sites" in shown
    refused(
        "heavy.json", "--max-stall", "5%", "--nvtx", "step *", cwd=folder, says=["cannot be narrowed to NVTX ranges"]
    )
    refused("heavy.json", "free.json", "--max-stall", "5%", cwd=folder, says=["checked alone"])
    refused("heavy.sqlite", "--baseline", "none.json", cwd=folder, says=["none.json"], status=1)
    refused("heavy.sqlite", "--baseline", "heavy.sqlite", cwd=folder, says=["heavy.sqlite"], status=1)
    refused("free.sqlite", "--baseline", "free.json", "-o", "free.json", cwd=folder, says=["would overwrite"])


def test_a_saved_report_is_no_trace(folder: Path) -> None:
    assert run("free.sqlite", "-f", "json", "-o", "free.json", cwd=folder).returncode == 0
    done = run("free.json", cwd=folder)
    assert done.returncode == 2 and b"free.json: is a saved report, and no trace. Hold it to budgets" in done.stderr


def test_steps_as_chosen(folder: Path) -> None:
    """Steps 0 and 10 print, which the first of the steps left is not."""
    chosen = ["--nvtx", "step *", "--skip-first", "11"]
    checked("heavy.sqlite", *chosen, "--max-syncs-per-step", "15", cwd=folder, status=0)
    checked("heavy.sqlite", *chosen[:2], "--max-syncs-per-step", "15", cwd=folder, status=1)


# ---- the table in pyproject.toml

TABLE = """
max-stall = "50%"
max-syncs-per-step = 23
sync-free = ["none such"]
forbid = ["mask-index"]
nvtx = "step *"
skip-first = 0
allow = [{ function = "select_*", file = "sync_heavy.py", reason = "once" }]
"""


def test_the_table_is_found_from_below_and_the_command_line_wins(folder: Path) -> None:
    configure(folder, TABLE)
    shown = checked("../heavy.sqlite", cwd=folder / "workspace", status=1)
    assert shown.startswith("Not known: of 4 budgets, 1 not known, 3 held.")
    assert "Selection: NVTX ranges step *" in shown and "select_by_mask" in shown
    shown = checked("heavy.sqlite", "--sync-free", "step *", "--max-stall", "1%", cwd=folder, status=1)
    assert shown.startswith("Broken: of 4 budgets, 2 broken, 2 held.") and "none such" not in shown
    checked("heavy.sqlite", "--sync-free", "step *", "--allow", "*=all of it", cwd=folder, status=0)


def test_the_tables_of_the_readme(folder: Path) -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text("utf-8")
    (table,) = re.findall(r"```toml\n(.*?)```", readme, re.DOTALL)
    (folder / "pyproject.toml").write_text(table)
    baseline = ["--nvtx", "step *", "--skip-first", "3", "-o", "sync-baseline.json"]
    assert run("heavy.sqlite", *baseline, cwd=folder).returncode == 0
    shown = checked("heavy.sqlite", cwd=folder, status=1)
    assert shown.startswith("Broken: of 7 budgets, 5 broken, 1 not known, 1 held.")
    (command,) = re.findall(r"run: nsys-sync check run.nsys-rep (.*)", readme)
    checked("heavy.sqlite", *command.split(), cwd=folder, status=1)
    assert {path.name for path in (folder / "syncs").iterdir()} == {"heavy.check.md", "heavy.check.sarif"}


def test_the_baseline_is_beside_its_table(folder: Path) -> None:
    assert run("heavy.sqlite", "-f", "json", "-o", "base.json", cwd=folder).returncode == 0
    configure(folder, 'baseline = "base.json"')
    checked("../heavy.sqlite", cwd=folder / "workspace", status=0)
    refused("heavy.sqlite", "-f", "json", "-o", "base.json", cwd=folder, says=["would overwrite"])


def test_another_file(folder: Path) -> None:
    configure(folder, TABLE)
    (folder / "ci.toml").write_text("[tool.nsys-sync]\nmax-stall = '99%'\n")
    checked("heavy.sqlite", "--config", "ci.toml", cwd=folder, status=0)
    (folder / "empty.toml").write_text("")
    refused("heavy.sqlite", "--config", "empty.toml", cwd=folder, says=["empty.toml", "no table [tool.nsys-sync]"])
    refused("heavy.sqlite", "--config", "none.toml", cwd=folder, says=["none.toml: cannot be read"], status=1)


def test_a_file_without_an_end_is_refused_at_once(folder: Path) -> None:
    os.mkfifo(folder / "fifo")
    os.mkfifo(folder / "fifo.json")
    budget = ["--max-stall", "99%"]
    for place in ("fifo", "/dev/zero", "."):
        refused("free.sqlite", "--config", place, cwd=folder, says=[f"{place}: cannot be read"], status=1)
        refused("free.sqlite", "--baseline", place, cwd=folder, says=[f"{place}: cannot be read"], status=1)
    refused("fifo.json", *budget, cwd=folder, says=["fifo.json: cannot be read (a device or a pipe"], status=1)
    with (folder / "large.toml").open("wb") as file:
        file.truncate(16 * 1024 * 1024 + 1)
    refused("free.sqlite", "--config", "large.toml", cwd=folder, says=["is larger than 16 MiB"], status=1)


def test_a_name_that_no_file_can_have(folder: Path) -> None:
    configure(folder, r'baseline = "a\u0000b"')
    refused("free.sqlite", cwd=folder, says=["no file can have this name"], status=1)
    with pytest.raises(ConfigError, match="no file can have"):
        read_config(Path("a\0b"), folder)
    with pytest.raises(TraceError, match="no file can have"):
        read_analysis("a\0b")
    with pytest.raises(TraceError, match="no such file"):
        analyze("a\0b")
    with pytest.raises(UsageError, match="NUL"):
        plan([], "a\0b.json", "x", [])


def test_marks_and_names_that_editors_leave(folder: Path) -> None:
    table = "[tool.nsys-sync]\nmax-stall = '99%'\n"
    (folder / "pyproject.toml").write_bytes(b"\xef\xbb\xbf" + table.encode())
    checked("heavy.sqlite", cwd=folder, status=0)
    (folder / "pyproject.toml").write_bytes(table.encode("utf-16"))
    refused("heavy.sqlite", cwd=folder, says=["it is in UTF-16", "Save it in UTF-8"])
    (folder / "pyproject.toml").write_text(table.replace("-sync", "_sync"))
    refused("heavy.sqlite", cwd=folder, says=["[tool.nsys_sync]", "[tool.nsys-sync], with a hyphen"])


BAD_TABLES = {
    "max-stal = '5%'": ["max-stal: is no known key", "Did you mean max-stall?"],
    "zzz = 1": ["zzz: is no known key", "Known are: max-stall"],
    "max-stall = 5": ["max-stall: '5' is no share", "5%"],
    "max-stall = '101%'": ["max-stall"],
    "max-syncs-per-step = '3'": ["max-syncs-per-step: must be a whole number"],
    "max-syncs-per-step = true": ["max-syncs-per-step: must be a whole number"],
    "max-syncs-per-step = -1": ["max-syncs-per-step: must be a whole number"],
    "sync-free = 'step *'": ["sync-free: must be a list", '["step *"]'],
    "sync-free = [1]": ["sync-free: must be text"],
    "forbid = ['mask-indx']": ["there is no cause 'mask-indx'", "Did you mean mask-index"],
    "baseline = ''": ["baseline: must be text"],
    "skip-first = 1.5": ["skip-first: must be a whole number"],
    "allow = ['f']": ["allow: must be a list of tables"],
    "allow = [{function = 'f'}]": ["allow, entry 1: has no reason"],
    "allow = [{function = 'f', reason = ' '}]": ["allow, entry 1, reason: must be text"],
    "allow = [{reason = 'r'}]": ["neither a function nor a file"],
    "allow = [{line = 3, reason = 'r'}]": ["allow, entry 1, line: is no known key"],
    "max-stall = ": ["is no TOML file"],
    "max-stall = '5%'\nskip-first = 3": ["--skip-first needs --nvtx"],
}


@pytest.mark.parametrize("table", BAD_TABLES)
def test_wrong_tables(table: str, folder: Path) -> None:
    configure(folder, table)
    named = [] if "skip-first = 3" in table else ["pyproject.toml"]
    refused("heavy.sqlite", cwd=folder, says=[*named, *BAD_TABLES[table]])


def test_a_table_that_is_none(folder: Path) -> None:
    (folder / "pyproject.toml").write_text("tool = {nsys-sync = 3}\n")
    refused("heavy.sqlite", cwd=folder, says=["must be a table"])
    (folder / "pyproject.toml").write_bytes(b"\xff\xfe")
    refused("heavy.sqlite", cwd=folder, says=["is no TOML file"])


# ---- usage

BAD_USAGE: dict[str, tuple[list[str], list[str]]] = {
    "no budget": ([], ["no budget given", "--max-stall 5%"]),
    "only an allow-list": (["--allow", "f=r"], ["no budget given"]),
    "share without a sign": (["--max-stall", "5"], ["--max-stall", "5%"]),
    "share of more than all": (["--max-stall", "101%"], ["--max-stall"]),
    "negative share": (["--max-stall", "-1%"], ["--max-stall"]),
    "negative number": (["--max-syncs-per-step", "-1"], ["--max-syncs-per-step"]),
    "unknown cause": (["--forbid", "prnt"], ["there is no cause 'prnt'", "Did you mean print"]),
    "allowed without a reason": (["--max-stall", "5%", "--allow", "f"], ["--allow", "has no reason"]),
    "allowed for nothing": (["--max-stall", "5%", "--allow", "=r"], ["--allow", "has no pattern"]),
    "unnamed range": (["--sync-free", ""], ["sync-free"]),
    "no such format": (["--max-stall", "5%", "-f", "html"], ["html"]),
    "unknown ending": (["--max-stall", "5%", "-o", "out.html"], [".sarif", ".xml", ".md"]),
    "two formats, one file": (["--max-stall", "5%", "-f", "sarif", "-f", "junit", "-o", "x"], ["2 formats"]),
    "two formats for the screen, one file": (
        ["--max-stall", "5%", "-f", "github", "-f", "terminal", "-o", "x"],
        ["2 f"],
    ),
    "overwrites the trace": (["--max-stall", "5%", "-f", "json", "-o", "heavy.sqlite"], ["would overwrite"]),
    "skip without ranges": (["--max-stall", "5%", "--skip-first", "2"], ["--skip-first needs --nvtx"]),
    "no such folder": (["--max-stall", "5%", "--source-root", "none"], ["--source-root"]),
}


@pytest.mark.parametrize("case", BAD_USAGE)
def test_wrong_usage(case: str, folder: Path) -> None:
    options, says = BAD_USAGE[case]
    refused("heavy.sqlite", *options, cwd=folder, says=says)


def test_no_trace(folder: Path) -> None:
    refused("none.sqlite", "--max-stall", "5%", cwd=folder, says=["none.sqlite: no such file"], status=1)


# ---- where it goes


def test_all_formats_into_a_folder(folder: Path) -> None:
    formats = [option for one in ("terminal", "github", "markdown", "json", "junit", "sarif") for option in ("-f", one)]
    shown = checked("heavy.sqlite", "--forbid", "print", *formats, "-o", "out/", cwd=folder, status=1)
    assert {path.name for path in (folder / "out").iterdir()} == {
        f"heavy.check.{ending}" for ending in ("md", "json", "xml", "sarif")
    }
    assert shown.startswith("Broken: ") and "\n::error file=workspace/sync_heavy.py,line=44,title=" in shown
    assert json.loads((folder / "out" / "heavy.check.sarif").read_bytes())["version"] == "2.1.0"
    assert json.loads((folder / "out" / "heavy.check.json").read_bytes())["held"] is False


def test_two_formats_in_one_folder_are_two_files(folder: Path) -> None:
    checked("heavy.sqlite", "--forbid", "print", "-f", "terminal", "-f", "github", "-o", "out/", cwd=folder, status=1)
    written = {path.name: path.read_text()[:8] for path in (folder / "out").iterdir()}
    assert written == {"heavy.check.txt": "Broken: ", "heavy.check.github.txt": "::error "}
    (folder / "out" / "heavy.check.json").touch()
    (folder / "out" / "heavy.check.md").symlink_to("heavy.check.json")
    options = ["--forbid", "print", "-f", "markdown", "-f", "json", "-o", "out/"]
    refused("heavy.sqlite", *options, cwd=folder, says=["markdown and json would both be"])


def test_the_ending_chooses_the_format(folder: Path) -> None:
    shown = checked("heavy.sqlite", "--forbid", "print", "-o", "x.sarif", cwd=folder, status=1)
    assert shown.startswith("Broken: ") and (folder / "x.sarif").read_bytes().startswith(b'{\n "$schema"')
    summary = checked("heavy.sqlite", "--forbid", "print", "-f", "markdown", "-o", "-", cwd=folder, status=1)
    assert summary.startswith("**nsys-sync check.")


def test_a_file_is_annotated_only_where_it_is_in_the_repository(folder: Path) -> None:
    options = ["--forbid", "print", "-f", "github"]
    assert "file=sync_heavy.py,line=44" in checked("../heavy.sqlite", *options, cwd=folder / "workspace", status=1)
    rooted = checked("heavy.sqlite", *options, "--source-root", "workspace", cwd=folder, status=1)
    assert "file=workspace/sync_heavy.py,line=44" in rooted
    (folder / "workspace" / "sync_heavy.py").unlink()
    assert checked("heavy.sqlite", *options, cwd=folder, status=1).startswith(
        "::error title=nsys-sync forbid::print_tensor"
    )


def test_a_report_that_cannot_be_written_is_no_pass(folder: Path) -> None:
    refused("free.sqlite", "--max-stall", "5%", "-o", "no/where.json", cwd=folder, says=["cannot be written"], status=1)


def test_a_reader_that_has_enough_does_not_make_it_pass(folder: Path) -> None:
    for trace, status in (("heavy", "1"), ("free", "0")):
        line = f'"$0" check {trace}.sqlite --max-stall 5% | (exec 0<&-; exit); echo "${{PIPESTATUS[0]}}"'
        done = subprocess.run(["bash", "-c", line, COMMAND], cwd=folder, capture_output=True, timeout=60)
        assert done.stderr == b"" and done.stdout.decode().strip() == status


def test_names_in_the_table_cannot_steer_the_terminal(folder: Path) -> None:
    configure(folder, 'sync-free = ["\\u001b[31m"]')
    assert "\x1b" not in checked("heavy.sqlite", cwd=folder, status=1)


def test_help(tmp_path: Path) -> None:
    done = run("--help", cwd=tmp_path, env={"COLUMNS": "200"}, command=CHECK)
    assert done.returncode == 0
    assert done.stdout.count(b"[tool.nsys-sync]") == 2
    for option in ("--max-stall", "--sync-free", "--forbid", "--baseline", "--allow", "--config"):
        assert option.encode() in done.stdout
    assert not list(tmp_path.iterdir())
