"""One process and one thread that use two GPUs as a pipeline, and sync on both, at different lines.

The first half runs on cuda:0, its result goes to cuda:1 by a copy between the GPUs, and the second half
runs there; whichever GPU the host waits for, the other has nothing queued."""

import time

import torch
import torch.cuda.nvtx as nvtx

STEPS = 20
first, second = torch.device("cuda:0"), torch.device("cuda:1")
torch.manual_seed(0)
w0 = torch.randn(2048, 2048, device=first) / 45
w1 = torch.randn(2048, 2048, device=second) / 45


def load_batch():
    time.sleep(0.001)
    return torch.randn(256, 2048)


def upload(batch):
    return batch.to(first)


def read_first(h):
    return h.abs().max().item()


def hand_over(h):
    return h.to(second)


def read_second(out):
    return out.sum().item()


def download_second(out):
    return out.cpu()


def wait_for_first():
    torch.cuda.synchronize(first)


def wait_for_second():
    torch.cuda.synchronize(second)


def step(i):
    h = upload(load_batch()) @ w0
    read_first(h)
    out = hand_over(h) @ w1
    ahead = h @ w0  # cuda:0 has work of its own while the host waits for cuda:1
    read_second(out)
    if i % 4 == 3:
        download_second(out)
        wait_for_second()
        wait_for_first()
    return ahead


def main():
    for i in range(4):
        step(i)
    torch.cuda.synchronize(first)
    torch.cuda.synchronize(second)
    torch.cuda.cudart().cudaProfilerStart()
    for i in range(STEPS):
        with nvtx.range(f"step {i}"):
            step(i)
    torch.cuda.synchronize(first)
    torch.cuda.synchronize(second)
    torch.cuda.cudart().cudaProfilerStop()


main()
