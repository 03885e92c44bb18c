"""Which lines of a GPU program make the CPU wait for the GPU, and what each costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nsys_sync.live.sync_free import SyncError, allow_sync, sync_free
    from nsys_sync.pipeline import analyze

__version__ = "0.1.0"
__all__ = ["SyncError", "__version__", "allow_sync", "analyze", "sync_free"]


def __getattr__(name: str) -> Any:
    # pandas and pyarrow are imported only when an analysis is asked for: `nsys-sync --help` stays quick.
    if name == "analyze":
        from nsys_sync.pipeline import analyze

        return analyze
    if name in {"SyncError", "allow_sync", "sync_free"}:
        from nsys_sync.live import sync_free as blocks

        return getattr(blocks, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
