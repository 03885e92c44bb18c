"""Three kinds of plot as inline SVG, each with the same facts as a table beside it.

matplotlib is imported on use only: the other reports must not pay for it. Labels that come from a trace never reach
it (it would read `$…$` as mathematics and warn about glyphs it lacks): it lays out placeholders, and the escaped
labels take their place in the finished SVG.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from nsys_sync.render.summary import PART_LABELS, device_title, place, shown_devices
from nsys_sync.render.text import clip, count, duration, plain_name, ratio, time_point

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from nsys_sync.model import Analysis, ComparedDevice, Device, Site, Timeline, Zoom

COLORS = {
    "busy": "#5b8fb9",
    "communication": "#9cc3de",
    "stall": "#d1495b",
    "host-bound": "#e3a23b",
    "device-side": "#7d6bb0",
    "profiler": "#9aa0a6",
    "unknown": "#c9c3b4",
    "blocked": "#3d8f72",
}
"""One colour for one thing, in plots and bars alike; the page overrides them as CSS variables (`--c-busy`)."""
_TEXT, _GRID = "#1b1f24", "#d0d7de"
_THEMED = {
    **{value: f"var(--c-{key},{value})" for key, value in COLORS.items()},
    _TEXT: "currentColor",
    _GRID: f"var(--line,{_GRID})",
}

_LAYERS = ("busy", "communication", "stall", "host-bound", "device-side", "profiler", "unknown")
_LEGEND = {
    **PART_LABELS,
    "communication": "NCCL kernels alone",
    "stall": "stall",
    "unknown": "not known",
    "blocked": "CPU blocked in a sync",
}

SITES_SHOWN = 15
_BINS = 240
_SPANS = 1_500
"""Of one timeline. There are fewer where there are more than two, so that eight leave room for the sites."""
_INCH_WIDTH = 8.9


@dataclass(frozen=True, slots=True)
class Plot:
    """`svg` is safe to put into a page as it is; `columns` and `rows` state the same facts in words (not escaped)."""

    id: str
    title: str
    description: str
    svg: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def plots(analysis: Analysis) -> tuple[Plot, ...]:
    """Every plot that the analysis has data for."""
    drawn = [sites_plot(analysis), *timeline_plots(analysis), distribution_plot(analysis)]
    return tuple(plot for plot in drawn if plot is not None)


def sites_plot(analysis: Analysis) -> Plot | None:
    """Stall beside blocked time of the worst sites, each on a scale of its own."""
    sites = analysis.sites[:SITES_SHOWN]
    if not sites:
        return None
    canvas = _Canvas("sites", height=0.75 + 0.27 * len(sites))
    labels = [_site_label(rank, site) for rank, site in enumerate(sites, 1)]
    names = [canvas.label(label) for label in labels]
    left = _label_room(labels)
    width = (0.92 - left) / 2 - 0.06
    stalls = [site.stall.total_ns if site.stall else None for site in sites]
    panels: list[tuple[str, str, list[int | None]]] = [
        ("blocked", "blocked: CPU waiting in the site", [site.blocked.total_ns for site in sites])
    ]
    if any(stall is not None for stall in stalls):
        panels.insert(0, ("stall", "stall: GPU idle because of the site", stalls))
    for number, (key, title, values) in enumerate(panels):
        axes = canvas.axes(left + number * (width + 0.1), width, top=0.34, bottom=0.4)
        most = max(value or 0 for value in values)
        axes.barh(range(len(sites)), [value or 0 for value in values], height=0.62, color=COLORS[key], linewidth=0)
        for row, value in enumerate(values):
            axes.text((value or 0) + (most or 1) * 0.02, row, duration(value), va="center", fontsize=8, color=_TEXT)
        axes.set_xlim(0, most or 1)
        axes.set_ylim(len(sites) - 0.4, -0.6)
        axes.set_yticks(range(len(sites)), [""] * len(sites) if number else names, fontsize=8)
        axes.set_title(title, fontsize=9, color=_TEXT, loc="left", pad=6)
        _duration_axis(axes, most)
    explained = "Stall is not known, so only the time blocked is drawn."
    if len(panels) > 1:
        explained = "Each column has a scale of its own: a site can block the CPU for long and cost the GPU nothing."
    rows = tuple(
        (
            str(rank),
            place(site),
            duration(site.stall.total_ns if site.stall else None),
            duration(site.blocked.total_ns),
            ratio(site.stall.total_ns if site.stall else None, site.blocked.total_ns),
        )
        for rank, site in enumerate(sites, 1)
    )
    return canvas.finish(
        title="Stall against blocked time, by site",
        description=f"The {count(len(sites), 'worst site')} of {count(len(analysis.sites))} listed. {explained}",
        columns=("rank", "site", "stall", "blocked", "stall / blocked"),
        rows=rows,
    )


def timeline_plots(analysis: Analysis) -> tuple[Plot, ...]:
    """One plot a shown device."""
    devices = shown_devices(analysis)
    several = len(analysis.traces) > 1
    few = len(devices) <= 2
    drawn = [
        _timeline_plot(
            f"timeline{number}",
            device,
            f" of {plain_name(trace.name)}" if several else "",
            _BINS if few else _BINS // 2,
            _SPANS if few else _SPANS // 4,
        )
        for number, (trace, device) in enumerate(devices)
    ]
    return tuple(plot for plot in drawn if plot is not None)


def distribution_plot(analysis: Analysis) -> Plot | None:
    """How the stall per call of the worst sites spreads."""
    ranked = [(rank, site) for rank, site in enumerate(analysis.sites, 1) if len(site.stall_quantiles_ns) == 21]
    ranked = ranked[:SITES_SHOWN]
    most = max((site.stall_quantiles_ns[-1] for _, site in ranked), default=0)
    if not most:
        return None
    canvas = _Canvas("spread", height=0.6 + 0.27 * len(ranked))
    labels = [_site_label(rank, site) for rank, site in ranked]
    left = _label_room(labels)
    axes = canvas.axes(left, 0.96 - left, top=0.12, bottom=0.46)
    linear_to = 1_000
    axes.set_xscale("symlog", linthresh=linear_to, linscale=0.4)
    for row, (_, site) in enumerate(ranked):
        q = site.stall_quantiles_ns
        axes.hlines(row, q[0], q[20], color=COLORS["stall"], linewidth=1)
        axes.hlines(row, q[5], q[15], color=COLORS["stall"], linewidth=6, alpha=0.55)
        axes.plot([q[10]], [row], marker="|", markersize=11, markeredgewidth=2, color=_TEXT)
        axes.plot([q[20]], [row], marker="o", markersize=3, color=COLORS["stall"], linestyle="")
    axes.set_ylim(len(ranked) - 0.4, -0.6)
    axes.set_yticks(range(len(ranked)), [canvas.label(label) for label in labels], fontsize=8)
    axes.set_xlim(-linear_to * 0.15, most * 1.5)
    ticks = [0, *(10**power for power in range(3, 12) if 10**power <= most * 1.5)]
    axes.set_xticks(ticks, [_tick(tick) for tick in ticks], fontsize=8)
    axes.set_xticks([], minor=True)
    axes.set_xlabel("stall per call (logarithmic above 1 µs)", fontsize=8.5, color=_TEXT)
    columns = ("rank", "site", "calls", "smallest", "25 %", "median", "75 %", "95 %", "largest")
    rows = tuple(
        (
            str(rank),
            place(site),
            count(site.calls),
            *(duration(site.stall_quantiles_ns[i]) for i in (0, 5, 10, 15, 19, 20)),
        )
        for rank, site in ranked
    )
    return canvas.finish(
        title="Stall per call, by site",
        description="Thin line: smallest to largest (dot) call. Thick line: the middle half. Tick: the median. "
        "A median near 0 with a far dot means that few calls make the stall.",
        columns=columns,
        rows=rows,
    )


def _timeline_plot(plot_id: str, device: Device, of_trace: str, most_bins: int, most_spans: int) -> Plot | None:
    bins = _shares(device, most_bins)
    if not bins["busy"] or device.window_ns <= 0:
        return None
    zoom = device.zoom
    canvas = _Canvas(plot_id, height=4.15 if zoom else 2.35)
    bin_ns = device.window_ns / len(bins["busy"])
    start = device.timeline.start_ns
    unit, scale = _axis_unit(device.window_ns)
    edges = [(start + i * bin_ns) / scale for i in range(len(bins["busy"]) + 1)]
    keys = [key for key in _LAYERS if any(bins[key])]

    canvas.legend([*keys, "blocked"], _LEGEND)
    lane = _draw_shares(canvas, bins, keys, edges, bin_ns, top=0.42)
    _time_axis(lane, unit)
    if zoom:
        _draw_zoom(canvas, zoom, most_spans)

    columns = ("time since session start", *keys, "blocked")
    tenths = _shares(device, 10)
    length = device.window_ns / max(len(tenths["busy"]), 1)
    rows = tuple(
        (
            time_point(round(start + i * length)),
            *(ratio(tenths[key][i], length) for key in keys),
            ratio(tenths["blocked"][i], length),
        )
        for i in range(len(tenths["busy"]))
    )
    description = f"Share of each {duration(bin_ns)} of the window of {duration(device.window_ns)}"
    if zoom:
        description += f"; below, {plain_name(zoom.title)} in full detail ({duration(zoom.end_ns - zoom.start_ns)})"
    return canvas.finish(
        title=f"Where the time of {device_title(device)}{of_trace} went",
        description=description + ".",
        columns=columns,
        rows=rows,
    )


def compared_timelines_plot(pair: ComparedDevice, number: int, *, several: bool) -> Plot | None:
    """One GPU of two runs, one above the other, each from the start of its window, as many ns to the inch in both."""
    longest = max(pair.before.window_ns, pair.after.window_ns)
    sides = [("before", pair.before, _shares(pair.before, _BINS)), ("after", pair.after, _shares(pair.after, _BINS))]
    if longest <= 0 or not all(bins["busy"] for _, _, bins in sides):
        return None
    keys = [key for key in _LAYERS if any(any(bins[key]) for _, _, bins in sides)]
    canvas = _Canvas(f"both{number}", height=4.35)
    canvas.legend([*keys, "blocked"], _LEGEND)
    unit, scale = _axis_unit(longest)
    columns = ("run", "from the window's start", *keys, "blocked")
    rows: list[tuple[str, ...]] = []
    for position, (name, device, bins) in enumerate(sides):
        bin_ns = device.window_ns / len(bins["busy"])
        edges = [i * bin_ns / scale for i in range(len(bins["busy"]) + 1)]
        lane = _draw_shares(canvas, bins, keys, edges, bin_ns, top=0.62 + position * 1.83, ends=(0, longest / scale))
        canvas.figure.text(
            0.09, 1 - (0.54 + position * 1.83) / canvas.height, f"{name}: window {duration(device.window_ns)}",
            fontsize=9, color=_TEXT,
        )  # fmt: skip
        if position:
            _time_axis(lane, unit, since="the window's start")
        tenths = _shares(device, 10)
        length = device.window_ns / len(tenths["busy"])
        rows += [
            (name, duration(i * length), *(ratio(tenths[key][i], length) for key in (*keys, "blocked")))
            for i in range(len(tenths["busy"]))
        ]
    title = device_title(pair.before)
    if several:
        title += f" of {plain_name(pair.before_trace, 80)}, and {device_title(pair.after)} of "
        title += plain_name(pair.after_trace, 80)
    return canvas.finish(
        title=f"Where the time of {title} went, before and after",
        description=f"Both on one scale, from 0 to {duration(longest)}, each from the start of its own window.",
        columns=columns,
        rows=tuple(rows),
    )


def _draw_shares(
    canvas: _Canvas,
    bins: dict[str, list[float]],
    keys: Sequence[str],
    edges: Sequence[float],
    bin_ns: float,
    *,
    top: float,
    ends: tuple[float, float] | None = None,
) -> Axes:
    """The shares of each bin stacked, and below them the time blocked, whose axes are returned."""
    ends = ends or (edges[0], edges[-1])
    axes = canvas.axes(0.09, 0.88, top=top, height=1.15)
    sums = [0.0] * len(bins["busy"])
    layers = []
    for key in keys:
        sums = [total + value for total, value in zip(sums, bins[key], strict=True)]
        layers.append((key, [min(100.0, 100 * total / bin_ns) if bin_ns else 0.0 for total in sums]))
    # The highest layer first, each from 0: neighbours drawn edge to edge would leave hairlines between them.
    for key, heights in reversed(layers):
        axes.fill_between(edges, [*heights, heights[-1]], step="post", color=COLORS[key], linewidth=0)
    axes.set_xlim(*ends)
    axes.set_ylim(0, 100)
    axes.set_yticks([0, 50, 100], ["0 %", "50 %", "100 %"], fontsize=8)
    axes.set_xticks([])
    lane = canvas.axes(0.09, 0.88, top=top + 1.22, height=0.2)
    shares = [min(100.0, 100 * value / bin_ns) if bin_ns else 0.0 for value in bins["blocked"]]
    lane.fill_between(edges, [*shares, shares[-1]], step="post", color=COLORS["blocked"], linewidth=0)
    lane.set_xlim(*ends)
    lane.set_ylim(0, 100)
    lane.set_yticks([50], ["blocked"], fontsize=8)
    lane.set_xticks([])
    return lane


def _draw_zoom(canvas: _Canvas, zoom: Zoom, most_spans: int) -> None:
    from matplotlib.path import Path

    lanes = ("busy", "stall", "host-bound", "device-side", "profiler", "unknown", "operation")
    spans = sorted(zoom.spans, key=lambda span: span.start_ns - span.end_ns)[:most_spans]
    present = [lane for lane in lanes if any(span.lane == lane for span in spans)]
    if not present:
        return
    axes = canvas.axes(0.09, 0.88, top=2.45, height=1.2)
    unit, scale = _axis_unit(zoom.end_ns - zoom.start_ns)
    axes.set_title(canvas.label(plain_name(zoom.title, 90)), fontsize=9, color=_TEXT, loc="left", pad=5)
    width = zoom.end_ns - zoom.start_ns
    for row, lane in enumerate(present):
        points: list[tuple[float, float]] = []
        for span in spans:
            if span.lane != lane:
                continue
            left, right = max(span.start_ns, zoom.start_ns) / scale, min(span.end_ns, zoom.end_ns) / scale
            points += [
                (left, row - 0.36),
                (right, row - 0.36),
                (right, row + 0.36),
                (left, row + 0.36),
                (left, row - 0.36),
            ]
            if lane == "operation" and span.site is not None and (right - left) * scale > 0.022 * width:
                middle = (left + right) / 2
                axes.text(middle, row, f"#{span.site + 1}", fontsize=7.5, color="#ffffff", ha="center", va="center")
        codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * (len(points) // 5)
        color = COLORS["blocked" if lane == "operation" else lane]
        # One path a lane: an element a span would make the page ten times as large.
        _add_path(axes, Path(points, codes), color)
    axes.set_xlim(zoom.start_ns / scale, zoom.end_ns / scale)
    axes.set_ylim(len(present) - 0.5, -0.5)
    names = {"operation": "sync (rank)"}
    axes.set_yticks(range(len(present)), [names.get(lane, lane) for lane in present], fontsize=8)
    _time_axis(axes, unit)


def _add_path(axes: Axes, path: Any, color: str) -> None:
    from matplotlib.patches import PathPatch

    # A thin edge keeps spans visible that are narrower than a pixel.
    axes.add_patch(PathPatch(path, facecolor=color, edgecolor=color, linewidth=0.4))


class _Canvas:
    """One figure with axes placed in inches from the top, its placeholders, and its way into an inline SVG."""

    def __init__(self, plot_id: str, height: float) -> None:
        from matplotlib.figure import Figure

        self.id = plot_id
        self.height = height
        self.figure: Figure = Figure(figsize=(_INCH_WIDTH, height))
        self.figure.patch.set_visible(False)
        self._labels: list[str] = []

    def label(self, text: str) -> str:
        self._labels.append(text)
        return f"LABEL{len(self._labels) - 1}."

    def axes(self, left: float, width: float, top: float, height: float | None = None, bottom: float = 0.0) -> Axes:
        inches = self.height - top - bottom if height is None else height
        low = (self.height - top - inches) / self.height
        axes = self.figure.add_axes((left, low, width, inches / self.height))
        axes.set_facecolor("none")
        for name, spine in axes.spines.items():
            spine.set_visible(name in ("left", "bottom"))
            spine.set_color(_GRID)
        axes.tick_params(colors=_TEXT, length=2.5, labelsize=8)
        return axes

    def legend(self, keys: Sequence[str], names: dict[str, str]) -> None:
        from matplotlib.patches import Rectangle

        left = 0.09
        for key in keys:
            size = (0.011, 0.1 / self.height)
            low = 1 - 0.22 / self.height
            self.figure.add_artist(
                Rectangle((left, low), *size, transform=self.figure.transFigure, color=COLORS[key], linewidth=0)
            )
            self.figure.text(left + 0.016, low + size[1] / 2, names[key], fontsize=8, color=_TEXT, va="center")
            left += 0.045 + 0.0073 * len(names[key])

    def finish(
        self, *, title: str, description: str, columns: tuple[str, ...], rows: tuple[tuple[str, ...], ...]
    ) -> Plot:
        return Plot(self.id, title, description, self._svg(title, description), columns, rows)

    def _svg(self, title: str, description: str) -> str:
        import matplotlib

        out = io.BytesIO()
        settings: Any = {
            "svg.fonttype": "none",
            "svg.hashsalt": self.id,
            "path.simplify": True,
            "font.family": ["sans-serif"],
            "text.usetex": False,
        }
        with matplotlib.rc_context(settings):
            self.figure.savefig(out, format="svg", metadata={"Date": None})
        svg = out.getvalue().decode()
        svg = svg[svg.index("<svg") :].strip()
        svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
        # Its style sheet has the selector `*` and would reach the whole page, which has the same rule for plots only.
        svg = re.sub(r"<!--.*?-->|<style.*?</style>", "", svg, flags=re.DOTALL)
        svg = re.sub(r"(\d\.\d\d)\d+", r"\1", svg)
        svg = re.sub(r"\s*\n\s*", "\n", svg)
        svg = re.sub(r"font-family: [^;\"]*;?|font: ([\d.]+px) [^;\"]*", _font_size_only, svg)
        svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{self.id}-", svg)
        svg = re.sub("|".join(_THEMED), lambda match: _THEMED[match[0]], svg)
        head = (
            f'<svg role="img" aria-labelledby="{self.id}-title {self.id}-desc" '
            f'viewBox="0 0 {_INCH_WIDTH * 72:g} {self.height * 72:g}" xmlns="http://www.w3.org/2000/svg" '
            f'xmlns:xlink="http://www.w3.org/1999/xlink">'
            f'<title id="{self.id}-title">{escape(title)}</title><desc id="{self.id}-desc">{escape(description)}</desc>'
        )
        svg = head + svg[svg.index(">") + 1 :]
        # Last, so that nothing above can touch what came from the trace.
        return re.sub(r"LABEL(\d+)\.", lambda match: escape(self._labels[int(match[1])]), svg)


def _font_size_only(match: re.Match[str]) -> str:
    """The page's own font serves: matplotlib's is not on the reader's machine."""
    return f"font-size: {match[1]}" if match[1] else ""


def _site_label(rank: int, site: Site) -> str:
    return f"{clip(place(site), 44)}  #{rank}"


def _label_room(labels: Sequence[str]) -> float:
    """The share of the figure's width that the longest label needs; wide characters take two places."""
    longest = max(sum(2 if ord(ch) > 0x2E7F else 1 for ch in label) for label in labels)
    return min(0.42, 0.03 + 0.0077 * longest)


def _merged(timeline: Timeline, most: int) -> dict[str, list[float]]:
    """The bins, summed by neighbours until there are at most `most`."""
    total = len(timeline.busy_ns)
    step = max(1, -(-total // most))
    # A last group of fewer bins would be drawn as wide as the others: take the number of groups that divides evenly.
    while total % step:
        step += 1
    series = {
        "busy": tuple(busy - nccl for busy, nccl in zip(timeline.busy_ns, timeline.communication_ns, strict=True)),
        "communication": timeline.communication_ns,
        "stall": timeline.stall_ns,
        "host-bound": timeline.host_bound_ns,
        "device-side": timeline.device_side_ns,
        "profiler": timeline.profiler_ns,
        "unknown": timeline.unknown_ns,
        "blocked": timeline.blocked_ns,
    }
    return {key: [sum(values[i : i + step]) for i in range(0, total, step)] for key, values in series.items()}


def _shares(device: Device, most: int) -> dict[str, list[float]]:
    """The merged bins; where the device was refused an idle figure, idle of every kind is not known here either."""
    bins = _merged(device.timeline, most)
    if device.idle_ns is None:
        idle = [bins[key] for key in ("stall", "host-bound", "device-side", "unknown")]
        bins["unknown"] = [sum(values) for values in zip(*idle, strict=True)]
        for key in ("stall", "host-bound", "device-side"):
            bins[key] = [0] * len(bins["unknown"])
    return bins


def _axis_unit(span_ns: float) -> tuple[str, float]:
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if span_ns >= 2 * scale:
            return unit, scale
    return "ns", 1.0


def _time_axis(axes: Axes, unit: str, since: str = "session start") -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(8))
    axes.xaxis.set_major_formatter(FuncFormatter(_number))
    axes.set_xlabel(f"{unit} since {since}", fontsize=8.5, color=_TEXT)


def _duration_axis(axes: Axes, most: float) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    if not most:
        axes.set_xticks([0], ["0 ns"])
        return
    unit, scale = _axis_unit(most)
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    shown: Callable[[float, int], str] = lambda value, _: f"{value / scale:g} {unit}"  # noqa: E731
    axes.xaxis.set_major_formatter(FuncFormatter(shown))


def _number(value: float, _: int) -> str:
    return f"{value:,.10g}"


def _tick(ns: int) -> str:
    for unit, scale in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
        if ns >= scale:
            return f"{ns // scale} {unit}"
    return f"{ns} ns"
