"""The contenders that carry messages between processes, each as its documentation tells.

A Link is one process's end of a pair, for one measurement. A message is an array whose first and
last byte are FILL. `loaned`: memory to be written in place, of which these two bytes are; `fresh`:
a private array, copied into shared memory; `shared`: the same memory again and again.
"""

import gc
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
from stores import Store

FILL = 7


class Setting(NamedTuple):
    """A measurement; the same at both ends."""

    tag: str  # for names, its own
    nbytes: int
    how: str  # the method of a Link that sends
    spins: bool  # the receiver, instead of sleeping
    slots: int  # messages in flight at most


def compare(array, nbytes):
    if array.nbytes != nbytes or array[0] != FILL or array[-1] != FILL:
        raise AssertionError(f"wrong data: {array.nbytes} bytes of {nbytes}, {array[0]}")


def mark(array):
    array[0] = array[-1] = FILL


class Link:
    waits_for_room = True  # send() does; else the harness has to count

    @staticmethod
    def ends(context):
        """What both processes need from their start: ours, theirs."""
        return context.Pipe()

    def __init__(self, store, ends, side, setting):
        """Opens what this side sends by."""
        self.setting = setting

    def join(self):
        """Both sides are open."""

    def loaned(self, source):
        raise NotImplementedError

    def fresh(self, source):
        raise NotImplementedError

    def shared(self, source):
        raise NotImplementedError

    def recv(self):
        """The next message's array."""
        raise NotImplementedError

    def drop(self):
        """The receiver has let go of its array."""

    def close(self):
        pass


class Queue(Link):
    """Ours: a queue each way."""

    def __init__(self, store, ends, side, setting):
        super().__init__(store, ends, side, setting)
        sizes = {"capacity": setting.slots, "buffers": 2 * setting.slots, "nbytes": setting.nbytes}
        self.out, self.back = (
            store.client.queue(f"{setting.tag}-{of}", **sizes)
            for of in ((0, 1) if side == 0 else (1, 0))
        )
        self.spin_us = 1000 if setting.spins else 0
        self.shape = (setting.nbytes,)
        if setting.how == "shared":
            self.tensor = store.client.full(self.shape, FILL, "u1")

    def loaned(self, source):
        loan = self.out.loan(self.shape, "u1")
        mark(np.asarray(loan))
        self.out.send(loan)

    def fresh(self, source):
        self.out.send(source)

    def shared(self, source):
        self.out.send(self.tensor)

    def recv(self):
        return np.asarray(self.back.recv(spin_us=self.spin_us))

    def close(self):
        self.out.close()
        self.back.close()
        del self.out, self.back


class Block(Link):
    """A block of shared_memory each way, mapped once, in slots; their numbers by a Pipe."""

    waits_for_room = False

    def __init__(self, store, ends, side, setting):
        super().__init__(store, ends, side, setting)
        self.pipe, self.block = ends, store.block
        self.shape = (setting.slots, setting.nbytes)
        self.ours = self.block(create=True, size=setting.slots * setting.nbytes)
        self.out = np.ndarray(self.shape, "u1", self.ours.buf)
        self.out[:] = FILL
        self.sent = 0
        self.pipe.send(self.ours.name)

    def join(self):
        self.theirs = self.block(name=self.pipe.recv())
        self.back = np.ndarray(self.shape, "u1", self.theirs.buf)

    def next_slot(self):
        slot = self.sent % self.setting.slots
        self.sent += 1
        return slot

    def announce(self, slot):
        self.pipe.send_bytes(b"%d" % slot)

    def loaned(self, source):
        slot = self.next_slot()
        mark(self.out[slot])
        self.announce(slot)

    def fresh(self, source):
        slot = self.next_slot()
        np.copyto(self.out[slot], source)
        self.announce(slot)

    def shared(self, source):
        self.announce(self.next_slot())

    def recv(self):
        return self.back[int(self.pipe.recv_bytes())]

    def close(self):
        del self.out, self.back
        self.theirs.close()
        self.ours.close()
        self.ours.unlink()


class Spin(Block):
    """The same, but the receiver looks at a number in the block."""

    def __init__(self, store, ends, side, setting):
        super().__init__(store, ends, side, setting)
        self.count = self.block(create=True, size=8)
        self.our_count = self.count.buf.cast("Q")
        self.our_count[0] = 0
        self.pipe.send(self.count.name)
        self.received = 0

    def join(self):
        super().join()
        self.other_count = self.block(name=self.pipe.recv())
        self.their_count = self.other_count.buf.cast("Q")

    def announce(self, slot):
        self.our_count[0] = self.sent

    def recv(self):
        count, received = self.their_count, self.received
        while count[0] == received:
            pass
        self.received = received + 1
        return self.back[received % self.setting.slots]

    def close(self):
        self.our_count.release()
        self.their_count.release()
        self.other_count.close()
        self.count.close()
        self.count.unlink()
        super().close()


class Iceoryx2(Store):
    """It has no names, so only messages."""

    leaves = None  # how the files begin that it does not delete

    def version(self):
        return version("iceoryx2")

    def start(self, folder, cpu, *options):
        self.open(folder)
        self.leaves = f"{Path(folder).name}_"
        return folder

    def open(self, address):
        import iceoryx2

        iceoryx2.set_log_level(iceoryx2.LogLevel.Fatal)
        config = iceoryx2.config.default()
        config.global_cfg.root_path = iceoryx2.Path.new(address)
        config.global_cfg.prefix = iceoryx2.FileName.new(f"{Path(address).name}_")
        self.module = iceoryx2
        self.node = iceoryx2.NodeBuilder.new().config(config).create(iceoryx2.ServiceType.Ipc)

    def close(self):
        self.node = None
        if self.leaves:
            for file in Path("/dev/shm").glob(f"{self.leaves}*"):
                file.unlink()


class Samples(Link):
    """iceoryx2: a publisher and a subscriber each way; the receiver polls."""

    waits_for_room = False

    def __init__(self, store, ends, side, setting):
        import ctypes

        super().__init__(store, ends, side, setting)
        self.module, self.node = store.module, store.node
        names = (f"{setting.tag}/{side}", f"{setting.tag}/{1 - side}")
        slices = self.module.Slice[ctypes.c_uint8]
        services = [
            self.node.service_builder(self.module.ServiceName.new(name))
            .publish_subscribe(slices)
            .enable_safe_overflow(False)
            .subscriber_max_buffer_size(2 * setting.slots)
            .subscriber_max_borrowed_samples(2 * setting.slots)
            .open_or_create()
            for name in names
        ]
        self.publisher = (
            services[0]
            .publisher_builder()
            .initial_max_slice_len(setting.nbytes)
            .max_loaned_samples(2)
            .create()
        )
        self.subscriber = services[1].subscriber_builder().create()

    def loan(self):
        sample = self.publisher.loan_slice_uninit(self.setting.nbytes)
        return sample, np.frombuffer(sample.payload().as_memory_view(), "u1")

    def loaned(self, source):
        sample, array = self.loan()
        mark(array)
        sample.assume_init().send()

    def fresh(self, source):
        sample, array = self.loan()
        np.copyto(array, source)
        sample.assume_init().send()

    def recv(self):
        receive = self.subscriber.receive
        while (sample := receive()) is None:
            self.wait()
        self.sample = sample
        return np.frombuffer(sample.payload().as_memory_view(), "u1")

    def wait(self):
        pass

    def drop(self):
        self.sample = None

    def close(self):
        del self.publisher, self.subscriber
        gc.collect()


class Listener(Samples):
    """The receiver sleeps until it is notified."""

    def __init__(self, store, ends, side, setting):
        super().__init__(store, ends, side, setting)
        ours, theirs = (
            self.node.service_builder(self.module.ServiceName.new(f"{setting.tag}/event-{of}"))
            .event()
            .open_or_create()
            for of in (side, 1 - side)
        )
        self.notifier = ours.notifier_builder().create()
        self.listener = theirs.listener_builder().create()

    def loaned(self, source):
        super().loaned(source)
        self.notifier.notify()

    def fresh(self, source):
        super().fresh(source)
        self.notifier.notify()

    def wait(self):
        self.listener.blocking_wait()

    def close(self):
        del self.notifier, self.listener
        super().close()


class TorchQueue(Link):
    """torch.multiprocessing: a queue each way; `loaned` and `shared` send the same tensor again."""

    @staticmethod
    def ends(context):
        there, back = context.Queue(8), context.Queue(8)
        return (there, back), (back, there)

    def __init__(self, store, ends, side, setting):
        super().__init__(store, ends, side, setting)
        self.out, self.back = ends
        self.torch = store.torch
        self.tensor = self.torch.full((setting.nbytes,), FILL, dtype=self.torch.uint8)
        self.tensor.share_memory_()
        self.array = self.tensor.numpy()

    def loaned(self, source):
        mark(self.array)
        self.out.put(self.tensor)

    def fresh(self, source):
        self.tensor = self.torch.from_numpy(source).share_memory_()  # one copy
        self.out.put(self.tensor)

    def shared(self, source):
        self.out.put(self.tensor)

    def recv(self):
        return self.back.get().numpy()


LINKS = {  # who -> its store, which says where it runs, and its links
    "tensorcx": ("tensorcx", Queue),
    "one block + Pipe": ("shared_memory", Block),
    "one block, spinning": ("shared_memory", Spin),
    "iceoryx2, listener": ("iceoryx2", Listener),
    "iceoryx2, polling": ("iceoryx2", Samples),
    "torch": ("torch", TorchQueue),
}
LINK_STORES = {"iceoryx2": Iceoryx2}
