"""The table `[tool.nsys-sync]` of `pyproject.toml`: the budgets that a project keeps to."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsys_sync.cli.durations import parse_share
from nsys_sync.errors import ConfigError, UsageError
from nsys_sync.model import Allowed
from nsys_sync.regular_files import read_start

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from nsys_sync.analysis.budgets import Budgets

FILE = "pyproject.toml"
TABLE = "tool.nsys-sync"
LARGEST_FILE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class Config:
    """What the table says. `file` is where it stands, None where there is none; `baseline` is the file to read."""

    file: Path | None
    budgets: Budgets
    baseline: Path | None
    nvtx: str | None
    skip_first: int | None


def read_config(file: Path | None, folder: Path) -> Config:
    """The table in `file`; without one, in the nearest `pyproject.toml` of `folder` and its parents that has it.

    Raises ConfigError for a file that cannot be read, UsageError for one that is no TOML, an unknown key or a wrong
    value; the message names both.
    """
    if file is not None:
        table = _table(file)
        if table is None:
            raise UsageError(f"{file}: has no table [{TABLE}]")
        return _config(file, table)
    for parent in (folder, *folder.parents):
        candidate = parent / FILE
        if candidate.is_file():
            table = _table(candidate)
            if table is not None:
                return _config(candidate, table)
    return _config(None, {})


def _table(file: Path) -> dict[str, Any] | None:
    try:
        content = read_start(file, LARGEST_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"{file}: cannot be read ({error.strerror}). Name a TOML file with a table [{TABLE}]"
        ) from error
    if len(content) > LARGEST_FILE_BYTES:
        raise ConfigError(f"{file}: is larger than {LARGEST_FILE_BYTES >> 20} MiB. Name a TOML file with a [{TABLE}]")
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UsageError(f"{file}: is no TOML file (it is in UTF-16). Save it in UTF-8")
    try:
        tool = tomllib.loads(content.decode("utf-8-sig")).get("tool", {})
    except ValueError as error:  # of TOML, or of the encoding
        raise UsageError(f"{file}: is no TOML file ({error})") from error
    table = tool.get("nsys-sync") if isinstance(tool, dict) else None
    if table is None and isinstance(tool, dict) and "nsys_sync" in tool:
        raise UsageError(f"{file}: has a table [tool.nsys_sync]. Name it [{TABLE}], with a hyphen")
    if table is not None and not isinstance(table, dict):
        raise UsageError(f"{file}: [{TABLE}] must be a table")
    return table


def _config(file: Path | None, table: dict[str, Any]) -> Config:
    from nsys_sync.analysis.budgets import Budgets  # pyarrow, only where a check is made

    try:
        given = _read(table, _KEYS, "")
        baseline = given.get("baseline")
        return Config(
            file=file,
            budgets=Budgets(
                max_stall_ratio=given.get("max-stall"),
                max_syncs_per_step=given.get("max-syncs-per-step"),
                sync_free_ranges=given.get("sync-free", ()),
                forbidden_causes=given.get("forbid", ()),
                baseline=baseline,
                allow=given.get("allow", ()),
            ),
            baseline=None if baseline is None or file is None else file.parent / baseline,
            nvtx=given.get("nvtx"),
            skip_first=given.get("skip-first"),
        )
    except UsageError as error:
        raise UsageError(f"{file}: [{TABLE}] {error}") from error


def _read(table: dict[str, Any], keys: dict[str, Callable[[Any, str], Any]], where: str) -> dict[str, Any]:
    for key in table:
        if key not in keys:
            near = get_close_matches(key, keys, n=1)
            meant = f"Did you mean {near[0]}?" if near else f"Known are: {', '.join(keys)}"
            raise UsageError(f"{where}{key}: is no known key. {meant}")
    return {key: keys[key](value, f"{where}{key}") for key, value in table.items()}


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{key}: must be text, not {value!r}")
    return value


def _texts(value: Any, key: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise UsageError(f'{key}: must be a list of text, such as ["{value}"]')
    return tuple(_text(one, key) for one in value)


def _number(value: Any, key: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise UsageError(f"{key}: must be a whole number of 0 or more, not {value!r}")
    return value


def _share(value: Any, key: str) -> float:
    return parse_share(value if isinstance(value, str) else repr(value), key)


def _allow(value: Any, key: str) -> tuple[Allowed, ...]:
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise UsageError(f'{key}: must be a list of tables, such as [{{function = "log_*", reason = "once an epoch"}}]')
    entries = []
    for number, entry in enumerate(value, 1):
        given = _read(entry, _ALLOW_KEYS, f"{key}, entry {number}, ")
        if "reason" not in given:
            raise UsageError(f"{key}, entry {number}: has no reason. Say why it may sync")
        entries.append(Allowed(given.get("function"), given.get("file"), given["reason"]))
    return tuple(entries)


_ALLOW_KEYS: dict[str, Callable[[Any, str], Any]] = {"function": _text, "file": _text, "reason": _text}
_KEYS: dict[str, Callable[[Any, str], Any]] = {
    "max-stall": _share,
    "max-syncs-per-step": _number,
    "sync-free": _texts,
    "forbid": _texts,
    "baseline": _text,
    "allow": _allow,
    "nvtx": _text,
    "skip-first": _number,
}
