"""From one trace's attribution to what is said of it: its operations with their sites, and its report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from nsys_sync import model
from nsys_sync.analysis.accounting import DeviceAccount, graph_launches_without_gpu_work
from nsys_sync.analysis.advice import CAUSES, advice_texts, cause_texts
from nsys_sync.analysis.attributed import Attributed
from nsys_sync.analysis.calls import PID_MASK
from nsys_sync.analysis.host_work import LineText, host_work
from nsys_sync.analysis.intervals import EMPTY, IntArray, Intervals, distinct, intersect, subtract, union
from nsys_sync.analysis.locate import innermost_range
from nsys_sync.analysis.lost_events import NEVER
from nsys_sync.analysis.phases import families, startup_by_process, user_ranges
from nsys_sync.analysis.polling import polling
from nsys_sync.analysis.redundant import redundant_operations
from nsys_sync.analysis.regions import regions
from nsys_sync.analysis.site_keys import python_stack_hash, sites_of
from nsys_sync.analysis.sites import HOW, TraceOperations
from nsys_sync.analysis.user_code import cut
from nsys_sync.trace.api_names import SYNCS
from nsys_sync.trace.tables import NO_PROCESS, UNNAMED, BoolArray

MIGRATION_KINDS = (11, 12, 13)
"""Copies that unified memory makes by itself, as in the export's ENUM_CUDA_MEMCPY_OPER."""
TIMELINE_BINS = 400
ZOOM_SPANS = 600
SHORTEST_CONCLUSIVE_NS = 50_000_000
LAUNCH_BOUND_IDLE_RATIO = 0.1
LAUNCH_BOUND_WAIT_NS = 40_000


def window_of(one: Attributed) -> int:
    """The sum of the windows of the trace's devices, in ns."""
    if one.selection.windows is not None:
        return one.selection.windows.total_ns * len(one.accounts)
    return sum(account.time.window_end - account.time.window_start for account in one.accounts)


def stall_of(reports: Sequence[model.TraceReport]) -> int | None:
    """The stall of all devices of all traces, None where any was refused an idle figure."""
    stalls = [device.stall_ns for report in reports for device in report.devices]
    return None if any(stall is None for stall in stalls) else sum(stall or 0 for stall in stalls)


def texts_of(
    sites: Sequence[model.Site], reports: Sequence[model.TraceReport]
) -> tuple[tuple[model.CauseText, ...], tuple[model.Advice, ...]]:
    """What the causes of the sites and of slow calls in host-bound time are, and what helps."""
    works = [report.host_work for report in reports if report.host_work]
    slow_calls = {call.cause for work in works for call in work.calls if call.cause}
    advice = {tried for site in sites for tried in site.advice}
    advice |= {tried for cause in slow_calls for tried in CAUSES[cause].advice}
    return cause_texts({site.cause.id for site in sites} | slow_calls), advice_texts(advice)


def trace_operations(one: Attributed) -> TraceOperations:
    """The operations inside the selection (of the chosen process), each with its site, stall and place."""
    operations, calls, trace = one.operations, one.calls, one.trace
    stall, startup_stall, idle_within, known = _idle_figures(one)
    startup_end = startup_by_process(list(one.startup), len(calls.processes))[operations.process]
    blocked = operations.end - operations.start
    shown = np.ones(len(operations), dtype=bool)
    if one.selection.windows is not None:
        blocked = one.selection.windows.within(operations.start, operations.end)
        shown &= (blocked > 0) | (stall > 0)
    if one.options.pid is not None:
        shown &= (calls.processes[operations.process] & PID_MASK) == one.options.pid
    if one.options.device is not None:
        on_device = np.concatenate([account.time.process_ids for account in one.accounts])
        shown &= np.isin(calls.processes[operations.process], on_device)

    tid = calls.global_tids[operations.thread]
    ranges = user_ranges(trace)
    family_codes, family_names = families(ranges)
    row = innermost_range(ranges, tid, operations.start)
    nvtx = np.where(row >= 0, family_codes[row], -1) if len(family_codes) else row
    how, site, keys = sites_of(one, nvtx, family_names)
    known &= ~_of_sites_that_are_lost(one, site, stall, len(keys))
    redundant, redundant_known = redundant_operations(one)
    return TraceOperations(
        trace=trace.name,
        row=np.flatnonzero(shown),
        site=site[shown],
        site_keys=keys,
        start=operations.start[shown],
        end=operations.end[shown],
        blocked=blocked[shown],
        stall=stall[shown],
        startup_stall=startup_stall[shown],
        idle_within=idle_within[shown],
        known=known[shown],
        how=how[shown],
        process=operations.process[shown],
        thread=operations.thread[shown],
        nvtx=nvtx[shown],
        step=_step_of(one.steps, tid, operations.start)[shown],
        in_startup=(operations.start < startup_end)[shown],
        redundant=redundant[shown],
        redundant_known=redundant_known[shown],
        correlation_id=calls.correlation_id_of(operations.call)[shown],
        chain_id=one.chain_id[shown],
        event=one.python.event[shown],
        stack=python_stack_hash(one, None)[shown],
        pids=[int(process) & PID_MASK for process in calls.processes],
        process_names=[one.shown(trace.process_names.get(int(process), "")) for process in calls.processes],
        tids=[int(tid) & PID_MASK for tid in calls.global_tids],
        thread_pids=[(int(tid) >> 24) & PID_MASK for tid in calls.global_tids],
        thread_names=[one.shown(trace.thread_names.get(int(tid), "")) for tid in calls.global_tids],
        nvtx_names=[one.shown(name) for name in family_names],
        steps=0 if one.steps is None else len(one.steps),
    )


def _of_sites_that_are_lost(one: Attributed, site: IntArray, stall: IntArray, sites: int) -> BoolArray:
    """Operations at sites all of whose operations lie in stretches in which the thread's events are lost, and that are
    charged with nothing: what they cost is not known, rather than nothing.
    """
    lost = one.lost.holds(one.operations.thread, one.operations.start)
    kept = np.zeros(sites, dtype=bool)
    kept[site[~lost | (stall > 0)]] = True
    return np.asarray(~kept[site])


def _idle_figures(one: Attributed) -> tuple[IntArray, IntArray, IntArray, BoolArray]:
    """Per operation: stall, the part of it in start-up, idle within, and whether these are known."""
    operations, calls = one.operations, one.calls
    stall = np.zeros(len(operations), dtype=np.int64)
    startup_stall = np.zeros_like(stall)
    idle_within = np.zeros_like(stall)
    known = np.ones(len(operations), dtype=bool)
    startup_end = startup_by_process(list(one.startup), len(calls.processes))
    for account in one.accounts:
        pieces, index = one.clipped(account.stall)
        owner = account.stall_operation[index]
        np.add.at(stall, owner, pieces.end - pieces.start)
        until = np.minimum(pieces.end, startup_end[account.stall_process[index]])
        np.add.at(startup_stall, owner, np.maximum(until - pieces.start, 0))
        uses = np.isin(calls.processes[operations.process], account.time.process_ids)
        start, end = operations.start[uses], operations.end[uses]
        idle_within[uses] += one.clipped(account.time.gaps)[0].within(start, end)
        for not_idle in (account.profiler, account.time.not_captured):
            idle_within[uses] -= one.clipped(not_idle)[0].within(start, end)
        if one.refusal(account):
            known &= ~uses
    return stall, startup_stall, idle_within, known


def _step_of(steps: pd.DataFrame | None, tid: IntArray, time: IntArray) -> IntArray:
    """The step around each operation: on its own thread, else on any of its process."""
    if steps is None or not len(steps):
        return np.full(len(time), -1, dtype=np.int64)
    own = innermost_range(steps, tid, time)
    by_process = steps.assign(global_tid=steps["global_tid"].to_numpy() >> 24)
    elsewhere = own < 0
    own[elsewhere] = innermost_range(by_process, tid[elsewhere] >> 24, time[elsewhere])
    return own


def trace_report(
    one: Attributed, shown: TraceOperations, site_of_operation: IntArray, site_ids: Sequence[str]
) -> model.TraceReport:
    """What is said of the trace as a whole. `site_of_operation` has the rank of each shown operation's site."""
    trace, calls = one.trace, one.calls
    steps = _steps(one, shown)
    processes = _processes(one, shown)
    return model.TraceReport(
        name=trace.name,
        nsys_version=cut(trace.metadata.nsys_version) if trace.metadata.nsys_version else None,
        schema_version=cut(trace.metadata.schema_version) if trace.metadata.schema_version else None,
        capture_start_utc=trace.metadata.capture_start_utc,
        devices=tuple(_device(one, account, shown, site_of_operation) for account in one.accounts),
        processes=processes,
        startup=tuple(
            model.Startup(int(calls.processes[entry.process]) & PID_MASK, entry.end, entry.reason)
            for entry in one.startup
            if any(entry.end > account.time.window_start for account in one.accounts)
        ),
        steps=steps,
        regions=regions(one, shown, site_of_operation, site_ids),
        host_work=host_work(one, _source_line(one)),
        polling=polling(one),
        coverage=_coverage(one, shown, processes),
    )


def _device(
    one: Attributed, account: DeviceAccount, shown: TraceOperations, site_of_operation: IntArray
) -> model.Device:
    time = account.time
    startup_end = startup_by_process(list(one.startup), len(one.calls.processes))
    refused = one.refusal(account)
    windows = one.selection.windows
    start = time.window_start if windows is None else int(windows.start[0])
    length = time.window_end - time.window_start if windows is None else windows.total_ns
    active = Intervals(np.array([time.window_start]), np.array([time.window_end]))
    outside = 0 if windows is None else subtract(windows, active)[0].total_ns
    stall, stall_index = one.clipped(account.stall)
    host_bound, bound_index = one.clipped(account.host_bound)
    device_side, side_index = one.clipped(account.device_side)
    without_launch = ~account.device_side_has_launch[side_index]

    def in_startup(pieces: Intervals, process: IntArray) -> int:
        return int(np.maximum(np.minimum(pieces.end, startup_end[process]) - pieces.start, 0).sum())

    gap_index = distinct(one.clipped(time.gaps)[1])
    idle = stall.total_ns + host_bound.total_ns + device_side.total_ns
    timeline = _timeline(one, account, shown, bool(refused))

    def unless_refused(value: int) -> int | None:
        return None if refused else value

    return model.Device(
        id=time.device_id,
        name=cut(one.trace.device_names.get(time.device_id, "")) or None,
        processes=tuple(int(process) & PID_MASK for process in time.process_ids if process != NO_PROCESS),
        window_start_ns=start,
        window_ns=length,
        busy_ns=one.clipped(account.busy)[0].total_ns,
        communication_ns=None if time.communication is None else one.clipped(time.communication)[0].total_ns,
        idle_ns=unless_refused(idle),
        stall_ns=unless_refused(stall.total_ns),
        host_bound_ns=unless_refused(host_bound.total_ns),
        device_side_ns=unless_refused(device_side.total_ns),
        device_side_without_launch_ns=unless_refused(int((device_side.end - device_side.start)[without_launch].sum())),
        profiler_ns=unless_refused(one.clipped(account.profiler)[0].total_ns),
        not_captured_ns=unless_refused(one.clipped(time.not_captured)[0].total_ns),
        outside_ns=outside,
        startup_stall_ns=unless_refused(in_startup(stall, account.stall_process[stall_index])),
        startup_host_bound_ns=unless_refused(in_startup(host_bound, account.host_bound_process[bound_index])),
        gaps=unless_refused(len(gap_index)),
        host_late_gaps=unless_refused(int(time.host_late[gap_index].sum())),
        refused=refused,
        timeline=timeline,
        zoom=None if refused else _zoom(one, account, shown, site_of_operation),
    )


def _hull(one: Attributed, account: DeviceAccount) -> tuple[int, int]:
    """The stretch of the device's window that the selection spans."""
    low, high = account.time.window_start, account.time.window_end
    windows = one.selection.windows
    if windows is None:
        return low, high
    return min(max(low, int(windows.start[0])), high), max(min(high, int(windows.end[-1])), low)


def _timeline(one: Attributed, account: DeviceAccount, shown: TraceOperations, refused: bool) -> model.Timeline:
    low, high = _hull(one, account)
    bins = max(min(TIMELINE_BINS, high - low), 1)
    whole, rest = divmod(high - low, bins)  # a product of a time and a number of bins need not fit 64 bits
    number = np.arange(bins + 1, dtype=np.int64)
    edges = low + number * whole + number * rest // bins

    def per_bin(intervals: Intervals) -> tuple[int, ...]:
        return tuple(np.diff(intervals.before(edges)).tolist())

    def known(intervals: Intervals) -> Intervals:
        return EMPTY if refused else intervals

    uses = np.isin(one.calls.processes[shown.process], account.time.process_ids)
    return model.Timeline(
        start_ns=low,
        bin_ns=(high - low) / bins,
        busy_ns=per_bin(account.busy),
        communication_ns=per_bin(account.time.communication or EMPTY),
        stall_ns=per_bin(known(account.stall)),
        host_bound_ns=per_bin(known(account.host_bound)),
        device_side_ns=per_bin(known(account.device_side)),
        profiler_ns=per_bin(known(account.profiler)),
        unknown_ns=per_bin(account.time.gaps if refused else account.time.not_captured),
        blocked_ns=per_bin(union(shown.start[uses], shown.end[uses])),
    )


def _zoom(
    one: Attributed, account: DeviceAccount, shown: TraceOperations, site_of_operation: IntArray
) -> model.Zoom | None:
    """The step of median length, else the surroundings of the longest stall, in at most ZOOM_SPANS spans."""
    low, high = _hull(one, account)
    title = None
    if one.steps is not None and len(one.steps):
        start, end = one.steps["start_ns"].to_numpy(), one.steps["end_ns"].to_numpy()
        inside = np.flatnonzero((start >= low) & (end <= high) & (end > start))
        if len(inside):
            median = inside[np.argsort((end - start)[inside], kind="stable")[(len(inside) - 1) // 2]]
            title = f"one typical step: {one.shown(str(one.steps['name'].iloc[median]))}"
            low, high = int(start[median]), int(end[median])
    if title is None:
        stall = one.clipped(account.stall)[0]
        if not len(stall):
            return None
        longest = int(np.argmax(stall.end - stall.start))
        title = "around the longest stall"
        half = 4 * int(stall.end[longest] - stall.start[longest])
        low, high = max(low, int(stall.start[longest]) - half), min(high, int(stall.end[longest]) + half)
    window = Intervals(np.array([low]), np.array([high]))
    spans: list[model.Span] = []
    resolution = (high - low) // (ZOOM_SPANS // 2)
    lanes: tuple[tuple[model.Lane, Intervals], ...] = (
        ("busy", account.busy),
        ("stall", account.stall),
        ("host-bound", account.host_bound),
        ("device-side", account.device_side),
        ("profiler", account.profiler),
        ("unknown", account.time.not_captured),
    )
    for lane, intervals in lanes:
        pieces = _merged(intersect(intervals, window)[0], resolution)
        spans += [model.Span(lane, int(a), int(b), None) for a, b in zip(pieces.start, pieces.end, strict=True)]
    uses = np.isin(one.calls.processes[shown.process], account.time.process_ids)
    during = np.flatnonzero(uses & (shown.start < high) & (shown.end > low))
    longest_first = during[np.argsort(shown.start[during] - shown.end[during], kind="stable")][: ZOOM_SPANS // 2]
    spans += [
        model.Span("operation", int(shown.start[i]), int(shown.end[i]), int(site_of_operation[i]))
        for i in np.sort(longest_first)
    ]
    return model.Zoom(title, low, high, tuple(spans))


def _merged(intervals: Intervals, resolution: int) -> Intervals:
    """Intervals closer than what can be drawn apart become one."""
    if not len(intervals):
        return intervals
    apart = np.concatenate(([True], intervals.start[1:] - intervals.end[:-1] > resolution))
    last = np.append(np.flatnonzero(apart)[1:] - 1, len(intervals) - 1)
    return Intervals(intervals.start[apart], intervals.end[last])


def _source_line(one: Attributed) -> LineText:
    lines: dict[str, list[str]] = {}

    def line_text(path: str, line: int) -> str | None:
        if path not in lines:
            found = one.read_sources([path]).get(path)
            lines[path] = found.text.splitlines() if found else []
        return lines[path][line - 1] if 0 < line <= len(lines[path]) else None

    return line_text


def _steps(one: Attributed, shown: TraceOperations) -> model.Steps | None:
    if one.steps is None or not len(one.steps):
        return None
    start, end = one.steps["start_ns"].to_numpy(), one.steps["end_ns"].to_numpy()
    process = one.steps["global_tid"].to_numpy() >> 24
    inside = shown.step >= 0
    operations = np.bincount(shown.step[inside], minlength=len(start))
    figures = {name: np.zeros(len(start), dtype=np.int64) for name in ("busy", "stall", "host_bound", "blocked")}
    np.add.at(figures["blocked"], shown.step[inside], shown.blocked[inside])
    known = np.ones(len(start), dtype=bool)
    for account in one.accounts:
        uses = np.isin(process, account.time.process_ids)
        for name, intervals in (("busy", account.busy), ("stall", account.stall), ("host_bound", account.host_bound)):
            figures[name][uses] += intervals.within(start[uses], end[uses])
        if one.refusal(account):
            known &= ~uses
    lost_by = one.calls.processes[one.calls.process_of_thread[one.lost.thread]]
    for lossy in np.unique(lost_by):
        lost = union(one.lost.begin[lost_by == lossy], one.lost.resumed[lost_by == lossy])
        known &= (process != lossy) | (lost.within(start, end) == 0)
    name_code, names = one.steps["name"].cat.codes.to_numpy(), one.steps["name"].cat.categories
    shown_name = {code: one.shown(str(names[code])) for code in np.unique(name_code).tolist()}
    return model.Steps(
        pattern=one.shown(one.step_pattern),
        selected=one.selection.nvtx_pattern is not None,
        skipped=one.selection.skipped,
        steps=tuple(
            model.Step(
                name=shown_name[int(name_code[i])],
                pid=int(process[i]) & PID_MASK,
                start_ns=int(start[i]),
                end_ns=int(end[i]),
                operations=int(operations[i]),
                blocked_ns=int(figures["blocked"][i]),
                busy_ns=int(figures["busy"][i]),
                stall_ns=int(figures["stall"][i]) if known[i] else None,
                host_bound_ns=int(figures["host_bound"][i]) if known[i] else None,
            )
            for i in range(len(start))
        ),
    )


def _processes(one: Attributed, shown: TraceOperations) -> tuple[model.Process, ...]:
    rows = one.trace.gpu["process"].value_counts(sort=False).drop(NO_PROCESS, errors="ignore")
    operations = np.bincount(shown.process, minlength=len(one.calls.processes))
    operations_of = dict(zip(one.calls.processes.tolist(), operations.tolist(), strict=True))
    # The export names every process of the machine: only those that CUDA or Python tracing saw are the program's.
    traced = np.unique(one.trace.python.global_tid >> 24)
    everyone = sorted({*one.calls.processes.tolist(), *rows.index.tolist(), *traced.tolist()})
    return tuple(
        model.Process(
            pid=int(process) & PID_MASK,
            name=one.shown(one.trace.process_names.get(int(process), "")),
            gpu_rows=int(rows.get(process, 0)),
            sync_operations=int(operations_of.get(process, 0)),
        )
        for process in everyone
    )


def _coverage(one: Attributed, shown: TraceOperations, processes: Sequence[model.Process]) -> model.Coverage:
    trace, calls = one.trace, one.calls
    how = np.bincount(shown.how, minlength=len(HOW))
    missing_graphs = len(graph_launches_without_gpu_work(calls))
    return model.Coverage(
        operations=len(shown),
        located_by=tuple((HOW[code], int(count)) for code, count in enumerate(how) if count),
        not_captured=(
            *map(cut, trace.not_captured),
            *((f"native stacks: {trace.native.refused}",) if trace.native.refused else ()),
        ),
        warnings=(*_warnings(one), *_without_source(one, shown)),
        diagnostics=tuple(model.Diagnostic(severity, one.shown(text)) for severity, text in trace.diagnostics),
        processes_without_gpu_rows=tuple(process for process in processes if not process.gpu_rows),
        graph_launches_without_gpu_work=missing_graphs,
        unfinished_calls=int(calls.unfinished.sum()),
        unfinished_gpu_rows=int(trace.gpu["unfinished"].sum()),
        unfinished_waits=int((calls.unfinished & np.isin(calls.api_class, SYNCS)).sum()),
        lost_events=_lost_events(one),
        lost_beyond_window=_is_lost_beyond_window(one),
    )


def _without_source(one: Attributed, shown: TraceOperations) -> Iterable[str]:
    """A folder of sources was named, and no line could be read there."""
    in_python = [key.verdict for key in shown.site_keys if key.location.file is not None]
    if one.options.source_root is not None and in_python and not any(verdict.source for verdict in in_python):
        yield (
            "no source line was read below --source-root: its files are not those of this trace, or of another version "
            "(lines that do not show the call which the trace has there are not believed)"
        )


def _slowed_by_the_profiler(account: DeviceAccount) -> str | None:
    """Tracing costs some microseconds a call, which matters where the GPU waits for launch after launch."""
    late = account.stall.total_ns + account.host_bound.total_ns
    window = account.time.window_end - account.time.window_start
    waits = int(account.time.host_late.sum())
    if late < LAUNCH_BOUND_IDLE_RATIO * window or late > waits * LAUNCH_BOUND_WAIT_NS:
        return None
    return (
        f"GPU {account.time.device_id} waited {waits:,} times for the next launch, on average "
        f"{late / waits / 1000:.1f} µs each: such a launch-bound program is slowed by the profiler itself (a loop of "
        "tiny kernels on an H200 took 1.4 to 1.8 times as long), so it idles less without one"
    )


def _warnings(one: Attributed) -> list[str]:
    trace, calls = one.trace, one.calls
    result = []
    steady = 0
    for account in one.accounts:
        low, high = _hull(one, account)
        own = [entry.end for entry in one.startup if calls.processes[entry.process] in account.time.process_ids]
        steady = max(steady, high - max(low, min(own, default=low)))
    if steady < SHORTEST_CONCLUSIVE_NS:
        result.append(
            f"only {steady / 1e6:.1f} ms of GPU time after start-up: too short to conclude from; capture at least "
            "some seconds of the loop"
        )
    result += [warning for account in one.accounts if (warning := _slowed_by_the_profiler(account))]
    for account in one.accounts:
        pids = [int(process) & PID_MASK for process in account.time.process_ids if process != NO_PROCESS]
        if len(pids) > 1:
            result.append(
                f"GPU {account.time.device_id} is shared by {len(pids)} processes (pid {', '.join(map(str, pids[:8]))}"
                f"{', …' if len(pids) > 8 else ''}): it is idle only while none of them has work there, and that time "
                "is charged to the process whose launch ends it"
            )
    unnamed = [code for code, name in enumerate(trace.api_names) if name == UNNAMED]
    if unnamed:
        rows = int(np.isin(calls.api["name"], unnamed).sum())
        result.append(f"{rows} of {len(calls.api['name'])} CUDA calls have no name here: a wait among them is not seen")
    nobodys = int((trace.gpu["process"].to_numpy() == NO_PROCESS).sum())
    if nobodys:
        result.append(f"{nobodys} of {len(trace.gpu)} GPU rows do not say which process they are of")
    launched_by = calls.launched_by
    finished = ~trace.gpu["unfinished"].to_numpy()
    orphans = int((launched_by < 0).sum())
    if orphans:
        result.append(f"{orphans} of {len(launched_by)} GPU rows have no launch call in the trace")
    early = int(((launched_by >= 0) & finished & (trace.gpu["start_ns"].to_numpy() < calls.start[launched_by])).sum())
    if early:
        result.append(f"{early} of {len(launched_by)} GPU rows begin before their launch call does: the clocks differ")
    return [*result, *_migrations(one)]


def _is_lost_beyond_window(one: Attributed) -> bool:
    stretches = one.clipped(one.lost.stretches)[0]
    if not len(stretches):
        return False
    first = min(account.time.window_start for account in one.accounts)
    last = max(account.time.window_end for account in one.accounts)
    return bool(stretches.start[0] < first or stretches.end[-1] > last)


def _lost_events(one: Attributed) -> str | None:
    lost = one.lost
    stretches = one.clipped(lost.stretches)[0]
    if not len(stretches):
        return None
    signs = ", ".join(f"{what}: {count:,}" for what, count in lost.signs)
    end = int(stretches.end[-1])
    until = "to the end" if end == NEVER else f"until t = {end / 1e9:.6f} s"
    missing = ", ".join(
        f"{pieces.total_ns / 1e6:.3f} ms without activity of GPU {account.time.device_id} are not called idle"
        for account in one.accounts
        if len(pieces := one.clipped(account.time.not_captured)[0])
    )
    return (
        f"nsys lost CUDA events: {signs} (from t = {int(stretches.start[0]) / 1e9:.6f} s {until}); "
        f"{missing or 'outside the window of GPU activity'}. Mostly nsys is older than CUDA, and drops what follows a "
        "function that it does not know (2023.4: Event.elapsed_time()); use a newer nsys, or capture a range without it"
    )


def _migrations(one: Attributed) -> Iterable[str]:
    copies = one.trace.copies
    rows = copies["gpu_row"].to_numpy()[np.isin(copies["copy_kind"].to_numpy(), MIGRATION_KINDS)]
    if len(rows):
        start, end = (one.trace.gpu[name].to_numpy()[rows] for name in ("start_ns", "end_ns"))
        yield (
            f"{len(rows):,} migrations of unified memory count as busy: {union(start, end).total_ns / 1e6:.3f} ms in "
            "all. A CPU that waits for its pages makes no CUDA call, so such waits are not among the sync sites"
        )
