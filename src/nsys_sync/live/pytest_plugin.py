"""The marker and the fixture `sync_free`. Loaded into every test run, so it imports no PyTorch until one is used."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from nsys_sync.live.sync_free import missing_requirement, sync_free

_MARKER = "sync_free"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{_MARKER}: the test fails at the first line that makes the CPU wait for the GPU; skipped without CUDA.",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    marker = item.get_closest_marker(_MARKER)
    if marker is None:
        return
    if marker.args or marker.kwargs:
        raise pytest.UsageError(f"the marker {_MARKER} takes no arguments: @pytest.mark.{_MARKER}")
    _skip_unless_checkable()


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    __tracebackhide__ = True
    if item.get_closest_marker(_MARKER) is None:
        yield
        return
    from unittest import TestCase

    if isinstance(item, pytest.Function) and item.cls is not None and issubclass(item.cls, TestCase):
        # It keeps what its method raises to itself, and runs `setUp` and `tearDown` in here.
        item.obj = sync_free()(item.obj)
        yield
        return
    with sync_free():
        yield


@pytest.fixture(name="sync_free")
def sync_free_fixture() -> type[sync_free]:
    """`with sync_free(): step()` fails the test at the first line that makes the CPU wait for the GPU."""
    _skip_unless_checkable()
    return sync_free


def _skip_unless_checkable() -> None:
    try:
        missing = missing_requirement()
    except (ImportError, OSError) as error:
        # Not skipped: on a machine that should have checked it, nobody would notice.
        why = " ".join(str(error).split()) or type(error).__name__
        pytest.fail(f"sync_free: PyTorch is installed and cannot be imported: {why}", pytrace=False)
    if missing is not None:
        pytest.skip(f"sync_free: {missing}")
