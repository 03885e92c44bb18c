"""Text from a trace, made harmless in GitHub's Markdown: in table cells, lists and paragraphs."""

from __future__ import annotations

import re

from nsys_sync.render.text import NAME_LENGTH, plain_name

_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_BROKEN = "&#8203;"
"""A space without width: what it splits is no mention, issue number or address any more."""
_MARKUP = re.compile(r"[\\`*_\[\]|~$]")
_LINKED = re.compile(r"[@#](?=\w)|://|www(?=\.)|\b(?:GH|gh)(?=-\d)")


def escape_cell(text: str, length: int = NAME_LENGTH) -> str:
    """`text` as prose on one line, shown as it is: no markup, HTML, link, mention of a person, or end of a cell."""
    shown = "".join(_ENTITIES.get(ch, ch) for ch in plain_name(text, length))
    shown = _MARKUP.sub(lambda match: "\\" + match[0], shown)
    return _LINKED.sub(lambda match: match[0] + _BROKEN, shown)


def code(text: str, length: int = NAME_LENGTH) -> str:
    """`text` as code on one line, in a table too. Empty for nothing."""
    shown = plain_name(text, length)
    if not shown.strip():
        return ""
    if not {"`", "|"} & set(shown):
        return f"`{shown.strip()}`"
    # A backquote would end the code, and a bar the cell, with or without a backslash in some renderers.
    return f"<code>{''.join(ch if ch.isalnum() or ch == ' ' else f'&#{ord(ch)};' for ch in shown.strip())}</code>"
