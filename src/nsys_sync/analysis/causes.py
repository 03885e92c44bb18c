"""Why an operation synchronized: ordered rules over its native stack, its API calls and the library's Python frames.

A rule claims something only where everything it asks for is there; nothing is concluded from what is missing. So a
stack that is truncated or shuffled gives a weaker claim or none, not a wrong one. Another call's stack is found out
where the call, the copy's direction or its memory contradict it; where all of them agree, nothing in a trace can.
Frames as PyTorch 2.11, CuPy 14, Numba 0.68, Triton 3.6 and JAX 0.11 name them (captures of an H200).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest

import numpy as np
import pandas as pd

from nsys_sync import model
from nsys_sync.analysis.intervals import IntArray
from nsys_sync.trace.api_names import ApiClass, base_name, classify

UNKNOWN = "unknown"
NEEDLES = (
    *("THPVariable_", "THCP", "THPStorage_", "Tensor_new", "__pyx_pw_"),
    *("_local_scalar_dense_cuda", "copy_kernel_cuda", "nonzero_cuda", "release_cached_blocks"),
)
"""Parts of the symbols by which native stacks are told apart before one of each kind is read whole."""
_INTERPRETER = "_PyEval_EvalFrame"
_CUDA_MODULE = re.compile(r"^lib(cuda|cudart|cupti|nvrtc)\b")
_TORCH_MODULE = re.compile(r"^lib(torch|c10)")
_SYSTEM_MODULE = re.compile(r"^lib(c|pthread|stdc\+\+|gcc_s)\b")
_BINDING = re.compile(
    r"\b(THPVariable_\w+|THCP\w+|THPStorage_\w+|(?<=tensors::)Tensor_new)\b|\b__pyx_pw_\w*_\d+([A-Za-z_]\w*?)(?=\(|$)"
)
_OPERATOR = re.compile(r"\bat::_ops::(\w+?)(?:_(?:Tensor|self_Tensor|Scalar))?::call\b")

READ, READ_PAGEABLE = "DtoH copy", "DtoH copy to pageable memory"
READ_OR_LOST = "DtoH copy, or a stream synchronize whose copy the trace has lost"
UPLOAD, EXPLICIT, ANY = "HtoD copy from pageable memory", "no copy", "anything"
FREE, COPY, MEMSET = "free", "blocking copy", "memset"
PROVED_BY_THE_CALL = (FREE, COPY, MEMSET, "cudaDeviceSynchronize", "cuCtxSynchronize")


@dataclass(frozen=True)
class Rule:
    """First match wins. All that is given must be there.

    does: what the CUDA calls did. binding: the frame through which Python entered the framework, innermost one.
    inner: frames between the CUDA call and the binding, each to be found; a `|` stands between a frame and the next one
    out. outer: likewise, between the binding and the interpreter. python: `file:function` of a library's frame between
    the user's line and the call. All are regular expressions. `python_suffices`: that frame alone tells the cause, even
    where nothing is known of the CUDA calls.
    """

    cause: str
    operation: str | None = None
    does: str = ANY
    binding: str | None = None
    inner: tuple[str, ...] = ()
    outer: tuple[str, ...] = ()
    python: str | None = None
    python_suffices: bool = False


_CALLED_BY_PYTHON = r"synchronize\(.*\|PyObject_Vectorcall$"
_SCALAR, _NONZERO, _COPY = "_local_scalar_dense_cuda", "nonzero_cuda", "copy_kernel_cuda"

RULES: tuple[Rule, ...] = (
    # Library code in Python that syncs for a reason of its own: before the operation that it uses.
    Rule("print", "print(tensor)", READ_OR_LOST, python=r"torch/_tensor_str\.py:", python_suffices=True),
    Rule("print", "format(tensor)", READ_OR_LOST, python=r"torch/_tensor\.py:__format__$", python_suffices=True),
    Rule(
        "truth-value", "value in tensor", READ_OR_LOST, python=r"torch/_tensor\.py:__contains__$", python_suffices=True
    ),
    Rule(
        *("clip-grad", "clip_grad_norm_(error_if_nonfinite=True)", READ_OR_LOST),
        python=r"torch/nn/utils/clip_grad\.py:",
        python_suffices=True,
    ),
    Rule(
        "grad-scaler",
        "GradScaler.step()",
        READ_OR_LOST,
        python=r"torch/(cuda/)?amp/grad_scaler\.py:",
        python_suffices=True,
    ),
    Rule("checkpoint", "torch.save()", READ_OR_LOST, python=r"torch/serialization\.py:_?save$", python_suffices=True),
    Rule("module-to", "module.to()", UPLOAD, python=r"torch/nn/modules/module\.py:_apply$"),
    Rule("triton-benchmark", "Triton autotuning", python=r"triton/runtime/autotuner\.py:", python_suffices=True),
    Rule("triton-benchmark", "triton.testing.do_bench()", python=r"triton/testing\.py:do_bench", python_suffices=True),
    Rule(
        "distributed",
        "torch.distributed",
        python=r"torch/distributed/|torch/nn/parallel/distributed\.py:",
        python_suffices=True,
    ),
    Rule("data-loader", "DataLoader", python=r"torch/utils/data/_utils/pin_memory\.py:", python_suffices=True),
    Rule("data-loader", "DataLoader", UPLOAD, python=r"torch/utils/data/"),
    Rule("empty-cache", "torch.cuda.empty_cache()", FREE, python=r"torch/cuda/memory\.py:empty_cache$"),
    Rule("numba", "numba copy_to_host()", READ_OR_LOST, python=r"numba/cuda/cudadrv/devicearray\.py:copy_to_host$"),
    Rule("numba", "numba to_device()", UPLOAD, python=r"numba/cuda/"),
    Rule("numba", "numba.cuda.synchronize()", EXPLICIT, python=r"numba/cuda/.*:synchronize$"),
    # What PyTorch's own binding says.
    Rule("tolist", "tensor.tolist()", READ_PAGEABLE, "THPVariable_tolist", (_COPY,)),
    Rule("scalar-read", "tensor.item()", READ_OR_LOST, "THPVariable_item", (_SCALAR,)),
    Rule("scalar-read", "float(tensor)", READ_OR_LOST, "THPVariable_float_scalar", (_SCALAR,)),
    Rule("scalar-read", "int(tensor)", READ_OR_LOST, "THPVariable_integral_scalar", (_SCALAR,)),
    Rule("scalar-read", "complex(tensor)", READ_OR_LOST, "THPVariable_complex_scalar", (_SCALAR,)),
    Rule("truth-value", "bool(tensor)", READ_OR_LOST, "THPVariable_is_nonzero", (_SCALAR,)),
    Rule("truth-value", "bool(tensor)", READ_OR_LOST, "THPVariable_bool_scalar", (_SCALAR,)),
    Rule(
        "gpu-index",
        "slice by a GPU index",
        READ_OR_LOST,
        "THPVariable_index_scalar",
        (_SCALAR,),
        ("_PyEval_SliceIndex",),
    ),
    Rule("gpu-index", "a GPU value as index", READ_OR_LOST, "THPVariable_index_scalar", (_SCALAR,)),
    Rule("mask-index", "tensor[mask]", READ_OR_LOST, "THPVariable_getitem", (_NONZERO,)),
    Rule("gpu-scalar", "tensor[GPU scalar]", READ_OR_LOST, "THPVariable_getitem", (_SCALAR,)),
    Rule("cpu-index", "tensor[index]", UPLOAD, "THPVariable_getitem", (_COPY,)),
    Rule("mask-assign", "tensor[mask] = …", READ_OR_LOST, "THPVariable_setitem", (_NONZERO,)),
    Rule("gpu-scalar", "tensor[GPU scalar] = …", READ_OR_LOST, "THPVariable_setitem", (_SCALAR,)),
    Rule("cpu-index", "tensor[index] = …", UPLOAD, "THPVariable_setitem", (_COPY, "indexing_tensor_from_data")),
    Rule("cpu-index", "tensor[index] = …", UPLOAD, "THPVariable_setitem", (_COPY, "make_info")),
    Rule("assign-value", "tensor[…] = value", UPLOAD, "THPVariable_setitem", (_COPY, "indexing::set_item")),
    Rule(
        "assign-value",
        "tensor[…] = value",
        UPLOAD,
        "THPVariable_setitem",
        (_COPY, r"Tensor::to\(.*\|.*index_put_impl_"),
    ),
    Rule("assign-value", "tensor[…] = value", UPLOAD, "THPVariable_setitem", (_COPY, r"copy_::call\(.*\|$")),
    Rule("upload", "tensor[…] = …", UPLOAD, "THPVariable_setitem", (_COPY,)),
    Rule("nonzero", "torch.nonzero()", READ_OR_LOST, "THPVariable_nonzero", (_NONZERO,)),
    Rule("nonzero", "torch.argwhere()", READ_OR_LOST, "THPVariable_argwhere", (_NONZERO,)),
    Rule("nonzero", "torch.where(condition)", READ_OR_LOST, "THPVariable_where", (_NONZERO,)),
    Rule("masked-select", "torch.masked_select()", READ_OR_LOST, "THPVariable_masked_select", (_NONZERO,)),
    Rule("unique", "torch.unique()", READ_OR_LOST, "THPVariable__unique2", ("_unique2_cuda",)),
    Rule("unique", "torch.unique()", READ_OR_LOST, "THPVariable_unique_dim", ("unique_dim_cuda",)),
    Rule(
        "unique",
        "torch.unique_consecutive()",
        READ_OR_LOST,
        "THPVariable_unique_consecutive",
        ("unique_consecutive_cuda",),
    ),
    Rule("repeat-interleave", "torch.repeat_interleave()", READ_OR_LOST, "THPVariable_repeat_interleave", (_SCALAR,)),
    Rule("gpu-index", "torch.arange(GPU scalar)", READ_OR_LOST, "THPVariable_arange", (_SCALAR, "PythonArgs::scalar")),
    Rule("gpu-index", "split by GPU sizes", READ_OR_LOST, r"THPVariable_split\w*", (_SCALAR, "PythonArgs::symintlist")),
    Rule(
        "gpu-index", "a shape from a GPU value", READ_OR_LOST, r"THPVariable_\w+", (_SCALAR, "PythonArgs::symintlist")
    ),
    Rule("compare", "torch.equal()", READ_OR_LOST, "THPVariable_equal", (_SCALAR,)),
    Rule("compare", "torch.allclose()", READ_OR_LOST, "THPVariable_allclose", (_SCALAR,)),
    Rule("to-cpu", "tensor.cpu()", READ_PAGEABLE, "THPVariable_cpu", (_COPY,)),
    Rule("to-cpu", "tensor.to()", READ_PAGEABLE, "THPVariable_to", (_COPY,)),
    Rule("to-cpu", "tensor.copy_()", READ, "THPVariable_copy_", (_COPY,)),
    Rule("to-cpu", "storage.cpu()", READ, "THPStorage_copy_", (_COPY,)),
    Rule("numpy", "tensor.numpy()", READ_PAGEABLE, "THPVariable_numpy", (_COPY,)),
    Rule("legacy-type-download", "tensor.type()", READ_PAGEABLE, "THPVariable_type", (_COPY,)),
    Rule("legacy-type", "tensor.type()", UPLOAD, "THPVariable_type", (_COPY,)),
    Rule("upload", "tensor.cuda()", UPLOAD, "THPVariable_cuda", (_COPY,)),
    Rule("upload", "tensor.to()", UPLOAD, "THPVariable_to", (_COPY,)),
    Rule("upload", "tensor.copy_()", UPLOAD, "THPVariable_copy_", (_COPY,)),
    Rule("construct", "torch.tensor(device=…)", UPLOAD, "THPVariable_tensor", (_COPY,)),
    Rule("construct", "torch.as_tensor(device=…)", UPLOAD, "THPVariable_as_tensor", (_COPY,)),
    Rule("construct", "tensor.new_tensor()", UPLOAD, "THPVariable_new_tensor", (_COPY,)),
    Rule("legacy-constructor", "torch.cuda.XTensor(list)", UPLOAD, "Tensor_new", (_COPY, "legacy_tensor")),
    Rule(
        "linalg-check", "torch.linalg error check", READ_OR_LOST, r"THPVariable_\w+", (_SCALAR, "_linalg_check_errors")
    ),
    Rule("device-synchronize", "torch.cuda.synchronize()", EXPLICIT, "THCPModule_cudaSynchronize"),
    Rule("event-synchronize", "event.synchronize()", EXPLICIT, "THCPEvent_synchronize"),
    Rule("stream-synchronize", "stream.synchronize()", EXPLICIT, "THCPStream_synchronize"),
    Rule("empty-cache", "torch.cuda.empty_cache()", FREE, "THCPModule_emptyCache"),
    Rule("allocator-retry", "caching allocator", FREE, inner=("release_cached_blocks",)),
    Rule("distributed", "NCCL", inner=("c10d::",)),
    # CuPy's compiled modules: what was asked for stands further out than the read that it ended in.
    Rule("cupy-print", "print(array)", READ_OR_LOST, binding="__str__|__repr__|__format__"),
    Rule("cupy-nonzero", "cupy.nonzero()", READ_OR_LOST, inner=("_ndarray_nonzero",)),
    Rule("cupy-nonzero", "array[mask]", READ_OR_LOST, inner=("_mask_indexing",)),
    Rule("cupy-truth", "bool(array)", READ_OR_LOST, inner=("_ndarray_base_get", "__nonzero__")),
    Rule("cupy-read", "array.tolist()", READ_OR_LOST, inner=("_ndarray_base_get", "_ndarray_base_tolist")),
    Rule("cupy-read", "array.item()", READ_OR_LOST, inner=("_ndarray_base_get", "_ndarray_base_item")),
    Rule("cupy-read", "float(array)", READ_OR_LOST, inner=("_ndarray_base_get", "__float__")),
    Rule("cupy-read", "int(array)", READ_OR_LOST, inner=("_ndarray_base_get", "__int__")),
    Rule("cupy-read", "array.get()", READ_OR_LOST, inner=("_ndarray_base_get",)),
    Rule("device-synchronize", "cupy Device.synchronize()", EXPLICIT, inner=("_6Device_synchronize",)),
    Rule(
        "event-synchronize",
        "cupy Event.synchronize()",
        EXPLICIT,
        inner=(r"eventSynchronize\(.*_5Event_\d+synch", _CALLED_BY_PYTHON),
    ),
    Rule(
        "stream-synchronize",
        "cupy Stream.synchronize()",
        EXPLICIT,
        inner=(r"streamSynchronize\(.*_BaseStream_\d+synch", _CALLED_BY_PYTHON),
    ),
    Rule("cupy-read", "cupy.asnumpy()", READ_OR_LOST, python=r"cupy/__init__\.py:asnumpy$"),
    Rule("cupy-nonzero", "cupy.nonzero()", READ_OR_LOST, python=r"cupy/_sorting/search\.py:(nonzero|argwhere|where)$"),
    Rule("xla", "JAX", inner=("stream_executor::",)),
    Rule("xla", "JAX", inner=("xla::",)),
    Rule("xla", "JAX", python=r"(^|/)jax/"),
    # PyTorch operators that have no rule of their own.
    Rule("operator-read", None, READ_OR_LOST, r"THPVariable_\w+", (_SCALAR,)),
    Rule("operator-read", None, READ_OR_LOST, r"THPVariable_\w+", (_NONZERO,)),
    Rule("operator-read", None, READ, r"THPVariable_\w+", (_COPY,)),
    Rule("operator-upload", None, UPLOAD, r"THPVariable_\w+", (_COPY,)),
    Rule("operator-read", None, READ_OR_LOST, inner=(_SCALAR, "at::_ops::")),
    # Python frames alone, where the native stack is missing or says nothing.
    Rule("device-synchronize", "torch.cuda.synchronize()", EXPLICIT, python=r"torch/cuda/__init__\.py:synchronize$"),
    Rule(
        *("stream-synchronize", "stream.synchronize()", "cudaStreamSynchronize"),
        python=r"torch/cuda/streams\.py:synchronize$",
        python_suffices=True,
    ),
    Rule("device-synchronize", None, "cudaDeviceSynchronize"),
    Rule("device-synchronize", None, "cuCtxSynchronize"),
    Rule("memcpy", None, COPY),
    Rule("upload", None, UPLOAD),
    Rule("memset", None, MEMSET),
    Rule("free", None, FREE),
)


@dataclass(frozen=True)
class Facts:
    """What the trace knows of one operation. `apis` are base names, the last one is the call that has the stacks.

    `native` is (symbol, module) innermost first, None without a stack; `library` are `file:function` of the Python
    frames inside the user's, innermost first; `exact` says that these are the call's own stack and not a sample's.
    """

    apis: tuple[str, ...]
    copy_kind: str | None
    src_memory: str | None
    dst_memory: str | None
    native: tuple[tuple[str, str], ...] | None
    library: tuple[str, ...]
    exact: bool


@dataclass(frozen=True)
class Finding:
    """The cause, and the operation by the framework's name for it (None: no name)."""

    cause: model.Cause
    operation: str | None


@lru_cache(maxsize=20_000)
def find_cause(facts: Facts) -> Finding:
    """The first rule that fits."""
    segment = _between_cuda_and_python(facts)
    for rule in RULES:
        evidence = _evidence(rule, facts, segment)
        if evidence is not None:
            native = any(text.startswith("native") for text in evidence)
            certain = native or (rule.python is not None and facts.exact) or rule.does in PROVED_BY_THE_CALL
            operation = rule.operation or _operator(segment)
            return Finding(model.Cause(rule.cause, "certain" if certain else "likely", evidence), operation)
    reason = "no rule fits its stack" if facts.native or facts.library else "it has no stack"
    return Finding(model.Cause(UNKNOWN, "open", (f"{_calls(facts)}; {reason}",)), _operator(segment))


def told_by(cause: str, kind: model.Kind) -> frozenset[str]:
    """Which stacks (`Python`, `native`) tell whether an operation of this kind has the cause.

    Empty where its CUDA calls rule it out.
    """
    facts = Facts(kind.apis, kind.copy_kind, kind.src_memory, kind.dst_memory, None, (), False)
    rules = [rule for rule in RULES if rule.cause == cause and _does(rule.does, facts)]
    python = {"Python" for rule in rules if rule.python}
    native = {"native" for rule in rules if rule.binding or rule.inner}
    return frozenset(python | native)


def find_cause_in_python(library: Sequence[str]) -> Finding | None:
    """What `file:function` of the library's Python frames in an exact stack tell, nothing being known of CUDA calls."""
    for rule in RULES:
        frame = _python_frame(rule, library) if rule.python_suffices else None
        if frame is not None:
            return Finding(
                model.Cause(rule.cause, "certain", (f"Python frame {_from_package(frame)}",)), rule.operation
            )
    return None


@dataclass(frozen=True)
class _Segment:
    """The frames of the framework between the CUDA call and the interpreter, innermost first; `binding` among them."""

    symbols: tuple[str, ...]
    binding: str | None
    inside: tuple[str, ...]
    outside: tuple[str, ...] = ()


_NOTHING = _Segment((), None, ())


def _between_cuda_and_python(facts: Facts) -> _Segment:
    """Nothing where the stack is not one that this call can have: it must begin at the call, in CUDA's libraries, and
    reach the interpreter where Python made the call.
    """
    stack = facts.native or ()
    call = next((i for i, (symbol, _) in enumerate(stack) if base_name(symbol) in facts.apis), None)
    if call is None or not all(_in_cuda(frame) for frame in stack[:call]):
        return _NOTHING
    rest = stack[call + 1 :]
    end = next((i for i, (symbol, _) in enumerate(rest) if _INTERPRETER in symbol), None)
    if end is None and facts.exact:
        return _NOTHING  # Python made the call, and this stack has no Python: it is another call's, or cut short
    frames = rest[:end]
    if any(_in_cuda(frame) for frame in frames):
        return _NOTHING
    symbols = tuple(symbol for symbol, _ in frames)
    for i, (symbol, module) in enumerate(frames):
        found = _BINDING.search(symbol)
        if found is None:
            continue
        if found.group(1) is not None:
            # PyTorch's libraries call each other, never back through the interpreter's.
            if not all(_TORCH_MODULE.match(_file_name(module)) for _, module in frames[: i + 1]):
                return _NOTHING
            return _Segment(symbols, found.group(1), symbols[:i], symbols[i + 1 :])
        last = [match for one in symbols if (match := _BINDING.search(one)) and match.group(2)]
        return _Segment(symbols, last[-1].group(2), symbols)
    by_torch = all(_TORCH_MODULE.match(_file_name(m)) or _SYSTEM_MODULE.match(_file_name(m)) for _, m in frames)
    by_xla = any("stream_executor::" in symbol or "xla::" in symbol for symbol in symbols)
    if not by_torch and not by_xla:
        return _NOTHING
    return _Segment(symbols, None, symbols)


def _evidence(rule: Rule, facts: Facts, segment: _Segment) -> tuple[str, ...] | None:
    """The facts that satisfy the rule, in words; None where it does not fit."""
    if not _does(rule.does, facts):
        return None
    evidence = []
    if rule.binding is not None:
        if segment.binding is None or not re.fullmatch(rule.binding, segment.binding):
            return None
        evidence.append(f"native frame {segment.binding}")
    wanted = [(part, segment.inside) for part in rule.inner] + [(part, segment.outside) for part in rule.outer]
    for part, symbols in wanted:
        symbol = _found(part, symbols)
        if symbol is None:
            return None
        evidence.append(f"native frame {_short(symbol)}")
    if rule.python is not None:
        frame = _python_frame(rule, facts.library)
        if frame is None:
            return None
        evidence.append(f"Python frame {_from_package(frame)}" + ("" if facts.exact else " (of a sample in the call)"))
    evidence.append(_calls(facts))
    return tuple(dict.fromkeys(evidence))


def _python_frame(rule: Rule, library: Sequence[str]) -> str | None:
    return next((frame for frame in library if rule.python and re.search(rule.python, frame)), None)


def _found(part: str, symbols: tuple[str, ...]) -> str | None:
    for symbol, outer in zip_longest(symbols, symbols[1:], fillvalue=""):
        match = re.search(part, f"{symbol}|{outer}")
        if match is not None and match.start() < len(symbol):
            return symbol
    return None


def _does(what: str, facts: Facts) -> bool:
    classes = {classify(api) for api in facts.apis}
    copies = bool(classes & {ApiClass.COPY_ASYNC, ApiClass.COPY_SYNC})
    if what in (READ, READ_PAGEABLE):
        return facts.copy_kind == "DtoH" and (what == READ or facts.dst_memory == "pageable")
    if what == READ_OR_LOST:
        return facts.copy_kind == "DtoH" or (not copies and ApiClass.STREAM_SYNC in classes)
    if what == UPLOAD:
        return facts.copy_kind == "HtoD" and facts.src_memory == "pageable"
    if what == EXPLICIT:
        return not copies and bool(classes & {ApiClass.STREAM_SYNC, ApiClass.OTHER_SYNC})
    if what == COPY:
        return ApiClass.COPY_SYNC in classes
    if what == MEMSET:
        return ApiClass.MEMSET_SYNC in classes
    if what == FREE:
        return ApiClass.FREE in classes
    return what == ANY or (what in facts.apis and not copies)


def _operator(segment: _Segment) -> str | None:
    """The framework's name of what Python called: `torch.bincount()`."""
    if segment.binding is not None and segment.binding.startswith("THPVariable_"):
        return f"torch.{segment.binding.removeprefix('THPVariable_')}()"
    names = [match.group(1) for symbol in segment.symbols if (match := _OPERATOR.search(symbol))]
    return f"aten::{names[-1]}" if names else None


def _calls(facts: Facts) -> str:
    calls = " then ".join(facts.apis)
    return f"{facts.copy_kind} copy: {calls}" if facts.copy_kind else calls


def _in_cuda(frame: tuple[str, str]) -> bool:
    return bool(_CUDA_MODULE.match(_file_name(frame[1])))


def _file_name(module: str) -> str:
    return module.rsplit("/", 1)[-1]


def _short(symbol: str) -> str:
    """A C++ symbol's qualified name, without return type, template arguments and parameters."""
    text = symbol.replace("(anonymous namespace)", "{anonymous}")
    while (plain := re.sub(r"<[^<>]*>", "", text)) != text:
        text = plain
    words = text.split("(", 1)[0].split()
    return words[-1] if words else symbol


def _from_package(frame: str) -> str:
    return re.sub(r"^.*/(?:site|dist)-packages/", "", frame)


def stack_kinds(hits: pd.DataFrame) -> pd.Series[int]:
    """Chain id → a number that is equal for native stacks whose frames with NEEDLES are the same at the same depths.

    `hits` has chain_id, symbol_id and depth of those frames.
    """
    chain = hits["chain_id"].to_numpy()
    mixed = pd.util.hash_array(hits["symbol_id"].to_numpy() * 1_009 + hits["depth"].to_numpy())
    if (chain[1:] < chain[:-1]).any():
        order = np.argsort(chain, kind="stable")
        chain, mixed = chain[order], mixed[order]
    first = np.flatnonzero(np.concatenate(([True], chain[1:] != chain[:-1]))) if len(chain) else chain
    kinds = np.add.reduceat(mixed, first).view(np.int64) if len(chain) else mixed.astype(np.int64)
    return pd.Series(kinds, index=chain[first])


def agreed(findings: Sequence[Finding], group: IntArray, has_native: Sequence[bool]) -> Iterator[Finding]:
    """A finding without a native stack of its own takes what all others of its line and kind have, if they agree."""
    of_group: dict[int, set[Finding]] = {}
    for finding, code, native in zip(findings, group.tolist(), has_native, strict=True):
        if native and finding.cause.id != UNKNOWN:
            of_group.setdefault(code, set()).add(finding)
    for finding, code, native in zip(findings, group.tolist(), has_native, strict=True):
        others = of_group.get(code, set())
        if (
            native
            or finding.cause.certainty == "certain"
            or len({(one.cause.id, one.operation) for one in others}) != 1
        ):
            yield finding
            continue
        other = next(iter(others))
        evidence = ("other calls of this line and kind have it", *other.cause.evidence)
        yield Finding(model.Cause(other.cause.id, "likely", evidence), other.operation)
