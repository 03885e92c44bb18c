import threading

waits = []
state = {"initialized": False, "queued": []}
_thread = threading.local()


def _cuda_init():
    state["initialized"] = True


def _cuda_set_sync_debug_mode(mode):
    from torch import cuda

    cuda.mode = mode


def _cuda_get_sync_debug_mode():
    from torch import cuda

    return cuda.mode


def _cuda_synchronize():
    waits.append("device")


def _accelerator_synchronizeDevice(index):
    waits.append("accelerator")


def _current_graph_task_id():
    return getattr(_thread, "graph_task", -1)
