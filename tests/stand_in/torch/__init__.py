"""As much of PyTorch as `sync_free` touches, without a GPU: the sync debug mode, what it sees and what not."""

import threading

from torch import _C, cuda


class Tensor:
    def item(self):
        return cuda._synchronizing_operation()

    def backward(self, on_the_way=lambda: None):
        """Runs on another thread, as PyTorch's does for CUDA, and raises here what was raised there."""
        raised = []

        def run():
            _C._thread.graph_task = 0
            try:
                on_the_way()
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if raised:
            raise raised[0]
