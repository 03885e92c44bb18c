"""Syncs of other libraries: CuPy, Triton's autotuner and benchmark, Numba (where it is installed)."""

import sys

import cupy as cp
import torch
import triton
import triton.language as tl

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 4
a = cp.random.rand(1 << 16)
host = cp.asnumpy(a)
flag = a.sum() > 0
x = torch.randn(1 << 16, device="cuda")


def cupy_get():
    return a.get()


def cupy_asnumpy():
    return cp.asnumpy(a)


def cupy_item():
    return a.sum().item()


def cupy_float():
    return float(a.sum())


def cupy_truth():
    if flag:
        return 1
    return 0


def cupy_nonzero():
    return cp.nonzero(a > 0.5)


def cupy_mask():
    return a[a > 0.5]


def cupy_unique():
    return cp.unique((a * 10).astype(cp.int32))


def cupy_asarray():
    return cp.asarray(host)


def cupy_set():
    a.set(host)


def cupy_print():
    print(a[:4])


def cupy_tolist():
    return a[:4].tolist()


def cupy_device_synchronize():
    cp.cuda.Device().synchronize()


def cupy_stream_synchronize():
    cp.cuda.get_current_stream().synchronize()


def cupy_event_synchronize():
    event = cp.cuda.Event()
    event.record()
    event.synchronize()


def cupy_free_all_blocks():
    b = cp.zeros(1 << 22)
    del b
    cp.get_default_memory_pool().free_all_blocks()


@triton.jit
def double(source, target, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at, mask=at < size) * 2, mask=at < size)


tuned = triton.autotune(
    configs=[triton.Config({"BLOCK": block}) for block in (256, 512)], key=["size"], warmup=1, rep=2
)(double)


def triton_autotune():
    tuned.cache.clear()
    size = x.numel()
    tuned[lambda meta: (triton.cdiv(size, meta["BLOCK"]),)](x, torch.empty_like(x), size)


def triton_do_bench():
    return triton.testing.do_bench(lambda: x * 2, warmup=1, rep=2)


functions = [
    value
    for name, value in list(globals().items())
    if name.startswith(("cupy_", "triton_", "numba_")) and isinstance(value, type(cupy_get))
]
try:
    from numba import cuda as numba_cuda

    device_array = numba_cuda.to_device(host)

    def numba_copy_to_host():
        return device_array.copy_to_host()

    def numba_synchronize():
        numba_cuda.synchronize()

    def numba_to_device():
        return numba_cuda.to_device(host)

    functions += [numba_copy_to_host, numba_synchronize, numba_to_device]
except ImportError:
    print("numba is not installed")


def run_all():
    for function in functions:
        torch.mul(x, 2)
        with torch.cuda.nvtx.range(function.__name__):
            function()


if __name__ == "__main__":
    run_all()
    torch.cuda.cudart().cudaProfilerStart()
    for _ in range(ROUNDS):
        run_all()
        torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()
