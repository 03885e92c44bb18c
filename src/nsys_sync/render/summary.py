"""The sentences that the terminal report and the page have in common, so that they cannot disagree."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from nsys_sync.render.text import NOT_KNOWN, clip, count, duration, plain, ratio, short_file, time_point

if TYPE_CHECKING:
    from nsys_sync.model import Analysis, Coverage, Device, Site, Steps, TraceReport

PART_LABELS = {
    "busy": "busy",
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
    if not analysis.sites and not analysis.omitted:
        return f"{idle}; no sync operations on record"
    with_stall = sum(1 for site in analysis.sites if site.stall and site.stall.total_ns)
    if not analysis.stall_ns:
        return f"{idle}; none of it because of sync calls ({count(_sites(analysis), 'sync site')})"
    up_to = ""
    if analysis.omitted and analysis.omitted.stall_ns != 0:
        with_stall += analysis.omitted.sites
        up_to = "up to "
    text = (
        f"{idle}; {ratio(analysis.stall_ns, analysis.window_ns)} ({duration(analysis.stall_ns)}) "
        f"because of {up_to}{count(with_stall, 'sync site')}"
    )
    worst = analysis.sites[0] if analysis.sites else None
    if worst and worst.stall and worst.stall.total_ns:
        text += (
            f"; worst: {clip(place(worst), 120)}, {duration(worst.stall.total_ns)} over {count(worst.calls, 'call')}"
        )
    return text


def place(site: Site, parents: int = 0) -> str:
    """Function and `file.py:line` of a site in one line, harmless on a terminal."""
    name, where = place_parts(site, parents)
    return f"{name} {where}" if where else name


def place_parts(site: Site, parents: int | None = 0) -> tuple[str, str]:
    """(function or label, `file.py:line` or empty); `parents` folders of the path are kept, None keeps all."""
    location = site.location
    if location.file is None:
        return plain(location.label), ""
    file = location.file if parents is None else short_file(location.file, parents)
    line = "" if location.line is None else f":{location.line}"
    return plain(location.function or location.label), plain(file) + line


def device_title(device: Device) -> str:
    return f"GPU {device.id}, {plain(device.name)}" if device.name else f"GPU {device.id}"


def device_parts(device: Device) -> list[Part]:
    """Where the window went; the parts' sum is the window wherever all of them are known."""
    shares: list[tuple[str, int | None]] = [("busy", device.busy_ns)]
    if device.idle_ns is None:
        known = device.busy_ns + (device.profiler_ns or 0) + device.outside_ns
        shares.append(("unknown", device.window_ns - known))
    else:
        shares += [
            ("stall", device.stall_ns),
            ("host-bound", device.host_bound_ns),
            ("device-side", device.device_side_ns),
        ]
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
    pattern = plain(steps.pattern)
    chosen = " (chosen; the window is clipped to them)" if steps.selected else ""
    skipped = f", {count(steps.skipped)} skipped" if steps.skipped else ""
    if not steps.steps:
        return f"No steps '{pattern}'{chosen}{skipped}."
    operations = [step.operations for step in steps.steps]
    typical = median(operations)
    spread = f" (median; {min(operations)} to {max(operations)})" if min(operations) != max(operations) else ""
    text = (
        f"{count(typical, 'sync')} per step{spread}, {count(len(steps.steps), 'step')} '{pattern}'{chosen}{skipped}; "
        f"per step, median: {duration(median(s.end_ns - s.start_ns for s in steps.steps))} long, "
        f"blocked {duration(median(s.blocked_ns for s in steps.steps))}"
    )
    stalls = [step.stall_ns for step in steps.steps if step.stall_ns is not None]
    if len(stalls) == len(steps.steps):
        text += f", stall {duration(median(stalls))}"
    return text + "."


def startup_sentences(trace: TraceReport) -> list[str]:
    """What of the figures lies in start-up, and where start-up ends."""
    sentences = []
    for device in trace.devices:
        parts = [
            f"{duration(ns)} of {label}"
            for label, ns, total in (
                ("stall", device.startup_stall_ns, device.stall_ns),
                ("host-bound time", device.startup_host_bound_ns, device.host_bound_ns),
            )
            if ns and total is not None
        ]
        if parts:
            sentences.append(
                f"Start-up on {device_title(device)}: {' and '.join(parts)}, contained in the figures above."
            )
    return sentences + [
        f"Process {startup.pid}: start-up ends at t = {time_point(startup.end_ns)} ({plain(startup.reason)})."
        for startup in trace.startup
    ]


def coverage_sentences(coverage: Coverage) -> list[str]:
    """What the trace can and cannot tell."""
    by_method = dict(coverage.located_by)
    exact = by_method.pop("exact stack", 0)
    text = f"{count(exact)} of {count(coverage.operations, 'sync operation')} located by an exact Python stack"
    if by_method:
        text += "; " + ", ".join(f"{count(number)} by {plain(method)}" for method, number in by_method.items())
    sentences = [text + "."]
    sentences += [f"Not captured: {plain(text)}" for text in coverage.not_captured]
    sentences += [f"Warning: {plain(text)}" for text in coverage.warnings]
    sentences += [f"Profiler {plain(d.severity)}: {plain(d.text)}" for d in coverage.diagnostics]
    if coverage.processes_without_gpu_rows:
        names = ", ".join(f"{plain(p.name)} (pid {p.pid})" for p in coverage.processes_without_gpu_rows[:8])
        more = len(coverage.processes_without_gpu_rows) - 8
        sentences.append(f"Processes without GPU work on record: {names}{f' and {more} more' if more > 0 else ''}.")
    if coverage.graph_launches_without_gpu_work:
        launches = count(coverage.graph_launches_without_gpu_work, "CUDA graph launch", "CUDA graph launches")
        sentences.append(f"{launches} without GPU work on record.")
    if coverage.unfinished_calls:
        sentences.append(f"{count(coverage.unfinished_calls, 'call')} without an end, left out.")
    if coverage.unfinished_gpu_rows:
        sentences.append(f"{count(coverage.unfinished_gpu_rows, 'GPU activity', 'GPU activities')} without an end.")
    return sentences


def omitted_sentence(analysis: Analysis) -> str | None:
    """The sites left out, with their totals."""
    omitted = analysis.omitted
    if omitted is None or not omitted.sites:
        return None
    return (
        f"{count(omitted.sites, 'more site')} not shown ({plain(omitted.reason)}): {count(omitted.calls, 'call')}, "
        f"stall {duration(omitted.stall_ns)}, blocked {duration(omitted.blocked_ns)}."
    )


def trace_title(trace: TraceReport) -> str:
    version = f"nsys {plain(trace.nsys_version)}" if trace.nsys_version else f"nsys version {NOT_KNOWN}"
    schema = f", export schema {plain(trace.schema_version)}" if trace.schema_version else ""
    return f"{plain(trace.name)} ({version}{schema})"


def _sites(analysis: Analysis) -> int:
    return len(analysis.sites) + (analysis.omitted.sites if analysis.omitted else 0)


def _blocked_sentence(analysis: Analysis) -> str:
    if not _sites(analysis):
        return "no sync operations on record"
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
