"""What a worker does with one very large tensor, and with many that its children inherit."""

import os
from time import perf_counter_ns as now

import numpy as np

PAGE = 4096
BLOCK = 64 << 20  # what is copied again and again: more than the caches hold
kept = {}


def timed(do):
    start = now()
    result = do()
    return result, now() - start


def fill(array):
    block = np.ones(min(BLOCK, array.nbytes), "u1")
    for at in range(0, array.nbytes, block.nbytes):
        part = array[at : at + block.nbytes]
        part[:] = block[: part.nbytes]


def touch(array):
    return int(array[::PAGE].sum())


def private(store, nbytes):
    """The machine's limits: fresh private memory, the same again, one read of every page."""
    array, _ = timed(lambda: np.empty(nbytes, "u1"))
    times = {
        "fresh": timed(lambda: fill(array))[1],
        "again": timed(lambda: fill(array))[1],
        "read": timed(lambda: touch(array))[1],
    }
    return times | {"free": timed(lambda: kept.pop("private", array) is None)[1]}


def make_large(store, nbytes):
    tensor, made = timed(lambda: store.client.empty(nbytes, "u1"))
    array, mapped = timed(lambda: np.asarray(tensor))
    filled = timed(lambda: fill(array))[1]
    again = timed(lambda: fill(array))[1]
    kept["large"], named = timed(lambda: store.client.put("large", tensor))
    return {"empty": made, "view": mapped, "fill": filled, "again": again, "put": named}


def get_large(store):
    tensor, got = timed(lambda: store.client.get("large"))
    array = np.asarray(tensor)
    (read, first), (_, again) = (timed(lambda: touch(array)) for _ in range(2))
    assert read == -(-array.nbytes // PAGE), read  # as fill() wrote it
    kept["got"] = tensor
    return {"get": got, "first": first, "again": again}


def drop_large(store):
    """Deleted, and let go here: until the daemon has counted it as free."""
    store.client.delete("large")
    kept.pop("large", None)
    start = now()
    kept.pop("got", None)
    while store.client.stats()["bytes"]:
        pass
    return now() - start


def forget_large(store):
    kept.pop("large", None)


def hold_small(store, count):
    kept["small"] = [store.client.empty(256, "u1") for _ in range(count)]


def drop_small(store):
    kept.pop("small", None)
    store.client.stats()


def fork_children(store, count):
    """They sleep until end_children(). Returns how long each fork took."""
    reader, kept["writer"] = os.pipe()
    times, kept["children"] = [], []
    for _ in range(count):
        start = now()
        pid = os.fork()
        if pid == 0:
            os.close(kept["writer"])
            os.read(reader, 1)
            os._exit(0)
        times.append(now() - start)
        kept["children"].append(pid)
    os.close(reader)
    return times


def end_children(store):
    os.close(kept.pop("writer"))
    for pid in kept.pop("children"):
        os.waitpid(pid, 0)


ACTIONS = [private, make_large, get_large, drop_large, forget_large]
ACTIONS += [hold_small, drop_small, fork_children, end_children]
