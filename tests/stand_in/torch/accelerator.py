from torch import _C


def synchronize():
    _C._accelerator_synchronizeDevice(0)
