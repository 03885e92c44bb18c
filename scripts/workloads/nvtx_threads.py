"""Two Python threads, each with a stream of its own, under nested and repeated NVTX ranges.

`trainer` opens "step N" around "forward" (which holds "attention") and "optimizer", and "eval" every third
step; `evaluator` opens "eval" every time, around the same "forward", and "block" inside "block". An "epoch"
range (start/end, not push/pop) spans both threads, and one mark has no length. Both threads warm up twice:
before the capture, and in it before their first range. They read their batches outside every range.
"""

import threading
import time

import torch
import torch.cuda.nvtx as nvtx

STEPS = 15
WARM_UP = 3
dev = torch.device("cuda")
torch.manual_seed(0)
weight = torch.randn(1024, 1024, device=dev) / 32
wide = torch.randn(2048, 2048, device=dev) / 45


def load_batch(seconds):
    time.sleep(seconds)
    return torch.randn(256, 1024).to(dev)


def attention(x):
    with nvtx.range("attention"):
        scores = (x @ x.T).softmax(-1)
        if has_nan(scores):
            raise ValueError("attention gave NaN")
        return scores @ x


def has_nan(scores):
    return bool(scores.isnan().any())


def forward(x):
    with nvtx.range("forward"):
        out = attention(x @ weight) @ weight
        return out, keep_positive(out)


def keep_positive(out):
    return out[out > 0].sum()


def optimize(out):
    with nvtx.range("optimizer"):
        grad = wide @ wide
        norm = read_norm(grad)
        grad.mul_(min(1.0, 1.0 / norm))
        return grad


def read_norm(grad):
    return grad.norm().item()


def wait_for_stream():
    torch.cuda.current_stream().synchronize()


def download(out):
    return out.cpu()


def wait_for_device():
    torch.cuda.synchronize()


def block(x, depth):
    with nvtx.range("block"):
        out = wide @ x
        if depth:
            out = block(out, depth - 1)
        wait_for_event()
        return out


def wait_for_event():
    event = torch.cuda.Event()
    event.record()
    event.synchronize()


def warm_up(step):
    """Launches and syncs under no range."""
    for i in range(WARM_UP):
        step(i)
        read_total(wide @ wide)


def read_total(product):
    return product.sum().item()


def train_step(i):
    x = load_batch(0.002)
    with nvtx.range(f"step {i}"):
        out, _ = forward(x)
        optimize(out)
        wait_for_stream()
    if i % 3 == 2:
        with nvtx.range("eval"):
            download(wide @ wide)


def evaluate(i):
    x = load_batch(0.001)
    with nvtx.range("eval"):
        out, _ = forward(x)
        download(out)
        block(wide, depth=1)
    if i % 5 == 4:
        wait_for_device()


def bare(i):
    """What both threads do, without a range."""
    x = load_batch(0.0)
    return keep_positive(x @ weight)


def trainer(gate):
    run(gate, train_step)


def evaluator(gate):
    run(gate, evaluate)


def run(gate, step):
    with torch.cuda.stream(torch.cuda.Stream()):
        for i in range(WARM_UP):
            step(i)
        gate.wait()  # every thread's work before the capture is done ...
        gate.wait()  # ... and the capture has begun
        warm_up(bare)
        for i in range(STEPS):
            step(i)


def main():
    gate = threading.Barrier(3)
    threads = [threading.Thread(target=f, args=(gate,), name=f.__name__) for f in (trainer, evaluator)]
    for t in threads:
        t.start()
    gate.wait()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    epoch = nvtx.range_start("epoch")
    gate.wait()
    for t in threads:
        t.join()
    nvtx.mark("epoch done")
    nvtx.range_end(epoch)
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()


main()
