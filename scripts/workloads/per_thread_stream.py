"""The per-thread default stream: CuPy on it, and the `_ptsz` and `_ptds` functions that a program calls which is
compiled with `--default-stream per-thread`."""

import os

os.environ["CUPY_CUDA_PER_THREAD_DEFAULT_STREAM"] = "1"

import ctypes
import sys
import threading

import cupy as cp
import numpy as np
import torch

STEPS = 10
PER_THREAD = ctypes.c_void_p(0)  # what the `_ptsz` functions take stream 0 for
DEVICE_TO_HOST = 2
cudart = ctypes.CDLL("libcudart.so.13")
libcuda = ctypes.CDLL("libcuda.so.1")
a = cp.ones(1 << 22, dtype=cp.float32)
host = np.zeros_like(a.get())


def check(status):
    if status:
        sys.exit(f"CUDA error {status}")


def cupy_get():
    return (a * 2).get()


def cupy_item():
    return a.sum().item()


def wait_for_stream():
    cp.sqrt(a)
    check(cudart.cudaStreamSynchronize_ptsz(PER_THREAD))


def copy_and_wait():
    cp.sqrt(a)
    target, source = ctypes.c_void_p(host.ctypes.data), ctypes.c_void_p(a.data.ptr)
    check(cudart.cudaMemcpy_ptds(target, source, ctypes.c_size_t(a.nbytes), DEVICE_TO_HOST))


def copy_on_stream():
    cp.sqrt(a)
    target, source = ctypes.c_void_p(host.ctypes.data), ctypes.c_void_p(a.data.ptr)
    check(cudart.cudaMemcpyAsync_ptsz(target, source, ctypes.c_size_t(a.nbytes), DEVICE_TO_HOST, PER_THREAD))
    check(cudart.cudaStreamSynchronize_ptsz(PER_THREAD))


def wait_by_driver():
    cp.sqrt(a)
    check(libcuda.cuStreamSynchronize_ptsz(PER_THREAD))


def copy_by_driver():
    cp.sqrt(a)
    target, source = ctypes.c_void_p(host.ctypes.data), ctypes.c_uint64(a.data.ptr)
    check(libcuda.cuMemcpyDtoH_v2_ptds(target, source, ctypes.c_size_t(a.nbytes)))


def step():
    cupy_get()
    cupy_item()
    wait_for_stream()
    copy_and_wait()
    copy_on_stream()
    wait_by_driver()
    copy_by_driver()


def run(steps):
    for _ in range(steps):
        step()


step()
torch.cuda.cudart().cudaProfilerStart()
other = threading.Thread(target=run, args=(STEPS // 2,))
other.start()
run(STEPS)
other.join()
torch.cuda.cudart().cudaProfilerStop()
