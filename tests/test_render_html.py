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
    render_sample.host_bound,
    render_sample.unexplained,
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
@pytest.mark.parametrize("width", [1280, 700, 400])
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
        "GPU idle 16.3 % of 634 ms; 15.4 % (97.6 ms) because of 5 of 6 sync sites; "
        "worst: read_loss gpu_bound.py:28, 53.3 ms over 40 calls"
    )
    assert page.locator("h2").all_inner_texts() == [
        "Where the time went",
        "What to do first",
        "Plots",
        "Sync sites",
        "Syncs inside NVTX ranges",
        "The rest of the idle time",
        "Start-up",
        "Coverage",
        "Causes and advice",
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


def test_filter_by_verdict(browser: Browser, tmp_path: Path) -> None:
    opened = Opened(browser, tmp_path, render_sample.gpu_bound())
    page = opened.page
    choice = page.get_by_label("Verdict")
    assert choice.locator("option").all_inner_texts() == ["all", "can go", "needed", "asked for", "not known"]
    for label, functions in (
        ("can go", ["read_loss", "upload"]),
        ("needed", ["clip", "sum_positive"]),
        ("asked for", ["main"]),
        ("not known", ["download"]),
    ):
        choice.select_option(label=label)
        assert opened.functions() == functions
        labels = page.locator("#sites > tbody:not([hidden]) > tr:first-child em").all_inner_texts()
        assert all(shown.startswith(label) for shown in labels)
    choice.select_option(label="needed")
    page.get_by_label("Filter").fill("mask")
    wait_for(page, "1 of 6 sites shown")
    assert opened.functions() == ["sum_positive"]
    choice.select_option(label="all")
    page.get_by_label("Filter").press("Escape")
    wait_for(page, "6 of 6 sites shown")
    page.get_by_label("Filter").fill("summed can go")  # evidence and verdict are texts to be found
    wait_for(page, "1 of 6 sites shown")
    assert opened.functions() == ["read_loss"]
    opened.assert_quiet()


def test_what_to_do_first(browser: Browser, tmp_path: Path) -> None:
    opened = Opened(browser, tmp_path, render_sample.gpu_bound())
    page = opened.page
    section = page.locator("section:has(#first)")
    assert section.locator("h3").all_inner_texts() == [
        "1. read_loss gpu_bound.py:28: stall 53.3 ms (8.4 % of the window), 40 calls, every step",
        "3. clip gpu_bound.py:40: stall 14.4 ms (2.3 % of the window), 40 calls, every step",
        "2. upload gpu_bound.py:23: stall 18.6 ms (2.9 % of the window), 40 calls, every step",
        "5. sum_positive gpu_bound.py:34: stall 686 µs (0.11 % of the window), 40 calls, every step",
    ]
    assert section.locator("em").all_inner_texts() == [
        "can go (likely)",
        "needed: control flow",
        "can go",
        "needed: dynamic shape",
    ]
    text = section.inner_text()
    for expected in (
        "Of 97.6 ms stall in the sites: 71.9 ms can go (2 sites), 15.1 ms needed (2 sites)",
        "only summed and printed: total += loss.item().",
        "Why it waits: one number is read. The value lives on the GPU.",
        "    total += step(x).detach()\nprint(total.item())",
        "Beware: The graph of each step is kept alive",
        "Data-dependent shape: also breaks CUDA-graph capture.",
        "main gpu_bound.py:69: 1 of 1 wait found nothing to wait for: can go.",
        "60 reads in 20 runs, of which 20 would be left.",
    ):
        assert expected in text, expected
    link = section.locator("a[href^=https]").first
    assert link.get_attribute("rel") == "noreferrer noopener"
    assert link.inner_text() == "https://docs.pytorch.org/docs/stable/generated/torch.Tensor.item.html"
    opened.assert_quiet()


@pytest.mark.parametrize(("width", "side_by_side"), [(1280, True), (400, False)])
def test_details_give_the_advice_in_place(browser: Browser, tmp_path: Path, width: int, side_by_side: bool) -> None:
    opened = Opened(browser, tmp_path, render_sample.gpu_bound(), viewport={"width": width, "height": 900})
    page = opened.page
    page.locator("#s1 summary").first.click()
    advice = page.locator("#s1 .advice")
    assert advice.locator(".title").all_inner_texts() == [
        "Keep the loss on the GPU and read it once, after the loop",
        "Read it only every 100 steps",
    ]
    before, after = (figure.bounding_box() for figure in advice.first.locator("figure").all())
    assert before and after
    assert (before["y"] == after["y"]) is side_by_side
    assert after["x"] + after["width"] <= width
    text = page.locator("#s1").inner_text()
    for expected in (
        "one number is read (certain)",
        "To hand it to Python, the CPU waits until all work queued before it is done.",
        "native frame _local_scalar_dense_cuda",
        "the file as it is now, not changed since the capture",
        "these 3 reads can be 1",
    ):
        assert expected in text, expected
    page.locator("#s6 summary").first.click()
    assert "1 of 1 wait found nothing to wait for: can go." in page.locator("#s6").inner_text()
    page.locator("#s4 summary").first.click()
    assert "What to do, in this order" not in page.locator("#s4").inner_text()
    opened.assert_quiet()


def test_ranges_and_host_work(browser: Browser, tmp_path: Path) -> None:
    opened = Opened(browser, tmp_path, render_sample.host_bound())
    page = opened.page
    rows = page.locator("section:has(#regions) tbody tr").all_inner_texts()
    assert [row.split("\t") for row in rows] == [
        ["step *", "200", "190", "20 of 20", "read_loss gpu_bound.py:28, clip gpu_bound.py:40"],
        ["warm-up", "5", "0", "1 of 2", "upload gpu_bound.py:23"],
        ["forward", "0", "0", "0 of 20", "sync-free"],
        ["optimizer", "0", "0", "0 of 20", "sync-free"],
    ]
    rest = page.locator("section:has(#rest)")
    assert "estimated from 123 samples, 1 per ms:" in rest.inner_text()
    assert rest.locator("tbody tr").first.inner_text().split("\t") == [
        *("about 65.8 ms", "46.3 %", "57", "data loading", "next_batch w/load.py:12"),
    ]
    assert "CUDA calls in the host-bound time (exact): cudaHostAlloc 31.2 ms over 12 calls" in rest.inner_text()
    assert "Hidden wait for the GPU, which no CUDA call shows: block_until_ready" in rest.inner_text()
    opened.assert_quiet()


def test_there_is_no_section_without_something_to_say() -> None:
    page = render_html(render_sample.unexplained())
    for anchor in ("first", "regions", "advice"):
        assert f'id="{anchor}"' not in page
        assert f'href="#{anchor}"' not in page
    assert "The cause is not known." in page


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
    page.locator('#s1 a[data-copy="n1"]').click()
    assert page.locator("#n1").is_visible()
    assert "THPVariable_item" in page.locator("#n1").inner_text()
    page.locator('#s1 a[data-copy="a2"]').click()
    assert page.url.endswith("#a2")
    assert "Most of the values are never looked at." in page.locator("#a2").inner_text()
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
    for part in ("#first", "#regions", "#rest", "#advice"):
        assert render_sample.ATTACK in page.locator(f"section:has({part})").inner_text(), part
    # The advice of this sample links to a script: its address is text.
    assert page.locator("a:not([href^='#'])").count() == 0
    assert "javascript:alert(1)" in page.locator("#a1").inner_text()
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
    # The worst case: no two sites share a native stack. Where they do, twice as many have details.
    assert detailed >= 50
    # What sites have in common is there once, and of the five at the top once more.
    assert page.content().count("Summing on the GPU queues one small kernel") == 2
    assert page.content().count("Most of the values are never looked at.") == 1
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
    # The calls stand in every row where the cause is not known.
    page = render_html(replace(analysis, causes=(), sites=tuple(replace(site, kind=kind) for site in analysis.sites)))
    assert len(page.encode()) < 2_000_000
    rows = page.count("<tbody id=s")
    assert 1_000 < rows < 5_000
    assert f"{5_000 - rows:,} sites are not listed here: " in page
    assert page.count("<tr class=d>") > 20


def test_many_ranks_of_many_sites() -> None:
    page = render_html(render_sample.many_ranks())
    assert len(page.encode()) < 2_000_000
    assert page.count("<tbody id=s") > 3_500
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
    for kind in ("false", "true", "explicit", "unknown"):
        label, ground = (opened.page.evaluate(value, f"--v-{kind}{end}") for end in ("", "-bg"))
        assert _contrast(label, ground) >= 4.5, kind
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
