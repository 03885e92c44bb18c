"""Flat tables for spreadsheets and notebooks. Units are in the column names; null is "not known", never 0."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from nsys_sync.render.text import plain

if TYPE_CHECKING:
    from nsys_sync.model import Analysis, DetectedSite, Detection, Distribution, Site

SITES_SCHEMA = pa.schema(
    [
        ("rank", pa.int64()),
        ("site_id", pa.string()),
        ("label", pa.string()),
        ("function", pa.string()),
        ("file", pa.string()),
        ("line", pa.int64()),
        ("kind", pa.string()),
        ("operation", pa.string()),
        ("copy_kind", pa.string()),
        ("src_memory", pa.string()),
        ("dst_memory", pa.string()),
        ("apis", pa.string()),
        ("cause", pa.string()),
        ("cause_certainty", pa.string()),
        ("dependency", pa.string()),
        ("dependency_reason", pa.string()),
        ("dependency_certainty", pa.string()),
        ("advice", pa.string()),
        ("source", pa.string()),
        ("redundant_calls", pa.int64()),
        ("calls", pa.int64()),
        ("stall_ns", pa.int64()),
        ("stall_window_ratio", pa.float64()),
        ("window_ns", pa.int64()),
        ("stall_mean_ns", pa.float64()),
        ("stall_p50_ns", pa.int64()),
        ("stall_p95_ns", pa.int64()),
        ("stall_max_ns", pa.int64()),
        ("blocked_ns", pa.int64()),
        ("blocked_mean_ns", pa.float64()),
        ("blocked_p50_ns", pa.int64()),
        ("blocked_p95_ns", pa.int64()),
        ("blocked_max_ns", pa.int64()),
        ("idle_within_ns", pa.int64()),
        ("startup_calls", pa.int64()),
        ("startup_stall_ns", pa.int64()),
        ("steps", pa.int64()),
        ("calls_per_step_mean", pa.float64()),
        ("stall_per_step_mean_ns", pa.float64()),
        ("blocked_per_step_mean_ns", pa.float64()),
        ("exact_stack_calls", pa.int64()),
        ("processes", pa.int64()),
        ("traces", pa.int64()),
        ("nvtx_range", pa.string()),
    ]
)
"""`rank` is 1 for the worst. `apis` are joined by `; `, ids of `advice` by a space, in the order to try them.
`dependency` is `false` (can go), `true` (needed, `dependency_reason` says for what), `explicit` (asked for) or
`unknown`. `source` is the line in the user's file. `redundant_calls` of `calls` found nothing to wait for.
`stall_window_ratio` is stall_ns / window_ns (the windows of all devices shown). `startup_*` is contained in the totals.
`steps` is the denominator of the per-step means. `exact_stack_calls` of `calls` have an exact Python stack.
`nvtx_range` is the range with most calls."""


DETECTED_SCHEMA = pa.schema(
    [
        ("rank", pa.int64()),
        ("site_id", pa.string()),
        ("label", pa.string()),
        ("function", pa.string()),
        ("file", pa.string()),
        ("line", pa.int64()),
        ("operation", pa.string()),
        ("cause", pa.string()),
        ("cause_certainty", pa.string()),
        ("dependency", pa.string()),
        ("dependency_reason", pa.string()),
        ("dependency_certainty", pa.string()),
        ("advice", pa.string()),
        ("source", pa.string()),
        ("calls", pa.int64()),
        ("stacks", pa.int64()),
        ("processes", pa.int64()),
    ]
)
"""As `SITES_SCHEMA`, of what `detect` saw; `rank` is 1 for most calls."""


def detected_table(detection: Detection) -> pa.Table:
    """One row a site, in the order of the ranking."""
    rows: list[dict[str, Any]] = [
        {
            **_what_it_is(rank, site),
            "operation": site.operation,
            "stacks": site.stack_variants,
            "processes": len({thread.pid for thread in site.threads}),
        }
        for rank, site in enumerate(detection.sites, 1)
    ]
    return _table_of(rows, DETECTED_SCHEMA)


def sites_table(analysis: Analysis) -> pa.Table:
    """One row a site, in the order of the ranking; `SITES_SCHEMA` says what the columns mean."""
    rows: list[dict[str, Any]] = []
    for rank, site in enumerate(analysis.sites, 1):
        steps = site.per_step
        rows.append(
            {
                **_what_it_is(rank, site),
                "kind": site.kind.label,
                "operation": site.kind.operation,
                "copy_kind": site.kind.copy_kind,
                "src_memory": site.kind.src_memory,
                "dst_memory": site.kind.dst_memory,
                "apis": "; ".join(site.kind.apis),
                "redundant_calls": site.redundant_calls,
                "stall_window_ratio": site.stall_ratio,
                "window_ns": analysis.window_ns,
                "idle_within_ns": site.idle_within_ns,
                "startup_calls": site.startup_calls,
                "startup_stall_ns": site.startup_stall_ns,
                "steps": steps.steps if steps else None,
                "calls_per_step_mean": steps.calls_mean if steps else None,
                "stall_per_step_mean_ns": steps.stall_mean_ns if steps else None,
                "blocked_per_step_mean_ns": steps.blocked_mean_ns if steps else None,
                "exact_stack_calls": dict(site.located_by).get("exact stack", 0),
                "processes": len(site.processes),
                "traces": len(site.ranks) or 1,
                "nvtx_range": max(site.nvtx_ranges, key=lambda r: r.calls).name if site.nvtx_ranges else None,
                **_distribution("stall", site.stall),
                **_distribution("blocked", site.blocked),
            }
        )
    return _table_of(rows, SITES_SCHEMA)


def _what_it_is(rank: int, site: Site | DetectedSite) -> dict[str, Any]:
    """The columns that both kinds of site have."""
    return {
        "rank": rank,
        "site_id": site.id,
        "label": site.location.label,
        "function": site.location.function,
        "file": site.location.file,
        "line": site.location.line,
        "cause": site.cause.id,
        "cause_certainty": site.cause.certainty,
        "dependency": site.dependency.kind,
        "dependency_reason": site.dependency.reason or None,
        "dependency_certainty": site.dependency.certainty,
        "advice": " ".join(site.advice) or None,
        "source": site.source.text if site.source else None,
        "calls": site.calls,
    }


def _table_of(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    columns = [pa.array([_encodable(row[field.name]) for row in rows], field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def to_csv_bytes(table: pa.Table) -> bytes:
    """CSV in UTF-8 with a header; null is an empty cell, a row is a line.

    Names come from whoever wrote the traced program: control codes in them, tabs and newlines too, become visible as
    in `plain`, and a text cell that a spreadsheet would run as a formula gets an apostrophe in front. Parquet has the
    exact names.
    """
    for index, field in enumerate(table.schema):
        column = table.column(index)
        if pa.types.is_dictionary(field.type):
            column = column.cast(field.type.value_type)
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            continue
        distinct = pc.unique(column)
        cells = pa.array([_csv_cell(name) for name in distinct.to_pylist()], column.type)
        table = table.set_column(index, field.name, cells.take(pc.index_in(column, distinct)))
    out = io.BytesIO()
    pyarrow.csv.write_csv(table, out)
    return out.getvalue()


def to_parquet_bytes(table: pa.Table) -> bytes:
    """The table as one Parquet file, names exactly as in the result."""
    out = io.BytesIO()
    pyarrow.parquet.write_table(table, out, compression="zstd")
    return out.getvalue()


def _csv_cell(name: str | None) -> str | None:
    if name is None:
        return None
    # A leading tab or carriage return would start a formula as well, but is a backslash by now.
    shown = plain(name)
    return f"'{shown}" if shown.startswith(("=", "+", "-", "@")) else shown


def _distribution(name: str, values: Distribution | None) -> dict[str, float | None]:
    return {
        f"{name}_ns": values.total_ns if values else None,
        f"{name}_mean_ns": values.mean_ns if values else None,
        f"{name}_p50_ns": values.p50_ns if values else None,
        f"{name}_p95_ns": values.p95_ns if values else None,
        f"{name}_max_ns": values.max_ns if values else None,
    }


def _encodable(value: Any) -> Any:
    """Arrow refuses lone surrogates, which a damaged name can hold."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
