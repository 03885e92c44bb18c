"""Why programs make the CPU wait for the GPU, and what to do about each cause: texts as data.

`scripts/check_advice_on_gpu.py` runs every `before` and `after` on a GPU: same values, and no wait left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from textwrap import dedent

from nsys_sync import model


@dataclass(frozen=True)
class CauseEntry:
    """A cause: its text, what its dependency is unless evidence says more, and the advice in the order to try."""

    text: model.CauseText
    dependency: model.DependencyKind
    reason: str
    advice: tuple[str, ...]


VALUE_READ = "the CPU reads the value; what for is not known"
CONTROL_FLOW = "control flow"
DYNAMIC_SHAPE = "dynamic shape"
SHOWN = "the value is only shown"
NO_VALUE = "the CPU waits for no value"
ON_CPU = "computation on the CPU"
ASKED = "the program asks to wait"
MEMORY = "memory management waits, no value is needed"
UNKNOWN = "it is not known what it waits for"


def _cause(
    id: str,
    title: str,
    explanation: str,
    dependency: model.DependencyKind,
    reason: str,
    *advice: str,
    dynamic_shape: bool = False,
) -> CauseEntry:
    return CauseEntry(model.CauseText(id, title, explanation, dynamic_shape), dependency, reason, advice)


_CAUSES = (
    _cause(
        "scalar-read",
        "reads a scalar (.item(), float())",
        "The number has to arrive on the CPU before the next line can run, so the CPU waits for all work queued on the "
        "stream. Meanwhile nothing new is queued, and the GPU runs dry.",
        "unknown",
        VALUE_READ,
        *("use-tensor-itself", "accumulate-on-gpu", "read-together", "read-one-step-late"),
    ),
    _cause(
        "tolist",
        "reads a tensor into a list (.tolist())",
        "A Python list holds CPU numbers, so the CPU copies the tensor and waits until the GPU has computed it.",
        "unknown",
        VALUE_READ,
        *("keep-sizes-on-cpu", "read-together", "copy-asynchronously", "read-one-step-late"),
    ),
    _cause(
        "truth-value",
        "needs a truth value (if, while, assert)",
        "Python can only branch on a value that it has. The CPU reads the tensor back and queues nothing until it "
        "knows which way to go.",
        "true",
        CONTROL_FLOW,
        *("where-for-if", "nan-to-num", "check-at-the-end", "read-between-graphs"),
    ),
    _cause(
        "is-nonzero",
        "asks torch.is_nonzero()",
        "The function returns a Python bool, so the CPU reads the tensor back and waits for it.",
        "true",
        CONTROL_FLOW,
        *("where-for-if", "check-at-the-end", "read-between-graphs"),
    ),
    _cause(
        "python-max-min",
        "Python's max, min, sorted, all, any, in",
        "Python's own functions compare GPU values one pair at a time and read each result back. One sync per "
        "comparison follows, although PyTorch has the same functions on the GPU.",
        "false",
        "PyTorch compares on the GPU",
        *("max-on-gpu", "compare-on-gpu"),
    ),
    _cause(
        "print",
        "prints, formats or logs a tensor",
        "Text is made from values, so the CPU fetches them, often with several reads for one tensor. The computation "
        "itself does not need them.",
        "false",
        SHOWN,
        *("remove-output", "show-now-and-then", "accumulate-on-gpu", "read-one-step-late"),
    ),
    _cause(
        "to-cpu",
        "copies to the CPU (.cpu(), .to('cpu'))",
        "A copy into ordinary CPU memory returns when the data is there, so the CPU waits for the work that computes "
        "it and for the copy.",
        "unknown",
        "the CPU gets the data; what for is not known",
        *("stay-on-gpu", "copy-asynchronously", "read-together", "read-one-step-late"),
    ),
    _cause(
        "numpy",
        "converts to NumPy (.numpy())",
        "NumPy works on CPU memory. The tensor is copied there first, and the CPU waits for the work that computes it.",
        "unknown",
        "the CPU gets the data; what for is not known",
        *("torch-for-numpy", "copy-asynchronously", "read-one-step-late"),
    ),
    _cause(
        "checkpoint",
        "saves tensors to a file (torch.save)",
        "The file needs the data, so each tensor is copied to the CPU in turn, with a wait for each.",
        "true",
        ON_CPU,
        "copy-state-asynchronously",
    ),
    _cause(
        "upload",
        "uploads from pageable memory (.cuda())",
        "The GPU cannot read ordinary CPU memory by itself: the driver copies it through a buffer of its own, and the "
        "CPU waits for that and for the work queued before.",
        "false",
        NO_VALUE,
        *("upload-pinned", "pin-in-data-loader", "create-on-gpu", "upload-once"),
    ),
    _cause(
        "module-to",
        "moves a module (.to(), .cuda())",
        "Each parameter and buffer of the module is uploaded on its own, with a wait for each. That is usually part "
        "of start-up, and matters only inside a loop.",
        "false",
        NO_VALUE,
        *("create-module-on-gpu", "upload-once"),
    ),
    _cause(
        "construct",
        "builds a GPU tensor from Python values",
        "torch.tensor and its kin put the values into CPU memory, upload them, and wait for the upload.",
        "false",
        NO_VALUE,
        *("create-on-gpu", "upload-once", "construct-pinned"),
    ),
    _cause(
        "legacy-constructor",
        "legacy constructor (cuda.FloatTensor)",
        "The old constructors build the tensor on the CPU, upload it, and wait for the upload.",
        "false",
        NO_VALUE,
        *("create-on-gpu", "upload-once", "construct-pinned"),
    ),
    _cause(
        "legacy-type",
        "legacy type moves devices (.type())",
        "The type torch.FloatTensor means a CPU tensor, and torch.cuda.FloatTensor a GPU tensor. Converting to it "
        "moves the data and waits, even if only the dtype was meant.",
        "false",
        NO_VALUE,
        *("convert-dtype-only", "upload-pinned"),
    ),
    _cause(
        "legacy-type-download",
        "legacy type moves to the CPU (.type())",
        "The type torch.FloatTensor means a CPU tensor. Converting a GPU tensor to it copies the data to the CPU and "
        "waits, even if only the dtype was meant.",
        "unknown",
        "the CPU gets the data; what for is not known",
        *("convert-dtype-only", "stay-on-gpu", "copy-asynchronously"),
    ),
    _cause(
        "mask-index",
        "indexes by a mask (x[mask])",
        "The size of the result is the number of true elements, which only the GPU knows. The CPU waits for it to "
        "allocate the result.",
        "true",
        DYNAMIC_SHAPE,
        *("where-for-mask", "ignore-index", "nonzero-static", "read-between-graphs"),
        dynamic_shape=True,
    ),
    _cause(
        "mask-assign",
        "assigns through a mask (x[mask] = y)",
        "PyTorch turns the mask into positions, whose number only the GPU knows, and the CPU waits for it. The result "
        "has the shape of x, so no wait is needed.",
        "false",
        "the result's shape is known",
        *("where-for-mask-assign", "masked-scatter"),
        dynamic_shape=True,
    ),
    _cause(
        "nonzero",
        "finds positions (nonzero, where)",
        "The number of positions depends on the data, so the CPU waits for it to allocate the result. The same holds "
        "for argwhere and for torch.where with one argument.",
        "true",
        DYNAMIC_SHAPE,
        *("where-for-mask", "nonzero-static", "read-between-graphs"),
        dynamic_shape=True,
    ),
    _cause(
        "masked-select",
        "selects by a mask (masked_select)",
        "The size of the result is the number of true elements, which only the GPU knows. The CPU waits for it to "
        "allocate the result.",
        "true",
        DYNAMIC_SHAPE,
        *("where-for-mask", "ignore-index", "nonzero-static"),
        dynamic_shape=True,
    ),
    _cause(
        "unique",
        "finds unique values (torch.unique)",
        "The number of different values depends on the data, so the CPU waits for it to allocate the result.",
        "true",
        DYNAMIC_SHAPE,
        *("mark-with-scatter", "count-with-scatter"),
        dynamic_shape=True,
    ),
    _cause(
        "repeat-interleave",
        "repeats by GPU counts",
        "torch.repeat_interleave needs the sum of the counts for the size of its result. Without output_size the CPU "
        "reads that sum from the GPU.",
        "true",
        DYNAMIC_SHAPE,
        "give-output-size",
        dynamic_shape=True,
    ),
    _cause(
        "gpu-scalar",
        "indexes by a GPU scalar (x[n])",
        "A single GPU number as an index is read back to the CPU first, which then picks the element. The shape does "
        "not depend on it: the GPU can take the index by itself.",
        "false",
        "the GPU can take the index by itself",
        *("index-select", "mask-by-position"),
    ),
    _cause(
        "gpu-index",
        "slices or counts by a GPU value",
        "Slice bounds, range() and sizes are Python numbers. One that lies in a GPU tensor is read back first, and "
        "the CPU waits for it.",
        "true",
        DYNAMIC_SHAPE,
        *("mask-by-position", "keep-sizes-on-cpu", "triton-kernel"),
        dynamic_shape=True,
    ),
    _cause(
        "cpu-index",
        "indexes by a list or CPU tensor",
        "The index is uploaded from ordinary CPU memory for each call, and the CPU waits for the upload.",
        "false",
        NO_VALUE,
        *("slice-for-list", "keep-index-on-gpu", "construct-pinned"),
    ),
    _cause(
        "assign-value",
        "assigns a CPU value through an index",
        "PyTorch turns the Python number into a CPU tensor and uploads it, or uploads the CPU tensor given, and the "
        "CPU waits for that upload.",
        "false",
        NO_VALUE,
        *("fill-through-view", "index-fill", "upload-pinned"),
    ),
    _cause(
        "compare",
        "compares tensors (equal, allclose)",
        "The answer is a Python bool, so the CPU waits until the GPU has compared all elements.",
        "true",
        CONTROL_FLOW,
        *("compare-on-gpu", "check-at-the-end", "where-for-if"),
    ),
    _cause(
        "operator-read",
        "an operator reads a value inside",
        "Some operators need a value of their input on the CPU: bincount and one_hot the largest one for the size of "
        "the result, ctc_loss its lengths. They wait for it without a word in the program.",
        "true",
        "the operator needs the value",
        "find-with-debug-mode",
    ),
    _cause(
        "operator-upload",
        "an operator uploads CPU data inside",
        "Some operators take CPU tensors or lists beside GPU tensors, or make tables of their own, and upload them "
        "from ordinary memory with a wait for each.",
        "unknown",
        "the operator uploads data of its own",
        "find-with-debug-mode",
    ),
    _cause(
        "linalg-check",
        "torch.linalg checks for errors",
        "Decompositions and solvers report failure in a GPU value, and PyTorch reads it after each call to raise an "
        "exception. The result does not need it.",
        "false",
        "only the error check waits",
        "linalg-without-check",
    ),
    _cause(
        "clip-grad",
        "gradient clipping checks the norm",
        "With error_if_nonfinite=True the CPU reads the gradient norm in order to raise an exception if it is not "
        "finite.",
        "true",
        CONTROL_FLOW,
        *("clip-without-error", "check-at-the-end"),
    ),
    _cause(
        "grad-scaler",
        "GradScaler looks for infinities",
        "The scaler skips a step whose gradients overflowed. To decide that on the CPU it reads a flag from the GPU, "
        "unless the optimizer can skip by itself.",
        "true",
        CONTROL_FLOW,
        *("fused-optimizer", "bfloat-without-scaler"),
    ),
    _cause(
        "device-synchronize",
        "torch.cuda.synchronize()",
        "The program asks to wait for all streams of the device. PyTorch orders the work on a stream by itself, so "
        "that is needed for timing and little else.",
        "explicit",
        ASKED,
        *("remove-synchronize", "time-with-events", "wait-on-gpu"),
    ),
    _cause(
        "stream-synchronize",
        "waits for a stream",
        "The program asks the CPU to wait for all work on one stream. If only another stream needs the result, the "
        "GPU can wait instead.",
        "explicit",
        ASKED,
        *("remove-synchronize", "wait-on-gpu", "read-one-step-late"),
    ),
    _cause(
        "event-synchronize",
        "waits for an event",
        "The program asks the CPU to wait for an event. If only another stream needs the result, the GPU can wait "
        "instead; if the CPU needs it, a later wait costs less.",
        "explicit",
        ASKED,
        *("wait-on-gpu", "read-one-step-late"),
    ),
    _cause(
        "memcpy",
        "a blocking copy (cudaMemcpy)",
        "cudaMemcpy waits for the work before it and for the copy. PyTorch does not call it: the copy belongs to "
        "another library or an extension.",
        "unknown",
        "the trace does not tell what the copy is for",
        *("copy-with-async-call", "copy-asynchronously"),
    ),
    _cause(
        "memset",
        "a blocking fill (cudaMemset)",
        "cudaMemset runs on the default stream, and can make the CPU wait until the memory is set.",
        "false",
        NO_VALUE,
        "fill-with-async-call",
    ),
    _cause(
        "free",
        "frees GPU memory (cudaFree)",
        "cudaFree waits until the device has finished all its work. PyTorch and CuPy therefore keep freed memory.",
        "false",
        MEMORY,
        *("allocate-from-pool", "remove-empty-cache", "same-buffer-sizes"),
    ),
    _cause(
        "empty-cache",
        "empties the cache (empty_cache())",
        "Unused memory goes back to the driver, which waits for the device, and the next allocations have to ask the "
        "driver again. It does not give PyTorch more memory.",
        "false",
        MEMORY,
        *("remove-empty-cache", "same-buffer-sizes"),
    ),
    _cause(
        "allocator-retry",
        "the allocator ran out and retried",
        "An allocation failed, so PyTorch freed its cached memory, which waits for the device, and tried again. Each "
        "retry also costs the allocations that follow.",
        "false",
        MEMORY,
        *("same-buffer-sizes", "remove-empty-cache"),
    ),
    _cause(
        "pinned-allocation",
        "allocates pinned memory",
        "Pinning memory is a slow system call that can hold up other CUDA calls. PyTorch keeps pinned memory for "
        "later, but new sizes need new memory.",
        "false",
        MEMORY,
        *("pin-in-data-loader", "reuse-pinned-memory"),
    ),
    _cause(
        "distributed",
        "waits in distributed communication",
        "The CPU waits until a collective is over, and so for the slowest rank. NCCL's collectives are ordered with "
        "other GPU work, so the CPU seldom has to wait.",
        "unknown",
        "the trace does not tell whether the CPU needs the result",
        *("remove-barrier", "remove-synchronize"),
    ),
    _cause(
        "data-loader",
        "copies while a DataLoader hands over",
        "A dataset or collate function that puts tensors on the GPU uploads them from pageable memory, one by one, "
        "with a wait for each.",
        "false",
        NO_VALUE,
        *("pin-in-data-loader", "upload-pinned"),
    ),
    _cause(
        "cupy-read",
        "CuPy array to the CPU (.get(), float())",
        "The value or array is copied to CPU memory, and the CPU waits for the work that computes it.",
        "unknown",
        VALUE_READ,
        *("cupy-accumulate", "cupy-read-together", "cupy-copy-asynchronously"),
    ),
    _cause(
        "cupy-truth",
        "needs a CuPy truth value (if, while)",
        "Python can only branch on a value that it has, so the CPU reads it from the GPU and waits.",
        "true",
        CONTROL_FLOW,
        "cupy-where",
    ),
    _cause(
        "cupy-nonzero",
        "CuPy nonzero, mask index or unique",
        "The size of the result depends on the data, so the CPU waits for it to allocate the result.",
        "true",
        DYNAMIC_SHAPE,
        "cupy-where-for-mask",
        dynamic_shape=True,
    ),
    _cause(
        "cupy-print",
        "prints or formats a CuPy array",
        "Text is made from values, so the CPU fetches them and waits. The computation itself does not need them.",
        "false",
        SHOWN,
        *("cupy-read-together", "cupy-accumulate"),
    ),
    _cause(
        "numba",
        "Numba copies or synchronizes",
        "Numba's copies wait unless they get a stream, and a kernel that is called with NumPy arrays copies them to "
        "the GPU and back each time.",
        "unknown",
        VALUE_READ,
        *("numba-device-arrays", "numba-copy-asynchronously"),
    ),
    _cause(
        "triton-benchmark",
        "Triton benchmarks a kernel",
        "Autotuning runs each configuration several times and waits to time it, once for each new value of its key. "
        "It costs time wherever new shapes keep coming.",
        "explicit",
        "timing needs the wait",
        "triton-fixed-config",
    ),
    _cause(
        "xla",
        "waits inside JAX or XLA",
        "JAX queues work and waits when Python needs a value: in float(), np.asarray(), printing, an if, or "
        "block_until_ready().",
        "unknown",
        VALUE_READ,
        "jax-read-later",
    ),
    _cause(
        "unknown",
        "unknown",
        "Neither the stack nor the source says which operation waited.",
        "unknown",
        UNKNOWN,
        "find-with-debug-mode",
    ),
)

CAUSES: Mapping[str, CauseEntry] = {cause.text.id: cause for cause in _CAUSES}

_STABLE = "https://docs.pytorch.org/docs/stable"
_GENERATED = f"{_STABLE}/generated"
_PINNED = "https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html"
_TUNING = "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"


OF_OPERATOR = {
    "torch.one_hot()": ("one-hot-classes",),
    "torch.bincount()": ("count-with-scatter",),
    "torch.tensor_split()": ("keep-sizes-on-cpu",),
}
"""What helps against the read of one operator, for the cause `operator-read`."""
FIRST_IF_UNUSED = ("remove-read",)
FIRST_IF_SHOWN = ("remove-output", "show-now-and-then")
READ_TOGETHER = ("read-together", "cupy-read-together")
"""What to try first where the source says that the value is not needed, and where reads follow each other."""


def _advice(
    id: str, title: str, text: str, before: str, after: str, link: str, beware: str | None = None
) -> model.Advice:
    return model.Advice(id, title, text, dedent(before).strip(), dedent(after).strip(), beware, link)


_ADVICE = (
    _advice(
        "remove-read",
        "Leave the read out",
        "Nothing is done with the value, so nothing is lost without it.",
        """
        loss = x.square().mean()
        value = loss.item()
        """,
        """
        loss = x.square().mean()
        """,
        _TUNING,
    ),
    _advice(
        "use-tensor-itself",
        "Use the tensor instead of its number",
        "A one-element tensor works wherever PyTorch computes: as a factor, a bound of clamp, a condition of where. "
        "Leave out .item() and float(), and the value stays on the GPU.",
        """
        scale = 1.0 / x.norm().item()
        y = x * scale
        """,
        """
        scale = 1.0 / x.norm()
        y = x * scale
        """,
        _TUNING,
    ),
    _advice(
        "accumulate-on-gpu",
        "Add up on the GPU, read once",
        "Keep the running sum in a tensor and read it once, at the end of the epoch or every few hundred steps.",
        """
        total = 0.0
        for loss in losses:
            total += loss.item()
        """,
        """
        total = torch.zeros((), device=device)
        for loss in losses:
            total += loss.detach()
        total = total.item()
        """,
        _TUNING,
        "Without detach() the sum keeps the graph of every step alive.",
    ),
    _advice(
        "read-together",
        "Read several values at once",
        "Stack the values into one tensor and read that: one wait instead of one per value.",
        """
        loss_value = loss.item()
        accuracy_value = accuracy.item()
        norm_value = norm.item()
        """,
        """
        values = torch.stack([loss, accuracy, norm])
        loss_value, accuracy_value, norm_value = values.tolist()
        """,
        f"{_GENERATED}/torch.stack.html",
        "torch.stack wants one dtype and shape: convert integers first, and mind that float32 holds them exactly only "
        "up to 16,777,216.",
    ),
    _advice(
        "read-one-step-late",
        "Read the value one step late",
        "Start the copy now and read it in the next step, after that step's work is queued. The GPU then has work "
        "while the CPU waits, and mostly the copy is long done.",
        """
        history = []
        for loss in losses:
            history.append(loss.item())
        """,
        """
        history, waiting = [], deque()
        for loss in losses:
            value = loss.to("cpu", non_blocking=True)
            waiting.append((value, torch.cuda.current_stream().record_event()))
            if len(waiting) > 1:
                value, copied = waiting.popleft()
                copied.synchronize()
                history.append(value.item())
        """,
        _PINNED,
        "Before its event is done the copy holds arbitrary bytes. After the loop, read what is still waiting.",
    ),
    _advice(
        "copy-asynchronously",
        "Copy without waiting, wait before reading",
        "With non_blocking=True, .to('cpu') copies into pinned memory and returns at once. Queue more GPU work, then "
        "wait for the event of the copy just before the CPU reads the result.",
        """
        result = logits.cpu()
        hidden = work @ work
        best = result.argmax(dim=1)
        """,
        """
        result = logits.to("cpu", non_blocking=True)
        copied = torch.cuda.current_stream().record_event()
        hidden = work @ work
        copied.synchronize()
        best = result.argmax(dim=1)
        """,
        _PINNED,
        "Nothing stops the CPU from reading too early: until the event or the stream has been waited for, the result "
        "holds arbitrary bytes.",
    ),
    _advice(
        "keep-sizes-on-cpu",
        "Keep sizes on the CPU",
        "Lengths and counts mostly come from the CPU: the data set, the configuration, the shape of a tensor. Keep "
        "the Python numbers beside the GPU tensor instead of reading them back.",
        """
        lengths = torch.tensor([3, 5], device=device)
        first, second = torch.split(tokens, lengths.tolist())
        """,
        """
        lengths = [3, 5]
        first, second = torch.split(tokens, lengths)
        """,
        f"{_GENERATED}/torch.split.html",
    ),
    _advice(
        "where-for-if",
        "Choose on the GPU with torch.where",
        "Compute both outcomes and let torch.where choose. That costs a little GPU work and no wait.",
        """
        if loss > 1.0:
            scale = scale * 0.5
        """,
        """
        scale = torch.where(loss > 1.0, scale * 0.5, scale)
        """,
        f"{_GENERATED}/torch.where.html",
        "Both outcomes are computed, so this fits cheap ones without side effects.",
    ),
    _advice(
        "nan-to-num",
        "Replace NaN on the GPU",
        "torch.nan_to_num replaces NaN and infinities element by element, without asking whether there are any.",
        """
        if torch.isnan(penalty):
            penalty = torch.zeros_like(penalty)
        """,
        """
        penalty = torch.nan_to_num(penalty, nan=0.0)
        """,
        f"{_GENERATED}/torch.nan_to_num.html",
        "It also replaces infinities by the largest finite numbers unless posinf and neginf say otherwise, and it "
        "hides where the NaN came from.",
    ),
    _advice(
        "check-at-the-end",
        "Collect checks, look once",
        "Combine the checks in a bool tensor on the GPU and look at it once, at the end of the epoch or every few "
        "hundred steps.",
        """
        for loss in losses:
            assert torch.isfinite(loss)
        """,
        """
        finite = torch.ones((), dtype=torch.bool, device=device)
        for loss in losses:
            finite &= torch.isfinite(loss)
        assert finite
        """,
        f"{_GENERATED}/torch.isfinite.html",
        "The program goes on with bad values until it looks.",
    ),
    _advice(
        "read-between-graphs",
        "Keep the wait outside a CUDA graph",
        "A CUDA graph cannot hold a wait. Capture the work up to the read as one graph, keep copies of its output "
        "from replay to replay, and read them when several replays are queued.",
        """
        history = []
        for inputs in gpu_batches:
            graph_input.copy_(inputs)
            graph.replay()
            history.append(graph_loss.item())
        """,
        """
        kept = []
        for inputs in gpu_batches:
            graph_input.copy_(inputs)
            graph.replay()
            kept.append(graph_loss.clone())
        history = torch.stack(kept).tolist()
        """,
        f"{_STABLE}/notes/cuda.html",
        "The next replay overwrites the graph's output, so clone what is still needed.",
    ),
    _advice(
        "max-on-gpu",
        "Use PyTorch's max, sort, all, any",
        "torch.stack(values).max(), torch.maximum, torch.sort and the methods all() and any() compare on the GPU and "
        "read nothing back.",
        """
        largest = max(losses)
        ordered = sorted(losses)
        """,
        """
        values = torch.stack(losses)
        largest = values.max()
        ordered = list(values.sort().values)
        """,
        f"{_GENERATED}/torch.max.html",
    ),
    _advice(
        "compare-on-gpu",
        "Compare on the GPU",
        "(a == b).all() and torch.isclose(a, b).all() leave the answer in a GPU tensor. Use it there, or read it "
        "together with other values.",
        """
        same = torch.equal(x, y)
        close = torch.allclose(x, y)
        """,
        """
        same = (x == y).all()
        close = torch.isclose(x, y).all()
        """,
        f"{_GENERATED}/torch.isclose.html",
        "torch.equal also says whether the shapes agree; == broadcasts or raises.",
    ),
    _advice(
        "remove-output",
        "Take the output out of the loop",
        "Printing a tensor reads it, several times even. Shape, dtype and device are known on the CPU and cost "
        "nothing to print.",
        """
        y = x * 2
        print("y", y)
        """,
        """
        y = x * 2
        print("y", tuple(y.shape), y.dtype)
        """,
        _TUNING,
    ),
    _advice(
        "show-now-and-then",
        "Show the value now and then",
        "Nobody reads a line per step: show every hundredth value, and the wait comes a hundred times less often.",
        """
        for step, loss in enumerate(losses):
            print(f"step {step}: loss {loss:.3f}")
        """,
        """
        for step, loss in enumerate(losses):
            if step % 100 == 0:
                print(f"step {step}: loss {loss:.3f}")
        """,
        _TUNING,
        "Test the step number before the message is built: an f-string reads the value even if the logger drops it.",
    ),
    _advice(
        "stay-on-gpu",
        "Do the computation on the GPU",
        "What PyTorch can do on the CPU it can mostly do on the GPU, without the copy. Copy only the small result, if "
        "the CPU needs it at all.",
        """
        best = logits.cpu().argmax(dim=1)
        hits = (best == labels.cpu()).sum()
        """,
        """
        best = logits.argmax(dim=1)
        hits = (best == labels).sum()
        """,
        _TUNING,
    ),
    _advice(
        "torch-for-numpy",
        "Use PyTorch in place of NumPy",
        "Most NumPy functions have a PyTorch one that runs on the GPU. Mind the defaults: torch.std divides by n - 1, "
        "np.std by n.",
        """
        values = x.cpu().numpy()
        spread = np.std(values)
        highest = np.partition(values, -3)[-3:].mean()
        """,
        """
        spread = torch.std(x, correction=0)
        highest = torch.topk(x, 3).values.mean()
        """,
        f"{_STABLE}/torch.html",
    ),
    _advice(
        "copy-state-asynchronously",
        "Copy all tensors, wait once, then save",
        "Start the copies of all tensors with non_blocking=True, wait once, and save the CPU copies. The saving can "
        "then run in a thread; torch.distributed.checkpoint.async_save does that for large models.",
        """
        state = model.state_dict()
        torch.save(state, file)
        """,
        """
        state = {
            name: value.to("cpu", non_blocking=True)
            for name, value in model.state_dict().items()
        }
        torch.cuda.current_stream().synchronize()
        torch.save(state, file)
        """,
        "https://docs.pytorch.org/tutorials/recipes/distributed_async_checkpoint_recipe.html",
        "Before the synchronize() the copies hold arbitrary bytes. All of the state lies in pinned memory meanwhile.",
    ),
    _advice(
        "upload-pinned",
        "Upload from pinned memory without waiting",
        "The GPU can read pinned memory by itself. From there a copy with non_blocking=True returns at once, and "
        "later work on the same stream comes after it.",
        """
        inputs = batch.to(device)
        """,
        """
        pinned = batch.pin_memory()
        inputs = pinned.to(device, non_blocking=True)
        """,
        _PINNED,
        "Do not overwrite the pinned tensor before the copy is done (wait for an event first). Pinning copies too: "
        "let a DataLoader's thread do it, or fill pinned memory from the start. Without pinned memory "
        "non_blocking=True does not help.",
    ),
    _advice(
        "pin-in-data-loader",
        "Let the DataLoader pin, upload in the loop",
        "Return CPU tensors from the data set and from collate_fn, and pass pin_memory=True. With workers, a thread of "
        "the DataLoader pins the batches, and the loop uploads them with non_blocking=True.",
        """
        for inputs in DataLoader(dataset, batch_size=4):
            inputs = inputs.to(device)
            total = inputs.sum()
        """,
        """
        for inputs in DataLoader(dataset, batch_size=4, pin_memory=True):
            inputs = inputs.to(device, non_blocking=True)
            total = inputs.sum()
        """,
        f"{_STABLE}/data.html",
        "Batches of your own types need a pin_memory() method, or they are not pinned.",
    ),
    _advice(
        "create-on-gpu",
        "Create constants on the GPU",
        "torch.zeros, full, arange, linspace and the random functions with device= fill the memory on the GPU. "
        "Nothing is uploaded.",
        """
        weights = torch.tensor([2.0, 2.0, 2.0], device=device)
        positions = torch.arange(64).to(device)
        """,
        """
        weights = torch.full((3,), 2.0, device=device)
        positions = torch.arange(64, device=device)
        """,
        f"{_GENERATED}/torch.full.html",
        "Random functions give other numbers on the GPU than on the CPU for the same seed.",
    ),
    _advice(
        "upload-once",
        "Upload once, before the loop",
        "Move what stays the same out of the loop. In a module, register_buffer keeps constants beside the parameters "
        "and moves them along.",
        """
        for features in images:
            mean = torch.tensor([0.5, 0.4, 0.3], device=device)
            centred = features - mean
        """,
        """
        mean = torch.tensor([0.5, 0.4, 0.3], device=device)
        for features in images:
            centred = features - mean
        """,
        f"{_STABLE}/notes/modules.html",
    ),
    _advice(
        "construct-pinned",
        "Build the tensor in pinned memory",
        "torch.tensor with pin_memory=True puts the values into pinned memory, from which the upload does not wait.",
        """
        lengths = torch.tensor([3, 5, 8], device=device)
        """,
        """
        lengths = torch.tensor([3, 5, 8], pin_memory=True)
        lengths = lengths.to(device, non_blocking=True)
        """,
        f"{_GENERATED}/torch.tensor.html",
    ),
    _advice(
        "create-module-on-gpu",
        "Create the module on the GPU",
        "Inside `with torch.device(device):`, or with the argument device=, parameters are made and initialized on "
        "the GPU.",
        """
        layer = nn.Linear(256, 256).to(device)
        shape = layer.weight.shape
        """,
        """
        with torch.device(device):
            layer = nn.Linear(256, 256)
        shape = layer.weight.shape
        """,
        "https://docs.pytorch.org/tutorials/recipes/recipes/changing_default_device.html",
        "The initial weights differ from those made on the CPU with the same seed.",
    ),
    _advice(
        "convert-dtype-only",
        "Convert the dtype, not the device",
        "x.to(torch.float32) or x.float() converts on the device where the tensor is. So does x.type(torch.float32): "
        "a dtype, not a tensor type.",
        """
        weights = mask.type(torch.FloatTensor).to(device)
        """,
        """
        weights = mask.to(torch.float32)
        """,
        f"{_GENERATED}/torch.Tensor.to.html",
    ),
    _advice(
        "where-for-mask",
        "Keep the shape, blank out the rest",
        "Instead of picking elements, replace the others by a value that changes nothing: 0 for a sum, minus infinity "
        "for a maximum. The shape stays the same, and a CUDA graph can hold it.",
        """
        mean = x[mask].mean()
        """,
        """
        mean = torch.where(mask, x, 0.0).sum() / mask.sum()
        """,
        f"{_GENERATED}/torch.where.html",
        "Make values safe before a function with infinite slope, such as log or sqrt: the gradient of an element that "
        "is blanked out afterwards becomes NaN.",
    ),
    _advice(
        "ignore-index",
        "Mark targets to ignore",
        "Loss functions skip targets that have the ignore_index, -100 unless said otherwise. Overwrite the targets "
        "instead of picking rows.",
        """
        loss = F.cross_entropy(logits[keep], labels[keep])
        """,
        """
        targets = labels.masked_fill(~keep, -100)
        loss = F.cross_entropy(logits, targets)
        """,
        f"{_GENERATED}/torch.nn.functional.cross_entropy.html",
    ),
    _advice(
        "nonzero-static",
        "Give nonzero a size",
        "torch.nonzero_static returns a result of the given size and needs no wait. Use a count that is known, such as "
        "the k of a top-k mask, or an upper bound.",
        """
        positions = torch.nonzero(mask)
        """,
        """
        positions = torch.nonzero_static(mask, size=count)
        """,
        f"{_GENERATED}/torch.nonzero_static.html",
        "Positions that are too many are cut off without a word, and missing ones are -1, which indexes the last "
        "element. Needs PyTorch 2.7 on a GPU.",
    ),
    _advice(
        "where-for-mask-assign",
        "Assign with torch.where",
        "torch.where takes each element from one of two tensors of known shape. (x[mask] = 0.0, a plain number, does "
        "not wait either.)",
        """
        y = x.clone()
        y[mask] = (2 * x)[mask]
        """,
        """
        y = torch.where(mask, 2 * x, x)
        """,
        f"{_GENERATED}/torch.where.html",
    ),
    _advice(
        "masked-scatter",
        "Put packed values with masked_scatter",
        "masked_scatter puts consecutive values into the true positions of a mask, without counting them on the CPU.",
        """
        y = x.clone()
        y[mask] = packed
        """,
        """
        y = x.masked_scatter(mask, packed)
        """,
        f"{_GENERATED}/torch.Tensor.masked_scatter.html",
        "It accepts more values than true positions, so it does not notice a wrong count.",
    ),
    _advice(
        "mark-with-scatter",
        "Mark known values with scatter",
        "If the possible values are known, mark those that occur in a tensor with one place for each. Its size is "
        "fixed, and its sum is the number of different values.",
        """
        different = torch.unique(labels).numel()
        """,
        """
        seen = torch.zeros(10, dtype=torch.bool, device=device)
        seen.scatter_(0, labels, True)
        different = seen.sum()
        """,
        f"{_GENERATED}/torch.Tensor.scatter_.html",
    ),
    _advice(
        "count-with-scatter",
        "Count with scatter_add_",
        "torch.bincount and torch.unique read the data for the size of their result, bincount even with minlength. "
        "scatter_add_ counts into a tensor whose size you choose.",
        """
        class_counts = torch.bincount(labels, minlength=10)
        """,
        """
        class_counts = torch.zeros(10, dtype=torch.int64, device=device)
        class_counts.scatter_add_(0, labels, torch.ones_like(labels))
        """,
        f"{_GENERATED}/torch.Tensor.scatter_add_.html",
        "A label outside the range is an error on the GPU, which surfaces at a later call.",
    ),
    _advice(
        "give-output-size",
        "Give repeat_interleave its output size",
        "If the sum of the counts is known on the CPU, pass it as output_size, and nothing is read back.",
        """
        rows = torch.repeat_interleave(labels, counts)
        """,
        """
        rows = torch.repeat_interleave(labels, counts, output_size=total_count)
        """,
        f"{_GENERATED}/torch.repeat_interleave.html",
        "The size must be the exact sum.",
    ),
    _advice(
        "index-select",
        "Select with a GPU index",
        "Indexing with a tensor of one or more dimensions stays on the GPU; only one without dimensions is read back "
        "as a number. index_select and gather take GPU indexes too.",
        """
        chosen = x[position]
        """,
        """
        chosen = x.index_select(0, position.reshape(1)).squeeze(0)
        """,
        f"{_GENERATED}/torch.index_select.html",
    ),
    _advice(
        "mask-by-position",
        "Replace the slice by a mask of positions",
        "Compare positions with the GPU value and blank out the rest. The shape stays fixed.",
        """
        head_sum = x[:position].sum()
        """,
        """
        before_it = torch.arange(x.numel(), device=device) < position
        head_sum = torch.where(before_it, x, 0.0).sum()
        """,
        f"{_GENERATED}/torch.where.html",
        "The GPU works on all elements. That pays unless the slice is a small part of a large tensor.",
    ),
    _advice(
        "triton-kernel",
        "Write a small Triton kernel",
        "A kernel can read the size or bound from GPU memory by itself. That helps where code with a fixed shape "
        "would need many small operations.",
        """
        head_sum = x[:position].sum()
        """,
        """
        @triton.jit
        def add_head(x, end, total, size, BLOCK: tl.constexpr):
            at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            values = tl.load(x + at, mask=(at < size) & (at < tl.load(end)), other=0.0)
            tl.atomic_add(total, tl.sum(values))

        head_sum = torch.zeros((), device=device)
        add_head[(triton.cdiv(x.numel(), 1024),)](x, position, head_sum, x.numel(), BLOCK=1024)
        """,
        "https://docs.pytorch.org/tutorials/recipes/torch_compile_user_defined_triton_kernel_tutorial.html",
        "Triton compiles the kernel at its first call. Atomic additions sum in any order, so results differ in the "
        "last digits.",
    ),
    _advice(
        "slice-for-list",
        "Use a slice for regular indexes",
        "Bounds and steps of a slice are plain numbers and need no upload. The result is a view, so nothing is copied "
        "either.",
        """
        rows = x[[0, 2, 4]]
        """,
        """
        rows = x[0:6:2]
        """,
        f"{_STABLE}/tensor_view.html",
        "A view shares memory with its tensor: clone it before changing it.",
    ),
    _advice(
        "keep-index-on-gpu",
        "Keep the index on the GPU",
        "Upload the index once, before the loop, and index with the GPU tensor.",
        """
        for features in images:
            rows = features[:, [2, 0, 1]]
        """,
        """
        order = torch.tensor([2, 0, 1], device=device)
        for features in images:
            rows = features[:, order]
        """,
        f"{_GENERATED}/torch.index_select.html",
    ),
    _advice(
        "fill-through-view",
        "Fill through a view",
        "x[0] = 1.0 uploads the number; x[0].fill_(1.0) passes it to the kernel.",
        """
        y = x.clone()
        y[0] = 1.0
        """,
        """
        y = x.clone()
        y[0].fill_(1.0)
        """,
        f"{_GENERATED}/torch.Tensor.fill_.html",
        "It works for numbers and slices, which give a view. Indexing by a tensor or list gives a copy, and filling "
        "that changes nothing.",
    ),
    _advice(
        "index-fill",
        "Fill indexed positions with index_fill_",
        "x[index] = 1.0 uploads the number; x.index_fill_(0, index, 1.0) passes it to the kernel. For values that are "
        "on the GPU already, x[index] = values does not wait.",
        """
        y = x.clone()
        y[index] = 1.0
        """,
        """
        y = x.clone()
        y.index_fill_(0, index, 1.0)
        """,
        f"{_GENERATED}/torch.Tensor.index_fill_.html",
    ),
    _advice(
        "one-hot-classes",
        "Give one_hot the number of classes",
        "Without num_classes, one_hot reads the largest label to find out. With it, nothing is read on a GPU.",
        """
        encoded = F.one_hot(labels)
        """,
        """
        encoded = F.one_hot(labels, num_classes=10)
        """,
        f"{_GENERATED}/torch.nn.functional.one_hot.html",
        "A label outside the range is an error on the GPU, which surfaces at a later call.",
    ),
    _advice(
        "linalg-without-check",
        "Use the variant without error check",
        "cholesky_ex, inv_ex, solve_ex, lu_factor_ex and ldl_factor_ex return the error code as a GPU tensor instead "
        "of raising. Look at it later, or not at all.",
        """
        factor = torch.linalg.cholesky(matrix)
        """,
        """
        factor, info = torch.linalg.cholesky_ex(matrix)
        """,
        f"{_GENERATED}/torch.linalg.cholesky_ex.html",
        "Where info is not 0, the result is wrong, and nothing says so.",
    ),
    _advice(
        "clip-without-error",
        "Clip without the error",
        "Leave out error_if_nonfinite. The norm is returned as a GPU tensor: collect it, and look at it later.",
        """
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        """,
        """
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        """,
        f"{_GENERATED}/torch.nn.utils.clip_grad_norm_.html",
        "A norm that is not finite spoils all gradients, and with the next step the weights.",
    ),
    _advice(
        "fused-optimizer",
        "Use a fused optimizer",
        "Adam, AdamW and SGD with fused=True take the scaler's flag as a GPU tensor and skip the update on the GPU.",
        """
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        scaler.scale(model(inputs).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        weight = model.weight.detach()
        """,
        """
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        scaler.scale(model(inputs).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        weight = model.weight.detach()
        """,
        f"{_STABLE}/optim.html",
    ),
    _advice(
        "bfloat-without-scaler",
        "Use bfloat16 without a scaler",
        "bfloat16 has the range of float32, so gradients seldom overflow or vanish, and no scaler is needed.",
        """
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(inputs).float().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        """,
        """
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(inputs).float().mean()
        loss.backward()
        optimizer.step()
        """,
        f"{_STABLE}/amp.html",
        "bfloat16 has fewer digits than float16: check that the model still learns as well.",
    ),
    _advice(
        "remove-synchronize",
        "Take the wait out",
        "Work on one stream, NCCL's collectives included, runs in the order in which it was queued, and a read by the "
        "CPU waits by itself. An extra synchronize() adds nothing.",
        """
        y = x * 2
        torch.cuda.synchronize()
        z = y + 1
        """,
        """
        y = x * 2
        z = y + 1
        """,
        f"{_STABLE}/notes/cuda.html",
        "Keep it where the CPU reads the target of a copy made with non_blocking=True, or where memory is handed to "
        "code that uses another stream.",
    ),
    _advice(
        "time-with-events",
        "Time with CUDA events",
        "Events take the time on the GPU, while the CPU goes on. Ask for the elapsed time later, where the program "
        "waits anyway.",
        """
        torch.cuda.synchronize()
        began = time.perf_counter()
        product = work @ work
        torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        """,
        """
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record()
        product = work @ work
        end.record()
        end.synchronize()
        milliseconds = start.elapsed_time(end)
        """,
        f"{_GENERATED}/torch.cuda.streams.Event.html",
        "elapsed_time raises if the events are not done: wait for the last one, best at the end of the epoch.",
    ),
    _advice(
        "wait-on-gpu",
        "Let streams wait for each other",
        "stream.wait_stream() and event.wait() make a stream wait on the GPU. The CPU goes on queueing.",
        """
        main = torch.cuda.current_stream()
        main.synchronize()
        with torch.cuda.stream(side):
            y = x * 2
        side.synchronize()
        z = y + 1
        """,
        """
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            y = x * 2
        main.wait_stream(side)
        y.record_stream(main)
        z = y + 1
        """,
        f"{_GENERATED}/torch.cuda.streams.Stream.html",
        "Tensors used on a stream other than the one that made them need record_stream(), or their memory may be given "
        "away too early.",
    ),
    _advice(
        "copy-with-async-call",
        "Call cudaMemcpyAsync with pinned memory",
        "Name the stream in the copy and use pinned memory, and the call returns at once. In C++ take the stream from "
        "at::cuda::getCurrentCUDAStream().",
        """
        cupy.cuda.runtime.memcpy(values.data.ptr, host_values.ctypes.data, values.nbytes, 1)
        y = values * 2
        """,
        """
        stream = cupy.cuda.get_current_stream()
        source = pinned_values.ctypes.data
        cupy.cuda.runtime.memcpyAsync(values.data.ptr, source, values.nbytes, 1, stream.ptr)
        y = values * 2
        """,
        "https://docs.cupy.dev/en/stable/reference/generated/cupy.cuda.runtime.memcpyAsync.html",
        "Leave the CPU memory alone until the copy is done. For a copy to the CPU, wait for an event or the stream "
        "before reading it.",
    ),
    _advice(
        "fill-with-async-call",
        "Call cudaMemsetAsync",
        "Name the stream in the call and it returns at once. fill_, zero_ and CuPy's fill do so by themselves.",
        """
        cupy.cuda.runtime.memset(values.data.ptr, 0, values.nbytes)
        y = values + 1
        """,
        """
        stream = cupy.cuda.get_current_stream()
        cupy.cuda.runtime.memsetAsync(values.data.ptr, 0, values.nbytes, stream.ptr)
        y = values + 1
        """,
        "https://docs.cupy.dev/en/stable/reference/generated/cupy.cuda.runtime.memsetAsync.html",
    ),
    _advice(
        "allocate-from-pool",
        "Take memory from a pool",
        "PyTorch's and CuPy's memory pools keep freed memory and hand it out again, in the order of the stream and "
        "without a wait. Give extensions a tensor as scratch space instead of cudaMalloc and cudaFree.",
        """
        scratch = cupy.cuda.runtime.malloc(1 << 20)
        y = values * 2
        cupy.cuda.runtime.free(scratch)
        """,
        """
        scratch = cupy.cuda.alloc(1 << 20)
        y = values * 2
        del scratch
        """,
        "https://docs.cupy.dev/en/stable/user_guide/memory.html",
    ),
    _advice(
        "remove-empty-cache",
        "Take empty_cache() out",
        "Memory in the cache is used again by the next allocation, so the program needs no empty_cache(). It helps "
        "only if another process needs the memory.",
        """
        scratch = torch.zeros(1 << 22, device=device)
        del scratch
        torch.cuda.empty_cache()
        y = x * 2
        """,
        """
        scratch = torch.zeros(1 << 22, device=device)
        del scratch
        y = x * 2
        """,
        f"{_GENERATED}/torch.cuda.memory.empty_cache.html",
    ),
    _advice(
        "same-buffer-sizes",
        "Allocate the largest size once",
        "Changing sizes break the cache into pieces that fit nothing. Pad to a few sizes or use part of one buffer, "
        "make the batch smaller, or start with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
        """
        for rows in (1000, 1100, 1200):
            buffer = torch.ones(rows, 64, device=device)
            total = buffer.sum()
        """,
        """
        whole = torch.empty(1200, 64, device=device)
        for rows in (1000, 1100, 1200):
            buffer = whole[:rows].fill_(1.0)
            total = buffer.sum()
        """,
        f"{_STABLE}/notes/cuda.html",
    ),
    _advice(
        "reuse-pinned-memory",
        "Allocate pinned memory once",
        "Make one pinned tensor of the largest size before the loop, with a slot for each upload under way, and fill "
        "its slots in turn.",
        """
        for batch in batches:
            inputs = batch.pin_memory().to(device, non_blocking=True)
        """,
        """
        slots = torch.empty(len(batches), 256, pin_memory=True)
        for slot, batch in zip(slots, batches):
            slot.copy_(batch)
            inputs = slot.to(device, non_blocking=True)
        """,
        _PINNED,
        "Before a slot is filled again, its last upload must be done: keep an event for each slot and wait for it.",
    ),
    _advice(
        "remove-barrier",
        "Take the barrier out",
        "Collectives meet by themselves, on the GPU. A barrier is needed only where ranks share something else, such "
        "as a file, and then once, not in each step.",
        """
        dist.barrier()
        dist.all_reduce(y)
        mean = y / dist.get_world_size()
        """,
        """
        dist.all_reduce(y)
        mean = y / dist.get_world_size()
        """,
        f"{_STABLE}/distributed.html",
    ),
    _advice(
        "cupy-accumulate",
        "Add up on the GPU, read once",
        "Keep the running sum in a CuPy array and convert it once, at the end.",
        """
        total = 0.0
        for row in table:
            total += float(row.max())
        """,
        """
        total = cupy.zeros((), dtype=table.dtype)
        for row in table:
            total += row.max()
        total = float(total)
        """,
        "https://docs.cupy.dev/en/stable/user_guide/performance.html",
    ),
    _advice(
        "cupy-read-together",
        "Read several values at once",
        "Collect the values in one CuPy array, copy it with a single get(), and print from that.",
        """
        for row in table:
            highest = row.max().get()
            print(highest)
        """,
        """
        maxima = table.max(axis=1).get()
        for highest in maxima:
            print(highest)
        """,
        "https://docs.cupy.dev/en/stable/reference/generated/cupy.ndarray.html",
    ),
    _advice(
        "cupy-copy-asynchronously",
        "Copy without waiting, wait before reading",
        "get() with blocking=False into pinned memory returns at once. Queue more work, then synchronize the stream "
        "just before the CPU reads the result.",
        """
        result = values.get()
        doubled = values * 2
        best = result.argmax()
        """,
        """
        stream = cupy.cuda.get_current_stream()
        result = cupyx.empty_pinned(values.shape, values.dtype)
        values.get(out=result, blocking=False)
        copied = stream.record()
        doubled = values * 2
        copied.synchronize()
        best = result.argmax()
        """,
        "https://docs.cupy.dev/en/stable/reference/generated/cupy.asnumpy.html",
        "Until the event or the stream has been waited for, the result holds arbitrary bytes.",
    ),
    _advice(
        "cupy-where",
        "Choose on the GPU with cupy.where",
        "Compute both outcomes and let cupy.where choose. That costs a little GPU work and no wait.",
        """
        if values.sum() > 0:
            values = values * 0.5
        """,
        """
        values = cupy.where(values.sum() > 0, values * 0.5, values)
        """,
        "https://docs.cupy.dev/en/stable/reference/generated/cupy.where.html",
        "Both outcomes are computed, so this fits cheap ones without side effects.",
    ),
    _advice(
        "cupy-where-for-mask",
        "Keep the shape, blank out the rest",
        "Instead of picking elements, replace the others by a value that changes nothing: 0 for a sum, minus infinity "
        "for a maximum. The shape stays the same.",
        """
        total = values[values > 0].sum()
        """,
        """
        total = cupy.where(values > 0, values, 0).sum()
        """,
        "https://docs.cupy.dev/en/stable/reference/generated/cupy.where.html",
    ),
    _advice(
        "numba-device-arrays",
        "Give kernels device arrays",
        "Copy the input with cuda.to_device once, keep the array on the GPU between kernels, and copy the last result "
        "back.",
        """
        for _ in range(3):
            double[8, 128](numbers)
        result = numbers
        """,
        """
        on_gpu = cuda.to_device(numbers)
        for _ in range(3):
            double[8, 128](on_gpu)
        result = on_gpu.copy_to_host()
        """,
        "https://nvidia.github.io/numba-cuda/user/memory.html",
    ),
    _advice(
        "numba-copy-asynchronously",
        "Copy on a stream, wait before reading",
        "With a stream and a pinned array, copy_to_host returns at once. Do other work, then synchronize the stream "
        "just before the CPU reads the result.",
        """
        double[8, 128](device_numbers)
        result = device_numbers.copy_to_host()
        """,
        """
        stream = cuda.stream()
        double[8, 128, stream](device_numbers)
        result = cuda.pinned_array(device_numbers.shape, device_numbers.dtype)
        device_numbers.copy_to_host(result, stream=stream)
        stream.synchronize()
        """,
        "https://nvidia.github.io/numba-cuda/user/memory.html",
        "Until the stream has been waited for, the result holds arbitrary bytes. Kernel and copy must use one stream.",
    ),
    _advice(
        "triton-fixed-config",
        "Tune beforehand, then fix the configuration",
        "Tune on the sizes that occur before the loop, or fix the best configuration in the code. Round the key to a "
        "few sizes, and pass cache_results=True to keep results between runs.",
        """
        y = torch.empty_like(x)
        tuned_copy[lambda config: (triton.cdiv(x.numel(), config["BLOCK"]),)](x, y, x.numel())
        """,
        """
        y = torch.empty_like(x)
        copy_kernel[(triton.cdiv(x.numel(), 512),)](x, y, x.numel(), BLOCK=512)
        """,
        "https://triton-lang.org/main/python-api/generated/triton.autotune.html",
    ),
    _advice(
        "jax-read-later",
        "Keep values in JAX, read them together",
        "Collect the arrays and fetch them with one jax.device_get after several steps. For conditions use jnp.where "
        "or jax.lax.cond.",
        """
        history = []
        for _ in range(3):
            state = step(state)
            history.append(float(state))
        """,
        """
        history = []
        for _ in range(3):
            state = step(state)
            history.append(state)
        history = [float(value) for value in jax.device_get(history)]
        """,
        "https://docs.jax.dev/en/latest/async_dispatch.html",
    ),
    _advice(
        "find-with-debug-mode",
        "Let PyTorch name the line",
        "Run a few steps with torch.cuda.set_sync_debug_mode('warn'): PyTorch warns at most lines that wait. Or "
        "profile again with exact stacks for every CUDA call (--all-backtraces).",
        """
        positive = x[mask]
        """,
        """
        torch.cuda.set_sync_debug_mode("warn")
        positive = x[mask]
        torch.cuda.set_sync_debug_mode("default")
        """,
        f"{_GENERATED}/torch.cuda.set_sync_debug_mode.html",
        "It does not see explicit synchronization, the allocator, torch.distributed, or other libraries.",
    ),
)

ADVICE: Mapping[str, model.Advice] = {advice.id: advice for advice in _ADVICE}


def cause_texts(ids: Iterable[str]) -> tuple[model.CauseText, ...]:
    """The texts of these causes, each once, in the order of `CAUSES`."""
    wanted = set(ids)
    return tuple(entry.text for id, entry in CAUSES.items() if id in wanted)


def advice_texts(ids: Iterable[str]) -> tuple[model.Advice, ...]:
    """These pieces of advice, each once, in the order of `ADVICE`."""
    wanted = set(ids)
    return tuple(advice for id, advice in ADVICE.items() if id in wanted)
