"""Figures: a shared array over a multiprocessing queue; DLPack within one process."""

from collections.abc import Iterable
from contextlib import ExitStack

from harness import Cores, Run, Samples, Served, interleave, served
from report import Figure, size_text


def figures_exchange(run: Run) -> Iterable[Figure]:
    return [*queues(run), dlpack(run)]


def queues(run: Run) -> list[Figure]:
    """Half of a round trip in which both sides hand an array over that is shared already."""
    sizes = (run.scale.small, run.scale.medium, run.scale.large)
    figures = {
        nbytes: Figure(
            f"Handing a shared array of {size_text(nbytes)} over a `multiprocessing.Queue`",
            "the queue itself + 2 RT",
            "RT",
            "the queue itself",
        )
        for nbytes in sizes
    }
    for cores in run.cores:
        with ExitStack() as stack:
            reference = stack.enter_context(served("reference", cores))
            all_served = {store: stack.enter_context(served(store, cores)) for store in run.stores}
            for nbytes in sizes:
                figures[nbytes].add(
                    cores.title,
                    hand_over(run, cores, nbytes, {"the queue itself": reference} | all_served),
                )
    return list(figures.values())


def hand_over(run: Run, cores: Cores, nbytes: int, all_served: dict[str, Served]) -> Samples:
    arguments = {"cpu": cores.there, "nbytes": nbytes, "count": run.scale.batch, "warm": 3}
    reference = all_served["the queue itself"].writer
    actions = {
        "RT": lambda: reference.ask("round_trip", cpu=cores.there, count=run.scale.batch)
    } | {
        who: lambda one=one: one.writer.ask("queue", address=one.address, **arguments)
        for who, one in all_served.items()
    }
    return interleave(run.scale.rounds, actions)[""]


def dlpack(run: Run) -> Figure:
    unit = "np.from_dlpack(ndarray)"
    must = "cx.from_dlpack faster than torch's; np.from_dlpack of ours 2 of NumPy's own"
    figure = Figure("DLPack within one process, 4 KiB", must, unit)
    cores = run.cores[0]
    with ExitStack() as stack:
        reference = stack.enter_context(served("reference", cores)).writer
        ours = stack.enter_context(served("tensorcx", cores)).writer
        workers = [reference, ours]
        if "torch" in run.stores:
            workers.append(stack.enter_context(served("torch", cores)).writer)
        actions = {
            worker.store: lambda worker=worker: worker.ask("exchange", count=5)
            for worker in workers
        }
        parts = interleave(run.scale.rounds, actions)
    figure.add("one core", {what: next(iter(who.values())) for what, who in parts.items()})
    return figure
