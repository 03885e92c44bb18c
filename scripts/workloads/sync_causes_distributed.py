"""Waits of torch.distributed, in one process: collectives of a world of one, and DDP.

sync_causes_distributed.py [ROUNDS] [nccl|gloo]
"""

import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 4
BACKEND = sys.argv[2] if len(sys.argv) > 2 else "nccl"
torch.cuda.set_device(0)
dist.init_process_group(BACKEND, init_method=f"file://{tempfile.mktemp()}", rank=0, world_size=1)
x = torch.randn(1 << 16, device="cuda")
model = nn.parallel.DistributedDataParallel(nn.Linear(256, 256).cuda(), device_ids=[0])
batch = torch.randn(64, 256, device="cuda")


def barrier():
    dist.barrier()


def reduce_and_wait():
    dist.all_reduce(x, async_op=True).wait()


def gather_object():
    objects = [None]
    dist.all_gather_object(objects, {"loss": 1.0})


def broadcast_objects():
    objects = [{"loss": 1.0}]
    dist.broadcast_object_list(objects, src=0)


def ddp_step():
    model(batch).sum().backward()


functions = (barrier, reduce_and_wait, gather_object, broadcast_objects, ddp_step)


def run_all():
    for function in functions:
        torch.matmul(batch, batch.T)
        with torch.cuda.nvtx.range(function.__name__):
            function()


if __name__ == "__main__":
    run_all()
    run_all()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    for _ in range(ROUNDS):
        run_all()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()
    dist.destroy_process_group()
