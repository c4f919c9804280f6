"""Worker processes that answer jobs over pipes, and a pool that replaces those that die.

Plain multiprocessing: sentences go in, vectors come back. How a worker comes by its weights is not
decided here but by the function `load` that the pool is given.
"""

import contextlib
import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait

import minilm
import numpy as np
import numpy.typing as npt

Load = Callable[[str], minilm.Weights]
Vectors = npt.NDArray[np.float32]


def work(pipe: Connection, load: Load, source: str) -> None:
    """A worker's life: get the weights, say how long that took, answer until the pipe is closed."""
    tokenizer = minilm.Tokenizer(minilm.model_folder() / "vocab.txt")
    start = time.perf_counter()
    weights = load(source)
    seconds = time.perf_counter() - start

    with contextlib.suppress(EOFError, ConnectionError):  # the pool closed its end, or is gone
        pipe.send(seconds)
        while True:
            sentences = pipe.recv()
            pipe.send(minilm.embed(weights, *tokenizer.batch(sentences)))


class Worker:
    """The pool's side of one worker process."""

    def __init__(self, load: Load, source: str) -> None:
        # A fresh interpreter: what a fork inherits would blur the memory figures.
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(target=work, args=(theirs, load, source), daemon=True)
        self.process.start()
        theirs.close()  # now the other end is the worker's alone, and closes when it dies
        self.is_ready = False
        self.load_seconds = 0.0  # what it took to get the weights, once it is ready
        self.job: int | None = None  # what it is working on
        self.answered = 0

    @property
    def pid(self) -> int:
        assert self.process.pid is not None  # it was started
        return self.process.pid

    def is_idle(self) -> bool:
        return self.is_ready and self.job is None

    def give(self, job: int, sentences: Sequence[str]) -> None:
        self.job = job
        with contextlib.suppress(BrokenPipeError):  # it just died: the next receive() will tell
            self.pipe.send(sentences)

    def receive(self) -> dict[int, Vectors]:
        """Its job and the answer; at first nothing: it is ready. EOFError when it is gone."""
        try:
            message = self.pipe.recv()
        except OSError:  # gone in the middle of its message, or of ours
            raise EOFError from None
        job, self.job = self.job, None
        if job is None:
            self.is_ready, self.load_seconds = True, message
            return {}
        self.answered += 1
        return {job: message}

    def stop(self) -> None:
        """Let it end by itself."""
        self.pipe.close()
        self.process.join()

    def kill(self) -> None:
        """SIGKILL: no handler runs, no destructor, no goodbye."""
        self.process.kill()
        self.process.join()


class Pool:
    """A fixed number of workers. One that dies is replaced, and its job goes to another."""

    def __init__(self, size: int, load: Load, source: str) -> None:
        self.load = load
        self.source = source
        self.workers = [Worker(load, source) for _ in range(size)]
        self.dead: list[Worker] = []
        self.replacements: list[Worker] = []

    def run(self, jobs: Sequence[Sequence[str]], deadly_job: int) -> list[Vectors]:
        """The answers to all jobs. Whoever gets `deadly_job` first is killed while at it."""
        waiting = deque(range(len(jobs)))
        answers: dict[int, Vectors] = {}
        while len(answers) < len(jobs) or not all(worker.is_ready for worker in self.workers):
            for worker in filter(Worker.is_idle, self.workers):
                if waiting:
                    worker.give(waiting[0], jobs[waiting[0]])
                    if waiting.popleft() == deadly_job and not self.dead:
                        worker.kill()
            for worker in self.readable():
                try:
                    answers.update(worker.receive())
                except EOFError:
                    if worker.job is not None:
                        waiting.appendleft(worker.job)
                    self.replace(worker)
        return [answers[job] for job in range(len(jobs))]

    def readable(self) -> list[Worker]:
        """Waits for news; the workers that have some, be it that they died."""
        pipes = wait([worker.pipe for worker in self.workers])
        return [worker for worker in self.workers if worker.pipe in pipes]

    def replace(self, worker: Worker) -> None:
        if not worker.is_ready:
            raise RuntimeError("a worker ended before it had its weights; its own message is above")
        worker.stop()
        self.dead.append(worker)
        self.replacements.append(Worker(self.load, self.source))
        self.workers[self.workers.index(worker)] = self.replacements[-1]

    def stop(self) -> None:
        for worker in self.workers:
            worker.stop()

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
