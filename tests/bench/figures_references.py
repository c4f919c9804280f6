"""Figures: what references of messages cost, while there are many."""

import contextlib
import random

import wire
from daemon import Daemon
from figures_scale import Size, curve, grown, started
from probe import Cost, ask, calls, measure, note, pipelined, put, release, storage_of
from report import Facts
from ring import Seat

NO_BUFFER = wire.CONSTANTS["WIRE_NO_BUFFER"]
EACH = 500  # of one queue, which has at most as many as buffers


class References:
    """A client that holds more and more tensors, each of which its messages may name; through as
    many queues as that takes. Another one receives."""

    def __init__(self, daemon: Daemon, size: Size, stack: contextlib.ExitStack):
        self.daemon, self.size, self.stack = daemon, size, stack
        self.sender, self.reader = daemon.connect(), daemon.connect()
        self.held: list[int] = []
        self.refs: list[int] = []
        self.seats: list[tuple[Seat, Seat]] = []
        self.random = random.Random(1)

    def join(self, peer: wire.Connection) -> Seat:
        name = b"q%d" % len(self.seats)
        seat = Seat(peer.join(name, capacity=400, buffers=EACH + 100, buffer_nbytes=256))
        return self.stack.enter_context(seat)

    def refer(self, i: int, storage: int) -> bytes:
        seat = self.seats[i // EACH][0]
        where = {"channel": seat.channel, "slot": seat.slot, "buffer": NO_BUFFER}
        return wire.frame("REFER", wire.ids((storage,)), number=1, **where)

    def fetch(self, i: int) -> bytes:
        """All that the reader uses is buffer 0."""
        seat = self.seats[i // EACH][1]
        where = {"channel": seat.channel, "slot": seat.slot, "buffer": 0}
        return wire.frame("FETCH", number=1, ref=self.refs[i], **where)

    def grow(self, count: int):
        new = range(len(self.held), count)
        self.held += pipelined(self.sender, (put() for _ in new))
        for i in new:
            if i % EACH == 0:
                self.seats.append((self.join(self.sender), self.join(self.reader)))
                self.seats[-1][1].use(0)
            self.refs.append(storage_of(ask(self.sender, self.refer(i, self.held[i]))))

    def again(self) -> Cost:
        return calls(self.daemon, self.sender, [self.refer(i, self.held[i]) for i in self.some()])

    def fetched(self) -> Cost:
        def one(frame: bytes, let_go: bytes):
            ask(self.reader, frame)
            note(self.reader, let_go)

        frames = [(self.fetch(i), release(self.held[i])) for i in self.some()]
        return measure(self.daemon, [lambda f=f: one(*f) for f in frames])

    def anew(self) -> Cost:
        """Nothing keeps it when its sender lets go."""

        def one(i: int):
            storage = storage_of(ask(self.sender, put()))
            ask(self.sender, self.refer(i, storage))
            note(self.sender, release(storage))

        return measure(self.daemon, [lambda i=i: one(i) for i in self.some()])

    def some(self) -> list[int]:
        return [self.random.randrange(len(self.held)) for _ in range(self.size.batch)]

    def costs(self) -> dict[str, Cost]:
        return {
            "`put`, REFER, release": self.anew(),
            "REFER again": self.again(),
            "FETCH and release": self.fetched(),
        }


def references(size: Size) -> Facts:
    with contextlib.ExitStack() as stack:
        things = References(stack.enter_context(started()), size, stack)
        columns = grown(things, size.references, size.rounds)
    title = f"Standing references of one client, {EACH} in a queue"
    return curve(title, "references", "flat", columns)


FIGURES = (references,)
