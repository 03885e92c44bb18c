"""Two processes with 200 threads each, every one of which reads one value from the GPU."""

import multiprocessing as mp
import sys
import threading

THREADS = 200


def read_one(x, ready, go, i):
    ready.release()
    go.wait()
    (x[i] * 2).item()


def worker(gate):
    import torch

    x = torch.arange(THREADS, device="cuda")
    (x[0] * 2).item()
    ready, go = threading.Semaphore(0), threading.Event()
    threads = [threading.Thread(target=read_one, args=(x, ready, go, i)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for _ in threads:
        ready.acquire()
    torch.cuda.synchronize()
    gate.wait()
    torch.cuda.cudart().cudaProfilerStart()
    gate.wait()
    go.set()
    for thread in threads:
        thread.join()
    gate.wait()
    torch.cuda.cudart().cudaProfilerStop()


if __name__ == "__main__":
    context = mp.get_context("spawn")
    gate = context.Barrier(2, timeout=60)
    workers = [context.Process(target=worker, args=(gate,)) for _ in range(2)]
    for process in workers:
        process.start()
    for process in workers:
        process.join()
    sys.exit(any(process.exitcode for process in workers))
