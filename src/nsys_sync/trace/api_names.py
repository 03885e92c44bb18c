"""What CUDA API names mean. Names as in CUPTI's callback ids; suffixes `_vNNNN`, `_ptsz`, `_ptds` are versions."""

from __future__ import annotations

import re
from enum import IntEnum


class ApiClass(IntEnum):
    """Classes of API calls that the analysis tells apart. A QUERY only asks: it neither waits nor works."""

    OTHER = 0
    OTHER_SYNC = 1
    COPY_SYNC = 2
    COPY_ASYNC = 3
    MEMSET_SYNC = 4
    FREE = 5
    QUERY = 6
    LOADING = 7
    GRAPH_LAUNCH = 8
    EVENT = 9
    STREAM_SYNC = 10
    KERNEL_LAUNCH = 11


SYNCS = (ApiClass.STREAM_SYNC, ApiClass.OTHER_SYNC)
"""Calls whose name says that they wait."""


_VERSION_SUFFIX = re.compile(r"(?:_v\d+|_ptsz|_ptds){1,4}\Z")
_RULES: tuple[tuple[re.Pattern[str], ApiClass], ...] = tuple(
    (re.compile(pattern), api_class)
    for pattern, api_class in (
        (r"(cuda|cu)StreamSynchronize\Z", ApiClass.STREAM_SYNC),
        (r"cuda(Event|Device|Thread)Synchronize\Z|cu(Event|Ctx)Synchronize\Z", ApiClass.OTHER_SYNC),
        (r"(cuda|cu)\w*(Query|IsCapturing)\Z|(cuda|cu)(?!Graph)\w*Get[A-Z]", ApiClass.QUERY),
        (r"(cuda|cu)Memcpy\w*Async", ApiClass.COPY_ASYNC),
        (r"(cuda|cu)Memcpy", ApiClass.COPY_SYNC),
        (r"(cuda|cu)Memset(?!\w*Async)", ApiClass.MEMSET_SYNC),
        (r"cudaFree\Z|cuMemFree\Z", ApiClass.FREE),
        (r"cu(Module|Library)Load|cuCtxCreate|cuDevicePrimaryCtxRetain", ApiClass.LOADING),
        (r"(cuda|cu)GraphLaunch\Z", ApiClass.GRAPH_LAUNCH),
        (r"(cuda|cu)Launch(Kernel(ExC?)?|CooperativeKernel|Grid(Async)?)?\Z", ApiClass.KERNEL_LAUNCH),
        (r"(cuda|cu)Event|(cuda|cu)StreamWaitEvent\Z", ApiClass.EVENT),
    )
)


_POLL = re.compile(r"(cuda|cu)(Stream|Event)Query\Z")


def is_poll(name: str) -> bool:
    """Whether the call asks if work is done: called over and over, it is a way to wait."""
    return _POLL.match(base_name(name)) is not None


def base_name(name: str) -> str:
    """`cudaMemcpyAsync_ptsz_v7000` → `cudaMemcpyAsync`."""
    return _VERSION_SUFFIX.sub("", name)


def classify(name: str) -> ApiClass:
    """The class of an API call by its name, whatever its version suffix."""
    base = base_name(name)
    return next((api_class for pattern, api_class in _RULES if pattern.match(base)), ApiClass.OTHER)
