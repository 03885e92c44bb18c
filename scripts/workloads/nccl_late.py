"""Two processes with a GPU each, one of which is late to every second all-reduce: the other's NCCL kernel spins.

nccl_late.py [RANK [FILE]]: with a rank, that rank alone (so that each can be captured by itself).
"""

import subprocess
import sys
import tempfile
import time

import torch
import torch.cuda.nvtx as nvtx
import torch.distributed as dist

STEPS = 10
LATE_S = 0.03


def reduce(gradient):
    dist.all_reduce(gradient)


def read_loss(loss):
    return loss.item()


def be_late():
    time.sleep(LATE_S)


def run(rank, store):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=2)
    x = torch.randn(2048, 2048, device="cuda")
    gradient = torch.ones(1 << 20, device="cuda")

    def step(i):
        with nvtx.range(f"step {i}"):
            loss = (x @ x).sum()
            if rank == 1 and i % 2:
                be_late()
            reduce(gradient)
            read_loss(loss + gradient[0])

    for i in range(4):
        step(i)
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    time.sleep(0.2)  # both are open
    reduce(gradient)
    torch.cuda.synchronize()
    for i in range(STEPS):
        step(i)
    torch.cuda.synchronize()
    time.sleep(0.2)
    torch.cuda.cudart().cudaProfilerStop()
    dist.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        run(int(sys.argv[1]), sys.argv[2])
    else:
        store = f"{tempfile.mkdtemp()}/store"
        ranks = [subprocess.Popen([sys.executable, __file__, str(rank), store]) for rank in range(2)]
        sys.exit(any(rank.wait() for rank in ranks))
