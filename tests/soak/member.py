"""The processes of the soak: one that forks the others, and what these do when they are told.

    python member.py FD    # speaks over this socket with the conductor (crew.py)

Messages are pickles, each one packet. A member has things by keys: tensors, bundles, views,
messages, channels. An answer tells what was seen: the conductor judges.
"""

import contextlib
import ctypes
import gc
import os
import pickle
import select
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import payload
from crew import resources_of

import tensorcx as cx

ROOM = 1 << 18
PR_SET_CHILD_SUBREAPER = 36
LIBC = ctypes.CDLL(None)


def hear(sock):
    """A message and a descriptor that came with it; None when the other side is gone."""
    try:
        data, descriptors, _, _ = socket.recv_fds(sock, ROOM, 1)
    except ConnectionResetError:
        return None
    return (pickle.loads(data), *descriptors) if data else None


def say(sock, message, descriptors=()):
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        socket.send_fds(sock, [pickle.dumps(message)], descriptors)


# ------------------------------------------------------------------------------------- what is seen


def array_of(x):
    if isinstance(x, cx.Tensor):
        return (x if x.device == "cpu" else x.cpu()).numpy()
    return np.asarray(x)


def id_of(x):
    """Of its storage; 0: it is private."""
    return x.storage_id if getattr(x, "is_shared", False) else 0


def leaves(x, path=()):
    """(path, tensor or array) of all that is below."""
    if not isinstance(x, cx.Bundle):
        return [(path, x)]
    return [leaf for key, value in x.items() for leaf in leaves(value, (*path, key))]


def look(x):
    """What `x` shows: of each leaf its path, payload.seen() and storage; and all storages of it."""
    found = [(path, payload.seen(array_of(leaf)), id_of(leaf)) for path, leaf in leaves(x)]
    ids = {storage for _, _, storage in found} | {id_of(x)}
    return {"leaves": found, "ids": ids - {0}, "version": getattr(x, "version", 0)}


class Capsule:
    """A DLPack capsule that nobody has taken yet."""

    def __init__(self, tensor):
        self.capsule = tensor.__dlpack__(max_version=(1, 0))

    def __dlpack__(self, **_):
        return self.capsule

    def __dlpack_device__(self):
        return 1, 0


VIEWS = {
    "numpy": lambda t: t.numpy(),
    "memoryview": lambda t: np.asarray(memoryview(t)),
    "dlpack": np.from_dlpack,
    "capsule": Capsule,
    "handle": lambda t: t[...],
}


# ------------------------------------------------------------------------------------- what is done


class Accident(BaseException):
    """Ends a member."""


class Member:
    def __init__(self, sock):
        self.sock = sock
        self.things = {}

    def serve(self):
        while (heard := hear(self.sock)) is not None:
            (operation, *args), *descriptors = heard
            try:
                answer = None, getattr(self, operation)(*args, *descriptors)
            except Exception as error:
                answer = type(error).__name__, f"{error!r:.500}"
            say(self.sock, answer)

    def keep(self, key, x):
        shown = look(x)
        if key:
            self.things[key] = x
        return shown

    def value(self, source):
        """A number to make, the key of a thing, or a dict of these."""
        if isinstance(source, dict):
            return {key: self.value(below) for key, below in source.items()}
        return payload.made(*source) if isinstance(source, tuple) else self.things[source]

    # ---------------------------------------------------------------------------- tensors and names

    def make(self, key, spec, how, options):
        number, dtype, shape = spec
        if how == "asarray":
            return self.keep(key, cx.asarray(payload.made(*spec), **options))
        t = (
            cx.zeros(shape, dtype, **options)
            if how == "zeros"
            else cx.empty(shape, dtype, **options)
        )
        t[...] = payload.made(number, dtype, shape)
        return self.keep(key, t)

    def put(self, key, name, source, options):
        return self.keep(key, cx.put(name, self.value(source), **options))

    def get(self, key, name, options):
        return self.keep(key, cx.get(name, **options))

    def get_in_threads(self, name, count):
        """What each of them has got: error, and what it shows."""

        def one(_):
            try:
                return None, look(cx.get(name))
            except cx.NotFound as error:
                return "NotFound", str(error)

        with ThreadPoolExecutor(count) as threads:
            return list(threads.map(one, range(count)))

    def delete(self, name):
        cx.delete(name)

    def look_around(self, prefix):
        """Without effect."""
        cx.exists("n/0"), cx.clients(), cx.channels(), cx.stats()
        return cx.names(prefix)

    def view(self, key, of, kind):
        thing = self.things[of]
        if kind == "entry":
            path, _ = leaves(thing)[key % len(leaves(thing))]
            for step in path:
                thing = thing[step]
            self.things[key] = thing
            return path
        self.things[key] = VIEWS[kind](thing)
        return ()

    def part(self, key, of, first, count):
        return self.keep(key, self.things[of][first : first + count])

    def close(self, key):
        """The handle is done, its views are not; the key stays until drop()."""
        self.things[key].close()

    def drop(self, keys):
        for key in keys:
            del self.things[key]

    def verify(self, keys):
        for key in keys:  # who takes a capsule has it used up
            if isinstance(self.things[key], Capsule):
                self.things[key] = np.from_dlpack(self.things[key])
        return {key: [what for _, what, _ in look(self.things[key])["leaves"]] for key in keys}

    def write(self, key, number):
        for i, (_, leaf) in enumerate(leaves(self.things[key])):
            leaf[...] = payload.made(number + i, leaf.dtype.str, leaf.shape)

    def ticket(self, key):
        return pickle.dumps(self.things[key].ref())

    def redeem(self, key, ticket):
        return self.keep(key, pickle.loads(ticket))

    # ------------------------------------------------------------------------------------- channels

    def join(self, key, kind, name, options):
        self.things[key] = getattr(cx, kind)(name, **options)

    def subscribe(self, key, topic, latest):
        self.things[key] = self.things[topic].subscribe(latest=latest)

    def send(self, key, messages, timeout):
        """How many were sent before a timeout, and what stopped it."""
        channel = self.things[key]
        for sent, (how, source) in enumerate(messages):
            try:
                if how == "loan":
                    _, dtype, shape = source
                    loan = channel.loan(shape, dtype, timeout)
                    loan[...] = self.value(source)
                    channel.send(loan, timeout)
                else:
                    channel.send(self.value(source), timeout)
            except (cx.Timeout, cx.ChannelClosed, cx.OutOfMemory) as error:
                return sent, type(error).__name__, str(error)
        return len(messages), None, ""

    def receive(self, key, keys, timeout):
        """What was received before a timeout; those with a key are kept."""
        got, ended = [], None
        for kept in keys:
            try:
                message = self.things[key].recv(timeout)
            except (cx.Timeout, cx.ChannelClosed) as error:
                ended = type(error).__name__
                break
            got.append(self.keep(kept, message))
            del message
        return got, ended, getattr(self.things[key], "missed", 0)

    def receive_all(self, key):
        """Everything that is there."""
        got = []
        with contextlib.suppress(cx.ChannelClosed):
            while (message := self.things[key].try_recv()) is not None:
                got.append(look(message))
                del message
        return got, None, getattr(self.things[key], "missed", 0)

    def shutdown(self, key):
        self.things[key].shutdown()

    def channel_stats(self, key):
        return self.things[key].stats()

    # -------------------------------------------------------------------------- what the daemon has

    def figures(self):
        return cx.stats(), cx.clients(), cx.entries(), cx.channels()

    def resources(self):
        gc.collect()
        LIBC.malloc_trim(0)
        return resources_of("self")

    def recover(self, keys, ticket):
        """There is another daemon: what is mapped stays, all else is lost, which is told once."""
        self.drop(self.things.keys() - set(keys))
        lost = 0
        while True:
            try:
                cx.stats()
                break
            except cx.DaemonLost:
                lost += 1
        shared = [key for key in keys if getattr(self.things[key], "is_shared", False)]
        with contextlib.suppress(cx.Stale):
            return lost, shared, ticket and pickle.loads(ticket)
        return lost, shared, None

    # --------------------------------------------------------------------------------- fork and end

    def fork(self, keys, descriptor):
        """A child that has these things of ours, and that socket; it is nobody's child."""
        child = os.fork()
        if child:
            os.close(descriptor)
            os.waitpid(child, 0)
            return
        if os.fork():
            os._exit(0)
        self.sock.close()
        self.sock = socket.socket(fileno=descriptor)
        self.things = {key: self.things[key] for key in keys}
        say(self.sock, ("born", identity("self")))
        self.serve()
        sys.exit()

    def end(self, how):
        if how == "exit":
            sys.exit()
        if how == "exception":
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            raise Accident
        if how == "exec":
            os.execv("/bin/true", ["true"])
        os._exit(3)


# ------------------------------------------------------------------------------------ the first one


def parent(sock):
    """Forks members; is told of the end of all of them, also of children that members fork."""
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
    awake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    gc.freeze()
    say(sock, ("ready", os.getpid()))
    while True:
        ready, _, _ = select.select([sock, awake], [], [])
        if awake in ready:
            os.read(awake, 4096)
            reap(sock)
        if sock in ready:
            heard = hear(sock)
            if heard is None:
                return None
            _, descriptor = heard
            if os.fork() == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                sock.close(), os.close(awake), os.close(wake)
                mine = socket.socket(fileno=descriptor)
                say(mine, ("born", identity("self")))
                return mine
            os.close(descriptor)


def identity(pid) -> tuple[int, int]:
    """Its number, which another may get after it, and when it began."""
    text = Path("/proc", str(pid), "stat").read_text()
    return int(text.split()[0]), int(text.rpartition(")")[2].split()[19])


def reap(sock):
    while True:
        try:
            dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if dead is None:
            return
        who = identity(dead.si_pid)
        _, status = os.waitpid(dead.si_pid, 0)
        say(sock, ("dead", who, os.waitstatus_to_exitcode(status)))


if __name__ == "__main__":
    mine = parent(socket.socket(fileno=int(sys.argv[1])))
    if mine is not None:
        Member(mine).serve()
