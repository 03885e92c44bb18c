import os

from torch import _C

mode = 0


def is_available():
    return os.environ.get("STAND_IN_HAS_CUDA", "1") == "1"


def get_sync_debug_mode():
    return mode


def set_sync_debug_mode(debug_mode):
    global mode
    mode = {"default": 0, "warn": 1, "error": 2}.get(debug_mode, debug_mode)


def _synchronizing_operation():
    if mode == 2:
        raise RuntimeError("called a synchronizing CUDA operation")
    _C.waits.append("operation")
    return 0.5


def synchronize():
    _C._cuda_synchronize()


class Stream:
    def synchronize(self):
        _synchronizing_operation()

    def query(self):
        return True


class ExternalStream(Stream):
    pass


class Event:
    def synchronize(self):
        _C.waits.append("event")


def current_stream():
    return Stream()
