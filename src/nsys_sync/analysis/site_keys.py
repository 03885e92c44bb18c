"""Which operations are one site: equal in location, kind and cause."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from nsys_sync import model
from nsys_sync.analysis.attributed import Attributed
from nsys_sync.analysis.calls import PID_MASK
from nsys_sync.analysis.causes import Facts, Finding, agreed, find_cause
from nsys_sync.analysis.intervals import IntArray
from nsys_sync.analysis.locate import EXACT, NATIVE, NVTX, THREAD
from nsys_sync.analysis.sites import SiteKey, group_keys
from nsys_sync.analysis.source import Source, SourceUse
from nsys_sync.analysis.source_rules import RETURNED
from nsys_sync.analysis.user_code import cut, python_location
from nsys_sync.analysis.verdict import FAMILY, explain, shows_call
from nsys_sync.trace.api_names import base_name
from nsys_sync.trace.schema import COPY_KINDS, MEMORY_KINDS
from nsys_sync.trace.tables import BoolArray, FrameArray

LONGEST_LABEL = 120
CALLERS_FOLLOWED, CALLERS_READ = 4, 16
"""How many callers up a returned value is followed, and how many different ones at most."""
STACKS_READ = 5_000
"""Groups of operations whose native stack is read whole; of more, those with most operations."""
LIBRARY_FRAMES = 40
"""Innermost Python frames of libraries that a rule gets to see."""


def sites_of(one: Attributed, nvtx: IntArray, nvtx_names: Sequence[str]) -> tuple[IntArray, IntArray, list[SiteKey]]:
    """Per operation how it was located and its site; and what each site is."""
    operations, calls, trace = one.operations, one.calls, one.trace
    how = one.python.how.copy()
    native, native_names = _names_of_chains(one.native_labels, one.chain_id)
    how[(how < 0) & (native >= 0)] = NATIVE
    how[(how < 0) & (nvtx >= 0)] = NVTX
    how[how < 0] = THREAD
    in_python = one.python.event >= 0
    frame = np.where(in_python, one.python.frame, 0)
    nothing = np.full(len(operations), -1, dtype=np.int64)

    def of_frames(values: FrameArray) -> IntArray:
        return np.where(in_python, values[frame].astype(np.int64), -1) if len(values) else nothing

    place = np.where(in_python, 0, how)
    file, function = of_frames(trace.python.frame_file), of_frames(trace.python.frame_function)
    line = of_frames(trace.python.frame_line)
    other = np.select([how == NATIVE, how == NVTX, how == THREAD], [native, nvtx, operations.thread], -1)
    base_names = [base_name(name) for name in trace.api_names]
    base_codes: IntArray = (
        pd.factorize(np.array(base_names, dtype=object))[0] if base_names else np.empty(0, dtype=np.int64)
    )
    api = base_codes[calls.name_of(operations.call)]
    folded = (operations.copy_call >= 0) & (operations.copy_call != operations.call)
    copy_api = np.where(folded, base_codes[calls.name_of(operations.copy_call)], -1)
    location_and_api: list[IntArray] = [place, file, function, line, other, api, copy_api]
    location_and_api += [operations.copy_kind, operations.src_kind, operations.dst_kind]
    if not len(operations):
        return how, nothing, []

    stack_kind = np.asarray(one.stack_kinds.reindex(one.chain_id, fill_value=0), dtype=np.int64)
    library = python_stack_hash(one, one.python.library_frames)
    exact = how == EXACT
    group, first = group_keys([*location_and_api, stack_kind, library, exact.astype(np.int64)])
    findings = _findings(one, group, first, folded, exact)
    line_and_kind, _ = group_keys([column[first] for column in location_and_api])
    findings = list(agreed(findings, line_and_kind, (one.chain_id[first] >= 0).tolist()))

    uses = _source_uses(one, first, findings, _Frames(file, function, line), group)
    sites: dict[SiteKey, int] = {}
    site_of_group = np.empty(len(first), dtype=np.int64)
    for code, (row, finding, use) in enumerate(zip(first.tolist(), findings, uses, strict=True)):
        if place[row] == 0:
            location = python_location(one.shown_files[file[row]], one.shown_functions[function[row]], int(line[row]))
        else:
            location = model.Location(
                _other_label(one, int(how[row]), int(other[row]), native_names, nvtx_names), None, None, None
            )
        verdict = explain(finding, *use, in_python=place[row] == 0)
        key = SiteKey(location, _kind(one, row, bool(folded[row]), finding.operation), finding.cause.id, verdict)
        site_of_group[code] = sites.setdefault(key, len(sites))
    return how, site_of_group[group], list(sites)


def _findings(one: Attributed, group: IntArray, first: IntArray, folded: BoolArray, exact: BoolArray) -> list[Finding]:
    """The cause of each group of operations, by its first one."""
    operations, python = one.operations, one.trace.python
    by_size = np.argsort(-np.bincount(group, minlength=len(first)), kind="stable")[:STACKS_READ]
    chains = one.chain_id[first[by_size]]
    native = one.native_stacks(chains[chains >= 0].tolist())
    findings = []
    for row in first.tolist():
        begin = int(python.first[one.python.event[row]]) if one.python.event[row] >= 0 else 0
        inside = range(begin, begin + min(int(one.python.library_frames[row]), LIBRARY_FRAMES))
        copies = operations.copy_call[row] >= 0
        facts = Facts(
            apis=_apis(one, row, bool(folded[row])),
            copy_kind=COPY_KINDS.get(int(operations.copy_kind[row])) if copies else None,
            src_memory=MEMORY_KINDS.get(int(operations.src_kind[row])) if copies else None,
            dst_memory=MEMORY_KINDS.get(int(operations.dst_kind[row])) if copies else None,
            native=native.get(int(one.chain_id[row])),
            # As they are: a user called `torch` must not hide PyTorch's folders from the rules.
            library=tuple(
                f"{python.files[python.frame_file[i]]}:{python.functions[python.frame_function[i]]}" for i in inside
            ),
            exact=bool(exact[row]),
        )
        findings.append(_as_shown(one, find_cause(facts)))
    return findings


def _as_shown(one: Attributed, finding: Finding) -> Finding:
    evidence = tuple(one.shown(text) if text.startswith("Python") else text for text in finding.cause.evidence)
    return replace(finding, cause=replace(finding.cause, evidence=evidence))


@dataclass(frozen=True)
class _Frames:
    """One Python frame an operation, as codes; -1 without."""

    file: IntArray
    function: IntArray
    line: IntArray


def _source_uses(
    one: Attributed, first: IntArray, findings: Sequence[Finding], place: _Frames, group: IntArray
) -> list[tuple[SourceUse | None, str | None]]:
    """For each group what its source line says, and why that file is taken for the one that ran.

    A file is not believed where most of the lines that must show a certain call do not: it is another version.
    """
    sources = _Sources(one)
    sources.read(np.unique(place.file[first]))
    uses: list[SourceUse | None] = []
    told: dict[int, list[bool]] = {}
    for row, finding in zip(first.tolist(), findings, strict=True):
        file = int(place.file[row])
        source = sources.of(file)
        family = FAMILY.get(finding.cause.id, "other")
        use = None
        if source is not None:
            function, line = one.trace.python.functions[place.function[row]], int(place.line[row])
            use = source.use(function, line, family)
            if finding.cause.id == "compare" and finding.operation is not None:
                use = source.use_of_result(function, line, re.sub(r"^.*\.|\(.*$", "", finding.operation)) or use
        if use is not None:
            shows = shows_call(finding, use, _called_by_user(one, row))
            if shows is not None:
                told.setdefault(file, []).append(shows)
            use = use if shows is not False else None
        uses.append(use)
    sources.disbelieve({code for code, shown in told.items() if 2 * sum(shown) < len(shown)})
    rows = np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group))[:-1])
    result: list[tuple[SourceUse | None, str | None]] = []
    for row, own, use in zip(first.tolist(), rows, uses, strict=True):
        basis = sources.basis(int(place.file[row]))
        if use is None or basis is None:
            result.append((None, None))
            continue
        result.append((_in_callers(one, sources, own, use), basis))
    return result


def _called_by_user(one: Attributed, row: int) -> str | None:
    """The library's function that the user's line called; None where the line itself made the call."""
    python = one.trace.python
    if not one.python.library_frames[row]:
        return None
    return str(python.functions[python.frame_function[one.python.frame[row] - 1]])


def _in_callers(one: Attributed, sources: _Sources, rows: IntArray, use: SourceUse) -> SourceUse:
    """What becomes of a value that is returned, if all callers do the same with it."""
    python, frame = one.trace.python, one.python.frame[rows]
    end = python.first[one.python.event[rows]] + python.count[one.python.event[rows]]
    result = use
    for level in range(1, CALLERS_FOLLOWED + 1):
        if result.dependency is not None or result.reason != RETURNED or (frame + level >= end).any():
            return result if result.dependency is not None else use
        at = frame + level
        callers = (
            python.frame_file[at],
            python.frame_function[at],
            python.frame_line[at],
            python.frame_function[at - 1],
        )
        calls = np.unique(np.stack(callers), axis=1).T.tolist()
        if len(calls) > CALLERS_READ:
            return use
        found = [
            source.use_of_result(python.functions[caller], line, python.functions[callee]) if source else None
            for file, caller, line, callee in calls
            for source in [sources.of(file)]
        ]
        decided = {(known.dependency, known.reason == RETURNED) for known in found if known is not None}
        if None in found or len(decided) != 1 or not found[0]:
            return use
        there = found[0]
        evidence = "; ".join(part for part in (result.evidence, there.evidence) if part)
        result = replace(use, dependency=there.dependency, reason=there.reason, certainty="likely", evidence=evidence)
    return result if result.dependency is not None else use


class _Sources:
    """The user's files, read and parsed when they are first asked for."""

    def __init__(self, one: Attributed) -> None:
        self._one = one
        self._parsed: dict[int, tuple[Source, str] | None] = {-1: None}

    def read(self, files: IntArray) -> None:
        """All of these at once: a search below --source-root is then made once."""
        self._one.read_sources([self._one.trace.python.files[file] for file in files.tolist() if file >= 0])

    def of(self, file: int) -> Source | None:
        entry = self._entry(file)
        return entry[0] if entry else None

    def basis(self, file: int) -> str | None:
        entry = self._entry(file)
        return entry[1] if entry else None

    def disbelieve(self, files: set[int]) -> None:
        self._parsed.update(dict.fromkeys(files))

    def _entry(self, file: int) -> tuple[Source, str] | None:
        if file not in self._parsed:
            path = self._one.trace.python.files[file]
            found = self._one.read_sources([path]).get(path)
            source = Source.parse(found.text) if found else None
            self._parsed[file] = (source, found.basis) if found and source else None
        return self._parsed[file]


def python_stack_hash(one: Attributed, frames: IntArray | None) -> IntArray:
    """Per operation: equal for equal Python stacks, or for equal innermost `frames`; 0 without."""
    python, event = one.trace.python, one.python.event
    result = np.zeros(len(event), dtype=np.int64)
    rows = np.flatnonzero(event >= 0 if frames is None else (event >= 0) & (frames > 0))
    if not len(rows):
        return result
    used, inverse = np.unique(event[rows], return_inverse=True)
    first, count = python.first[used], python.count[used]
    if frames is not None:
        count = np.zeros_like(count)
        count[inverse] = frames[rows]
    begins = np.cumsum(count) - count
    within = np.arange(count.sum()) - np.repeat(begins, count)
    frame = np.repeat(first, count) + within
    mixed = pd.util.hash_array(
        python.frame_function[frame].astype(np.int64) * 1_000_003
        + python.frame_file[frame].astype(np.int64) * 10_007
        + python.frame_line[frame].astype(np.int64) * 101
        + within
    )
    result[rows] = np.add.reduceat(mixed, begins).astype(np.int64)[inverse]
    return result


def _names_of_chains(name_of: pd.Series[str], chain_id: IntArray) -> tuple[IntArray, list[str]]:
    """For each chain id the code of its name, -1 without one, and the names."""
    codes, names = pd.factorize(name_of.to_numpy())
    found = pd.Index(name_of.index).get_indexer(chain_id)
    return np.where(found >= 0, codes[found], -1) if len(codes) else found, [str(name) for name in names]


def _other_label(one: Attributed, how: int, code: int, native_names: Sequence[str], nvtx_names: Sequence[str]) -> str:
    if how == NATIVE:
        return cut(native_names[code], LONGEST_LABEL)
    if how == NVTX:
        return cut(one.shown(f"NVTX range {nvtx_names[code]}"), LONGEST_LABEL)
    tid = int(one.calls.global_tids[code])
    name = one.trace.thread_names.get(tid) or one.trace.process_names.get(tid >> 24) or "unnamed"
    return f"thread {one.shown(name)} (pid {(tid >> 24) & PID_MASK}, tid {tid & PID_MASK})"


def _apis(one: Attributed, row: int, folded: bool) -> tuple[str, ...]:
    """Base names of the operation's calls: the copy's, where it has one of its own, and the synchronizing one's."""
    calls = [one.operations.copy_call[row], one.operations.call[row]] if folded else [one.operations.call[row]]
    return tuple(cut(base_name(one.trace.api_names[one.calls.name_of(np.array([call]))[0]])) for call in calls)


def _kind(one: Attributed, row: int, folded: bool, operation: str | None) -> model.Kind:
    operations, apis = one.operations, _apis(one, row, folded)
    copy_kind = src = dst = None
    technical = apis[-1]
    if operations.copy_call[row] >= 0:
        copy_kind = COPY_KINDS.get(int(operations.copy_kind[row]), "copy of unknown direction")
        src = MEMORY_KINDS.get(int(operations.src_kind[row]), "unknown memory")
        dst = MEMORY_KINDS.get(int(operations.dst_kind[row]), "unknown memory")
        technical = f"{copy_kind} copy, {src} to {dst}" + (f", then {apis[-1]}" if folded else f" ({apis[-1]})")
    return model.Kind(
        label=f"{operation}: {technical}" if operation else technical,
        apis=apis,
        copy_kind=copy_kind,
        src_memory=src,
        dst_memory=dst,
        operation=operation,
    )
