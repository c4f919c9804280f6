"""One process puts an array and is killed; another has it, and gives it back."""

import multiprocessing
import os
import signal

import numpy as np

import tensorcx as cx


def produce(name: str) -> None:
    cx.put(name, np.arange(12, dtype=np.float32).reshape(3, 4))
    signal.pause()  # alive and holding nothing but the name


def main() -> None:
    name = f"examples/quickstart-{os.getpid()}"
    before = cx.stats()["bytes"]

    producer = multiprocessing.get_context("spawn").Process(target=produce, args=[name])
    producer.start()
    array = np.asarray(cx.get(name, timeout=30))  # waits for the name; the same memory, no copy
    producer.kill()
    producer.join()
    print("the producer is dead, its array is here:", array.tolist(), sep="\n")

    array[0] += 100  # ours to write, too: who gets the name again sees it
    print("after writing:", np.asarray(cx.get(name)).tolist(), sep="\n")

    cx.delete(name)
    print("name deleted, array in use:", cx.stats()["bytes"] - before, "bytes")
    del array
    print("last user gone:", cx.stats()["bytes"] - before, "bytes")


if __name__ == "__main__":
    main()
