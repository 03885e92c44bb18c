"""Real captures: the figures of an independent reading of DESIGN.md, to the nanosecond, for either schema."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, is_dataclass
from pathlib import Path

import pyarrow.compute as pc
import pytest
from conftest import Capture

import nsys_sync
from nsys_sync.model import Analysis, Site

OLD, NEW = "schema-3.7.2", "schema-3.20.3"
FIGURES = {
    # capture: window, busy, host-late, device-side, profiler, stall, host-bound
    "gpu_bound": (633927493, 530056486, 97628562, 5967859, 274586, 97628562, 0),
    "gpu_bound_fixed": (483175328, 476214385, 315646, 6645297, 0, 0, 315646),
    "graph_node": (23887484, 17481393, 4801485, 1604606, 0, 3995918, 805567),
    "memcpy_sync": (199618583, 186962046, 12656537, 0, 0, 12656537, 0),
    "memcpy_sync_all": (148047826, 135821103, 12226723, 0, 0, 12226723, 0),
    "procs": (170867938, 18387160, 152328396, 152382, 0, 18577598, 133750798),
    "run_ahead": (1143582408, 868686253, 274656621, 64288, 175246, 94627636, 180028985),
    "sync_free": (97002685, 44980601, 50445582, 1251911, 324591, 30170, 50415412),
    "sync_heavy": (221540984, 53795655, 164027411, 3478868, 239050, 21476247, 142551164),
    "two_threads": (29872840, 27104150, 2712114, 56576, 0, 1942184, 769930),
}
OWN = ("nvtx_threads", "two_gpus", "one_process_two_gpus")


def summary(analysis: Analysis) -> list[tuple[object, ...]]:
    """What must be alike in both exports of one report."""
    return [
        (
            site.location,
            site.kind,
            site.calls,
            site.stall,
            site.blocked,
            site.idle_within_ns,
            site.located_by,
            site.per_step,
            [(share.pid, share.calls, share.stall_ns) for share in site.processes],
            [frame.symbol for frame in (analysis.native_frames[i] for i in site.native_stack)],
            [analysis.frames[i] for i in site.python_stack],
        )
        for site in analysis.sites
    ]


@pytest.mark.parametrize("schema", [OLD, NEW])
@pytest.mark.parametrize("name", FIGURES)
def test_figures_of_the_independent_reading(capture: Capture, name: str, schema: str) -> None:
    (device,) = nsys_sync.analyze(capture(f"{name}.{schema}")).traces[0].devices
    assert device.stall_ns is not None and device.host_bound_ns is not None
    assert (
        device.window_ns,
        device.busy_ns,
        device.stall_ns + device.host_bound_ns,
        device.device_side_ns,
        device.profiler_ns,
        device.stall_ns,
        device.host_bound_ns,
    ) == FIGURES[name]


def test_graphs_as_a_whole_are_analysed_where_the_export_has_them(capture: Capture) -> None:
    (device,) = nsys_sync.analyze(capture(f"graph_whole.{NEW}")).traces[0].devices
    assert (device.window_ns, device.busy_ns, device.stall_ns) == (25674990, 18021430, 6739450)
    assert (device.host_bound_ns, device.device_side_ns, device.profiler_ns) == (820575, 93535, 0)


def test_graphs_without_gpu_rows_are_refused_an_idle_figure(capture: Capture) -> None:
    analysis = nsys_sync.analyze(capture(f"graph_whole.{OLD}"))
    (device,) = analysis.traces[0].devices
    assert device.refused and "newer nsys" in device.refused and "--cuda-graph-trace=node" in device.refused
    assert (device.idle_ns, device.stall_ns, device.host_bound_ns, device.device_side_ns) == (None, None, None, None)
    assert analysis.stall_ns is None
    assert analysis.traces[0].coverage.graph_launches_without_gpu_work == 50
    assert [(site.location.label, site.stall, site.calls) for site in analysis.sites] == [
        ("graph_loop.py:19 decode_step", None, 50),
        ("graph_loop.py:25 overlapped", None, 10),
        ("graph_loop.py:26 overlapped", None, 10),
        ("graph_loop.py:35 <module>", None, 1),
    ]
    assert [site.blocked.total_ns for site in analysis.sites] == sorted(
        (site.blocked.total_ns for site in analysis.sites), reverse=True
    )


@pytest.mark.parametrize("name", [*FIGURES, *OWN])
def test_both_schemas_give_the_same_sites_and_nanoseconds(capture: Capture, name: str) -> None:
    assert summary(nsys_sync.analyze(capture(f"{name}.{OLD}"))) == summary(nsys_sync.analyze(capture(f"{name}.{NEW}")))


@pytest.mark.parametrize("name", [*FIGURES, *OWN, "two_gpus_visible"])
def test_every_nanosecond_has_one_owner(capture: Capture, name: str) -> None:
    analysis = nsys_sync.analyze(capture(f"{name}.{NEW}"))
    for device in analysis.traces[0].devices:
        parts = (device.busy_ns, device.stall_ns, device.host_bound_ns, device.device_side_ns, device.profiler_ns)
        assert None not in parts
        assert sum(part or 0 for part in parts) + device.outside_ns == device.window_ns
        for bins in zip(
            device.timeline.busy_ns,
            device.timeline.stall_ns,
            device.timeline.host_bound_ns,
            device.timeline.device_side_ns,
            device.timeline.profiler_ns,
            device.timeline.unknown_ns,
            strict=True,
        ):
            assert abs(sum(bins) - device.timeline.bin_ns) <= 1
    assert sum(site.stall.total_ns for site in analysis.sites if site.stall) == analysis.stall_ns
    assert pc.sum(analysis.operations["stall_ns"]).as_py() == analysis.stall_ns


SYNC_HEAVY = {
    # line and function: calls, and the frame that the native stack must contain
    "sync_heavy.py:17 load_batch_pageable": (40, "THPVariable_"),
    "sync_heavy.py:20 log_loss": (20, "THPVariable_item"),
    "sync_heavy.py:24 select_by_mask": (20, "THPVariable_getitem"),
    "sync_heavy.py:27 count_nonzero": (20, "THPVariable_nonzero"),
    "sync_heavy.py:30 branch_on_tensor": (20, "THPVariable_is_nonzero"),
    "sync_heavy.py:35 make_tensor_on_gpu": (20, "THPVariable_tensor"),
    "sync_heavy.py:38 to_cpu": (20, "THPVariable_cpu"),
    "sync_heavy.py:41 slice_by_gpu_index": (20, "THPVariable_index_scalar"),
    "sync_heavy.py:44 print_tensor": (16, "THPVariable_"),
    "sync_heavy.py:47 explicit_sync": (20, "THCPModule_cudaSynchronize"),
    "sync_heavy.py:52 event_sync": (20, "THCPEvent_synchronize"),
    "sync_heavy.py:55 unique": (20, "THPVariable__unique2"),
    "sync_heavy.py:58 metrics": (60, "THPVariable_item"),
    "sync_heavy.py:93 main": (1, "THCPModule_cudaSynchronize"),
}


@pytest.mark.parametrize("schema", [OLD, NEW])
def test_sync_heavy_finds_every_line_with_its_own_stacks(capture: Capture, schema: str) -> None:
    analysis = nsys_sync.analyze(capture(f"sync_heavy.{schema}"))
    calls: Counter[str] = Counter()
    for site in analysis.sites:
        calls[site.location.label] += site.calls
        symbols = [analysis.native_frames[i].symbol for i in site.native_stack]
        assert any(SYNC_HEAVY[site.location.label][1] in symbol for symbol in symbols), site.location.label
        python = [analysis.frames[i] for i in site.python_stack]
        assert (site.location.function, site.location.line) in [(frame.function, frame.line) for frame in python]
    assert calls == {label: count for label, (count, _) in SYNC_HEAVY.items()}
    assert analysis.traces[0].coverage.located_by == (("exact stack", 317),)


def test_no_item_line_ever_has_the_native_stack_of_another_call(capture: Capture) -> None:
    table = nsys_sync.analyze(capture(f"sync_heavy.{OLD}")).operations.to_pandas()
    by_line = table.groupby("line", observed=True)["operation"].agg(lambda column: set(column.dropna()))
    assert by_line[20] == {"tensor.item()"} and by_line[58] == {"tensor.item()"}
    assert by_line[17] == {"tensor.to()", "tensor.cuda()"}
    assert by_line[44] == {"print(tensor)"}


def test_gpu_bound_by_site(capture: Capture) -> None:
    analysis = nsys_sync.analyze(capture(f"gpu_bound.{NEW}"))
    assert {site.location.label: site.stall.total_ns if site.stall else None for site in analysis.sites} == {
        "gpu_bound.py:28 read_loss": 53282752,
        "gpu_bound.py:23 upload": 18595725,
        "gpu_bound.py:40 clip": 14419919,
        "gpu_bound.py:45 download": 10644425,
        "gpu_bound.py:34 sum_positive": 685741,
        "gpu_bound.py:69 main": 0,
    }


def test_sync_free_has_one_site_with_one_sync(capture: Capture) -> None:
    (site,) = nsys_sync.analyze(capture(f"sync_free.{NEW}")).sites
    assert (site.location.label, site.calls) == ("sync_free.py:36 main", 1)


def test_processes_are_listed_and_never_joined(capture: Capture) -> None:
    sites = {site.location.function: site for site in nsys_sync.analyze(capture(f"procs.{NEW}")).sites}
    assert {name: [(share.pid, share.calls) for share in site.processes] for name, site in sites.items()} == {
        "cpu_loop": [(1303, 40)],
        "item_loop": [(1302, 20)],
        "worker": [(1302, 1), (1303, 2)],
    }


def test_startup_is_shown_apart(capture: Capture) -> None:
    report = nsys_sync.analyze(capture(f"procs.{NEW}")).traces[0]
    # Process 1303 launches its first work 132 ms after process 1302's last copy ended.
    assert [(one.pid, one.end_ns) for one in report.startup] == [(1303, 145767067)]
    (device,) = report.devices
    assert (device.startup_host_bound_ns, device.startup_stall_ns) == (145767067 - 13722077, 0)


def test_blocking_copies_are_located_by_samples_or_stacks(capture: Capture) -> None:
    def found(name: str) -> dict[tuple[str | None, str], Site]:
        sites = nsys_sync.analyze(capture(name)).sites
        return {(site.location.function, site.located_by[0][0]): site for site in sites}

    sampled = found(f"memcpy_sync.{NEW}")
    assert sampled["blocking_upload", "python sample"].calls == 10
    assert sampled["blocking_copy", "python sample"].calls == 10
    assert sampled["free_under_load", "python sample"].calls == 3
    assert sampled[None, "thread"].calls == 7  # too short for a sample at 1 kHz
    stacked = found(f"memcpy_sync_all.{NEW}")
    assert {key: site.calls for key, site in stacked.items()} == {
        ("blocking_upload", "exact stack"): 10,
        ("blocking_copy", "exact stack"): 10,
        ("free_under_load", "exact stack"): 10,
    }


def test_own_captures_hold_what_their_workloads_make_certain(capture: Capture) -> None:
    def calls(name: str) -> dict[str | None, int]:
        counted: Counter[str | None] = Counter()
        for site in nsys_sync.analyze(capture(f"{name}.{NEW}")).sites:
            counted[site.location.function] += site.calls
        return dict(counted)

    assert calls("nvtx_threads") == {
        "load_batch": 36,
        "has_nan": 30,
        "keep_positive": 36,
        "read_norm": 15,
        "wait_for_stream": 15,
        "download": 20,
        "wait_for_event": 30,
        "wait_for_device": 3,
        "read_total": 6,
        "main": 1,
    }
    two = {"read_loss": 20, "count_large": 20, "download": 20, "wait_for_device": 20, "worker": 2}
    assert calls("two_gpus") == two
    assert calls("two_gpus_visible") == two
    assert calls("one_process_two_gpus") == {
        "upload": 20,
        "read_first": 20,
        "read_second": 20,
        "download_second": 5,
        "wait_for_second": 5,
        "wait_for_first": 5,
        "main": 2,
    }


def test_device_numbers_are_mapped_to_gpus_or_said_not_to_be(capture: Capture) -> None:
    mapped = nsys_sync.analyze(capture(f"two_gpus_visible.{NEW}")).traces[0]
    assert [(device.id, device.processes) for device in mapped.devices] == [(0, (1004,)), (1, (1005,))]
    unmapped = nsys_sync.analyze(capture(f"two_gpus_visible.{OLD}")).traces[0]
    assert [(device.id, device.processes) for device in unmapped.devices] == [(0, (1004, 1005))]
    assert any("which GPU each process used" in text for text in unmapped.coverage.not_captured)


def test_ranks_are_summed_with_the_spread_between_them(capture: Capture, tmp_path: Path) -> None:
    one, other = capture(f"gpu_bound.{NEW}"), tmp_path / "rank1.sqlite"
    other.write_bytes(one.read_bytes())
    alone, both = nsys_sync.analyze(one), nsys_sync.analyze(one, other)
    assert both.window_ns == 2 * alone.window_ns and both.stall_ns == 2 * 97628562
    first = both.sites[0]
    assert first.calls == 80 and first.stall is not None and first.stall.total_ns == 2 * 53282752
    assert [(rank.trace, rank.calls, rank.stall_ns) for rank in first.ranks] == [
        (one.name, 40, 53282752),
        ("rank1.sqlite", 40, 53282752),
    ]


def test_the_model_holds_plain_values_only(capture: Capture) -> None:
    def check(value: object) -> None:
        if is_dataclass(value):
            for field in fields(value):
                if field.name != "operations":
                    check(getattr(value, field.name))
        elif isinstance(value, tuple):
            for element in value:
                check(element)
        else:
            assert type(value) in (int, float, str, bool, type(None)), repr(value)

    for name in ("sync_heavy", "procs", "nvtx_threads", "graph_whole"):
        check(nsys_sync.analyze(capture(f"{name}.{NEW}")))
