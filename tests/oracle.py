"""An independent, brute-force reading of DESIGN.md section 2, written apart from the product's code.

Everything is plain Python over plain rows: no numpy, no clever joins. It is slow on purpose. Integer nanoseconds
throughout. Where the definition leaves a tie open, the reading used here is said in a comment that starts with TIE.

Which rows of a damaged export count:
- A table that is not there has no rows, and a column that is not there is NULL in every row. Views are no tables, and
  computed columns no columns. The case of names does not matter, and a table can be several: `…_V2` beside it, MEMCPY2.
- A row counts if its start is there, and of API calls the thread too, of GPU work the device number.
  Rows with a start or an end beyond 2**61 ns (73 years) either way do not count.
- Rows with anything but whole numbers and NULL do not count either. (A file with such a row is refused, unless it is of
  a query.)
- A NULL end, one of 0 (exports before 2022 wrote that), or one before the start means that it never ended.
- A NULL process or thread is -1, and so are a NULL stream, context and memory kind. Ids below 1 are none: CUPTI counts
  from 1.
- A name's id without a string names a call that is none of those known. Profiler overhead counts with any name that is
  not "Unknown", and without one.
- Queries only ask: their rows are set aside before everything else, so what was traced inside one stands by itself.
- The SYNCHRONIZATION row of a call is one with the id of the call itself, not of one inside it, and lies in it; one
  without an end says nothing.
- Time in a gap is not captured, whoever ended the gap, in a stretch in which a thread of a process with work on the
  device lost events: from the first of some kernel launches, copies and synchronous memsets (and graph launches, where
  others of the process have rows) without a GPU row that has an end (not in stream capture, not refused by CUDA) to the
  thread's next call that launched something; from its last whole call before some calls that have a callchain but one
  row only and an id of their own (where others of the process and name, or for synchronize calls any, have two), or
  before some Python stacks that no row of the thread follows within 10 us, to its next whole call; and where no thread
  of the process makes a call for 1 ms, no SYNCHRONIZATION row of it begins (but there are some), and more than 500
  correlation ids are used by no row. Each of these stretches goes on to the first work there that the thread launched
  afterwards. A thread that launched work, but none on the device, does not count.
- A wait under the correlation id of a cu(da)ProfilerStop before it on the same thread is the profiler's own.
- Work that begins before its launch call did counts as launched when it began.
- Of several API rows with the correlation id of a GPU row, that launched it which began first among those whose names
  can launch; where none can, the launch is not in the trace.
"""

from __future__ import annotations

import re
import sqlite3
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

LAUNCH_QUEUE_DEPTH = 1024
INFINITE = 1 << 62
LATEST = 2**61
NONE = -1
NO_PROCESS = -INFINITE

EXPLICIT = {
    "cudaStreamSynchronize",
    "cudaEventSynchronize",
    "cudaDeviceSynchronize",
    "cudaThreadSynchronize",
    "cuStreamSynchronize",
    "cuEventSynchronize",
    "cuCtxSynchronize",
}
STREAM_SYNCS = {"cudaStreamSynchronize", "cuStreamSynchronize"}
FREES = {"cudaFree", "cuMemFree"}
OTHER_NAMES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": ("CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL",),
    "CUPTI_ACTIVITY_KIND_MEMCPY": ("CUPTI_ACTIVITY_KIND_MEMCPY2",),
}
DEVICE_COLUMNS = ("gpuId", "cudaId", "pid")

Interval = tuple[int, int]


# ---------------------------------------------------------------------------------------------------------- rows


@dataclass(eq=False)
class Call:
    """One outermost API call with everything traced inside it."""

    process: int
    thread: int
    start: int
    end: int | None
    name: str
    has_callchain: bool = False
    rows: list[tuple[int, int, int, str]] = field(default_factory=list)
    """(correlation id, start, known end, name) of its own row and of those inside it."""
    gpu_rows: list[GpuRow] = field(default_factory=list)
    sync_rows: list[tuple[int, int]] = field(default_factory=list)
    is_sync: bool = False

    @property
    def known_end(self) -> int:
        """The end, far in the future for a call or a row that has none."""
        return INFINITE if self.end is None else self.end

    @property
    def order(self) -> tuple[int, int, int]:
        return (self.start, self.known_end, self.thread)


@dataclass(eq=False)
class GpuRow:
    table: str
    process: int
    device: int
    start: int
    end: int | None
    correlation_id: int
    context: int = NONE
    stream: int = NONE
    src_kind: int = NONE
    dst_kind: int = NONE
    call: Call | None = None

    @property
    def known_end(self) -> int:
        return INFINITE if self.end is None else self.end

    @property
    def has_length(self) -> bool:
        return self.end is not None and self.end > self.start


@dataclass(eq=False)
class Operation:
    process: int
    thread: int
    start: int
    end: int
    calls: tuple[Call, ...]
    stall: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    idle_within: int = 0

    @property
    def pid(self) -> int:
        return self.process & 0xFFFFFF

    @property
    def tid(self) -> int:
        return self.thread & 0xFFFFFF

    @property
    def blocked(self) -> int:
        return self.end - self.start

    @property
    def stall_total(self) -> int:
        return sum(self.stall.values())

    @property
    def apis(self) -> tuple[str, ...]:
        return tuple(call.name for call in self.calls)

    @property
    def order(self) -> tuple[int, int, int]:
        return (self.start, self.end, self.thread)


@dataclass
class Device:
    id: int
    window: int = 0
    busy: int = 0
    host_late: int = 0
    device_side: int = 0
    device_side_without_launch: int = 0
    profiler: int = 0
    not_captured: int = 0
    stall: int = 0
    host_bound: int = 0
    outside: int = 0
    gaps: int = 0
    host_late_gaps: int = 0

    @property
    def conserved(self) -> bool:
        parts = self.busy + self.stall + self.host_bound + self.device_side + self.profiler + self.outside
        parts += self.not_captured
        return parts == self.window and self.host_late == self.stall + self.host_bound


@dataclass
class OracleResult:
    operations: list[Operation]
    devices: dict[int, Device]
    calls: list[Call]

    @property
    def stall(self) -> int:
        return sum(device.stall for device in self.devices.values())


# ------------------------------------------------------------------------------------------------------- reading


def _cells(connection: sqlite3.Connection, table: str, columns: tuple[str, ...]) -> list[tuple[Any, ...]]:
    found = []
    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        if re.sub("_V[0-9]+$", "", name.upper()) in (table.upper(), *OTHER_NAMES.get(table, ())):
            have = {row[1].lower() for row in connection.execute(f'PRAGMA table_info("{name}")')}
            chosen = ", ".join(f'"{column}"' if column.lower() in have else "NULL" for column in columns)
            found += connection.execute(f'SELECT {chosen} FROM "{name}"').fetchall()
    return found


def _events(
    connection: sqlite3.Connection, table: str, needed: tuple[str, ...], others: tuple[str, ...] = ()
) -> list[tuple[Any, ...]]:
    """(start, end or None, needed…, others…) of the rows that count; others that are NULL are NONE."""
    found = []
    for start, end, *rest in _cells(connection, table, ("start", "end", *needed, *others)):
        if start is None or None in rest[: len(needed)]:
            continue
        if not all(isinstance(value, int) for value in (start, end or 0, *(value or 0 for value in rest))):
            continue
        if any(abs(time) > LATEST for time in (start, end or start - 1)):
            continue
        known_end = end if end is not None and end >= start and end != 0 else None
        found.append((start, known_end, *(NONE if value is None else value for value in rest)))
    return found


def _strings(connection: sqlite3.Connection) -> dict[int, str]:
    return {
        number: text
        for number, text in _cells(connection, "StringIds", ("id", "value"))
        if isinstance(number, int) and isinstance(text, str)
    }


def base_name(name: str) -> str:
    return re.sub(r"(_v\d+|_ptsz|_ptds)+\Z", "", name)


def is_copy_name(name: str) -> bool:
    return name.startswith(("cudaMemcpy", "cuMemcpy"))


def is_memset_name(name: str) -> bool:
    return name.startswith(("cudaMemset", "cuMemset"))


def read_calls(connection: sqlite3.Connection, names: dict[int, str]) -> list[Call]:
    by_thread: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER"):
        rows = _events(connection, table, ("globalTid",), ("nameId", "correlationId", "callchainId"))
        for start, end, thread, name_id, correlation_id, callchain_id in rows:
            name = base_name(names.get(name_id, "unnamed call"))
            if not only_asks(name):
                by_thread[thread].append((start, end, correlation_id, name, callchain_id))
    calls: list[Call] = []
    for thread, thread_rows in by_thread.items():
        # Outer rows first. TIE: of identical intervals the row with a callchainId is the outer, then table order.
        thread_rows.sort(key=lambda r: (r[0], -(INFINITE if r[1] is None else r[1]), r[4] < 0))
        open_calls: list[Call] = []
        for start, end, correlation_id, name, callchain_id in thread_rows:
            # Ended calls hold nothing more, but a row of no length is nested in another just like it.
            open_calls = [c for c in open_calls if c.end is not None and (c.end > start or c.start == start)]
            outer = None
            if end is not None:  # TIE: an unfinished row is nested in nothing.
                # TIE: of calls that overlap, which no thread can make, it is in the one begun last.
                outer = next((call for call in reversed(open_calls) if end <= call.known_end), None)
            if outer is None:
                outer = Call(thread >> 24, thread, start, end, name, callchain_id >= 0)
                calls.append(outer)
                open_calls.append(outer)
            outer.rows.append((correlation_id, start, INFINITE if end is None else end, name))
    return calls


def read_gpu_rows(connection: sqlite3.Connection) -> list[GpuRow]:
    # The device a row means: a process's own ordinal where the export says which GPU that is, else the number itself.
    mapping = {
        (pid, cuda): gpu
        for gpu, cuda, pid in _cells(connection, "TARGET_INFO_CUDA_DEVICE", DEVICE_COLUMNS)
        if all(isinstance(number, int) for number in (gpu, cuda, pid))
    }
    found: list[GpuRow] = []
    for table in ("MEMCPY", "KERNEL", "MEMSET", "GRAPH_TRACE"):
        of_copies = ("contextId", "streamId", "srcKind", "dstKind") if table == "MEMCPY" else ()
        others = ("globalPid", "correlationId", *of_copies)
        rows = _events(connection, f"CUPTI_ACTIVITY_KIND_{table}", ("deviceId",), others)
        for start, end, device, global_pid, correlation_id, *place_and_kinds in rows:
            process = NO_PROCESS if global_pid == NONE else global_pid >> 24
            device = mapping.get((process & 0xFFFFFF, device), device)
            found.append(GpuRow(table, process, device, start, end, correlation_id, *place_and_kinds))
    return found


def join_gpu_rows(calls: list[Call], gpu_rows: list[GpuRow]) -> None:
    launching: dict[tuple[int, int], list[tuple[tuple[int, int, int], Call]]] = defaultdict(list)
    for call in calls:
        for correlation_id, start, known_end, name in call.rows:
            if correlation_id > 0 and not _cannot_launch(name):
                # TIE: rows that begin at once order as calls do, by (start, end, thread).
                launching[call.process, correlation_id].append(((start, known_end, call.thread), call))
    for row in gpu_rows:
        # Of the calls with its id the last that began before the row did; the first where none did.
        candidates = [call for _, call in launching.get((row.process, row.correlation_id), [])]
        begun = [call for call in candidates if call.start <= row.start]
        if candidates:
            # TIE: of calls that begin at once one that never ended is the first: its other row is the last then.
            row.call = max(begun, key=_launch_order) if begun else min(candidates, key=_launch_order)
            row.call.gpu_rows.append(row)


def _launch_order(call: Call) -> tuple[int, int, int]:
    return (call.start, call.start if call.end is None else call.end, call.thread)


def _cannot_launch(name: str) -> bool:
    return name in EXPLICIT or re.match(r"(cuda|cu)(Event|StreamWaitEvent\Z)", name) is not None


def only_asks(name: str) -> bool:
    return re.match(r"(cuda|cu)(\w*(Query|IsCapturing)\Z|(?!Graph)\w*Get[A-Z])", name) is not None


def join_sync_rows(connection: sqlite3.Connection, calls: list[Call]) -> None:
    by_correlation: dict[tuple[int, int], list[tuple[Any, ...]]] = defaultdict(list)
    others = ("globalPid", "correlationId", "contextId", "streamId")
    for start, end, pid, correlation_id, *place in _events(
        connection, "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", (), others
    ):
        if pid != NONE and correlation_id > 0:
            by_correlation[pid >> 24, correlation_id].append((start, end, tuple(place)))
    for call in calls:
        if call.end is None:
            continue
        own_id = call.rows[0][0]
        for start, end, place in by_correlation[call.process, own_id] if own_id > 0 else []:
            if end is not None and call.start <= start and end <= call.end:
                call.sync_rows.append(place)


# ---------------------------------------------------------------------------------------------------- lost events


def lost_events(
    connection: sqlite3.Connection, names: dict[int, str], calls: list[Call], stacks: list[tuple[int, int]]
) -> list[tuple[int, int, int]]:
    """(thread, begin, resumed) of every stretch in which events are missing. `stacks` are (thread, start)."""
    queries: dict[int, list[int]] = defaultdict(list)
    rows: dict[int, list[int]] = defaultdict(list)
    refused = set()
    for table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER"):
        for start, _, thread, name_id in _events(connection, table, ("globalTid",), ("nameId",)):
            if only_asks(base_name(names.get(name_id, "unnamed call"))):
                queries[thread >> 24].append(start)
            else:
                rows[thread].append(start)
        for start, _, thread, value in _events(connection, table, ("globalTid",), ("returnValue",)):
            if value not in (0, NONE):
                refused.add((thread, start))
    synced: dict[int, list[int]] = defaultdict(list)
    for start, _, pid in _events(connection, "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", (), ("globalPid",)):
        synced[pid >> 24].append(start)
    found = []
    for process in {call.process for call in calls}:
        own = sorted((call for call in calls if call.process == process), key=lambda call: call.start)
        kinds = {id(call): "wait" if call.name in EXPLICIT else call.name for call in own if call.has_callchain}
        whole = {kinds[id(call)] for call in own if call.has_callchain and len(call.rows) > 1}
        lone = [
            call
            for call in own
            if call.has_callchain
            and len(call.rows) == 1
            and call.end is not None
            and kinds[id(call)] in whole
            and sum(other.rows[0][0] == call.rows[0][0] for other in own if other.thread == call.thread) == 1
        ]
        has_graphs = any("GraphLaunch" in call.name and finished_rows(call) for call in own)
        while_ids_went_on = [
            (begin, end)
            for begin, end in (_while_ids_went_on(own, queries[process]) if synced[process] else [])
            if not any(begin <= start < end for start in synced[process])
        ]
        for thread in {call.thread for call in own}:
            mine = [call for call in own if call.thread == thread]
            found += [(thread, *stretch) for stretch in _around_lost_launches(mine, own, refused, has_graphs)]
            moments = [call.start for call in lone if call.thread == thread]
            moments += [
                start
                for t, start in stacks
                if t == thread and not any(start <= row <= start + 10_000 for row in (*rows[thread], *queries[process]))
            ]
            found += [(thread, *stretch) for stretch in _around_moments(mine, lone, sorted(moments))]
            found += [(thread, *stretch) for stretch in while_ids_went_on]
    return found


def finished_rows(call: Call) -> list[GpuRow]:
    return [row for row in call.gpu_rows if row.end is not None]


def must_launch(name: str, has_graphs: bool) -> bool:
    pattern = "(cuda|cu)Launch(|Kernel|KernelEx|KernelExC|CooperativeKernel|Grid|GridAsync)"
    return (
        re.fullmatch(pattern, name) is not None
        or is_copy_name(name)
        or (is_memset_name(name) and "Async" not in name)
        or (has_graphs and name in ("cudaGraphLaunch", "cuGraphLaunch"))
    )


def _around_lost_launches(
    mine: list[Call], own: list[Call], refused: set[tuple[int, int]], has_graphs: bool
) -> list[Interval]:
    begins = [call.start for call in own if "StreamBeginCapture" in call.name]
    ends = [call.start for call in own if "StreamEndCapture" in call.name]
    captures = [(begin, min((end for end in ends if end >= begin), default=INFINITE)) for begin in begins]
    stretches: dict[int, int] = {}
    for call in mine:
        if not must_launch(call.name, has_graphs) or finished_rows(call) or (call.thread, call.start) in refused:
            continue
        if call.end is None:
            continue
        own_id = call.rows[0][0]  # of a call that was cut off the two rows can look like two calls
        twins = [other for other in mine if other.start == call.start and other.rows[0][0] == own_id]
        if own_id > 0 and any(map(finished_rows, twins)):
            continue
        if any(begin <= call.start < end for begin, end in captures):
            continue
        later = [other.start for other in mine if finished_rows(other) and other.start > call.start]
        resumed = min(later, default=INFINITE)
        stretches.setdefault(resumed, call.start)
    return [(begin, resumed) for resumed, begin in stretches.items()]


def _around_moments(mine: list[Call], lone: list[Call], moments: list[int]) -> list[Interval]:
    whole = [call for call in mine if call not in lone]
    stretches: dict[int, int] = {}
    for moment in moments:
        resumed = min((other.start for other in whole if other.start > moment), default=INFINITE)
        ended = [other.start if other.end is None else other.end for other in whole if other.start <= moment]
        stretches.setdefault(resumed, min(moment, max(ended, default=moment)))
    return [(begin, resumed) for resumed, begin in stretches.items()]


def _while_ids_went_on(own: list[Call], queries: list[int]) -> list[Interval]:
    by_thread: dict[int, list[Call]] = defaultdict(list)
    for call in own:
        by_thread[call.thread].append(call)
    quiet = [(-INFINITE, INFINITE)]
    for calls in by_thread.values():
        ends = list(accumulate((call.start if call.end is None else call.end for call in calls), max))
        pauses = [(-INFINITE, calls[0].start), (ends[-1], INFINITE)]
        pauses += [
            (end, after.start) for end, after in zip(ends, calls[1:], strict=False) if after.start - end >= 10**6
        ]
        quiet = [piece for start, end in quiet for piece in clip(sorted(pauses), start, end)]
    found = []
    for begin, end in quiet:
        if begin == -INFINITE or end == INFINITE or end - begin < 10**6:
            continue
        before, after = 0, INFINITE
        for calls in by_thread.values():
            earlier = [call.rows[0][0] for call in calls if call.start < begin]
            later = [call.rows[0][0] for call in calls if call.start >= end]
            before = max([before, *earlier[-1:]])
            after = min([after, *(number for number in later[:1] if number > 0)])
        used = after - before - 1
        if before > 0 and after < INFINITE and used > 500:
            used -= sum(begin <= start < end for start in queries)
            if used > 500:
                found.append((begin, end))
    return found


# ---------------------------------------------------------------------------------------------------- operations


def mark_sync_calls(calls: list[Call], gpu_rows: list[GpuRow]) -> None:
    rows_of_process: dict[int, list[GpuRow]] = defaultdict(list)
    for row in gpu_rows:
        rows_of_process[row.process].append(row)
    stops = [call for call in calls if call.name in ("cudaProfilerStop", "cuProfilerStop")]
    for call in calls:
        own_id = call.rows[0][0]
        if own_id > 0 and any(
            stop.thread == call.thread and stop.rows[0][0] == own_id and stop.start <= call.start for stop in stops
        ):
            continue
        call.is_sync = call.end is not None and (
            call.name in EXPLICIT
            or _is_blocking_copy(call)
            or _is_blocking_memset(call)
            or (call.name in FREES and _is_blocking_free(call, rows_of_process[call.process]))
        )


def _is_blocking_copy(call: Call) -> bool:
    if not is_copy_name(call.name):
        return False
    synchronous = "Async" not in call.name
    return any(
        row.table == "MEMCPY" and (synchronous or 0 in (row.src_kind, row.dst_kind)) and row.start < call.known_end
        for row in call.gpu_rows
    )


def _is_blocking_memset(call: Call) -> bool:
    if not is_memset_name(call.name) or "Async" in call.name or not call.gpu_rows:
        return False
    return all(row.known_end <= call.known_end for row in call.gpu_rows)


def _is_blocking_free(call: Call, rows: list[GpuRow]) -> bool:
    pending = []
    for row in rows:
        # TIE: work without length is work too; rows cut off before their end say nothing.
        if row.end is None or row.end <= call.start:
            continue
        submitted = row.start if row.call is None else row.call.start
        if submitted < call.start:
            pending.append(row)
    return bool(pending) and all(row.known_end <= call.known_end for row in pending)


def find_operations(calls: list[Call]) -> list[Operation]:
    by_thread: dict[int, list[Call]] = defaultdict(list)
    for call in calls:
        by_thread[call.thread].append(call)
    operations = []
    for thread_calls in by_thread.values():
        thread_calls.sort(key=lambda call: call.order)
        folded: set[int] = set()
        for first, second in pairwise(thread_calls):
            if _folds(first, second):
                folded |= {id(first), id(second)}
                operations.append(_operation(first, second))
        operations.extend(_operation(call) for call in thread_calls if call.is_sync and id(call) not in folded)
    operations.sort(key=lambda operation: operation.order)
    return operations


def _operation(*calls: Call) -> Operation:
    start, end = min(call.start for call in calls), max(call.known_end for call in calls)
    return Operation(calls[0].process, calls[0].thread, start, end, calls)


def _folds(copy: Call, sync: Call) -> bool:
    if copy.end is None or sync.end is None or not is_copy_name(copy.name) or sync.name not in STREAM_SYNCS:
        return False
    streams = {(row.context, row.stream) for row in copy.gpu_rows if row.table == "MEMCPY"}
    return any(stream in streams for stream in sync.sync_rows)


# ------------------------------------------------------------------------------------------------------- intervals


def union(intervals: list[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for start, end in sorted(interval for interval in intervals if interval[1] > interval[0]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def clip(intervals: list[Interval], start: int, end: int) -> list[Interval]:
    return [(max(a, start), min(b, end)) for a, b in intervals if max(a, start) < min(b, end)]


def subtract(start: int, end: int, holes: list[Interval]) -> list[Interval]:
    """What is left of one interval without sorted, disjoint holes."""
    left, at = [], start
    for hole_start, hole_end in clip(holes, start, end):
        if hole_start > at:
            left.append((at, hole_start))
        at = hole_end
    if at < end:
        left.append((at, end))
    return left


def length(intervals: list[Interval]) -> int:
    return sum(end - start for start, end in intervals)


# ------------------------------------------------------------------------------------------------------ attribution


@dataclass
class Part:
    """A stretch of one device's time with one owner."""

    start: int
    end: int
    kind: str  # busy | stall | host_bound | device_side | profiler | not_captured
    operation: Operation | None = None
    without_launch: bool = False


class DeviceAttribution:
    """One device: its busy time, its gaps, and who owns every nanosecond of them."""

    def __init__(
        self,
        device: int,
        gpu_rows: list[GpuRow],
        operations: list[Operation],
        overhead: list[tuple[int, int, int]],
        lost: list[tuple[int, int, int]],
    ) -> None:
        self.device = device
        self.rows = [row for row in gpu_rows if row.device == device]
        self.activity = [row for row in self.rows if row.has_length]
        processes = {row.process for row in self.rows}
        finished = [row for row in self.rows if row.end is not None]
        launched = [(row.call.thread, row.call.start, row.start) for row in finished if row.call is not None]
        here = {thread for thread, _, _ in launched}
        anywhere = {row.call.thread for row in gpu_rows if row.call is not None}
        stretches = []
        for thread, begin, resumed in lost:
            starts = [start for t, call, start in launched if t == thread and call >= resumed]
            if thread in here:
                stretches.append((begin, min(starts, default=INFINITE)))
            elif thread not in anywhere and thread >> 24 in {t >> 24 for t in here}:
                stretches.append((begin, resumed))
        self.lost = union(stretches)
        self.overhead = union([(start, end) for process, start, end in overhead if process in processes])
        self.busy = union([(row.start, row.known_end) for row in self.activity])
        self.credit = {id(operation): operation.blocked for operation in operations}
        self.operations: dict[int, list[Operation]] = defaultdict(list)
        for operation in operations:
            self.operations[operation.process].append(operation)
        launches = {id(row.call): row.call for row in self.rows if row.call is not None}.values()
        self.starts_by_process: dict[int, list[int]] = defaultdict(list)
        self.starts_by_thread: dict[int, list[int]] = defaultdict(list)
        for call in sorted(launches, key=lambda call: call.start):
            self.starts_by_process[call.process].append(call.start)
            self.starts_by_thread[call.thread].append(call.start)
        self.rows_by_start: dict[int, list[GpuRow]] = defaultdict(list)
        for row in self.activity:
            self.rows_by_start[row.start].append(row)
        self.gaps = [(a[1], b[0]) for a, b in pairwise(self.busy)]
        self.host_late_gaps: list[Interval] = []

    def parts(self) -> list[Part]:
        parts = [Part(start, end, "busy") for start, end in self.busy]
        for start, end in self.gaps:
            parts.extend(Part(a, b, "not_captured") for a, b in clip(self.lost, start, end))
            captured = subtract(start, end, self.lost)
            parts.extend(Part(x, y, "profiler") for a, b in captured for x, y in clip(self.overhead, a, b))
            idle = [piece for a, b in captured for piece in subtract(a, b, self.overhead)]
            launch = self._deciding_launch(end)
            if launch is None:
                parts.extend(Part(a, b, "device_side", without_launch=True) for a, b in idle)
            elif launch.start > start or launch.is_sync:
                self.host_late_gaps.append((start, end))
                for a, b in idle:
                    parts.extend(self._charge(a, b, launch, min(launch.start, end)))
            else:
                parts.extend(Part(a, b, "device_side") for a, b in idle)
        parts.sort(key=lambda part: part.start)
        return parts

    def _deciding_launch(self, gap_end: int) -> Call | None:
        launches = [row.call for row in self.rows_by_start[gap_end] if row.call is not None]
        return min(launches, key=lambda call: call.order) if launches else None

    def _charge(self, start: int, end: int, launch: Call, launched: int) -> list[Part]:
        """Charge one idle stretch of a host-late gap, cut where operations begin inside it."""
        operations = self.operations[launch.process]
        cuts = sorted({start, end, *(o.start for o in operations if start < o.start < end)})
        parts = []
        for a, b in pairwise(cuts):
            at = a
            for operation in reversed(operations):
                if at == b:
                    break
                credit = self.credit[id(operation)]
                if operation.start > a or credit == 0:
                    continue
                if not self._answers_for(operation, launch, launched) or self._lapsed(operation, launch, launched):
                    continue
                taken = min(credit, b - at)
                self.credit[id(operation)] -= taken
                parts.append(Part(at, at + taken, "stall", operation))
                at += taken
            if at < b:
                parts.append(Part(at, b, "host_bound"))
        return parts

    def _answers_for(self, operation: Operation, launch: Call, launched: int) -> bool:
        """On the launching thread itself, or on a thread that has handed over to it."""
        if operation.thread == launch.thread:
            return True
        mine = self.starts_by_thread[launch.thread]
        after = bisect_right(mine, operation.start)
        if after == len(mine):
            return True
        first, last = mine[after], launched
        theirs = self.starts_by_thread[operation.thread]
        return bisect_right(theirs, last) - bisect_left(theirs, first) <= 0

    def _lapsed(self, operation: Operation, launch: Call, launched: int) -> bool:
        starts = self.starts_by_process[launch.process]
        return bisect_left(starts, launched) - bisect_right(starts, operation.end) >= LAUNCH_QUEUE_DEPTH


def oracle(
    path: str | Path, time_range: Interval | None = None, stacks: list[tuple[int, int]] | None = None
) -> OracleResult:
    """`stacks` are (globalTid, start) of the Python stacks of CUDA calls: to decode them is not the oracle's matter."""
    stacks = stacks or []
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    connection.text_factory = lambda text: text.decode("utf-8", "replace")
    try:
        names = _strings(connection)
        calls = read_calls(connection, names)
        gpu_rows = read_gpu_rows(connection)
        join_gpu_rows(calls, gpu_rows)
        join_sync_rows(connection, calls)
        overhead = [
            (thread >> 24, start, end)
            for start, end, thread, name_id in _events(connection, "PROFILER_OVERHEAD", ("globalTid",), ("nameId",))
            if names.get(name_id, "").strip().lower() != "unknown" and end is not None
        ]
        lost = lost_events(connection, names, calls, stacks)
    finally:
        connection.close()

    mark_sync_calls(calls, gpu_rows)
    operations = find_operations(calls)
    devices = {}
    for device in sorted({row.device for row in gpu_rows if row.has_length}):
        attribution = DeviceAttribution(device, gpu_rows, operations, overhead, lost)
        parts = attribution.parts()
        processes = {row.process for row in attribution.rows}
        _add_idle_within(parts, [o for o in operations if o.process in processes])
        devices[device] = _sum(device, parts, attribution, time_range)
    return OracleResult(operations, devices, calls)


def _add_idle_within(parts: list[Part], operations: list[Operation]) -> None:
    for operation in operations:
        for part in parts:
            if part.kind not in ("busy", "profiler", "not_captured"):
                overlap = min(part.end, operation.end) - max(part.start, operation.start)
                operation.idle_within += max(0, overlap)


def _sum(device: int, parts: list[Part], attribution: DeviceAttribution, time_range: Interval | None) -> Device:
    """Add up the parts. A range clips the finished attribution; what it holds beyond the activity is outside."""
    first, last = attribution.busy[0][0], attribution.busy[-1][1]
    start, end = time_range or (first, last)
    result = Device(device, window=end - start)
    covered = 0
    for part in parts:
        size = min(part.end, end) - max(part.start, start)
        if size <= 0:
            continue
        covered += size
        setattr(result, part.kind, getattr(result, part.kind) + size)
        if part.kind in ("stall", "host_bound"):
            result.host_late += size
        if part.without_launch:
            result.device_side_without_launch += size
        if part.operation is not None:
            part.operation.stall[device] += size
    result.outside = result.window - covered
    result.gaps = len(clip(attribution.gaps, start, end))
    result.host_late_gaps = len(clip(attribution.host_late_gaps, start, end))
    return result
