"""CUDA graphs that PyTorch does not make, from graph_kinds.cu (which says how to build it).

graph_kinds.py conditional: a graph with a conditional node, whose body runs three times;
graph_kinds.py device: a graph that the GPU launches itself.
"""

import ctypes
import sys
import time
from pathlib import Path

ROUNDS = 5
graphs = ctypes.CDLL(str(Path(__file__).with_name("libgraph_kinds.so")))
libcuda = ctypes.CDLL("libcuda.so.1")
launch = graphs.launch_conditional if "conditional" in sys.argv else graphs.launch_device_launched


def call(function, *arguments):
    if function(*arguments):
        sys.exit(f"{function.__name__} failed")


def wait():
    call(graphs.wait_for_stream)


def step():
    call(launch)
    time.sleep(0.0002)  # less than the work takes
    wait()
    time.sleep(0.0005)


call(graphs.make_conditional)
if "conditional" not in sys.argv:
    call(graphs.make_device_launched)
step()
call(libcuda.cuProfilerStart)
for _ in range(ROUNDS):
    step()
call(libcuda.cuProfilerStop)
