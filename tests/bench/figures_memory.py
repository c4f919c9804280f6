"""Figures: fresh memory, many tensors, the end of a process, an idle daemon."""

import os
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from harness import Cores, Run, Served, Worker, interleave, served
from report import Facts, Figure, bold, size_text, time_text

NO_RESERVE = ("--reserve", "0")


def figures_memory(run: Run) -> Iterable[Figure | Facts]:
    for measure in (first_put, first_pages, many, killed, idle):
        yield measure(run)


# ----------------------------------------------------------------------------------- the first time


def wait_for_reserve(writer: Worker, nbytes: int):
    """Until it is large enough and no longer grows."""
    end = time.monotonic() + 10
    before = 0
    while (ready := writer.ask("stats")["warm_bytes"]) < nbytes or ready > before:
        if time.monotonic() > end:
            raise RuntimeError(f"tensorcxd has made no reserve of {nbytes} bytes within 10 s")
        before = ready
        time.sleep(0.3)


def put_once(run: Run, cores: Cores, store: str, *options: str, reserve: bool = False):
    """The first put of a new process into a new server."""
    nbytes = run.scale.large
    with served(store, cores, *options) as one:
        if reserve:
            wait_for_reserve(one.writer, nbytes)
        kept = one.writer.ask("keep", name="first", nbytes=nbytes)
        one.writer.ask("forget", name="first")
        return kept["put"]


def first_put(run: Run) -> Figure:
    figure = Figure(
        f"The very first `put` of {size_text(run.scale.large)} (new process, new daemon)",
        "0.85 shared_memory; 0.4 with the reserve",
        "shared_memory",
    )
    for cores in run.cores:
        actions = {
            "tensorcx": lambda c=cores: put_once(run, c, "tensorcx", reserve=True),
            "tensorcx, `--reserve 0`": lambda c=cores: put_once(run, c, "tensorcx", *NO_RESERVE),
        }
        for store in run.stores:
            if store not in ("tensorcx", "torch", "Ray"):  # these two take seconds to start
                actions[store] = lambda c=cores, s=store: put_once(run, c, s)
        figure.add(cores.title, interleave(run.scale.fresh, actions)[""])
    return figure


def first_pages(run: Run) -> Figure:
    nbytes = run.scale.large
    title = f"The first `get` of {size_text(nbytes)} in a new process, and a byte of every page"
    figure = Figure(title, "6 ms for 64 MiB", "shared_memory")

    def get_once(one: Served, key) -> list[float]:
        reader = Worker(one.writer.store, one.cores.here)
        try:
            reader.ask("join", address=one.address)
            arguments = {"nbytes": nbytes, "count": 1, "warm": 0, "pages": True}
            return reader.ask("get", key=key, **arguments)["get"]
        finally:
            reader.close()

    for cores in run.cores:
        with ExitStack() as stack:
            actions = {}
            for store in run.stores:
                if store == "Ray":
                    continue
                one = stack.enter_context(served(store, cores))
                key = one.writer.ask("keep", name="pages", nbytes=nbytes)["key"]
                stack.callback(one.writer.ask, "forget", name="pages")
                actions[store] = lambda one=one, key=key: get_once(one, key)
            figure.add(cores.title, interleave(run.scale.fresh, actions)[""])
    return figure


# ------------------------------------------------------------------------------------- many tensors


def private_bytes(pid: int | None) -> int:
    if pid is None:
        return 0
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise LookupError(pid)


def shared_bytes() -> int:
    """Shared memory of the whole machine."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("Shmem:"):
            return int(line.split()[1]) * 1024
    raise LookupError("Shmem")


def put_many(run: Run, cores: Cores, store: str) -> list[str]:
    """A line of the table: as many as asked, or as the contender can have."""
    options = NO_RESERVE if store == "tensorcx" else ()
    count = run.scale.alive
    with served(store, cores, *options) as one:
        before, shared = one.writer.ask("footprint"), shared_bytes()
        server = private_bytes(one.server_pid)
        arguments = {"nbytes": run.scale.small, "count": count, "descriptors": 1024}
        after = one.writer.ask("many", **arguments)
        made = len(after["times"])
        own = private_bytes(one.server_pid) - server
        every = (shared_bytes() - shared + own) / made
        one.writer.ask("forget_many")
    tenth = max(1, made // 10)
    first, last = (sum(part) / tenth for part in (after["times"][:tenth], after["times"][-tenth:]))
    return [
        bold(store),
        f"{made:,}" + (f" ({after['error'][:60]})" if after["error"] else ""),
        f"{every:,.0f} B",
        f"{own / made:,.0f} B",
        f"{after['descriptors'] - before['descriptors']:,}",
        f"{after['maps'] - before['maps']:,}",
        f"{time_text(first)}, {time_text(last)}, {time_text(max(after['times']))}",
    ]


PER_PUT = "a put: first tenth, last tenth, longest"


def many(run: Run) -> Facts:
    small = size_text(run.scale.small)
    facts = Facts(
        f"{run.scale.alive:,} named arrays of {small} alive, at most 1,024 descriptors",
        "all of them; 10 descriptors; maps = slabs + 10; 4.4 KiB each; time per put flat",
        ["", "alive", "memory each", "of it the server's books", "descriptors", "maps", PER_PUT],
    )
    for store in run.stores:
        if store not in ("Ray", "SharedArray"):  # takes a minute; leaves files when it breaks
            facts.rows.append(put_many(run, run.cores[-1], store))
    return facts


# ----------------------------------------------------------------------------- the end, and nothing


def killed(run: Run) -> Facts:
    """Nobody else gives memory back: only we are measured."""
    facts = Facts(
        f"SIGKILL of the only holder of {size_text(run.scale.held)}, mapped and touched",
        "free 3 ms after the kernel has ended the process",
        ["", "the kernel ends it: minimum, median", "from then until free", "in all"],
    )
    for cores in run.cores:
        with served("tensorcx", cores, *NO_RESERVE) as one:

            def kill(one: Served = one):
                holder = Worker("tensorcx", one.cores.there)
                try:
                    holder.ask("join", address=one.address)
                    holder.ask("hold", nbytes=run.scale.held)
                    times = one.writer.ask("kill", pid=holder.process.pid)
                finally:
                    holder.close()
                return {part: [time] for part, time in times.items()}

            parts = interleave(run.scale.fresh, {"": kill})
        samples = [parts[part][""] for part in ("kernel", "after", "all")]
        cells = [f"{time_text(s.minimum)}, {time_text(s.median)}" for s in samples]
        facts.rows.append([bold(f"tensorcx, {cores.title}"), *cells])
    return facts


def cpu_ticks(pid: int) -> int:
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))


def idle(run: Run) -> Facts:
    seconds = run.scale.idle_seconds
    facts = Facts(
        f"A daemon with one client, idle for {seconds:g} s",
        "0.0 % CPU, 5 MiB resident without data",
        ["", "CPU time", "resident", "of it private"],
    )
    with served("tensorcx", run.cores[-1], *NO_RESERVE) as one:
        pid = one.server_pid
        assert pid
        time.sleep(0.1)  # what it does at its start
        before = cpu_ticks(pid)
        time.sleep(seconds)
        used = (cpu_ticks(pid) - before) * 1e9 / os.sysconf("SC_CLK_TCK")
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        resident = [size_text(pages * os.sysconf("SC_PAGE_SIZE")), size_text(private_bytes(pid))]
    facts.rows.append([bold("tensorcxd"), time_text(used), *resident])
    return facts
