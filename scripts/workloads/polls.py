"""Waits by asking again and again (`while not event.query(): pass`), beside one read of a value a step."""

import ctypes

import torch

STEPS = 4
x = torch.randn(2048, 2048, device="cuda")
loss = x.sum()
event = torch.cuda.Event()
libcuda = ctypes.CDLL("libcuda.so.1")


def work():
    for _ in range(5):
        torch.mm(x, x)


def poll_event():
    work()
    event.record()
    while not event.query():
        pass


def poll_stream():
    work()
    stream = torch.cuda.current_stream()
    while not stream.query():
        pass


def poll_driver():
    work()
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    while libcuda.cuStreamQuery(stream):
        pass


def read_loss():
    work()
    return loss.item()


def step():
    poll_event()
    poll_stream()
    poll_driver()
    read_loss()


step()
torch.cuda.synchronize()
torch.cuda.cudart().cudaProfilerStart()
for _ in range(STEPS):
    step()
torch.cuda.synchronize()
torch.cuda.cudart().cudaProfilerStop()
