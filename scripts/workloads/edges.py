"""Launches and GPU work that do not belong together: of kernels that fail to launch, that run when the capture begins,
and that have not begun when it ends. The driver API alone."""

import ctypes

from driver_api import Worker, check, libcuda

TOO_MANY = 4096  # threads a block
LONG_MS = 20


def launch(worker, milliseconds, threads=1):
    duration = ctypes.c_uint64(milliseconds * 1_000_000)
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(duration))
    return libcuda.cuLaunchKernel(worker.spin, 1, 1, 1, threads, 1, 1, 0, worker.stream, parameters, None)


def fail_to_launch(worker):
    assert launch(worker, 1, TOO_MANY)


def wait(worker):
    check(libcuda.cuStreamSynchronize(worker.stream))


def main():
    check(libcuda.cuInit(0))
    worker = Worker()
    check(launch(worker, 1))
    wait(worker)
    check(launch(worker, LONG_MS))
    check(libcuda.cuProfilerStart())
    wait(worker)
    for _ in range(5):
        check(launch(worker, 1))
        fail_to_launch(worker)
        wait(worker)
    for _ in range(3):
        check(launch(worker, LONG_MS))
    check(libcuda.cuProfilerStop())
    wait(worker)


if __name__ == "__main__":
    main()
