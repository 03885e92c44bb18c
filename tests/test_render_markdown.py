"""Markdown as GitHub reads it: short, whole, and nothing in it that a trace has written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
import render_sample
from conftest import Capture
from markdown_it import MarkdownIt
from markdown_it.token import Token

from nsys_sync import analyze
from nsys_sync.model import Analysis
from nsys_sync.render.markdown import SITES_SHOWN, render_markdown
from nsys_sync.render.markdown_text import LARGEST_BYTES, code, escape_cell, fenced, html_code, with_code

OWN_TAGS = re.compile(r"</?(?:details|summary|code)>|<br>")
SAMPLES: dict[str, Callable[[], Analysis]] = {
    **{
        name: getattr(render_sample, name)
        for name in ("gpu_bound", "host_bound", "unexplained", "refused", "ranks", "started", "nothing", "hostile")
    },
    "many sites": lambda: render_sample.many(5_000),
    "many ranks": lambda: render_sample.many_ranks(64, 100),
    "names of a megabyte": lambda: render_sample.long_names("`|<b>@x" * 150_000),
    "names of marks": lambda: render_sample.long_names("`|\\`*_[x](y)<script>#12 @me ~~~ \n\n# h\n- x\n"),
}


def parsed(text: str) -> list[Token]:
    """As GitHub reads it: CommonMark with tables, strikethrough, and bare addresses made links."""
    reader = MarkdownIt("gfm-like", {"html": True, "linkify": True})
    assert reader.linkify is not None
    reader.linkify.set({"fuzzy_link": False})  # GitHub makes no link of `tensor.to`
    return reader.parse(text)


def inline(tokens: list[Token]) -> list[Token]:
    return [child for token in tokens if token.children for child in token.children]


def text_outside_code(pieces: list[Token]) -> Iterator[str]:
    """Where GitHub looks for mentions and references."""
    in_code = False
    for piece in pieces:
        if piece.type == "html_inline":
            in_code = piece.content == "<code>"
        elif piece.type == "text" and not in_code:
            yield piece.content


def own_links(analysis: Analysis) -> set[str]:
    return {advice.link for advice in analysis.advice if advice.link.startswith("https://")}


def require_harmless(text: str, links: set[str]) -> list[Token]:
    """Nothing but the renderer's own elements; the tokens."""
    tokens = parsed(text)
    pieces = inline(tokens)
    allowed = {
        "text",
        "code_inline",
        "softbreak",
        "html_inline",
        "strong_open",
        "strong_close",
        "link_open",
        "link_close",
    }
    assert {piece.type for piece in pieces} <= allowed, {piece.type for piece in pieces} - allowed
    assert {piece.attrGet("href") for piece in pieces if piece.type == "link_open"} <= links
    html = [piece.content for piece in pieces if piece.type == "html_inline"]
    html += [tag for token in tokens if token.type == "html_block" for tag in re.findall(r"<[^>]*>", token.content)]
    assert all(OWN_TAGS.fullmatch(tag) for tag in html), [tag for tag in html if not OWN_TAGS.fullmatch(tag)][:3]
    blocks = {token.type for token in tokens} - {"html_block", "inline", "fence"}
    kinds = {block.removesuffix("_open").removesuffix("_close") for block in blocks}
    assert kinds <= {"paragraph", "table", "thead", "tbody", "tr", "th", "td", "bullet_list", "list_item"}, kinds
    shown = " ".join(text_outside_code(pieces))
    assert not re.search(r"@\w|#\d|\bGH-\d|://\w|www\.", shown)
    assert text.isprintable() or not re.search(r"[^\n\u200b]", "".join(ch for ch in text if not ch.isprintable()))
    assert text.count("<details>") == text.count("</details>") == text.count("<summary>") == text.count("</summary>")
    return tokens


def tables(tokens: list[Token]) -> list[list[int]]:
    """For each table the number of cells of each row."""
    result: list[list[int]] = []
    for token in tokens:
        if token.type == "table_open":
            result.append([])
        elif token.type == "tr_open":
            result[-1].append(0)
        elif token.type in ("td_open", "th_open"):
            result[-1][-1] += 1
    return result


@pytest.mark.parametrize("name", SAMPLES)
def test_whatever_the_trace_holds(name: str) -> None:
    analysis = SAMPLES[name]()
    text = render_markdown(analysis)
    assert len(text.encode()) <= LARGEST_BYTES
    found = tables(require_harmless(text, own_links(analysis)))
    assert all(len({*rows}) == 1 for rows in found)
    if analysis.sites:
        assert found[0] == [7] * (1 + min(len(analysis.sites), SITES_SHOWN))


def test_a_real_capture(capture: Capture) -> None:
    analysis = analyze(capture("sync_heavy.schema-3.20.3"))
    text = render_markdown(analysis)
    require_harmless(text, own_links(analysis))
    assert text.startswith(
        r"**GPU idle 75.6 % of 222 ms; 9.7 % (21.5 ms) because of 14 of 15 sync sites; worst: log\_loss"
    )
    assert (
        "| 1 | 7.13 ms | 3.2 % | 20 | 7.13 ms | `/workspace/sync_heavy.py:20` `log_loss` | **not known**; reads" in text
    )
    assert "5 more sites below the table's end: 77 calls" in text
    assert "<details><summary>What to do about <code>log_loss sync_heavy.py:20</code>" in text
    assert "```python\nscale = 1.0 / x.norm()\ny = x * scale\n```" in text
    assert "317 of 317 sync operations located by an exact Python stack." in text
    assert len(text.encode()) < 20_000


def test_host_bound_time_and_evidence() -> None:
    text = render_markdown(render_sample.host_bound())
    assert "| 65.8 ms | data loading: next\\_batch w/load.py:12 (57 of 123 samples) |" in text
    assert "native frame `_local_scalar_dense_cuda`" in text
    assert "Data-dependent shape: also breaks CUDA-graph capture." in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("native frame `a_b`; `c`", "native frame `a_b`; `c`"),
        ("`a``b`", r"\`a\`\`b\`"),
        ("one ` alone", r"one \` alone"),
        ("`a|b` *c*", r"<code>a&#124;b</code> \*c\*"),
        ("1. x", r"1\. x"),
        ("- x", r"\- x"),
        ("# x", r"\# x"),
        ("    x", "x"),
    ],
)
def test_sentences(text: str, shown: str) -> None:
    assert with_code(text) == shown


def test_code_cannot_end_its_block() -> None:
    block = fenced(["a", "````", "b"], "python")
    (token,) = parsed(block)
    assert (token.type, token.content, token.info) == ("fence", "a\n````\nb\n", "python")


@pytest.mark.parametrize("text", ["</code></summary><b>", "a & b", "@me https://x.y"])
def test_summaries(text: str) -> None:
    (token,) = parsed(f"<details><summary>{html_code(text)}</summary>")
    assert not re.search(r"<b>|@m|://x", token.content) and token.content.count("<") == 5


def test_escaped_text_is_shown_as_it_is() -> None:
    for text in ("*a* _b_ `c` <d> [e](f) ![g](h) | ~~i~~ &amp; \\*", "1) j", "+ k", "www.l.com x@y.com http://m.n"):
        shown = "".join(piece.content for piece in inline(parsed(escape_cell(text))))
        assert shown.replace("\u200b", "") == text
        assert {piece.type for piece in inline(parsed(escape_cell(text)))} == {"text"}
    (piece,) = inline(parsed(code("@x #1 <b> https://c.d")))
    assert (piece.type, piece.content) == ("code_inline", "@x #1 <b> https://c.d")
