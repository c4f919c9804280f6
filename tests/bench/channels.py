"""What worker.py does with messages: there and back, in a row, from many, to many, to the end.

The other processes are children of this one. Times are in nanoseconds, of one clock for all.
"""

import gc
import itertools
import mmap
import os
import signal
import threading
import time
import traceback
from contextlib import contextmanager
from multiprocessing.connection import Connection
from time import perf_counter_ns as now
from typing import NamedTuple

import numpy as np
from crowds import CROWDS, FANS
from links import FILL, LINKS, Setting, compare
from stores import Store

WAIT = 20  # seconds until something must have gone wrong
RUNS = 10  # short ones: what else the machine does spoils only some
SLOTS_NBYTES = 8 << 20  # messages so large are two at a time
partners = {}  # who -> the process at the other end, our End
tags = itertools.count()


def new_name():
    return f"{os.getpid()}-{next(tags)}"


def take(link, nbytes):
    array = link.recv()
    compare(array, nbytes)
    del array
    link.drop()


# -------------------------------------------------------------------------------- two processes


class End(NamedTuple):
    """What one of the two has for all measurements of a contender."""

    who: str
    store: Store
    ends: object  # of the Link
    control: Connection
    side: int


@contextmanager
def opened(end, setting):
    """A link that can be used, and no longer is by either side when the block ends."""

    def meet():
        end.control.send(None)
        end.control.recv()

    link = LINKS[end.who][1](end.store, end.ends, end.side, setting)
    meet()
    link.join()
    meet()
    gc.collect()
    yield link
    meet()
    link.close()
    meet()


def echo(link, setting, count, control):
    source = np.full(setting.nbytes, FILL, "u1")
    send = getattr(link, setting.how)
    for _ in range(count):
        take(link, setting.nbytes)
        send(source)


def drain(link, setting, count, control):
    half = setting.slots // 2
    for _ in range(RUNS):
        for i in range(count):
            take(link, setting.nbytes)
            if not link.waits_for_room and i % half == half - 1:
                control.send_bytes(b"room")
        control.send_bytes(b"all")


def other_end(end, address, cpu):
    os.sched_setaffinity(0, {cpu})
    end.store.open(address)
    while task := end.control.recv():
        role, setting, count = task
        with opened(end, setting) as link:
            role(link, setting, count, end.control)
    end.store.close()


def begin(store, who, address, cpu):
    """Our end; the other one waits for what its role is about."""
    if who not in partners:
        context = store.context()
        ours, theirs = LINKS[who][1].ends(context)
        control, their_control = context.Pipe()
        their_end = End(who, type(store)(), theirs, their_control, 1)
        process = context.Process(target=other_end, args=(their_end, address, cpu), daemon=True)
        process.start()
        partners[who] = process, End(who, store, ours, control, 0)
    return partners[who][1]


def end_partners():
    for process, end in partners.values():
        end.control.send(None)
        process.join(10)
        process.kill()


def one_way(store, who, address, cpu, *, nbytes, how, count, warm, spins=False):
    """Half of the time until a message has been answered by another one like it."""
    end = begin(store, who, address, cpu)
    setting = Setting(new_name(), nbytes, how, spins, 2 if nbytes > SLOTS_NBYTES else 8)
    end.control.send((echo, setting, warm + count))
    source = np.full(nbytes, FILL, "u1")
    times = []
    with opened(end, setting) as link:
        send = getattr(link, how)
        for _ in range(warm + count):
            start = now()
            send(source)
            take(link, nbytes)
            times.append((now() - start) / 2)
    return times[warm:]


def send_all(link, count, control):
    room = link.setting.slots
    for _ in range(count):
        if not link.waits_for_room and room == 0:
            control.recv_bytes()
            room = link.setting.slots // 2
        room -= 1
        link.loaned(None)
    while control.recv_bytes() != b"all":
        pass


def in_a_row(store, who, address, cpu, *, nbytes, count):
    """Time per message of `count` loaned ones, at most 8 at a time under way; RUNS times."""
    end = begin(store, who, address, cpu)
    setting = Setting(new_name(), nbytes, "loaned", False, 8)
    end.control.send((drain, setting, count))
    times = []
    with opened(end, setting) as link:
        for _ in range(RUNS):
            start = now()
            send_all(link, count, end.control)
            times.append((now() - start) / count)
    return times


# --------------------------------------------------------------------------------- many processes


def shared_numbers(count):
    """For children and us."""
    return memoryview(mmap.mmap(-1, 8 * count)).cast("q")


@contextmanager
def children(count, cpus, work):
    """Forked processes that run work(index) on `cpus` until the block ends."""
    pids = []
    try:
        for i in range(count):
            pid = os.fork()
            if pid == 0:
                try:
                    os.sched_setaffinity(0, cpus)
                    work(i)
                except BaseException:
                    traceback.print_exc()
                os._exit(0)
            pids.append(pid)
        yield pids
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def wait_until(condition):
    end = time.monotonic() + WAIT
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("children do not do what they should")
        time.sleep(0.001)


def from_many(store, crowd, *, senders, nbytes, count, cpus):
    """All send to us as fast as they can, nobody spins: what one message takes, and how fair."""
    os.sched_setaffinity(0, cpus)
    crowd = CROWDS[crowd](store, new_name(), nbytes)
    sent, worst = shared_numbers(senders), shared_numbers(senders)

    def work(i):
        while True:
            start = now()
            crowd.send()
            worst[i] = max(worst[i], now() - start)
            sent[i] += 1

    with children(senders, cpus, work):
        while min(sent) < 2:
            compare(crowd.recv(), nbytes)
        before = list(sent)
        worst[:] = shared_numbers(senders)
        start = now()
        for _ in range(count):
            compare(crowd.recv(), nbytes)
        took = now() - start
        parts = [after - earlier for after, earlier in zip(sent, before, strict=True)]
    return {"time": [took / count], "worst": [max(worst)], "least": [min(parts) / max(parts)]}


def to_many(store, who, *, subscribers, shape, count, cpu):
    """A private frame to all subscribers: what send() takes, and the last one to have it."""
    nbytes = int(np.prod(shape))
    fan = FANS[who](store, new_name(), nbytes, subscribers)
    frame = np.full(nbytes, FILL, "u1")
    seen, received = shared_numbers(subscribers), shared_numbers(subscribers)

    def work(i):
        recv = fan.subscribe(i)
        while True:
            received[i] += 1
            array = recv()
            seen[i] = now()
            compare(array, nbytes)
            del array

    sends, all_have = [], []
    with children(subscribers, {cpu}, work):
        for i in range(1, 4 + count):
            wait_until(lambda i=i: min(received) == i)
            time.sleep(0.001)  # so that they sleep
            start = now()
            fan.send(frame)
            end = now()
            wait_until(lambda start=start: min(seen) > start)
            sends.append(end - start)
            all_have.append(max(seen) - start)
    fan.close()
    return {"send": sends[3:], "all have it": all_have[3:]}


# --------------------------------------------------------------------------------------- the end


class Waiting(threading.Thread):
    """A call that waits; `ended` is when it returned, or raised."""

    def __init__(self, call):
        super().__init__(daemon=True)
        self.call, self.ended = call, None
        self.start()

    def run(self):
        try:
            self.call()
        except Exception as error:
            self.error = error
        self.ended = now()

    def after_killing(self, pid):
        """Nanoseconds from the SIGKILL, which the kernel needs a while for, to the call's end."""
        time.sleep(0.05)
        if self.ended:
            raise AssertionError("it did not wait")
        start = now()
        os.kill(pid, signal.SIGKILL)
        self.join(WAIT)
        return self.ended - start


def reader_killed(store, cpu):
    """It has received all that a queue can hold; we wait for a buffer."""
    queue = store.client.queue(new_name(), capacity=2, buffers=4, nbytes=4096)
    array = np.full(4096, FILL, "u1")
    taken = shared_numbers(1)

    def hoard(_):
        kept = []
        while True:
            kept.append(queue.recv())
            taken[0] += 1

    with children(1, {cpu}, hoard) as pids, queue:
        for _ in range(4):
            queue.send(array)
        wait_until(lambda: taken[0] == 4)
        return [Waiting(lambda: queue.send(array)).after_killing(pids[0])]


def daemon_killed(store):
    """We wait for a message; the error is to come soon."""
    waiting = Waiting(store.client.queue("waits").recv)
    times = [waiting.after_killing(store.server.pid)]
    if type(waiting.error).__name__ != "DaemonLost":
        raise AssertionError(f"it ended with {waiting.error!r}")
    return times


def sender_killed(store, cpu, *, nbytes=4096):
    """One of four that send without pause: the longest that we waited for a message since then."""
    crowd = CROWDS["tensorcx"](store, new_name(), nbytes)

    def work(_):
        while True:
            crowd.send()

    with children(4, {cpu}, work) as pids:
        for _ in range(4000):
            crowd.recv()
        os.kill(pids[0], signal.SIGKILL)
        longest, before = 0, now()
        end = before + 200_000_000
        while before < end:
            crowd.recv()
            after = now()
            longest, before = max(longest, after - before), after
    return [longest]


ACTIONS = [one_way, in_a_row, from_many, to_many, reader_killed, daemon_killed, sender_killed]
