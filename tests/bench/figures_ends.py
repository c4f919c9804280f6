"""Figures: many things end together, and somebody else asks meanwhile; what the books weigh."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns as now

import wire
from daemon import Daemon
from figures_scale import WAITS_EACH, Size, join, started
from probe import (
    Other,
    ask,
    get,
    note,
    pipelined,
    private_nbytes,
    put,
    release,
    wait_until_asleep,
)
from report import Facts, time_text

EPHEMERAL = wire.CONSTANTS["PUT_EPHEMERAL"]


def hold_many(peer: wire.Connection, count: int) -> list[int]:
    return pipelined(peer, (put() for _ in range(count)))


def name_many(peer: wire.Connection, count: int, flags=0, ttl_ms=0):
    """Names alone keep these."""
    held = pipelined(peer, (put(b"n%d" % i, flags, ttl_ms) for i in range(count)))
    release_all(peer, held)


def release_all(peer: wire.Connection, held: list[int]):
    for start in range(0, len(held), 4096):
        note(peer, release(*held[start : start + 4096]))


def wait_many(daemon: Daemon, count: int, name: Callable[[int], bytes]) -> list[wire.Connection]:
    peers = []
    for start in range(0, count, WAITS_EACH):
        peer = daemon.connect()
        peers.append(peer)
        for i in range(start, min(start + WAITS_EACH, count)):
            note(peer, get(name(i), wait=True, number=i + 1))
    return peers


# ------------------------------------------------------------------------------ ending together


@dataclass(frozen=True)
class End:
    """How many things come to be, and what makes all of them end."""

    title: str
    prepare: Callable[[Daemon, wire.Connection, int], Callable[[], object]]
    counter: str  # of STATS; back where it was when all is over


def dies_with_holds(daemon, peer, count):
    hold_many(peer, count)
    return peer.close


def releases_all(daemon, peer, count):
    held = hold_many(peer, count)
    return lambda: release_all(peer, held)


def dies_with_names(daemon, peer, count):
    name_many(peer, count, EPHEMERAL)
    return peer.close


def names_expire(daemon, peer, count):
    """All within a few milliseconds, some time after the last was put."""
    began = time.monotonic()
    end = began + 1 + count * 60e-6

    def frames():
        for i in range(count):
            left_ms = max(1, round((end - time.monotonic()) * 1000))
            yield put(b"n%d" % i, ttl_ms=left_ms)

    release_all(peer, pipelined(peer, frames()))
    return lambda: time.sleep(max(0, end - time.monotonic()))


def dies_waiting(daemon, peer, count):
    peers = wait_many(daemon, count, lambda i: b"w%d" % i)
    return lambda: [one.close() for one in peers]


def woken(daemon, peer, count):
    peers = wait_many(daemon, count, lambda i: b"same")
    return lambda: (ask(peer, put(b"same")), peers)


def cancels_all(daemon, peer, count):
    peers = wait_many(daemon, count, lambda i: b"w%d" % i)
    frames = [wire.frame("CANCEL", request=i + 1) for i in range(count)]
    return lambda: ([note(peers[i // WAITS_EACH], frame) for i, frame in enumerate(frames)], peers)


def child_ends(daemon, peer, count):
    """The parent has let go of them, the child has them still."""
    held = hold_many(peer, count)
    page = peer.fork()
    release_all(peer, held)
    return page.close


def younger_child_ends(daemon, peer, count):
    """An older child has none of them."""
    older = peer.fork()
    let_end = child_ends(daemon, peer, count)
    return lambda: (let_end(), older)


ENDS = (
    End("a client dies that holds n tensors", dies_with_holds, "holds"),
    End("n tensors are let go", releases_all, "holds"),
    End("a child ends, and all has waited for it", child_ends, "holds"),
    End("the same, beside an older child", younger_child_ends, "holds"),
    End("a client dies that has n ephemeral names", dies_with_names, "names"),
    End("n names expire", names_expire, "names"),
)
WAKES = (
    End("n calls wait for one name, which is put", woken, "waiting"),
    End("clients die that wait in n calls", dies_waiting, "waiting"),
    End("n calls that wait are cancelled", cancels_all, "waiting"),
)


def end_together(end: End, count: int) -> str:
    """For how long another client had to wait at most, and when all was over."""
    with started() as daemon, Other(daemon) as other, contextlib.ExitStack() as stack:
        watcher = stack.enter_context(daemon.connect())
        before = watcher.stats()[end.counter]
        peer = stack.enter_context(daemon.connect())
        let_end = end.prepare(daemon, peer, count)
        while watcher.stats()[end.counter] < before + count:
            pass
        wait_until_asleep(daemon)
        other.begin()
        start = now()
        let_end()
        while watcher.stats()[end.counter] > before:
            time.sleep(0.0005)
        over = now() - start
        longest = other.end()
    return f"{time_text(longest)}, {time_text(over)}"


def ends(size: Size) -> Facts:
    many = (ENDS, size.ends), (WAKES, size.wakes)
    facts = Facts(
        "Many end together, and another client asks meanwhile",
        "another waits for some milliseconds, whatever n",
        ["n: another waits at most, all is over after", *[""] * len(size.ends)],
    )
    for kinds, counts in many:
        for end in kinds:
            cells = [f"{count:,}: {end_together(end, count)}" for count in counts]
            facts.rows.append([end.title, *cells])
    return facts


# --------------------------------------------------------------------------------------- the books


def hold_named(daemon, peer, count):
    return pipelined(peer, (put(b"name-%d" % i) for i in range(count)))


def send_tickets(daemon, peer, count):
    (storage,) = hold_many(peer, 1)
    pipelined(peer, [wire.frame("TICKET", number=1, storage=storage)] * count)


def connect_many(daemon, peer, count):
    return [daemon.connect(life_page=True) for _ in range(count)]


def join_many(daemon, peer, count):
    return [join(peer, b"q%d" % i) for i in range(count)]


BOOKS = (
    ("tensor, held by its maker", 1, lambda d, p, n: hold_many(p, n)),
    ("the same with a name of 10 bytes", 1, hold_named),
    ("ticket", 1, send_tickets),
    ("call that waits", 2, lambda d, p, n: wait_many(d, n, lambda i: b"w%d" % i)),
    ("client with a life page", 20, connect_many),
    ("queue with one member", 20, join_many),
)


def books(size: Size) -> Facts:
    facts = Facts(
        "The daemon's memory for its books",
        "4.4 KiB for a named tensor of 4 KiB, the tensor included",
        ["one more", "bytes"],
    )
    for title, share, make in BOOKS:
        count = size.books // share
        with started("--client-tickets=1000000") as daemon, daemon.connect() as peer:
            hold_many(peer, 1)
            before = private_nbytes(daemon.pid)
            kept = make(daemon, peer, count)
            wait_until_asleep(daemon)
            grown = private_nbytes(daemon.pid) - before
            del kept
        facts.rows.append([title, f"{grown / count:,.0f}"])
    return facts


FIGURES = (ends, books)
