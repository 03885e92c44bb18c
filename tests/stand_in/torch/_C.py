import threading

waits = []
_thread = threading.local()


def _cuda_synchronize():
    waits.append("device")


def _accelerator_synchronizeDevice(index):
    waits.append("accelerator")


def _current_graph_task_id():
    return getattr(_thread, "graph_task", -1)
