"""The JSON form: every field of the model but `Analysis.operations`, under the model's own names."""

from __future__ import annotations

import json
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from nsys_sync.model import Analysis, Comparison, Detection

if TYPE_CHECKING:
    from collections.abc import Callable

# Frozen dataclasses hold no cycles: looking for them costs a tenth of the time.
_STRICT: dict[str, Any] = {
    "ensure_ascii": False,
    "allow_nan": False,
    "check_circular": False,
    "separators": (",", ":"),
}


def render_json(result: Analysis | Comparison | Detection) -> str:
    """Strict JSON (no NaN), one object, ending with a newline. Always encodable as UTF-8."""
    text = json.dumps(result, default=_as_dict, **_STRICT)
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate in a name: strict readers refuse its escape
        text = text.encode("utf-8", "replace").decode()
    return text + "\n"


def _as_dict(value: Any) -> dict[str, Any]:
    kind: Any = type(value)
    names, values = _fields(kind)
    return dict(zip(names, values(value), strict=True))


@cache
def _fields(kind: type) -> tuple[tuple[str, ...], Callable[[object], tuple[Any, ...]]]:
    left_out = "operations" if kind is Analysis else None
    names = tuple(field.name for field in fields(kind) if field.name != left_out)
    return names, attrgetter(*names)
