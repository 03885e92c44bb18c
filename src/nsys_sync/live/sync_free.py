"""Blocks of a running program in which no line may make the CPU wait for the GPU.

PyTorch's sync debug mode is one setting for the process, and so is everything that it can be turned into. The mode
used is "error", because it is the one that misses nothing it knows of: in "warn" mode what a C++ operator does is
printed on stderr instead of becoming a Python warning, any `warnings.simplefilter("ignore")` hides the rest, and the
filters and hooks of `warnings` are the whole process's too.

What that means for threads:

- a block belongs to the thread that opened it, and its innermost block governs a thread. The explicit calls of
  `explicit_calls` fail only on a thread that is inside `sync_free`, or in a backward pass;
- for what PyTorch checks itself, the mode is "error" while a thread is inside `sync_free`, unless another is inside
  `allow_sync`. A thread outside every block that makes such a call gets PyTorch's own RuntimeError: `allow_sync` is
  how it says that it may. While it does, other threads are not seen, and their `sync_free` blocks warn of that;
- a backward pass runs on threads of PyTorch. What it raises there arrives at the line that called it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import linecache
import re
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from nsys_sync.analysis.user_code import is_user_code
from nsys_sync.live.advice import advice_for
from nsys_sync.live.explicit_calls import ExplicitCall, explicit_calls

_ERROR = 2
_TORCH_SAYS = re.compile(r"called a synchronizing \w+ operation")
_OWN_FOLDER = str(Path(__file__).parent)

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class SyncError(AssertionError):
    """A line made the CPU wait for the GPU inside `sync_free`. The message names the line and says what to do."""


# The name under which it is to be caught, and short, because pytest cuts its summary lines.
SyncError.__module__ = "nsys_sync"


class _Block:
    """A block of one thread; as a decorator, a new block around every call."""

    _thread: int | None = None

    def _again(self) -> _Block:
        raise NotImplementedError

    def __enter__(self) -> None:
        with _lock:
            if self._thread is not None:
                raise RuntimeError(f"this {type(self).__name__} block is open: make another one to nest or share it")
            self._thread = threading.get_ident()
            _blocks[self._thread] = (*_blocks.get(self._thread, ()), self)
            _follow_blocks()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        # Blocks in generators close in any order, and perhaps on another thread.
        with _lock:
            if self._thread is None:
                return
            left = tuple(block for block in _blocks[self._thread] if block is not self)
            if left:
                _blocks[self._thread] = left
            else:
                del _blocks[self._thread]
            self._thread = None
            _follow_blocks()

    def __call__(self, function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        """Raises TypeError for generator and async functions: their body runs after the call, outside the block."""
        if (
            inspect.isgeneratorfunction(function)
            or inspect.iscoroutinefunction(function)
            or inspect.isasyncgenfunction(function)
        ):
            raise TypeError(
                f"{function.__qualname__} runs after it was called: use `with {type(self).__name__}(…):` inside it"
            )

        @functools.wraps(function)
        def within_block(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            __tracebackhide__ = True
            with self._again():
                return function(*args, **kwargs)

        return within_block


class sync_free(_Block):
    """Inside the block, a line that makes the CPU wait for the GPU raises `SyncError`.

    Seen is what `torch.cuda.set_sync_debug_mode("error")` sees (`synchronize` of streams among it), and the explicit
    calls that it does not: `synchronize` of `torch.cuda`, its events, and `torch.accelerator`. Afterwards the earlier
    mode is back. Blocks nest, with each other and with `allow_sync`; the module's text says what holds for threads.
    Without PyTorch or CUDA the block does nothing.

    Raises SyncError from PyTorch's RuntimeError, or alone for an explicit call. Code that catches RuntimeError inside
    the block hides what PyTorch found.
    """

    _unseen: str | None = None

    def _again(self) -> sync_free:
        return sync_free()

    def __enter__(self) -> None:
        if missing_requirement() is None:
            # Starts CUDA, which can fail, while nothing has been changed.
            importlib.import_module("torch").cuda.get_sync_debug_mode()
            super().__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        __tracebackhide__ = True
        super().__exit__(kind, error, tb)
        unseen, self._unseen = self._unseen, None
        found = _sync_that_pytorch_found(error)
        if found is not None:
            # A cause that was never raised has no traceback.
            raise _error_at_line_of(found.__traceback__ or tb) from error
        if error is None and unseen is not None:
            warnings.warn(
                f"another thread was inside allow_sync({unseen!r}) meanwhile, which lowers the sync debug mode of the "
                "whole process: not every sync of this sync_free block was seen",
                stacklevel=2,
            )


class allow_sync(_Block):
    """Inside the block, waiting for the GPU is allowed again: what `sync_free` changed is back to what it was.

    Outside `sync_free` it does nothing, imports nothing, and costs some 2 µs, so it may stay in the program.

    Raises TypeError or ValueError unless it is given a reason.
    """

    def __init__(self, reason: str) -> None:
        if not isinstance(reason, str):
            raise TypeError(f'allow_sync needs a reason, a text: allow_sync("the loss is logged"), not {reason!r}')
        if not reason.strip():
            raise ValueError('allow_sync needs a reason that says something: allow_sync("the loss is logged")')
        self._reason = reason

    def _again(self) -> allow_sync:
        return allow_sync(self._reason)


def missing_requirement() -> str | None:
    """Why nothing can be checked here, or None."""
    try:
        torch = importlib.import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return "PyTorch is not installed"
    return None if torch.cuda.is_available() else "there is no CUDA GPU (torch.cuda.is_available() is False)"


class _Watch:
    """What is changed in PyTorch while a `sync_free` block is open, and how it was before."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._earlier_mode = torch.cuda.get_sync_debug_mode()
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self.enforcing = False
        for call in explicit_calls(torch):
            owner, name = call.owner, call.name
            before = vars(owner).get(name)
            ours = _refusing(getattr(owner, name), call)
            setattr(owner, name, ours)
            self._replaced.append((owner, name, before, ours))

    def enforce(self, wanted: bool) -> None:
        if wanted != self.enforcing:
            self._torch.cuda.set_sync_debug_mode(_ERROR if wanted else self._earlier_mode)
            self.enforcing = wanted

    def end(self) -> None:
        for owner, name, before, ours in self._replaced:
            if vars(owner).get(name) is not ours:
                continue  # replaced again by the test, which has to undo that itself
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        # Whatever the program itself has set meanwhile.
        self._torch.cuda.set_sync_debug_mode(self._earlier_mode)

    def refuses_in_backward(self) -> bool:
        """In a backward pass on a thread of PyTorch, which does not know the thread that called it."""
        task = getattr(getattr(self._torch, "_C", None), "_current_graph_task_id", None)
        return self.enforcing and task is not None and task() != -1


# GC may close a suspended generator, and with it a block, while its thread holds the lock.
_lock = threading.RLock()
_blocks: dict[int, tuple[_Block, ...]] = {}
"""By thread, outermost first. Changed under the lock, read without."""
_watch: _Watch | None = None


def _follow_blocks() -> None:
    global _watch
    if not any(isinstance(block, sync_free) for blocks in _blocks.values() for block in blocks):
        if _watch is not None:
            ended, _watch = _watch, None
            ended.end()
        return
    if _watch is None:
        _watch = _Watch(sys.modules["torch"])
    innermost = [blocks[-1] for blocks in _blocks.values()]
    refusing = [block for block in innermost if isinstance(block, sync_free)]
    allowing = [block for block in innermost if isinstance(block, allow_sync)]
    if allowing:
        for block in refusing:
            block._unseen = allowing[0]._reason
    _watch.enforce(bool(refusing) and not allowing)


def _refusing(original: Callable[..., Any], call: ExplicitCall) -> Callable[..., Any]:
    @functools.wraps(original)
    def synchronize(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if _refused_here():
            raise _error_at_calling_line(call)
        return original(*args, **kwargs)

    return synchronize


def _refused_here() -> bool:
    blocks = _blocks.get(threading.get_ident())
    if blocks:
        return isinstance(blocks[-1], sync_free)
    watch = _watch
    return watch is not None and watch.refuses_in_backward()


def _sync_that_pytorch_found(error: BaseException | None) -> BaseException | None:
    while error is not None and not (isinstance(error, RuntimeError) and _TORCH_SAYS.search(str(error))):
        error = error.__cause__
    return error


def _error_at_line_of(raised: TracebackType | None) -> SyncError:
    """Its traceback ends at the user's line, which so is the one that pytest gives as the place of the failure."""
    entries = []
    while raised is not None:
        entries.append(raised)
        raised = raised.tb_next
    last = _users_innermost([entry.tb_frame.f_code.co_filename for entry in entries])
    shortened = None
    for entry in reversed(entries[: last + 1]):
        shortened = TracebackType(shortened, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    path, line = entries[last].tb_frame.f_code.co_filename, entries[last].tb_lineno
    return SyncError(_message(path, line)).with_traceback(shortened)


def _error_at_calling_line(call: ExplicitCall) -> SyncError:
    stack = list(traceback.walk_stack(sys._getframe()))[::-1]
    frame, line = stack[_users_innermost([frame.f_code.co_filename for frame, _ in stack])]
    return SyncError(_message(frame.f_code.co_filename, line, call))


def _message(path: str, line: int, call: ExplicitCall | None = None) -> str:
    source = linecache.getline(path, line).strip()
    here = str(Path.cwd())
    shown = str(Path(path).relative_to(here)) if _is_within(path, [here]) else path
    how = f" with {call.shown}" if call else ""
    advice = advice_for(path, line, call.cause if call else None)
    return f"{shown}:{line} makes the CPU wait for the GPU{how}: {source}\n{advice}"


def _users_innermost(paths: Sequence[str]) -> int:
    """The index of the last frame that is the user's own code, else of the last; `paths` outermost first."""
    torch_folders = list(getattr(sys.modules.get("torch"), "__path__", ()))
    foreign = [at for at, path in enumerate(paths) if not _is_within(path, [_OWN_FOLDER])]
    users = [at for at in foreign if is_user_code(paths[at]) and not _is_within(paths[at], torch_folders)]
    return (users or foreign or [len(paths) - 1])[-1]


def _is_within(path: str, folders: Iterable[str]) -> bool:
    return any(path.startswith(f"{folder}/") for folder in folders)
