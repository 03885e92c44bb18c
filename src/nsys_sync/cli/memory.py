"""What a command needs before it reads a trace: room for the libraries, and no threads that it does not use."""

from __future__ import annotations

import functools
import os
import resource
from collections.abc import Callable
from typing import ParamSpec

from nsys_sync.errors import NsysSyncError

LEAST_BYTES = 1 << 30
"""Of addresses. Small traces take 0.7 GB; with less, libraries end the process with words, or none, of their own."""
_OPENBLAS_THREADS = "OPENBLAS_NUM_THREADS"

_Arguments = ParamSpec("_Arguments")


def with_memory(command: Callable[_Arguments, None]) -> Callable[_Arguments, None]:
    """The same command, refused where `ulimit -v` leaves it too little memory: it raises NsysSyncError then."""

    @functools.wraps(command)
    def started(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> None:
        allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
        if allowed != resource.RLIM_INFINITY and allowed < LEAST_BYTES:
            raise NsysSyncError(
                f"not enough memory: ulimit -v allows {allowed >> 20} MB, and traces need at least "
                f"{LEAST_BYTES >> 20}. Type: ulimit -v unlimited"
            )
        _import_numpy_with_one_thread()
        command(*args, **kwargs)

    return started


def _import_numpy_with_one_thread() -> None:
    """Its OpenBLAS starts a thread a core, each with 41 MB of addresses: beyond `ulimit -v` or `-u` on large machines,
    for nothing, as no matrix is multiplied here. Programs that are started have the environment as it was.
    """
    if _OPENBLAS_THREADS in os.environ:
        return
    os.environ[_OPENBLAS_THREADS] = "1"
    try:
        import numpy  # noqa: F401
    finally:
        del os.environ[_OPENBLAS_THREADS]
