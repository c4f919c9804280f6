"""A process that measures one contender: python worker.py STORE.

It takes a JSON request a line and answers with one. It runs with the contender's own Python
packages, on the core that the harness chose. Times are in nanoseconds. What it reads back is
compared with what was put, so that nothing wrong is fast.
"""

import json
import os
import resource
import select
import signal
import socket
import sys
import traceback
from time import perf_counter_ns as now

import bulk
import channels
import numpy as np
import weights
from links import FILL, LINK_STORES, compare
from stores import STORES
from stores_torch import TORCH_STORES

STORES = STORES | TORCH_STORES | weights.WAYS | LINK_STORES
PAGE = 4096
kept = {}  # name -> handle: what keep() put
queues = []  # the queue's two directions, and the process at the other end


def compare_pages(array):
    if int(array[::PAGE].sum()) != FILL * -(-array.nbytes // PAGE):
        raise AssertionError("wrong data in a page")


# --------------------------------------------------------------------------------------- the limits


def memcpy(store, nbytes, count):
    """A copy between pages that were touched before."""
    source, target = np.full(nbytes, FILL, "u1"), np.zeros(nbytes, "u1")
    times = []
    for _ in range(count + 1):
        start = now()
        np.copyto(target, source)
        times.append(now() - start)
    return times[1:]


def round_trip(store, cpu, count):
    """64 bytes and their echo over a Unix socket, the other end a Python process on `cpu`."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        ours.close()
        os.sched_setaffinity(0, {cpu})
        while message := theirs.recv(64):
            theirs.send(message)
        os._exit(0)
    theirs.close()
    times = []
    for _ in range(count + 10):
        start = now()
        ours.send(bytes(64))
        ours.recv(64)
        times.append(now() - start)
    ours.close()
    os.waitpid(pid, 0)
    return times[10:]


# -------------------------------------------------------------------------------------------- names


def put(store, nbytes, count, warm, keep_result=False):
    """put and delete in a loop. `keep_result` is ours alone: what put() returns is not let go."""
    array = np.full(nbytes, FILL, "u1")
    make = store.client.put if keep_result else store.put
    puts, deletes = [], []
    for _ in range(warm + count):
        start = now()
        handle = make("loop", array)
        middle = now()
        store.delete("loop", handle)
        end = now()
        del handle
        puts.append(middle - start)
        deletes.append(end - middle)
    return {"put": puts[warm:], "delete": deletes[warm:]}


def keep(store, name, nbytes):
    """Puts an array until forget(). Returns its key and the time it took."""
    array = np.full(nbytes, FILL, "u1")
    start = now()
    kept[name] = store.put(name, array)
    end = now()
    return {"key": store.key(name, kept[name]), "put": [end - start]}


def forget(store, name):
    store.delete(name, kept.pop(name))


def get(store, key, *, nbytes, count, warm, pages):
    """Opens by key and reads two bytes, or one of every page; then lets go."""
    gets, drops = [], []
    for _ in range(warm + count):
        start = now()
        array, handle = store.get(key)
        compare(array, nbytes)
        if pages:
            compare_pages(array)
        middle = now()
        del array
        store.drop(handle)
        del handle
        end = now()
        gets.append(middle - start)
        drops.append(end - middle)
    both = [one + other for one, other in zip(gets, drops, strict=True)]
    return {"get": gets[warm:], "both": both[warm:]}


def let_go(store, nbytes, count):
    """`del` of the only reference to a new tensor."""
    times = []
    for _ in range(count):
        tensor = store.client.empty(nbytes, "u1")
        start = now()
        del tensor
        times.append(now() - start)
    return times


# ------------------------------------------------------------------------------------------ a queue


def take(store, receives, name, nbytes, pages):
    array, hold = store.take(receives, name)
    if array is not None:
        compare(array, nbytes)
        if pages:
            compare_pages(array)
    del array
    store.drop(hold)


def echo(which, address, cpu, sends, receives):
    """The other end: receives, then hands over an array of its own."""
    os.sched_setaffinity(0, {cpu})
    store = STORES[which]()
    store.open(address)
    while task := receives.get():
        nbytes, count, fresh, pages = task
        array = np.full(nbytes, FILL, "u1")
        handle = None if fresh else store.put("echo", array)
        sends.put("ready")
        for _ in range(count):
            take(store, receives, "hand", nbytes, pages)
            if fresh:
                handle = store.fresh("echo", array)
            store.send(sends, "echo", handle)
        receives.get()
        store.delete("echo", handle)


def queue(store, address, cpu, *, nbytes, count, warm, fresh=False, pages=False):
    """An array over a queue to another process and one back: half of it is a hand-over.

    It is shared before, or `fresh`: a private one each time. The receiver looks at two bytes, or
    at one of each of the `pages`.
    """
    if not queues:
        context = store.context()
        there, back = context.Queue(), context.Queue()
        other = context.Process(
            target=echo, args=(sys.argv[1], address, cpu, back, there), daemon=True
        )
        other.start()
        queues.extend([there, back, other])
    there, back, _ = queues
    there.put((nbytes, warm + count, fresh, pages))
    back.get()
    array = np.full(nbytes, FILL, "u1")
    handle = None if fresh else store.put("hand", array)
    times = []
    for _ in range(warm + count):
        start = now()
        if fresh:
            handle = store.fresh("hand", array)
        store.send(there, "hand", handle)
        take(store, back, "echo", nbytes, pages)
        times.append((now() - start) // 2)
    store.check_shared("echo")
    there.put("done")
    store.delete("hand", handle)
    return times[warm:]


def end_queue():
    if queues:
        there, _, other = queues
        there.put(None)
        other.join(10)
        other.kill()


# ------------------------------------------------------------------------------ lives and processes


def many(store, nbytes, count, descriptors):
    """Puts `count` arrays that stay, until forget_many() or an error tells the limit."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(descriptors, limit), limit))
    array = np.full(nbytes, FILL, "u1")
    times, error = [], ""
    handles = kept.setdefault("many", [])
    for i in range(count):
        start = now()
        try:
            handles.append(store.put(f"many-{i}", array))
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
            break
        times.append(now() - start)
    for _ in range(10 if error else 0):  # so that there is room to look
        store.delete(f"many-{len(handles) - 1}", handles.pop())
    return {"times": times, "error": error} | footprint()


def forget_many(store):
    for i, handle in enumerate(kept.pop("many")):
        store.delete(f"many-{i}", handle)


def footprint(store=None):
    """Descriptors, mappings and private memory of this process."""
    with open("/proc/self/maps") as maps, open("/proc/self/status") as status:
        private = next(line.split()[1] for line in status if line.startswith("RssAnon"))
        return {
            "descriptors": len(os.listdir("/proc/self/fd")) - 1,
            "maps": sum(1 for _ in maps),
            "private": int(private) * 1024,
        }


def hold(store, nbytes):
    """A new tensor, all of it mapped, until this process ends."""
    kept["hold"] = store.client.zeros(nbytes, "u1")
    np.asarray(kept["hold"])[::PAGE] = FILL


def kill(store, pid):
    """SIGKILL of the only holder: until the kernel has ended it, and then until all is free."""
    if store.client.stats()["bytes"] == 0:
        raise AssertionError("nobody holds anything")
    poller, end = select.poll(), os.pidfd_open(pid)
    poller.register(end, select.POLLIN)
    start = now()
    signal.pidfd_send_signal(end, signal.SIGKILL)
    poller.poll()
    ended = now()
    while store.client.stats()["bytes"]:
        pass
    free = now()
    os.close(end)
    return {"kernel": ended - start, "after": free - ended, "all": free - start}


def exchange(store, count):
    """DLPack within this process: the time of one of 1,000 calls, `count` times."""
    found = {}
    for what, call in store.exchanges().items():
        times = found[what] = []
        for _ in range(count):
            start = now()
            for _ in range(1000):
                call()
            times.append((now() - start) / 1000)
    return found


# -------------------------------------------------------------------------------------- the service


def start(store, folder, cpu, options):
    return {
        "address": store.start(folder, cpu, *options),
        "pid": store.server and store.server.pid,
    }


def join(store, address):
    store.open(address)


def version(store):
    return store.version()


def stats(store):
    return dict(store.client.stats())


ACTIONS = [memcpy, round_trip, put, keep, forget, get, let_go, queue, many, forget_many, footprint]
ACTIONS += [hold, kill, exchange, start, join, version, stats, *weights.ACTIONS]
ACTIONS += [*channels.ACTIONS, *bulk.ACTIONS]


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what contenders print
    actions = {action.__name__: action for action in ACTIONS}
    store, is_open = STORES[sys.argv[1]](), False
    try:
        for line in sys.stdin:
            request = json.loads(line)
            action = actions[request.pop("do")]
            is_open |= action in (start, join)
            try:
                answer = {"answer": action(store, **request)}
            except Exception:
                answer = {"error": traceback.format_exc()}
            print(json.dumps(answer), file=answers, flush=True)
    finally:
        end_queue()
        channels.end_partners()
        if is_open:
            store.close()


if __name__ == "__main__":
    main()
