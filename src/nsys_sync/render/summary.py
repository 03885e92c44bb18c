"""The sentences that the terminal report and the page have in common, so that they cannot disagree."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from nsys_sync.render.text import NOT_KNOWN, clip, count, duration, plain_name, ratio, short_file, time_point

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nsys_sync.model import Analysis, Coverage, Device, Location, Site, Steps, TraceReport

T = TypeVar("T")

TRACES_SHOWN = 8
DEVICES_SHOWN = 8
"""Of these, at most, there is a part of the report for each; the other parts are over all of them."""
LISTED = 8
"""Entries of one kind in a list of sentences."""
MESSAGE_LENGTH = 600
PART_LABELS = {
    "busy": "busy",
    "communication": "busy with NCCL kernels alone: they spin while other ranks are late",
    "stall": "stall: removable by removing syncs",
    "host-bound": "host-bound",
    "device-side": "device-side",
    "profiler": "profiler",
    "outside": "outside the activity",
    "unknown": "no GPU work on record: busy or idle is not known",
}


class Part(NamedTuple):
    """One share of a device's window. `ns` is None where it is not known."""

    key: str
    label: str
    ns: int | None


def headline(analysis: Analysis) -> str:
    """The answer in one sentence."""
    devices = [device for trace in analysis.traces for device in trace.devices]
    if not devices:
        return f"No GPU work on record, so no idle time can be given; {_blocked_sentence(analysis)}"
    gpus = "" if len(devices) == 1 else f" (sum over {len(devices)} GPUs)"
    window = f"{duration(analysis.window_ns)}{gpus}"
    idles = [device.idle_ns for device in devices if device.idle_ns is not None]
    if analysis.stall_ns is None or len(idles) < len(devices):
        refused = count(sum(device.refused is not None for device in devices))
        which = "" if len(devices) == 1 else f" for {refused} of {len(devices)} GPUs"
        return f"GPU idle time not known{which} (the reason stands below); {_blocked_sentence(analysis)}"
    idle = f"GPU idle {ratio(sum(idles), analysis.window_ns)} of {window}"
    if lost := sum(device.not_captured_ns or 0 for device in devices):
        idle += f", and {ratio(lost, analysis.window_ns)} ({duration(lost)}) not captured: busy or idle is not known"
    if any(trace.coverage.lost_beyond_window for trace in analysis.traces):
        idle += " (nsys lost events beyond that window)"
    if not _sites(analysis):
        caused: int | None = 0
        text = f"{idle}; no sync operations {_on_record(analysis)}"
    else:
        caused = _stall_of_sites(analysis)
        text = f"{idle}; {_caused_sentence(analysis, caused)}"
    # The window and its stall are the device's, whoever uses it; the sites may be of one process only.
    others = 0 if caused is None else analysis.stall_ns - caused
    if others > 0:
        further = "a further " if caused else ""
        text += f"; {further}{ratio(others, analysis.window_ns)} ({duration(others)}) is stall of processes not shown"
    return text


def _caused_sentence(analysis: Analysis, caused: int | None) -> str:
    """What the sites cause, shown or omitted. Not known, it is not claimed for a number of them."""
    if caused is None:
        return f"{ratio(analysis.stall_ns, analysis.window_ns)} ({duration(analysis.stall_ns)}) because of sync calls"
    if not caused:
        shown = "the sync calls shown" if analysis.stall_ns else "sync calls"
        return f"none of it because of {shown} ({count(_sites(analysis), 'sync site')})"
    with_stall = sum(1 for site in analysis.sites if site.stall and site.stall.total_ns)
    all_sites = _sites(analysis)
    sites = f"{count(with_stall)} of " if with_stall < all_sites else ""
    sites += count(all_sites, "sync site")
    omitted = analysis.omitted
    if omitted and omitted.stall_ns:
        which = count(omitted.sites) if analysis.sites else "all"
        sites = (
            f"up to {count(with_stall + omitted.sites, 'sync site')} ({which} left out: {plain_name(omitted.reason)})"
        )
    text = f"{ratio(caused, analysis.window_ns)} ({duration(caused)}) because of {sites}"
    worst = analysis.sites[0] if analysis.sites else None
    if worst and worst.stall and worst.stall.total_ns:
        text += (
            f"; worst: {clip(place(worst), 120)}, {duration(worst.stall.total_ns)} over {count(worst.calls, 'call')}"
        )
    return text


def no_sites_sentence(analysis: Analysis) -> str:
    """Why there is no site to list."""
    return "Every sync site was left out." if _sites(analysis) else f"No sync operations {_on_record(analysis)}."


def order_of(sites: Sequence[Site]) -> str:
    """What the sites are ranked by."""
    if not sites or sites[0].stall is None:
        return "time blocked"
    return "stall outside start-up" if any_startup_stall(sites) else "stall"


def any_startup_stall(sites: Sequence[Site]) -> bool:
    return any(site.startup_stall_ns for site in sites)


def sites_sum(sites: Sequence[Site]) -> str:
    """The totals of several sites."""
    return _sums(
        sum(site.calls for site in sites),
        _known_sum(site.stall.total_ns if site.stall else None for site in sites),
        sum(site.blocked.total_ns for site in sites),
    )


def shown_traces(analysis: Analysis) -> list[TraceReport]:
    """All traces, or of many those with most stall, in their order."""
    return _most(analysis.traces, TRACES_SHOWN, lambda trace: sum(device.stall_ns or 0 for device in trace.devices))


def shown_devices(analysis: Analysis) -> list[tuple[TraceReport, Device]]:
    """The devices of the shown traces, or of many those with most stall, in their order."""
    devices = [(trace, device) for trace in shown_traces(analysis) for device in trace.devices]
    return _most(devices, DEVICES_SHOWN, lambda pair: pair[1].stall_ns or 0)


def folded_sentence(analysis: Analysis) -> str | None:
    """How many traces and devices have no part of their own."""
    traces, devices = len(analysis.traces), sum(len(trace.devices) for trace in analysis.traces)
    parts = [
        f"{count(all_of_them - shown)} of {count(all_of_them)} {nouns}"
        for all_of_them, shown, nouns in (
            (traces, len(shown_traces(analysis)), "traces"),
            (devices, len(shown_devices(analysis)), "GPUs"),
        )
        if shown < all_of_them
    ]
    if not parts:
        return None
    return (
        f"Folded away, those with least stall: {' and '.join(parts)}. The first line and the sync sites count them; "
        "the JSON report has each."
    )


def folded_coverage_sentence(analysis: Analysis) -> str | None:
    """The coverage of the traces that have no part of their own."""
    shown = {id(trace) for trace in shown_traces(analysis)}
    rest = [trace.coverage for trace in analysis.traces if id(trace) not in shown]
    if not rest:
        return None
    exact = sum(dict(coverage.located_by).get("exact stack", 0) for coverage in rest)
    operations = sum(coverage.operations for coverage in rest)
    flawed = sum(bool(coverage.not_captured or coverage.warnings or coverage.diagnostics) for coverage in rest)
    return (
        f"{count(len(rest), 'more trace')}: {count(exact)} of {count(operations, 'sync operation')} located by an "
        f"exact Python stack; something not captured or a warning in {count(flawed)} of the traces."
    )


def place(site: Site, parents: int = 0) -> str:
    """Function and `file.py:line` of a site in one line, harmless on a terminal."""
    name, where = place_parts(site, parents)
    return f"{name} {where}" if where else name


def place_parts(site: Site, parents: int | None = 0) -> tuple[str, str]:
    """(function or label, `file.py:line` or empty); `parents` folders of the path are kept, None keeps all."""
    return location_parts(site.location, parents)


def location_parts(location: Location, parents: int | None = 0) -> tuple[str, str]:
    """As `place_parts`, of any location."""
    if location.file is None:
        return plain_name(location.label), ""
    file = location.file if parents is None else short_file(location.file, parents)
    line = "" if location.line is None else f":{location.line}"
    return plain_name(location.function or location.label), plain_name(file) + line


def device_title(device: Device) -> str:
    return f"GPU {device.id}, {plain_name(device.name)}" if device.name else f"GPU {device.id}"


def device_parts(device: Device) -> list[Part]:
    """Where the window went; the parts' sum is the window wherever all of them are known."""
    shares: list[tuple[str, int | None]] = [("busy", device.busy_ns - (device.communication_ns or 0))]
    if device.communication_ns:
        shares.append(("communication", device.communication_ns))
    if device.idle_ns is None:
        known = device.busy_ns + (device.profiler_ns or 0) + device.outside_ns
        shares.append(("unknown", device.window_ns - known))
    else:
        shares += [
            ("stall", device.stall_ns),
            ("host-bound", device.host_bound_ns),
            ("device-side", device.device_side_ns),
        ]
        if device.not_captured_ns:
            shares.append(("unknown", device.not_captured_ns))
    shares.append(("profiler", device.profiler_ns))
    if device.outside_ns:
        shares.append(("outside", device.outside_ns))
    return [Part(key, PART_LABELS[key], ns) for key, ns in shares]


def gaps_sentence(device: Device) -> str | None:
    """How many gaps there are and who ended them late."""
    if device.gaps is None:
        return None
    text = f"{count(device.gaps, 'gap')} without GPU work"
    if device.host_late_gaps is not None:
        text += f", {count(device.host_late_gaps)} of them because the host was late"
    if device.device_side_without_launch_ns:
        text += f"; {duration(device.device_side_without_launch_ns)} of device-side idle ended by work without a launch"
    return text + "."


def steps_sentence(steps: Steps) -> str:
    """The trace's figures per step."""
    pattern = plain_name(steps.pattern)
    chosen = " (chosen; the window is clipped to them)" if steps.selected else ""
    skipped = f", {count(steps.skipped)} skipped" if steps.skipped else ""
    if not steps.steps:
        return f"No steps '{pattern}'{chosen}{skipped}."
    # Of steps in which events are lost no figure is one: they are left out of the medians, unless all are.
    known = [step for step in steps.steps if step.stall_ns is not None] or list(steps.steps)
    operations = [step.operations for step in known]
    typical = median(operations)
    spread = f" (median; {min(operations)} to {max(operations)})" if min(operations) != max(operations) else ""
    text = (
        f"{count(typical, 'sync')} per step{spread}, {count(len(steps.steps), 'step')} '{pattern}'{chosen}{skipped}; "
        f"per step, median: {duration(median(s.end_ns - s.start_ns for s in known))} long, "
        f"blocked {duration(median(s.blocked_ns for s in known))}"
    )
    stalls = [step.stall_ns for step in known if step.stall_ns is not None]
    if stalls:
        text += f", stall {duration(median(stalls))}"
    if len(known) < len(steps.steps):
        text += (
            f"; {count(len(steps.steps) - len(known))} of the steps are left out of that: what they did is not known"
        )
    return text + "."


def device_startup_sentence(device: Device) -> str | None:
    """What of a device's idle time lies in start-up and what remains outside it; None where nothing does."""
    if not device.startup_stall_ns and not device.startup_host_bound_ns:
        return None
    parts = [
        f"{label} {duration(total)}, of which {duration(ns)} in start-up and {duration(total - ns)} outside it"
        if ns
        else f"{label} {duration(total)}, none of it in start-up"
        for label, ns, total in (
            ("stall", device.startup_stall_ns, device.stall_ns),
            ("host-bound", device.startup_host_bound_ns, device.host_bound_ns),
        )
        if ns is not None and total
    ]
    return f"Start-up apart: {'; '.join(parts)}."


def startup_sentences(trace: TraceReport) -> list[str]:
    """Where the start-up of each process ends."""
    sentences = [
        f"Process {startup.pid}: start-up ends at t = {time_point(startup.end_ns)} ({plain_name(startup.reason)})."
        for startup in trace.startup
    ]
    return _listed(sentences, "process has a start-up", "processes have a start-up")


def polling_sentences(trace: TraceReport) -> list[str]:
    """Threads that waited by asking, which is not counted as blocked time."""
    sentences = [
        f"Polling, not blocking: {count(one.calls, 'call')} of {plain_name(one.api)} on thread {one.tid}"
        f"{f' ({plain_name(one.thread, 60)})' if one.thread else ''} of process {one.pid} in {count(one.runs, 'run')}, "
        f"{duration(one.polled_ns)} in all, the longest {duration(one.longest_ns)}, the first at "
        f"t = {time_point(one.first_start_ns)}. The thread waits by asking; a blocking wait "
        "(event.synchronize()) would leave the CPU to others."
        for one in trace.polling
    ]
    return _listed(sentences, "thread that polls", "threads that poll")


def coverage_sentences(coverage: Coverage) -> list[str]:
    """What the trace can and cannot tell."""
    by_method = dict(coverage.located_by)
    exact = by_method.pop("exact stack", 0)
    text = f"{count(exact)} of {count(coverage.operations, 'sync operation')} located by an exact Python stack"
    if by_method:
        text += "; " + ", ".join(f"{count(number)} by {plain_name(method)}" for method, number in by_method.items())
    sentences = [text + "." if coverage.operations else "There is no sync operation to be located."]
    if coverage.lost_events:
        sentences.append(f"Warning: {_message(coverage.lost_events)}.")
    sentences += _listed([f"Not captured: {_message(text)}" for text in coverage.not_captured], "gap", "gaps")
    sentences += _listed([f"Warning: {_message(text)}" for text in coverage.warnings], "warning", "warnings")
    sentences += _listed(
        [f"Profiler {plain_name(d.severity, 60)}: {_message(d.text)}" for d in coverage.diagnostics],
        "message of the profiler",
        "messages of the profiler",
    )
    if coverage.processes_without_gpu_rows:
        shown = coverage.processes_without_gpu_rows[:LISTED]
        names = ", ".join(f"{plain_name(process.name, 60)} (pid {process.pid})" for process in shown)
        more = len(coverage.processes_without_gpu_rows) - len(shown)
        sentences.append(f"Processes without GPU work on record: {names}{f' and {more} more' if more > 0 else ''}.")
    if coverage.graph_launches_without_gpu_work:
        launches = count(coverage.graph_launches_without_gpu_work, "CUDA graph launch", "CUDA graph launches")
        sentences.append(f"{launches} without GPU work on record.")
    if coverage.unfinished_calls:
        waits = count(coverage.unfinished_waits, "synchronize call")
        which = f", {waits} among them" if coverage.unfinished_waits else ""
        sentences.append(f"{count(coverage.unfinished_calls, 'call')} without an end, left out{which}.")
    if coverage.unfinished_gpu_rows:
        sentences.append(f"{count(coverage.unfinished_gpu_rows, 'GPU activity', 'GPU activities')} without an end.")
    return sentences


def omitted_sentence(analysis: Analysis) -> str | None:
    """The sites left out, with their totals."""
    omitted = analysis.omitted
    if omitted is None or not omitted.sites:
        return None
    return (
        f"{count(omitted.sites, 'more site')} not shown ({plain_name(omitted.reason)}): "
        f"{_sums(omitted.calls, omitted.stall_ns, omitted.blocked_ns)}."
    )


def trace_title(trace: TraceReport) -> str:
    version = f"nsys {plain_name(trace.nsys_version)}" if trace.nsys_version else f"nsys version {NOT_KNOWN}"
    schema = f", export schema {plain_name(trace.schema_version)}" if trace.schema_version else ""
    return f"{plain_name(trace.name)} ({version}{schema})"


def _sites(analysis: Analysis) -> int:
    return len(analysis.sites) + (analysis.omitted.sites if analysis.omitted else 0)


def _stall_of_sites(analysis: Analysis) -> int | None:
    omitted = [analysis.omitted.stall_ns] if analysis.omitted else []
    return _known_sum([*(site.stall.total_ns if site.stall else None for site in analysis.sites), *omitted])


def _on_record(analysis: Analysis) -> str:
    return "in the selection" if analysis.selection else "on record"


def _known_sum(values: Iterable[int | None]) -> int | None:
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def _sums(calls: int, stall_ns: int | None, blocked_ns: int) -> str:
    return f"{count(calls, 'call')}, stall {duration(stall_ns)}, blocked {duration(blocked_ns)}"


def _message(text: str) -> str:
    return plain_name(text, MESSAGE_LENGTH)


def _listed(sentences: list[str], noun: str, nouns: str) -> list[str]:
    """The first of the sentences, and how many there are beyond."""
    more = len(sentences) - LISTED
    if more <= 0:
        return sentences
    return [*sentences[:LISTED], f"{count(more, f'more {noun}', f'more {nouns}')}, in the JSON report."]


def _most(items: Sequence[T], number: int, key: Callable[[T], int]) -> list[T]:
    """At most `number` items, those of the largest key, in their order."""
    largest = sorted(range(len(items)), key=lambda i: -key(items[i]))[:number]
    return [items[i] for i in sorted(largest)]


def _blocked_sentence(analysis: Analysis) -> str:
    if not _sites(analysis):
        return f"no sync operations {_on_record(analysis)}"
    omitted = analysis.omitted
    blocked = sum(site.blocked.total_ns for site in analysis.sites) + (omitted.blocked_ns if omitted else 0)
    calls = sum(site.calls for site in analysis.sites) + (omitted.calls if omitted else 0)
    text = f"sync operations blocked the CPU for {duration(blocked)} over {count(calls, 'call')}"
    text += f" at {count(_sites(analysis), 'site')}"
    if analysis.sites:
        worst = max(analysis.sites, key=lambda site: site.blocked.total_ns)
        text += f"; longest: {clip(place(worst), 120)}, "
        text += f"{duration(worst.blocked.total_ns)} over {count(worst.calls, 'call')}"
    return text
