"""What Python was at when a sample was taken, by the frames of its stack. Rules are data; the first that matches wins.

Only what a frame shows is claimed: C code without a frame (`time.sleep`, the garbage collector, most of NumPy) stays
`Python`, at the line that called it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from nsys_sync.analysis.intervals import IntArray
from nsys_sync.trace.tables import BoolArray, PythonEvents

Scope = Literal["innermost", "inner", "stack"]
OTHER_WORK = "Python"
WAITING_FOR_JAX = "waiting for JAX"


@dataclass(frozen=True)
class FrameRule:
    """`file` is searched in a frame's path (with `/`), `function` must match its whole name. Unless it says otherwise
    that is any but a module's body: importing a library is not using it.

    Which frames are asked: `innermost` the innermost alone, `inner` those further in than the user's line (all of a
    stack without the user's code), `stack` all: work under which the user's own code also runs.
    """

    label: str
    file: str
    function: str = "(?!<module>$).*"
    scope: Scope = "inner"


_ARRAY_READ = r"jax/_src/array\.py$"
_WAITING_READ = r"_value|_single_device_array_to_np_array\w*"
_BLOCKING = r"block_until_ready|try_to_block"
BLOCK_UNTIL_READY = "JAX: block_until_ready()"
WAIT_RULES: tuple[FrameRule, ...] = (
    FrameRule(BLOCK_UNTIL_READY, r"jax/_src/(api|array)\.py$", _BLOCKING, "innermost"),
    FrameRule("JAX: float(array)", _ARRAY_READ, "__float__"),
    FrameRule("JAX: int(array)", _ARRAY_READ, "__int__|__index__"),
    FrameRule("JAX: bool(array)", _ARRAY_READ, "__bool__"),
    FrameRule("JAX: array.item()", _ARRAY_READ, "item"),
    FrameRule("JAX: array.tolist()", _ARRAY_READ, "tolist"),
    FrameRule("JAX: jax.device_get()", r"jax/_src/api\.py$", r"_?device_get"),
    FrameRule("JAX: array to NumPy", _ARRAY_READ, "__array__"),
    FrameRule("JAX: reading an array", _ARRAY_READ, _WAITING_READ, "innermost"),
)
"""Waits for the GPU that make no CUDA call on the waiting thread. They count where WAITING is the innermost frame."""
WAITING = (
    FrameRule(WAITING_FOR_JAX, r"jax/_src/(api|array)\.py$", _BLOCKING, "innermost"),
    FrameRule(WAITING_FOR_JAX, _ARRAY_READ, _WAITING_READ, "innermost"),
)

WORK_RULES: tuple[FrameRule, ...] = (
    FrameRule("garbage collection", r"jax/_src/lib/__init__\.py$", "_xla_gc_callback", "innermost"),
    FrameRule("waiting for data loader workers", r"torch/utils/data/dataloader\.py$", "_try_get_data|_get_data"),
    FrameRule(
        "waiting for another thread or process",
        r"/(threading|queue|selectors|subprocess|multiprocessing/(connection|popen_\w+|queues|synchronize))\.py$",
        r"_?wait\w*|join|acquire|get|put|select|poll|_try_wait|_communicate|_?recv\w*|_?send\w*|_poll|__enter__",
        "innermost",
    ),
    FrameRule(
        "compiling",
        r"torch/_dynamo/convert_frame\.py$|torch/_inductor/(compile_fx|async_compile|codecache|graph)\.py$"
        r"|triton/compiler/code_generator\.py$|triton/backends/\w+/compiler\.py$|triton/runtime/build\.py$"
        r"|numba/core/compiler\w*\.py$"
        r"|jax/_src/(compiler|compilation_cache)\.py$|jax/_src/interpreters/(mlir|partial_eval)\.py$",
        scope="stack",
    ),
    FrameRule("compiling", r"triton/(compiler/compiler|runtime/jit)\.py$", "compile|make_ir|_do_compile", "stack"),
    FrameRule("compiling", r"triton/runtime/autotuner\.py$", r"_bench|_?benchmark|_?do_bench", "stack"),
    FrameRule("compiling", r"torch/_inductor/runtime/\w+\.py$", r"_?precompile\w*|\w*autotune\w*|bench\w*", "stack"),
    FrameRule("compiling", r"jax/_src/(pjit|stages|interpreters/pxla)\.py$", r"_?lower\w*|compile|_?trace\w*", "stack"),
    FrameRule("importing modules", r"^<frozen importlib"),
    FrameRule(
        "data loading",
        r"torch/utils/data/|torchvision/(datasets|transforms|io)/|torchaudio/(datasets|transforms)"
        r"|(site|dist)-packages/(PIL|datasets|webdataset|streaming|albumentations|tensorflow_datasets)/",
        scope="stack",
    ),
    FrameRule("tokenising", r"(site|dist)-packages/(tokenizers|sentencepiece|tiktoken)/|transformers/tokenization_"),
    FrameRule("optimizer", r"torch/optim/"),
    FrameRule("backward", r"torch/autograd/(__init__|graph)\.py$", r"backward|grad|_make_grads|_engine_run_backward"),
    FrameRule("printing or logging", r"torch/_tensor_str\.py$|/logging/__init__\.py$|/(tqdm|rich|tensorboard|wandb)/"),
    FrameRule(
        "reading or writing files",
        r"torch/serialization\.py$|/(pickle|shutil|zipfile|gzip|csv)\.py$|/json/\w+\.py$|/safetensors/"
        r"|numpy/lib/(_?npyio\w*|_?format\w*)\.py$",
    ),
    FrameRule("module forward", r"torch/nn/(modules/|functional\.py$)"),
)


def matching_rule(
    python: PythonEvents, events: IntArray, user_frame: IntArray, rules: tuple[FrameRule, ...]
) -> IntArray:
    """For each event the first of `rules` that one of its frames matches, -1 without.

    `user_frame` is the frame of each event that is the user's line, -1 without user code in the stack.
    """
    pairs, code = _functions_in_files(python, events)
    count = python.count[events]
    begins = np.cumsum(count) - count
    own = np.repeat(np.arange(len(events)), count)
    within = np.arange(len(own)) - begins[own]
    inner_count = np.where(user_frame >= 0, user_frame - python.first[events], count)
    in_scope: dict[Scope, BoolArray | slice] = {
        "innermost": within == 0,
        "inner": within < inner_count[own],
        "stack": slice(None),
    }
    result = np.full(len(events), -1, dtype=np.int64)
    for number in reversed(range(len(rules))):
        rule = rules[number]
        file_pattern, function_pattern = re.compile(rule.file), re.compile(rule.function)
        matches = np.array(
            [bool(file_pattern.search(file) and function_pattern.fullmatch(function)) for function, file in pairs],
            dtype=bool,
        )
        if matches.any():
            frames = in_scope[rule.scope]
            result[own[frames][matches[code[frames]]]] = number
    return result


def _functions_in_files(python: PythonEvents, events: IntArray) -> tuple[list[tuple[str, str]], IntArray]:
    """The distinct (function, path with `/`) of the events' frames, and for each frame its index among them."""
    first, count = python.first[events], python.count[events]
    begins = np.cumsum(count) - count
    frame = np.repeat(first - begins, count) + np.arange(count.sum())
    key = python.frame_function[frame].astype(np.int64) * len(python.files) + python.frame_file[frame]
    code, distinct_keys = pd.factorize(key)
    pairs = [divmod(number, len(python.files)) for number in distinct_keys.tolist()]
    return [(python.functions[function], python.files[file].replace("\\", "/")) for function, file in pairs], code
