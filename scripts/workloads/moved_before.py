"""A GPU-bound step with five functions that sync. `moved_after.py` is the same program after some editing.

There `count_large` is called `find_large`, `read_loss` stands 40 lines further down, `download` no longer syncs, and
`branch_on_norm` is new; `upload` and `pick_positive` are as here.
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


def count_large(out):
    return torch.nonzero(out > 1.5)


def download(out):
    return out.detach().cpu()


def read_loss(loss):
    return loss.item()


def step():
    x = upload()
    out = net(x)
    loss = nn.functional.cross_entropy(out, y)
    read_loss(loss)
    pick_positive(out)
    count_large(out)
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
