"""Names that do harm where they are not escaped, and traces of great size: from the SQLite file to every output."""

from __future__ import annotations

import csv
import io
import json
import re
import sqlite3
import warnings
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from test_render_check import commands
from test_render_html import browser  # noqa: F401 (the fixture)
from test_render_markdown import own_links, require_harmless
from trace_builder import TraceBuilder

from nsys_sync import analyze
from nsys_sync.analysis.budgets import Budgets, check
from nsys_sync.analysis.comparison import compare
from nsys_sync.analysis.locate import innermost_range
from nsys_sync.analysis.phases import family
from nsys_sync.analysis.user_code import LONGEST_NAME, cut, shown
from nsys_sync.errors import TraceError
from nsys_sync.home_folders import without_home_folders
from nsys_sync.model import Allowed, Analysis
from nsys_sync.render.check.github import render_check_github
from nsys_sync.render.check.json_form import render_check_json
from nsys_sync.render.check.junit import render_check_junit
from nsys_sync.render.check.markdown import render_check_markdown
from nsys_sync.render.check.sarif import render_check_sarif
from nsys_sync.render.check.terminal import render_check_terminal
from nsys_sync.render.diff_html import render_diff_html
from nsys_sync.render.diff_markdown import render_diff_markdown
from nsys_sync.render.diff_terminal import render_diff_terminal
from nsys_sync.render.html import render_html
from nsys_sync.render.json_report import render_json
from nsys_sync.render.markdown import render_markdown
from nsys_sync.render.tables import sites_table, to_csv_bytes, to_parquet_bytes
from nsys_sync.render.terminal import render_terminal
from nsys_sync.saved import read_analysis
from nsys_sync.trace.api_names import base_name

if TYPE_CHECKING:
    from playwright.sync_api import Browser

KIND = "9 hostile names and size"
MS = 1_000_000
SURROGATE = "@SURROGATE@"
"""Stands for the bytes of half a surrogate pair, which Python's own SQLite module cannot write."""

NAMES = {
    "NUL": "a\0b",
    "control codes": "".join(map(chr, range(1, 32))) + "\x7f\x80\x85\x9b31m",
    "terminal codes": "\x1b[31m\x1b]0;owned\x07\x1b]8;;http://evil\x1b\\x\x1b[2J\x1b[999C",
    "right-to-left marks": "a\u202egnp.exe\u2066\u2069\u200f\u061c",
    "characters without width": "a\u200b\u200c\u200d\u2060\ufeff\u00ad b",
    "hundreds of combining marks": "e" + "\u0301" * 200 + "Z\u0337\u0336" * 50,
    "halves of surrogate pairs": f"a{SURROGATE}b",
    "Markdown": "`|\\`*_[x](http://evil)<script>#12 @me ~~~ \n\n# h\n- x\n![i](http://evil/i.png) www.evil.com GH-1",
    "a spreadsheet's formula after =": "=cmd|' /C calc'!A0",
    "a spreadsheet's formula after +": "+1+1",
    "a spreadsheet's formula after -": "-2+3",
    "a spreadsheet's formula after @": "@SUM(A1)",
    "a spreadsheet's formula after a tab": "\t=1",
    "a spreadsheet's formula after a carriage return": "\r=1",
    "quotes and line breaks for a spreadsheet": '",=1,"\n=2',
    "HTML with scripts, and a template's braces": (
        "</script><script>alert(1)</script><img src=http://evil/x onerror=alert(1)>\"'&amp;&lt;{{7*7}}{% raw %}"
    ),
    "ends of SVG, CSS and XML": "</svg></title><style>@import url(http://evil)</style>]]>--><!--",
    "mathematics for matplotlib, and characters that no font has": (
        "$x_{\\frac$ \\alpha ^_ \U0001f600 \u4e2d\u6587 \U000e0001 \uffff \ufffe"
    ),
    "commands for GitHub's workflows": "::error file=a,line=1::x%0A\n::set-output name=a::b\n##[error]z",
    "a path of 400 folders": "/".join(["very_long_folder_name"] * 400),
    "one word of 1 MB": "x" * 1_000_000,
    "1 MB of words and marks": "word <b>& " * 100_000,
    "1 MB of home folders": "/home/me" * 125_000,
    "1 MB of marks that reorder text": "\u202e\x1b" * 500_000,
    "patterns of file names": "[!a-*?]{a,b}**",
    "regular expressions": "(a+)+$[\\",
    "nothing": "",
    "blanks": "  \t ",
    "400 digits": "12345678901234567890" * 20,
}


def written(name: str, path: Path) -> Path:
    """A trace with `name` in the name of everything that has one. Each of its 5 steps has 6 sync operations: 3 on
    lines of Python, and 1 each that a native stack, an NVTX range and the thread alone locate.
    """
    b = TraceBuilder()
    b.gpu(0, f"NVIDIA {name}")
    p = b.process(4242, name)
    t = p.thread(4242, name)
    b.row("META_DATA_EXPORT", name="EXPORT_HOST", value=f"host {name}")
    b.row("META_DATA_EXPORT", name="EXPORT_USER", value=f"user {name}")
    b.row("META_DATA_EXPORT", name="EXPORT_PRODUCT_VERSION", value=f"2025.3 {name}")
    b.row("META_DATA_CAPTURE", name=f"PROCESS_0:{name}", value=name)
    b.row("META_DATA_CAPTURE", name="PROCESS_0:USER_NAME", value=f"me {name}")
    b.row("META_DATA_CAPTURE", name="PROCESS_0:PYTHON_BACKTRACE_SAMPLING_OPTIONS:SAMPLING_RATE", value="1000")
    b.diagnostic(name)
    b.diagnostic(f"{name} again", severity=3)
    library, file = f"/x/site-packages/{name}/lib.py", f"/home/me/{name}/{name}.py"
    native = [
        ("cudaStreamSynchronize", "/usr/lib/libcudart.so"),
        (f"{name}::item()", f"/lib/{name}.so"),
        ("_PyEval_EvalFrameDefault", "python"),
    ]
    for n in range(5):
        o = n * 20 * MS
        t.nvtx(f"{name} {n}", o, o + 19 * MS, registered=n % 2 == 1)
        t.nvtx(f"inner {name}", o + MS, o + 18 * MS, domain=f"domain {name}")
        t.nvtx(f"process {name}", o + MS, o + 18 * MS, start_end=True)
        t.launch(o, o + 1000, gpu=(o + 2000, o + 2 * MS), kernel=f"kernel<{name}>")
        for k, function in enumerate((f"{name}_a", f"{name}_b", name)):
            at = o + 3 * MS + k * MS
            t.launch(at - 20_000, at - 15_000, gpu=(at - 10_000, at + 100_000), kernel=name)
            stack = [(f"in {name}", library, 3), (function, file, 7 + k), ("<module>", f"/home/me/{name}.py", 1)]
            t.stream_sync(at, at + 200_000, native=native, python=stack)
        at = o + 8 * MS
        t.copy(at, at + 10_000, gpu=(at + 1000, at + 9000), dst="pageable", native=[(f"{name} native", f"{name}.so")])
        at = o + 9 * MS
        t.launch(at - 20_000, at - 15_000, gpu=(at - 10_000, at + 100_000))
        t.stream_sync(at, at + 200_000)
        at = o + 10 * MS
        t.api(f"cu{name}", at, at + 3 * MS)
        for k in range(6):
            sample = [(name, f"/home/me/{name}.py", 9), ("main", "/home/me/main.py", 3)]
            t.python_stack(at + k * MS // 2, sample, source="sample")
        t.launch(at + 4 * MS, at + 4 * MS + 1000, gpu=(at + 4 * MS + 2000, at + 5 * MS))
        at = o + 19 * MS + 100_000
        t.device_sync(at, at + 100_000)
        t.overhead(at + 200_000, at + 250_000, name)
    b.process(4343, f"idle {name}").thread(4343, name).api(f"cuda{name}", 5, 10)
    b.write(path)
    if SURROGATE in name:
        with closing(sqlite3.connect(path)) as connection, connection:
            for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                for _, column, kind, *_ in connection.execute(f"PRAGMA table_info({table})").fetchall():
                    if kind.startswith("TEXT"):
                        connection.execute(
                            f'UPDATE {table} SET "{column}" = replace("{column}", ?, CAST(x\'eda080ff\' AS TEXT)) '
                            f'WHERE instr("{column}", ?)',
                            (SURROGATE, SURROGATE),
                        )
    return path


@dataclass(frozen=True)
class Hostile:
    case: str
    path: Path
    analysis: Analysis


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            case, id=case, marks=pytest.mark.met(KIND, f"{case}, in the name of everything", "harmless in all outputs")
        )
        for case in NAMES
    ],
)
def hostile(request: pytest.FixtureRequest, folder: Path) -> Hostile:
    case: str = request.param
    path = written(NAMES[case], folder / "trace.sqlite")
    return Hostile(case, path, analyze(path))


def every_text(value: Any) -> list[str]:
    """All texts in a JSON value."""
    if isinstance(value, dict):
        return [text for one in value.values() for text in every_text(one)]
    if isinstance(value, list):
        return [text for one in value for text in every_text(one)]
    return [value] if isinstance(value, str) else []


def require_plain(text: str) -> None:
    """Nothing that steers a terminal or reorders a line, and the size of a report."""
    bad = {ch for ch in text if not ch.isprintable() and ch != "\n"}
    assert not bad, bad
    assert len(text) < 100_000


def checked(analysis: Analysis) -> Any:
    name = next(region.name for trace in analysis.traces for region in trace.regions)
    allow = (Allowed(name or None, "*7*", name or "x"), Allowed(None, "no such file *", "x"))
    return check(analysis, Budgets(0.0001, 0, (name or "x", "*"), ("scalar-read",), None, allow))


def test_in_words(hostile: Hostile) -> None:
    analysis = hostile.analysis
    assert len(analysis.sites) == 6
    result, difference = checked(analysis), compare(analysis, analysis)
    for text in (
        render_terminal(analysis, width=100, color=False, top=20),
        render_terminal(analysis, width=40, color=False, top=20),
        render_diff_terminal(difference, width=100, color=False, top=20),
        render_check_terminal(result, width=100, color=False),
    ):
        require_plain(text)
    coloured = render_terminal(analysis, width=100, color=True, top=20)
    require_plain(re.sub(r"\x1b\[[0-9;]*m", "", coloured))
    for markdown in (render_markdown(analysis), render_diff_markdown(difference), render_check_markdown(result)):
        require_plain(markdown.replace("\u200b", ""))
    require_harmless(render_markdown(analysis), own_links(analysis))
    require_harmless(render_check_markdown(result), own_links(analysis))


def test_as_data(hostile: Hostile, folder: Path) -> None:
    analysis = hostile.analysis
    text = render_json(analysis)
    assert len(text.encode()) < 400_000
    form = json.loads(text)
    assert max(len(one) for one in every_text(form)) <= 4 * LONGEST_NAME
    assert max(len(one) for site in form["sites"] for one in every_text(site)) <= 2 * LONGEST_NAME + 100
    saved = folder / "saved.json"
    saved.write_text(text, encoding="utf-8")
    assert render_json(read_analysis(saved)) == text
    json.loads(render_json(compare(read_analysis(saved), analysis)))

    for table, rows in ((sites_table(analysis), 6), (analysis.operations, 30)):
        written_csv = to_csv_bytes(table)
        assert len(written_csv) < 400_000
        cells = list(csv.reader(io.StringIO(written_csv.decode(), newline="")))
        assert len(cells) == rows + 1
        assert {len(row) for row in cells} == {len(table.schema)}
        for row in cells[1:]:
            for cell, field in zip(row, table.schema, strict=True):
                require_plain(cell)
                assert not cell.startswith(("=", "+", "@")) and (cell[:1] != "-" or str(field.type) == "int64"), cell
        assert pq.read_table(io.BytesIO(to_parquet_bytes(table))).num_rows == rows


def test_for_machines_that_check(hostile: Hostile) -> None:
    result = checked(hostile.analysis)
    github = render_check_github(result)
    require_plain(github)
    assert {command for command, *_ in commands(github)} <= {"error", "warning"}
    for one in ElementTree.fromstring(render_check_junit(result)).iter():
        for text in (one.text, *one.attrib.values()):
            require_plain(text or "")
    sarif = json.loads(render_check_sarif(result))
    for text in every_text(sarif):
        require_plain(text)
    json.loads(render_check_json(result))


def test_in_a_browser(hostile: Hostile, browser: Browser, tmp_path: Path) -> None:  # noqa: F811
    analysis = hostile.analysis
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib's, of glyphs that a font lacks
        pages = {"report": render_html(analysis), "diff": render_diff_html(compare(analysis, analysis))}
    for name, text in pages.items():
        assert len(text.encode()) < 2_000_000
        file = tmp_path / f"{name}.html"
        file.write_text(text, encoding="utf-8")
        requests: list[str] = []
        complaints: list[str] = []
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.on("request", lambda request, seen=requests: seen.append(request.url))
        page.on("console", lambda message, seen=complaints: seen.append(message.text))
        page.on("pageerror", lambda error, seen=complaints: seen.append(str(error)))
        page.on("dialog", lambda dialog, seen=complaints: seen.append(dialog.message))
        page.goto(file.as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280
        assert page.locator("img, iframe, object, link[rel=stylesheet]").count() == 0
        assert page.locator("script").count() == text.count("<script")
        assert complaints == []
        assert len(requests) == 1, requests
        page.close()


# ---- names alike but for what is left out


@pytest.mark.met(KIND, "two functions, files or ranges with names of 1 MB that differ in the middle", "stay two sites")
def test_names_that_differ_where_they_are_cut(tmp_path: Path) -> None:
    b = TraceBuilder()
    t = b.process(1).thread(1)
    half = "x" * 500_000
    names = [f"{half}{middle}{half}" for middle in "ab"]
    for n, name in enumerate(names * 4):
        o = n * 100
        t.launch(o, o + 5, gpu=(o + 6, o + 30))
        if n < 4:
            t.stream_sync(o + 10, o + 31, python=[(name if n < 2 else "f", f"/app/{name if n > 1 else 'm'}.py", 1)])
        elif n < 6:
            t.nvtx(name, o + 7, o + 40)
            t.stream_sync(o + 10, o + 31)
        else:
            t.stream_sync(o + 10, o + 31, native=[(name, "libx.so")])
    analysis = analyze(b.write(tmp_path / "trace.sqlite"))
    assert [site.calls for site in analysis.sites] == [1] * 8
    assert len({site.id for site in analysis.sites}) == len({site.location for site in analysis.sites}) == 8
    assert len(render_json(analysis)) < 100_000


def test_what_is_cut() -> None:
    assert cut("x" * LONGEST_NAME) == "x" * LONGEST_NAME
    whole = "/folder" * 200 + "/train.py"
    short = cut(whole)
    assert len(short) == LONGEST_NAME
    assert short.startswith("/folder/folder") and short.endswith("/folder/train.py")
    assert cut(whole) == short != cut(whole.replace("/folder/folder/folder", "/folder/fOlder/folder", 1))
    assert shown("/home/jo" + "/x" * 1000, {}).startswith("~/x/x")
    assert cut("\ud800" * 2000) != cut("\ud801" * 2000)


@pytest.mark.met(KIND, "a user's name of 1 MB, or one of a regular expression's marks", "replaced as any other")
@pytest.mark.parametrize("name", ["(a+)+$[\\", "x" * 1_000_000])
def test_private_names(name: str) -> None:
    assert shown(f"/data/{name}/train.py", {name: "USER"}) == "/data/USER/train.py"


@pytest.mark.met(KIND, "--nvtx with a name that no range has, where ranges have names of 1 MB", "one short line")
def test_an_error_quotes_names_in_part(tmp_path: Path) -> None:
    b = TraceBuilder()
    t = b.process(1).thread(1)
    t.launch(0, 5, gpu=(6, 30))
    for middle in "abc":
        t.nvtx("x" * 500_000 + middle + "x" * 500_000, 0, 50)
    with pytest.raises(TraceError) as caught:
        analyze(b.write(tmp_path / "trace.sqlite"), nvtx="step *")
    assert len(str(caught.value)) < 600


@pytest.mark.met(KIND, "--nvtx and --user-code with a pattern for names of 1 MB", "chosen by the whole name")
def test_patterns_see_whole_names(tmp_path: Path) -> None:
    b = TraceBuilder()
    t = b.process(1).thread(1)
    long = "x" * 500_000
    for n in range(4):
        o = n * 100
        t.nvtx(f"{long}{'odd' if n % 2 else 'even'}{long}", o, o + 60)
        t.launch(o, o + 5, gpu=(o + 6, o + 30))
        library = f"/site-packages/{long}{'mine' if n else 'not'}{long}/lib.py"
        t.stream_sync(o + 10, o + 31, python=[("f", library, 1), ("main", "/app/main.py", 1)])
    path = b.write(tmp_path / "trace.sqlite")
    analysis = analyze(path, nvtx="*odd*", user_code=["*mine*"])
    assert [(site.calls, site.location.function) for site in analysis.sites] == [(2, "f")]
    assert analysis.traces[0].steps is not None and len(analysis.traces[0].steps.steps) == 2


@pytest.mark.met(KIND, "names made to take a regular expression for ever", "read in time that grows with their length")
@pytest.mark.parametrize("text", ["_v1", "_ptsz", "/home/", "C:\\Users\\", "/../a", "/./", "12 "])
def test_expressions_are_linear(text: str) -> None:
    # Quadratic, each of these would take hours.
    long = text * 300_000
    assert base_name(f"cudaFree{long}!") == f"cudaFree{long}!"
    without_home_folders(long)
    family(long)


# ---- size


@pytest.mark.met(KIND, "1,000 threads, each with ranges, launches and syncs", "each wait in its own thread's range")
def test_a_thousand_threads(tmp_path: Path) -> None:
    b = TraceBuilder()
    p = b.process(1)
    for j in range(1000):
        t = p.thread(1000 + j, f"worker {j}")
        for i in range(3):
            o = (i * 1000 + j) * 20_000
            t.nvtx(f"step {i}", o, o + 19_000)
            t.nvtx("work", o + 1, o + 18_000)
            t.launch(o + 10, o + 5_000, gpu=(o + 6_000, o + 16_000), stream=j)
            t.stream_sync(o + 7_000, o + 17_000, stream=j, python=[("f", "/app/a.py", j % 50)])
    analysis = analyze(b.write(tmp_path / "trace.sqlite"))
    assert len(analysis.sites) == 50
    assert all(site.calls == 60 and site.nvtx_ranges[0].name == "work" for site in analysis.sites)
    assert all(len(site.threads) == 8 for site in analysis.sites)
    assert analysis.traces[0].steps is not None and len(analysis.traces[0].steps.steps) == 3000
    assert len(render_html(analysis).encode()) < 2_000_000


@pytest.mark.met(KIND, "1,000 processes", "each with its own part, its start-up and its samples")
def test_a_thousand_processes(tmp_path: Path) -> None:
    b = TraceBuilder()
    for j in range(1000):
        p = b.process(10 + j, f"python {j}")
        t = p.thread(10 + j)
        for i in range(2):
            o = (i * 1000 + j) * 20_000
            t.nvtx("work", o + 5, o + 18_000)
            t.launch(o + 10, o + 5_000, gpu=(o + 6_000, o + 16_000))
            t.stream_sync(o + 7_000, o + 17_000)
            t.python_stack(o + 8_000, [("f", "/app/a.py", 7)], source="sample")
    analysis = analyze(b.write(tmp_path / "trace.sqlite"))
    (site,) = analysis.sites
    assert site.calls == 2000 and len(site.processes) == 1000
    assert dict(site.located_by) == {"python sample": 2000}
    assert len(analysis.traces[0].startup) == 999  # the first one's ends where the window begins
    assert len(render_markdown(analysis).encode()) < 60_000
    assert len(render_html(analysis).encode()) < 2_000_000


@pytest.mark.parametrize(
    "many_files",
    [
        pytest.param(
            False,
            marks=pytest.mark.met(KIND, "thousands of sites in one file", "all ranked; pages say what they left out"),
        ),
        pytest.param(True, marks=pytest.mark.met(KIND, "thousands of sites, each in a file of its own", "the same")),
    ],
)
def test_many_sites(tmp_path: Path, many_files: bool) -> None:
    sites = 6_000
    b = TraceBuilder()
    t = b.process(1).thread(1)
    for i in range(sites):
        o = i * 100_000
        t.launch(o, o + 5_000, gpu=(o + 6_000, o + 30_000))
        place = (f"f{i}", f"/app/m{i}.py", 7) if many_files else (f"f{i}", "/app/train.py", i)
        t.stream_sync(o + 10_000, o + 31_000, python=[place, ("main", "/app/main.py", 3)])
    analysis = analyze(b.write(tmp_path / "trace.sqlite"), no_source=True)
    assert len(analysis.sites) == sites
    page = render_html(analysis)
    assert len(page.encode()) < 2_000_000
    assert re.search(r"[0-9,]+ sites are not listed here", page)
    assert "20 of 6,000 sites shown." in render_terminal(analysis, width=100, color=False, top=20)
    assert to_csv_bytes(sites_table(analysis)).count(b"\n") == sites + 1


@pytest.mark.met(
    "7 times", "10,000 NVTX ranges nested in each other, a wait at each depth", "each wait is in the range around it"
)
def test_deep_ranges(tmp_path: Path) -> None:
    depth = 10_000
    b = TraceBuilder()
    t = b.process(1).thread(1)
    for level in range(depth):
        t.nvtx("outer" if level < depth // 2 else "inner", level * 100, (2 * depth - level) * 100)
        t.stream_sync(level * 100 + 10, level * 100 + 20)
    t.launch(depth * 100 + 1, depth * 100 + 5, gpu=(depth * 100 + 6, depth * 100 + 30))
    (site, other) = analyze(b.write(tmp_path / "trace.sqlite")).sites
    assert {(one.calls, one.nvtx_ranges[0].name) for one in (site, other)} == {(5000, "outer"), (5000, "inner")}


@pytest.mark.met("7 times", "overlapping, nested, empty and equal NVTX ranges on several threads", "as one by one")
def test_innermost_range_as_by_hand() -> None:
    rng = np.random.default_rng(7)
    for _ in range(60):
        rows: list[tuple[int, int, int]] = []

        def nest(tid: int, low: int, high: int, rows: list[tuple[int, int, int]] = rows) -> None:
            at = low
            while at < high and rng.random() < 0.8:
                start = int(rng.integers(at, high + 1))
                end = int(rng.integers(start, high + 1))
                rows.append((tid, start, end))
                if end > start:
                    nest(tid, start, end)
                at = end + int(rng.integers(0, 2))

        for tid in (5, 3, 9):
            nest(tid, 0, 40)
        rng.shuffle(rows)
        nvtx = pd.DataFrame(rows, columns=["global_tid", "start_ns", "end_ns"], dtype=np.int64)
        asked = [(tid, time) for tid in (3, 5, 7, 9) for time in range(-1, 42)]
        found = innermost_range(nvtx, *(np.array(column, dtype=np.int64) for column in zip(*asked, strict=True)))
        for (tid, time), row in zip(asked, found.tolist(), strict=True):
            around = [end - start for of, start, end in rows if of == tid and start <= time < end]
            here = None if row < 0 else rows[row]
            assert (here is None) == (not around)
            if here is not None:
                assert here[0] == tid and here[1] <= time < here[2] and here[2] - here[1] == min(around)


@pytest.mark.met("7 times", "tens of thousands of differently named NVTX ranges", "the loop is found among them")
def test_many_names_of_ranges(tmp_path: Path) -> None:
    b = TraceBuilder()
    t = b.process(1).thread(1)
    for i in range(20_000):
        o = i * 20_000
        name = "".join(chr(97 + int(digit)) for digit in str(i // 4))
        t.nvtx(f"{name} {i % 4}", o, o + 9_000)
        if i % 100 == 0:
            t.nvtx(f"step {i}", o - 10, o + 1_900_000)
            t.launch(o + 10, o + 5_000, gpu=(o + 6_000, o + 16_000))
            t.stream_sync(o + 7_000, o + 17_000)
    for library in ("CCCL", "NCCL"):
        for i in range(20_000):
            t.nvtx(f"{library} {i}", i * 20_000 + 9_001, i * 20_000 + 9_500, library, registered=True)
    (report,) = analyze(b.write(tmp_path / "trace.sqlite")).traces
    assert report.steps is not None
    assert (report.steps.pattern, len(report.steps.steps)) == ("step *", 200)
    assert len(report.regions) == 40
    assert not any("CCCL" in region.name or "NCCL" in region.name for region in report.regions)


@pytest.mark.met(KIND, "a registered name of 1 MB on thousands of ranges, threads and frames", "read once")
def test_a_long_name_that_all_share(tmp_path: Path) -> None:
    # 5,000 copies of it would be 5 GB.
    long = "x" * 1_000_000
    b = TraceBuilder()
    p = b.process(1)
    for j in range(100):
        t = p.thread(1000 + j, long)
        for i in range(50):
            o = (j * 50 + i) * 1_000
            t.nvtx(long, o, o + 900, registered=True)
            t.launch(o + 10, o + 20, gpu=(o + 30, o + 100))
            t.stream_sync(o + 40, o + 110, native=[(long, long), (long, long)], python=[(long, f"/app/{long}.py", i)])
    analysis = analyze(b.write(tmp_path / "trace.sqlite"))
    assert len(analysis.sites) == 50
    assert len(render_json(analysis)) < 10_000_000
