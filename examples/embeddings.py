"""Four processes compute sentence embeddings from ONE copy of a model's weights.  (make demo)

The two calls that matter are in `publish` and `shared_weights`:

    cx.put(name, weights)     # once: the weights go into shared memory, under a name
    cx.get(name)              # in every worker: the same memory, nothing is copied

What the workers then compute with are ordinary NumPy arrays: the model (minilm.py) and the pool of
processes (workers.py) know nothing of tensorcx. One worker is killed on the way. At the end the
same work is done with private weights, to compare results, memory and time.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # one thread per worker; NumPy looks when it is imported

import minilm
import numpy as np
from checks import memory, stats_at_rest, verdict
from workers import Pool, Vectors

import tensorcx as cx


def publish(name: str, weights: minilm.Weights) -> None:
    # The name keeps them, this process need not. Ephemeral: should it die, the name goes, too.
    cx.put(name, weights, readonly=True, ephemeral=True)


def shared_weights(name: str) -> minilm.Weights:
    return {key: np.asarray(tensor) for key, tensor in cx.get(name).items()}


def private_weights(file: str) -> minilm.Weights:
    return minilm.read_safetensors(file)


# --- the work -------------------------------------------------------------------------------------

PAIRS = [
    ("A man is playing a guitar on stage.", "Someone performs music with a guitar."),
    ("The stock market fell sharply today.", "Share prices dropped a lot this afternoon."),
    ("How do I reset my password?", "I forgot my login and need a new password."),
    ("The cat is sleeping on the sofa.", "A kitten naps on the couch."),
    ("Heavy rain flooded the streets.", "The roads are under water after the storm."),
    ("She baked a chocolate cake.", "A dessert with cocoa came out of her oven."),
    ("The spacecraft landed on Mars.", "A probe touched down on the red planet."),
    ("The train to Berlin is delayed.", "Our railway connection to Berlin runs late."),
    ("Doctors recommend regular exercise.", "Physicians advise people to work out often."),
    ("The court found him guilty.", "The judge convicted the defendant."),
    ("This laptop's battery dies too fast.", "My notebook needs charging every hour."),
    ("Bees are essential for pollination.", "Many plants depend on insects to reproduce."),
]
SENTENCES = [first for first, _ in PAIRS] + [second for _, second in PAIRS]
BATCHES = [SENTENCES[i : i + 6] for i in range(0, len(SENTENCES), 6)]
ROUNDS = 20  # every batch is embedded so many times, by whichever worker is free
DEADLY_JOB = 10  # whoever gets this one is killed while at it
WORKERS = 4


@dataclass
class Run:
    """What all the work came to, with shared or with private weights."""

    answers: list[Vectors]
    seconds: float
    memory: int  # bytes, of the workers, this process and the daemon
    load_seconds: float  # until the worker that joined later had its weights

    def vectors(self) -> Vectors:
        """One vector per sentence."""
        return np.concatenate(self.answers[: len(BATCHES)])

    def is_same_as(self, other: "Run") -> bool:
        """Whether every answer in every round has the same bits in both."""
        both = zip(self.answers, other.answers, strict=True)
        return all(mine.tobytes() == theirs.tobytes() for mine, theirs in both)


def serve(pool: Pool) -> Run:
    start = time.perf_counter()
    answers = pool.run(BATCHES * ROUNDS, DEADLY_JOB)
    seconds = time.perf_counter() - start
    processes = [cx.stats()["pid"], os.getpid(), *(worker.pid for worker in pool.workers)]
    return Run(answers, seconds, sum(map(memory, processes)), pool.replacements[0].load_seconds)


# --- what the daemon holds, and when it let go ----------------------------------------------------


class Ledger:
    """Prints what the daemon holds for this program, and when."""

    def __init__(self) -> None:
        self.others = stats_at_rest()  # its reserve, and what other programs of this user have
        self.clock = time.perf_counter()

    def used(self) -> int:
        """Bytes that a name or a process still needs."""
        return int(cx.stats()["bytes"] - self.others["bytes"])

    def warm(self) -> int:
        """Bytes that are free, but not yet given back to the system."""
        return int(cx.stats()["warm_bytes"] - self.others["warm_bytes"])

    def committed(self) -> int:
        """Bytes taken from the system and in use."""
        now, before = cx.stats(), self.others
        in_use = now["committed_bytes"] - now["warm_bytes"]
        return int(in_use - (before["committed_bytes"] - before["warm_bytes"]))

    def restart_clock(self) -> None:
        self.clock = time.perf_counter()

    def enter(self, what: str, nbytes: int) -> None:
        print(f"  {time.perf_counter() - self.clock:7.3f} s   {mb(nbytes):>8}   {what}")

    def enter_when_zero(self, what: str, measure: Callable[[], int]) -> bool:
        """Waits until nothing is left, at most 20 s; whether that came to pass."""
        deadline = time.perf_counter() + 20
        while measure() > 0 and time.perf_counter() < deadline:
            time.sleep(0.001)
        self.enter(what, measure())
        return measure() <= 0


def give_back(name: str, pool: Pool, ledger: Ledger) -> bool:
    """Deletes the name, lets the workers go one by one; whether the memory was freed."""
    print("\nheld by the daemon")
    ledger.restart_clock()
    ledger.enter(f"name and {len(pool.workers)} workers", ledger.used())
    cx.delete(name)
    ledger.enter("name deleted; the workers can go on", ledger.used())
    *leaving, last = pool.workers
    for worker in leaving:
        worker.stop()
        ledger.enter(f"process {worker.pid} ended", ledger.used())
    last.kill()
    what = f"process {last.pid} killed with SIGKILL: the last user is gone"
    return ledger.enter_when_zero(what, ledger.used)


# --- what is printed ------------------------------------------------------------------------------


def mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:.1f} MB"


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def show_serving(pool: Pool, run: Run) -> None:
    print(f"\n{len(run.answers)} batches in {run.seconds:.1f} s, answered by")
    for worker in pool.dead:
        lost = f"batch {worker.job} goes to another" if worker.job is not None else "nothing lost"
        print(f"  process {worker.pid}: {worker.answered:3}   then SIGKILL; {lost}")
    for worker in pool.workers:
        new = "   the replacement" if worker in pool.replacements else ""
        print(f"  process {worker.pid}: {worker.answered:3}{new}")


def show_pairs(vectors: Vectors) -> bool:
    """Prints how similar the pairs are; whether every sentence is closest to its other half."""
    similarity = vectors @ vectors.T
    np.fill_diagonal(similarity, -1)
    print("\nsimilarity of each pair, and of its first sentence to the next best")
    for i, (first, second) in enumerate(PAIRS):
        other = i + len(PAIRS)
        next_best = np.delete(similarity[i], other).max()
        print(f"  {similarity[i, other]:.2f} {next_best:.2f}   {first:37} {second}")
    partners = np.roll(np.arange(len(SENTENCES)), len(PAIRS))
    return bool((similarity.argmax(axis=1) == partners).all())


def show_table(shared: Run, private: Run, committed: int) -> None:
    def row(what: str, left: str, right: str) -> None:
        print(f"{what:40}{left:>12}{right:>12}")

    print()
    row("weights", "shared", "private")
    row("memory of all processes (sum of Pss)", mb(shared.memory), mb(private.memory))
    row("committed by the daemon for the weights", mb(committed), "-")
    row("a new worker has the weights after", ms(shared.load_seconds), ms(private.load_seconds))


def main() -> int:
    file = str(minilm.model_folder() / "model.safetensors")
    name = f"examples/minilm-{os.getpid()}"
    ledger = Ledger()

    weights = minilm.read_safetensors(file)
    publish(name, weights)
    print(f"put {len(weights)} tensors, {mb(ledger.used())}, as {name}")
    del weights
    try:
        with Pool(WORKERS, shared_weights, name) as pool:
            shared = serve(pool)
            show_serving(pool, shared)
            are_closest = show_pairs(shared.vectors())
            committed = ledger.committed()
            is_freed = give_back(name, pool, ledger)
    finally:
        with contextlib.suppress(cx.NotFound):
            cx.delete(name)  # still there only when something went wrong

    with Pool(WORKERS, private_weights, file) as pool:
        private = serve(pool)
    ledger.enter_when_zero("kept warm for the next put until now", ledger.warm)
    show_table(shared, private, committed)

    print()
    checks = {
        "answers have the same bits with shared and private weights": shared.is_same_as(private),
        "every sentence is closest to the other of its pair": are_closest,
        "all memory is free again": is_freed,
    }
    return verdict(checks)


if __name__ == "__main__":
    sys.exit(main())
