"""Unified memory, touched by the CPU and the GPU in turn: migrations that no copy call asks for.

managed.py [prefetch]: with `prefetch`, it is sent to the side that needs it, before.
"""

import ctypes
import sys

import cupy as cp
import numpy as np
import torch

STEPS = 5
COUNT = 1 << 20
GPU, CPU = 0, -1
libcuda = ctypes.CDLL("libcuda.so.1")
PREFETCH = "prefetch" in sys.argv
memory = cp.cuda.malloc_managed(COUNT * 4)
on_gpu = cp.ndarray(COUNT, dtype=cp.float32, memptr=memory)
on_cpu = np.frombuffer((ctypes.c_float * COUNT).from_address(memory.ptr), dtype=np.float32)


def send_to(device):
    if PREFETCH and libcuda.cuMemPrefetchAsync(ctypes.c_uint64(memory.ptr), ctypes.c_size_t(COUNT * 4), device, None):
        sys.exit("not prefetched")


def write_on_cpu():
    on_cpu[:] = 1.0


def double_on_gpu():
    send_to(GPU)
    cp.multiply(on_gpu, 2, out=on_gpu)


def wait_for_device():
    send_to(CPU)
    cp.cuda.runtime.deviceSynchronize()


def read_on_cpu():
    return float(on_cpu.sum())


def step():
    write_on_cpu()
    double_on_gpu()
    wait_for_device()
    read_on_cpu()


step()
torch.cuda.cudart().cudaProfilerStart()
for _ in range(STEPS):
    step()
torch.cuda.cudart().cudaProfilerStop()
