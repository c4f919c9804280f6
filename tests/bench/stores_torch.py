"""The contenders that hand over tensors of PyTorch; they run in its environment."""

from importlib.metadata import version

import numpy as np
from stores import Store, Tensorcx


class Torch(Store):
    """Tensors in shared memory, by descriptors, without names."""

    strategy = "file_descriptor"

    def version(self):
        return version("torch")

    def open(self, address):
        import torch.multiprocessing

        torch.set_num_threads(1)
        torch.multiprocessing.set_sharing_strategy(self.strategy)
        self.torch = torch

    def put(self, name, array):
        return [self.torch.from_numpy(array).share_memory_()]

    def delete(self, name, handle):
        handle.clear()

    def context(self):
        import torch.multiprocessing

        return torch.multiprocessing.get_context("spawn")

    def message(self, name, handle):
        return handle[0]

    def receive(self, message):
        return message.numpy(), None

    def exchanges(self):
        array = np.zeros(1024, "f4")
        return {"torch.from_dlpack(ndarray)": lambda: self.torch.from_dlpack(array)}


class TorchFiles(Torch):
    strategy = "file_system"


class Bridge(Tensorcx):
    """By PyTorch's own queue, after install()."""

    is_checked = False

    def open(self, address):
        super().open(address)
        import torch

        import torch_tensorcx

        torch.set_num_threads(1)
        self.torch, self.bridge = torch, torch_tensorcx
        self.install()

    def install(self):
        self.bridge.install()

    context = Torch.context

    def put(self, name, array):
        return [self.bridge.to_torch(self.client.asarray(array))]

    def delete(self, name, handle):
        handle.clear()

    def message(self, name, handle):
        return handle[0]

    def receive(self, message):
        self.is_checked = self.is_checked or self.client.is_shared(message)
        return message.numpy(), None

    def check_shared(self, name):
        if not self.is_checked:
            raise AssertionError("the queue has moved the tensor out of the daemon's memory")


class BridgeNames(Bridge):
    """Without a queue: the receiver waits for the next version of a name."""

    seen = 0

    def install(self):
        pass

    def fresh(self, name, array):
        return [self.torch.from_numpy(array)]

    def send(self, queue, name, handle):
        self.client.put(name, handle[0])

    def take(self, queue, name):
        found = self.client.get(name, newer_than=self.seen, timeout=60)
        self.seen, self.is_checked = found.version, found.is_shared
        return self.bridge.to_torch(found).numpy(), None

    def delete(self, name, handle):
        super().delete(name, handle)
        self.client.delete(name)


class BridgeQueue(Bridge):
    """Over a queue of tensorcx."""

    is_checked = True

    def install(self):
        self.queues = {}

    def fresh(self, name, array):
        return [self.torch.from_numpy(array)]

    def queue(self, name):
        if name not in self.queues:
            self.queues[name] = self.client.queue(name, 2, buffers=4)
        return self.queues[name]

    def send(self, queue, name, handle):
        self.queue(name).send(handle[0])

    def take(self, queue, name):
        return self.bridge.to_torch(self.queue(name).recv(60)).numpy(), None

    def delete(self, name, handle):
        super().delete(name, handle)
        while self.queues:
            self.queues.popitem()[1].close()


HAND_OVERS = {
    "tensorcx, queue": BridgeQueue,
    "tensorcx, by name": BridgeNames,
    "tensorcx, install()": Bridge,
    "torch, file_descriptor": Torch,
    "torch, file_system": TorchFiles,
}
TORCH_STORES = HAND_OVERS | {"torch": Torch}
