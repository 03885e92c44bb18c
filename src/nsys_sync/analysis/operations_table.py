"""One row a sync operation, as an Arrow table with the columns of model.OPERATION_COLUMNS."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from nsys_sync import model
from nsys_sync.analysis.intervals import IntArray
from nsys_sync.analysis.sites import HOW, RankedSites, TraceOperations


def operations_table(traces: Sequence[TraceOperations], ranked: RankedSites) -> pa.Table:
    """Strings are dictionary-encoded. Stall and idle within are null where no idle figure could be given."""
    tables = [_one_trace(one, codes, ranked.sites) for one, codes in zip(traces, ranked.site_of_operation, strict=True)]
    return pa.concat_tables(tables).unify_dictionaries()


def _one_trace(one: TraceOperations, site: IntArray, sites: Sequence[model.Site]) -> pa.Table:
    unknown = ~one.known

    def coded(codes: IntArray, names: Sequence[str | None]) -> pa.DictionaryArray:
        distinct: dict[str, int] = {}
        position = np.array(
            [-1 if name is None else distinct.setdefault(_encodable(name), len(distinct)) for name in names],
            dtype=np.int32,
        )
        index = np.where(codes >= 0, position[codes], -1).astype(np.int32) if len(names) else codes.astype(np.int32)
        return pa.DictionaryArray.from_arrays(pa.array(index, mask=index < 0), pa.array(list(distinct), pa.string()))

    def of_site(values: Sequence[str | None]) -> pa.DictionaryArray:
        return coded(site, values)

    line = np.array([site.location.line or -1 for site in sites], dtype=np.int64)
    lines = line[site] if len(sites) else site
    columns = {
        "trace": coded(np.zeros(len(one), dtype=np.int64), [one.trace]),
        "site_id": of_site([s.id for s in sites]),
        "pid": np.array(one.pids, dtype=np.int64)[one.process],
        "tid": np.array(one.tids, dtype=np.int64)[one.thread],
        "start_ns": one.start,
        "end_ns": one.end,
        "blocked_ns": one.blocked,
        "stall_ns": pa.array(one.stall, mask=unknown),
        "idle_within_ns": pa.array(one.idle_within, mask=unknown),
        "api": of_site([" + ".join(s.kind.apis) for s in sites]),
        "copy_kind": of_site([s.kind.copy_kind for s in sites]),
        "src_memory": of_site([s.kind.src_memory for s in sites]),
        "dst_memory": of_site([s.kind.dst_memory for s in sites]),
        "operation": of_site([s.kind.operation for s in sites]),
        "cause": of_site([s.cause.id for s in sites]),
        "located_by": coded(one.how, HOW),
        "file": of_site([s.location.file for s in sites]),
        "line": pa.array(lines, mask=lines < 0),
        "function": of_site([s.location.function for s in sites]),
        "nvtx_range": coded(one.nvtx, one.nvtx_names),
        "step": pa.array(one.step, mask=one.step < 0),
        "correlation_id": pa.array(one.correlation_id, mask=one.correlation_id < 0),
        "in_startup": one.in_startup,
    }
    return pa.table({name: columns[name] for name in model.OPERATION_COLUMNS})


def _encodable(name: str) -> str:
    """Arrow wants UTF-8; a file name can hold bytes that are none."""
    return name.encode("utf-8", "replace").decode()
