import os
import threading
import warnings

waits = []
state = {"initialized": False, "queued": [], "warned": False}
_thread = threading.local()


def _cuda_init():
    state["initialized"] = True


def _cuda_set_sync_debug_mode(mode):
    from torch import cuda

    if os.environ.get("STAND_IN_WARNS_OF_THE_MODE") and not state["warned"]:
        state["warned"] = True
        warnings.warn(
            "Synchronization debug mode is a prototype feature and does not yet detect all synchronizing operations",
            stacklevel=2,
        )
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
