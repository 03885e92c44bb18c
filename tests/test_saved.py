"""Saved analyses: what `--format json` writes is read back equal, and anything else is refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import render_sample
from conftest import Capture
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nsys_sync import model
from nsys_sync.errors import TraceError
from nsys_sync.pipeline import analyze
from nsys_sync.render.json_report import render_json
from nsys_sync.saved import is_saved_analysis, read_analysis


def without_operations(analysis: model.Analysis) -> model.Analysis:
    return replace(analysis, operations=None)  # type: ignore[arg-type]


def save(analysis: model.Analysis, folder: Path) -> Path:
    path = folder / "saved.json"
    path.write_text(render_json(analysis), "utf-8")
    return path


def changed(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    data = json.loads(render_json(render_sample.gpu_bound()))
    change(data)
    path = folder / "changed.json"
    path.write_text(json.dumps(data), "utf-8")
    return path


SAMPLES = ("gpu_bound", "host_bound", "unexplained", "refused", "ranks", "nothing", "hostile")
"""Those whose devices' parts add up, as those of every real analysis do."""


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_is_read_back_equal(name: str, tmp_path: Path) -> None:
    analysis = getattr(render_sample, name)()
    path = save(analysis, tmp_path)
    read = read_analysis(path)
    if name == "hostile":  # lone surrogates are not valid JSON and were replaced in writing
        assert render_json(read) == path.read_text("utf-8")
    else:
        assert without_operations(read) == without_operations(analysis)
    assert read.operations.num_rows == 0
    assert read.operations.column_names == list(model.OPERATION_COLUMNS)


@pytest.mark.parametrize("name", ["gpu_bound.schema-3.20.3", "procs.schema-3.7.2", "graph_whole.schema-3.7.2"])
def test_a_real_analysis_is_read_back_equal(name: str, capture: Capture, tmp_path: Path) -> None:
    for top in (None, 1):
        analysis = analyze(capture(name), top=top)
        assert without_operations(read_analysis(save(analysis, tmp_path))) == without_operations(analysis)


def with_stall(site: model.Site, ns: int, window_ns: int) -> model.Site:
    assert site.stall is not None
    return replace(site, stall=replace(site.stall, total_ns=ns), stall_ratio=ns / window_ns)


def test_many_sites_are_read_back_equal(tmp_path: Path) -> None:
    many = render_sample.many()
    assert many.stall_ns is not None
    stalls = [many.stall_ns - len(many.sites) + 1, *[1] * (len(many.sites) - 1)]
    sites = tuple(with_stall(site, ns, many.window_ns) for site, ns in zip(many.sites, stalls, strict=True))
    analysis = replace(many, sites=sites)
    assert without_operations(read_analysis(save(analysis, tmp_path))) == without_operations(analysis)


NS = st.integers(-(2**62), 2**62)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
FRACTION = st.floats(allow_nan=False, allow_infinity=False, min_value=-(2.0**62), max_value=2.0**62)
st.register_type_strategy(int, NS)
st.register_type_strategy(str, TEXT)
st.register_type_strategy(float, FRACTION)
WHOLE_SITES = st.builds(
    replace,
    st.from_type(model.Site),
    calls=st.integers(1, 2**62),
    location=st.builds(model.Location, TEXT, st.none() | TEXT, st.none() | TEXT, st.none() | st.integers(0, 2**62)),
    stall=st.from_type(model.Distribution),
    python_stack=st.just(()),
    native_stack=st.just((0,)),
    stall_quantiles_ns=st.sampled_from([(), tuple(range(21))]),
)
TRACES = st.builds(
    replace,
    st.from_type(model.TraceReport),
    devices=st.just((render_sample.make_device(), render_sample.make_device(id=1))),
)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    sites=st.lists(WHOLE_SITES, max_size=2, unique_by=lambda site: site.id),
    trace=TRACES,
    texts=st.lists(st.from_type(model.CauseText), max_size=2),
    advice=st.lists(st.from_type(model.Advice), max_size=2),
    merges=st.lists(st.from_type(model.Merge), max_size=2),
    omitted=st.from_type(model.Omitted) | st.none(),
    selection=TEXT | st.none(),
)
def test_any_analysis_is_read_back_equal(
    tmp_path: Path,
    sites: list[model.Site],
    trace: model.TraceReport,
    texts: list[model.CauseText],
    advice: list[model.Advice],
    merges: list[model.Merge],
    omitted: model.Omitted | None,
    selection: str | None,
) -> None:
    window_ns = sum(device.window_ns for device in trace.devices)
    stall_ns = sum(device.stall_ns or 0 for device in trace.devices)
    left = stall_ns - 7 * len(sites)
    if omitted is None:
        selection = f"{selection or 'device 0'}; process 7"  # whose sites have not all of the stall
    else:
        omitted = replace(omitted, stall_ns=left)
    analysis = replace(
        render_sample.nothing(),
        traces=(trace,),
        window_ns=window_ns,
        stall_ns=stall_ns,
        sites=tuple(with_stall(site, 7, window_ns) for site in sites),
        causes=tuple(texts),
        advice=tuple(advice),
        merges=tuple(merges),
        omitted=omitted,
        selection=selection,
        native_frames=(model.NativeFrame("a", "b"),),
    )
    assert without_operations(read_analysis(save(analysis, tmp_path))) == without_operations(analysis)


def test_one_process_has_a_part_of_the_stall(capture: Capture, tmp_path: Path) -> None:
    analysis = analyze(capture("procs.schema-3.20.3"), pid=1302)
    assert analysis.sites[0].stall and analysis.sites[0].stall.total_ns < (analysis.stall_ns or 0)
    assert without_operations(read_analysis(save(analysis, tmp_path))) == without_operations(analysis)
    with pytest.raises(TraceError, match="stall_ns is not the sum of the stalls of the sites"):
        read_analysis(save(replace(analysis, selection="device 0"), tmp_path))


def test_fields_of_a_later_form_are_ignored(tmp_path: Path) -> None:
    def later(data: dict[str, Any]) -> None:
        data["schema_version"] = "1.9"
        data["invented"] = {"deep": [1]}
        data["sites"][0]["invented"] = None

    read = read_analysis(changed(tmp_path, later))
    assert read.sites == render_sample.gpu_bound().sites


@pytest.mark.parametrize(
    ("version", "says"),
    [
        ("2.0", "newer nsys-sync (schema 2.0"),
        ("1.1", "older nsys-sync (schema 1.1"),
        ("0.9", "older nsys-sync"),
        ("one", "schema_version is no version"),
        ("9" * 5000 + ".0", "schema_version is no version"),
        ("1.²", "schema_version is no version"),
    ],
)
def test_other_versions_are_named(version: str, says: str, tmp_path: Path) -> None:
    path = changed(tmp_path, lambda data: data.update(schema_version=version))
    with pytest.raises(TraceError, match=r"saved|made|damaged|newer|older") as raised:
        read_analysis(path)
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda data: data["sites"][3].update(calls="20"), "sites[3].calls is no whole number"),
        (lambda data: data["sites"][0].update(calls=True), "sites[0].calls is no whole number"),
        (lambda data: data["sites"][0].update(calls=20.0), "sites[0].calls is no whole number"),
        (lambda data: data["sites"][0].update(calls=10**400), "sites[0].calls is too large"),
        (lambda data: data["sites"][0]["stall"].pop("p95_ns"), "sites[0].stall.p95_ns is missing"),
        (lambda data: data["sites"][0]["dependency"].update(kind="maybe"), "sites[0].dependency.kind is none of false"),
        (lambda data: data["sites"][0].update(located_by=[["exact stack"]]), "sites[0].located_by[0] is no list of 2"),
        (lambda data: data["sites"][0].update(python_stack=[999]), "sites[0].python_stack points at no frame"),
        (lambda data: data["sites"][0].update(python_stack=[-1]), "sites[0].python_stack points at no frame"),
        (lambda data: data["sites"][0].update(stall_quantiles_ns=[1, 2]), "sites[0].stall_quantiles_ns has neither"),
        (lambda data: data["sites"][1].update(id=data["sites"][0]["id"]), "sites[1].id is there twice"),
        (lambda data: data.update(sites={}), "sites is no list"),
        (lambda data: data.update(sites=[]), "stall_ns is not the sum of the stalls of the sites"),
        (lambda data: data["sites"].pop(0), "stall_ns is not the sum of the stalls of the sites"),
        (lambda data: data.update(stall_ns=97_628_561), "stall_ns is not the sum of the stalls of the devices"),
        (lambda data: data.update(stall_ns=None), "stall_ns is not the sum of the stalls of the devices"),
        (lambda data: data["sites"][0]["stall"].update(total_ns=-1), "sites[0].stall.total_ns is negative"),
        (lambda data: data["sites"][0].update(stall_ratio=0.5), "sites[0].stall_ratio is not the stall's share"),
        (lambda data: data["sites"][0].update(stall_ratio=None), "sites[0].stall_ratio is not the stall's share"),
        (lambda data: data["sites"][0].update(calls=0), "sites[0].calls is less than 1"),
        (lambda data: data["sites"][0]["location"].update(line=-1), "sites[0].location.line is negative"),
        (lambda data: data.update(traces=[None]), "traces[0] is no object"),
        (lambda data: data.update(selection=5), "selection is no text"),
        (lambda data: data.update(window_ns=1), "window_ns is not the sum"),
        (lambda data: data["traces"][0]["devices"][0].update(busy_ns=1), "devices[0].window_ns is not the sum"),
        (lambda data: data["traces"][0]["devices"][0].update(stall_ns=None), "devices[0].idle_ns and its parts"),
        (
            lambda data: data["traces"][0]["devices"][0]["timeline"]["busy_ns"].pop(),
            "timeline.communication_ns has another",
        ),
    ],
)
def test_a_damaged_field_is_named(change: Callable[[dict[str, Any]], object], field: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="is damaged") as raised:
        read_analysis(changed(tmp_path, change))
    assert field in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not valid JSON"),
        (b"SQLite format 3\0\xff", "not valid JSON"),
        (b'{"schema_version": "1.2", "traces": NaN, "sites": []}', "NaN is no number"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' + b"9" * 5000 + b"}", "is "),
        (b"[1]", "no saved analysis"),
        (b"{}", "no saved analysis"),
        (b'{"schema_version": "1.0", "pairs": [], "before": {}}', "no saved analysis"),
        (b'{"schema_version": 1.1, "traces": [], "sites": []}', "no saved analysis"),
        (b'{"schema_version": "1.2", "traces": [], "sites": []}', "tool_version is missing"),
        (b'{"schema_version": "1.2", "traces": [], "sites": [], "tool_version": 1e999}', "tool_version is no text"),
    ],
)
def test_what_is_no_analysis_is_refused_in_one_line(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    path.write_bytes(content)
    with pytest.raises(TraceError) as raised:
        read_analysis(path)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_file_that_is_not_there_and_one_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        read_analysis(tmp_path / "none.json")
    with pytest.raises(TraceError, match="cannot be read"):
        read_analysis(tmp_path)
    monkeypatch.setattr("nsys_sync.saved.LARGEST_FILE_BYTES", 1 << 20)
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate((1 << 20) + 1)
    with pytest.raises(TraceError, match="larger than 1 MiB"):
        read_analysis(tmp_path / "large.json")
    with pytest.raises(TraceError, match="a device or a pipe"):
        read_analysis("/dev/zero")


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damage_anywhere_is_a_trace_error_or_harmless(data: st.DataObject, tmp_path: Path) -> None:
    """One value somewhere in the tree replaced by another: read, or refused in the project's own words."""
    tree = json.loads(render_json(render_sample.gpu_bound()))
    holder: Any = tree
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(holder[key], (dict, list)) or not holder[key] or data.draw(st.integers(0, 5)) == 0:
            break
        holder = holder[key]
    holder[key] = data.draw(st.none() | st.booleans() | NS | TEXT | st.just([]) | st.just({}) | st.just([[1]]))
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps(tree), "utf-8")
    try:
        read_analysis(path)
    except TraceError as error:
        assert str(path) in str(error)


def test_what_is_taken_for_a_saved_analysis(tmp_path: Path) -> None:
    for name, content, expected in (
        ("a.JSON", b"", True),
        ("b", b'\xef\xbb\xbf \n{"schema_version"', True),
        ("c.sqlite", b"SQLite format 3\0", False),
        ("d", b"", False),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        assert is_saved_analysis(path) is expected
    assert not is_saved_analysis(tmp_path)
    assert not is_saved_analysis(tmp_path / "none.sqlite")
