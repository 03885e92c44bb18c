"""Syncs once a step, until it is interrupted or for as many steps as its argument says: `endless.py [STEPS]`."""

import itertools
import sys

import torch

x = torch.randn(1024, 1024, device="cuda")


def read(i):
    return (x * i).sum().item()


read(0)
torch.cuda.synchronize()
torch.cuda.cudart().cudaProfilerStart()
for step in range(int(sys.argv[1])) if len(sys.argv) > 1 else itertools.count():
    read(step)
    if step % 100 == 0:
        print("step", step, flush=True)
torch.cuda.cudart().cudaProfilerStop()
