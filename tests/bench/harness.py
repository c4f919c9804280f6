"""Runs contenders side by side: worker processes, cores, interleaved rounds, statistics."""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PACKAGES = Path(os.environ.get("TENSORCX_PACKAGES", ROOT / "build" / "python"))
BRIDGE = ROOT / "integrations" / "torch-tensorcx"
OURS = ("reference", "tensorcx", "shared_memory")  # need no packages but our own
PEERS = ("lmdb", "vineyard", "SharedArray", "Ray", "iceoryx2")  # the rest needs PyTorch
STORES = (
    "tensorcx",
    "lmdb",
    "vineyard",
    "shared_memory",
    "SharedArray",
    "torch",
    "Ray",
    "iceoryx2",
)
NAMELESS = ("iceoryx2",)  # carries only messages

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    small: int = 4 * KIB
    medium: int = MIB
    large: int = 64 * MIB
    held: int = GIB  # of the process that is killed
    rounds: int = 10
    fresh: int = 5  # rounds that begin with new processes
    batch: int = 100  # repetitions a round: small arrays
    large_batch: int = 3
    alive: int = 100_000
    crowds: tuple[int, ...] = (16, 48)  # senders to one receiver
    idle_seconds: float = 5
    cores: int = 2
    patient: bool = True  # also those that take seconds to start


FULL = Scale()
QUICK = Scale(
    held=256 * MIB, rounds=2, fresh=2, batch=30, alive=10_000, idle_seconds=1, patient=False
)
TINY = Scale(4 * KIB, 64 * KIB, MIB, 4 * MIB, 1, 1, 5, 2, 200, (3,), 0.2, cores=1)


@dataclass(frozen=True)
class Cores:
    """Where the measuring process runs, and where a daemon or the process at the other end does.

    Left alone, the kernel flips between the two: ratios of mixed samples mean nothing.
    """

    title: str
    here: int
    there: int


def choose_cores(most: int) -> list[Cores]:
    first, *others = sorted(os.sched_getaffinity(0))
    found = [Cores("one core", first, first), *(Cores("two cores", first, cpu) for cpu in others)]
    return found[:most]


@dataclass
class Sample:
    """Times of one action, nanoseconds."""

    times: list[float] = field(default_factory=list)

    @property
    def minimum(self) -> float:
        return min(self.times)

    @property
    def median(self) -> float:
        return statistics.median(self.times)


class Missing(Exception):
    """A contender that is not installed here, or cannot do this."""


def python_of(store: str) -> Path:
    """That of the environment it is installed in."""
    if store in OURS:
        return Path(sys.executable)
    environment, target = (
        (".venv-peers", "bench-peers") if store in PEERS else (".venv-torch", "bench")
    )
    python = ROOT / environment / "bin" / "python"
    if not python.exists():
        raise Missing(f"{store}: not installed (make {target})")
    return python


class Worker:
    """A process that measures one contender, on one core, until close()."""

    def __init__(self, store: str, cpu: int):
        self.store, self.cpu = store, cpu
        python = python_of(store)
        paths = {"PYTHONPATH": f"{PACKAGES}:{BRIDGE}", "PYTHONWARNINGS": "ignore"}
        self.process = subprocess.Popen(
            ["taskset", "-c", str(cpu), python, HERE / "worker.py", store],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | paths,
            text=True,
        )

    def ask(self, do: str, **arguments):
        """What worker.py's function `do` returns."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps({"do": do} | arguments) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.store}: the worker ended at {do!r}")
        reply = json.loads(line)
        if "error" not in reply:
            return reply["answer"]
        if "NotImplementedError" in reply["error"] or "PackageNotFoundError" in reply["error"]:
            raise Missing(f"{self.store}: {do!r}")
        raise RuntimeError(f"{self.store}: {do!r} failed\n{reply['error']}")

    def close(self):
        """Ends it as a program that is done, and its server with it."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self.process.stdout.close()


@dataclass
class Served:
    """A contender that runs: the worker that puts, and its server."""

    writer: Worker
    address: str
    server_pid: int | None
    cores: Cores
    stack: ExitStack

    def join(self) -> Worker:
        """Another process that uses the same server."""
        reader = Worker(self.writer.store, self.cores.here)
        self.stack.callback(reader.close)
        reader.ask("join", address=self.address)
        return reader


@contextmanager
def served(store: str, cores: Cores, *options: str) -> Iterator[Served]:
    """A contender with a server of its own, on `cores`, until the end of the block."""
    with ExitStack() as stack:
        folder = tempfile.mkdtemp(prefix="tcx-bench-")
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        worker = Worker(store, cores.here)
        stack.callback(worker.close)
        started = worker.ask("start", folder=folder, cpu=cores.there, options=options)
        yield Served(worker, started["address"], started["pid"], cores, stack)


Samples = dict[str, Sample]  # who -> times


def interleave(rounds: int, actions: dict[str, Callable[[], object]]) -> dict[str, Samples]:
    """Calls all actions in turn, `rounds` times; each returns the times it measured.

    These are one list, called "" in the result, or one for each part that the action consists of.
    Whoever is Missing is left out.
    """
    parts: dict[str, Samples] = {}
    absent = set()
    for _ in range(rounds):
        for who, action in actions.items():
            if who in absent:
                continue
            try:
                measured = action()
            except Missing:
                absent.add(who)
                continue
            for part, times in (measured if isinstance(measured, dict) else {"": measured}).items():
                parts.setdefault(part, {}).setdefault(who, Sample()).times.extend(times)
    return parts


@dataclass(frozen=True)
class Run:
    """What is to be measured."""

    scale: Scale
    installed: tuple[str, ...]  # tensorcx first
    cores: list[Cores]

    @property
    def stores(self) -> tuple[str, ...]:
        """Those that have named arrays."""
        return tuple(store for store in self.installed if store not in NAMELESS)


def versions(stores: tuple[str, ...]) -> tuple[dict[str, str], list[str]]:
    """Of those that are installed; and what is missing."""
    found, missing = {}, []
    for store in stores:
        try:
            worker = Worker(store, min(os.sched_getaffinity(0)))
            try:
                found[store] = worker.ask("version")
            finally:
                worker.close()
        except Missing as absent:
            missing.append(str(absent))
    return found, missing
