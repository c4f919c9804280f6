"""Figures: one very large tensor, and many that many children inherit."""

import contextlib
import os
import statistics
import time
from collections.abc import Iterator

from daemon import Daemon
from figures_scale import Size, puts, started
from harness import Worker
from probe import Cost, Other, processor_ns, wait_until_asleep
from report import Facts, size_text, time_text

ROOM = 64 << 20  # for small ones, beside the large one


@contextlib.contextmanager
def worker(daemon: Daemon | None = None) -> Iterator[Worker]:
    one = Worker("tensorcx", min(os.sched_getaffinity(0)))
    try:
        if daemon:
            one.ask("join", address=str(daemon.path))
        yield one
    finally:
        one.close()


# --------------------------------------------------------------------------------------- children


def fork_some(daemon: Daemon | None, parent: Worker, count: int) -> Cost:
    """A fork's time, and that of the daemon for it."""
    before = processor_ns(daemon.pid) if daemon else 0
    times = parent.ask("fork_children", count=count)
    if daemon:
        wait_until_asleep(daemon)
        return Cost((processor_ns(daemon.pid) - before) / count, statistics.median(times))
    return Cost(0, statistics.median(times))


def plain_fork(count: int) -> str:
    with worker() as parent:
        cost = fork_some(None, parent, count)
        parent.ask("end_children")
    return time_text(cost.client)


def children(size: Size, count: int) -> list[str]:
    """A column of the table."""
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(started())
        other = stack.enter_context(Other(daemon))
        peer, parent = daemon.connect(), stack.enter_context(worker(daemon))
        parent.ask("hold_small", count=size.inherited)
        fork = fork_some(daemon, parent, count)
        meanwhile = puts(daemon, peer, [b"other"] * size.batch)
        parent.ask("drop_small")  # but the children keep them
        other.begin()
        parent.ask("end_children")
        while peer.stats()["holds"]:
            time.sleep(0.0005)
        longest = other.end()
    return [
        plain_fork(count),
        time_text(fork.client),
        time_text(fork.daemon),
        time_text(meanwhile.daemon),
        time_text(longest),
    ]


def forks(size: Size) -> Facts:
    facts = Facts(
        f"Children of a process that holds {size.inherited:,} tensors",
        "a fork costs what it costs without us, and 0.1 ms",
        ["children", *(f"{count:,}" for count in size.children)],
    )
    rows = (
        "a fork of a process without a connection",
        "a fork",
        "of it the daemon, beside it",
        "the daemon for a `put` of another client, meanwhile",
        "the parent has let go and all children end: another waits at most",
    )
    columns = [children(size, count) for count in size.children]
    facts.rows = [list(row) for row in zip(rows, *columns, strict=True)]
    return facts


# ------------------------------------------------------------------------------------------- large


def large(size: Size) -> Facts:
    """One step after the other; limits beside what they limit."""
    nbytes = size.large
    with worker() as alone:
        limit = alone.ask("private", nbytes=nbytes)
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(started(f"--capacity={nbytes + ROOM}", "--warm-seconds=0"))
        other = stack.enter_context(Other(daemon))
        writer, reader = (stack.enter_context(worker(daemon)) for _ in range(2))
        other.begin()
        made = writer.ask("make_large", nbytes=nbytes)
        longest = other.end()
        got = reader.ask("get_large")
        writer.ask("forget_large")
        dropped = reader.ask("drop_large")
    facts = Facts(
        f"One tensor of {size_text(nbytes)}",
        "what the machine needs for its pages, and nothing that grows beside",
        ["", "tensorcx", "private memory"],
    )
    rows = (
        ("`empty`: the daemon makes its pages", made["empty"], None),
        ("written the first time", made["fill"], None),
        ("both together; private memory: written the first time", made["empty"] + made["fill"],
         limit["fresh"]),
        ("written again", made["again"], limit["again"]),
        ("`put`: it gets a name", made["put"], None),
        ("`get` in another process", got["get"], None),
        ("a byte of every page there, the first time", got["first"], None),
        ("the same again", got["again"], limit["read"]),
        ("deleted and let go, until free", dropped, None),
        ("another client waits at most, while its pages are made", longest, None),
    )  # fmt: skip
    for title, ours, theirs in rows:
        facts.rows.append([title, time_text(ours), "" if theirs is None else time_text(theirs)])
    return facts


FIGURES = (forks, large)
