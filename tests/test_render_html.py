"""The page in a real browser: no request, no error, usable by mouse, by keyboard, and without scripts."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import render_sample

from nsys_sync.model import Analysis, Omitted
from nsys_sync.render.html import render_html

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SAMPLES = [
    render_sample.gpu_bound,
    render_sample.hostile,
    render_sample.refused,
    render_sample.ranks,
    render_sample.nothing,
    render_sample.started,
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    sync_api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        assert "CI" not in os.environ, "CI must install Chromium: a skipped browser test proves nothing"
        pytest.skip("no Chromium on this machine")
    quiet = "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update --disable-sync"
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*quiet.split(), "--no-first-run"])
        yield browser
        browser.close()


def wait_for(page: Page, start: str) -> None:
    """Polls from outside: the page's policy forbids the browser to evaluate strings inside."""
    from playwright.sync_api import expect

    expect(page.locator("#filter-status")).to_have_text(re.compile(f"^{start}"))


class Opened:
    """A page and everything that it asked for or complained about."""

    def __init__(self, browser: Browser, tmp_path: Path, analysis: Analysis, **options: Any) -> None:
        file = tmp_path / "report.html"
        file.write_text(render_html(analysis), encoding="utf-8")
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page: Page = browser.new_page(**options)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.goto(file.as_uri())

    def assert_quiet(self) -> None:
        assert self.complaints == []
        assert len(self.requests) == 1, self.requests
        self.page.close()

    def functions(self) -> list[str]:
        return self.page.locator(
            "#sites > tbody:not([hidden]) > tr:first-child > td:nth-child(2) > b"
        ).all_inner_texts()


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("width", [1280, 700])
def test_no_request_no_complaint_no_sideways_scroll(browser: Browser, tmp_path: Path, sample: Any, width: int) -> None:
    opened = Opened(browser, tmp_path, sample(), viewport={"width": width, "height": 900})
    for details in opened.page.locator("details").all():
        details.evaluate("element => element.open = true")
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    opened.assert_quiet()


def test_the_page_says_what_it_shall(browser: Browser, tmp_path: Path) -> None:
    opened = Opened(browser, tmp_path, render_sample.gpu_bound())
    page = opened.page
    assert page.locator("h1").inner_text() == (
        "GPU idle 16.3 % of 634 ms; 15.4 % (97.6 ms) because of 5 sync sites; "
        "worst: read_loss gpu_bound.py:28, 53.3 ms over 40 calls"
    )
    assert page.locator("h2").all_inner_texts() == [
        "Where the time went",
        "Plots",
        "Sync sites",
        "The rest of the idle time",
        "Start-up",
        "Coverage",
        "Glossary",
    ]
    text = page.locator("main").inner_text()
    assert "97,628,562 ns" in text
    assert "196 of 201 sync operations located by an exact Python stack; 5 by python sample." in text
    assert "10 syncs per step, 20 steps 'step *'" in text
    assert page.locator("svg[role=img]").count() == 3
    opened.assert_quiet()


def test_sort_by_mouse_and_keyboard(browser: Browser, tmp_path: Path) -> None:
    opened = Opened(browser, tmp_path, render_sample.gpu_bound())
    page = opened.page
    ranked = ["read_loss", "upload", "clip", "download", "sum_positive", "main"]
    assert opened.functions() == ranked
    blocked = page.locator("#sites thead th", has_text="blocked")
    blocked.locator("button").click()
    assert blocked.get_attribute("aria-sort") == "descending"
    by_blocked = ["read_loss", "clip", "download", "upload", "sum_positive", "main"]
    assert opened.functions() == by_blocked
    page.keyboard.press("Enter")
    assert blocked.get_attribute("aria-sort") == "ascending"
    assert opened.functions() == by_blocked[::-1]
    page.locator("#sites thead th", has_text="where").locator("button").focus()
    page.keyboard.press("Space")
    assert opened.functions() == sorted(ranked)
    assert page.locator("#sites thead th[aria-sort]").count() == 1
    opened.assert_quiet()


def test_every_column_sorts_by_what_it_shows(browser: Browser, tmp_path: Path) -> None:
    opened = Opened(browser, tmp_path, render_sample.gpu_bound())
    stall_order = ["read_loss", "upload", "clip", "download", "sum_positive", "main"]
    for name in ("stall", "of window", "idle within"):
        header = opened.page.locator("#sites thead th", has_text=re.compile(rf"^{name}$"))
        header.locator("button").click()
        assert header.get_attribute("aria-sort") == "descending"
        assert opened.functions() == stall_order, name
    opened.assert_quiet()


def test_filter_by_text(browser: Browser, tmp_path: Path) -> None:
    opened = Opened(browser, tmp_path, render_sample.gpu_bound())
    page = opened.page
    page.get_by_label("Filter").focus()
    page.keyboard.type("DOWNLOAD pageable")
    wait_for(page, "1 of")
    assert opened.functions() == ["download"]
    assert page.locator("#filter-status").inner_text() == "1 of 6 sites shown"
    page.keyboard.press("Escape")
    assert len(opened.functions()) == 6
    opened.assert_quiet()


def test_unfold_by_mouse_and_keyboard(browser: Browser, tmp_path: Path) -> None:
    opened = Opened(browser, tmp_path, render_sample.gpu_bound())
    page = opened.page
    page.locator("#s1 summary").first.click()
    assert page.locator("#s1 ol.f li.u").all_inner_texts() == [
        "read_loss ~/work/train/gpu_bound.py:28",
        "step ~/work/train/gpu_bound.py:61",
    ]
    assert "2.109000123 s" in page.locator("#s1").inner_text()
    second = page.locator("#s2 summary").first
    second.focus()
    page.keyboard.press("Enter")
    native = page.locator("#s2 summary", has_text="Native stack")
    assert native.is_visible()
    native.click()
    assert "at::native::_local_scalar_dense_cuda" in page.locator("#s2").inner_text()
    opened.assert_quiet()


def test_without_scripts(browser: Browser, tmp_path: Path) -> None:
    opened = Opened(browser, tmp_path, render_sample.gpu_bound(), java_script_enabled=False)
    page = opened.page
    assert page.get_by_label("Filter").is_hidden()
    page.locator("#s1 summary").first.click()
    assert "~/work/train/gpu_bound.py:61" in page.locator("#s1").inner_text()
    page.locator("#s1 summary", has_text="Native stack").click()
    page.locator("#s1 a[data-native]").click()
    assert page.locator("#n1").is_visible()
    assert "THPVariable_item" in page.locator("#n1").inner_text()
    opened.assert_quiet()


def test_hostile_names_stay_inert(browser: Browser, tmp_path: Path) -> None:
    opened = Opened(browser, tmp_path, render_sample.hostile())
    page = opened.page
    for details in page.locator("details").all():
        details.evaluate("element => element.open = true")
    assert page.locator("img, iframe, object, embed, link, base, form").count() == 0
    assert page.locator("script").count() == 1
    assert render_sample.ATTACK in page.locator("#s1").inner_text()
    assert render_sample.ATTACK in (page.locator("svg").first.text_content() or "") or "</script><img" in (
        page.locator("svg").first.text_content() or ""
    )
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x1b\x00]", page.content())
    page.locator("#sites thead th button").nth(1).click()
    opened.assert_quiet()


def test_the_policy_forbids_what_gets_through(browser: Browser, tmp_path: Path) -> None:
    opened = Opened(browser, tmp_path, render_sample.gpu_bound())
    opened.page.evaluate(
        """() => {
          const image = new Image(); image.src = 'https://example.invalid/x.png'; document.body.append(image);
          const script = document.createElement('script'); script.textContent = 'document.title = "owned"';
          document.body.append(script);
          const button = document.createElement('div'); button.innerHTML = '<img src=x onerror="document.title = 1">';
          document.body.append(button);
        }"""
    )
    opened.page.wait_for_timeout(200)
    assert opened.page.title().startswith("GPU stalls")
    assert any("Content Security Policy" in complaint for complaint in opened.complaints)
    opened.page.close()


def test_five_thousand_sites(browser: Browser, tmp_path: Path) -> None:
    analysis = render_sample.many()
    size = len(render_html(analysis).encode())
    assert size < 2_000_000
    opened = Opened(browser, tmp_path, analysis)
    page = opened.page
    assert page.locator("#sites > tbody").count() == 5000
    note = page.locator("#ranking ~ p", has_text="Details stand under").inner_text()
    said = re.match(r"Details stand under the first ([\d,]+) sites only.*: ([\d,]+) sites are without", note)
    assert said
    detailed = page.locator("#sites tr.d").count()
    assert int(said[1].replace(",", "")) == detailed
    assert int(said[2].replace(",", "")) == 5000 - detailed
    # The worst case: no two sites share a native stack. Where they do, three times as many have details.
    assert detailed >= 75
    page.get_by_label("Filter").fill("function_number_4321")
    wait_for(page, "1 of 5,000")
    opened.assert_quiet()


def test_sites_past_the_table_are_counted() -> None:
    assert "1 site is not listed here: 40 calls, stall 1.00 µs, blocked 120 ms." in render_html(
        render_sample.many(5001)
    )


def test_start_up_stands_below_the_stall_that_contains_it(browser: Browser, tmp_path: Path) -> None:
    opened = Opened(browser, tmp_path, render_sample.started())
    text = opened.page.locator("main").inner_text()
    assert "Worst first, by stall outside start-up; the part in start-up stands below the figure" in text
    assert opened.page.locator("#s1 > tr:first-child > td:nth-child(4)").inner_text() == "4.02 ms"
    assert opened.page.locator("#s2 > tr:first-child > td:nth-child(4)").inner_text().split("\n") == [
        "4.97 ms",
        "1.04 ms in start-up",
    ]
    assert text.count("host-bound 134 ms, of which 132 ms in start-up and 1.75 ms outside it.") == 2
    opened.page.locator("#sites thead th", has_text=re.compile("^stall$")).locator("button").click()
    assert opened.functions() == ["load", "loop"]
    opened.assert_quiet()


def test_no_sites_are_explained() -> None:
    empty = replace(render_sample.one_process(), sites=())
    page = render_html(empty)
    assert "<p>No sync operations in the selection.</p>" in page
    assert "no sync operations in the selection; 2.9 % (18.6 ms) is stall of processes not shown</h1>" in page
    left_out = replace(empty, omitted=Omitted(3, 7, 18_577_598, 5_000, "--min-stall 1 ns"))
    page = render_html(left_out)
    assert "<p>Every sync site was left out.</p>" in page
    assert "3 more sites not shown (--min-stall 1 ns): 7 calls, stall 18.6 ms, blocked 5.00 µs." in page


def test_a_copy_of_unknown_memory() -> None:
    base = render_sample.gpu_bound()
    kind = replace(base.sites[0].kind, src_memory=None)
    page = render_html(replace(base, sites=(replace(base.sites[0], kind=kind),)))
    assert "; copy DtoH, not known to Pinned memory" in page


def test_what_is_not_covered_is_shown() -> None:
    page = render_html(render_sample.refused())
    assert page.count("50 CUDA graph launches have no GPU work here: re-export with a newer nsys") == 2
    assert "<li>Not captured: stacks of synchronous copies: --cudabacktrace was sync only" in page
    assert "<li>Warning: Tracing slowed launches: 12 launches ran during a buffer flush" in page
    assert "<li>Profiler warning: Unknown runtime API function index: 490" in page


@pytest.mark.parametrize(
    "name", ["L" * 1_000_000, "\x00" * 1_000_000, "e" + "\u0301" * 1_000_000, "数" * 1_000_000], ids="Lzek"
)
def test_long_names_are_clipped(name: str) -> None:
    page = render_html(render_sample.long_names(name))
    assert len(page.encode()) < 2_000_000
    assert page.count("<tr class=d>") >= 5
    assert "L" * 400 not in page
    assert "22 more messages of the profiler, in the JSON report." in page
    assert "236 more, in the JSON report" in page  # of 300 frames


def test_many_rows_of_long_names_leave_room_for_details() -> None:
    analysis = render_sample.many()
    kind = replace(analysis.sites[0].kind, label="数" * 300)
    page = render_html(replace(analysis, sites=tuple(replace(site, kind=kind) for site in analysis.sites)))
    assert len(page.encode()) < 2_000_000
    rows = page.count("<tbody id=s")
    assert 1_000 < rows < 5_000
    assert f"{5_000 - rows:,} sites are not listed here: " in page
    assert page.count("<tr class=d>") > 20


def test_many_ranks_of_many_sites() -> None:
    page = render_html(render_sample.many_ranks())
    assert len(page.encode()) < 2_000_000
    assert page.count("<tbody id=s") > 4_000
    assert page.count("<tr class=d>") > 20
    assert page.count('<div class="bar"') == 8
    assert "56 of 64 traces and 120 of 128 GPUs" in page
    assert "The timelines show the 8 of 128 GPUs with most stall." in page
    assert "56 more traces: 10,976 of 11,256 sync operations" in page
    # The 16 ranks with most stall are the last ones.
    details = page[page.index("Per rank") : page.index("48 more, in the JSON report")]
    assert re.findall(r"<tr><td>rank(\d\d)", details) == [f"{rank:02}" for rank in range(63, 47, -1)]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(browser: Browser, tmp_path: Path, scheme: Any) -> None:
    opened = Opened(browser, tmp_path, render_sample.gpu_bound(), color_scheme=scheme)
    value = "name => getComputedStyle(document.documentElement).getPropertyValue(name)"
    get = {name: opened.page.evaluate(value, f"--{name}") for name in ("bg", "panel", "fg", "muted", "link", "user")}
    for text in ("fg", "muted", "link"):
        for ground in ("bg", "panel"):
            assert _contrast(get[text], get[ground]) >= 4.5, (text, ground)
    assert _contrast(get["fg"], get["user"]) >= 4.5
    opened.assert_quiet()


def test_the_markup_is_balanced() -> None:
    class Balance(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.opened: dict[str, int] = {}

        def handle_starttag(self, tag: str, attrs: object) -> None:
            self.opened[tag] = self.opened.get(tag, 0) + 1

        def handle_endtag(self, tag: str) -> None:
            self.opened[tag] = self.opened.get(tag, 0) - 1

    balance = Balance()
    balance.feed(render_html(render_sample.ranks()))
    optional = {"td", "th", "tr", "tbody", "thead", "p", "li", "br", "meta", "input"}
    assert {tag: left for tag, left in balance.opened.items() if left and tag not in optional} == {}


def test_the_same_analysis_gives_the_same_page() -> None:
    assert render_html(render_sample.gpu_bound()) == render_html(render_sample.gpu_bound())


def _contrast(first: str, second: str) -> float:
    def luminance(color: str) -> float:
        channels = [int(color.strip()[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)
