"""Hypothesis strategies for whole traces. Times are small integers, so ties and abutting intervals are the rule.

A trace is drawn as a `Plan` (small, printable, shrinks well); `plan.build()` turns it into a `TraceBuilder`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from trace_builder import SCHEMAS, ProcessBuilder, Table, ThreadBuilder, TraceBuilder

DEVICES = (0, 1)
STREAMS = (7, 13)
CONTEXTS = (1, 2)
BETWEEN: tuple[tuple[str, ...], ...] = (
    (),
    (),
    ("cudaEventQuery_v3020",),
    ("cudaStreamIsCapturing_v10000",),
    ("cudaStreamIsCapturing_v10000", "cudaStreamQuery_v3020"),
    ("cudaEventRecord_v3020",),
)
"""What a thread may do between a copy and the synchronize after it: only the last keeps them apart."""
OVERHEADS = ("CUPTI: Buffer flush", "CUDA profiling data flush on cudaProfilerStop", "TLS allocation", "Unknown")


@dataclass(frozen=True)
class Gpu:
    """GPU rows relative to the start of their call: (delay, length or None)."""

    spans: tuple[tuple[int, int | None], ...]
    device: int = 0
    stream: int = 7
    context: int = 1

    def absolute(self, start: int) -> list[tuple[int, int | None]]:
        return [(start + at, None if size is None else start + at + size) for at, size in self.spans]

    @property
    def place(self) -> dict[str, Any]:
        return {"device": self.device, "stream": self.stream, "context": self.context}


@dataclass(frozen=True)
class Step:
    """One call of a thread: begun `wait` after the one before ended, `length` long (None: never finished)."""

    action: str
    wait: int = 0
    length: int | None = 1
    gpu: Gpu | None = None
    options: dict[str, Any] = field(default_factory=dict)
    backtrace: bool = False
    reuse: int | None = None
    """Take the correlation id of the call of this process that was written so many calls ago."""
    inner: tuple[Step, ...] = ()
    """Calls traced inside this one; what sticks out is cut off."""


@dataclass(frozen=True)
class ThreadPlan:
    start: int
    steps: tuple[Step, ...]
    overhead: tuple[tuple[int, int | None, str], ...] = ()


@dataclass(frozen=True)
class ProcessPlan:
    threads: tuple[ThreadPlan, ...]
    orphans: tuple[tuple[Table, Gpu, int], ...] = ()
    """GPU rows without a launch call: table, place, time."""


@dataclass(frozen=True)
class Plan:
    schema: str
    processes: tuple[ProcessPlan, ...]
    shuffle: int | None = None

    def build(self) -> TraceBuilder:
        trace = TraceBuilder(self.schema)
        for number, process_plan in enumerate(self.processes):
            pid = 100 * (number + 1)
            process = trace.process(pid)
            used: list[int] = []
            for index, thread_plan in enumerate(process_plan.threads):
                thread = process.thread(pid + index)
                clock = thread_plan.start
                for step in thread_plan.steps:
                    clock = _write_step(process, thread, step, clock, None, used)
                for start, end, name in thread_plan.overhead:
                    thread.overhead(start, end, name)
            for table, gpu, at in process_plan.orphans:
                extra = {"graphId": 1, "graphExecId": 1} if table == "GRAPH_TRACE" else {}
                for span in gpu.absolute(at):
                    process.gpu_row(table, span, **gpu.place, **extra)
        return trace


def _write_step(
    process: ProcessBuilder, thread: ThreadBuilder, step: Step, clock: int, limit: int | None, used: list[int]
) -> int:
    """Write one call and those inside it; returns when the thread goes on."""
    start = clock + step.wait
    end = None if step.length is None else start + step.length
    if limit is not None:
        start = min(start, limit)
        end = limit if end is None else min(end, limit)
    options: dict[str, Any] = dict(step.options)
    if step.backtrace and end is not None and end > start:
        options["backtrace"] = True
        options["inner"] = (start, end) if end - start < 3 else (start + 1, end - 1)
    if step.reuse is not None and step.reuse < len(used):
        options["correlation"] = used[-1 - step.reuse]
    else:
        options["correlation"] = process.correlation()
    used.append(options["correlation"])
    spans = None if step.gpu is None else step.gpu.absolute(start)
    place: dict[str, Any] = {} if step.gpu is None else step.gpu.place
    match step.action:
        case "launch":
            thread.launch(start, end, spans, **place, **_without_backtrace(options))
        case "graph":
            thread.graph_launch(start, end, spans, **place, **options)
        case "copy":
            thread.copy(start, end, spans, **place, **options)
        case "memset":
            thread.memset(start, end, spans, **place, **options)
        case "stream_sync":
            thread.stream_sync(start, end, **options)
        case "device_sync":
            thread.device_sync(start, end, **options)
        case "event_sync":
            thread.event_sync(start, end, **options)
        case "free":
            thread.free(start, end, **options)
        case name:
            thread.api(name, start, end, **options)
    if end is not None and step.inner:
        at = start
        for inner in step.inner:
            at = _write_step(process, thread, inner, at, end, used)
    return start + 1 if end is None else end


def _without_backtrace(options: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key not in ("backtrace", "inner")}


# ---------------------------------------------------------------------------------------------------- ordinary traces

small = st.integers(0, 4)
lengths = st.integers(0, 12)


def gpu_spans(most: int = 2) -> st.SearchStrategy[tuple[tuple[int, int | None], ...]]:
    size = st.one_of(lengths, lengths, lengths, st.just(0), st.none(), st.integers(-3, -1))
    span = st.tuples(st.integers(-2, 25), size)
    return st.lists(span, min_size=1, max_size=most).map(tuple)


def gpu_work(most: int = 2) -> st.SearchStrategy[Gpu]:
    return st.builds(
        Gpu, gpu_spans(most), st.sampled_from(DEVICES), st.sampled_from(STREAMS), st.sampled_from(CONTEXTS)
    )


call_lengths = st.one_of(st.integers(1, 12), st.integers(1, 12), st.integers(1, 12), st.integers(20, 40), st.none())
rare = st.sampled_from([None, None, None, None, None, 0, 1, 3])
memory_kinds = st.sampled_from(["pageable", "pinned"])


@st.composite
def copies(draw: st.DrawFn) -> Step:
    kind = draw(st.sampled_from(["DtoH", "HtoD", "DtoD"]))
    options: dict[str, Any] = {"kind": kind, "sync": draw(st.booleans())}
    if kind == "DtoH":
        options["dst"] = draw(memory_kinds)
    elif kind == "HtoD":
        options["src"] = draw(memory_kinds)
    name = draw(st.sampled_from([None, None, None, "cuMemcpyDtoHAsync_v2", "cuMemcpyHtoD_v2", "cudaMemcpy2D_v3020"]))
    if name is not None:
        options["name"] = name
    gpu = draw(st.one_of(gpu_work(1), gpu_work(1), gpu_work(2), st.none()))
    return Step("copy", draw(small), draw(call_lengths), gpu, options, draw(st.booleans()), draw(rare))


@st.composite
def stream_syncs(draw: st.DrawFn) -> Step:
    options: dict[str, Any] = {"stream": draw(st.sampled_from(STREAMS)), "context": draw(st.sampled_from(CONTEXTS))}
    suffix = draw(st.sampled_from([None, None, None, "cuStreamSynchronize", "cudaStreamSynchronize_ptsz_v7000"]))
    if suffix is not None:
        options["name"] = suffix
    if draw(st.integers(0, 9)) == 0:
        options["row"] = None
    return Step("stream_sync", draw(small), draw(call_lengths), None, options, draw(st.booleans()), draw(rare))


@st.composite
def copy_then_sync(draw: st.DrawFn) -> tuple[Step, ...]:
    """A copy, perhaps a query or a capture check, and a stream synchronize, of the same stream or of another."""
    copy, sync = draw(copies()), draw(stream_syncs())
    sync_place = draw(st.sampled_from(["same", "same", "same", "other context", "other stream", "any"]))
    if copy.gpu is not None and sync_place != "any":
        stream, context = copy.gpu.stream, copy.gpu.context
        if sync_place == "other context":
            context = 3 - context
        if sync_place == "other stream":
            stream = 20 - stream
        options = sync.options | {"stream": stream, "context": context}
        sync = Step("stream_sync", sync.wait, sync.length, None, options, sync.backtrace, sync.reuse)
    between = draw(st.sampled_from(BETWEEN))
    return (copy, *(Step(name, 0, 1) for name in between), sync)


others = st.builds(
    Step,
    st.sampled_from(
        [
            "device_sync",
            "event_sync",
            "free",
            "free",
            "cudaMalloc_v3020",
            "cudaEventDestroy_v3020",
            "cudaStreamWaitEvent_v3020",
            "cudaStreamQuery_v3020",
            "cuMemFree_v2",
            "cudaFreeHost_v3020",
            "cuCtxSynchronize",
        ]
    ),
    small,
    call_lengths,
    st.none(),
    st.just({}),
    st.booleans(),
    rare,
)
launches = st.builds(
    Step,
    st.just("launch"),
    small,
    call_lengths,
    gpu_work(),
    st.fixed_dictionaries({"driver": st.sampled_from([None, None, None, "same", "own"])}),
    st.just(False),
    rare,
)
graphs = st.builds(
    Step, st.just("graph"), small, call_lengths, gpu_work(), st.just({"whole": True}), st.booleans(), rare
)
memsets = st.builds(
    Step,
    st.just("memset"),
    small,
    call_lengths,
    st.one_of(gpu_work(), st.none()),
    st.fixed_dictionaries({"sync": st.booleans()}),
    st.booleans(),
    rare,
)
plain = st.one_of(launches, launches, launches, copies(), stream_syncs(), others, graphs, memsets)
nested = st.builds(
    lambda outer, inner: Step(
        outer.action, outer.wait, outer.length, outer.gpu, outer.options, False, outer.reuse, tuple(inner)
    ),
    plain,
    st.lists(st.one_of(plain, st.builds(Step, st.just("cuStreamSynchronize"), small, st.integers(1, 6))), max_size=2),
)
steps = st.lists(
    st.one_of(
        plain.map(lambda s: (s,)),
        plain.map(lambda s: (s,)),
        copy_then_sync(),
        nested.map(lambda s: (s,)),
    ),
    max_size=8,
).map(lambda groups: tuple(step for group in groups for step in group))
overheads = st.lists(
    st.tuples(st.integers(-5, 60), st.integers(0, 15), st.sampled_from(OVERHEADS)).map(
        lambda o: (o[0], o[0] + o[1], o[2])
    ),
    max_size=2,
).map(tuple)
threads = st.builds(ThreadPlan, st.integers(-20, 30), steps, overheads)
orphans = st.lists(
    st.tuples(st.sampled_from(["KERNEL", "MEMCPY", "MEMSET"]), gpu_work(), st.integers(-20, 60)), max_size=2
).map(tuple)
processes = st.builds(ProcessPlan, st.lists(threads, min_size=1, max_size=3).map(tuple), orphans)
shuffles = st.one_of(st.none(), st.integers(0, 99))


def _for_schema(plan: Plan) -> Plan:
    """The old export leaves whole graphs out, so there they are written by node."""
    if plan.schema != "3.7.2":
        return plan

    def by_node(step: Step) -> Step:
        options = step.options | {"whole": False} if step.action == "graph" else step.options
        inner = tuple(by_node(s) for s in step.inner)
        return Step(step.action, step.wait, step.length, step.gpu, options, step.backtrace, step.reuse, inner)

    changed = tuple(
        ProcessPlan(
            tuple(ThreadPlan(t.start, tuple(by_node(s) for s in t.steps), t.overhead) for t in process.threads),
            process.orphans,
        )
        for process in plan.processes
    )
    return Plan(plan.schema, changed, plan.shuffle)


plans = st.builds(Plan, st.sampled_from(SCHEMAS), st.lists(processes, min_size=1, max_size=3).map(tuple), shuffles).map(
    _for_schema
)
"""Anything at all: the whole list of oddities."""

# The same on one device and one stream with longer programs: more gaps, more credit to hand out.
one_place = st.builds(Gpu, st.lists(st.tuples(st.integers(0, 6), st.integers(1, 5)), min_size=1, max_size=2).map(tuple))
dense_steps = st.lists(
    st.one_of(
        st.builds(Step, st.just("launch"), st.integers(0, 9), st.integers(1, 3), one_place),
        st.builds(Step, st.just("launch"), st.integers(0, 9), st.integers(1, 3), one_place),
        st.builds(Step, st.just("stream_sync"), small, st.integers(1, 15), st.none(), st.just({"stream": 7})),
        st.builds(
            Step,
            st.just("copy"),
            small,
            st.integers(1, 9),
            one_place,
            st.fixed_dictionaries({"kind": st.just("DtoH"), "dst": memory_kinds}),
        ),
        st.builds(Step, st.sampled_from(["free", "device_sync", "memset"]), small, st.integers(1, 9), one_place),
    ),
    min_size=5,
    max_size=14,
).map(tuple)
dense_threads = st.builds(ThreadPlan, st.integers(-3, 20), dense_steps, overheads)
dense_plans = st.builds(
    Plan,
    st.sampled_from(SCHEMAS),
    st.lists(
        st.builds(ProcessPlan, st.lists(dense_threads, min_size=1, max_size=3).map(tuple), orphans),
        min_size=1,
        max_size=2,
    ).map(tuple),
    shuffles,
)
"""Several threads of one process on one stream: credit, order and handing over."""

ranges = st.tuples(st.integers(-25, 90), st.integers(1, 60)).map(lambda r: (r[0], r[0] + r[1]))


# ------------------------------------------------------------------------------------- traces with deep launch queues


@st.composite
def lapse_plans(draw: st.DrawFn) -> Plan:
    """Waits, each followed by a burst of tiny launches about as long as the launch queue is deep, then late work."""
    schema = draw(st.sampled_from(SCHEMAS))
    two_threads, two_processes = draw(st.booleans()), draw(st.booleans())
    first: list[Step] = [Step("launch", 0, 1, Gpu(((1, 30),)))]
    for _ in range(draw(st.integers(1, 2))):
        first.append(Step("stream_sync", draw(small), draw(st.integers(30, 60)), options={"stream": 7}))
        strays = draw(st.integers(0, 4))
        # The first begins with the end of the wait, and those on the other device do not count.
        burst = 1024 + max(strays, 1) + draw(st.integers(-3, 1))
        size = draw(st.sampled_from([0, 1, 1, 2]))
        for number in range(burst):
            device = 1 if number < strays else 0
            spans = ((1, size), (2, size)) if number % 300 == 7 else ((1, size),)
            first.append(Step("launch", 0, 1, Gpu(spans, device=device)))
        first.append(Step("launch", draw(st.integers(0, 12)), 1, Gpu(((2, draw(st.integers(1, 5))),))))
        late = draw(st.lists(st.tuples(st.integers(2, 12), st.integers(1, 5)), max_size=4))
        first.extend(Step("launch", wait, 1, Gpu(((1, size),))) for wait, size in late)
    threads_of_first = [ThreadPlan(0, tuple(first))]
    if two_threads:
        threads_of_first.append(draw(threads))
    processes_drawn = [ProcessPlan(tuple(threads_of_first))]
    if two_processes:
        processes_drawn.append(ProcessPlan((draw(threads),)))
    return _for_schema(Plan(schema, tuple(processes_drawn)))
