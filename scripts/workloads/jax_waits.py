"""JAX waits for its results on a host condition variable: no CUDA call shows it, only Python samples do."""

import time

import jax
import jax.numpy as jnp
import torch


@jax.jit
def step(a):
    for _ in range(20):
        a = jnp.tanh(a @ a)
    return a


def prepare_batch():
    end = time.perf_counter() + 0.004
    total = 0
    while time.perf_counter() < end:
        total += 1
    return total


def wait(a):
    return a.block_until_ready()


def read(a):
    return float(a[0, 0])


def main():
    a = jnp.ones((4096, 4096), dtype=jnp.float32) * 1e-3
    for _ in range(3):
        wait(step(a))
        read(a)
    torch.cuda.cudart().cudaProfilerStart()
    for _ in range(40):
        prepare_batch()
        a = step(a)
        wait(a)
        read(a)
    torch.cuda.cudart().cudaProfilerStop()


main()
