"""Loops to measure a profiler's overhead on: `overhead_loops.py gpu|launch` prints the steps per second.

`gpu` is bound by the GPU: few long kernels and one `.item()` a step. `launch` is bound by the host: many tiny kernels
and one `.item()` a step. The first steps are warm-up and not counted.
"""

import sys
import time

import torch

KIND = sys.argv[1]
dev = torch.device("cuda")
big = torch.randn(8192, 8192, device=dev, dtype=torch.bfloat16)
small = torch.randn(64, 64, device=dev)


def gpu_step():
    out = big
    for _ in range(8):
        out = out @ big * 0.01
    return out.float().mean().item()


def launch_step():
    out = small
    for _ in range(300):
        out = out + 1.0
    return out.mean().item()


def main():
    step, steps = (gpu_step, 200) if KIND == "gpu" else (launch_step, 400)
    for _ in range(steps // 4):
        step()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    print(f"steps/s {steps / (time.perf_counter() - begin):.4f}", flush=True)


main()
