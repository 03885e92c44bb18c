"""Reads a saved analysis, as `--format json` writes it: the inverse of `render.json_report`.

The file is somebody's input, so nothing in it is believed: every field has the type that the model says, indexes point
at something, a device's parts add up to its window, and the sites' stalls to those of the devices.
"""

from __future__ import annotations

import json
import math
import re
import types
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from nsys_sync import model
from nsys_sync.errors import TraceError
from nsys_sync.regular_files import read_start

LARGEST_FILE_BYTES = 256 * 1024 * 1024
"""Some 100,000 sites. Reading takes about ten times a file's size of memory."""
LARGEST_NUMBER = 2**63
"""Ids in a damaged trace can be any that fit 64 bits."""
_AGAIN = "Write it again with nsys-sync report TRACE --format json -o FILE.json"

Decode = Callable[[Any], Any]
T = TypeVar("T")


class _DamagedField(Exception):
    """`where` is the field's path, such as `.sites[3].calls`, filled in on the way out."""

    def __init__(self, what: str, where: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where


def is_saved_analysis(path: Path) -> bool:
    """Whether `path` is to be read by `read_analysis`: it is named `.json`, or is a file that begins like JSON."""
    if path.suffix.lower() == ".json":
        return True
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(64).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{")
    except OSError:
        return False  # whoever opens it as a trace will say what is wrong


def read_analysis(path: str | Path) -> model.Analysis:
    """The analysis in a JSON report; its `operations` are empty, as that form leaves them out.

    Fields that this version does not know are ignored. Raises TraceError for a file that cannot be read, is no saved
    analysis, was made in another schema version, or is damaged: the message names the field.
    """
    path = Path(path)
    data = _object(path)
    version = data.get("schema_version")
    if not isinstance(version, str) or not {"traces", "sites"} <= data.keys():
        raise TraceError(f"{path}: is no saved analysis of nsys-sync (JSON of another kind). {_AGAIN}")
    _require_known(version, path)
    try:
        analysis: model.Analysis = _decoder(model.Analysis)(data)
        _check(analysis)
    except _DamagedField as error:
        raise TraceError(
            f"{path}: is damaged: the field {error.where.lstrip('.')[:200]} {error.what}. {_AGAIN}"
        ) from error
    return analysis


def _object(path: Path) -> dict[str, Any]:
    try:
        content = read_start(path, LARGEST_FILE_BYTES + 1)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror}). Name a JSON report of nsys-sync") from error
    if len(content) > LARGEST_FILE_BYTES:
        raise TraceError(
            f"{path}: is larger than {LARGEST_FILE_BYTES >> 20} MiB, and no analysis should be. Keep the worst sites "
            "only: nsys-sync report TRACE --top 1000 --format json"
        )
    try:
        data = json.loads(content.decode("utf-8-sig"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        what = "nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
        raise TraceError(f"{path}: is not valid JSON ({what}). {_AGAIN}") from error
    if not isinstance(data, dict):
        raise TraceError(f"{path}: is no saved analysis of nsys-sync (no JSON object). {_AGAIN}")
    return data


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _require_known(version: str, path: Path) -> None:
    """The same first number, and no older second one: 1.0 has no causes, without which sites cannot be told apart."""
    own_major, own_minor = (int(part) for part in model.SCHEMA_VERSION.split("."))
    major, _, minor = version.partition(".")
    if not all(part.isascii() and part.isdigit() and len(part) < 6 for part in (major, minor)):
        raise TraceError(f"{path}: is damaged: the field schema_version is no version ({version[:40]!r}). {_AGAIN}")
    if int(major) > own_major:
        raise TraceError(
            f"{path}: was made by a newer nsys-sync (schema {version}; this one reads {model.SCHEMA_VERSION}). "
            "Upgrade nsys-sync, or write it again with this one"
        )
    if (int(major), int(minor)) < (own_major, own_minor):
        raise TraceError(
            f"{path}: was made by an older nsys-sync (schema {version}, which lacks fields of {model.SCHEMA_VERSION}). "
            f"{_AGAIN}"
        )


@cache
def _decoder(hint: Any) -> Decode:
    """What turns JSON into a value of the type `hint`, raising _DamagedField."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return _list_decoder(_decoder(arguments[0]))
        return _row_decoder([_decoder(one) for one in arguments])
    if origin in (Union, types.UnionType):
        (inner,) = (_decoder(one) for one in arguments if one is not type(None))
        return lambda value: None if value is None else inner(value)
    if origin is Literal:
        return _choice_decoder(arguments)
    if is_dataclass(hint) and isinstance(hint, type):
        return _object_decoder(hint)
    return {str: _text, int: _whole, float: _number, bool: _flag}[hint]


def _object_decoder(kind: type[T]) -> Callable[[Any], T]:
    import pyarrow as pa  # named in the model's hints; the command line must start without it

    hints = get_type_hints(kind, localns={"pa": pa})
    filled: dict[str, Any] = {}
    if kind is model.Analysis:
        filled["operations"] = pa.table({name: pa.nulls(0) for name in model.OPERATION_COLUMNS})
    decoders = [
        (field.name, f".{field.name}", _decoder(hints[field.name]))
        for field in fields(kind)  # type: ignore[arg-type]
        if field.name not in filled
    ]

    def decode(value: Any) -> T:
        if type(value) is not dict:
            raise _DamagedField("is no object")
        values = dict(filled)
        for name, where, inner in decoders:
            if name not in value:
                raise _DamagedField("is missing", where)
            try:
                values[name] = inner(value[name])
            except _DamagedField as error:
                error.where = where + error.where
                raise
        return kind(**values)

    return decode


def _list_decoder(inner: Decode) -> Decode:
    def decode(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise _DamagedField("is no list")
        index = 0
        try:
            decoded = []
            for index, one in enumerate(value):  # noqa: B007 (read where decoding fails)
                decoded.append(inner(one))
        except _DamagedField as error:
            error.where = f"[{index}]{error.where}"
            raise
        return tuple(decoded)

    return decode


def _row_decoder(inner: list[Decode]) -> Decode:
    def decode(value: Any) -> tuple[Any, ...]:
        if type(value) is not list or len(value) != len(inner):
            raise _DamagedField(f"is no list of {len(inner)}")
        return tuple(one(part) for one, part in zip(inner, value, strict=True))

    return decode


def _choice_decoder(choices: tuple[str, ...]) -> Decode:
    def decode(value: Any) -> str:
        if type(value) is not str or value not in choices:
            raise _DamagedField(f"is none of {', '.join(choices)}")
        return value

    return decode


def _text(value: Any) -> str:
    if type(value) is not str:
        raise _DamagedField("is no text")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int or abs(value) > LARGEST_NUMBER:
        raise _DamagedField("is no whole number" if type(value) is not int else "is too large")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise _DamagedField("is no number")
    if not math.isfinite(value) or abs(value) > LARGEST_NUMBER:
        raise _DamagedField("is too large")
    return float(value)


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise _DamagedField("is neither true nor false")
    return value


def _check(analysis: model.Analysis) -> None:
    """What the types cannot say, and what readers of the model rely on."""
    frames, native_frames = range(len(analysis.frames)), range(len(analysis.native_frames))
    ids = set[str]()
    for number, site in enumerate(analysis.sites):
        where = f".sites[{number}]"
        if site.id in ids:
            raise _DamagedField("is there twice", f"{where}.id")
        ids.add(site.id)
        for name, indexes, valid in (
            ("python_stack", site.python_stack, frames),
            ("native_stack", site.native_stack, native_frames),
        ):
            if not all(index in valid for index in indexes):
                raise _DamagedField("points at no frame", f"{where}.{name}")
        if len(site.stall_quantiles_ns) not in (0, 21):
            raise _DamagedField("has neither 0 nor 21 values", f"{where}.stall_quantiles_ns")
    for number, trace in enumerate(analysis.traces):
        for position, device in enumerate(trace.devices):
            _check_device(device, f".traces[{number}].devices[{position}]")
    devices = [device for trace in analysis.traces for device in trace.devices]
    if sum(device.window_ns for device in devices) != analysis.window_ns:
        raise _DamagedField("is not the sum of the windows of the devices", ".window_ns")
    stalls = [device.stall_ns for device in devices]
    if devices and analysis.stall_ns != (None if None in stalls else sum(stall or 0 for stall in stalls)):
        raise _DamagedField("is not the sum of the stalls of the devices", ".stall_ns")
    _check_sites(analysis)


def _check_sites(analysis: model.Analysis) -> None:
    """Every stall is some site's, shown or omitted; with one process selected, the other sites are in neither."""
    for number, site in enumerate(analysis.sites):
        where = f".sites[{number}]"
        if site.calls < 1:
            raise _DamagedField("is less than 1", f"{where}.calls")
        if site.location.line is not None and site.location.line < 0:
            raise _DamagedField("is negative", f"{where}.location.line")
        if site.stall is not None and site.stall.total_ns < 0:
            raise _DamagedField("is negative", f"{where}.stall.total_ns")
        ratio = site.stall.total_ns / analysis.window_ns if site.stall and analysis.window_ns else None
        if site.stall_ratio != ratio and (
            ratio is None or site.stall_ratio is None or not math.isclose(site.stall_ratio, ratio, rel_tol=1e-9)
        ):
            raise _DamagedField("is not the stall's share of the window", f"{where}.stall_ratio")
    parts = [site.stall.total_ns if site.stall else None for site in analysis.sites]
    parts += [analysis.omitted.stall_ns] if analysis.omitted else []
    known = [part for part in parts if part is not None]
    of_one_process = re.search(r"(^|; )process \d+", analysis.selection or "") is not None
    incomplete = of_one_process or len(known) < len(parts)
    if analysis.stall_ns is not None and (
        sum(known) > analysis.stall_ns or (sum(known) < analysis.stall_ns and not incomplete)
    ):
        raise _DamagedField("is not the sum of the stalls of the sites", ".stall_ns")


def _check_device(device: model.Device, where: str) -> None:
    timeline = device.timeline
    bins = len(timeline.busy_ns)
    for name in (field.name for field in fields(timeline) if field.name not in ("start_ns", "bin_ns")):
        if len(getattr(timeline, name)) != bins:
            raise _DamagedField("has another length than the other parts", f"{where}.timeline.{name}")
    if device.window_ns < 0:
        raise _DamagedField("is negative", f"{where}.window_ns")
    idle = (device.stall_ns, device.host_bound_ns, device.device_side_ns)
    known = [ns for ns in idle if ns is not None]
    if device.idle_ns is None or len(known) < len(idle):
        if device.idle_ns is not None or known:
            raise _DamagedField("and its parts are not known together", f"{where}.idle_ns")
    elif sum(known) != device.idle_ns:
        raise _DamagedField("is not the sum of its parts", f"{where}.idle_ns")
    elif (
        device.busy_ns + device.idle_ns + (device.profiler_ns or 0) + (device.not_captured_ns or 0) + device.outside_ns
        != device.window_ns
    ):
        raise _DamagedField("is not the sum of its parts", f"{where}.window_ns")
