"""`nsys-sync diff` and the forms in which it shows a comparison."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import render_sample
from conftest import Capture
from test_comparison import AFTER, BEFORE, write_run

from nsys_sync import model
from nsys_sync.analysis.comparison import compare
from nsys_sync.pipeline import analyze
from nsys_sync.render.diff_html import render_diff_html
from nsys_sync.render.diff_markdown import render_diff_markdown
from nsys_sync.render.diff_terminal import render_diff_terminal
from nsys_sync.render.json_report import render_json

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def terminal(comparison: model.Comparison, width: int = 100, top: int = 20) -> str:
    return render_diff_terminal(comparison, width=width, color=False, top=top)


def edited(tmp_path: Path, **after: object) -> model.Comparison:
    runs = [write_run(tmp_path / "before.sqlite", BEFORE), write_run(tmp_path / "after.sqlite", AFTER, **after)]  # type: ignore[arg-type]
    return compare(*(analyze(path) for path in runs))


def everything(comparison: model.Comparison) -> dict[str, str]:
    return {
        "terminal": terminal(comparison),
        "narrow": terminal(comparison, 64),
        "html": render_diff_html(comparison),
        "markdown": render_diff_markdown(comparison),
        "json": render_json(comparison),
    }


HOSTILE_NAME = "</td><script>alert(1)</script>|`x` @someone https://evil.example [a](b)\x1b[31m\u202e\n# h"


def hostile() -> model.Comparison:
    """Names from the trace that try everything, in places found on both sides, on one, and in every reason."""
    analysis = render_sample.hostile()
    site = analysis.sites[0]

    def renamed(number: int, line: int) -> model.Site:
        location = model.Location(HOSTILE_NAME, HOSTILE_NAME, f"/{HOSTILE_NAME}.py", line)
        source = model.SourceLine(HOSTILE_NAME, "")
        return replace(
            site, id=f"h{number}", location=location, source=source, cause=model.Cause(HOSTILE_NAME, "likely", ())
        )

    trace = replace(
        analysis.traces[0],
        name=HOSTILE_NAME,
        nsys_version=HOSTILE_NAME,
        devices=tuple(replace(device, name=HOSTILE_NAME) for device in analysis.traces[0].devices),
    )
    before = replace(analysis, traces=(trace,), selection=HOSTILE_NAME, sites=(*analysis.sites, renamed(1, 5)))
    after = replace(
        before,
        traces=(replace(trace, nsys_version="other"),),
        sites=(renamed(2, 6), *analysis.sites[1:]),
    )
    return compare(before, after)


class Structure(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


# ---- words


def test_the_terminal_says_what_became_of_each_place(tmp_path: Path) -> None:
    text = terminal(edited(tmp_path))
    lines = text.splitlines()
    assert lines[0].startswith("Window 58.8 ms → 58.7 ms (-0.17 %), GPU idle 7.80 ms → 7.70 ms (-1.3 %), stall 7.80 ms")
    assert "sync places: 1 worse, 1 new, 1 better, 1 gone, 2 unchanged" in text.replace("\n", " ")
    assert re.search(
        r"worse +2\.10 ms  4\.10 ms +10  train\.py:20 read_loss → train\.py:60 read_loss \(moved down", text
    )
    assert "moved down by 40 lines" in " ".join(text.split())
    assert re.search(r"new +0 ns  1\.60 ms  0 → 10  train\.py:70 branch", text)
    assert re.search(r"gone +3\.10 ms +0 ns  10 → 0  train\.py:40 download", text)
    assert "train.py:30 count_large → train.py:30 find_large (function renamed)" in " ".join(text.split())
    assert "match not sure: same file, cause, Python callers" in " ".join(text.split())
    assert "The window is 100 µs shorter (-0.17 %): stall 100 µs less." in text
    assert "worse +2.00 ms (1 place), new +1.60 ms (1 place), better -600 µs (1 place), gone -3.10 ms" in " ".join(
        text.split()
    )


def test_the_window_is_explained_to_the_nanosecond(capture: Capture) -> None:
    comparison = compare(*(analyze(capture(f"{name}.schema-3.7.2")) for name in ("gpu_bound", "gpu_bound_fixed")))
    for text in everything(comparison).values():
        if text.startswith("{"):
            continue
        flat = " ".join(text.split()).replace("&#39;", "'")
        assert (
            "The window is 151 ms shorter (-23.8 %): stall 97.6 ms less, busy 53.8 ms less, device-side 677 µs" in flat
        )
        assert "-97,628,562 - 53,842,101 + 677,438 + 315,646 - 274,586 = -150,752,165 ns." in flat
    assert -97_628_562 - 53_842_101 + 677_438 + 315_646 - 274_586 == 483_175_328 - 633_927_493 == -150_752_165


@pytest.mark.parametrize("width", [20, 40, 64, 84, 100, 200])
def test_nothing_is_wider_than_the_terminal(width: int, tmp_path: Path) -> None:
    for comparison in (edited(tmp_path), hostile()):
        assert max(map(len, terminal(comparison, width).splitlines())) <= max(width, 48)


def test_what_is_not_comparable_is_said_without_a_number(tmp_path: Path) -> None:
    shown = everything(edited(tmp_path, gpu="NVIDIA A100"))
    for form, text in shown.items():
        flat = " ".join(text.split())
        assert "other GPU: NVIDIA H200 before, NVIDIA A100 after" in flat
        body = flat.split("</style>")[-1]
        if form != "json":
            assert body.count("Not comparable") == 1
        assert not re.search(r"\d (?:ns|µs|ms)\b", body), form
        assert "svg" not in body
    data = json.loads(shown["json"])
    assert data["total_before"] is data["step_after"] is None
    assert data["devices"] == []


def test_with_another_number_of_steps_only_figures_per_step_are_shown(tmp_path: Path) -> None:
    for form, text in everything(edited(tmp_path, steps=20)).items():
        flat = " ".join(text.split())
        if form == "json":
            assert json.loads(text)["total_after"] is None
            continue
        assert "Totals are not comparable; per-step figures are: other number of steps: 10 before, 20 after." in flat
        assert "Per step 5.78 ms → 5.77 ms (-0.17 %)" in flat
        assert "210 µs" in flat
        assert "58.8 ms" not in flat
        assert "svg" not in flat.split("</style>")[-1]


# ---- hostile text, size


def test_hostile_names_stay_text() -> None:
    shown = everything(hostile())
    for form in ("terminal", "narrow", "markdown"):
        assert "\x1b" not in shown[form]
        assert "\u202e" not in shown[form]
    page = Structure()
    page.feed(shown["html"])
    assert not {"script", "img", "iframe", "link"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert not [value for name, value in page.attributes if name in ("href", "src") and not str(value).startswith("#")]
    assert "Content-Security-Policy" in shown["html"]
    for line in shown["markdown"].splitlines():
        outside_code = re.sub(r"<code>.*?</code>|`[^`]*`", "", line)
        assert not re.search(r"<(?!br>)|(?<!\\)\[|@\w|://\w", outside_code), line
        assert "<script" not in re.sub(r"`[^`]*`", "", line)
    rows = [line for line in shown["markdown"].splitlines() if line.startswith("| ")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} <= {5, 8}


def test_five_thousand_places_stay_small() -> None:
    before = render_sample.many(5000)
    after = replace(
        before,
        sites=tuple(
            replace(one, location=replace(one.location, function=f"{one.location.function}_{'x' * 200}"))
            for one in before.sites[::2]
        ),
    )
    comparison = compare(before, after)
    shown = everything(comparison)
    assert len(shown["html"].encode()) < 2_000_000
    assert "in the JSON form" in shown["html"]
    assert len(render_diff_markdown(comparison, top=5000).encode()) < 60_000
    assert len(terminal(comparison).splitlines()) < 400
    assert len(json.loads(shown["json"])["pairs"]) == len(comparison.pairs)


# ---- the command


def nsys_sync(*arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nsys_sync.cli.main", *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_run(tmp_path / "before.sqlite", BEFORE)
    write_run(tmp_path / "after.sqlite", AFTER)
    return tmp_path


def test_the_command_prints_and_writes_a_page(runs: Path) -> None:
    done = nsys_sync("diff", "before.sqlite", "after.sqlite", folder=runs)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Window 58.8 ms → 58.7 ms")
    assert done.stderr.strip().endswith("Wrote before-vs-after.sync-diff.html")
    assert (runs / "before-vs-after.sync-diff.html").read_text("utf-8").startswith("<!doctype html>")


def test_saved_analyses_compare_as_their_traces_do(runs: Path) -> None:
    for name in ("before", "after"):
        assert nsys_sync("report", f"{name}.sqlite", "-o", f"{name}.sync.json", folder=runs).returncode == 0
    saved = nsys_sync("diff", "before.sync.json", "after.sync.json", "-f", "json", "-o", "-", folder=runs)
    mixed = nsys_sync("diff", "before.sqlite", "after.sync.json", "-f", "json", "-o", "-", folder=runs)
    traces = nsys_sync("diff", "before.sqlite", "after.sqlite", "-f", "json", "-o", "-", folder=runs)
    assert saved.returncode == 0, saved.stderr
    assert saved.stdout == mixed.stdout == traces.stdout
    assert json.loads(saved.stdout)["schema_version"] == model.COMPARISON_SCHEMA_VERSION
    done = nsys_sync("diff", "before.sync.json", "after.sync.json", folder=runs)
    assert (runs / "before-vs-after.sync-diff.html").exists(), done.stderr


def test_every_format_into_a_folder(runs: Path) -> None:
    formats = [part for name in ("terminal", "html", "markdown", "json") for part in ("-f", name)]
    done = nsys_sync("diff", "before.sqlite", "after.sqlite", *formats, "-o", "out/", folder=runs)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (runs / "out").iterdir()) == [
        f"before-vs-after.sync-diff.{ending}" for ending in ("html", "json", "md")
    ]
    assert nsys_sync("diff", "before.sqlite", "after.sqlite", "-o", "x.md", folder=runs).returncode == 0
    assert (runs / "x.md").read_text("utf-8").startswith("**Window 58.8 ms")


def test_lines_of_saved_analyses_are_shown_only_where_wanted(runs: Path) -> None:
    saved = render_sample.gpu_bound()
    assert saved.sites[0].source is not None
    (runs / "saved.json").write_text(render_json(saved), "utf-8")
    for options, shown in (([], True), (["--no-source"], False)):
        done = nsys_sync("diff", "saved.json", "saved.json", *options, "-f", "json", "-o", "-", folder=runs)
        assert done.returncode == 0, done.stderr
        pairs = json.loads(done.stdout)["pairs"]
        assert any(pair["before"]["source"] for pair in pairs) is shown
        assert {pair["certainty"] for pair in pairs} == {"certain"}


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["before.sqlite"], 2, "AFTER"),
        (["before.sqlite", "none.sqlite"], 1, "none.sqlite"),
        (["before.sqlite", "broken.json"], 1, "broken.json: is not valid JSON"),
        (["before.sqlite", "broken.json", "--nvtx", "step *"], 2, "--nvtx: broken.json is a saved analysis"),
        (["before.sqlite", "broken.json", "--source-root", "."], 2, "--source-root: broken.json is a saved analysis"),
        (["before.sqlite", "after.sqlite", "-f", "csv"], 2, "csv"),
        (["before.sqlite", "after.sqlite", "-o", "x.csv"], 2, "no format has this ending"),
        (["before.sqlite", "after.sqlite", "-f", "json", "-o", "before.sqlite"], 2, "would overwrite the trace"),
        (["before.sqlite", "after.sqlite", "--range", "2s:1s"], 2, "ends before it begins"),
        (["before.sqlite", "after.sqlite", "--top", "0"], 2, "--top"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], status: int, says: str, runs: Path) -> None:
    (runs / "broken.json").write_text("{")
    done = nsys_sync("diff", *arguments, folder=runs)
    assert done.returncode == status
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


def test_the_options_reach_both_traces(runs: Path) -> None:
    options = ["--nvtx", "step *", "--skip-first", "2", "-f", "json", "-o", "-"]
    done = nsys_sync("diff", "before.sqlite", "after.sqlite", *options, folder=runs)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["not_comparable"] == []
    assert data["before"]["steps"] == data["after"]["steps"] == 8
    assert data["before"]["selection"] == data["after"]["selection"]


# ---- the page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    sync_api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        assert "CI" not in os.environ, "CI must install Chromium: a skipped browser test proves nothing"
        pytest.skip("no Chromium on this machine")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_fits_asks_for_nothing_and_draws_both_on_one_scale(
    width: int, browser: Browser, tmp_path: Path, capture: Capture
) -> None:
    names = ("gpu_bound", "gpu_bound_fixed")
    comparison = compare(*(analyze(capture(f"{name}.schema-3.7.2")) for name in names))
    for name, made in (("real", comparison), ("hostile", hostile())):
        file = tmp_path / f"{name}.html"
        file.write_text(render_diff_html(made), "utf-8")
        page = browser.new_page(viewport={"width": width, "height": 900})
        complaints: list[str] = []
        page.on("request", lambda request, to=complaints: to.append(request.url))
        page.on("console", lambda message, to=complaints: to.append(message.text))
        page.goto(file.as_uri())
        assert complaints == [file.as_uri()]
        body = page.locator("body").bounding_box()
        assert body is not None
        assert body["width"] <= width
        page.close()
    svg = re.findall(r"<svg.*?</svg>", render_diff_html(comparison), re.DOTALL)
    assert len(svg) == 1
    # The areas of the two blocked lanes end where their windows do: 483 of 634 ms.
    areas = [
        re.findall(r"[ML] (-?[\d.]+) -?[\d.]+", path) for path in re.findall(r'<path id="[^"]+" d="([^"]+)"', svg[0])
    ]
    ends = [max(map(float, area)) for area in areas if area]
    left = 0.09 * 8.9 * 72
    shares = {round((end - left) / (0.88 * 8.9 * 72), 3) for end in ends}
    assert {1.0, round(483_175_328 / 633_927_493, 3)} <= shares
