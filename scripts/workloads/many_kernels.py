"""500,000 tiny kernels with a sync every 100: a report of some 30 MB."""

import torch

x = torch.zeros(16, device="cuda")


def add():
    for _ in range(100):
        x.add_(1.0)


def read():
    return x[0].item()


torch.cuda.synchronize()
torch.cuda.cudart().cudaProfilerStart()
for _ in range(5000):
    add()
    read()
torch.cuda.synchronize()
torch.cuda.cudart().cudaProfilerStop()
