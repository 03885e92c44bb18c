"""A slow GPU operation and a quick piece of bookkeeping, and what one harmless print of a GPU tensor does to them.

one_print.py healthy|print|fixed [STEPS]
"""

import sys

import torch

MODE = sys.argv[1] if len(sys.argv) > 1 else "healthy"
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 30
weights = torch.randn(6144, 6144, device="cuda")
history = []


def slow_operation():
    return (weights @ weights).mean()


def bookkeeping(step):
    total = 0
    for number in range(60_000):
        total += number * step % 7
    return total


def report(step, loss):
    if MODE == "print":
        print("step", step, "loss", loss)
    elif MODE == "fixed":
        history.append(loss)


def train():
    for step in range(STEPS):
        with torch.cuda.nvtx.range(f"step {step}"):
            loss = slow_operation()
            report(step, loss)
            bookkeeping(step)
    if MODE == "fixed":
        print("losses", torch.stack(history))


if __name__ == "__main__":
    print("warm-up", slow_operation())
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    train()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()
