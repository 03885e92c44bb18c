"""Runs a program as `python` would, and counts where it makes the CPU wait for the GPU.

Started by `detect` in the Python of the program, where nothing but this folder need be installed (`command`). PyTorch
is imported when the program does so, and its sync debug mode set to "warn" when the program initialises CUDA: a program
that starts processes by `fork` before that may go on doing so.

A warning of the mode is taken at the filters of `warnings`, the one place that C code asks for every warning and before
it remembers which it has shown. It goes no further, unless the program has set the mode to "warn" itself.
"""

from __future__ import annotations

import _thread
import functools
import io
import os
import pkgutil
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, SupportsIndex

from nsys_sync.live.explicit_calls import ExplicitCall, explicit_calls
from nsys_sync.live.findings import Recorder, is_own

DEFAULT, WARN = 0, 1
_TORCH_SAYS = re.compile(r"called a synchronizing \w+ operation")
_ON_SETTING = "Synchronization debug mode is a prototype"
"""What PyTorch warns of once, when the mode is first set: which was our doing, not the program's."""
_START = "import sys; sys.path.insert(0, sys.argv[1]); from nsys_sync.live import watched; watched.main()"
_PACKAGE_IN = str(Path(__file__).parents[2])


def command(python: str, findings: Path, program: Sequence[str]) -> list[str]:
    """What to start. `program` is a file, or `-m` and a module, and its arguments; `findings` a folder."""
    return [python, "-c", _START, _PACKAGE_IN, str(findings), *program]


def main() -> None:
    """Becomes the program. Ends as the program does, with its exit status and traceback."""
    package_in, findings, *program = sys.argv[1:]
    sys.path.remove(package_in)
    watch(Recorder(findings))
    try:
        _run(program)
    except BaseException as error:
        # The interpreter shows it, and ends as it would have: only what it shows is without our frames.
        _show_without_own_frames(error)
        raise


def _run(program: Sequence[str]) -> None:
    """As Python does, which runs modules, folders and zip files with these functions of `runpy` too."""
    import runpy

    sys.orig_argv[:] = [sys.executable, *program]
    for name in [name for name in vars(sys.modules["__main__"]) if not name.startswith("__")]:
        delattr(sys.modules["__main__"], name)
    if program[0] == "-m":
        sys.argv[:] = ["-m", *program[2:]]
        _set_first_path(str(Path.cwd()))
        runpy._run_module_as_main(program[1])  # type: ignore[attr-defined]
        return
    sys.argv[:] = program
    path = os.path.join(Path.cwd(), program[0])  # noqa: PTH118 (`.` and `..` stay, unlike with `Path`)
    if pkgutil.get_importer(program[0]) is not None:  # a folder or a zip file
        _set_first_path(path, always=True)
        runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]
        return
    _set_first_path(os.path.dirname(os.path.realpath(path)))  # noqa: PTH120
    _run_file(path)


def _run_file(path: str) -> None:
    module = sys.modules["__main__"]
    module.__file__ = path
    module.__loader__ = SourceFileLoader("__main__", path)
    vars(module)["__cached__"] = None
    with io.open_code(path) as file:
        code = pkgutil.read_code(file)
    if code is None:
        with io.open_code(path) as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, vars(module))


def _set_first_path(folder: str, *, always: bool = False) -> None:
    """In the place where Python has put "" for `-c`; where it was told not to, it would not put the folder either."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = folder
    elif always:
        sys.path.insert(0, folder)


def _show_without_own_frames(error: BaseException) -> None:
    shown = sys.excepthook

    def show(kind: type[BaseException], value: BaseException, raised: TracebackType | None) -> Any:
        sys.excepthook = shown
        cleaned = _without_own_frames(raised)
        return shown(kind, value.with_traceback(cleaned) if value is error else value, cleaned)

    sys.excepthook = show


def _without_own_frames(raised: TracebackType | None) -> TracebackType | None:
    entries = []
    while raised is not None:
        entries.append(raised)
        raised = raised.tb_next
    kept = None
    # The outermost one is `_START`.
    for entry in reversed(entries[1:]):
        if not is_own(entry.tb_frame.f_code):
            kept = TracebackType(kept, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return kept


def watch(recorder: Recorder) -> None:
    """From now on: when this process imports PyTorch, and again when it initialises CUDA."""
    watching = _Watching(recorder)
    warnings.filters = _Filters(("ignore", watching, Warning, None, 0), warnings.filters)
    sys.meta_path.insert(0, _AfterTorch(watching.begin))


class _Watching:
    """What is changed in PyTorch, and the filter that its warnings meet."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._of_thread: Any = _thread._local()
        self._programs_mode = DEFAULT

    def begin(self, torch: Any) -> None:
        """Once PyTorch is imported, in the same breath."""
        self._recorder.note(torch=str(torch.__version__), folder=os.path.dirname(torch.__file__ or ""))  # noqa: PTH120
        for call in explicit_calls(torch):
            # What `torch.cuda.synchronize` calls is among them, and the function itself one that is best left alone:
            # torch.compile knows it.
            if call.owner is not torch.cuda:
                setattr(call.owner, call.name, self._counting(getattr(call.owner, call.name), call))
        native = torch._C
        set_mode = getattr(native, "_cuda_set_sync_debug_mode", None)
        if set_mode is None:
            return

        def set_programs_mode(mode: int) -> None:
            set_mode(mode if mode != DEFAULT else WARN)
            self._programs_mode = mode

        native._cuda_set_sync_debug_mode = set_programs_mode
        native._cuda_get_sync_debug_mode = lambda: self._programs_mode

        def start() -> None:
            if self._programs_mode == DEFAULT:
                self._of_thread.is_setting = True
                set_mode(WARN)
                self._of_thread.is_setting = False
            self._recorder.note(mode=WARN)

        torch.cuda._lazy_call(start)

    def match(self, message: str) -> bool:
        """Asked by `warnings`, as the pattern of a filter, on the thread and at the line that warns."""
        if message.startswith(_ON_SETTING):
            return getattr(self._of_thread, "is_setting", False)
        if not _TORCH_SAYS.match(message):
            return False
        if not self._is_in_explicit_call():
            self._recorder.count(sys._getframe(1))
        return self._programs_mode != WARN

    def _is_in_explicit_call(self) -> bool:
        return getattr(self._of_thread, "is_in_call", False)

    def _counting(self, original: Callable[..., Any], call: ExplicitCall) -> Callable[..., Any]:
        @functools.wraps(original)
        def synchronize(*args: Any, **kwargs: Any) -> Any:
            if self._is_in_explicit_call():
                return original(*args, **kwargs)
            self._recorder.count(sys._getframe(1), call.shown, call.cause)
            self._of_thread.is_in_call = True
            try:
                return original(*args, **kwargs)
            finally:
                self._of_thread.is_in_call = False

        return synchronize


class _Filters(list[Any]):
    """`warnings.filters` with one entry that stays in front, whatever the program and `catch_warnings` do."""

    def __init__(self, ours: tuple[Any, ...], filters: Iterable[Any]) -> None:
        super().__init__((ours, *(one for one in filters if one is not ours)))
        self._ours = ours

    def _put_in_front(self) -> None:
        super().__setitem__(slice(None), [self._ours, *self._others()])

    def _others(self) -> list[Any]:
        return [one for one in self if one is not self._ours]

    def insert(self, index: SupportsIndex, item: Any) -> None:
        super().insert(index, item)
        self._put_in_front()

    def remove(self, item: Any) -> None:
        super().remove(item)
        self._put_in_front()

    def clear(self) -> None:
        self[:] = []

    def copy(self) -> _Filters:
        return _Filters(self._ours, self)

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return _Filters(self._ours, found) if isinstance(index, slice) else found

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(index, value)
        self._put_in_front()

    def __delitem__(self, index: Any) -> None:
        super().__delitem__(index)
        self._put_in_front()

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        # scikit-learn sends the filters to its worker processes.
        return list, (self._others(),)


class _AfterTorch:
    """A finder that has something done once `torch` is imported, and finds nothing itself."""

    def __init__(self, then: Callable[[Any], None]) -> None:
        self._then = then

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self._then)  # type: ignore[assignment]
                return spec
        return None


class _Loader:
    def __init__(self, loader: Any, then: Callable[[Any], None]) -> None:
        self._loader = loader
        self._then = then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._then(module)
