"""Blocking copies and frees with no Synchronize call of their own."""

import cupy as cp, numpy as np, torch

a = cp.zeros(1 << 24, dtype=cp.float32)
h = np.zeros(1 << 24, dtype=np.float32)
n = a.nbytes


def blocking_copy():
    cp.cuda.runtime.memcpy(h.ctypes.data, a.data.ptr, n, 2)


def blocking_upload():
    cp.cuda.runtime.memcpy(a.data.ptr, h.ctypes.data, n, 1)


def free_under_load():
    p = cp.cuda.runtime.malloc(1 << 20)
    b = a @ a if False else (a * 2)
    cp.cuda.runtime.free(p)


def blocking_memset():
    cp.cuda.runtime.memset(a.data.ptr, 0, n)


for _ in range(3):
    blocking_copy()
    blocking_upload()
    free_under_load()
    blocking_memset()
torch.cuda.cudart().cudaProfilerStart()
for _ in range(10):
    blocking_copy()
    blocking_upload()
    free_under_load()
    blocking_memset()
torch.cuda.cudart().cudaProfilerStop()
