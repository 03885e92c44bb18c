"""Text from a trace, made harmless in GitHub's Markdown: in table cells, lists and paragraphs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from nsys_sync.render.text import NAME_LENGTH, plain_name

SENTENCE_LENGTH = 1200
LARGEST_BYTES = 60_000
"""GitHub refuses comments above 65,536 characters."""

_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_BROKEN = "&#8203;"
"""A space without width: what it splits is no mention, issue number or address any more."""
_MARKUP = re.compile(r"[\\`*_\[\]|~$]")
_LINKED = re.compile(r"[@#](?=\w)|://|www(?=\.)|\b(?:GH|gh)(?=-\d)")


_BLOCK = re.compile(r"^(\d{0,9})([-+=#.)])(?=\s|$)")
"""What would begin a list or a heading."""


def escape_cell(text: str, length: int = NAME_LENGTH) -> str:
    """`text` as prose on one line, shown as it is: no markup, HTML, link, mention of a person, or end of a cell."""
    return _begun(plain_name(text.strip(), length))


def with_code(text: str, length: int = SENTENCE_LENGTH) -> str:
    """As `escape_cell`, but what stands in backticks is code."""
    parts = plain_name(text.strip(), length).split("`")
    if len(parts) < 3 or len(parts) % 2 == 0 or not all(part.strip() for part in parts[1:-1]):
        return escape_cell(text, length)  # no pairs, or two that would become one
    return "".join(
        code(part, length) if i % 2 else _escaped(part) if i else _begun(part) for i, part in enumerate(parts)
    )


def code(text: str, length: int = NAME_LENGTH) -> str:
    """`text` as code on one line, in a table too. Empty for nothing."""
    shown = plain_name(text, length)
    if not shown.strip():
        return ""
    if not {"`", "|"} & set(shown):
        return f"`{shown.strip()}`"
    # A backquote would end the code, and a bar the cell, with or without a backslash in some renderers.
    shown = _LINKED.sub(lambda match: f"{match[0]}\u200b", shown.strip())
    return f"<code>{''.join(ch if ch.isalnum() or ch == ' ' else f'&#{ord(ch)};' for ch in shown)}</code>"


def html_text(text: str, length: int = NAME_LENGTH) -> str:
    """`text` as prose where Markdown is not read: in `<summary>`."""
    shown = "".join(_ENTITIES.get(ch, ch) for ch in plain_name(text.strip(), length))
    return _LINKED.sub(lambda match: match[0] + _BROKEN, shown)


def html_code(text: str, length: int = NAME_LENGTH) -> str:
    """`text` as code where Markdown is not read: in `<summary>`."""
    return f"<code>{html_text(text, length)}</code>"


def listed(sentences: Iterable[str]) -> str:
    """A list of sentences, each `with_code`."""
    return "\n".join(f"- {with_code(sentence)}" for sentence in sentences)


def fenced(lines: Sequence[str], language: str = "") -> str:
    """A block of code; the lines must be harmless on a terminal already."""
    runs = [len(run) for line in lines for run in re.findall("`+", line)]
    fence = "`" * max(3, 1 + max(runs, default=0))
    return "\n".join([f"{fence}{language}", *lines, fence])


def row(*cells: str) -> str:
    """A row of a table. The cells must be escaped already."""
    return f"| {' | '.join(cells)} |"


def rule(alignment: str) -> str:
    """The row below a table's header: `l` and `r` for each column."""
    return row(*("--:" if side == "r" else ":--" for side in alignment))


def details(summary: str, *blocks: str) -> str:
    """Blocks that are folded away; `summary` must be HTML already."""
    return "\n\n".join([f"<details><summary>{summary}</summary>", *blocks, "</details>"])


def fitted(blocks: Iterable[str], left_out: str, most_bytes: int = LARGEST_BYTES) -> str:
    """As many of the blocks, in order, as fit; `left_out` ends the text where one does not."""
    kept: list[str] = []
    size = len(left_out.encode()) + 2
    for block in blocks:
        size += len(block.encode()) + 2
        if size > most_bytes:
            kept.append(left_out)
            break
        kept.append(block)
    return "\n\n".join(kept) + "\n"


def _begun(shown: str) -> str:
    return _BLOCK.sub(r"\1\\\2", _escaped(shown))


def _escaped(shown: str) -> str:
    shown = "".join(_ENTITIES.get(ch, ch) for ch in shown)
    shown = _MARKUP.sub(lambda match: "\\" + match[0], shown)
    return _LINKED.sub(lambda match: match[0] + _BROKEN, shown)
