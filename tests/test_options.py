"""What the options of `report` choose, on small traces whose answers are worked out by hand, and on real ones.

Per step of 10 µs (`loop`): kernel 100…3000 waited for by read_loss (200…3000), kernel 4200…6000, launched at 4000 and
waited for by wait (4200…6000). The gap 3000…4200 is read_loss's. The next step's first kernel is launched at 10,000:
of the gap 6000…10,100 wait has credit for 1800, read_loss 1600 left of 2800, and 700 are host-bound.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from conftest import Capture
from trace_builder import ProcessBuilder, TraceBuilder

from nsys_sync import analyze
from nsys_sync.errors import TraceError, UsageError
from nsys_sync.model import Analysis, Device, Site

HELPER = "/opt/venv/lib/python3.12/site-packages/torch/_tensor.py"


def loop(process: ProcessBuilder, steps: int, *, device: int = 0, read: str = "read_loss") -> None:
    thread = process.thread(process.pid)
    place = {"device": device, "stream": 7 + device, "context": 1 + device}
    main = ("main", "/work/main.py", 1)
    for step in range(steps):
        at = 10_000 * step
        thread.launch(at, at + 50, gpu=(at + 100, at + 3000), **place)  # type: ignore[arg-type]
        frames = [("item", HELPER, 5), (read, "/work/train.py", 10), main]
        thread.stream_sync(at + 200, at + 3000, stream=7 + device, context=1 + device, python=frames)
        thread.launch(at + 4000, at + 4100, gpu=(at + 4200, at + 6000), **place)  # type: ignore[arg-type]
        frames = [("synchronize", HELPER, 9), ("wait", "/work/train.py", 20), main]
        thread.device_sync(at + 4200, at + 6000, context=1 + device, python=frames)
        thread.nvtx(f"step {step}", at + 100, at + 6000)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    builder = TraceBuilder()
    loop(builder.process(100), 3)
    return builder.write(tmp_path / "t.sqlite")


def conserved(analysis: Analysis) -> bool:
    for device in (device for one in analysis.traces for device in one.devices):
        assert device.stall_ns is not None and device.host_bound_ns is not None
        assert device.device_side_ns is not None and device.profiler_ns is not None
        idle = device.stall_ns + device.host_bound_ns + device.device_side_ns
        assert device.idle_ns == idle
        assert device.busy_ns + idle + device.profiler_ns + device.outside_ns == device.window_ns
    rows = analysis.operations["stall_ns"].to_pylist()
    return analysis.stall_ns == sum(device_stalls(analysis)) == sum(rows)


def device_stalls(analysis: Analysis) -> list[int]:
    return [device.stall_ns or 0 for one in analysis.traces for device in one.devices]


def sites(analysis: Analysis) -> dict[str, tuple[int, int]]:
    """Function → (calls, stall)."""
    return {site.location.function or site.location.label: (site.calls, stall(site)) for site in analysis.sites}


def stall(site: Site) -> int:
    assert site.stall is not None
    return site.stall.total_ns


def only_device(analysis: Analysis) -> Device:
    (one,) = analysis.traces
    (device,) = one.devices
    return device


def figures(device: Device) -> tuple[int, int, int | None, int | None, int]:
    return device.window_ns, device.busy_ns, device.stall_ns, device.host_bound_ns, device.outside_ns


# ---- the whole, and times


def test_whole_trace(trace: Path) -> None:
    whole = analyze(trace)
    assert conserved(whole)
    assert figures(only_device(whole)) == (25_900, 14_100, 10_400, 1_400, 0)
    assert sites(whole) == {"read_loss": (3, 6_800), "wait": (3, 3_600)}
    assert whole.window_ns == 25_900 and whole.selection is None and whole.omitted is None


@pytest.mark.parametrize(
    ("time_range", "expected", "calls"),
    [
        ((100, 6_000), (5_900, 4_700, 1_200, 0, 0), 1),
        ((None, 6_000), (5_900, 4_700, 1_200, 0, 0), 1),
        ((-500, 6_000), (6_500, 4_700, 1_200, 0, 600), 1),
        ((20_100, None), (5_900, 4_700, 1_200, 0, 0), 1),
        ((20_100, 30_000), (9_900, 4_700, 1_200, 0, 4_000), 1),
        ((6_000, 20_100), (14_100, 4_700, 8_000, 1_400, 0), 1),
        ((None, None), (25_900, 14_100, 10_400, 1_400, 0), 3),
        ((3_000, 4_200), (1_200, 0, 1_200, 0, 0), 1),
    ],
)
def test_time_range(trace: Path, time_range: tuple[int | None, int | None], expected: object, calls: int) -> None:
    chosen = analyze(trace, time_range=time_range)
    assert conserved(chosen)
    assert figures(only_device(chosen)) == expected
    assert chosen.window_ns == only_device(chosen).window_ns
    assert sites(chosen)["read_loss"][0] == calls if time_range != (6_000, 20_100) else sites(chosen)["wait"][0] == 2


def test_ranges_that_meet_add_up_to_the_whole(trace: Path) -> None:
    cuts = [None, 101, 3_500, 6_001, 6_700, 8_123, 10_099, 15_000, 25_999, None]
    parts = [analyze(trace, time_range=bounds) for bounds in pairwise(cuts)]
    assert all(conserved(part) for part in parts)
    columns = zip(*(figures(only_device(part)) for part in parts), strict=True)
    window, busy, stalled, host_bound, outside = (sum(value or 0 for value in column) for column in columns)
    assert (window - outside, busy, stalled, host_bound) == (25_900, 14_100, 10_400, 1_400)
    for name, total in (("read_loss", 6_800), ("wait", 3_600)):
        assert sum(sites(part).get(name, (0, 0))[1] for part in parts) == total


def test_time_without_any_operation(trace: Path) -> None:
    chosen = analyze(trace, time_range=(100, 150))
    assert conserved(chosen) and chosen.sites == () and chosen.operations.num_rows == 0
    assert figures(only_device(chosen)) == (50, 50, 0, 0, 0)


# ---- NVTX


def test_steps_chosen_by_pattern(trace: Path) -> None:
    """Each range holds 4700 busy and the 1200 after read_loss; the longer gap lies between the ranges."""
    chosen = analyze(trace, nvtx="step *")
    assert conserved(chosen)
    assert figures(only_device(chosen)) == (17_700, 14_100, 3_600, 0, 0)
    assert sites(chosen) == {"read_loss": (3, 3_600), "wait": (3, 0)}
    steps = chosen.traces[0].steps
    assert steps is not None and steps.selected and steps.skipped == 0
    assert [(step.name, step.operations, step.blocked_ns, step.stall_ns) for step in steps.steps] == [
        (f"step {i}", 2, 4_600, 1_200) for i in range(3)
    ]
    per_step = chosen.sites[0].per_step
    assert per_step is not None
    assert (per_step.steps, per_step.calls_mean, per_step.stall_mean_ns, per_step.blocked_mean_ns) == (3, 1, 1200, 2800)


def test_one_step_by_its_name(trace: Path) -> None:
    assert figures(only_device(analyze(trace, nvtx="step 1"))) == (5_900, 4_700, 1_200, 0, 0)
    assert figures(only_device(analyze(trace, nvtx="step [02]"))) == (11_800, 9_400, 2_400, 0, 0)


def test_skip_first(trace: Path) -> None:
    chosen = analyze(trace, nvtx="step *", skip_first=1)
    assert figures(only_device(chosen)) == (11_800, 9_400, 2_400, 0, 0)
    steps = chosen.traces[0].steps
    assert steps is not None and steps.skipped == 1 and [step.name for step in steps.steps] == ["step 1", "step 2"]


def test_range_and_nvtx_together(trace: Path) -> None:
    chosen = analyze(trace, nvtx="step *", time_range=(3_000, 12_000))
    assert conserved(chosen)
    assert figures(only_device(chosen)) == (4_900, 3_700, 1_200, 0, 0)


def test_nested_repeated_and_shared_ranges_count_once(tmp_path: Path) -> None:
    """100…6000 on one thread, 200…3000 inside it, and 5000…6700 on another: the union is 100…6700."""
    builder = TraceBuilder()
    process = builder.process(100)
    loop(process, 2)
    first, second = process.thread(100), process.thread(101)
    first.nvtx("block", 100, 6_000)
    first.nvtx("block", 200, 3_000)
    second.nvtx("block", 5_000, 6_700)
    chosen = analyze(builder.write(tmp_path / "t.sqlite"), nvtx="block")
    assert conserved(chosen)
    device = only_device(chosen)
    assert (device.window_ns, device.busy_ns, device.idle_ns) == (6_600, 4_700, 1_200 + 700)
    assert {name: calls for name, (calls, _) in sites(chosen).items()} == {"read_loss": 1, "wait": 1}
    skipped = analyze(tmp_path / "t.sqlite", nvtx="block", skip_first=1)
    assert only_device(skipped).window_ns == 2_800


def test_a_name_with_pattern_signs_is_first_of_all_a_name(tmp_path: Path) -> None:
    builder = TraceBuilder()
    process = builder.process(100)
    loop(process, 1)
    process.thread(100).nvtx("fwd[0]*", 100, 3_000)
    assert only_device(analyze(builder.write(tmp_path / "t.sqlite"), nvtx="fwd[0]*")).window_ns == 2_900


def test_a_range_that_was_open_at_the_end(tmp_path: Path) -> None:
    builder = TraceBuilder()
    process = builder.process(100)
    loop(process, 2)
    process.thread(100).nvtx("epoch", 10_100, None)
    chosen = analyze(builder.write(tmp_path / "t.sqlite"), nvtx="epoch")
    assert conserved(chosen) and figures(only_device(chosen)) == (5_900, 4_700, 1_200, 0, 0)


# ---- processes and devices


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Process 100 on GPU 0 with three steps, process 200 on GPU 1 with two."""
    builder = TraceBuilder()
    loop(builder.process(100), 3)
    loop(builder.process(200), 2, device=1, read="read_norm")
    return builder.write(tmp_path / "two.sqlite")


def test_two_devices(two: Path) -> None:
    whole = analyze(two)
    assert conserved(whole) and whole.window_ns == 25_900 + 15_900
    assert [figures(device) for device in whole.traces[0].devices] == [
        (25_900, 14_100, 10_400, 1_400, 0),
        (15_900, 9_400, 5_800, 700, 0),
    ]
    assert sites(whole) == {"read_loss": (3, 6_800), "read_norm": (2, 4_000), "wait": (5, 5_400)}
    wait = next(site for site in whole.sites if site.location.function == "wait")
    assert [(share.pid, share.calls, share.stall_ns) for share in wait.processes] == [(100, 3, 3_600), (200, 2, 1_800)]


def test_device(two: Path) -> None:
    chosen = analyze(two, device=1)
    assert conserved(chosen) and chosen.window_ns == 15_900
    assert [device.id for device in chosen.traces[0].devices] == [1]
    assert sites(chosen) == {"read_norm": (2, 4_000), "wait": (2, 1_800)}
    with pytest.raises(TraceError, match=r"device 2\. Devices in this trace: 0, 1"):
        analyze(two, device=2)


def test_pid(two: Path) -> None:
    chosen = analyze(two, pid=200)
    assert sites(chosen) == {"read_norm": (2, 4_000), "wait": (2, 1_800)}
    with pytest.raises(TraceError, match=r"process 1\. Processes in this trace: 100, 200"):
        analyze(two, pid=1)


# ---- what is listed


def test_top(trace: Path) -> None:
    chosen = analyze(trace, top=1)
    assert sites(chosen) == {"read_loss": (3, 6_800)}
    omitted = chosen.omitted
    assert omitted is not None
    assert (omitted.sites, omitted.calls, omitted.stall_ns, omitted.blocked_ns) == (1, 3, 3_600, 5_400)
    assert chosen.stall_ns == 10_400 and "--top 1" in omitted.reason
    assert analyze(trace, top=2).omitted is None
    with pytest.raises(UsageError, match="--top"):
        analyze(trace, top=0)


def test_min_stall(trace: Path) -> None:
    assert [*sites(analyze(trace, min_stall_ns=6_800))] == ["read_loss"]
    assert analyze(trace, min_stall_ns=6_801).sites == ()
    assert analyze(trace, min_stall_ns=3_600).omitted is None
    both = analyze(trace, top=1, min_stall_ns=3_600)
    assert [*sites(both)] == ["read_loss"] and both.omitted is not None
    assert both.omitted.reason.startswith("--top 1")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"read_loss", "wait"}),
        ({"user_code": ["*/site-packages/torch/*"]}, {"item", "synchronize"}),
        ({"library_code": ["*/train.py"]}, {"main"}),
        ({"library_code": ["/work/*"]}, {"item", "synchronize"}),
        ({"library_code": ["*/torch/*"], "user_code": ["*/torch/*"]}, {"read_loss", "wait"}),
        ({"user_code": ["/work/main.py"]}, {"read_loss", "wait"}),
    ],
)
def test_whose_code(trace: Path, options: dict[str, list[str]], expected: set[str]) -> None:
    chosen = analyze(trace, **options)  # type: ignore[arg-type]
    assert {*sites(chosen)} == expected
    assert conserved(chosen) and chosen.stall_ns == 10_400


def test_ranks(tmp_path: Path) -> None:
    paths = []
    for rank, steps in enumerate((3, 2)):
        builder = TraceBuilder()
        loop(builder.process(100), steps)
        paths.append(builder.write(tmp_path / f"rank{rank}.sqlite"))
    both = analyze(*paths)
    assert conserved(both) and both.window_ns == 25_900 + 15_900 and both.stall_ns == 10_400 + 5_800
    assert sites(both) == {"read_loss": (5, 10_800), "wait": (5, 5_400)}
    assert [(share.trace, share.calls, share.stall_ns, share.blocked_ns) for share in both.sites[0].ranks] == [
        ("rank0.sqlite", 3, 6_800, 8_400),
        ("rank1.sqlite", 2, 4_000, 5_600),
    ]
    assert both.sites[0].stall_ratio == 10_800 / 41_800
    alone = analyze(paths[1])
    assert alone.sites[0].ranks == () and sites(alone) == {"read_loss": (2, 4_000), "wait": (2, 1_800)}
    steps_chosen = analyze(*paths, nvtx="step *", skip_first=1)
    assert conserved(steps_chosen) and sites(steps_chosen)["read_loss"] == (3, 3_600)


def test_ranks_of_one_name_are_told_apart(tmp_path: Path) -> None:
    paths = []
    for folder in ("x/run", "y/run"):
        (tmp_path / folder).mkdir(parents=True)
        builder = TraceBuilder()
        loop(builder.process(100), 1)
        paths.append(builder.write(tmp_path / folder / "t.sqlite"))
    assert len({trace.name for trace in analyze(*paths).traces}) == 2


def test_a_program_without_any_sync(tmp_path: Path) -> None:
    """The state that users work towards: kernels with gaps between them, and nothing that waits."""
    builder = TraceBuilder()
    thread = builder.process(1).thread(1)
    for at in (0, 1_000, 2_000):
        thread.launch(at, at + 10, gpu=(at + 20, at + 500))
    found = analyze(builder.write(tmp_path / "t.sqlite"))
    assert found.sites == () and conserved(found)
    assert figures(only_device(found)) == (2_480, 1_440, 0, 1_040, 0)


# ---- real captures


@pytest.mark.parametrize(
    ("nvtx", "skip_first", "ranges"),
    [("step *", 0, 15), ("step *", 2, 13), ("eval", 0, 20), ("block", 0, 30), ("epoch", 0, 1), ("attention", 3, 24)],
)
def test_real_ranges_on_two_threads(capture: Capture, nvtx: str, skip_first: int, ranges: int) -> None:
    old, new = (
        analyze(capture(f"nvtx_threads.schema-{schema}"), nvtx=nvtx, skip_first=skip_first)
        for schema in ("3.7.2", "3.20.3")
    )
    assert conserved(new) and sites(old) == sites(new) and old.traces[0].devices == new.traces[0].devices
    steps = new.traces[0].steps
    assert steps is not None and len(steps.steps) == ranges
    whole = only_device(analyze(capture("nvtx_threads.schema-3.20.3")))
    assert only_device(new).busy_ns <= whole.busy_ns
    if nvtx == "step *":
        assert not {"read_total"} & {*sites(new)}
        assert sites(new)["read_norm"][0] == ranges


def test_real_ranges_less_than_the_whole(capture: Capture) -> None:
    path = capture("gpu_bound.schema-3.20.3")
    whole, steps = analyze(path), analyze(path, nvtx="step *", skip_first=5)
    assert conserved(steps)
    assert sites(steps)["read_loss"][0] == 35 and sites(whole)["read_loss"][0] == 40
    assert all(stalled <= sites(whole)[name][1] for name, (_, stalled) in sites(steps).items())


@pytest.mark.parametrize("name", ["two_gpus", "two_gpus_visible"])
def test_real_devices_and_processes(capture: Capture, name: str) -> None:
    path = capture(f"{name}.schema-3.20.3")
    whole = analyze(path)
    by_device = [analyze(path, device=device) for device in (0, 1)]
    assert conserved(whole) and all(conserved(one) for one in by_device)
    assert [one.traces[0].devices[0].busy_ns for one in by_device] == [d.busy_ns for d in whole.traces[0].devices]
    calls = [{function: count for function, (count, _) in sites(one).items()} for one in by_device]
    assert calls[0] == {"read_loss": 20, "count_large": 20, "worker": 1}
    assert calls[1] == {"download": 20, "wait_for_device": 20, "worker": 1}
    for device, chosen in enumerate(by_device):
        (pid,) = whole.traces[0].devices[device].processes
        assert sites(analyze(path, pid=pid)) == sites(chosen)


def test_real_processes_on_one_device(capture: Capture) -> None:
    path = capture("procs.schema-3.20.3")
    whole = analyze(path)
    (device,) = whole.traces[0].devices
    parts = [sites(analyze(path, pid=pid)) for pid in device.processes]
    assert len(parts) == 2
    for name, (calls, stalled) in sites(whole).items():
        assert [sum(part.get(name, (0, 0))[i] for part in parts) for i in (0, 1)] == [calls, stalled]
