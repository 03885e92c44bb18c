"""What `analysis` hands to `render`: frozen dataclasses, few enough to hold in memory whatever the trace's size.

Times are nanoseconds since the trace's session start (they can be negative); `_ns` durations are nanoseconds,
`_ratio` values lie between 0 and 1. `None` means "not known", and is never the same as 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = "1.2"
"""Version of the JSON form: the first number changes when a reader of the old form would break."""

COMPARISON_SCHEMA_VERSION = "1.1"
"""The same for the JSON form of a `Comparison`."""

Lane = Literal["busy", "stall", "host-bound", "device-side", "profiler", "unknown", "operation"]
LocatedBy = Literal["exact stack", "python sample", "native stack", "nvtx range", "thread"]
Certainty = Literal["certain", "likely", "open"]
DependencyKind = Literal["false", "true", "explicit", "unknown"]
PairStatus = Literal["gone", "new", "better", "worse", "unchanged", "not compared"]
Forbids = Literal["everything", "totals", "idle"]
BudgetKind = Literal["max-stall", "max-syncs-per-step", "sync-free", "forbid", "baseline"]
BudgetState = Literal["held", "broken", "not known"]


@dataclass(frozen=True, slots=True)
class Frame:
    """One Python frame. `file` has home folders and user names replaced."""

    function: str
    file: str
    line: int
    is_user_code: bool


@dataclass(frozen=True, slots=True)
class NativeFrame:
    symbol: str
    module: str


@dataclass(frozen=True, slots=True)
class Location:
    """Where a site is. `file` and `line` are None where no Python frame is known; `label` always says something."""

    label: str
    function: str | None
    file: str | None
    line: int | None


@dataclass(frozen=True, slots=True)
class Kind:
    """What the site's operations did: API, direction and memory kinds of the copy, and the framework's operation."""

    label: str
    apis: tuple[str, ...]
    copy_kind: str | None
    src_memory: str | None
    dst_memory: str | None
    operation: str | None


@dataclass(frozen=True, slots=True)
class Cause:
    """Why the site synchronizes: `id` names a `CauseText`, `evidence` what in the trace or the source says so.

    `certainty` is `open` for the cause `unknown` alone.
    """

    id: str
    certainty: Certainty
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Dependency:
    """Whether the CPU needs what it waited for.

    `false`: it does not, the sync can go. `true`: it does, `reason` says for what (control flow, a shape, a
    computation), and the program must be restructured. `explicit`: the program asked to wait. `unknown`: neither the
    trace nor the source tells. `evidence` are the facts behind it.
    """

    kind: DependencyKind
    reason: str
    certainty: Certainty
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SourceLine:
    """The site's line in the user's file, which is the one that ran as far as can be told (`basis` says how)."""

    text: str
    basis: str


@dataclass(frozen=True, slots=True)
class Distribution:
    """Over the operations of a site. Percentiles are nearest-rank, so each is a value that occurred."""

    total_ns: int
    mean_ns: float
    p50_ns: int
    p95_ns: int
    max_ns: int


@dataclass(frozen=True, slots=True)
class ProcessShare:
    trace: str
    pid: int
    name: str
    calls: int
    stall_ns: int | None
    blocked_ns: int


@dataclass(frozen=True, slots=True)
class ThreadShare:
    trace: str
    pid: int
    tid: int
    name: str
    calls: int


@dataclass(frozen=True, slots=True)
class NvtxShare:
    """`name` is the innermost NVTX range around the operations; digits that vary are shown as `*`."""

    name: str
    calls: int


@dataclass(frozen=True, slots=True)
class RankShare:
    """One trace's part in a site, where several traces are ranks of one run."""

    trace: str
    calls: int
    stall_ns: int | None
    blocked_ns: int


@dataclass(frozen=True, slots=True)
class Example:
    """One operation, to be found in the Nsight Systems GUI by its time and correlation id."""

    trace: str
    start_ns: int
    end_ns: int
    stall_ns: int | None
    pid: int
    tid: int
    correlation_id: int | None


@dataclass(frozen=True, slots=True)
class SiteSteps:
    """A site's figures per step. `steps` is the number of all steps, the denominator of the means."""

    steps: int
    steps_with_calls: int
    calls_mean: float
    calls_max: int
    stall_mean_ns: float | None
    stall_p50_ns: int | None
    stall_p95_ns: int | None
    stall_max_ns: int | None
    blocked_mean_ns: float


@dataclass(frozen=True, slots=True)
class Site:
    """One sync site, ranked by stall. `stall` is None where no idle figure could be given.

    `stall_ratio` is stall over the sum of the windows of the devices shown (`Analysis.window_ns`).
    `startup_*` is the part of calls and stall that lies in the process's start-up, contained in the totals.
    `python_stack` and `native_stack` are indexes into `Analysis.frames` and `Analysis.native_frames`, innermost first;
    empty where none is known or, for sites past the first `STACKS_KEPT`, not kept (`stack_omitted`).
    `stall_quantiles_ns` are the stalls per operation at 0, 5, …, 100 percent; empty for all but the top sites.
    `advice` are ids of `Analysis.advice`, in the order to try them. `redundant_calls` counts explicit waits during
    which the process's GPUs had nothing to do and nothing queued; None where that cannot be told.
    """

    id: str
    location: Location
    kind: Kind
    cause: Cause
    dependency: Dependency
    advice: tuple[str, ...]
    source: SourceLine | None
    redundant_calls: int | None
    calls: int
    stall: Distribution | None
    stall_ratio: float | None
    blocked: Distribution
    idle_within_ns: int | None
    startup_calls: int
    startup_stall_ns: int | None
    located_by: tuple[tuple[LocatedBy, int], ...]
    processes: tuple[ProcessShare, ...]
    threads: tuple[ThreadShare, ...]
    nvtx_ranges: tuple[NvtxShare, ...]
    ranks: tuple[RankShare, ...]
    per_step: SiteSteps | None
    python_stack: tuple[int, ...]
    native_stack: tuple[int, ...]
    stack_omitted: bool
    stack_variants: int
    examples: tuple[Example, ...]
    stall_quantiles_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CauseText:
    """What one cause is, for people. `dynamic_shape`: a shape depends on GPU data, which CUDA graphs cannot capture."""

    id: str
    title: str
    explanation: str
    dynamic_shape: bool


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to try: a minimal `before` and `after` (Python), what to beware of, and PyTorch's own page on it."""

    id: str
    title: str
    text: str
    before: str
    after: str
    beware: str | None
    link: str


@dataclass(frozen=True, slots=True)
class Merge:
    """Reads that follow each other on one thread with no launch between: they could be one.

    `sites` are ids in the order of the reads (one for several reads of one site); there are `runs` such runs with
    `reads` reads in all, of which `runs` would be left.
    """

    sites: tuple[str, ...]
    runs: int
    reads: int


@dataclass(frozen=True, slots=True)
class Region:
    """All NVTX ranges of one name (digits that vary are `*`), and the sync operations inside them.

    A push/pop range holds the operations of its own thread, and those of threads without push/pop ranges (autograd's);
    what another thread with ranges of its own does meanwhile is not counted. A start/end range belongs to no thread: it
    holds the operations of all threads of its process. A range inside another of the same name counts with the outer
    one. `operations_after_first` leaves out each thread's first range (of start/end ranges each process's), its
    warm-up. `sites` are the ids of all sites in it, most operations first.
    """

    name: str
    ranges: int
    operations: int
    operations_after_first: int
    ranges_with_operations: int
    sites: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HostLine:
    """What Python did on the launching thread in host-bound time, by its samples.

    `estimate_ns` is the host-bound time times the line's share of the samples in it. `work` says what it was, such as
    `data loading`, `Python`; `inner` is the innermost frame where that is not the line itself.
    """

    location: Location
    work: str
    inner: str | None
    samples: int
    estimate_ns: int


@dataclass(frozen=True, slots=True)
class HostCall:
    """Host-bound time inside one kind of CUDA call (`cudaHostAlloc`, module loading), exact.

    `cause` names the `CauseText` of a call that is slow for a known reason, else None.
    """

    api: str
    cause: str | None
    calls: int
    total_ns: int


@dataclass(frozen=True, slots=True)
class HiddenWait:
    """Waiting for the GPU that no CUDA call shows (JAX), found by samples: an estimate.

    `estimate_ns` is the number of samples times the sampling period.
    """

    location: Location
    wait: str
    samples: int
    estimate_ns: int


@dataclass(frozen=True, slots=True)
class HostWork:
    """Host-bound time explained. `samples` are all samples in it that could be told to be the launching thread's.

    `lines` (most time first) are empty, and `not_sampled` says why, where no sample can tell. `calls` are exact, and
    contained in what the lines say of the same time.
    """

    host_bound_ns: int
    samples: int
    sampling_period_ns: int | None
    lines: tuple[HostLine, ...]
    not_sampled: str | None
    calls: tuple[HostCall, ...]
    hidden_waits: tuple[HiddenWait, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Where a device's window went, in equal bins. Every tuple has one entry a bin, in ns of that bin.

    busy + stall + host_bound + device_side + profiler + unknown = the bin's length (first and last bins too: the
    timeline spans exactly the window). `communication_ns` is contained in `busy_ns`. `blocked_ns` is time in which at
    least one sync operation was under way.
    """

    start_ns: int
    bin_ns: float
    busy_ns: tuple[int, ...]
    communication_ns: tuple[int, ...]
    stall_ns: tuple[int, ...]
    host_bound_ns: tuple[int, ...]
    device_side_ns: tuple[int, ...]
    profiler_ns: tuple[int, ...]
    unknown_ns: tuple[int, ...]
    blocked_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """One interval of a zoomed timeline. `site` is an index into `Analysis.sites` for operations, else None."""

    lane: Lane
    start_ns: int
    end_ns: int
    site: int | None


@dataclass(frozen=True, slots=True)
class Zoom:
    """A short part of one device's window at full detail: one typical step where steps are known."""

    title: str
    start_ns: int
    end_ns: int
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU of one trace: busy + stall + host_bound + device_side + profiler + not_captured + outside = window, to
    the nanosecond.

    `idle_ns` = stall + host_bound + device_side. All idle figures are None, and `refused` says why, where launches have
    no GPU work on record, or no GPU work in the trace has its launch. `device_side_without_launch_ns` is contained in
    `device_side_ns`: gaps ended by work whose launch call is not in the trace. `not_captured_ns` is time without
    activity in which events are missing, so that it is not known to be idle. `communication_ns` is contained in
    `busy_ns`: only kernels of NCCL ran, which spin while they wait for other ranks; None where the export has no names
    of kernels. `startup_*` parts are contained in their
    totals. `outside_ns` is range time before the first and after the last activity, 0 without a range.
    """

    id: int
    name: str | None
    processes: tuple[int, ...]
    window_start_ns: int
    window_ns: int
    busy_ns: int
    communication_ns: int | None
    idle_ns: int | None
    stall_ns: int | None
    host_bound_ns: int | None
    device_side_ns: int | None
    device_side_without_launch_ns: int | None
    profiler_ns: int | None
    not_captured_ns: int | None
    outside_ns: int
    startup_stall_ns: int | None
    startup_host_bound_ns: int | None
    gaps: int | None
    host_late_gaps: int | None
    refused: str | None
    timeline: Timeline
    zoom: Zoom | None


@dataclass(frozen=True, slots=True)
class Startup:
    """Start-up of one process: everything before `end_ns`."""

    pid: int
    end_ns: int
    reason: str


@dataclass(frozen=True, slots=True)
class Step:
    """One NVTX range that counts as a step. Device figures are summed over the devices shown."""

    name: str
    pid: int
    start_ns: int
    end_ns: int
    operations: int
    blocked_ns: int
    busy_ns: int
    stall_ns: int | None
    host_bound_ns: int | None


@dataclass(frozen=True, slots=True)
class Steps:
    """`pattern` is the NVTX name; `selected` says whether the user chose it (the window is then clipped to it)."""

    pattern: str
    selected: bool
    skipped: int
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    name: str
    gpu_rows: int
    sync_operations: int


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """A message of the profiler's own. `severity` is `warning` or `error`."""

    severity: str
    text: str


@dataclass(frozen=True, slots=True)
class Polling:
    """A thread that asked over and over whether work is done, which does not block: `calls` of one function in `runs`
    without another CUDA call between them. `polled_ns` is from the first to the last call of each run, summed, and
    `longest_ns` the longest run's; `first_start_ns` is when the first began.
    """

    pid: int
    tid: int
    thread: str
    api: str
    calls: int
    runs: int
    polled_ns: int
    longest_ns: int
    first_start_ns: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """What the trace can and cannot tell. `located_by` counts every sync operation shown once. `lost_events` says what
    shows that nsys lost events in the selected time, and where; None where nothing does. `lost_beyond_window`: also
    before the first or after the last GPU activity. `unfinished_waits` of `unfinished_calls` are synchronize calls.
    """

    operations: int
    located_by: tuple[tuple[LocatedBy, int], ...]
    not_captured: tuple[str, ...]
    warnings: tuple[str, ...]
    diagnostics: tuple[Diagnostic, ...]
    processes_without_gpu_rows: tuple[Process, ...]
    graph_launches_without_gpu_work: int
    unfinished_calls: int
    unfinished_gpu_rows: int
    unfinished_waits: int
    lost_events: str | None
    lost_beyond_window: bool


@dataclass(frozen=True, slots=True)
class TraceReport:
    """One trace: what it is, where its devices' time went, what it covers. `name` is the file's name, no folder.

    `host_work` is None where no device has an idle figure.
    """

    name: str
    nsys_version: str | None
    schema_version: str | None
    capture_start_utc: str | None
    devices: tuple[Device, ...]
    processes: tuple[Process, ...]
    startup: tuple[Startup, ...]
    steps: Steps | None
    regions: tuple[Region, ...]
    host_work: HostWork | None
    polling: tuple[Polling, ...]
    coverage: Coverage


@dataclass(frozen=True, slots=True)
class Omitted:
    """Sites left out of `Analysis.sites` by `--top` or `--min-stall`."""

    sites: int
    calls: int
    stall_ns: int | None
    blocked_ns: int
    reason: str


@dataclass(frozen=True, slots=True)
class Analysis:
    """The result for one trace, or for several that are ranks of one run. `sites` are ranked: first is worst.

    `window_ns` sums the windows of all devices of all traces: the denominator of every `stall_ratio`.
    `stall_ns` is None where any device was refused an idle figure. `causes` and `advice` are those that occur in
    `sites`. `operations` holds one row a sync operation (columns in `OPERATION_COLUMNS`; `step` is an index into
    `Steps.steps` of the trace), and is left out of the JSON form.
    """

    schema_version: str
    tool_version: str
    selection: str | None
    traces: tuple[TraceReport, ...]
    window_ns: int
    stall_ns: int | None
    sites: tuple[Site, ...]
    omitted: Omitted | None
    causes: tuple[CauseText, ...]
    advice: tuple[Advice, ...]
    merges: tuple[Merge, ...]
    frames: tuple[Frame, ...]
    native_frames: tuple[NativeFrame, ...]
    operations: pa.Table


DETECTION_SCHEMA_VERSION = "1.0"
"""Version of the JSON form of a `Detection`, as `SCHEMA_VERSION` is of that of an `Analysis`."""


@dataclass(frozen=True, slots=True)
class DetectedThread:
    """`name` is None for threads that Python did not start."""

    pid: int
    name: str | None
    calls: int


@dataclass(frozen=True, slots=True)
class DetectedSite:
    """A line that made the CPU wait, by one cause. No time is known of it.

    `operation` is what waited, by the framework's name or as the source has it. `python_stack` is the commonest of
    `stack_variants` stacks, innermost first. `advice` are ids of `Detection.advice`, in the order to try them.
    """

    id: str
    location: Location
    operation: str | None
    cause: Cause
    dependency: Dependency
    advice: tuple[str, ...]
    source: SourceLine | None
    calls: int
    threads: tuple[DetectedThread, ...]
    python_stack: tuple[Frame, ...]
    stack_variants: int


@dataclass(frozen=True, slots=True)
class Detection:
    """What PyTorch's sync debug mode and the explicit calls showed of one run. `sites` are ranked by calls.

    `torch_version` None: the program did not import PyTorch. `watched_processes` counts the processes that initialised
    CUDA, the program's and those it forked. `calls` are all that were seen, with those of the `omitted_sites` and
    `lost_calls`, whose stack was not kept. `unseen` says what such a run cannot show.
    """

    schema_version: str
    tool_version: str
    program: str
    exit_status: int
    torch_version: str | None
    watched_processes: int
    calls: int
    sites: tuple[DetectedSite, ...]
    omitted_sites: int
    omitted_calls: int
    lost_calls: int
    causes: tuple[CauseText, ...]
    advice: tuple[Advice, ...]
    unseen: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Violation:
    """A site that breaks a budget. `amount` is its part of what was measured, in the budget's unit; None: not known.

    `path` is its file relative to the folder that annotations are for, with `/`; None where the file is not there.
    """

    site: Site
    cause: CauseText | None
    advice: Advice | None
    path: str | None
    amount: float | None


@dataclass(frozen=True, slots=True)
class Budget:
    """One limit and whether the trace keeps to it; `not known` is no better than broken.

    `target` is the NVTX range of `sync-free`, the cause id of `forbid`, the file of `baseline`. `measured` and `limit`
    are a ratio of the window for `max-stall`, operations in the worst step for `max-syncs-per-step`, operations for
    `sync-free` and `forbid`, sites for `baseline`; `measured` None is not known. `of` says what of: the denominator,
    the step. `reason` says why it is not known, else it is empty. `violations` are worst first.
    """

    kind: BudgetKind
    target: str | None
    state: BudgetState
    measured: float | None
    limit: float
    of: str
    reason: str
    violations: tuple[Violation, ...]


@dataclass(frozen=True, slots=True)
class Allowed:
    """An entry of the allow-list: globs on function and file, of which at least one is given, and why."""

    function: str | None
    file: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class AllowedSite:
    """A site that no budget counts, and the entry that says so."""

    site: Site
    entry: Allowed


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What `nsys-sync check` found. `held`: every budget is. `stale` are entries that no site matches."""

    held: bool
    budgets: tuple[Budget, ...]
    allowed: tuple[AllowedSite, ...]
    stale: tuple[Allowed, ...]
    analysis: Analysis


OPERATION_COLUMNS = (
    "trace",
    "site_id",
    "pid",
    "tid",
    "start_ns",
    "end_ns",
    "blocked_ns",
    "stall_ns",
    "idle_within_ns",
    "api",
    "copy_kind",
    "src_memory",
    "dst_memory",
    "operation",
    "cause",
    "located_by",
    "file",
    "line",
    "function",
    "nvtx_range",
    "step",
    "correlation_id",
    "in_startup",
)
STACKS_KEPT = 500
"""Sites (by rank) that keep their full stacks: the page stays under 2 MB at 5,000 sites."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One of the two runs compared: what it is, without any figure. `name` is its traces' names."""

    name: str
    tool_version: str
    selection: str | None
    gpus: tuple[str, ...]
    step_pattern: str | None
    steps: int | None


@dataclass(frozen=True, slots=True)
class NotComparable:
    """Why figures are not given. `everything`: none is; `totals`: per-step figures are; `idle`: all but idle and stall.

    `reason` is a sentence without its full stop.
    """

    forbids: Forbids
    reason: str


@dataclass(frozen=True, slots=True)
class TimeShares:
    """Where a window went, of one GPU or summed over several: the parts add up to `window_ns`, to the nanosecond.

    `stall_ns`, `host_bound_ns` and `device_side_ns` are None together with `idle_ns`, their sum, where no idle figure
    could be given.
    """

    window_ns: int
    busy_ns: int
    idle_ns: int | None
    stall_ns: int | None
    host_bound_ns: int | None
    device_side_ns: int | None
    profiler_ns: int
    not_captured_ns: int
    outside_ns: int


@dataclass(frozen=True, slots=True)
class ComparedDevice:
    """A GPU of one run and the GPU in the same place of the other."""

    before: Device
    after: Device
    before_trace: str
    after_trace: str


@dataclass(frozen=True, slots=True)
class StepFigures:
    """Medians over the steps of one run. Device figures are summed over the devices shown."""

    length_ns: float
    busy_ns: float
    stall_ns: float | None
    host_bound_ns: float | None
    blocked_ns: float
    operations: float


@dataclass(frozen=True, slots=True)
class SiteFigures:
    """Figures of one place, in all or as means per step. `stall_ns` is None where it is not known."""

    calls: float
    stall_ns: float | None
    blocked_ns: float


@dataclass(frozen=True, slots=True)
class PlaceInRun:
    """The sites of one Python line and cause in one run (a line can hold several kinds). `sites` are their ids.

    `in_all` is None where totals are not comparable, `per_step` where steps are not.
    """

    sites: tuple[str, ...]
    location: Location
    cause: str
    dependency: Dependency
    kinds: tuple[str, ...]
    source: str | None
    in_all: SiteFigures | None
    per_step: SiteFigures | None


@dataclass(frozen=True, slots=True)
class Pair:
    """A place in both runs, or in one of them (`gone` from `after`, `new` in it).

    `evidence` says by what the two were matched, `certainty` how sure that is: `certain`, `likely` (something was
    renamed), `open` (one of several alike). `change_ns` is how much more stall there is in `after` (less: negative),
    per step where `change_per_step`; None where that cannot be told. It is `better` or `worse` where the change is more
    than noise (`noise_ns`), else `unchanged`.
    """

    status: PairStatus
    certainty: Certainty
    evidence: str
    before: PlaceInRun | None
    after: PlaceInRun | None
    change_ns: float | None
    change_per_step: bool
    noise_ns: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two analyses side by side. No figure is given that `not_comparable` forbids.

    `total_before` and `total_after` are sums over all GPUs; `devices` pairs them where both runs have as many.
    `notes` are sentences on what weakens the comparison without forbidding it. `pairs`: worse and new first, then
    better and gone, then unchanged, each by the size of the change.
    """

    schema_version: str
    tool_version: str
    before: Compared
    after: Compared
    not_comparable: tuple[NotComparable, ...]
    notes: tuple[str, ...]
    total_before: TimeShares | None
    total_after: TimeShares | None
    devices: tuple[ComparedDevice, ...]
    step_before: StepFigures | None
    step_after: StepFigures | None
    pairs: tuple[Pair, ...]
    causes: tuple[CauseText, ...]
