"""JAX waits on a host condition variable: no CUDA call shows it, only Python samples do."""

import ctypes
import time

import jax
import jax.numpy as jnp

cudart = ctypes.CDLL("libcudart.so.13") if False else None


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
    step(a).block_until_ready()
    for _ in range(40):
        prepare_batch()
        a = step(a)
        wait(a)
        read(a)


main()
