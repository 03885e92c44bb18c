"""A training loop full of host-device synchronizations, one function per kind."""

import sys, time
import torch, torch.nn as nn
import torch.cuda.nvtx as nvtx

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 30
dev = torch.device("cuda")
torch.manual_seed(0)

model = nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(2048, 2048), nn.ReLU())], nn.Linear(2048, 1000)).to(dev)
opt = torch.optim.SGD(model.parameters(), lr=1e-3)
loss_fn = nn.CrossEntropyLoss()


def load_batch_pageable():
    x = torch.randn(512, 2048)
    y = torch.randint(0, 1000, (512,))
    return x.to(dev), y.cuda()


def log_loss(loss):
    return loss.item()


def select_by_mask(x):
    mask = x > 0
    return x[mask]


def count_nonzero(x):
    return torch.nonzero(x > 1.5)


def branch_on_tensor(t):
    if t > 0:
        return 1
    return 0


def make_tensor_on_gpu(i):
    return torch.tensor([float(i), 2.0, 3.0], device=dev)


def to_cpu(x):
    return x.detach().cpu()


def slice_by_gpu_index(x, n):
    return x[:n]


def print_tensor(t):
    print("loss", t)


def explicit_sync():
    torch.cuda.synchronize()


def event_sync():
    e = torch.cuda.Event()
    e.record()
    e.synchronize()


def unique(x):
    return torch.unique((x[:64] * 10).long())


def metrics(loss, acc, gn):
    return loss.item(), acc.item(), gn.item()


def train_step(i):
    x, y = load_batch_pageable()
    opt.zero_grad(set_to_none=True)
    out = model(x)
    loss = loss_fn(out, y)
    log_loss(loss)
    loss.backward()
    gn = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    acc = (out.argmax(1) == y).float().mean()
    metrics(loss, acc, gn)
    select_by_mask(out)
    count_nonzero(out)
    branch_on_tensor(loss)
    make_tensor_on_gpu(i)
    to_cpu(out)
    n = (acc * 0 + 5).long()
    slice_by_gpu_index(out, n)
    unique(out)
    if i % 10 == 0:
        print_tensor(loss)
    event_sync()
    explicit_sync()


def main():
    for i in range(3):
        train_step(i)
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    t = time.time()
    for i in range(STEPS):
        with nvtx.range(f"step {i}"):
            train_step(i)
    torch.cuda.synchronize()
    print("s/step", (time.time() - t) / STEPS)
    torch.cuda.cudart().cudaProfilerStop()


main()
