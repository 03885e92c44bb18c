"""`moved_before.py` after some editing: one function renamed, one moved, one without its sync, one new.

Captured like `moved_before.py`, the two show what `nsys-sync diff` makes of editing: every line keeps its number but
those of `read_loss` and of what stands below it.
"""

import torch
import torch.cuda.nvtx as nvtx
from torch import nn

STEPS = 40
dev = torch.device("cuda")
torch.manual_seed(0)
net = nn.Sequential(*[m for _ in range(8) for m in (nn.Linear(3072, 3072), nn.GELU())], nn.Linear(3072, 512)).to(dev)
opt = torch.optim.SGD(net.parameters(), lr=1e-4)
x_cpu = torch.randn(1024, 3072)
y = torch.randint(0, 512, (1024,), device=dev)


def upload():
    return x_cpu.to(dev)


def pick_positive(out):
    return out[out > 0].sum()


def find_large(out):
    return torch.nonzero(out > 1.5)


def download(out):
    return out.detach()


def branch_on_norm(loss):
    if loss > 0:
        return 1
    return 0


class Averages:
    """Running averages that stay on the GPU: no sync, and room for `read_loss` to be 40 lines further down."""

    def __init__(self, decay=0.9):
        self.decay = decay
        self.values = {}

    def update(self, name, value):
        value = value.detach()
        if name in self.values:
            value = self.decay * self.values[name] + (1 - self.decay) * value
        self.values[name] = value

    def names(self):
        return sorted(self.values)


averages = Averages()
LEARNING_RATES = (
    (0, 1.00e-04),
    (5, 8.00e-05),
    (10, 6.40e-05),
    (15, 5.12e-05),
    (20, 4.10e-05),
    (25, 3.28e-05),
    (30, 2.62e-05),
    (35, 2.10e-05),
    (40, 1.68e-05),
    (45, 1.34e-05),
    (50, 1.07e-05),
    (55, 8.59e-06),
)


def read_loss(loss):
    return loss.item()


def step():
    x = upload()
    out = net(x)
    loss = nn.functional.cross_entropy(out, y)
    read_loss(loss)
    branch_on_norm(loss)
    averages.update("loss", loss)
    pick_positive(out)
    find_large(out)
    opt.zero_grad()
    loss.backward()
    opt.step()
    download(out)


def main():
    for _ in range(10):
        step()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    for i in range(STEPS):
        with nvtx.range(f"step {i}"):
            step()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()


main()
