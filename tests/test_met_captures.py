"""Captures of what people run besides PyTorch on one stream. Each number was counted from the workload's text
(scripts/workloads), not taken from an output; `fixtures/README.md` says what each capture holds."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from conftest import Capture

import nsys_sync
from nsys_sync.errors import TraceError
from nsys_sync.model import Analysis, Device

OLD, NEW = "schema-3.7.2", "schema-3.20.3"
CALLS, GRAPHS, DAMAGE = "5 calls", "8 graphs, memory, communication", "10 damage"
STEPS = 10
both_schemas = pytest.mark.parametrize("schema", [OLD, NEW])


def operations(analysis: Analysis) -> list[dict[str, Any]]:
    return analysis.operations.to_pylist()


def of_functions(analysis: Analysis) -> Counter[tuple[str, str]]:
    """How often each function made the CPU wait, and by which calls, where an exact Python stack tells."""
    return Counter((row["function"], row["api"]) for row in operations(analysis) if row["located_by"] == "exact stack")


def elsewhere(analysis: Analysis) -> Counter[str]:
    """The calls of operations without a stack of their own."""
    return Counter(row["api"] for row in operations(analysis) if row["located_by"] != "exact stack")


def device_of(analysis: Analysis) -> Device:
    ((device,),) = (trace.devices for trace in analysis.traces)
    return device


def assert_conserved(analysis: Analysis) -> None:
    for trace in analysis.traces:
        for device in trace.devices:
            parts = (
                device.busy_ns,
                device.stall_ns,
                device.host_bound_ns,
                device.device_side_ns,
                device.profiler_ns,
                device.not_captured_ns,
            )
            assert sum(part or 0 for part in parts) == device.window_ns


def rows(path: Any, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(query).fetchall()


# ---------------------------------------------------------------------------------------------------------- calls


@both_schemas
@pytest.mark.met(CALLS, "thousands of polls beside one .item() a step", "no poll is a sync; polled time apart")
def test_polls_do_not_block(capture: Capture, schema: str) -> None:
    analysis = nsys_sync.analyze(capture(f"polls.{schema}"))
    assert_conserved(analysis)
    assert of_functions(analysis) == {
        ("read_loss", "cudaMemcpyAsync + cudaStreamSynchronize"): 4,
        ("<module>", "cudaDeviceSynchronize"): 1,
    }
    assert not elsewhere(analysis)
    (polling,) = analysis.traces[0].polling
    (asked,) = rows(
        capture(f"polls.{schema}"),
        "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN StringIds ON id = nameId "
        "WHERE value LIKE '%EventQuery%'",
    )
    assert (polling.api, polling.runs, (polling.calls,)) == ("cudaEventQuery", 4, asked)
    # Each loop waits for five kernels of 0.34 ms, the first of which began a little before it.
    assert 4 * 1_200_000 < polling.polled_ns < 4 * 1_750_000


DRIVER = {
    ("wait_for_stream", "cuStreamSynchronize"): STEPS,
    ("wait_for_event", "cuEventSynchronize"): STEPS,
    ("wait_for_context", "cuCtxSynchronize"): STEPS,
    ("download_on_stream", "cuMemcpyDtoHAsync + cuStreamSynchronize"): STEPS,
}


@both_schemas
@pytest.mark.met(CALLS, "a program that calls the driver API alone", "its waits are found at their lines")
def test_the_driver_api_alone(capture: Capture, schema: str) -> None:
    analysis = nsys_sync.analyze(capture(f"driver_api.{schema}"))
    assert_conserved(analysis)
    assert of_functions(analysis) == DRIVER
    copies = elsewhere(analysis)
    assert copies["cuMemcpyDtoH"] == STEPS
    assert copies["cuMemcpyHtoD"] <= STEPS  # an upload may return before its copy began: then it did not wait
    assert all(row["blocked_ns"] > 150_000 for row in operations(analysis) if row["function"] == "wait_for_event")


@both_schemas
@pytest.mark.met(
    "4 ids and devices", "two contexts on one GPU in one process", "a copy and its wait are one operation in each"
)
def test_two_contexts_on_one_gpu(capture: Capture, schema: str) -> None:
    path = capture(f"driver_api_contexts.{schema}")
    analysis = nsys_sync.analyze(path)
    assert_conserved(analysis)
    assert of_functions(analysis) == {key: 2 * count for key, count in DRIVER.items()}
    # One GPU; 5 kernels and 3 copies a step in each context, two of these on its default stream.
    assert device_of(analysis).id == 0
    work = "SELECT contextId, streamId FROM CUPTI_ACTIVITY_KIND_"
    assert Counter(rows(path, f"{work}KERNEL")) == {(1, 13): 5 * STEPS, (2, 21): 5 * STEPS}
    assert Counter(rows(path, f"{work}MEMCPY")) == {
        (1, 7): 2 * STEPS,
        (1, 13): STEPS,
        (2, 15): 2 * STEPS,
        (2, 21): STEPS,
    }


PER_THREAD = 10 + 5
"""Steps of the main thread, and of the other."""


@both_schemas
@pytest.mark.met(CALLS, "the per-thread default stream: functions with _ptsz and _ptds", "found by their plain names")
def test_per_thread_default_streams(capture: Capture, schema: str) -> None:
    analysis = nsys_sync.analyze(capture(f"per_thread_stream.{schema}"))
    assert_conserved(analysis)
    assert of_functions(analysis) == {
        ("cupy_get", "cudaMemcpyAsync + cudaStreamSynchronize"): PER_THREAD,
        ("cupy_item", "cudaMemcpyAsync + cudaStreamSynchronize"): PER_THREAD,
        ("wait_for_stream", "cudaStreamSynchronize"): PER_THREAD,
        ("copy_on_stream", "cudaStreamSynchronize"): PER_THREAD,
        ("wait_by_driver", "cuStreamSynchronize"): PER_THREAD,
    }
    assert elsewhere(analysis) == {
        "cudaMemcpy": PER_THREAD,  # copy_and_wait
        "cudaMemcpyAsync": PER_THREAD,  # copy_on_stream: CUPTI calls the stream of its wait 7, and the copy's 13 or 14
        "cuMemcpyDtoH": PER_THREAD,
    }
    threads = Counter(row["tid"] for row in operations(analysis))
    assert sorted(threads.values()) == [8 * 5, 8 * 10]


@both_schemas
@pytest.mark.met(CALLS, "launches that CUDA refused, and kernels that end after the capture range", "nothing is lost")
def test_failed_launches_and_work_beyond_the_range(capture: Capture, schema: str) -> None:
    path = capture(f"edges.{schema}")
    analysis = nsys_sync.analyze(path)
    assert_conserved(analysis)
    assert of_functions(analysis) == {("wait", "cuStreamSynchronize"): 6}
    device = device_of(analysis)
    assert device.not_captured_ns == 0
    assert not [text for text in analysis.traces[0].coverage.warnings if "lost" in text]
    # Five kernels of 1 ms, three of 20 ms that were only launched inside the range.
    assert 65_000_000 < device.busy_ns < 65_050_000
    launched = rows(
        path,
        "SELECT returnValue, (SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL AS k "
        "WHERE k.correlationId = r.correlationId) FROM CUPTI_ACTIVITY_KIND_RUNTIME AS r JOIN StringIds ON id = nameId "
        "WHERE value = 'cuLaunchKernel'",
    )
    assert Counter(launched) == {(0, 1): 8, (1, 0): 5}


@pytest.mark.met("9 hostile names and size", "two processes with 200 threads each", "one operation a thread, one site")
def test_many_threads(capture: Capture) -> None:
    analysis = nsys_sync.analyze(capture(f"many_threads.{OLD}"))
    assert_conserved(analysis)
    assert of_functions(analysis) == {("read_one", "cudaMemcpyAsync + cudaStreamSynchronize"): 400}
    assert not elsewhere(analysis)
    assert len({(row["pid"], row["tid"]) for row in operations(analysis)}) == 400
    (site,) = analysis.sites
    assert [share.calls for share in site.processes] == [200, 200]


# ----------------------------------------------------------------------------------------- graphs, memory, NCCL


@both_schemas
@pytest.mark.met(GRAPHS, "unified memory touched by the CPU and the GPU in turn", "migrations are busy, and are said")
def test_migrations_by_page_faults(capture: Capture, schema: str) -> None:
    path = capture(f"managed.{schema}")
    analysis = nsys_sync.analyze(path)
    assert_conserved(analysis)
    assert of_functions(analysis) == {("wait_for_device", "cudaDeviceSynchronize"): 5}
    assert not elsewhere(analysis)
    # 4 MiB to the GPU and back in each of five steps, less what the CPU had overwritten.
    migrated = dict(rows(path, "SELECT copyKind, sum(bytes) FROM CUPTI_ACTIVITY_KIND_MEMCPY GROUP BY 1"))
    assert migrated == {11: 5 << 22, 12: 5 << 22}
    ids = rows(path, "SELECT DISTINCT contextId, streamId, correlationId FROM CUPTI_ACTIVITY_KIND_MEMCPY")
    assert ids == [(0, 0, 0)]
    assert any("migrations of unified memory" in text for text in analysis.traces[0].coverage.warnings)


@both_schemas
@pytest.mark.met(GRAPHS, "unified memory sent ahead by cuMemPrefetchAsync", "its migrations are no copies of any call")
def test_migrations_by_prefetch(capture: Capture, schema: str) -> None:
    path = capture(f"managed_prefetch.{schema}")
    analysis = nsys_sync.analyze(path)
    assert_conserved(analysis)
    assert of_functions(analysis) == {("wait_for_device", "cudaDeviceSynchronize"): 5}
    assert not elsewhere(analysis)
    causes = rows(path, "SELECT copyKind, migrationCause, sum(bytes) FROM CUPTI_ACTIVITY_KIND_MEMCPY GROUP BY 1, 2")
    assert causes == [(11, 1, 5 << 22), (12, 1, 5 << 22)]


@both_schemas
@pytest.mark.met(GRAPHS, "an all-reduce to which the other rank comes 30 ms late", "the time NCCL spins is shown apart")
def test_nccl_waits_for_a_late_rank(capture: Capture, schema: str) -> None:
    analysis = nsys_sync.analyze(capture(f"nccl_late.{schema}"))
    assert_conserved(analysis)
    assert of_functions(analysis) == {
        ("read_loss", "cudaMemcpyAsync + cudaStreamSynchronize"): 2 * 10,
        ("run", "cudaDeviceSynchronize"): 2 * 2,
    }
    waiting, late = analysis.traces[0].devices
    assert waiting.communication_ns is not None and late.communication_ns is not None
    assert 5 * 29_500_000 < waiting.communication_ns < 5 * 31_000_000  # five late steps of 30 ms
    assert late.communication_ns < 1_000_000
    # The watchdog threads of PyTorch ask after a handful of events every 100 ms: that is no wait.
    assert analysis.traces[0].polling == ()


@pytest.mark.met(GRAPHS, "the same two ranks, a report for each", "each rank's own communication; ranks are compared")
def test_nccl_ranks_in_reports_of_their_own(capture: Capture) -> None:
    paths = [capture(f"nccl_late_rank{rank}.{OLD}") for rank in range(2)]
    analysis = nsys_sync.analyze(*paths)
    assert_conserved(analysis)
    assert of_functions(analysis) == {
        ("read_loss", "cudaMemcpyAsync + cudaStreamSynchronize"): 2 * 10,
        ("run", "cudaDeviceSynchronize"): 2 * 2,
    }
    ((waiting,), (late,)) = (trace.devices for trace in analysis.traces)
    assert (waiting.id, late.id) == (0, 1)
    assert waiting.communication_ns is not None and late.communication_ns is not None
    assert waiting.communication_ns > 5 * 29_500_000 > 10 * late.communication_ns


@both_schemas
@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        pytest.param(
            "graph_conditional_node",
            {"before": 5, "set_rounds": 5, "tail": 5},
            marks=pytest.mark.met(GRAPHS, "a graph with a conditional node, by node", "its known nodes count as busy"),
        ),
        pytest.param(
            "graph_device_node",
            {"launcher": 5},
            marks=pytest.mark.met(GRAPHS, "a graph launched by the GPU, by node", "the launching graph counts as busy"),
        ),
    ],
)
def test_graphs_by_node(capture: Capture, schema: str, name: str, kernels: dict[str, int]) -> None:
    path = capture(f"{name}.{schema}")
    analysis = nsys_sync.analyze(path)
    assert_conserved(analysis)
    names = rows(path, "SELECT value FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = shortName")
    assert Counter(name for (name,) in names) == kernels
    # One wait a launch, begun when the work was done (the profiler's own wait, after the last, is a driver call).
    assert of_functions(analysis) == {("call", "cudaStreamSynchronize"): 5}


@pytest.mark.parametrize(
    ("name", "graphs", "known_launches"),
    [
        pytest.param(
            "graph_conditional_graph",
            5,
            5,
            marks=pytest.mark.met(GRAPHS, "a graph with a conditional node, as a whole", "busy from end to end"),
        ),
        pytest.param(
            "graph_device_graph",
            10,
            5,
            marks=pytest.mark.met(
                GRAPHS,
                "a graph launched by the GPU, as a whole: rows with correlation id 4294967295",
                "counts as busy, without a launch",
            ),
        ),
    ],
)
def test_graphs_as_a_whole(capture: Capture, tmp_path: Path, name: str, graphs: int, known_launches: int) -> None:
    path = capture(f"{name}.{NEW}")
    analysis = nsys_sync.analyze(path)
    assert_conserved(analysis)
    assert of_functions(analysis) == {("call", "cudaStreamSynchronize"): 5}
    ids = [row for (row,) in rows(path, "SELECT correlationId FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE")]
    assert len(ids) == graphs
    assert sum(row != 2**32 - 1 for row in ids) == known_launches
    without = [text for text in analysis.traces[0].coverage.warnings if "have no launch call" in text]
    assert bool(without) == (graphs > known_launches)
    # nsys 2023.4.4's export of the same report leaves these rows out, and then nothing is left of the GPU.
    bare = tmp_path / "bare.sqlite"
    shutil.copyfile(path, bare)
    with closing(sqlite3.connect(bare)) as database:
        database.execute("DROP TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE")
    with pytest.raises(TraceError, match="no GPU activity"):
        nsys_sync.analyze(bare)


# --------------------------------------------------------------------------------------------------------- damage


@both_schemas
@pytest.mark.met(
    DAMAGE, "a call that nsys does not know, nothing recorded after it", "said; the GPU is not called idle"
)
def test_lost_to_the_end(capture: Capture, schema: str) -> None:
    analysis = nsys_sync.analyze(capture(f"unknown_call.{schema}"))
    assert_conserved(analysis)
    # Steps 0 to 30 are whole, and of 31 to 59 only nsys's own rows are left.
    assert of_functions(analysis) == {
        ("read_loss", "cudaMemcpyAsync + cudaStreamSynchronize"): 31,
        ("measure", "cudaEventSynchronize"): 1,
        ("read_loss", "cudaStreamSynchronize"): 29,
        ("<module>", "cudaDeviceSynchronize"): 1,
    }
    assert "nsys lost CUDA events" in (analysis.traces[0].coverage.lost_events or "")
    # 31 steps of three products of 56 µs and a little more, and one product in `measure`: nothing of the lost ones.
    assert 94 * 55_000 < device_of(analysis).busy_ns < 94 * 59_000


@pytest.mark.met(DAMAGE, "2.9 s of events lost in the middle of a trace", "that stretch is not captured, not idle")
def test_lost_in_the_middle(capture: Capture) -> None:
    analysis = nsys_sync.analyze(capture(f"lost_stretch.{OLD}"))
    assert_conserved(analysis)
    device = device_of(analysis)
    assert device.not_captured_ns is not None and device.not_captured_ns > 2_900_000_000
    assert device.window_ns - device.not_captured_ns < 50_000_000
    assert "nsys lost CUDA events" in (analysis.traces[0].coverage.lost_events or "")


@pytest.mark.met(DAMAGE, "one thread's events lost, another's kept", "kept work is busy; between is not known")
def test_lost_on_one_thread(capture: Capture) -> None:
    path = capture(f"lost_thread.{OLD}")
    analysis = nsys_sync.analyze(path)
    assert_conserved(analysis)
    assert rows(path, "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL") == [(26,)]
    device = device_of(analysis)
    assert device.busy_ns > 3_000_000
    assert device.not_captured_ns is not None and device.not_captured_ns > 400_000_000
