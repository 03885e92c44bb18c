"""Syncs five times inside a capture range, and then fails."""

import torch

x = torch.randn(1024, 1024, device="cuda")
x.sum().item()
torch.cuda.synchronize()
torch.cuda.cudart().cudaProfilerStart()


def read(i):
    return (x * i).sum().item()


for i in range(5):
    read(i)
raise ValueError("on purpose")
