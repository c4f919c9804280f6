"""Figures: tensors of PyTorch between two processes, a model's weights in a new one, linear."""

import itertools
import json
import os
import subprocess
from collections.abc import Iterable
from contextlib import ExitStack
from typing import NamedTuple

from harness import (
    BRIDGE,
    HERE,
    PACKAGES,
    Cores,
    Run,
    Sample,
    Samples,
    Served,
    Worker,
    interleave,
    python_of,
    served,
)
from report import Facts, Figure, bold, size_text, time_text
from stores_torch import HAND_OVERS
from weights import WAYS, resident


def figures_torch(run: Run) -> Iterable[Figure | Facts]:
    yield from hand_overs(run)
    yield from weights(run)
    yield weights_memory(run)
    yield linear(run)


# -------------------------------------------------------------------------------- between processes


class Case(NamedTuple):
    """What is handed over: of nbytes, private until then or not, and how much of it is read."""

    nbytes: int
    fresh: bool
    pages: bool

    def title(self) -> str:
        kind = "a private torch tensor" if self.fresh else "a torch tensor that is shared already"
        read = "a byte of every page read" if self.pages else "2 bytes read"
        return f"Handing over {kind}, {size_text(self.nbytes)}, {read}"


def hand_overs(run: Run) -> list[Figure]:
    """As queues() of figures_exchange.py: half of a round trip in which both sides send one."""
    sizes = (run.scale.medium, run.scale.large)
    cases = [Case(*case) for case in itertools.product(sizes, (False, True), (False, True))]
    must, unit = "a fifth of the others", "torch, file_descriptor"
    figures = {case: Figure(case.title(), must, unit) for case in cases}
    for cores in run.cores:
        with ExitStack() as stack:
            stores = {who: stack.enter_context(served(who, cores)) for who in HAND_OVERS}
            for case in cases:
                figures[case].add(cores.title, hand_over(run, cores, stores, case))
    return list(figures.values())


def hand_over(run: Run, cores: Cores, stores: dict[str, Served], case: Case) -> Samples:
    count = run.scale.large_batch if case.nbytes == run.scale.large else run.scale.batch
    arguments = {"cpu": cores.there, "count": count, "warm": 3} | case._asdict()
    actions = {
        who: lambda one=one: one.writer.ask("queue", address=one.address, **arguments)
        for who, one in stores.items()
    }
    return interleave(run.scale.rounds, actions)[""]


# ------------------------------------------------------------------------------ weights of a model


def load(one: Served) -> dict[str, list[float]]:
    worker = Worker(one.writer.store, one.cores.here)
    try:
        worker.ask("join", address=one.address)
        return worker.ask("load_weights")["times"]
    finally:
        worker.close()


def weights(run: Run) -> list[Figure]:
    must, unit = "the first of all", "torch.load(mmap=True)"
    titles = {
        "ready": "The 104 weights of a model (91 MB) in a new process, until its module has them",
        "used": "The same, until every weight was read",
    }
    figures = {part: Figure(text, must, unit) for part, text in titles.items()}
    for cores in run.cores:
        with ExitStack() as stack:
            actions = {}
            for way in WAYS:
                one = stack.enter_context(served(way, cores))
                one.writer.ask("save_weights")
                actions[way] = lambda one=one: load(one)
            for part, samples in interleave(run.scale.fresh, actions).items():
                figures[part].add(cores.title, samples)
    return list(figures.values())


def memory(way: str, cores: Cores) -> list[str]:
    """What one and four processes, the one that saved, and the daemon hold more than before."""
    with served(way, cores, "--reserve", "0") as one:

        def held() -> int:
            server = resident(pid=one.server_pid) if one.server_pid else 0
            return server + sum(worker.ask("resident") for worker in [one.writer, *workers])

        workers: list[Worker] = []
        before, found = held(), []
        one.writer.ask("save_weights")
        for _ in range(4):
            worker = one.join()
            before += worker.ask("load_weights")["before"]
            workers.append(worker)
            found.append(size_text(held() - before))
    return [found[0], found[-1]]


def weights_memory(run: Run) -> Facts:
    facts = Facts(
        "Memory of the processes that have read these weights",
        "one copy",
        ["", "one process", "four processes"],
    )
    for way in WAYS:
        facts.rows.append([bold(way), *memory(way, run.cores[-1])])
    return facts


# ------------------------------------------------------------------------------------------ linear


def linear(run: Run) -> Facts:
    program = [python_of("torch"), HERE / "torch_linear.py", str(run.scale.rounds)]
    done = subprocess.run(
        ["taskset", "-c", str(run.cores[0].here), *program],
        env=os.environ | {"PYTHONPATH": f"{PACKAGES}:{BRIDGE}"},
        stdout=subprocess.PIPE,
        check=True,
    )
    measured = json.loads(done.stdout)
    facts = Facts(
        "`linear`, x and w square matrices of float32, one thread",
        "under 10 us more than `F.linear`",
        ["", *(f"{size}: minimum, median" for size in measured)],
    )
    for who in next(iter(measured.values())):
        samples = [Sample(measured[size][who]) for size in measured]
        cells = [f"{time_text(sample.minimum)}, {time_text(sample.median)}" for sample in samples]
        facts.rows.append([bold(who), *cells])
    return facts
