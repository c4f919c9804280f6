"""A program: one call of the package after the other, and in each of them each malloc() fails once.

    python_calls.py SOCKET PAGE calls|large-answers

Python's objects are malloc()'s (PYTHONMALLOC), so this is every allocation of the extension and of
the library below it, be it through Python. A call ends with MemoryError, with an error of ours, or
without one (it does without); then it works, and nothing is left of it: no reference that keeps
memory of the daemon, and no block of memory.
"""

import copy
import gc
import mmap
import pickle
import sys
from itertools import count

import numpy as np
from accidents import MEMORY, Page

import tensorcx as cx

TRIES = 4  # of which one must leave no block: what is kept once is no leak

array = np.arange(6, dtype=np.float32).reshape(2, 3)
large = np.zeros(1 << 17, np.uint8)
client = cx.Client(sys.argv[1], autostart=False)
observer = cx.Client(sys.argv[1], autostart=False)
tensor = client.asarray(array)
client.put("name", array)
bundle = client.put("bundle", {"a": array, "deep": {"b": tensor}})
queue = client.queue("queue", capacity=2, like=array)
topic = client.topic("topic", capacity=2, like=array)
subscription = topic.subscribe()
reference = tensor.ref()


def connect():
    with cx.Client(sys.argv[1], autostart=False) as another:
        another.exists("name")


def get_bundle():
    return client.get("bundle")["deep"]["b"].numpy()


def delete():
    client.put("mine", array)
    client.delete("mine")


def open_queue():
    client.queue("queue").close()


def subscribe():
    topic.subscribe(latest=True).close()


def through_queue(value):
    try:
        queue.send(value, timeout=0)
        return queue.recv(timeout=0)
    finally:
        while queue.try_recv() is not None:
            pass


def loan():
    lent = queue.loan((2, 3), "float32")
    lent[...] = 1
    try:
        queue.send(lent, timeout=0)
    finally:
        while queue.try_recv() is not None:
            pass


def through_topic():
    topic.send(array)
    return subscription.recv(timeout=0)


def set_all(value):
    tensor[...] = value


def release_buffer():
    with memoryview(tensor) as view:
        return view.nbytes


CALLS = {
    "connect": connect,
    "put": lambda: client.put("mine", array),
    "put-large": lambda: client.put("mine", large),
    "put-list": lambda: client.put("mine", [[1, 2], [3, 4]]),
    "put-shared": lambda: client.put("mine", tensor),
    "put-bundle": lambda: client.put("mine", {"a": array, "deep": {"b": tensor}}),
    "get": lambda: client.get("name"),
    "get-bundle": get_bundle,
    "get-in-vain": lambda: client.get("never", timeout=0.001),
    "exists": lambda: client.exists("name"),
    "stat": lambda: client.stat("name"),
    "delete": delete,
    "empty": lambda: client.empty((2, 3), "int32"),
    "zeros": lambda: client.zeros(3),
    "full": lambda: client.full((2, 3), 7),
    "empty_like": lambda: client.empty_like(array),
    "asarray": lambda: client.asarray(array),
    "is_shared": lambda: client.is_shared(np.asarray(tensor)),
    "from_dlpack": lambda: client.from_dlpack(array, copy=False),
    "from_dlpack-copy": lambda: client.from_dlpack(array, copy=True),
    "to-numpy": lambda: np.from_dlpack(tensor),
    "asarray-numpy": lambda: np.asarray(tensor),
    "legacy-capsule": tensor.__dlpack__,
    "memoryview": release_buffer,
    "slice": lambda: tensor[1, 1:],
    "iterate": lambda: [row.tolist() for row in tensor],
    "set": lambda: set_all(1.0),
    "copy": lambda: copy.copy(tensor),
    "properties": lambda: (
        tensor.shape,
        tensor.strides,
        tensor.dtype,
        tensor.device,
        tensor.nbytes,
    ),
    "repr": lambda: repr((tensor, bundle, queue, topic, subscription, client, reference)),
    "pickle": lambda: pickle.loads(pickle.dumps(tensor)),
    "reference": lambda: pickle.loads(pickle.dumps(tensor.ref())),
    "bundle-reference": lambda: pickle.loads(pickle.dumps(bundle["deep"].ref())),
    "bundle-items": lambda: dict(bundle["deep"]),
    "open-queue": open_queue,
    "send-and-receive": lambda: through_queue(array),
    "send-and-receive-large": lambda: through_queue(large),
    "send-and-receive-shared": lambda: through_queue(tensor),
    "send-and-receive-bundle": lambda: through_queue({"a": array, "b": tensor}),
    "loan": loan,
    "subscribe": subscribe,
    "topic": through_topic,
    "bad-name": lambda: client.get("no\nname"),
    "bad-shape": lambda: client.empty((-1,)),
}
LARGE_ANSWERS = {  # these take longer
    "entries": client.entries,
    "channel-stats": lambda: (queue.stats(), topic.stats(), subscription.missed),
    "stats": client.stats,
    "clients": client.clients,
    "channels": client.channels,
}
EXPECTED = {"get-in-vain": cx.Timeout, "bad-name": ValueError, "bad-shape": ValueError}


def attempt(page, call, at):
    """The call with its `at`-th chance to fail: its error, if there was one."""
    page.at, page.times, page.passed, page.happened = at, 1, 0, 0
    try:
        page.kinds = MEMORY if at else 0
        call()
    except (MemoryError, cx.Error, ValueError) as error:
        page.kinds = 0
        return type(error)
    finally:
        page.kinds = 0
    return None


def leaves(page, call, at, wanted):
    """How many blocks of memory are left when it has failed there."""
    before = page.blocks
    error = attempt(page, call, at)
    if page.blocks - before > 1:  # `before` itself
        gc.collect()  # empties the interpreter's lists of free objects as well
    left = page.blocks - before - 1
    assert error in {None, MemoryError, cx.OutOfMemory, wanted}, error
    return left


def settled():
    """What the daemon has for us; a ticket whose pickle failed stays until its lease is over."""
    stats = observer.stats()
    return {name: stats[name] for name in ("holds", "storages", "channels", "clients")}


def fail_everywhere(page, name, call):
    wanted = EXPECTED.get(name)
    assert attempt(page, call, 0) is wanted
    gc.collect()
    before = settled()
    for at in count(1):
        assert any(leaves(page, call, at, wanted) <= 0 for _ in range(TRIES)), "memory is left"
        happened = page.happened
        again = attempt(page, call, 0)
        assert again is wanted, f"again it ends with {again}"
        assert settled() == before, f"{before} became {settled()}"
        if not happened:
            return at


def main():
    with open(sys.argv[2], "r+b") as file:
        page = Page.from_buffer(mmap.mmap(file.fileno(), mmap.PAGESIZE))
    for name, call in {"calls": CALLS, "large-answers": LARGE_ANSWERS}[sys.argv[3]].items():
        try:
            print(name, fail_everywhere(page, name, call), flush=True)
        except Exception as error:
            raise RuntimeError(f"{name}, at the {page.at}-th") from error
        finally:
            page.kinds = 0
    for name in client.names():
        client.delete(name)
    print("end")


if __name__ == "__main__":
    main()
