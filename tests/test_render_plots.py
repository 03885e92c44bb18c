"""The plots: well-formed, small, the same every time, and never moved by a name from a trace."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from xml.etree import ElementTree

import pytest
import render_sample

from nsys_sync.model import Analysis, Span
from nsys_sync.render.plots import Plot, plots

SAMPLES = [render_sample.gpu_bound, render_sample.hostile, render_sample.refused, render_sample.ranks]


def drawn(analysis: Analysis) -> tuple[Plot, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return plots(analysis)


@pytest.mark.parametrize("sample", SAMPLES)
def test_svg_is_well_formed_small_and_named(sample: object) -> None:
    seen: list[str] = []
    for plot in drawn(sample()):  # type: ignore[operator]
        root = ElementTree.fromstring(plot.svg)
        assert root.get("role") == "img"
        title, description = root[0], root[1]
        assert title.text == plot.title
        assert description.text == plot.description
        assert root.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
        assert len(plot.svg.encode()) < 150_000
        seen += [element.get("id", "") for element in root.iter() if element.get("id")]
        assert plot.rows
        assert all(len(row) == len(plot.columns) for row in plot.rows)
        assert "LABEL" not in plot.svg
        assert not re.search(r"https?://(?!www\.w3\.org/)", plot.svg)
    assert len(seen) == len(set(seen))


def test_the_same_analysis_gives_the_same_bytes() -> None:
    assert drawn(render_sample.gpu_bound()) == drawn(render_sample.gpu_bound())


def test_figures_stand_in_the_text_alternative() -> None:
    sites, timeline, spread = drawn(render_sample.gpu_bound())
    assert sites.rows[0] == ("1", "read_loss gpu_bound.py:28", "53.3 ms", "310 ms", "17.2 %")
    assert timeline.columns == ("time since session start", "busy", "stall", "device-side", "blocked")
    assert timeline.rows[0][0] == "2.104000123 s"
    # the pattern of ten bins repeats: 86.5 % busy on average, and the CPU blocked for 70 % of every bin
    assert timeline.rows[0][1] == "86.5 %"
    assert timeline.rows[0][-1] == "70.0 %"
    # quantile q of the sample is q/10 of 1,332,068 ns
    assert spread.rows[0][3:] == ("0 ns", "666 µs", "1.33 ms", "2.00 ms", "2.53 ms", "2.66 ms")


def test_names_are_text_and_never_mathematics() -> None:
    for plot in drawn(render_sample.hostile()):
        root = ElementTree.fromstring(plot.svg)
        tags = {element.tag.rpartition("}")[2] for element in root.iter()}
        assert tags <= {"svg", "title", "desc", "defs", "clipPath", "g", "path", "rect", "text", "use"}
        assert not [name for element in root.iter() for name in element.attrib if name.startswith("on")]
    labels = "".join(ElementTree.fromstring(drawn(render_sample.hostile())[0].svg).itertext())
    assert "</script><img" in labels
    assert "数値" in labels


def test_a_name_like_a_placeholder_is_left_alone() -> None:
    base = render_sample.gpu_bound()
    site = render_sample.make_site(1, "LABEL1.", 1, 5)
    text = "".join(ElementTree.fromstring(drawn(replace(base, sites=(site, base.sites[1])))[0].svg).itertext())
    assert "LABEL1. gpu_bound.py:1" in text


def test_nothing_to_plot() -> None:
    assert drawn(render_sample.nothing()) == ()


def test_no_stall_anywhere_still_plots_the_sites() -> None:
    base = render_sample.gpu_bound()
    ids = [plot.id for plot in drawn(replace(base, sites=base.sites[5:]))]
    assert ids == ["sites", "timeline0"]


def test_a_refused_device_shows_no_stall_in_its_timeline() -> None:
    base = render_sample.refused()
    device = base.traces[0].devices[0]
    # Bins that analysis could attribute although the whole is refused: an eighth of the window, moved from unknown.
    mixed = replace(device.timeline, unknown_ns=(0,) * 4, stall_ns=device.timeline.unknown_ns)
    trace = render_sample.make_trace(devices=(replace(device, timeline=mixed),))
    timeline = drawn(replace(base, traces=(trace,)))[1]
    assert timeline.columns == ("time since session start", "busy", "unknown", "blocked")
    assert timeline.rows[0][1:3] == ("50.0 %", "50.0 %")


def test_eight_timelines_of_many_devices() -> None:
    shown = [plot for plot in drawn(render_sample.many_ranks(12, sites=3)) if plot.id.startswith("timeline")]
    # Two devices a trace; of twelve traces the last eight have most stall, and of their devices the last eight.
    ranks = [re.findall(r"of rank(\d\d)", plot.title) for plot in shown]
    assert ranks == [[f"{rank:02}"] for rank in (8, 8, 9, 9, 10, 10, 11, 11)]
    assert sum(len(plot.svg) for plot in shown) < 1_000_000


def test_a_crowded_zoom_stays_small() -> None:
    base = render_sample.gpu_bound()
    device = base.traces[0].devices[0]
    assert device.zoom
    start = device.zoom.start_ns
    spans = tuple(
        Span("operation" if i % 2 else "busy", start + i * 600, start + i * 600 + 550, i % 6) for i in range(50_000)
    )
    crowded = replace(device, zoom=replace(device.zoom, spans=spans))
    timeline = drawn(replace(base, traces=(render_sample.make_trace(devices=(crowded,)),)))[1]
    assert len(timeline.svg.encode()) < 250_000
