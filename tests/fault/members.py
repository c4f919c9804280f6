"""Two more members of the channel that an operation is about, who see what comes of it.

They also have a queue of their own aside, which nothing of that may hold up.
"""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from daemon import DEADLINE

import tensorcx as cx

CHANNEL, ASIDE = "channel", "witness-aside"  # the former in operations.h
FILL, SMALL, LARGE = 7, 3, 2 << 20  # what operations send
NUMBERS = range(100, 104)  # what members send; more than the channel holds
TOPIC = 1


def value_of(message) -> int:
    """What a message is full of: it is whole."""
    parts = (
        [message["one"], message["deep"]["two"]] if isinstance(message, cx.Bundle) else [message]
    )
    arrays = [part.numpy() for part in parts]
    assert [array.size for array in arrays] in ([SMALL], [LARGE], [SMALL, LARGE])
    (value,) = {int(n) for array in arrays for n in (array.min(), array.max())}
    return value


class Members:
    def __init__(self, socket):
        self.clients = [cx.Client(socket, autostart=False) for _ in range(2)]
        self.handles: list = []
        self.heard: list = []
        self.meet_aside()

    def meet_aside(self):
        self.aside = [c.queue(ASIDE, capacity=2, nbytes=SMALL) for c in self.clients]

    def join(self, entry):
        """The channel, of which this is the daemon's entry, if there is one and they are not in."""
        if not entry or self.handles:
            return
        self.entry = entry
        self.is_topic = bool(entry["flags"] & TOPIC)
        if self.is_topic:
            topics = [c.topic(CHANNEL) for c in self.clients]
            self.handles = [topics[0], topics[1].subscribe()]
            topics[1].close()
        else:
            self.handles = [c.queue(CHANNEL) for c in self.clients]

    def leave(self):
        self.handles.clear()

    def close(self):
        self.leave()
        self.aside.clear()
        for client in self.clients:
            client.close()

    def find_successor(self):
        """Their daemon is gone, and there is the next one."""
        with contextlib.suppress(cx.DaemonLost):
            self.go_on()
        self.leave()
        for client in self.clients:
            with contextlib.suppress(cx.DaemonLost):
                client.names()
        self.meet_aside()

    # ----------------------------------------------------------------------------------- going on

    def go_on(self):
        """They pass messages on by their own queue, whatever happens to others."""
        to, by = self.aside
        for number in NUMBERS:
            to.send(np.full(SMALL, number, "u1"), timeout=DEADLINE)
            assert value_of(by.recv(timeout=DEADLINE)) == number

    def is_held_up(self, pid) -> bool:
        """Whether the channel is, by this process: who wants to use it is told so."""
        if not self.handles:
            return False
        try:
            self.handles[0].loan((SMALL,), "u1", timeout=0.15).close()
        except cx.ChannelClosed:
            return False
        except cx.Timeout as timeout:
            assert f"pid {pid}" in str(timeout)
            return True
        return False

    # ------------------------------------------------------------------------------ what there is

    def talk(self) -> int:
        """Sends numbers by the channel. How many messages of others there were before."""
        if not self.handles:
            return 0
        values, sent = self.talk_in_turn() if self.is_topic else self.talk_at_once()
        others = values.count(FILL)
        assert values == [FILL] * others + sent
        return others

    def talk_at_once(self):
        with ThreadPoolExecutor(1) as pool:
            listening = pool.submit(lambda: list(self.listen()))
            sent = list(self.send())
            return listening.result(), sent

    def talk_in_turn(self):
        """A reader who is slow would miss some."""
        values = list(self.listen(timeout=0))
        for _ in self.send():
            values.append(next(self.listen()))
        return values, list(NUMBERS)

    def send(self):
        with contextlib.suppress(cx.ChannelClosed):
            for number in NUMBERS:
                self.handles[0].send(np.full(SMALL, number, "u1"), timeout=DEADLINE)
                yield number

    def send_as_others(self):
        """What counts as a message of theirs."""
        self.handles[0].send(np.full(SMALL, FILL, "u1"), timeout=DEADLINE)

    def listen(self, timeout=DEADLINE):
        """Until the last number, or the end of the channel. Keeps messages of others."""
        value = FILL
        with contextlib.suppress(cx.ChannelClosed, *([] if timeout else [cx.Timeout])):
            while value != NUMBERS[-1]:
                message = self.handles[1].recv(timeout=timeout)
                value = value_of(message)
                if value == FILL:
                    self.heard.append(message)
                del message
                yield value

    def let_go(self):
        """What they have kept is as it was, whoever has died meanwhile. All buffers are free then:
        they can have them."""
        assert {value_of(message) for message in self.heard} <= {FILL}
        self.heard.clear()
        if not self.handles:
            return
        with contextlib.suppress(cx.ChannelClosed):
            loans = [
                self.handles[0].loan((SMALL,), "u1", timeout=DEADLINE)
                for _ in range(self.entry["buffers"] - self.is_topic)  # it keeps its last message
            ]
            del loans
