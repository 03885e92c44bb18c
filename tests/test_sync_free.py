"""`sync_free`, `allow_sync` and the pytest plugin on a stand-in for PyTorch (`stand_in/torch`).

`scripts/check_sync_free_on_gpu.py` holds the same claims to a real PyTorch and GPU.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
import unittest.mock
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import nsys_sync
from nsys_sync import SyncError, allow_sync, sync_free

pytest_plugins = "pytester"

STAND_IN = Path(__file__).parent / "stand_in"
DEFAULT, WARN, ERROR = 0, 1, 2


def forget_torch() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        del sys.modules[name]


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(STAND_IN))
    module = importlib.import_module("torch")
    importlib.import_module("torch.accelerator")
    before = {owner: dict(vars(owner)) for owner in changeable(module)}
    yield module
    assert {owner: {**vars(owner), "mode": None} for owner in before} == {
        owner: {**names, "mode": None} for owner, names in before.items()
    }
    forget_torch()


def changeable(torch: Any) -> list[Any]:
    return [torch.cuda, torch._C, torch.cuda.Stream, torch.cuda.ExternalStream, torch.cuda.Event]


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """A module of the user's, at `step.py` in the working directory, from source whose line numbers the test knows."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(source: str, path: str = "step.py") -> ModuleType:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source, "utf-8")
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return make


def on_another_thread(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(timeout=10)


class Held:
    """Another thread that keeps a block open between `with`'s beginning and end."""

    def __init__(self, block: Any) -> None:
        self._block, self._opened, self._close = block, threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold)

    def _hold(self) -> None:
        with self._block:
            self._opened.set()
            assert self._close.wait(10)

    def __enter__(self) -> None:
        self._thread.start()
        assert self._opened.wait(10)

    def __exit__(self, *_: object) -> None:
        self._close.set()
        self._thread.join(10)


READS = """\
def step(loss):
    scaled = loss
    return scaled.item()  # line 3
"""


def test_what_pytorch_finds_is_raised_with_the_users_line_and_advice(torch: Any, user_module: Any) -> None:
    step = user_module(READS).step
    with pytest.raises(SyncError) as raised, sync_free():
        step(torch.Tensor())
    first, advice = str(raised.value).split("\n")
    assert first == "step.py:3 makes the CPU wait for the GPU: return scaled.item()  # line 3"
    assert advice.startswith("Try: Use the tensor instead of its number.")
    assert "nsys-sync profile" in advice and "allow_sync" in advice
    assert isinstance(raised.value.__cause__, RuntimeError)
    assert str(raised.value.__cause__) == "called a synchronizing CUDA operation"
    assert isinstance(raised.value, AssertionError)
    assert torch._C.waits == []
    last = raised.traceback[-1]
    assert (Path(last.path).name, last.lineno + 1) == ("step.py", 3)


def test_a_file_elsewhere_is_named_in_full(torch: Any, user_module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    step = user_module(READS, "a/step.py").step
    here = Path.cwd()
    (here / "b").mkdir()
    monkeypatch.chdir(here / "b")
    with pytest.raises(SyncError) as raised, sync_free():
        step(torch.Tensor())
    assert str(raised.value).startswith(f"{here}/a/step.py:3 makes")


def test_the_line_is_the_users_not_that_of_a_library(torch: Any, user_module: Any) -> None:
    library = user_module(READS, "lib/site-packages/library.py")
    code = user_module("def train(library, loss):\n    library.step(loss)\n")
    with (
        pytest.raises(SyncError, match=r"^step\.py:2 makes the CPU wait for the GPU: library\.step\(loss\)\n"),
        sync_free(),
    ):
        code.train(library, torch.Tensor())
    # Nothing but libraries on the way: the innermost line.
    names = {"block": sync_free(), "step": library.step, "loss": torch.Tensor()}
    with pytest.raises(
        SyncError, match=r"/torch/cuda/__init__\.py:\d+ makes the CPU wait for the GPU: raise RuntimeError\("
    ):
        exec(compile("with block: step(loss)", "<string>", "exec"), names)


EXPLICIT = {
    "torch.cuda.synchronize()": "torch.cuda.synchronize()",
    "torch._C._cuda_synchronize()": "torch.cuda.synchronize()",
    "synchronize()": "torch.cuda.synchronize()",
    "torch.accelerator.synchronize()": "torch.accelerator.synchronize()",
    "torch.cuda.Event().synchronize()": "torch.cuda.Event.synchronize()",
}


@pytest.mark.parametrize("call", EXPLICIT)
def test_explicit_calls_are_raised_at_the_users_line(call: str, torch: Any, user_module: Any) -> None:
    step = user_module(f"import torch\nfrom torch.cuda import synchronize\ndef step():\n    {call}\n").step
    with pytest.raises(SyncError) as raised, sync_free():
        step()
    assert str(raised.value).startswith(f"step.py:4 makes the CPU wait for the GPU with {EXPLICIT[call]}: {call}\n")
    assert torch._C.waits == []
    with sync_free(), allow_sync("measured"):
        step()
    step()
    assert len(torch._C.waits) == 2


@pytest.mark.parametrize("stream", ["Stream()", "ExternalStream()", "current_stream()"])
def test_streams_are_what_pytorch_sees_by_itself(stream: str, torch: Any, user_module: Any) -> None:
    call = f"torch.cuda.{stream}.synchronize()"
    step = user_module(f"import torch\ndef step():\n    {call}\n").step
    with pytest.raises(SyncError) as raised, sync_free():
        step()
    assert str(raised.value).startswith(f"step.py:3 makes the CPU wait for the GPU: {call}\n")
    assert isinstance(raised.value.__cause__, RuntimeError)
    with sync_free(), allow_sync("measured"):
        step()


def test_a_subclass_that_calls_its_base_is_found_in_the_subclass(torch: Any, user_module: Any) -> None:
    source = "import torch\nclass Mine(torch.cuda.Event):\n    def synchronize(self):\n        super().synchronize()\n"
    event = user_module(source).Mine()
    with pytest.raises(SyncError, match=r"^step\.py:4 makes"), sync_free():
        event.synchronize()


def test_what_does_not_wait_passes(torch: Any) -> None:
    with sync_free():
        assert torch.cuda.Stream().query()


def test_blocks_nest_and_the_innermost_governs(torch: Any) -> None:
    def refused() -> tuple[int, bool]:
        try:
            torch.cuda.synchronize()
        except SyncError:
            return torch.cuda.mode, True
        return torch.cuda.mode, False

    seen = []
    with allow_sync("outermost"):
        seen.append(refused())
        with sync_free():
            seen.append(refused())
            with allow_sync("logging"):
                seen.append(refused())
                with sync_free(), sync_free():
                    seen.append(refused())
                seen.append(refused())
            seen.append(refused())
        seen.append(refused())
    assert seen == [
        (DEFAULT, False),
        (ERROR, True),
        (DEFAULT, False),
        (ERROR, True),
        (DEFAULT, False),
        (ERROR, True),
        (DEFAULT, False),
    ]


def test_the_earlier_mode_is_what_allow_sync_and_the_end_give_back(torch: Any) -> None:
    torch.cuda.set_sync_debug_mode("warn")
    with allow_sync("no block of ours is open"):
        assert torch.cuda.mode == WARN
    with sync_free():
        with allow_sync("logging"):
            assert torch.cuda.mode == WARN
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.mode == WARN


def test_other_exceptions_pass_unchanged_and_end_the_block(torch: Any) -> None:
    with pytest.raises(ValueError, match=r"^mine$") as raised, sync_free():
        raise ValueError("mine")
    assert raised.value.__cause__ is None
    with pytest.raises(RuntimeError, match=r"^CUDA error: out of memory$"), sync_free():
        raise RuntimeError("CUDA error: out of memory")
    assert torch.cuda.mode == DEFAULT
    torch.cuda.synchronize()


def test_a_sync_wrapped_in_another_exception_is_found_with_its_line(torch: Any, user_module: Any) -> None:
    source = (
        "def step(loss):\n    try:\n        loss.item()\n    except RuntimeError as e:\n        raise KeyError from e\n"
    )
    step = user_module(source).step
    with pytest.raises(SyncError, match=r"^step\.py:3 makes") as raised, sync_free():
        step(torch.Tensor())
    assert isinstance(raised.value.__cause__, KeyError)
    source = "def step():\n    raise KeyError() from RuntimeError('called a synchronizing CUDA operation')\n"
    step = user_module(source).step
    with pytest.raises(SyncError, match=r"^step\.py:2 makes"), sync_free():
        step()


def test_a_replacement_by_the_test_is_left_alone(torch: Any) -> None:
    original = torch.cuda.synchronize
    replacement = unittest.mock.Mock()
    with sync_free():
        ours = torch.cuda.synchronize
        torch.cuda.synchronize = replacement
    assert torch.cuda.synchronize is replacement
    # As `monkeypatch` does later. It is inert then, and a later block works all the same.
    torch.cuda.synchronize = ours
    torch.cuda.synchronize()
    assert torch._C.waits == ["device"]
    with pytest.raises(SyncError), sync_free():
        torch.cuda.synchronize()
    torch.cuda.synchronize = original


def test_an_inherited_method_is_inherited_again(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Derived(torch.cuda.Event):  # type: ignore[name-defined, misc]
        pass

    with monkeypatch.context() as changed:
        changed.setattr(torch.cuda, "Event", Derived)
        with pytest.raises(SyncError), sync_free():
            Derived().synchronize()
    assert "synchronize" not in vars(Derived)


def test_explicit_calls_of_a_thread_outside_pass(torch: Any) -> None:
    with sync_free():
        on_another_thread(torch.cuda.synchronize)
        on_another_thread(torch.cuda.Event().synchronize)
        with pytest.raises(SyncError):
            torch.cuda.synchronize()
    assert torch._C.waits == ["device", "event"]


def test_a_block_of_one_thread_outlives_that_of_another(torch: Any) -> None:
    torch.cuda.set_sync_debug_mode("warn")
    with Held(sync_free()):
        with sync_free():
            pass
        assert torch.cuda.mode == ERROR
        torch.cuda.synchronize()
    assert torch.cuda.mode == WARN


def test_a_thread_may_be_allowed_what_another_is_not_and_that_one_warns(torch: Any) -> None:
    told = r"another thread was inside allow_sync\('logs the loss'\)"
    with pytest.warns(UserWarning, match=told) as warned, sync_free():
        with Held(allow_sync("logs the loss")):
            assert torch.cuda.mode == DEFAULT
            with pytest.raises(SyncError):
                torch.cuda.synchronize()
        assert torch.cuda.mode == ERROR
    assert Path(warned[0].filename).name == "test_sync_free.py"
    with Held(allow_sync("was there first")), pytest.warns(UserWarning, match="was there first"), sync_free():
        assert torch.cuda.mode == DEFAULT


def test_allowing_oneself_warns_of_nothing(torch: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with sync_free(), allow_sync("mine"):
            pass
        with sync_free(), Held(sync_free()):
            pass


def test_many_threads_leave_nothing_behind(torch: Any) -> None:
    def work(seed: int) -> None:
        for turn in range(50):
            with sync_free():
                if (seed + turn) % 3 == 0:
                    with allow_sync("now and then"):
                        torch.cuda.synchronize()
                else:
                    with pytest.raises(SyncError):
                        torch.cuda.synchronize()

    with warnings.catch_warnings(), ThreadPoolExecutor(8) as pool:
        warnings.simplefilter("ignore")
        list(pool.map(work, range(8)))
    assert torch.cuda.mode == DEFAULT


def test_a_sync_of_a_worker_thread_is_found_where_its_result_is_asked_for(torch: Any, user_module: Any) -> None:
    step = user_module(READS).step
    with pytest.raises(SyncError, match=r"^step\.py:3 makes"), sync_free():
        on_another_thread(lambda: step(torch.Tensor()))


def test_a_sync_in_a_backward_pass_is_found(torch: Any, user_module: Any) -> None:
    code = user_module(
        "import torch\ndef read():\n    torch.Tensor().item()\ndef wait():\n    torch.cuda.synchronize()\n"
    )
    loss = torch.Tensor()
    with pytest.raises(SyncError, match=r"^step\.py:3 makes"), sync_free():
        loss.backward(code.read)
    with pytest.raises(SyncError, match=r"^step\.py:5 makes"), sync_free():
        loss.backward(code.wait)
    with sync_free(), allow_sync("the hook logs"):
        loss.backward(code.read)
        loss.backward(code.wait)
    loss.backward(code.wait)
    assert torch._C.waits == ["operation", "device", "device"]


def test_blocks_of_generators_close_in_any_order_and_on_any_thread(torch: Any) -> None:
    def steps() -> Iterator[None]:
        with sync_free():
            yield

    first, second = steps(), steps()
    next(first), next(second)
    first.close()  # type: ignore[attr-defined]
    assert torch.cuda.mode == ERROR
    on_another_thread(second.close)  # type: ignore[attr-defined]
    assert torch.cuda.mode == DEFAULT
    torch.cuda.synchronize()


def test_as_a_decorator_every_call_is_a_block(torch: Any) -> None:
    @sync_free()
    def depth(left: int) -> int:
        assert torch.cuda.mode == ERROR
        return 0 if not left else 1 + depth(left - 1)

    @allow_sync("asked for")
    def read() -> float:
        return torch.Tensor().item()  # type: ignore[no-any-return]

    assert depth(3) == 3
    assert torch.cuda.mode == DEFAULT
    with sync_free():
        assert read() == 0.5
    assert read.__name__ == "read"


def test_what_would_run_outside_the_block_cannot_be_decorated() -> None:
    def generator() -> Iterator[None]:
        yield

    async def coroutine() -> None: ...

    async def async_generator() -> Any:
        yield

    for function in (generator, coroutine, async_generator):
        with pytest.raises(TypeError, match=rf"{function.__name__} runs after it was called: use `with sync_free\("):
            sync_free()(function)
        with pytest.raises(TypeError, match="runs after it was called"):
            allow_sync("why")(function)


def test_one_block_is_not_opened_twice_at_a_time(torch: Any) -> None:
    block = sync_free()
    with block, pytest.raises(RuntimeError, match="this sync_free block is open"):
        block.__enter__()
    with block:
        assert torch.cuda.mode == ERROR
    assert torch.cuda.mode == DEFAULT


def test_allow_sync_wants_a_reason() -> None:
    with pytest.raises(TypeError):
        allow_sync()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="needs a reason, a text"):
        allow_sync(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a reason that says something"):
        allow_sync(" ")


def test_without_cuda_a_block_does_nothing(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_HAS_CUDA", "0")
    before = torch.cuda.synchronize
    with sync_free(), allow_sync("nested"):
        assert torch.cuda.mode == DEFAULT
        assert torch.cuda.synchronize is before


def test_cuda_that_fails_to_start_leaves_no_block(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> int:
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")

    with monkeypatch.context() as broken:
        broken.setattr(torch.cuda, "get_sync_debug_mode", fails)
        with pytest.raises(RuntimeError, match="forked"), sync_free():
            pytest.fail("the block began")
    torch.cuda.synchronize()
    with sync_free():
        assert torch.cuda.mode == ERROR


def run(code: str, *path: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_only_a_sync_free_block_imports_pytorch() -> None:
    loaded = "import sys; print(*sys.modules)"
    enter = "import nsys_sync\nwith nsys_sync.{}: pass\n"
    assert "torch" in run(enter.format("sync_free()") + loaded, STAND_IN).split()
    light = run(enter.format("allow_sync('logging')") + loaded, STAND_IN).split()
    assert not {"torch", "numpy", "pandas", "pyarrow", "pytest"} & set(light)
    plugin = run("import pytest, nsys_sync.live.pytest_plugin\n" + loaded, STAND_IN).split()
    assert not {"torch", "numpy", "pandas", "pyarrow"} & set(plugin)


def test_without_pytorch_a_block_does_nothing_but_a_broken_one_is_reported(tmp_path: Path) -> None:
    absent = "import sys\nsys.modules['torch'] = None\n"
    assert run(f"{absent}import nsys_sync\nwith nsys_sync.sync_free(): print('ran')").strip() == "ran"
    (tmp_path / "torch.py").write_text("import a_part_of_torch\n")
    code = "import nsys_sync\ntry:\n    nsys_sync.sync_free().__enter__()\nexcept ImportError as e: print(e.name)"
    assert run(code, tmp_path).strip() == "a_part_of_torch"


def test_the_plugin_is_installed_with_the_package() -> None:
    installed = {point.value for point in entry_points(group="pytest11")}
    assert "nsys_sync.live.pytest_plugin" in installed
    assert {"sync_free", "allow_sync", "SyncError"} <= set(nsys_sync.__all__)


TESTS = """\
import unittest
import pytest
import torch
from nsys_sync import allow_sync

@pytest.fixture
def around():
    torch.cuda.synchronize()
    assert torch.Tensor().item() == 0.5
    yield
    torch.cuda.synchronize()
    assert torch.cuda.mode == 0

@pytest.mark.sync_free
def test_marked_reads(around):
    torch.Tensor().item()  # line 16

@pytest.mark.sync_free
def test_marked_waits(around):
    torch.cuda.Event().synchronize()  # line 20

@pytest.mark.sync_free
def test_marked_passes(around):
    with allow_sync("the end"):
        torch.cuda.synchronize()
    assert torch.cuda.mode == 2

def test_unmarked_passes(around):
    torch.cuda.synchronize()

def test_fixture_reads(sync_free):
    torch.cuda.synchronize()
    with sync_free():
        torch.Tensor().item()  # line 34

@pytest.mark.sync_free
class TestMarked:
    def test_reads(self):
        torch.Tensor().item()  # line 39

class TestOfUnittest(unittest.TestCase):
    def setUp(self):
        torch.cuda.synchronize()

    @pytest.mark.sync_free
    def test_reads(self):
        torch.Tensor().item()  # line 47

    @pytest.mark.sync_free
    def test_passes(self):
        assert torch.cuda.mode == 2

@pytest.mark.sync_free
def test_replaces(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    torch.cuda.synchronize()

@pytest.mark.sync_free(3)
def test_marker_has_no_arguments():
    pass
"""
LINES = {
    "test_marked_reads": 16,
    "test_marked_waits": 20,
    "test_fixture_reads": 34,
    "TestMarked::test_reads": 39,
    "TestOfUnittest::test_reads": 47,
}


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_marker_and_fixture(options: tuple[str, ...], pytester: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(STAND_IN))
    # pytest cuts no summary line in CI.
    monkeypatch.setenv("CI", "1")
    pytester.makepyfile(test_step=TESTS)
    result = pytester.runpytest_subprocess("--strict-markers", "-Werror", "-p", "no:cacheprovider", *options)
    result.assert_outcomes(passed=4, failed=5, errors=1)
    shown = "\n".join(result.outlines)
    for test, line in LINES.items():
        assert f"FAILED test_step.py::{test} - nsys_sync.SyncError: test_step.py:{line} makes the CPU wait" in shown
        assert f"\ntest_step.py:{line}: SyncError\n" in shown
    assert "the marker sync_free takes no arguments: @pytest.mark.sync_free" in shown
    assert "All traceback entries are hidden" not in shown


SKIPPED = """\
import pytest

@pytest.fixture
def needs_cuda():
    raise RuntimeError("set up without CUDA")

@pytest.mark.sync_free
def test_marked(needs_cuda): pass

def test_fixture(sync_free): pass

def test_neither(): pass
"""


def test_skipped_with_a_reason_without_cuda_or_pytorch(pytester: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makepyfile(test_step=SKIPPED)
    monkeypatch.setenv("PYTHONPATH", str(STAND_IN))
    monkeypatch.setenv("STAND_IN_HAS_CUDA", "0")
    result = pytester.runpytest_subprocess("-rs", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, skipped=2)
    result.stdout.fnmatch_lines(["*sync_free: there is no CUDA GPU (torch.cuda.is_available() is False)*"])

    pytester.makeconftest("import sys\nsys.modules['torch'] = None")
    result = pytester.runpytest_subprocess("-rs", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, skipped=2)
    result.stdout.fnmatch_lines(["*sync_free: PyTorch is not installed*"])


@pytest.mark.met("11 circumstances", "a PyTorch that cannot be imported", "marked tests fail in one line each")
@pytest.mark.parametrize("error", ["ImportError", "OSError"])
def test_a_broken_pytorch_is_no_reason_to_skip(error: str, pytester: Any) -> None:
    pytester.makepyfile(test_step=SKIPPED)
    pytester.makepyfile(torch=f"raise {error}('libcudart.so.12: cannot open\\nshared object file')")
    pytester.syspathinsert()
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*importlib*")
    result.stdout.fnmatch_lines(
        ["sync_free: PyTorch is installed and cannot be imported: libcudart.so.12: cannot open shared object file"]
    )
    assert "skipped" not in result.parseoutcomes()


def test_a_run_that_does_not_use_the_plugin_imports_no_pytorch(pytester: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(STAND_IN))
    pytester.makepyfile("import sys\ndef test_it():\n    assert not {'torch', 'numpy', 'pandas'} & set(sys.modules)\n")
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
    listed = pytester.runpytest_subprocess("--markers")
    listed.stdout.fnmatch_lines(["@pytest.mark.sync_free: *"])
