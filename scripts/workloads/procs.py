"""Two worker processes, each its own CUDA context on one GPU, syncing at different lines."""

import sys, torch, torch.multiprocessing as mp


def item_loop(x):
    for _ in range(20):
        (x @ x).sum().item()


def cpu_loop(x):
    for _ in range(20):
        (x @ x).cpu()


def worker(r):
    x = torch.randn(1024, 1024, device="cuda")
    f = item_loop if r == 0 else cpu_loop
    f(x)
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    f(x)
    torch.cuda.synchronize()


if __name__ == "__main__":
    mp.spawn(worker, nprocs=2)
