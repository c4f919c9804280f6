"""Figures: messages between processes, through queues and topics."""

import json
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from figures_names import batch, limits
from harness import ROOT, Cores, Run, Sample, Samples, Served, interleave, served
from links import LINKS
from report import Facts, Figure, bold, number, size_text, time_text

SPINNING = ("tensorcx", "one block, spinning", "iceoryx2, polling")
ASLEEP = ("tensorcx", "one block + Pipe", "iceoryx2, listener", "torch")
HD = (1080, 1920, 3)


def takes_part(run: Run, store: str) -> bool:
    return store in run.installed and (run.scale.patient or store != "torch")


def figures_channels(run: Run) -> Iterable[Figure | Facts]:
    yield from one_way(run)
    yield in_a_row(run)
    yield from_many(run)
    yield to_many(run)
    yield killed(run)
    if len(run.cores) > 1:
        yield in_c(run)


# --------------------------------------------------------------------------------- two processes


class Pairs:
    """Those of the contenders that are installed, on the same cores."""

    def __init__(self, run: Run, cores: Cores, names: Iterable[str], stack: ExitStack):
        self.scale, self.cores = run.scale, cores
        self.reference = stack.enter_context(served("reference", cores)).writer
        self.all: dict[str, Served] = {
            who: stack.enter_context(served(LINKS[who][0], cores))
            for who in names
            if takes_part(run, LINKS[who][0])
        }

    def ask(self, who: str, do: str, **arguments) -> Callable:
        one = self.all[who]
        arguments |= {"who": who, "address": one.address, "cpu": self.cores.there}
        return lambda: one.writer.ask(do, **arguments)

    def one_way(self, nbytes: int, how: str, spins: bool = False) -> Samples:
        arguments = {"nbytes": nbytes, "how": how, "warm": 5, "spins": spins}
        count = batch(self.scale, nbytes) if how == "fresh" else self.scale.batch
        actions = limits(self.reference, self.cores, self.scale, nbytes)
        if how != "fresh":
            del actions["memcpy"]
        for who in self.all:
            if how != "shared" or not who.startswith("iceoryx2"):  # which sends memory once
                few = max(3, count // 5) if who == "torch" else count  # it takes a millisecond
                actions[who] = self.ask(who, "one_way", count=few, **arguments)
        return interleave(self.scale.rounds, actions)[""]


@contextmanager
def pairs(run: Run, cores: Cores, names: Iterable[str]) -> Iterator[Pairs]:
    with ExitStack() as stack:
        yield Pairs(run, cores, names, stack)


def cell(samples: Samples, who: str) -> str:
    times, unit = samples[who], samples["RT"]
    text = f"{time_text(times.minimum)}, {time_text(times.median)}"
    return f"{text}; **{number(times.median / unit.median)} RT**"


def by_size(title: str, must: str, sizes: Iterable[int]) -> Facts:
    return Facts(title, must, ["minimum, median; median in RT", *map(size_text, sizes)])


def add(facts: Facts, cores: Cores, columns: list[Samples]):
    """A row for each contender: a column for each size."""
    for who in columns[0]:
        cells = [cell(samples, who) for samples in columns]
        facts.rows.append([bold(f"{who}, {cores.title}"), *cells])


def one_way(run: Run) -> Iterable[Figure | Facts]:
    scale = run.scale
    sizes = (64, scale.small, scale.medium, scale.large)
    loaned = by_size(
        "One way, written in place, the receiver asleep", "0.75 RT, the same for all sizes", sizes
    )
    shared = by_size("One way, shared already, the receiver asleep", "2.75 RT, likewise", sizes)
    spinning = by_size("One way, written in place, the receiver spinning", "2 us, likewise", sizes)
    fresh = {
        scale.medium: ("memcpy + 0.8 RT", "RT", "memcpy"),
        scale.large: ("1.1 memcpy", "memcpy", ""),
    }
    copied = {
        nbytes: Figure(f"One way, a private array of {size_text(nbytes)}, asleep", *goal)
        for nbytes, goal in fresh.items()
    }
    for cores in run.cores:
        with pairs(run, cores, ASLEEP) as group:
            add(loaned, cores, [group.one_way(nbytes, "loaned") for nbytes in sizes])
            add(shared, cores, [group.one_way(nbytes, "shared") for nbytes in sizes])
            for nbytes, figure in copied.items():
                figure.add(cores.title, group.one_way(nbytes, "fresh"))
        if cores.here != cores.there:
            with pairs(run, cores, SPINNING) as group:
                add(spinning, cores, [group.one_way(nbytes, "loaned", True) for nbytes in sizes])
    return [loaned, shared, *([spinning] if spinning.rows else []), *copied.values()]


def rate(nanoseconds: float) -> str:
    messages = 1e9 / nanoseconds
    return f"{messages / 1e3:,.0f}k" if messages >= 1e4 else f"{messages:,.0f}"


def rates(sample: Sample) -> str:
    return f"{rate(sample.median)}, {rate(sample.minimum)}"


def in_a_row(run: Run) -> Facts:
    small = run.scale.small
    columns = {}
    for cores in run.cores:
        with pairs(run, cores, ASLEEP) as group:
            actions = {
                who: group.ask(
                    who,
                    "in_a_row",
                    nbytes=small,
                    count=run.scale.batch * (1 if who == "torch" else 5),
                )
                for who in group.all
            }
            columns[cores.title] = interleave(run.scale.rounds, actions)[""]
    header = [f"{title}: median, best" for title in columns]
    facts = Facts(
        f"Messages a second, {size_text(small)} written in place, 8 under way, asleep",
        "250k",
        ["", *header],
    )
    for who in next(iter(columns.values())):
        facts.rows.append([bold(who), *(rates(samples[who]) for samples in columns.values())])
    return facts


# -------------------------------------------------------------------------------- many processes


def from_many(run: Run) -> Facts:
    scale, cpus = run.scale, sorted(os.sched_getaffinity(0))
    facts = Facts(
        f"Many senders to one receiver, {size_text(scale.small)}, asleep, all processors",
        "200k a second; the slowest half as fast as the fastest; no send longer than 50 ms",
        ["", "messages a second: median, best", "slowest to fastest", "longest send"],
    )
    cores = run.cores[0]
    with served("tensorcx", cores) as ours, served("reference", cores) as bare:
        for senders in scale.crowds:
            arguments = {
                "senders": senders,
                "nbytes": scale.small,
                "count": scale.batch * 2000,
                "cpus": cpus,
            }
            actions = {
                crowd: lambda one=one, arguments=arguments | {"crowd": crowd}: one.writer.ask(
                    "from_many", **arguments
                )
                for crowd, one in (("tensorcx", ours), ("multiprocessing.SimpleQueue", bare))
            }
            parts = interleave(scale.fresh, actions)
            for crowd, sample in parts["time"].items():
                facts.rows.append(
                    [
                        bold(f"{crowd}, {senders}"),
                        rates(sample),
                        number(parts["least"][crowd].median),
                        time_text(max(parts["worst"][crowd].times)),
                    ]
                )
    return facts


def to_many(run: Run) -> Facts:
    facts = Facts(
        "A private 1080p frame to all subscribers of a topic",
        "one copy in all; a further subscriber costs a wake-up",
        [
            "",
            "1 subscriber: send, until it has it",
            "8: send, until all have it",
            "a further one: send, until all have it",
        ],
    )
    fans = {"tensorcx": "tensorcx", "one block + Pipes": "shared_memory", "torch": "torch"}
    for cores in run.cores:
        with ExitStack() as stack:
            workers = {
                who: stack.enter_context(served(store, cores)).writer
                for who, store in fans.items()
                if takes_part(run, store)
            }
            found = {}
            for subscribers in (1, 8):
                arguments = {"subscribers": subscribers, "shape": HD, "cpu": cores.there}
                arguments["count"] = run.scale.large_batch * 3
                actions = {
                    who: lambda worker=worker, arguments=arguments | {"who": who}: worker.ask(
                        "to_many", **arguments
                    )
                    for who, worker in workers.items()
                }
                found[subscribers] = interleave(run.scale.fresh, actions)
        for who in workers:
            one, eight = (
                [found[n][part][who].median for part in ("send", "all have it")] for n in (1, 8)
            )
            further = [max(0, b - a) / 7 for a, b in zip(one, eight, strict=True)]
            cells = [", ".join(map(time_text, times)) for times in (one, eight, further)]
            facts.rows.append([bold(f"{who}, {cores.title}"), *cells])
    return facts


# --------------------------------------------------------------------------------------- the end


def daemon_killed(cores: Cores) -> list[float]:
    with served("tensorcx", cores) as one:
        return one.writer.ask("daemon_killed")


def killed(run: Run) -> Facts:
    facts = Facts(
        "SIGKILL of a peer: how much longer the others wait",
        "0.1 s",
        ["", "minimum, median, longest"],
    )
    cores = run.cores[-1]
    with served("tensorcx", cores) as one:
        ask = one.writer.ask
        actions = {
            "a receiver that has all buffers, a sender waits": lambda: ask(
                "reader_killed", cpu=cores.there
            ),
            "one of four senders at full speed: the longest time without a message": lambda: ask(
                "sender_killed", cpu=cores.there
            ),
            "the daemon, a receiver waits: DaemonLost": lambda: daemon_killed(cores),
        }
        for what, sample in interleave(run.scale.rounds, actions)[""].items():
            times = (sample.minimum, sample.median, max(sample.times))
            facts.rows.append([bold(f"tensorcx: {what}"), ", ".join(map(time_text, times))])
    return facts


# ------------------------------------------------------------------------------------------- C


def in_c(run: Run) -> Facts:
    """tests/bench/channel.c, on two processors."""
    cores = run.cores[-1]
    program = ROOT / "build" / "bench" / "channel"
    with served("tensorcx", cores) as one:
        runs = str(run.scale.rounds * 50)
        command = [program, one.address, str(cores.here), str(cores.there), runs]
        done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, check=True)
    measured = json.loads(done.stdout)
    facts = Facts(
        "In C, the receiver spinning on its own processor, 4 bytes written in place",
        "5 of the bare ring's time; 2 million messages a second",
        ["", "one way: minimum, median", "messages a second, 8 under way: median, best"],
    )
    for who, parts in measured.items():
        way, message = Sample(parts["one way"]), Sample(parts["message"])
        times = f"{time_text(way.minimum)}, {time_text(way.median)}"
        facts.rows.append([bold(who), times, rates(message)])
    return facts
