"""Two worker processes, each on a GPU of its own, syncing at different lines; no collective.

`two_gpus.py`: both see both GPUs, process 0 uses cuda:0 and process 1 cuda:1.
`two_gpus.py visible`: each is started with CUDA_VISIBLE_DEVICES=rank, so that both call their GPU cuda:0.
"""

import os
import sys
import time

import torch
import torch.cuda.nvtx as nvtx
import torch.multiprocessing as mp

STEPS = 20
VISIBLE = "visible" in sys.argv


def read_loss(x):
    return (x @ x).sum().item()


def count_large(x):
    return torch.nonzero(x > 3.0)


def loss_step(x):
    read_loss(x)
    count_large(x)


def load_batch():
    time.sleep(0.001)


def download(x):
    return (x @ x).cpu()


def wait_for_device():
    torch.cuda.synchronize()


def download_step(x):
    load_batch()
    download(x)
    wait_for_device()


def worker(rank, visible, gate):
    dev = torch.device("cuda", 0 if visible else rank)
    torch.cuda.set_device(dev)
    torch.manual_seed(rank)
    x = torch.randn((2048, 1024)[rank], (2048, 1024)[rank], device=dev)
    step = (loss_step, download_step)[rank]
    for _ in range(3):
        step(x)
    torch.cuda.synchronize()
    gate.wait()  # no process works on a GPU while another opens the capture
    torch.cuda.cudart().cudaProfilerStart()
    gate.wait()
    for i in range(STEPS):
        with nvtx.range(f"step {i}"):
            step(x)
    torch.cuda.synchronize()
    gate.wait()


def main():
    context = mp.get_context("spawn")
    gate = context.Barrier(2, timeout=60)
    workers = []
    for rank in range(2):
        if VISIBLE:
            os.environ["CUDA_VISIBLE_DEVICES"] = str(rank)
        workers.append(context.Process(target=worker, args=(rank, VISIBLE, gate)))
        workers[-1].start()
    for w in workers:
        w.join()
    sys.exit(any(w.exitcode for w in workers))


if __name__ == "__main__":
    main()
