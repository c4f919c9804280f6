"""Who keeps memory alive, step by step: the worked example of docs/lifetime.md."""

import multiprocessing
import signal
import subprocess
import sys
import time

import numpy as np

import tensorcx as cx

MiB = 1 << 20
NAME = "lifetime/weights"


def read(ready) -> None:
    """A reader that keeps one small view of the tensor, and nothing else."""
    view = np.asarray(cx.get(NAME))[:10]
    ready.set()
    signal.pause()  # until it is killed
    del view


def tensorcx(command: str) -> None:
    print(f"$ tensorcx {command}", flush=True)
    subprocess.run([sys.executable, "-m", "tensorcx", command], check=True)


def show(what: str) -> None:
    stats = cx.stats()
    print(f"\n# {what}: {stats['bytes'] // MiB} MiB live, {stats['warm_bytes'] // MiB} MiB warm")
    tensorcx("clients")


def main() -> None:
    weights = cx.put(NAME, np.ones(64 * MiB, np.uint8))
    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Event()
    reader = spawn.Process(target=read, args=[ready], daemon=True)
    reader.start()
    if not ready.wait(60):
        sys.exit("the reader does not get ready")
    tensorcx("ls")
    show("a name and two processes keep it")

    cx.delete(NAME)
    show("the name is deleted")

    view = weights.numpy()[:10]
    weights.close()
    show("our handle is closed, a view of 10 bytes is left")

    del view
    show("our view is gone, the reader has one")

    reader.kill()
    reader.join()
    while cx.stats()["bytes"]:  # a moment, until the daemon has noticed
        time.sleep(0.01)
    show("the reader is killed")


if __name__ == "__main__":
    main()
