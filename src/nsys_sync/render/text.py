"""Numbers and names as people read them. Every number carries its unit; what is not known says so."""

from __future__ import annotations

NOT_KNOWN = "not known"
NAME_LENGTH = 300
"""Characters of one name that a person gets to see. The JSON report has more of it."""

_UNITS = ((1, "ns"), (1_000, "µs"), (1_000_000, "ms"), (1_000_000_000, "s"))


def duration(ns: float | None) -> str:
    """A duration with three significant digits and its unit: `53.3 ms`; whole nanoseconds below 1 µs are exact."""
    if ns is None:
        return NOT_KNOWN
    if ns < 0:
        return "-" + duration(-ns)
    if ns < 1_000 and ns == int(ns):
        return f"{int(ns)} ns"
    for scale, unit in _UNITS:
        value = ns / scale
        # Compared after rounding, so that 999.7 µs is "1.00 ms" and never "1000 µs".
        if value < 999.5:
            return f"{_three_digits(value)} {unit}"
    return f"{ns / 1_000_000_000:,.0f} s"


def ratio(part: float | None, whole: float | None = 1) -> str:
    """`part` of `whole` in percent: `12.3 %`. Not known where either is, or where `whole` is 0."""
    if part is None or not whole:
        return NOT_KNOWN
    percent = 100 * part / whole
    if percent == 0:
        return "0 %"
    if abs(percent) < 0.01:
        return "< 0.01 %" if percent > 0 else "> -0.01 %"
    if abs(percent) < 0.995:
        return f"{percent:.2f} %"
    return f"{percent:.1f} %"


def count(number: float | None, noun: str | None = None, nouns: str | None = None) -> str:
    """`1 call`, `5,000 calls`; a mean such as 15.9 keeps one decimal."""
    if number is None:
        return NOT_KNOWN
    shown = f"{number:,.0f}" if number == int(number) else f"{number:,.1f}"
    if noun is None:
        return shown
    return f"{shown} {noun if shown == '1' else nouns or noun + 's'}"


def time_point(ns: int) -> str:
    """A moment since the session start in seconds, exact to the nanosecond, to be typed into the Nsight GUI."""
    sign = "-" if ns < 0 else ""
    seconds, rest = divmod(abs(ns), 1_000_000_000)
    return f"{sign}{seconds}.{rest:09d} s"


def plain(text: str) -> str:
    """`text` with everything that could steer a terminal or reorder a line made visible.

    Control codes, ESC, newlines, bidirectional overrides, zero-width characters and lone surrogates become escapes
    such as `\\x1b` and `\\u202e`. The result can always be encoded as UTF-8.
    """
    if text.isprintable():
        return text
    return "".join(ch if ch.isprintable() else ch.encode("unicode_escape").decode("ascii") for ch in text)


def plain_name(text: str, length: int = NAME_LENGTH) -> str:
    """`text` from a trace, harmless and in at most `length` characters whatever the trace holds."""
    if len(text) > 2 * length:  # what `clip` would take out of the middle need not be made plain
        text = text[:length] + text[-length:]
    return clip(plain(text), length)


def clip(text: str, length: int) -> str:
    """`text` in at most `length` characters, its middle left out: both ends of a symbol tell something."""
    if len(text) <= length:
        return text
    head = (length - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (length - 1 - head) :]}"


def short_file(file: str, parents: int = 1) -> str:
    """The file's name and its nearest `parents` folders; a path from the root with no others stays whole."""
    parts = file.replace("\\", "/").split("/")
    left_out = parts[: -1 - parents]
    return file if left_out == [""] else "/".join(parts[len(left_out) :])


def _three_digits(value: float) -> str:
    if value < 9.995:
        return f"{value:.2f}"
    if value < 99.95:
        return f"{value:.1f}"
    return f"{value:.0f}"
