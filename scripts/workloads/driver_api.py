"""CUDA's driver API alone, by ctypes: no runtime API, no library.

driver_api.py [contexts]: with `contexts`, the same work in two contexts of one GPU.
"""

import ctypes
import sys

STEPS = 10
BYTES = 1 << 20
MICROSECONDS = 200

# A kernel that runs for as many nanoseconds as it is told.
SPIN = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 duration)
{
    .reg .pred more;
    .reg .u64 wanted, first, now, passed;
    ld.param.u64 wanted, [duration];
    mov.u64 first, %globaltimer;
again:
    mov.u64 now, %globaltimer;
    sub.u64 passed, now, first;
    setp.lt.u64 more, passed, wanted;
    @more bra again;
    ret;
}
"""
libcuda = ctypes.CDLL("libcuda.so.1")
host = (ctypes.c_char * BYTES)()


def check(status):
    if status:
        sys.exit(f"CUDA error {status}")


class Worker:
    """A context with a kernel, a stream, an event and memory."""

    def __init__(self):
        self.context, module, self.spin = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self.stream, self.event, self.memory = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
        check(libcuda.cuCtxCreate_v2(ctypes.byref(self.context), 0, 0))
        check(libcuda.cuModuleLoadData(ctypes.byref(module), SPIN))
        check(libcuda.cuModuleGetFunction(ctypes.byref(self.spin), module, b"spin"))
        check(libcuda.cuStreamCreate(ctypes.byref(self.stream), 1))
        check(libcuda.cuEventCreate(ctypes.byref(self.event), 0))
        check(libcuda.cuMemAlloc_v2(ctypes.byref(self.memory), ctypes.c_size_t(BYTES)))

    def use(self):
        check(libcuda.cuCtxSetCurrent(self.context))

    def launch(self):
        duration = ctypes.c_uint64(MICROSECONDS * 1000)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(duration))
        check(libcuda.cuLaunchKernel(self.spin, 1, 1, 1, 1, 1, 1, 0, self.stream, parameters, None))


def wait_for_stream(worker):
    worker.launch()
    check(libcuda.cuStreamSynchronize(worker.stream))


def wait_for_event(worker):
    worker.launch()
    check(libcuda.cuEventRecord(worker.event, worker.stream))
    check(libcuda.cuEventSynchronize(worker.event))


def wait_for_context(worker):
    worker.launch()
    check(libcuda.cuCtxSynchronize())


def upload(worker):
    check(libcuda.cuMemcpyHtoD_v2(worker.memory, host, ctypes.c_size_t(BYTES)))


def download(worker):
    worker.launch()
    check(libcuda.cuMemcpyDtoH_v2(host, worker.memory, ctypes.c_size_t(BYTES)))


def download_on_stream(worker):
    worker.launch()
    check(libcuda.cuMemcpyDtoHAsync_v2(host, worker.memory, ctypes.c_size_t(BYTES), worker.stream))
    check(libcuda.cuStreamSynchronize(worker.stream))


def step(workers):
    for worker in workers:
        worker.use()
        for function in (wait_for_stream, wait_for_event, wait_for_context, upload, download, download_on_stream):
            function(worker)


def main():
    check(libcuda.cuInit(0))
    workers = [Worker() for _ in range(2 if "contexts" in sys.argv else 1)]
    step(workers)
    check(libcuda.cuProfilerStart())
    for _ in range(STEPS):
        step(workers)
    check(libcuda.cuProfilerStop())


if __name__ == "__main__":
    main()
