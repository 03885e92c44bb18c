"""One call that nsys 2023.4 does not know (`Event.elapsed_time`, of CUDA 13's runtime), in the middle of the loop:
its importer drops the whole message that the call is in.

unknown_call.py [MILLISECONDS]: each step takes so long, so that --cuda-flush-interval cuts the loop into messages.
"""

import sys
import time

import torch
import torch.cuda.nvtx as nvtx

STEPS = 60
PAUSE_S = float(sys.argv[1]) / 1000 if len(sys.argv) > 1 else 0
x = torch.randn(1024, 1024, device="cuda")
first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


def read_loss(loss):
    return loss.item()


def measure():
    first.record()
    torch.mm(x, x)
    last.record()
    last.synchronize()
    return first.elapsed_time(last)


def step(i):
    for _ in range(3):
        torch.mm(x, x)
    read_loss(x[0, 0] * 2)
    if i == STEPS // 2:
        measure()
    time.sleep(PAUSE_S)


step(STEPS // 2)
torch.cuda.synchronize()
torch.cuda.cudart().cudaProfilerStart()
for i in range(STEPS):
    with nvtx.range(f"step {i}"):
        step(i)
torch.cuda.synchronize()
torch.cuda.cudart().cudaProfilerStop()
