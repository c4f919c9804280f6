"""A camera sends frames through a queue of multiprocessing: the memory itself arrives, no copy."""

import multiprocessing
import time
from multiprocessing.queues import Queue

import numpy as np

import tensorcx as cx

SHAPE = (1080, 1920, 3)
FRAMES = 30


def camera(queue: "Queue[cx.Tensor | None]") -> None:
    for i in range(FRAMES):
        frame = cx.empty(SHAPE, "uint8")
        frame[...] = i  # where a driver or decoder would write
        queue.put(frame)  # some 200 bytes; not to be written to, or closed, after that
    queue.put(None)


def main() -> None:
    before = cx.stats()["bytes"]
    spawn = multiprocessing.get_context("spawn")
    queue: Queue[cx.Tensor | None] = spawn.Queue(maxsize=4)  # frames on their way: at most so many
    process = spawn.Process(target=camera, args=[queue])
    process.start()
    right = 0
    while (frame := queue.get()) is not None:
        right += bool((np.asarray(frame) == right).all())
    process.join()
    print(f"{right} of {FRAMES} frames of {np.prod(SHAPE) / 1e6:.1f} MB came complete and in order")
    while cx.stats()["bytes"] > before:  # a moment, until the daemon has noticed the camera's end
        time.sleep(0.01)
    print("the last user is gone, and the memory is free")


if __name__ == "__main__":
    main()
