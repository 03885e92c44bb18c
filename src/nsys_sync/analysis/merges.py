"""Reads of GPU data that follow each other with nothing launched between: one read could bring all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from nsys_sync import model
from nsys_sync.analysis.advice import FIRST_IF_SHOWN, FIRST_IF_UNUSED, READ_TOGETHER
from nsys_sync.analysis.attributed import Attributed
from nsys_sync.analysis.calls import Calls
from nsys_sync.analysis.intervals import IntArray
from nsys_sync.analysis.operations import Operations
from nsys_sync.analysis.sites import RankedSites, TraceOperations
from nsys_sync.trace.api_names import ApiClass
from nsys_sync.trace.tables import BoolArray

LISTED = 20
READS = frozenset({"scalar-read", "tolist", "to-cpu", "numpy", "cupy-read"})
"""Causes that bring data to the CPU and could bring more at once."""


@dataclass(frozen=True)
class Runs:
    """Run r has the operations `operation[first[r] : first[r + 1]]`, at least two, in order of time."""

    operation: IntArray
    first: IntArray

    def __len__(self) -> int:
        return len(self.first) - 1


def merge_runs(calls: Calls, operations: Operations, is_read: BoolArray) -> Runs:
    """The longest runs of at least two reads of one thread, with no other sync operation and no call that launched
    GPU work between them; the reads' own copies aside. `is_read` has one entry an operation.
    """
    order = np.argsort(operations.thread, kind="stable")  # operations of one thread are sorted by start already
    call, copy_call = operations.call[order], operations.copy_call[order]
    first_call = np.where(copy_call >= 0, np.minimum(copy_call, call), call)
    launches = calls.that_launched(calls.launched_by)
    launches[calls.api_class == ApiClass.GRAPH_LAUNCH] = True
    launch = np.flatnonzero(launches)
    thread, read = operations.thread[order], is_read[order]
    launched_before_next = np.searchsorted(launch, first_call[1:], side="left")
    launched_by_then = np.searchsorted(launch, call[:-1], side="right")
    goes_on = read[1:] & read[:-1] & (thread[1:] == thread[:-1]) & (launched_before_next <= launched_by_then)
    joined = np.concatenate(([False], goes_on))[: len(order)]
    has_next = np.concatenate((goes_on, [False]))[: len(order)]
    member = np.flatnonzero(joined | has_next)
    first = np.flatnonzero(~joined[member])
    return Runs(order[member], np.append(first, len(member)))


def merges(
    runs: Sequence[Runs], site_of_operation: Sequence[IntArray], site_ids: Sequence[str]
) -> tuple[model.Merge, ...]:
    """The runs of all traces by their sequence of sites, those first that one read each would save most reads.

    `site_of_operation` has, for each trace, the site (an index into `site_ids`) of every operation that is a read.
    Reads of one site in a row count as one entry of the sequence. At most 20 are given.
    """
    sites = [site[one.operation] for one, site in zip(runs, site_of_operation, strict=True)]
    site = np.concatenate([*sites, np.empty(0, dtype=np.int64)])
    reads = np.concatenate([*(np.diff(one.first) for one in runs), np.empty(0, dtype=np.int64)])
    if not len(reads):
        return ()
    run = np.repeat(np.arange(len(reads)), reads)
    entry = np.flatnonzero(np.concatenate(([True], (run[1:] != run[:-1]) | (site[1:] != site[:-1]))))
    entry_first = np.searchsorted(run[entry], np.arange(len(reads) + 1))
    position = np.arange(len(entry)) - entry_first[run[entry]]
    mixed = pd.util.hash_array(pd.util.hash_array(position) ^ site[entry].astype(np.uint64))
    sequence = pd.factorize(np.add.reduceat(mixed, entry_first[:-1]))[0]
    representative = np.full(int(sequence.max()) + 1, len(reads), dtype=np.int64)
    np.minimum.at(representative, sequence, np.arange(len(reads)))
    run_count = np.bincount(sequence)
    read_count = np.zeros(len(run_count), dtype=np.int64)
    np.add.at(read_count, sequence, reads)
    best = np.lexsort((representative, run_count - read_count))[:LISTED]
    result = []
    for code in best.tolist():
        entries = entry[entry_first[representative[code]] : entry_first[representative[code] + 1]]
        ids = tuple(site_ids[number] for number in site[entries].tolist())
        result.append(model.Merge(ids, int(run_count[code]), int(read_count[code])))
    return tuple(result)


def merges_of(
    attributed: Sequence[Attributed], operations: Sequence[TraceOperations], ranked: RankedSites
) -> tuple[model.Merge, ...]:
    """The merges of all traces; each trace with its shown operations."""
    reads = np.array([site.cause.id in READS for site in ranked.sites], dtype=bool)
    runs, sites = [], []
    for one, shown, site in zip(attributed, operations, ranked.site_of_operation, strict=True):
        of_all = np.full(len(one.operations), -1, dtype=np.int64)
        of_all[shown.row] = site
        runs.append(merge_runs(one.calls, one.operations, (of_all >= 0) & np.append(reads, False)[of_all]))
        sites.append(of_all)
    return merges(runs, sites, [site.id for site in ranked.sites])


def read_together_first(sites: Sequence[model.Site], found: Sequence[model.Merge]) -> tuple[model.Site, ...]:
    """The sites, those of a merge with the advice to read together before any other that does not remove the read."""
    in_merge = {site for merge in found for site in merge.sites}
    return tuple(
        replace(site, advice=tuple(sorted(site.advice, key=_after_removing))) if site.id in in_merge else site
        for site in sites
    )


def _after_removing(advice: str) -> int:
    return 0 if advice in FIRST_IF_UNUSED + FIRST_IF_SHOWN else 1 if advice in READ_TOGETHER else 2
