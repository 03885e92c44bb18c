"""JSON, CSV and Parquet say what the model says."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import time
from dataclasses import fields, replace
from typing import NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import render_sample

from nsys_sync.model import Analysis, Site
from nsys_sync.render.json_report import render_json
from nsys_sync.render.tables import SITES_SCHEMA, sites_table, to_csv_bytes, to_parquet_bytes


def _refuse(constant: str) -> NoReturn:
    raise AssertionError(constant)


def test_json_has_every_field_but_the_operations() -> None:
    text = render_json(render_sample.gpu_bound())
    assert text.endswith("}\n")
    data = json.loads(text, parse_constant=_refuse)
    assert set(data) == {field.name for field in fields(Analysis)} - {"operations"}
    assert set(data["sites"][0]) == {field.name for field in fields(Site)}
    assert data["sites"][0]["stall"]["total_ns"] == 53_282_752
    assert data["sites"][0]["location"] == {
        "label": "read_loss ~/work/train/gpu_bound.py:28",
        "function": "read_loss",
        "file": "~/work/train/gpu_bound.py",
        "line": 28,
    }
    assert data["traces"][0]["devices"][0]["busy_ns"] == 530_056_486
    assert data["sites"][0]["located_by"] == [["exact stack", 39], ["python sample", 1]]
    # Only the table of operations is left out, not the fields of the same name further down.
    assert data["traces"][0]["coverage"]["operations"] == 201
    assert data["traces"][0]["steps"]["steps"][0]["operations"] == 10


def test_json_of_causes_advice_and_host_work() -> None:
    data = json.loads(render_json(render_sample.host_bound()))
    assert data["schema_version"] == "1.2"
    site = data["sites"][0]
    assert site["cause"] == {
        "id": "scalar",
        "certainty": "certain",
        "evidence": ["native frame `_local_scalar_dense_cuda`"],
    }
    assert site["dependency"] == {
        "kind": "false",
        "reason": "",
        "certainty": "likely",
        "evidence": ["only summed and printed: `total += loss.item()`"],
    }
    assert site["advice"] == ["read-later", "read-seldom"]
    assert site["source"] == {"text": "total += loss.item()", "basis": render_sample.SOURCE_BASIS}
    assert [one["redundant_calls"] for one in data["sites"]] == [None, None, None, None, None, 1]
    assert data["sites"][3]["source"] is None
    assert set(data["causes"][0]) == {"id", "title", "explanation", "dynamic_shape"}
    assert set(data["advice"][0]) == {"id", "title", "text", "before", "after", "beware", "link"}
    assert data["merges"] == [{"sites": ["site0001", "site0003"], "runs": 20, "reads": 60}]
    trace = data["traces"][0]
    assert trace["regions"][1] == {
        "name": "warm-up",
        "ranges": 2,
        "operations": 5,
        "operations_after_first": 0,
        "ranges_with_operations": 1,
        "sites": ["site0002"],
    }
    assert trace["host_work"]["lines"][2] == {
        "location": {"label": "main ~/w/train.py:80", "function": "main", "file": "~/w/train.py", "line": 80},
        "work": "Python",
        "inner": None,
        "samples": 26,
        "estimate_ns": 30_016_260,
    }
    assert trace["host_work"]["calls"][0] == {
        "api": "cudaHostAlloc",
        "cause": None,
        "calls": 12,
        "total_ns": 31_200_000,
    }
    assert trace["host_work"]["hidden_waits"][0]["wait"] == "block_until_ready"
    assert json.loads(render_json(render_sample.gpu_bound()))["traces"][0]["host_work"] is None


def test_json_null_is_not_known() -> None:
    data = json.loads(render_json(render_sample.refused()))
    assert data["stall_ns"] is None
    assert data["sites"][0]["stall"] is None


def test_json_refuses_nan() -> None:
    site = render_sample.gpu_bound().sites[0]
    broken = replace(render_sample.gpu_bound(), sites=(replace(site, stall_ratio=float("nan")),))
    with pytest.raises(ValueError, match="not JSON compliant"):
        render_json(broken)


def test_json_of_hostile_names_can_be_encoded_and_read_back() -> None:
    data = json.loads(render_json(render_sample.hostile()).encode("utf-8"))
    assert render_sample.ATTACK in data["sites"][0]["location"]["function"]


def test_json_of_many_sites_is_quick() -> None:
    analysis = render_sample.many()
    best = min(_timed(analysis) for _ in range(3))
    assert best < 1.0, "170 ms on two slow cores; a tenfold slip is a mistake"


def _timed(analysis: Analysis) -> float:
    start = time.perf_counter()
    render_json(analysis)
    return time.perf_counter() - start


def test_json_and_tables_load_no_plotting_or_page_code() -> None:
    code = (
        "import sys, nsys_sync.model, nsys_sync.render.json_report, nsys_sync.render.plots, nsys_sync.render.tables; "
        "print([m for m in ('matplotlib', 'rich', 'jinja2') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_sites_table_has_a_row_a_site() -> None:
    table = sites_table(render_sample.gpu_bound())
    assert table.schema == SITES_SCHEMA
    row = table.to_pylist()[1]
    assert row["rank"] == 2
    assert (row["function"], row["line"], row["stall_ns"], row["calls"]) == ("upload", 23, 18_595_725, 40)
    assert row["stall_window_ratio"] == pytest.approx(18_595_725 / 633_927_493)
    assert (row["steps"], row["calls_per_step_mean"], row["exact_stack_calls"]) == (20, 2.0, 39)
    assert sites_table(render_sample.refused()).column("stall_ns").to_pylist() == [None, None]
    assert sites_table(render_sample.nothing()).num_rows == 0


def test_the_verdict_of_a_site_is_in_its_row() -> None:
    columns = ("cause", "cause_certainty", "dependency", "dependency_reason", "dependency_certainty", "advice")
    rows = sites_table(render_sample.gpu_bound()).to_pylist()
    assert tuple(rows[0][name] for name in columns) == (
        *("scalar", "certain", "false", None, "likely", "read-later read-seldom"),
    )
    assert tuple(rows[2][name] for name in columns[2:5]) == ("true", "control flow", "certain")
    assert tuple(rows[3][name] for name in columns) == ("download", "likely", "unknown", None, "open", None)
    assert [row["source"] for row in rows][2:4] == ["norm = float(total_norm)", None]
    assert [row["redundant_calls"] for row in rows] == [None] * 5 + [1]


def test_parquet_keeps_names_and_types() -> None:
    table = sites_table(render_sample.hostile())
    back = pq.read_table(io.BytesIO(to_parquet_bytes(table)))
    assert back.equals(table)
    assert back.column("label").to_pylist()[1] == "=HYPERLINK(1)"


def test_csv_neutralises_formulas_and_leaves_numbers_alone() -> None:
    names = ["=1+1", "+1", "-1", "@x", "\tx", "\rx", "fine=1", "", None, "'quoted"]
    dictionary = pa.array(names).dictionary_encode()
    numbers = [-1, -2, 3, 4, 5, 6, 7, 8, 9, None]
    table = pa.table(
        {"name": pa.array(names), "same": dictionary, "large": pa.array(names, pa.large_string()), "n_ns": numbers}
    )
    text = to_csv_bytes(table).decode()
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert rows[0] == ["name", "same", "large", "n_ns"]
    # A tab or carriage return becomes visible, so that nothing is left that a spreadsheet would run.
    expected = ["'=1+1", "'+1", "'-1", "'@x", r"\tx", r"\rx", "fine=1", "", "", "'quoted"]
    for column in range(3):
        assert [row[column] for row in rows[1:]] == expected
    assert [row[3] for row in rows[1:]] == ["-1", "-2", "3", "4", "5", "6", "7", "8", "9", ""]


def test_csv_makes_control_codes_visible() -> None:
    names = ["a\x00b", "\x1b[2J", "two\nlines", "\n=1", "\u202eevil", "=\x00", "数値 é", None]
    table = pa.table({"name": pa.array(names).dictionary_encode(), "large": pa.array(names, pa.large_string())})
    content = to_csv_bytes(table)
    assert not [byte for byte in content if byte < 32 and byte != 10]
    assert len(content.splitlines()) == 1 + len(names)
    rows = list(csv.reader(io.StringIO(content.decode(), newline="")))[1:]
    expected = [r"a\x00b", r"\x1b[2J", r"two\nlines", r"\n=1", r"\u202eevil", r"'=\x00", "数値 é", ""]
    assert [row[0] for row in rows] == [row[1] for row in rows] == expected


def test_csv_of_chunks_and_of_no_rows() -> None:
    chunks = pa.chunked_array([pa.array(["=1", "b"]).dictionary_encode(), pa.array(["b", "=1"]).dictionary_encode()])
    assert to_csv_bytes(pa.table({"n": chunks})).decode().splitlines() == ['"n"', '"\'=1"', '"b"', '"b"', '"\'=1"']
    assert to_csv_bytes(sites_table(render_sample.nothing())).count(b"\n") == 1


def test_csv_of_hostile_sites() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv_bytes(sites_table(render_sample.hostile())).decode(), newline="")))
    assert rows[1]["label"] == "'=HYPERLINK(1)"
    assert rows[1]["site_id"] == "'+id"
    assert rows[1]["source"] == "'=HYPERLINK('x')"
    assert rows[2]["source"] == r"\t@SUM(1)"
    assert not [cell for row in rows for cell in row.values() if cell[:1] in ("=", "+", "@", "\t", "\r")]
    assert not [cell for row in rows for cell in row.values() if not cell.isprintable()]
