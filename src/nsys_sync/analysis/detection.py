"""From the waits that a watched program showed to sites: where, why, whether they can go. Nothing is known of time."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from glob import escape

from nsys_sync import __version__, model
from nsys_sync.analysis.advice import advice_texts, cause_texts
from nsys_sync.analysis.causes import UNKNOWN, Finding, find_cause_in_python
from nsys_sync.analysis.expressions import Expressions, Operation
from nsys_sync.analysis.source import Source
from nsys_sync.analysis.user_code import is_user_code, python_location, shown
from nsys_sync.analysis.verdict import FAMILY, Verdict, explain
from nsys_sync.live.findings import Findings, RunningFrame, Wait

SOURCE_BASIS = "unchanged since the program began"
LISTED_THREADS = 8
UNSEEN = (
    "How long the CPU waits, and what that costs the GPU: nsys-sync profile measures both.",
    "Waits below PyTorch: CuPy, Numba, JAX, NCCL, CUDA calls of extensions, and cudaFree and pinned allocation.",
    "Copies with non_blocking=True that wait all the same, because their memory is not pinned.",
    "What PyTorch's sync debug mode does not cover: torch.distributed, torch.sparse, torch.unique(dim=…), and "
    "synchronize() of the device-neutral torch.Stream and torch.Event.",
    "The line within a backward pass of an operator of PyTorch: its wait is counted where backward() is called.",
    "Operators that are called past PyTorch's Python functions (torch.ops, C++ threads): PyTorch prints their warnings "
    "on standard error, and they are not counted.",
    "Processes that the program starts other than by fork (torch.multiprocessing, torchrun). A report per rank: "
    "torchrun --no-python nsys-sync detect -o RANK.json train.py",
)
"""What a run with the sync debug mode cannot show, in the order in which a reader should know it."""

ReadSources = Callable[[Sequence[str]], Mapping[str, str]]
"""Paths → the texts of those files that can be read, and are the ones that ran."""
_APPLIED = "torch/nn/modules/module.py:_apply"
_BACKWARD = ("torch/autograd/graph.py:_engine_run_backward", "torch/autograd/__init__.py:backward")


@dataclass(frozen=True)
class _Place:
    """Where waits are counted together."""

    file: str
    function: str
    line: int
    operation: str | None
    cause: str


@dataclass
class _Site:
    verdict: Verdict
    waits: list[Wait] = field(default_factory=list)


class _Files:
    """The sources of the frames, each parsed once for what is asked of it."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        self._sources: dict[str, Source | None] = {}
        self._expressions: dict[str, Expressions | None] = {}

    def source(self, path: str) -> Source | None:
        if path not in self._sources:
            self._sources[path] = Source.parse(self._texts[path]) if path in self._texts else None
        return self._sources[path]

    def operation(self, frame: RunningFrame) -> Operation | None:
        """What the expression does that the frame was at."""
        if frame.file not in self._expressions:
            text = self._texts.get(frame.file)
            self._expressions[frame.file] = None if text is None else Expressions.parse(text)
        expressions = self._expressions[frame.file]
        return expressions.operation(frame.line, frame.span) if expressions else None


def detection(
    findings: Findings,
    *,
    program: str,
    exit_status: int,
    read_sources: ReadSources,
    user_code: Sequence[str] = (),
    library_code: Sequence[str] = (),
    top: int | None = None,
) -> model.Detection:
    """Groups the waits by the user's line and their cause, most calls first."""

    # A PyTorch built from source does not lie where packages are installed.
    libraries = (*library_code, f"{escape(findings.torch_folder)}/*") if findings.torch_folder else library_code

    def is_users(frame: RunningFrame) -> bool:
        return is_user_code(frame.file, user_code, libraries)

    waits = [wait for wait in findings.waits if wait.frames]
    # The sources of the user's line, and of the innermost one: that is where PyTorch was called.
    asked_for = {frame.file for wait in waits for frame in (wait.frames[0], wait.frames[_users(wait, is_users) or 0])}
    files = _Files(read_sources(sorted(asked_for)))
    found: dict[_Place, _Site] = {}
    for wait in waits:
        at = _users(wait, is_users)
        frame = wait.frames[at or 0]
        finding = _finding(wait, at, files)
        source = files.source(frame.file)
        use = source.use(frame.function, frame.line, FAMILY.get(finding.cause.id, "other")) if source else None
        verdict = explain(finding, use, SOURCE_BASIS if source else None)
        place = _Place(frame.file, frame.function, frame.line, finding.operation, verdict.cause.id)
        found.setdefault(place, _Site(verdict)).waits.append(wait)
    sites = sorted((_site(place, one, is_users) for place, one in found.items()), key=_rank)
    kept, omitted = sites[:top], sites[top:] if top is not None else []
    without_frames = sum(wait.count for wait in findings.waits if not wait.frames)
    return model.Detection(
        schema_version=model.DETECTION_SCHEMA_VERSION,
        tool_version=__version__,
        program=program,
        exit_status=exit_status,
        torch_version=findings.torch_version,
        watched_processes=findings.watched_processes,
        calls=sum(wait.count for wait in findings.waits) + findings.lost,
        sites=tuple(kept),
        omitted_sites=len(omitted),
        omitted_calls=sum(site.calls for site in omitted),
        lost_calls=findings.lost + without_frames,
        causes=cause_texts(site.cause.id for site in kept),
        advice=advice_texts(tried for site in kept for tried in site.advice),
        unseen=UNSEEN,
    )


def _users(wait: Wait, is_users: Callable[[RunningFrame], bool]) -> int | None:
    """The index of the innermost frame that is the user's own code, None without one."""
    return next((at for at, frame in enumerate(wait.frames) if is_users(frame)), None)


def _finding(wait: Wait, at: int | None, files: _Files) -> Finding:
    """Why it waited. `at` is the index of the user's frame."""
    if wait.call is not None and wait.cause is not None:
        return Finding(model.Cause(wait.cause, "certain", (f"the program calls {wait.call}",)), wait.call)
    # Without a line of the user's, all of the stack is a library's.
    library = tuple(f"{frame.file}:{frame.function}" for frame in wait.frames[:at])
    found = find_cause_in_python(library)
    if found is not None:
        return found
    users_frame, innermost_frame = wait.frames[at or 0], wait.frames[0]
    users, innermost = files.operation(users_frame), files.operation(innermost_frame)
    operation, frame = innermost, innermost_frame
    if any(one.endswith(_APPLIED) for one in library):
        # Each tensor of a module is moved by the same line of PyTorch; where to, the user's line says.
        operation, frame = users, users_frame
        if operation is not None and operation.cause == "upload":
            operation = Operation("module-to", operation.shown)
    if operation is not None and operation.cause is not None:
        where = f"line {frame.line}" if frame is users_frame else _file_and_line(frame)
        cause = model.Cause(operation.cause, "likely", (f"{where} was at {_quoted(operation)} when PyTorch warned",))
        return Finding(cause, operation.shown)
    evidence = "PyTorch says that the line waits, and not why"
    if library and library[0].endswith(_BACKWARD):
        evidence = "PyTorch passes the warnings of a backward pass on when it ends, at the line that called it"
    shown_operation = users or innermost
    return Finding(
        model.Cause(UNKNOWN, "open", (evidence,)), None if shown_operation is None else shown_operation.shown
    )


def _quoted(operation: Operation) -> str:
    return f"`{operation.shown}`"


def _file_and_line(frame: RunningFrame) -> str:
    return f"{'/'.join(frame.file.split('/')[-3:])}:{frame.line}"


def _site(place: _Place, one: _Site, is_users: Callable[[RunningFrame], bool]) -> model.DetectedSite:
    file = shown(place.file, {})
    commonest = max(one.waits, key=lambda wait: wait.count)
    key = (file, place.function, place.line, place.operation, place.cause)
    return model.DetectedSite(
        id=hashlib.sha256(repr(key).encode("utf-8", "surrogatepass")).hexdigest()[:12],
        location=python_location(file, place.function, place.line),
        operation=place.operation,
        cause=one.verdict.cause,
        dependency=one.verdict.dependency,
        # That of the unknown cause is to run with the sync debug mode, as was done.
        advice=() if one.verdict.cause.id == UNKNOWN else one.verdict.advice,
        source=one.verdict.source,
        calls=sum(wait.count for wait in one.waits),
        threads=_threads(one.waits),
        python_stack=tuple(
            model.Frame(frame.function, shown(frame.file, {}), frame.line, is_users(frame))
            for frame in commonest.frames
        ),
        stack_variants=len({(wait.frames, wait.call) for wait in one.waits}),
    )


def _threads(waits: Iterable[Wait]) -> tuple[model.DetectedThread, ...]:
    calls: Counter[tuple[int, str | None]] = Counter()
    for wait in waits:
        calls[wait.pid, wait.thread] += wait.count
    return tuple(model.DetectedThread(pid, name, count) for (pid, name), count in calls.most_common(LISTED_THREADS))


def _rank(site: model.DetectedSite) -> tuple[int, str, int, str]:
    return -site.calls, site.location.file or "", site.location.line or 0, site.id
