"""Figures: put, get and delete by name, when all is warm."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack

from harness import Cores, Run, Samples, Scale, Served, Worker, interleave, served
from report import Figure, size_text


def limits(reference: Worker, cores: Cores, scale: Scale, nbytes: int) -> dict[str, Callable]:
    """What no contender can be faster than, measured in the same rounds."""
    count = batch(scale, nbytes)
    return {
        "RT": lambda: reference.ask("round_trip", cpu=cores.there, count=scale.batch),
        "memcpy": lambda: reference.ask("memcpy", nbytes=nbytes, count=count),
    }


def batch(scale: Scale, nbytes: int) -> int:
    """Repetitions a round."""
    return scale.large_batch if nbytes == scale.large else scale.batch


class Group:
    """All contenders, warm, on the same cores."""

    def __init__(self, run: Run, cores: Cores, stack: ExitStack):
        self.scale, self.cores = run.scale, cores
        self.reference = stack.enter_context(served("reference", cores)).writer
        self.all: dict[str, Served] = {
            store: stack.enter_context(served(store, cores)) for store in run.stores
        }
        self.readers = {store: one.join() for store, one in self.all.items()}

    def measure(self, nbytes: int, do: Callable[[str], Callable]) -> dict[str, Samples]:
        """The parts of an action by all; the limits are in each."""
        actions = {store: do(store) for store in self.all}
        reference = limits(self.reference, self.cores, self.scale, nbytes)
        parts = interleave(self.scale.rounds, reference | actions)
        bare = parts.pop("")
        return {part: bare | samples for part, samples in parts.items()}

    def puts(self, nbytes: int) -> dict[str, Samples]:
        arguments = {"nbytes": nbytes, "count": batch(self.scale, nbytes), "warm": 2}
        return self.measure(nbytes, lambda s: lambda: self.all[s].writer.ask("put", **arguments))

    def puts_kept(self, nbytes: int) -> Samples:
        """Ours without letting go of what put() returns."""
        ask = self.all["tensorcx"].writer.ask
        arguments = {"nbytes": nbytes, "count": batch(self.scale, nbytes), "warm": 2}
        label = "tensorcx, its result kept"
        action = {label: lambda: ask("put", keep_result=True, **arguments)}
        return interleave(self.scale.rounds, action)["put"]

    def gets(self, nbytes: int, pages: bool) -> dict[str, Samples]:
        name = f"get-{nbytes}-{pages}"
        keys = {
            store: one.writer.ask("keep", name=name, nbytes=nbytes)["key"]
            for store, one in self.all.items()
        }
        count = self.scale.batch if not pages else self.scale.large_batch * 3
        arguments = {"nbytes": nbytes, "count": count, "warm": 2, "pages": pages}
        result = self.measure(
            nbytes, lambda s: lambda: self.readers[s].ask("get", key=keys[s], **arguments)
        )
        for one in self.all.values():
            one.writer.ask("forget", name=name)
        return result

    def dels(self, nbytes: int) -> Samples:
        """`del` of an unnamed tensor: only we have it."""
        ask = self.all["tensorcx"].writer.ask
        count = batch(self.scale, nbytes)
        label = "tensorcx, `del` of the only reference"
        action = {label: lambda: ask("let_go", nbytes=nbytes, count=count)}
        return interleave(self.scale.rounds, action)[""]


def plan(scale: Scale) -> dict[str, Figure]:
    small, medium, large = map(size_text, (scale.small, scale.medium, scale.large))
    loop = "under a name, put and delete in a loop"
    figures = {
        "put small": Figure(f"`put` of {small} {loop}", "1.5 RT", "RT"),
        "put medium": Figure(f"`put` of {medium} {loop}", "memcpy + 3 RT", "RT", "memcpy"),
        "put large": Figure(f"`put` of {large} {loop}", "1.15 memcpy", "memcpy"),
        "delete": Figure(f"Deleting {large}", "1.5 RT", "RT"),
    }
    for label, text in (("small", small), ("medium", medium), ("large", large)):
        figures[f"get {label}"] = Figure(
            f"`get` of {text} by name in another process, 2 bytes read", "1.5 RT", "RT"
        )
    figures["both"] = Figure(f"The same with {small}, and let go", "none of its own", "RT")
    figures["pages"] = Figure(
        f"`get` of {large} and a byte of every page, mapped before", "0.2 ms for 64 MiB", "RT"
    )
    return figures


def measure(group: Group, figures: dict[str, Figure]):
    scale, cores = group.scale, group.cores.title
    sizes = {"small": scale.small, "medium": scale.medium, "large": scale.large}
    for label, nbytes in sizes.items():
        parts = group.puts(nbytes)
        figures[f"put {label}"].add(cores, parts["put"] | group.puts_kept(nbytes))
        if label == "large":
            figures["delete"].add(cores, parts["delete"] | group.dels(nbytes))
    for label, nbytes in sizes.items():
        parts = group.gets(nbytes, pages=False)
        figures[f"get {label}"].add(cores, parts["get"])
        if label == "small":
            figures["both"].add(cores, parts["both"])
    figures["pages"].add(cores, group.gets(scale.large, pages=True)["get"])


def figures_names(run: Run) -> Iterable[Figure]:
    figures = plan(run.scale)
    for cores in run.cores:
        with ExitStack() as stack:
            measure(Group(run, cores, stack), figures)
    return figures.values()
