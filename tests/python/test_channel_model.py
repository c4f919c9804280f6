"""Random programs on queues and topics, beside a model of them that is a page of Python.

The model knows which messages there are and which buffers are free, nothing of locks, masks and
processes: one thread does one thing at a time here, and never waits.
"""

import collections
import contextlib
import random

import numpy as np
import pytest

import tensorcx as cx
from tensorcx._dtypes import DTYPES

NBYTES = 2048  # of a buffer
DROPS = {"block": False, "drop_oldest": True}


class Full(Exception):
    pass


class Ended(Exception):
    pass


class Cursor:
    def __init__(self, at, latest=False):
        self.at, self.latest, self.missed = at, latest, 0


class Model:
    """Messages have numbers; each has a buffer, which is free when nobody needs or keeps it."""

    def __init__(self, is_topic, drops, capacity, buffers):
        self.is_topic, self.drops, self.capacity, self.buffers = is_topic, drops, capacity, buffers
        self.messages = []  # (what, buffer), by number
        self.floor = 0  # those below were dropped
        self.cursors = [] if is_topic else [Cursor(0)]
        self.kept = collections.Counter()  # buffers that are loaned or received
        self.is_shut_down = False

    @property
    def head(self):
        return len(self.messages)

    def at(self, cursor):
        return max(cursor.at, self.floor)

    def needed(self):
        first = min((self.at(cursor) for cursor in self.cursors), default=self.head)
        if self.is_topic:  # the last one is for who subscribes to the latest
            first = min(first, max(self.head - 1, self.floor))
        return range(first, self.head)

    def loan(self):
        if self.is_shut_down:
            raise Ended
        busy = {self.messages[i][1] for i in self.needed()} | set(+self.kept)
        if len(busy) == self.buffers:
            droppable = (i for i in self.needed() if self.messages[i][1] not in +self.kept)
            oldest = next(droppable, None) if self.drops else None
            if oldest is None:
                raise Full
            self.floor = oldest + 1
            return self.loan()
        buffer = next(b for b in range(self.buffers) if b not in busy)
        self.kept[buffer] += 1
        return buffer

    def send_loan(self, what, buffer):
        """On failure it still is a loan."""
        if self.is_shut_down:
            raise Ended
        if any(self.head - self.at(cursor) >= self.capacity for cursor in self.cursors):
            if not self.drops:
                raise Full
            self.floor = max(self.floor, self.head - self.capacity + 1)
        self.messages.append((what, buffer))
        self.kept[buffer] -= 1

    def send(self, what):
        buffer = self.loan()
        try:
            self.send_loan(what, buffer)
        except (Full, Ended):
            self.kept[buffer] -= 1
            raise

    def recv(self, cursor):
        at = self.at(cursor)
        if cursor.latest:
            at = max(at, self.head - 1)
        if at >= self.head:
            raise Ended if self.is_shut_down else Full
        cursor.missed += at - cursor.at
        cursor.at = at + 1
        what, buffer = self.messages[at]
        self.kept[buffer] += 1
        return what, buffer

    def subscribe(self, latest):
        at = self.head - 1 if latest and self.head > self.floor else self.head
        self.cursors.append(Cursor(at, latest))
        return self.cursors[-1]


# ------------------------------------------------------------------------------------ the program


def array(rng, n):
    dtype = rng.choice(list(DTYPES.values()))
    shape = rng.choice([(), (3,), (2, 5), (1, 2, 3), (0,), (4, 0)])
    return np.full(shape, n % 100, dtype)


def tree(rng, n):
    made = {f"k{i}": array(rng, n + i) for i in range(rng.randrange(1, 4))}
    return made | ({"below": {"x": array(rng, n), "none": {}}} if rng.random() < 0.3 else {})


def same(received, sent):
    if isinstance(sent, dict):
        return list(received) == list(sent) and all(same(received[k], sent[k]) for k in sent)
    looks = (received.dtype, received.shape) == (sent.dtype, sent.shape)
    return looks and np.array_equal(received.numpy(), sent)


class Program:
    """Does the same to a channel and to its model, and compares."""

    def __init__(self, seed):
        self.rng = rng = random.Random(seed)
        self.is_topic, overflow = rng.random() < 0.5, rng.choice(list(DROPS))
        capacity = rng.randrange(1, 6)
        buffers = capacity + rng.choice([2, 2, 3, 5])
        self.open = cx.topic if self.is_topic else cx.queue
        self.overflow = overflow
        self.model = Model(self.is_topic, DROPS[overflow], capacity, buffers)
        self.handles = [self.join(capacity, buffers=buffers, nbytes=NBYTES)]
        self.readers = []  # (subscription, cursor)
        self.loans = []  # (tensor, what, buffer)
        self.kept = []  # (received, what, buffer or None)
        self.pins = {}  # id of what was received by reference -> the buffer that it keeps
        self.n = 0

    def join(self, *settings, **more):
        return self.open("model", *settings, overflow=self.overflow, **more)

    def run(self, steps):
        calls = [self.send] * 8 + [self.recv] * 8 + [self.let_go] * 3 + [self.loan, self.send_loan]
        calls += [self.send_by_reference, self.open_or_close, self.subscribe, self.unsubscribe]
        with contextlib.ExitStack() as stack:
            stack.callback(self.end)
            for step in range(steps):
                if step == steps - 8:
                    self.handles[0].shutdown()
                    self.model.is_shut_down = True
                self.rng.choice(calls)()
                self.compare()

    def end(self):
        self.kept.clear(), self.loans.clear()
        with contextlib.suppress(cx.NotFound):
            cx.delete("model")
        for handle in self.handles + [reader for reader, _ in self.readers]:
            handle.close()

    def both(self, modelled, real):
        """What both return; None if both refuse, for the same reason."""
        try:
            wanted = modelled()
        except (Full, Ended) as error:
            with pytest.raises(cx.Timeout if isinstance(error, Full) else cx.ChannelClosed):
                real()
            return None
        return wanted, real()

    def handle(self):
        return self.rng.choice(self.handles)

    def send(self):
        self.n += 1
        x = self.rng.choice([array, tree])(self.rng, self.n)
        handle = self.handle()
        self.both(lambda: self.model.send((x, False)), lambda: handle.send(x, timeout=0))

    def send_by_reference(self):
        self.n += 1
        x = np.full(self.rng.choice([10, 1000]), self.n)
        source = cx.asarray(x) if len(x) == 10 else x
        handle = self.handle()
        self.both(lambda: self.model.send((x, True)), lambda: handle.send(source, timeout=0))

    def loan(self):
        self.n += 1
        x, handle = array(self.rng, self.n), self.handle()
        got = self.both(self.model.loan, lambda: handle.loan(x.shape, x.dtype, timeout=0))
        if got:
            got[1][...] = x
            self.loans.append((handle, got[1], x, got[0]))

    def send_loan(self):
        if not self.loans:
            return
        loaned = self.loans.pop(self.rng.randrange(len(self.loans)))
        handle, tensor, x, buffer = loaned
        if self.both(
            lambda: self.model.send_loan((x, False), buffer), lambda: handle.send(tensor, timeout=0)
        ):
            assert tensor.closed
        else:
            self.loans.append(loaned)

    def recv(self):
        if self.is_topic and not self.readers:
            return
        reader, cursor = (
            self.rng.choice(self.readers)
            if self.is_topic
            else (self.handle(), self.model.cursors[0])
        )
        got = self.both(lambda: self.model.recv(cursor), lambda: reader.recv(0))
        if got:
            ((x, by_reference), buffer), received = got
            if by_reference:  # its buffer is free again, or keeps what is referred to
                if self.held() < self.model.kept.total():
                    self.model.kept[buffer] -= 1
                else:
                    self.pins[id(x)] = buffer
                buffer = None
            self.kept.append((received, x, buffer))

    def held(self):
        return sum(holder["buffers"] for holder in self.handles[0].stats()["holders"])

    def let_go(self):
        if self.rng.random() < 0.3 and self.loans:
            _, _, _, buffer = self.loans.pop()
        elif self.kept:
            _, what, buffer = self.kept.pop(self.rng.randrange(len(self.kept)))
            if not any(x is what for _, x, _ in self.kept):
                buffer = self.pins.pop(id(what), buffer)
        else:
            return
        if buffer is not None:
            self.model.kept[buffer] -= 1

    def open_or_close(self):
        if len(self.handles) == 1 or self.rng.random() < 0.5:
            self.handles.append(self.join())
        else:
            handle = self.handles.pop(1)
            for loaned in [loaned for loaned in self.loans if loaned[0] is handle]:
                self.loans.remove(loaned)
                self.model.kept[loaned[3]] -= 1
            handle.close()

    def subscribe(self):
        if self.is_topic and len(self.readers) < 4:
            latest = self.model.drops and self.rng.random() < 0.5
            reader = self.handle().subscribe(latest=latest)
            self.readers.append((reader, self.model.subscribe(latest)))

    def unsubscribe(self):
        if self.readers and self.rng.random() < 0.5:
            reader, cursor = self.readers.pop(self.rng.randrange(len(self.readers)))
            self.model.cursors.remove(cursor)
            reader.close()

    def compare(self):
        assert all(same(received, x) for received, x, _ in self.kept)
        assert self.held() == self.model.kept.total()
        stats = self.handles[0]._info()
        assert stats["messages"] == self.model.head
        behind = [self.model.head - self.model.at(cursor) for cursor in self.model.cursors]
        assert stats["depth"] == max(behind, default=0)
        for reader, cursor in self.readers:
            assert reader.missed == cursor.missed


def run(seeds):
    for seed in seeds:
        try:
            Program(seed).run(80)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def test_random_programs_do_what_the_model_does():
    run(range(50))


@pytest.mark.slow
def test_many_random_programs_do_what_the_model_does():
    run(range(50, 1050))
