"""Groups the operations of one or several traces into sites, and sums them up."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from nsys_sync import model
from nsys_sync.analysis.intervals import IntArray
from nsys_sync.analysis.verdict import Verdict
from nsys_sync.trace.tables import BoolArray

QUANTILES = np.arange(0, 101, 5)
SITES_WITH_QUANTILES = 12
EXAMPLES = 3
LISTED_THREADS = 8
LISTED_RANGES = 5


@dataclass(frozen=True)
class SiteKey:
    """What makes operations one site; `verdict` is the same for all of them, though its evidence may differ.

    `cause` is what the trace says: whether the source line is at hand must change neither sites nor ids.
    """

    location: model.Location
    kind: model.Kind
    cause: str
    verdict: Verdict = field(compare=False)


@dataclass(frozen=True)
class TraceOperations:
    """The operations of one trace that are shown, one entry each. Codes index the tuples below.

    `stall` and `idle_within` hold 0 where `known` is False. `row` is the operation's place among all of the trace;
    `step` the index of the step in which it began, -1 outside all. `chain_id` is the native callchain, -1 without;
    `event` the Python event, -1 without.
    """

    trace: str
    row: IntArray
    site: IntArray
    site_keys: Sequence[SiteKey]
    start: IntArray
    end: IntArray
    blocked: IntArray
    stall: IntArray
    startup_stall: IntArray
    idle_within: IntArray
    known: BoolArray
    how: IntArray
    process: IntArray
    thread: IntArray
    nvtx: IntArray
    step: IntArray
    in_startup: BoolArray
    redundant: BoolArray
    redundant_known: BoolArray
    correlation_id: IntArray
    chain_id: IntArray
    event: IntArray
    stack: IntArray
    pids: Sequence[int]
    process_names: Sequence[str]
    tids: Sequence[int]
    thread_pids: Sequence[int]
    thread_names: Sequence[str]
    nvtx_names: Sequence[str]
    steps: int

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True)
class RankedSites:
    """Sites in rank order. `representative[s]` is (trace index, operation index) of the operation to show stacks of."""

    sites: tuple[model.Site, ...]
    representative: tuple[tuple[int, int], ...]
    site_of_operation: tuple[IntArray, ...]


def rank_sites(traces: Sequence[TraceOperations], window_ns: int) -> RankedSites:
    """Merges the traces' sites by location and kind, and ranks them by stall outside start-up."""
    keys: dict[SiteKey, int] = {}
    merged = []
    for operations in traces:
        shown = np.unique(operations.site)  # a selection can leave a site without any operation
        code = np.full(len(operations.site_keys), -1, dtype=np.int64)
        code[shown] = [keys.setdefault(operations.site_keys[i], len(keys)) for i in shown]
        merged.append(code[operations.site])
    table = _Operations(traces, merged)
    if not keys:
        return RankedSites((), (), tuple(merged))
    order = table.rank_order(len(keys))
    position = np.empty(len(keys), dtype=np.int64)
    position[order] = np.arange(len(keys))
    table.site = position[table.site]
    table.sort()
    key_list = list(keys)
    ranked_keys = [key_list[code] for code in order]
    sites, representative = [], []
    shares, names = _Shares(table), _Names(traces)
    for rank, key in enumerate(ranked_keys):
        own = slice(int(table.bounds[rank]), int(table.bounds[rank + 1]))
        site, worst = _site(table, own, key, rank, window_ns, shares, names)
        sites.append(site)
        representative.append(worst)
    return RankedSites(tuple(sites), tuple(representative), tuple(position[codes] for codes in merged))


class _Operations:
    """The operations of all traces in one table of columns, sorted by site once `sort` was called."""

    def __init__(self, traces: Sequence[TraceOperations], site: Sequence[IntArray]) -> None:
        def column(get: Callable[[TraceOperations], IntArray]) -> IntArray:
            return np.concatenate([get(one) for one in traces])

        def shifted(get: Callable[[TraceOperations], IntArray], sizes: Sequence[int]) -> IntArray:
            begins = np.cumsum([0, *sizes])[:-1]
            return np.concatenate(
                [np.where(get(one) >= 0, get(one) + begin, -1) for one, begin in zip(traces, begins, strict=True)]
            )

        self.traces = traces
        self.site = np.concatenate(list(site))
        self.trace = np.concatenate([np.full(len(one), i, dtype=np.int64) for i, one in enumerate(traces)])
        self.index = np.concatenate([np.arange(len(one), dtype=np.int64) for one in traces])
        self.start = column(lambda one: one.start)
        self.end = column(lambda one: one.end)
        self.blocked = column(lambda one: one.blocked)
        self.stall = column(lambda one: one.stall)
        self.startup_stall = column(lambda one: one.startup_stall)
        self.idle_within = column(lambda one: one.idle_within)
        self.known = column(lambda one: one.known.astype(np.int64)).astype(bool)
        self.how = column(lambda one: one.how)
        self.process = shifted(lambda one: one.process, [len(one.pids) for one in traces])
        self.thread = shifted(lambda one: one.thread, [len(one.tids) for one in traces])
        self.nvtx = shifted(lambda one: one.nvtx, [len(one.nvtx_names) for one in traces])
        self.steps = sum(one.steps for one in traces)
        self.step = shifted(lambda one: one.step, [one.steps for one in traces])
        self.in_startup = column(lambda one: one.in_startup.astype(np.int64)).astype(bool)
        self.redundant = column(lambda one: one.redundant.astype(np.int64)).astype(bool)
        self.redundant_known = column(lambda one: one.redundant_known.astype(np.int64)).astype(bool)
        self.correlation_id = column(lambda one: one.correlation_id)
        self.stack = column(lambda one: one.stack)
        self.bounds: IntArray = np.zeros(1, dtype=np.int64)

    def rank_order(self, sites: int) -> IntArray:
        """Site codes, worst first: stall outside start-up, then all stall, then blocked time. No stall ranks as 0."""
        known = np.ones(sites, dtype=np.int64)
        known[self.site[~self.known]] = 0
        loop = _sum_by(self.site, self.stall - self.startup_stall, sites) * known
        stall = _sum_by(self.site, self.stall, sites) * known
        return np.lexsort((-_sum_by(self.site, self.blocked, sites), -stall, -loop))

    def sort(self) -> None:
        order = np.argsort(self.site, kind="stable")
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray) and len(value) == len(order) and name != "bounds":
                setattr(self, name, value[order])
        self.bounds = np.searchsorted(self.site, np.arange(int(self.site[-1]) + 2))


def _sum_by(code: IntArray, values: IntArray, size: int) -> IntArray:
    # bincount sums floats, exact only below 2**53 ns; add.at stays in integers.
    result = np.zeros(size, dtype=np.int64)
    np.add.at(result, code, values)
    return result


class _Shares:
    """Per site and process, thread, NVTX range, trace or way of locating: calls, stall and blocked time."""

    def __init__(self, table: _Operations) -> None:
        self.by: dict[str, dict[int, list[tuple[int, int, int, int, bool]]]] = {
            "process": self._group(table, table.process),
            "thread": self._group(table, table.thread),
            "nvtx": self._group(table, table.nvtx),
            "trace": self._group(table, table.trace),
            "how": self._group(table, table.how),
        }

    def _group(self, table: _Operations, code: IntArray) -> dict[int, list[tuple[int, int, int, int, bool]]]:
        used = code >= 0
        size = int(code.max(initial=0)) + 1
        key, inverse = np.unique(table.site[used] * size + code[used], return_inverse=True)
        calls = np.bincount(inverse, minlength=len(key))
        stall = _sum_by(inverse, table.stall[used], len(key))
        blocked = _sum_by(inverse, table.blocked[used], len(key))
        unknown = np.bincount(inverse, weights=~table.known[used], minlength=len(key)) > 0
        result: dict[int, list[tuple[int, int, int, int, bool]]] = {}
        for row in range(len(key)):
            site, own = divmod(int(key[row]), size)
            result.setdefault(site, []).append(
                (own, int(calls[row]), int(stall[row]), int(blocked[row]), not unknown[row])
            )
        return result

    def of(self, kind: str, site: int) -> list[tuple[int, int, int, int, bool]]:
        return self.by[kind].get(site, [])


def _distribution(values: IntArray) -> model.Distribution:
    """Nearest-rank percentiles: the smallest value that at least p percent of the values do not exceed."""
    ordered = np.sort(values)
    count = len(ordered)
    return model.Distribution(
        total_ns=int(ordered.sum()),
        mean_ns=float(ordered.sum() / count),
        p50_ns=int(ordered[_nearest_rank(50, count)]),
        p95_ns=int(ordered[_nearest_rank(95, count)]),
        max_ns=int(ordered[-1]),
    )


def _nearest_rank(percent: int, count: int) -> int:
    return max(-(-percent * count // 100) - 1, 0)


def _site(
    table: _Operations, own: slice, key: SiteKey, rank: int, window_ns: int, shares: _Shares, names: _Names
) -> tuple[model.Site, tuple[int, int]]:
    location, kind, verdict = key.location, key.kind, key.verdict
    known = bool(table.known[own].all())
    waits_only = kind.copy_kind is None
    stall = _distribution(table.stall[own]) if known else None
    ordered_stall = np.sort(table.stall[own])
    worst = np.lexsort((table.start[own], -table.blocked[own], -table.stall[own]))[:EXAMPLES]
    shown = int(worst[0]) + own.start
    site = model.Site(
        id=site_id(key),
        location=location,
        kind=kind,
        cause=verdict.cause,
        dependency=verdict.dependency,
        advice=verdict.advice,
        source=verdict.source,
        redundant_calls=int(table.redundant[own].sum()) if waits_only and table.redundant_known[own].all() else None,
        calls=own.stop - own.start,
        stall=stall,
        stall_ratio=stall.total_ns / window_ns if stall and window_ns else None,
        blocked=_distribution(table.blocked[own]),
        idle_within_ns=int(table.idle_within[own].sum()) if known else None,
        startup_calls=int(table.in_startup[own].sum()),
        startup_stall_ns=int(table.startup_stall[own].sum()) if known else None,
        located_by=tuple((HOW[code], calls) for code, calls, *_ in shares.of("how", rank)),
        processes=tuple(
            model.ProcessShare(*names.process(code), calls, stall_ns if ok else None, blocked)
            for code, calls, stall_ns, blocked, ok in shares.of("process", rank)
        ),
        threads=tuple(
            model.ThreadShare(*names.thread(code), calls)
            for code, calls, *_ in sorted(shares.of("thread", rank), key=lambda s: -s[1])[:LISTED_THREADS]
        ),
        nvtx_ranges=_nvtx_shares(names, shares.of("nvtx", rank)),
        ranks=tuple(
            model.RankShare(table.traces[code].trace, calls, stall_ns if ok else None, blocked)
            for code, calls, stall_ns, blocked, ok in shares.of("trace", rank)
        )
        if len(table.traces) > 1
        else (),
        per_step=_per_step(table, own, known),
        python_stack=(),
        native_stack=(),
        stack_omitted=False,
        stack_variants=len(np.unique(table.stack[own][table.stack[own] != 0])),
        examples=tuple(_example(table, own.start + int(i), names) for i in worst),
        stall_quantiles_ns=tuple(int(ordered_stall[_nearest_rank(int(q), len(ordered_stall))]) for q in QUANTILES)
        if known and rank < SITES_WITH_QUANTILES
        else (),
    )
    return site, (int(table.trace[shown]), int(table.index[shown]))


HOW: tuple[model.LocatedBy, ...] = ("exact stack", "python sample", "native stack", "nvtx range", "thread")


class _Names:
    """Names behind the codes that run over all traces."""

    def __init__(self, traces: Sequence[TraceOperations]) -> None:
        self._processes = [
            (one.trace, pid, name) for one in traces for pid, name in zip(one.pids, one.process_names, strict=True)
        ]
        self._threads = [
            (one.trace, pid, tid, name)
            for one in traces
            for pid, tid, name in zip(one.thread_pids, one.tids, one.thread_names, strict=True)
        ]
        self._nvtx = [name for one in traces for name in one.nvtx_names]

    def process(self, code: int) -> tuple[str, int, str]:
        return self._processes[code]

    def thread(self, code: int) -> tuple[str, int, int, str]:
        return self._threads[code]

    def nvtx(self, code: int) -> str:
        return self._nvtx[code]


def _nvtx_shares(names: _Names, shares: Sequence[tuple[int, int, int, int, bool]]) -> tuple[model.NvtxShare, ...]:
    calls: dict[str, int] = {}
    for code, count, *_ in shares:
        calls[names.nvtx(code)] = calls.get(names.nvtx(code), 0) + count
    listed = sorted(calls.items(), key=lambda item: (-item[1], item[0]))[:LISTED_RANGES]
    return tuple(model.NvtxShare(name, count) for name, count in listed)


def _example(table: _Operations, row: int, names: _Names) -> model.Example:
    trace, pid, tid, _ = names.thread(int(table.thread[row]))
    correlation = int(table.correlation_id[row])
    return model.Example(
        trace=trace,
        start_ns=int(table.start[row]),
        end_ns=int(table.end[row]),
        stall_ns=int(table.stall[row]) if table.known[row] else None,
        pid=pid,
        tid=tid,
        correlation_id=correlation if correlation >= 0 else None,
    )


def _per_step(table: _Operations, own: slice, known: bool) -> model.SiteSteps | None:
    if not table.steps:
        return None
    step = table.step[own]
    inside = step >= 0
    calls = np.bincount(step[inside], minlength=table.steps)
    stall = np.sort(_sum_by(step[inside], table.stall[own][inside], table.steps))
    blocked = int(table.blocked[own][inside].sum())
    return model.SiteSteps(
        steps=table.steps,
        steps_with_calls=int((calls > 0).sum()),
        calls_mean=float(calls.mean()),
        calls_max=int(calls.max()),
        stall_mean_ns=float(stall.sum() / table.steps) if known else None,
        stall_p50_ns=int(stall[_nearest_rank(50, table.steps)]) if known else None,
        stall_p95_ns=int(stall[_nearest_rank(95, table.steps)]) if known else None,
        stall_max_ns=int(stall[-1]) if known else None,
        blocked_mean_ns=blocked / table.steps,
    )


def limited(
    sites: tuple[model.Site, ...], top: int | None, min_stall_ns: int
) -> tuple[tuple[model.Site, ...], model.Omitted | None]:
    """The sites to list, and the totals of those that are not."""
    enough = [site for site in sites if site.stall is None or site.stall.total_ns >= min_stall_ns]
    too_little = [site for site in sites if site.stall is not None and site.stall.total_ns < min_stall_ns]
    kept, too_many = enough[:top], enough[top:] if top is not None else []
    left_out = [*too_little, *too_many]
    if not left_out:
        return sites, None
    stalls = [site.stall.total_ns if site.stall else None for site in left_out]
    reasons = [f"--top {top}"] if too_many else []
    reasons += [f"--min-stall {_as_typed(min_stall_ns)}"] if too_little else []
    return tuple(kept), model.Omitted(
        sites=len(left_out),
        calls=sum(site.calls for site in left_out),
        stall_ns=None if any(stall is None for stall in stalls) else sum(stall or 0 for stall in stalls),
        blocked_ns=sum(site.blocked.total_ns for site in left_out),
        reason=" and ".join(reasons),
    )


def _as_typed(ns: int) -> str:
    """`1500000` → `1500us`: the largest unit that leaves a whole number."""
    units = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000}
    return next((f"{ns // scale}{unit}" for unit, scale in units.items() if ns % scale == 0), f"{ns}ns")


def site_id(key: SiteKey) -> str:
    """Stable over runs of the same code: a hash of location, kind and cause."""
    location, kind = key.location, key.kind
    parts = (location.label, location.function, location.file, location.line, kind.label, *kind.apis, key.cause)
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()[:12]


def group_keys(columns: Sequence[IntArray]) -> tuple[IntArray, IntArray]:
    """Rows that agree in all columns get one code; also the first row of each code."""
    frame = pd.DataFrame({str(i): column for i, column in enumerate(columns)})
    codes = frame.groupby(list(frame.columns), sort=False).ngroup().to_numpy().astype(np.int64)
    first = np.full(int(codes.max(initial=-1)) + 1, len(codes), dtype=np.int64)
    np.minimum.at(first, codes, np.arange(len(codes)))
    return codes, first
