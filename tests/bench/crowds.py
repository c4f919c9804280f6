"""The contenders that carry messages between more than two processes; the others are our children.

A Crowd has many senders and one receiver, a Fan one sender and many that receive.
"""

import multiprocessing

import numpy as np
from links import FILL, mark


class Crowd:
    """Ours: a queue that many, children of ours, send loaned messages to."""

    def __init__(self, store, tag, nbytes):
        self.queue, self.shape = store.client.queue(tag, nbytes=nbytes), (nbytes,)

    def send(self):
        loan = self.queue.loan(self.shape, "u1")
        mark(np.asarray(loan))
        self.queue.send(loan)

    def recv(self):
        return np.asarray(self.queue.recv(timeout=20))


class Pickles:
    """multiprocessing's SimpleQueue, which copies."""

    def __init__(self, store, tag, nbytes):
        self.queue = multiprocessing.get_context("fork").SimpleQueue()
        self.array = np.full(nbytes, FILL, "u1")

    def send(self):
        self.queue.put(self.array)

    def recv(self):
        return self.queue.get()


class Topic:
    """Ours; subscribers are children."""

    def __init__(self, store, tag, nbytes, subscribers):
        self.topic = store.client.topic(tag, nbytes=nbytes)

    def send(self, frame):
        self.topic.send(frame)

    def subscribe(self, index):
        recv = self.topic.subscribe().recv
        return lambda: np.asarray(recv())

    def close(self):
        self.topic.close()


class Pipes:
    """One block of shared_memory, and a Pipe to each subscriber."""

    def __init__(self, store, tag, nbytes, subscribers):
        self.block = store.block(create=True, size=4 * nbytes)
        self.slots = np.ndarray((4, nbytes), "u1", self.block.buf)
        self.slots[:] = FILL
        self.pipes = [multiprocessing.Pipe(duplex=False) for _ in range(subscribers)]
        self.sent = 0

    def send(self, frame):
        slot = self.sent % 4
        self.sent += 1
        np.copyto(self.slots[slot], frame)
        for _, pipe in self.pipes:
            pipe.send_bytes(b"%d" % slot)

    def subscribe(self, index):
        recv = self.pipes[index][0].recv_bytes
        return lambda: self.slots[int(recv())]

    def close(self):
        del self.slots
        self.block.close()
        self.block.unlink()


class TorchQueues:
    """A queue to each subscriber; the frame is shared once for all."""

    def __init__(self, store, tag, nbytes, subscribers):
        context = store.torch.multiprocessing.get_context("fork")
        self.torch = store.torch
        self.queues = [context.Queue() for _ in range(subscribers)]

    def send(self, frame):
        self.tensor = self.torch.from_numpy(frame).share_memory_()
        for queue in self.queues:
            queue.put(self.tensor)

    def subscribe(self, index):
        return lambda: self.queues[index].get().numpy()

    def close(self):
        pass


CROWDS = {"tensorcx": Crowd, "multiprocessing.SimpleQueue": Pickles}
FANS = {"tensorcx": Topic, "one block + Pipes": Pipes, "torch": TorchQueues}
