"""Two loaders make batches ahead for a trainer; the frames they are made from lie in memory once.

The trainer learns to double the size of an image, from a real video: of 5 x 5 pixels what the four
in the middle become. The video is decoded once and put under a name. Loaders get it, take numbers
of batches from one queue, and send the batches through another, which holds them back when it is
full. Then the same is done without loaders, to compare time and content: every batch must be the
same. `batches.py 20`: 20 batches.
"""

import os
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing import get_context

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # per process; NumPy looks when it is imported

import av
import numpy as np
from checks import is_freed, verdict
from frames import video

import tensorcx as cx

LOADERS = 2
HELD_OUT = 32  # of the 132 frames, for the test
SAMPLES = 8192  # of a batch: 1 MB
HIDDEN = 64

Batch = dict[str, np.ndarray]


def decoded() -> np.ndarray:
    """The video's brightness."""
    with av.open(str(video())) as file:
        return np.stack([frame.to_ndarray(format="gray") for frame in file.decode(video=0)])


# --- batches --------------------------------------------------------------------------------------


def halved(frame: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A frame of half the size, and the four pixels of the whole one that each of its came from."""
    height, width = (n // 2 for n in frame.shape)
    fours = frame.reshape(height, 2, width, 2).swapaxes(1, 2).reshape(height, width, 4)
    fours = fours.astype("float32") / 255
    return fours.mean(axis=2), fours


def samples(frame: np.ndarray, random: np.random.Generator, count: int) -> Batch:
    """Pixels among their neighbours, and what they become; less the pixel itself."""
    small, fours = halved(frame)
    y = random.integers(2, small.shape[0] - 2, count)
    x = random.integers(2, small.shape[1] - 2, count)
    around = np.arange(-2, 3)
    inputs = small[y[:, None, None] + around[:, None], x[:, None, None] + around]
    middle = small[y, x][:, None]
    return {"inputs": inputs.reshape(count, 25) - middle, "targets": fours[y, x] - middle}


def load(frames: np.ndarray, number: int) -> Batch:
    """Batch `number`, always the same."""
    random = np.random.default_rng(number)
    return samples(frames[random.integers(len(frames) - HELD_OUT)], random, SAMPLES)


def loader(jobs: cx.Queue, batches: cx.Queue, video_name: str) -> None:
    frames = np.asarray(cx.get(video_name))
    for job in jobs:  # ends when the queue is shut down and empty
        batches.send({"number": job, **load(frames, job.item())}, timeout=60)


# --- the trainer: a network with one hidden layer, in NumPy ---------------------------------------


class Trainer:
    def __init__(self) -> None:
        random = np.random.default_rng(0)
        first = random.normal(0, 0.2, (25, HIDDEN)).astype("float32")
        second = random.normal(0, 0.05, (HIDDEN, 4)).astype("float32")
        self.weights = [first, second]
        self.steps = [np.zeros_like(weights) for weights in self.weights]

    def predict(self, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        hidden = np.tanh(inputs @ self.weights[0])
        return hidden, hidden @ self.weights[1]

    def train(self, inputs: np.ndarray, targets: np.ndarray) -> None:
        hidden, outputs = self.predict(inputs)
        error = (outputs - targets) / len(targets)
        behind = error @ self.weights[1].T * (1 - hidden**2)
        for i, gradient in enumerate((inputs.T @ behind, hidden.T @ error)):
            self.steps[i] = 0.9 * self.steps[i] - 4.0 * gradient
            self.weights[i] += self.steps[i]


def decibels(error: np.ndarray) -> float:
    """Signal to noise, of values from 0 to 1."""
    return float(-10 * np.log10(np.mean(error**2)))


def interpolated(inputs: np.ndarray) -> np.ndarray:
    """What bilinear interpolation makes of them, for comparison."""
    around = inputs.reshape(-1, 5, 5)[:, 1:4, 1:4]
    near = np.array([[0.25, 0.75, 0], [0, 0.75, 0.25]], "float32")
    return np.einsum("nij,yi,xj->nyx", around, near, near).reshape(-1, 4)


# --- both ways ------------------------------------------------------------------------------------


@dataclass
class Run:
    trainer: Trainer = field(default_factory=Trainer)
    checksums: dict[int, list[int]] = field(default_factory=dict)  # of each batch
    waited: float = 0.0  # for batches, after the first
    seconds: float = 0.0  # after the first

    def over(self, batches: Iterator[tuple[int, np.ndarray, np.ndarray]]) -> "Run":
        start = before = time.monotonic()
        for number, inputs, targets in batches:
            if not self.checksums:
                start = before = time.monotonic()
            self.waited += time.monotonic() - before
            assert number not in self.checksums, f"batch {number} came twice"
            self.checksums[number] = [zlib.crc32(inputs), zlib.crc32(targets)]
            self.trainer.train(inputs, targets)
            before = time.monotonic()
        self.seconds = time.monotonic() - start
        return self

    def show(self, what: str) -> None:
        n = len(self.checksums)
        print(
            f"{what}: {n / self.seconds:.0f} batches a second; for each the trainer waited"
            f" {self.waited / n * 1e3:.1f} of {self.seconds / n * 1e3:.1f} ms"
        )


def prefetched(name: str, count: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    spawn = get_context("spawn")
    with cx.queue(f"{name}/jobs", capacity=count) as jobs, cx.queue(f"{name}/batches") as batches:
        loaders = [
            spawn.Process(target=loader, args=(jobs, batches, f"{name}/video"), daemon=True)
            for _ in range(LOADERS)
        ]
        for process in loaders:
            process.start()
        for number in range(count):
            jobs.send(number)
        jobs.shutdown()  # whoever finds no more is done
        for _ in range(count):
            batch = batches.recv(timeout=60)
            yield batch["number"].item(), np.asarray(batch["inputs"]), np.asarray(batch["targets"])
        for process in loaders:
            process.join()


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    name, held = f"examples/batches-{os.getpid()}", cx.stats()["bytes"]
    frames = decoded()
    cx.put(f"{name}/video", frames)
    print(f"put {len(frames)} frames, {frames.nbytes / 1e6:.0f} MB, as {name}/video")
    try:
        ahead = Run().over(prefetched(name, count))
    finally:
        cx.delete(f"{name}/video")
    here = Run().over((i, *load(frames, i).values()) for i in range(count))
    ahead.show(f"{LOADERS} loaders   ")
    here.show("without them")

    test = samples(frames[-1], np.random.default_rng(), 100_000)
    learned = decibels(ahead.trainer.predict(test["inputs"])[1] - test["targets"])
    bilinear = decibels(interpolated(test["inputs"]) - test["targets"])
    print(f"a frame it never saw, doubled: {learned:.1f} dB; interpolated: {bilinear:.1f} dB")
    checks = {
        "every batch came once, and as it is made here": ahead.checksums == here.checksums,
        "what was learned is better than interpolation": learned > bilinear,
        "all memory is free again": is_freed(held),
    }
    return verdict(checks)


if __name__ == "__main__":
    sys.exit(main())
