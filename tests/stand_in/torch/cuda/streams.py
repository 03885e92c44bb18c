from torch import _C


class Stream:
    def synchronize(self):
        from torch import cuda

        cuda.operation()()

    def query(self):
        return True


class ExternalStream(Stream):
    pass


class Event:
    def synchronize(self):
        _C.waits.append("event")
