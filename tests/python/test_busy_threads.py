"""Threads that do everything at once with the same handles: values are whole, and nothing is left.

Worth most under sanitizers: make asan-tests, make tsan-tests.
"""

import contextlib
import multiprocessing.reduction
import random
import threading

import forks
import numpy as np
import pytest

import tensorcx as cx

THREADS = 6
NAMES = [f"busy/{i}" for i in range(4)]
SIZES = [1, 100, 70_000]  # in a message, in a slab, mapped by pages

# What may become of a call when another thread has deleted, closed, filled or emptied meanwhile.
EXPECTED = (cx.NotFound, cx.Timeout, cx.ChannelClosed, ValueError)


def value(rng):
    return np.full(rng.choice(SIZES), rng.randrange(1 << 30), np.int64)


def look(x):
    """Whatever it is, all its numbers are the same."""
    for tensor in x.values() if isinstance(x, cx.Bundle) else [x]:
        seen = np.asarray(tensor)
        assert (seen == seen[0]).all()


class Busy:
    """What the threads share. Each public method is something that one of them does."""

    def __init__(self, path):
        self._path = path
        self._kept = [cx.zeros(100, "int64") for _ in range(4)]  # any thread uses and closes these
        self._clients = [cx.Client(path, autostart=False)]
        self._queue = cx.queue("busy/queue", 4, nbytes=1000)
        self._topic = cx.topic("busy/topic", 4, nbytes=1000)
        self._heard = self._topic.subscribe()

    def _any(self, rng):
        return rng.choice(self._kept)

    def _keep(self, rng, x):
        """Whose place it takes loses its last reference here, perhaps in the middle of a use."""
        self._kept[rng.randrange(len(self._kept))] = x

    def put(self, rng):
        self._keep(rng, cx.put(rng.choice(NAMES), value(rng), readonly=rng.random() < 0.2))

    def put_bundle(self, rng):
        self._keep(rng, cx.put(rng.choice(NAMES), {"a": value(rng), "b": value(rng)}))

    def put_shared(self, rng):
        cx.put(rng.choice(NAMES), self._any(rng))

    def get(self, rng):
        x = cx.get(rng.choice(NAMES), timeout=rng.choice([0, 0.01]))
        look(x)
        self._keep(rng, x)

    def get_with_another_client(self, rng):
        look(rng.choice(self._clients).get(rng.choice(NAMES)))

    def another_client(self, rng):
        self._clients[0].close()
        self._clients[0] = cx.Client(self._path, autostart=False)

    def delete(self, rng):
        cx.delete(rng.choice(NAMES))

    def ask(self, rng):
        rng.choice([cx.stats, cx.clients, cx.entries, cx.channels, cx.names])()

    def look(self, rng):
        look(self._any(rng))

    def close(self, rng):
        self._any(rng).close()

    def copy(self, rng):
        x = self._any(rng)
        look(x.copy() if isinstance(x, cx.Tensor) else x["a"].copy())

    def exchange(self, rng):
        x = self._any(rng)
        look(np.from_dlpack(cx.from_dlpack(x if isinstance(x, cx.Tensor) else x["b"])))

    def pickle(self, rng):
        pickled = multiprocessing.reduction.ForkingPickler.dumps(self._any(rng))
        look(multiprocessing.reduction.ForkingPickler.loads(pickled))

    def send(self, rng):
        rng.choice([self._queue, self._topic]).send(value(rng), timeout=0.01)

    def send_shared(self, rng):
        rng.choice([self._queue, self._topic]).send(self._any(rng), timeout=0.01)

    def loan(self, rng):
        with self._queue.loan(10, "int64", timeout=0.01) as loan:
            loan[...] = rng.randrange(100)
            if rng.random() < 0.7:
                self._queue.send(loan, timeout=0.01)

    def receive(self, rng):
        x = rng.choice([self._queue, self._heard]).recv(timeout=0.01)
        look(x)
        self._keep(rng, x)

    def subscribe(self, rng):
        self._heard.close()
        self._heard = self._topic.subscribe(latest=rng.random() < 0.5)

    def join(self, rng):
        with cx.queue("busy/queue") as another:
            look(another.recv(timeout=0.01))

    def fork(self, rng):
        if rng.random() < 0.1:
            with forks.Child(lambda child: (cx.stats(), self._queue.try_recv())):
                pass

    def end(self):
        for x in *self._kept, *self._clients, self._queue, self._heard, self._topic:
            x.close()
        for name in [*cx.names("busy/"), "busy/queue"]:  # which lives while it has messages
            with contextlib.suppress(cx.NotFound):
                cx.delete(name)


def work(busy, seed, rounds, failures):
    rng = random.Random(seed)
    actions = [getattr(busy, name) for name in vars(Busy) if name[0] != "_" and name != "end"]
    for _ in range(rounds):
        action = rng.choice(actions)
        try:
            action(rng)
        except EXPECTED:
            pass
        except BaseException as error:
            failures.append((action.__name__, error))
            return


@pytest.mark.parametrize("rounds", [500, pytest.param(5000, marks=pytest.mark.slow)])
def test_threads_do_everything_at_once(daemon, rounds):
    busy, failures = Busy(daemon.path), []
    threads = [
        threading.Thread(target=work, args=(busy, seed, rounds, failures))
        for seed in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    busy.end()
    assert not failures
