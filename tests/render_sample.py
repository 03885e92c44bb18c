"""Hand-made results for the render tests: a real capture's figures, a hostile one, and a large one."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from nsys_sync.model import (
    OPERATION_COLUMNS,
    SCHEMA_VERSION,
    STACKS_KEPT,
    Advice,
    Analysis,
    Cause,
    CauseText,
    Coverage,
    Dependency,
    DependencyKind,
    Device,
    Diagnostic,
    Distribution,
    Example,
    Frame,
    HiddenWait,
    HostCall,
    HostLine,
    HostWork,
    Kind,
    Location,
    Merge,
    NativeFrame,
    NvtxShare,
    Omitted,
    Polling,
    Process,
    ProcessShare,
    RankShare,
    Region,
    Site,
    SiteSteps,
    SourceLine,
    Span,
    Startup,
    Step,
    Steps,
    ThreadShare,
    Timeline,
    TraceReport,
    Zoom,
)

WINDOW_NS = 633_927_493
START_NS = 2_104_000_123
ATTACK = "</script><img src=x onerror=alert(1)>"

_NATIVE = (
    NativeFrame("cuStreamSynchronize", "libcuda.so.1"),
    NativeFrame("cudaStreamSynchronize", "libcudart.so.13"),
    NativeFrame("at::native::_local_scalar_dense_cuda(at::Tensor const&)", "libtorch_cuda.so"),
    NativeFrame("at::_ops::item::call(at::Tensor const&)", "libtorch_cpu.so"),
    NativeFrame("THPVariable_item(_object*, _object*)", "libtorch_python.so"),
    NativeFrame("_PyEval_EvalFrameDefault", "python3.12"),
)

CAUSES = (
    CauseText(
        "scalar",
        "one number is read",
        "The value lives on the GPU. To hand it to Python, the CPU waits until all work queued before it is done.",
        False,
    ),
    CauseText(
        "pageable-upload",
        "copy from pageable memory",
        "The driver first copies pageable memory into a buffer of its own, and the call returns only then.",
        False,
    ),
    CauseText("clip", "gradient norm is read", "`clip_grad_norm_` compares the norm on the CPU.", False),
    CauseText("download", "tensor is copied to the CPU", "A copy into pageable memory returns when it is done.", False),
    CauseText(
        "mask-index",
        "boolean mask as index",
        "How many elements the mask selects is the size of the result, so the CPU has to know it.",
        True,
    ),
    CauseText("synchronize", "explicit synchronize", "The program asks to wait for everything queued.", False),
    CauseText("unknown", "cause not known", "Neither the trace nor the source tells.", False),
)
ADVICE = (
    Advice(
        "read-later",
        "Keep the loss on the GPU and read it once, after the loop",
        "Summing on the GPU queues one small kernel; only the read at the end waits.",
        "for x in loader:\n    loss = step(x)\n    total += loss.item()",
        "total = torch.zeros((), device='cuda')\nfor x in loader:\n    total += step(x).detach()\nprint(total.item())",
        "The graph of each step is kept alive without `.detach()`.",
        "https://docs.pytorch.org/docs/stable/generated/torch.Tensor.item.html",
    ),
    Advice(
        "read-seldom",
        "Read it only every 100 steps",
        "Most of the values are never looked at.",
        "print(loss.item())",
        "if step % 100 == 0:\n    print(loss.item())",
        None,
        "https://docs.pytorch.org/docs/stable/generated/torch.Tensor.item.html",
    ),
    Advice(
        "pin-memory",
        "Upload from pinned memory, without blocking",
        "`pin_memory=True` on the DataLoader and `non_blocking=True` on the copy let the CPU go on.",
        "loader = DataLoader(data, batch_size=64)\nx = x.to('cuda')",
        "loader = DataLoader(data, batch_size=64, pin_memory=True)\nx = x.to('cuda', non_blocking=True)",
        None,
        "https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html",
    ),
    Advice(
        "where",
        "Replace the mask by `torch.where`",
        "The result keeps its shape, so nothing has to be counted.",
        "s = x[x > 0].sum()",
        "s = torch.where(x > 0, x, 0).sum()",
        None,
        "https://docs.pytorch.org/docs/stable/generated/torch.where.html",
    ),
    Advice(
        "drop-synchronize",
        "Remove `torch.cuda.synchronize()` outside of measurements",
        "Whatever reads a result waits for it anyway.",
        "torch.cuda.synchronize()",
        "pass",
        "Times measured on the CPU then no longer contain the GPU's work.",
        "https://docs.pytorch.org/docs/stable/generated/torch.cuda.synchronize.html",
    ),
)
NO_CAUSE = Cause("unknown", "open", ())
NO_DEPENDENCY = Dependency("unknown", "", "open", ())
SOURCE_BASIS = "the file as it is now, not changed since the capture"


def empty_operations() -> pa.Table:
    return pa.table({name: pa.array([], pa.string()) for name in OPERATION_COLUMNS})


def distribution(total: int, calls: int) -> Distribution:
    mean = total / calls
    return Distribution(total, mean, int(mean), int(mean * 1.6), int(mean * 2.5))


def make_site(
    rank: int,
    function: str,
    line: int,
    stall: int | None,
    *,
    file: str = "~/work/train/gpu_bound.py",
    calls: int = 40,
    blocked: int = 120_000_000,
    kind: str = ".item() (DtoH copy, pinned, then cudaStreamSynchronize)",
    operation: str = ".item()",
    stack: tuple[int, ...] = (0, 1, 2),
    native: tuple[int, ...] = (0, 1, 2, 3, 4, 5),
    trace: str = "gpu_bound.sqlite",
    steps: int = 20,
    cause: Cause = NO_CAUSE,
    dependency: Dependency = NO_DEPENDENCY,
    advice: tuple[str, ...] = (),
    source: str | None = None,
) -> Site:
    known = stall is not None
    per_call = 0 if stall is None else stall // calls
    return Site(
        id=f"site{rank:04d}",
        location=Location(f"{function} {file}:{line}", function, file, line),
        kind=Kind(kind, ("cudaMemcpyAsync", "cudaStreamSynchronize"), "DtoH", "Device", "Pinned", operation),
        cause=cause,
        dependency=dependency,
        advice=advice,
        source=None if source is None else SourceLine(source, SOURCE_BASIS),
        redundant_calls=None,
        calls=calls,
        stall=None if stall is None else distribution(stall, calls),
        stall_ratio=None if stall is None else stall / WINDOW_NS,
        blocked=distribution(blocked, calls),
        idle_within_ns=per_call * calls // 2 if known else None,
        startup_calls=1,
        startup_stall_ns=per_call if known else None,
        located_by=(("exact stack", calls - 1), ("python sample", 1)),
        processes=(ProcessShare(trace, 4242, "python3", calls, stall, blocked),),
        threads=(ThreadShare(trace, 4242, 4242, "MainThread", calls),),
        nvtx_ranges=(NvtxShare("step *", calls - 1),),
        ranks=(RankShare(trace, calls, stall, blocked),),
        per_step=SiteSteps(
            steps,
            steps,
            calls / steps,
            3,
            stall / steps if stall is not None else None,
            per_call if known else None,
            per_call * 2 if known else None,
            per_call * 3 if known else None,
            blocked / steps,
        ),
        python_stack=stack,
        native_stack=native,
        stack_omitted=False,
        stack_variants=2,
        examples=(
            Example(
                trace,
                START_NS + 5_000_000,
                START_NS + 8_100_000,
                per_call * 2 if known else None,
                4242,
                4242,
                1007 + rank,
            ),
            Example(
                trace, START_NS + 105_000_000, START_NS + 107_700_000, per_call if known else None, 4242, 4242, None
            ),
        ),
        stall_quantiles_ns=tuple(per_call * q // 10 for q in range(21)) if known else (),
    )


def make_device(**changes: object) -> Device:
    bins = 200
    length = WINDOW_NS / bins
    pattern = [0.62, 0.9, 1.0, 0.97, 0.78, 1.0, 0.95, 0.55, 0.88, 1.0]
    busy = [int(length * pattern[i % 10]) for i in range(bins)]
    rest = [int(length) - b for b in busy]
    stall = [int(r * 0.94) for r in rest]
    side = [r - s for r, s in zip(rest, stall, strict=True)]
    zoom_start = START_NS + 200_000_000
    spans = []
    for k in range(6):
        at = zoom_start + k * 5_200_000
        spans += [
            Span("busy", at, at + 4_000_000, None),
            Span("stall", at + 4_000_000, at + 4_900_000, None),
            Span("device-side", at + 4_900_000, at + 5_000_000, None),
            Span("operation", at + 1_000_000, at + 4_200_000, k % 5),
        ]
    device = Device(
        id=0,
        name="NVIDIA H200",
        processes=(4242,),
        window_start_ns=START_NS,
        window_ns=WINDOW_NS,
        busy_ns=530_056_486,
        communication_ns=0,
        idle_ns=97_628_562 + 5_967_859,
        stall_ns=97_628_562,
        host_bound_ns=0,
        device_side_ns=5_967_859,
        device_side_without_launch_ns=0,
        profiler_ns=274_586,
        not_captured_ns=0,
        outside_ns=0,
        startup_stall_ns=1_200_000,
        startup_host_bound_ns=0,
        gaps=3120,
        host_late_gaps=211,
        refused=None,
        timeline=Timeline(
            START_NS,
            length,
            tuple(busy),
            (0,) * bins,
            tuple(stall),
            (0,) * bins,
            tuple(side),
            (0,) * bins,
            (0,) * bins,
            tuple(int(length * 0.7) for _ in range(bins)),
        ),
        zoom=Zoom("step 11 of 20", zoom_start, zoom_start + 31_200_000, tuple(spans)),
    )
    return replace(device, **changes)  # type: ignore[arg-type]


def make_trace(name: str = "gpu_bound.sqlite", devices: tuple[Device, ...] | None = None) -> TraceReport:
    return TraceReport(
        name=name,
        nsys_version="2023.4.4.54-234433681190v0",
        schema_version="3.7.2",
        capture_start_utc="2025-11-20T10:11:12Z",
        devices=(make_device(),) if devices is None else devices,
        processes=(Process(4242, "python3", 5000, 201),),
        startup=(Startup(4242, START_NS + 12_345_678, "first step begins"),),
        steps=Steps(
            "step *",
            False,
            0,
            tuple(
                Step(
                    f"step {i}",
                    4242,
                    START_NS + i * 31_000_000,
                    START_NS + (i + 1) * 31_000_000,
                    10,
                    25_000_000,
                    26_000_000,
                    4_800_000,
                    0,
                )
                for i in range(20)
            ),
        ),
        regions=(
            Region("step *", 20, 200, 190, 20, ("site0001", "site0003")),
            Region("warm-up", 2, 5, 0, 1, ("site0002",)),
            Region("forward", 20, 0, 0, 0, ()),
            Region("optimizer", 20, 0, 0, 0, ()),
        ),
        host_work=None,
        polling=(),
        coverage=Coverage(
            operations=201,
            located_by=(("exact stack", 196), ("python sample", 5)),
            not_captured=("stacks of synchronous copies: --cudabacktrace was sync only",),
            warnings=("Tracing slowed launches: 12 launches ran during a buffer flush",),
            diagnostics=(Diagnostic("warning", "Unknown runtime API function index: 490"),),
            processes_without_gpu_rows=(Process(4300, "pt_data_worker", 0, 0),),
            graph_launches_without_gpu_work=0,
            unfinished_calls=0,
            unfinished_gpu_rows=0,
            unfinished_waits=0,
            lost_events=None,
            lost_beyond_window=False,
        ),
    )


def gpu_bound() -> Analysis:
    sites = (
        make_site(
            1,
            "read_loss",
            28,
            53_282_752,
            blocked=310_000_000,
            cause=Cause("scalar", "certain", ("native frame `_local_scalar_dense_cuda`",)),
            dependency=Dependency("false", "", "likely", ("only summed and printed: `total += loss.item()`",)),
            advice=("read-later", "read-seldom"),
            source="total += loss.item()",
        ),
        make_site(
            2,
            "upload",
            23,
            18_595_725,
            blocked=31_000_000,
            kind='.to("cuda") (HtoD, pageable)',
            operation='.to("cuda")',
            cause=Cause("pageable-upload", "certain", ("the copy's source is pageable memory",)),
            dependency=Dependency("false", "", "certain", ("an upload gives the CPU nothing to read",)),
            advice=("pin-memory",),
            source='x = batch.to("cuda")',
        ),
        make_site(
            3,
            "clip",
            40,
            14_419_919,
            blocked=120_000_000,
            kind="float(t)",
            operation="float(t)",
            cause=Cause("scalar", "certain", ("native frame `_local_scalar_dense_cuda`",)),
            dependency=Dependency("true", "control flow", "certain", ("`if norm > 1.0:` in line 41",)),
            advice=("read-later", "read-seldom"),
            source="norm = float(total_norm)",
        ),
        make_site(
            4,
            "download",
            45,
            10_644_425,
            blocked=44_000_000,
            kind=".cpu() (DtoH, pageable)",
            operation=".cpu()",
            cause=Cause("download", "likely", ()),
        ),
        make_site(
            5,
            "sum_positive",
            34,
            685_741,
            blocked=9_000_000,
            kind="x[mask]",
            operation="x[mask]",
            cause=Cause("mask-index", "certain", ("native frame `nonzero_cuda`",)),
            dependency=Dependency("true", "dynamic shape", "certain", ("the result is as long as the mask has ones",)),
            advice=("where",),
            source="return x[x > 0].sum()",
        ),
        replace(
            make_site(
                6,
                "main",
                69,
                0,
                calls=1,
                blocked=2_000_000,
                kind="torch.cuda.synchronize()",
                operation="torch.cuda.synchronize()",
                cause=Cause("synchronize", "certain", ()),
                dependency=Dependency("explicit", "", "certain", ("`torch.cuda.synchronize()`",)),
                advice=("drop-synchronize",),
                source="torch.cuda.synchronize()",
            ),
            redundant_calls=1,
        ),
    )
    return Analysis(
        schema_version=SCHEMA_VERSION,
        tool_version="0.1.0",
        selection=None,
        traces=(make_trace(),),
        window_ns=WINDOW_NS,
        stall_ns=97_628_562,
        sites=sites,
        omitted=None,
        causes=CAUSES,
        advice=ADVICE,
        merges=(Merge(("site0001", "site0003"), 20, 60),),
        frames=(
            Frame("read_loss", "~/work/train/gpu_bound.py", 28, True),
            Frame("step", "~/work/train/gpu_bound.py", 61, True),
            Frame("_run_code", "/usr/lib/python3.12/runpy.py", 88, False),
        ),
        native_frames=_NATIVE,
        operations=empty_operations(),
    )


def host_work() -> HostWork:
    """142 ms: two lines of data loading and one of Python by samples, pinned allocations by their calls."""
    return HostWork(
        host_bound_ns=142_000_000,
        samples=123,
        sampling_period_ns=1_000_000,
        lines=(
            HostLine(
                Location("next_batch ~/w/load.py:12", "next_batch", "~/w/load.py", 12),
                "data loading",
                None,
                57,
                65_804_878,
            ),
            HostLine(
                Location("augment ~/w/load.py:31", "augment", "~/w/load.py", 31),
                "data loading",
                "randn numpy/random/mtrand.py:10",
                40,
                46_178_862,
            ),
            HostLine(Location("main ~/w/train.py:80", "main", "~/w/train.py", 80), "Python", None, 26, 30_016_260),
        ),
        not_sampled=None,
        calls=(HostCall("cudaHostAlloc", None, 12, 31_200_000), HostCall("cuModuleLoadData", None, 1, 2_000_000)),
        hidden_waits=(
            HiddenWait(Location("fit ~/w/fit.py:9", "fit", "~/w/fit.py", 9), "block_until_ready", 12, 12_000_000),
        ),
    )


def host_bound() -> Analysis:
    """A loop that waits for its data: `gpu_bound` with 142 ms of host-bound time, explained."""
    device = make_device(busy_ns=388_056_486, host_bound_ns=142_000_000, idle_ns=245_596_421)
    trace = replace(make_trace("host_bound.sqlite", (device,)), host_work=host_work())
    return replace(gpu_bound(), traces=(trace,))


def unexplained() -> Analysis:
    """What an analysis without causes gives: every cause open, nothing to advise."""
    base = gpu_bound()
    sites = tuple(
        replace(site, cause=NO_CAUSE, dependency=NO_DEPENDENCY, advice=(), source=None, redundant_calls=None)
        for site in base.sites
    )
    trace = replace(base.traces[0], regions=())
    return replace(base, traces=(trace,), sites=sites, causes=CAUSES[-1:], advice=(), merges=())


def refused() -> Analysis:
    """A graph capture whose export lost the graphs: no idle figure at all."""
    device = make_device(
        idle_ns=None,
        stall_ns=None,
        host_bound_ns=None,
        device_side_ns=None,
        device_side_without_launch_ns=None,
        profiler_ns=None,
        not_captured_ns=None,
        startup_stall_ns=None,
        startup_host_bound_ns=None,
        gaps=None,
        host_late_gaps=None,
        zoom=None,
        refused="50 CUDA graph launches have no GPU work here: re-export with a newer nsys, or capture by node",
        timeline=Timeline(
            START_NS,
            WINDOW_NS / 4,
            (WINDOW_NS // 8,) * 4,
            (0,) * 4,
            (0,) * 4,
            (0,) * 4,
            (0,) * 4,
            (0,) * 4,
            (WINDOW_NS // 8,) * 4,
            (0,) * 4,
        ),
    )
    sites = (make_site(1, "read_back", 12, None), make_site(2, "wait", 20, None, blocked=2_000_000))
    return replace(gpu_bound(), traces=(make_trace(devices=(device,)),), stall_ns=None, sites=sites)


def ranks() -> Analysis:
    """Two traces as ranks of one run, two GPUs each, with omitted sites."""
    base = gpu_bound()
    traces = tuple(make_trace(f"rank{r}.sqlite", (make_device(), make_device(id=1))) for r in range(2))
    first = replace(
        base.sites[0],
        ranks=(RankShare("rank0.sqlite", 20, 50_000_000, 100), RankShare("rank1.sqlite", 20, 3_282_752, 200)),
    )
    return replace(
        base,
        traces=traces,
        window_ns=4 * WINDOW_NS,
        stall_ns=4 * 97_628_562,
        sites=tuple(
            replace(site, stall_ratio=None if site.stall_ratio is None else site.stall_ratio / 4)
            for site in (first, *base.sites[1:])
        ),
        omitted=Omitted(12, 340, 3 * 97_628_562, 70_000_000, "--top 6"),
    )


def started() -> Analysis:
    """Two sites whose order by all stall is not their order outside start-up."""
    base = gpu_bound()
    first = replace(make_site(1, "loop", 10, 4_020_000), startup_calls=0, startup_stall_ns=0)
    second = replace(make_site(2, "load", 20, 4_970_000), startup_calls=9, startup_stall_ns=1_040_000)
    device = make_device(
        stall_ns=8_990_000,
        host_bound_ns=133_750_000,
        startup_stall_ns=1_040_000,
        startup_host_bound_ns=132_000_000,
    )
    return replace(base, sites=(first, second), stall_ns=8_990_000, traces=(make_trace(devices=(device,)),))


def one_process() -> Analysis:
    """`--pid`: one site of 655 µs is shown, the other 17.922 ms of the device's stall are another process's."""
    base = gpu_bound()
    device = make_device(stall_ns=18_577_598)
    site = replace(make_site(1, "item_loop", 4, 655_000, calls=20), startup_calls=0, startup_stall_ns=0)
    return replace(
        base,
        selection="process 1302",
        traces=(make_trace(devices=(device,)),),
        stall_ns=18_577_598,
        sites=(site,),
    )


def long_names(name: str) -> Analysis:
    """`name` wherever a trace can put one, in lists that are longer than any report shows."""
    base = gpu_bound()
    site = make_site(1, name, 1, 5, file=name, kind=name, operation=name, trace=name)
    site = replace(
        site,
        kind=replace(site.kind, apis=(name, name), copy_kind=name, src_memory=name, dst_memory=name),
        threads=(ThreadShare(name, 1, 2, name, 3),) * 20,
        processes=(ProcessShare(name, 1, name, 1, 2, 3),) * 20,
        nvtx_ranges=(NvtxShare(name, 1),) * 20,
        ranks=(RankShare(name, 1, 2, 3),) * 20,
        python_stack=(0,) * 300,
        native_stack=(0,) * 300,
        cause=Cause("scalar", "likely", (name,) * 30),
        dependency=Dependency("true", name, "likely", (name,) * 30),
        advice=("read-later",) * 30,
        source=SourceLine(name, name),
    )
    place = Location(name, name, name, 1)
    work = HostWork(
        host_bound_ns=5,
        samples=6,
        sampling_period_ns=7,
        lines=(HostLine(place, name, name, 1, 2),) * 50,
        not_sampled=name,
        calls=(HostCall(name, None, 1, 2),) * 50,
        hidden_waits=(HiddenWait(place, name, 1, 2),) * 50,
    )
    device = make_device(name=name)
    device = replace(device, zoom=replace(device.zoom, title=name))  # type: ignore[type-var]
    refusing = make_device(name=name, refused=name, idle_ns=None, stall_ns=None, zoom=None)
    trace = make_trace(name, (device, refusing))
    trace = replace(
        trace,
        nsys_version=name,
        schema_version=name,
        capture_start_utc=name,
        startup=(Startup(1, 2, name),) * 30,
        regions=(Region(name, 1, 2, 1, 1, ("site0001",)), Region(name, 1, 0, 0, 0, ())) * 500,
        host_work=work,
        polling=(Polling(1, 2, name, name, 3, 4, 5, 6, 7),) * 30,
        steps=replace(trace.steps, pattern=name),  # type: ignore[type-var]
        coverage=replace(
            trace.coverage,
            not_captured=(name,) * 30,
            warnings=(name,) * 30,
            lost_events=name,
            diagnostics=(Diagnostic(name, name),) * 30,
            processes_without_gpu_rows=(Process(1, name, 0, 0),) * 30,
        ),
    )
    return replace(
        base,
        selection=name,
        traces=(trace, trace),
        sites=(site,) * 20,
        omitted=Omitted(1, 2, 3, 4, name),
        merges=(Merge(("site0001",) * 30, 3, 90),) * 500,
        frames=(Frame(name, name, 1, True),),
        native_frames=(NativeFrame(name, name),),
    )


def many_ranks(number: int = 64, sites: int = 5000) -> Analysis:
    """`number` traces of two devices, the later ones with more stall, and sites that all of them have."""
    base = many(sites)
    first = make_device()
    assert first.zoom
    start = first.zoom.start_ns
    spans = tuple(
        Span("operation" if i % 2 else "busy", start + i * 600, start + i * 600 + 550, i % 6) for i in range(5_000)
    )
    first = replace(first, zoom=replace(first.zoom, spans=spans))
    names = [f"rank{rank:02}.sqlite" for rank in range(number)]
    traces = tuple(
        make_trace(name, (replace(first, stall_ns=1_000_000 + rank), replace(first, id=1, stall_ns=1_000_000 + rank)))
        for rank, name in enumerate(names)
    )
    return replace(
        base,
        traces=traces,
        window_ns=2 * number * WINDOW_NS,
        sites=tuple(
            replace(
                site,
                ranks=tuple(RankShare(name, 1, 5 + rank, 6) for rank, name in enumerate(names)),
                processes=tuple(ProcessShare(name, rank, "python3", 1, 5, 6) for rank, name in enumerate(names)),
                threads=tuple(ThreadShare(name, rank, rank, "Main", 1) for rank, name in enumerate(names)),
            )
            for site in base.sites
        ),
    )


def nothing() -> Analysis:
    """A trace with neither a GPU nor a sync."""
    return replace(
        gpu_bound(),
        traces=(replace(make_trace(devices=()), steps=None, startup=()),),
        window_ns=0,
        stall_ns=None,
        sites=(),
    )


_KINDS: tuple[DependencyKind, ...] = ("false", "true", "unknown")


def hostile() -> Analysis:
    """Every name that comes from a trace attacks HTML, SVG, a terminal, mathtext, rich markup or a spreadsheet."""
    base = gpu_bound()
    nasty = f"{ATTACK}$\\frac{{1}}{{0}}$[red]b[/red]"
    terminal = "\x1b]0;owned\x07\x1b[2J\u202eevil\nnext\x00\ud800\u2066"
    site = make_site(1, nasty, 28, 53_282_752, file=f"~/w/{ATTACK}{terminal}.py", kind=nasty + terminal)
    formula = replace(
        make_site(2, "=cmd|' /C calc'!A0", 3, 5, calls=5, kind="@SUM(1)", file="-1.py"),
        id="+id",
        location=Location("=HYPERLINK(1)", None, None, None),
        nvtx_ranges=(NvtxShare("\t=1", 2), NvtxShare(terminal, 3)),
    )
    wide = make_site(3, "数値を読む" * 30, 9, 4, calls=4, file="~/" + "x" * 300 + ".py")
    sites = tuple(
        replace(
            s,
            threads=(ThreadShare(nasty, 1, 2, nasty + terminal, 3),),
            processes=(ProcessShare(terminal, 1, nasty, 3, 4, 5),),
            nvtx_ranges=(*s.nvtx_ranges, NvtxShare(nasty, 1)),
            kind=replace(s.kind, apis=(nasty, terminal), operation=nasty),
            cause=Cause(nasty, "likely", (nasty, terminal)),
            dependency=Dependency(kind, nasty + terminal, "likely", (nasty, terminal)),
            advice=(nasty, "=missing"),
            source=SourceLine(source, terminal),
            redundant_calls=2,
        )
        for s, kind, source in zip(
            (site, formula, wide),
            _KINDS,
            (f"x = '{nasty}'{terminal}", "=HYPERLINK('x')", "\t@SUM(1)"),
            strict=True,
        )
    )
    trace = make_trace(name=f"{ATTACK}.sqlite")
    device = replace(
        trace.devices[0],
        name=nasty + terminal,
        zoom=replace(trace.devices[0].zoom, title=nasty),  # type: ignore[type-var]
    )
    coverage = replace(
        trace.coverage,
        warnings=(nasty + terminal,),
        diagnostics=(Diagnostic(nasty, terminal),),
        processes_without_gpu_rows=(Process(7, nasty + terminal, 0, 0),),
    )
    steps = replace(trace.steps, pattern=nasty + terminal) if trace.steps else None
    trace = replace(
        trace,
        devices=(device,),
        coverage=coverage,
        steps=steps,
        nsys_version=nasty,
        startup=(Startup(1, 5, nasty + terminal),),
        regions=(
            Region(nasty + terminal, 3, 4, 2, 1, ("site0001", nasty)),
            Region(terminal, 3, 4, 0, 1, ()),
            Region(nasty, 1, 0, 0, 0, ()),
        ),
        host_work=HostWork(
            host_bound_ns=5,
            samples=6,
            sampling_period_ns=None,
            lines=(HostLine(Location(nasty, nasty, terminal, 3), nasty, terminal, 1, 2),),
            not_sampled=terminal + nasty,
            calls=(HostCall(nasty + terminal, None, 1, 2),),
            hidden_waits=(HiddenWait(Location(terminal, None, None, None), nasty, 1, 2),),
        ),
    )
    return replace(
        base,
        selection=nasty,
        traces=(trace,),
        sites=sites,
        frames=(Frame(nasty, ATTACK + terminal, 1, True), *base.frames[1:]),
        native_frames=(NativeFrame(nasty + terminal, nasty), *base.native_frames[1:]),
        causes=(CauseText(nasty, nasty + terminal, nasty, True),),
        advice=(
            Advice(nasty, nasty, terminal, f"{nasty}\n{terminal}", nasty, nasty, f"javascript:alert(1)//{ATTACK}"),
        ),
        merges=(Merge(("site0001", nasty), 2, 5), Merge((nasty,), 1, 2)),
        omitted=Omitted(1, 1, None, 1, nasty),
    )


def many(number: int = 5000) -> Analysis:
    """`number` sites; the first `STACKS_KEPT` carry stacks of 16 Python and 30 native frames, none shared by two."""
    kept = min(number, STACKS_KEPT)
    frames = tuple(
        Frame(f"function_number_{i}", f"~/project/package/subpackage/module_{i % 97}.py", i % 400 + 1, i % 3 == 0)
        for i in range(kept * 4 + 16)
    )
    native = tuple(
        NativeFrame(f"at::native::some_namespace::function_{i}(at::Tensor const&, bool)", "libtorch_cuda.so")
        for i in range(kept + 30)
    )
    sites = tuple(
        replace(
            make_site(
                i + 1,
                f"function_number_{i}",
                i % 400 + 1,
                (number - i) * 1000,
                file=f"~/project/package/subpackage/module_{i % 97}.py",
                stack=tuple(range(i * 4, i * 4 + 16)) if i < kept else (),
                native=tuple(range(i, i + 30)) if i < kept else (),
            ),
            stack_omitted=i >= kept,
            cause=Cause(CAUSES[i % 6].id, "certain", ("native frame `at::native::_local_scalar_dense_cuda`",)),
            dependency=Dependency(
                ("false", "true", "explicit", "unknown")[i % 4],  # type: ignore[arg-type]
                "control flow" if i % 4 == 1 else "",
                "likely",
                (f"`if value_{i} > threshold:` in line {i % 400 + 2}",),
            ),
            advice=("read-later", "read-seldom", "pin-memory"),
            source=SourceLine(f"value_{i} = metrics['name_{i}'].mean().item()", SOURCE_BASIS),
            stall_quantiles_ns=tuple(range(0, 21_000, 1000)) if i < 15 else (),
        )
        for i in range(number)
    )
    return replace(gpu_bound(), sites=sites, frames=frames, native_frames=native)
