"""`python -m syncing_package N`: N downloads."""

import sys

import torch

x = torch.randn(1024, 1024, device="cuda")


def download():
    return (x + 1).cpu()


download()
torch.cuda.synchronize()
torch.cuda.cudart().cudaProfilerStart()
for _ in range(int(sys.argv[1])):
    download()
torch.cuda.synchronize()
torch.cuda.cudart().cudaProfilerStop()
