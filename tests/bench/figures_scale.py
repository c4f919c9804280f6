"""Figures: what an operation costs while much is stored, many wait, many are connected."""

import contextlib
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import wire
from daemon import Daemon
from probe import (
    Cost,
    answer,
    ask,
    best,
    calls,
    count_of,
    get,
    listing,
    measure,
    named,
    note,
    pipelined,
    processor_ns,
    put,
    release,
    storage_of,
)
from report import Facts

GROUP = 10  # names with one prefix
WAITS_EACH = 1000  # of one client: --max-waiting is 1024


@dataclass(frozen=True)
class Size:
    """How much of each there is, from little to much."""

    tensors: tuple[int, ...] = (1, 10, 100, 1_000, 10_000, 100_000)
    waiting: tuple[int, ...] = (1, 10, 100, 1_000, 10_000)
    clients: tuple[int, ...] = (1, 10, 100, 1_000)
    channels: tuple[int, ...] = (1, 10, 100, 1_000)
    members: tuple[int, ...] = (1, 8, 64, 512)
    references: tuple[int, ...] = (1, 10, 100, 1_000, 10_000)
    ends: tuple[int, ...] = (1_000, 10_000, 100_000)
    wakes: tuple[int, ...] = (100, 1_000, 10_000)
    children: tuple[int, ...] = (10, 1_000)
    books: int = 20_000
    inherited: int = 10_000
    large: int = 8 << 30
    batch: int = 500
    rounds: int = 3


FULL = Size()
TINY = Size(
    (1, 20),
    (1, 20),
    (1, 5),
    (1, 5),
    (1, 4),
    (1, 4),
    (50,),
    (20,),
    (3,),
    books=200,
    inherited=20,
    large=1 << 20,
    batch=10,
    rounds=1,
)


@contextlib.contextmanager
def started(*options: str) -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory(prefix="tcx-") as folder, Daemon(folder, *options) as daemon:
        yield daemon


def puts(daemon: Daemon, peer: wire.Connection, names: Sequence[bytes]) -> Cost:
    """The names are all that keeps what is put."""

    def one(frame: bytes):
        note(peer, release(storage_of(ask(peer, frame))))

    frames = [put(name) for name in names]
    return measure(daemon, [lambda f=f: one(f) for f in frames])


def cell(cost: Cost) -> str:
    return f"{cost.daemon / 1000:.1f}, {cost.client / 1000:.1f}"


def curve(title: str, what: str, must: str, columns: dict[int, dict[str, Cost]]) -> Facts:
    """A row an operation, a column a number of things; microseconds: the daemon's, the client's."""
    facts = Facts(title, must, [what, *(f"{n:,}" for n in columns)])
    for row in next(iter(columns.values())):
        facts.rows.append([row, *(cell(costs[row]) for costs in columns.values())])
    return facts


def grown(things, counts: Sequence[int], rounds: int) -> dict[int, dict[str, Cost]]:
    """The columns of a curve: what these things cost, of which there are ever more."""
    columns = {}
    for count in counts:
        things.grow(count)
        columns[count] = best(rounds, things.costs)
    return columns


# ---------------------------------------------------------------------------------------- tensors


def tensor_name(i: int) -> bytes:
    return b"g%d/%d" % (i // GROUP, i % GROUP)


class Tensors:
    """A daemon whose one client keeps more and more named tensors; another one asks."""

    def __init__(self, daemon: Daemon, size: Size):
        self.daemon, self.size = daemon, size
        self.keeper, self.peer = daemon.connect(), daemon.connect()
        self.held: list[int] = []
        self.random = random.Random(1)

    def grow(self, count: int):
        new = range(len(self.held), count)
        self.held += pipelined(self.keeper, (put(tensor_name(i)) for i in new))

    def some(self) -> list[int]:
        return [self.random.randrange(len(self.held)) for _ in range(self.size.batch)]

    def costs(self) -> dict[str, Cost]:
        """Each operation, with tensors chosen at random."""
        new = [b"%s+%d" % (tensor_name(i), j) for j, i in enumerate(self.some())]
        lists = [listing(b"g%d/" % (i // GROUP)) for i in self.some()]
        stats = [named("STAT", tensor_name(i)) for i in self.some()]
        return {
            "`put` and release": puts(self.daemon, self.peer, new),
            "`delete`, the end": calls(self.daemon, self.peer, [named("DELETE", n) for n in new]),
            "`get` and release": self.gets(),
            "`stat`": calls(self.daemon, self.peer, stats),
            "ten names of a prefix": calls(self.daemon, self.peer, lists),
            "all names, each": self.lists(),
            "ticket, redeem, release": self.tickets(),
            "`stats`": calls(self.daemon, self.peer, [wire.frame("STATS", number=1)] * 50),
        }

    def gets(self) -> Cost:
        def one(frame: bytes, let_go: bytes):
            ask(self.peer, frame)
            note(self.peer, let_go)

        frames = [(get(tensor_name(i)), release(self.held[i])) for i in self.some()]
        return measure(self.daemon, [lambda f=f: one(*f) for f in frames])

    def lists(self) -> Cost:
        """All of them, page after page."""
        names, frames, listed = sorted(tensor_name(i) for i in range(len(self.held))), [], 0
        while listed < len(names):
            frames.append(listing(b"", names[listed - 1] if listed else b""))
            listed += count_of(ask(self.peer, frames[-1]))
        page, share = calls(self.daemon, self.peer, frames), len(frames) / len(names)
        return Cost(page.daemon * share, page.client * share)

    def tickets(self) -> Cost:
        def one(storage: int):
            reply = ask(self.keeper, wire.frame("TICKET", number=1, storage=storage))
            redeem = {"ticket": storage_of(reply), "storage": storage}
            ask(self.peer, wire.frame("REDEEM", number=1, **redeem))
            note(self.peer, release(storage))

        return measure(self.daemon, [lambda i=i: one(self.held[i]) for i in self.some()])


def tensors(size: Size) -> Facts:
    with started() as daemon:
        columns = grown(Tensors(daemon, size), size.tensors, size.rounds)
    return curve("Tensors alive, named, and held by one client", "tensors", "flat", columns)


def tickets(size: Size) -> Facts:
    """Many that nobody redeems."""
    columns = {}
    with started("--client-tickets=1000000") as daemon:
        one = Tensors(daemon, size)
        one.grow(1)
        ticket = wire.frame("TICKET", number=1, storage=one.held[0])
        made = 0
        for count in size.tensors:
            pipelined(one.keeper, [ticket] * (count - made))
            made = count
            columns[count] = best(
                size.rounds,
                lambda: {"ticket, redeem, release": one.tickets(), "`get` and release": one.gets()},
            )
    return curve("Tickets that nobody has redeemed", "tickets", "flat", columns)


# ---------------------------------------------------------------------------------------- waiting


class Waiting:
    """A daemon with more and more calls that wait, each for a name of its own."""

    def __init__(self, daemon: Daemon, size: Size):
        self.daemon, self.size = daemon, size
        self.peer = daemon.connect()
        self.waiters: list[wire.Connection] = []
        self.count = 0
        self.random = random.Random(1)

    def wait(self, i: int):
        note(self.waiters[i // WAITS_EACH], get(b"w%d" % i, wait=True, number=i + 1))

    def grow(self, count: int):
        while len(self.waiters) * WAITS_EACH < count:
            self.waiters.append(self.daemon.connect())
        for i in range(self.count, count):
            self.wait(i)
        self.count = count
        while self.peer.stats()["waiting"] < count:
            pass

    def some(self) -> list[int]:
        return [self.random.randrange(self.count) for _ in range(self.size.batch)]

    def wake(self, i: int):
        name = b"w%d" % i
        waiter = self.waiters[i // WAITS_EACH]
        own = storage_of(ask(self.peer, put(name)))
        storage = storage_of(answer(waiter))
        ask(self.peer, named("DELETE", name))
        note(self.peer, release(own))
        note(waiter, release(storage))
        self.wait(i)

    def cancel(self, i: int):
        waiter = self.waiters[i // WAITS_EACH]
        note(waiter, wire.frame("CANCEL", request=i + 1))
        answer(waiter, wire.Status.CANCELLED)
        self.wait(i)

    def costs(self) -> dict[str, Cost]:
        return {
            "`put` of another name": puts(self.daemon, self.peer, [b"other"] * self.size.batch),
            "woken by a `put`, waits again": self.each(self.wake),
            "cancelled, waits again": self.each(self.cancel),
        }

    def each(self, do: Callable[[int], None]) -> Cost:
        return measure(self.daemon, [lambda i=i: do(i) for i in self.some()])


def waiting(size: Size) -> Facts:
    with started() as daemon:
        columns = grown(Waiting(daemon, size), size.waiting, size.rounds)
    must = f"flat; a client has at most {WAITS_EACH:,} of them"
    return curve("Calls that wait, each for a name of its own", "calls", must, columns)


# ---------------------------------------------------------------------------------------- clients


def client_costs(daemon: Daemon, peer: wire.Connection, size: Size) -> dict[str, Cost]:
    def come_and_go():
        daemon.connect().close()

    few = max(size.batch // 10, 1)
    before = processor_ns(daemon.pid)
    time.sleep(0.5)
    idle = processor_ns(daemon.pid) - before
    return {
        "`put` over an older one": puts(daemon, peer, [b"other"] * size.batch),
        "`stats`": calls(daemon, peer, [wire.frame("STATS", number=1)] * size.batch),
        "who holds what, first page": calls(daemon, peer, [wire.frame("CLIENTS", number=1)] * few),
        "comes, says hello, goes": measure(daemon, [come_and_go] * few),
        "one second without anything": Cost(2 * idle, 0),
    }


def clients(size: Size) -> Facts:
    columns = {}
    with started() as daemon, contextlib.ExitStack() as stack:
        peer = daemon.connect()
        connected = 1
        for count in size.clients:
            for _ in range(count - connected):
                stack.enter_context(daemon.connect(life_page=True))
            connected = count
            columns[count] = best(size.rounds, lambda: client_costs(daemon, peer, size))
    return curve("Clients connected, each with a life page", "clients", "flat", columns)


# --------------------------------------------------------------------------------------- channels


def join_frame(name: bytes, members=0) -> bytes:
    flags = wire.CONSTANTS["JOIN_CREATE"]
    return wire.frame("JOIN", name, number=1, flags=flags, participants=members, capacity=4)


def join(peer: wire.Connection, name: bytes, members=0) -> tuple[int, int]:
    """Channel and seat."""
    note(peer, join_frame(name, members))
    reply = peer.receive()
    os.close(reply.fds[0])
    return reply["channel"], reply["slot"]


def join_and_leave(peer: wire.Connection, name: bytes):
    channel, slot = join(peer, name)
    note(peer, wire.frame("LEAVE", channel=channel, slot=slot))


def channel_costs(daemon: Daemon, peer: wire.Connection, size: Size, count: int):
    chosen = random.Random(count)
    old = [b"q%d" % chosen.randrange(count) for _ in range(size.batch)]
    new = [b"new%d" % i for i in range(size.batch)]
    few = max(size.batch // 10, 1)
    return {
        "joins an older one, leaves": measure(
            daemon, [lambda n=n: join_and_leave(peer, n) for n in old]
        ),
        "makes a new one, leaves": measure(
            daemon, [lambda n=n: join_and_leave(peer, n) for n in new]
        ),
        "`put` over an older one": puts(daemon, peer, [b"other"] * size.batch),
        "who is where, first page": calls(daemon, peer, [wire.frame("CHANNELS", number=1)] * few),
    }


def channels(size: Size) -> Facts:
    columns = {}
    with started() as daemon:
        keeper, peer = daemon.connect(), daemon.connect()
        made = 0
        for count in size.channels:
            for i in range(made, count):
                join(keeper, b"q%d" % i)
            made = count
            columns[count] = best(size.rounds, lambda c=count: channel_costs(daemon, peer, size, c))
    return curve("Queues", "queues", "flat", columns)


def members(size: Size) -> Facts:
    columns = {}
    with started() as daemon:
        keeper, peer = daemon.connect(), daemon.connect()
        seated = 0
        for count in size.members:
            for _ in range(seated, count):
                join(keeper, b"crowd", 1024)
            seated = count
            another = measure(daemon, [lambda: join_and_leave(peer, b"crowd")] * size.batch)
            columns[count] = {
                "another joins and leaves": another,
                "another joins, and dies": measure(
                    daemon, [lambda: join_and_die(daemon)] * max(size.batch // 10, 1)
                ),
            }
    return curve("Members of one queue", "members", "flat but for a look at the seats", columns)


def join_and_die(daemon: Daemon):
    with daemon.connect() as peer:
        join(peer, b"crowd")


FIGURES = (tensors, tickets, waiting, clients, channels, members)
