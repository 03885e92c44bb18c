import _warnings
import functools
import itertools
import os

from torch import _C
from torch.cuda.streams import Event, ExternalStream, Stream  # noqa: F401

mode = 0


def is_available():
    return os.environ.get("STAND_IN_HAS_CUDA", "1") == "1"


def is_initialized():
    return _C.state["initialized"]


def _lazy_call(callable):
    if is_initialized():
        callable()
    else:
        _C.state["queued"].append(callable)


def _lazy_init():
    if not is_initialized():
        _C._cuda_init()
        for queued in _C.state["queued"]:
            queued()


def get_sync_debug_mode():
    _lazy_init()
    return _C._cuda_get_sync_debug_mode()


def set_sync_debug_mode(debug_mode):
    _lazy_init()
    _C._cuda_set_sync_debug_mode({"default": 0, "warn": 1, "error": 2}.get(debug_mode, debug_mode))


def _synchronizing_operation(value):
    if mode == 2:
        raise RuntimeError("called a synchronizing CUDA operation")
    _C.waits.append("operation")
    return value


def operation(value=0.5):
    """What waits and gives the value. In mode "warn" all of it is C, without a frame of its own, as in PyTorch."""
    if mode != 1:
        return lambda *_, **__: _synchronizing_operation(value)
    text = "called a synchronizing CUDA operation (Triggered internally at CUDAFunctions.cpp:150.)"
    warn = functools.partial(_warnings.warn, text, UserWarning, 1)
    return functools.partial(next, itertools.filterfalse(warn, itertools.repeat(value)))


def synchronize():
    _lazy_init()
    _C._cuda_synchronize()


def current_stream():
    return Stream()
