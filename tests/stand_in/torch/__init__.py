"""As much of PyTorch as `sync_free` and `detect` touch, without a GPU: the sync debug mode, what it sees and not."""

import threading

from torch import _C, cuda

__version__ = "2.11.0+stand.in"


class _Operation:
    """A method that waits."""

    def __init__(self, value):
        self._value = value

    def __get__(self, tensor, kind):
        return cuda.operation(self._value)


class Tensor:
    item = _Operation(0.5)
    tolist = _Operation([0.5])
    cpu = _Operation("on the CPU")
    cuda = _Operation("on the GPU")
    to = _Operation("elsewhere")
    __bool__ = _Operation(True)
    __getitem__ = _Operation("a part")

    def __gt__(self, other):
        return self

    def backward(self, on_the_way=lambda: None):
        """Runs on another thread, as PyTorch's does for CUDA, and raises here what was raised there."""
        raised = []

        def run():
            _C._thread.graph_task = 0
            try:
                on_the_way()
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if raised:
            raise raised[0]


def tensor(value, device="cpu"):
    """On the GPU, the first one initialises CUDA."""
    if device == "cuda":
        cuda._lazy_init()
    return Tensor()


def __getattr__(name):
    if name in {"nonzero", "masked_select", "bincount"}:
        return cuda.operation()
    raise AttributeError(name)
