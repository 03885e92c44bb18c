"""The calls by which a program asks PyTorch to wait, and which its sync debug mode does not see."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple


class ExplicitCall(NamedTuple):
    """An attribute that can be replaced, its name for people, and the cause that it is."""

    owner: Any
    name: str
    shown: str
    cause: str


def explicit_calls(torch: Any) -> Iterator[ExplicitCall]:
    """Those of this PyTorch, as of 2.11, whose mode sees `stream.synchronize()`. One may call another."""
    cuda = torch.cuda
    yield ExplicitCall(cuda, "synchronize", "torch.cuda.synchronize()", "device-synchronize")
    yield ExplicitCall(cuda.Event, "synchronize", "torch.cuda.Event.synchronize()", "event-synchronize")
    # What the functions call in turn: the program may hold them already (`from torch.cuda import synchronize`).
    native = getattr(torch, "_C", None)
    for name, shown in (
        ("_cuda_synchronize", "torch.cuda.synchronize()"),
        ("_accelerator_synchronizeDevice", "torch.accelerator.synchronize()"),
    ):
        if hasattr(native, name):
            yield ExplicitCall(native, name, shown, "device-synchronize")
