"""What an operation costs a daemon and its client, with raw messages made beforehand.

Python takes no part in what is timed but send() and recv(). The daemon's processor time is the
kernel's count of its one thread, in nanoseconds.
"""

import contextlib
import os
import statistics
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns as now

import wire
from daemon import Daemon

UNDER_WAY = 50  # calls sent before their replies are read
BUFFER = bytearray(wire.ROOM)
DATA = bytes(256)
DESC = wire.desc((len(DATA),), wire.UINT8)


# --------------------------------------------------------------------------------------- messages


def put(name: bytes = b"", flags=0, ttl_ms=0) -> bytes:
    fields = wire.put_fields(name, DATA, DESC, flags, ttl_ms)
    return wire.frame("PUT", DESC + name + DATA, number=1, **fields)


def get(name: bytes, wait=False, number=1) -> bytes:
    return wire.frame("GET", name, number=number, flags=wire.CONSTANTS["GET_WAIT"] * wait)


def named(message: str, name: bytes) -> bytes:
    return wire.frame(message, name, number=1)


def listing(prefix: bytes, after: bytes = b"") -> bytes:
    fields = {"prefix_nbytes": len(prefix), "after_nbytes": len(after)}
    return wire.frame("LIST", prefix + after, number=1, **fields)


def release(*storages: int) -> bytes:
    pairs = b"".join(struct.pack("=QQ", storage, 1) for storage in storages)
    return wire.frame("RELEASE", pairs)


def storage_of(reply: bytes | memoryview) -> int:
    """That a reply grants, first in it."""
    return struct.unpack_from("=Q", reply, wire.HEADER.size)[0]


def count_of(reply: bytes | memoryview) -> int:
    """How much a reply lists, first in it."""
    return struct.unpack_from("=I", reply, wire.HEADER.size)[0]


# ------------------------------------------------------------------------------------ conversation


def note(peer: wire.Connection, data: bytes):
    peer.socket.send(data)


def ask(peer: wire.Connection, frame: bytes) -> memoryview:
    """Sends a call and returns its reply, which must be OK."""
    peer.socket.send(frame)
    return answer(peer)


def answer(peer: wire.Connection, status=0) -> memoryview:
    reply = memoryview(BUFFER)[: peer.socket.recv_into(BUFFER)]
    assert reply[12] == status, bytes(reply[wire.HEADER.size :])
    return reply


def pipelined(peer: wire.Connection, frames: Iterable[bytes]) -> list[int]:
    """Sends calls without waiting for each answer. Returns what storages they grant."""
    granted, under_way = [], 0
    for frame in frames:
        peer.socket.send(frame)
        under_way += 1
        if under_way == UNDER_WAY:
            granted += [storage_of(answer(peer)) for _ in range(under_way)]
            under_way = 0
    return granted + [storage_of(answer(peer)) for _ in range(under_way)]


# --------------------------------------------------------------------------------------- measuring


@dataclass(frozen=True)
class Cost:
    """Of one operation, nanoseconds."""

    daemon: float  # its processor time, mean
    client: float  # from send() to recv(), median


def processor_ns(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def private_nbytes(pid: int) -> int:
    """Memory that is the process's alone: its books, not its tensors."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise LookupError(pid)


def wait_until_asleep(daemon: Daemon):
    """Then it has read all notes, and its time is counted."""
    while Path(f"/proc/{daemon.pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
        time.sleep(0.0001)


def measure(daemon: Daemon, actions: Sequence[Callable[[], object]]) -> Cost:
    """The cost of one of these actions, each of which is one operation."""
    times = []
    wait_until_asleep(daemon)
    before = processor_ns(daemon.pid)
    for action in actions:
        start = now()
        action()
        times.append(now() - start)
    wait_until_asleep(daemon)
    return Cost((processor_ns(daemon.pid) - before) / len(actions), statistics.median(times))


def calls(daemon: Daemon, peer: wire.Connection, frames: Sequence[bytes]) -> Cost:
    return measure(daemon, [lambda f=f: ask(peer, f) for f in frames])


def best(rounds: int, costs: Callable[[], dict[str, Cost]]) -> dict[str, Cost]:
    """The least of some rounds."""
    found = [costs() for _ in range(rounds)]
    return {
        what: Cost(min(f[what].daemon for f in found), min(f[what].client for f in found))
        for what in found[0]
    }


class Other:
    """A client in a process of its own that asks again and again, from begin() to end(): the
    longest of its times is how long others have to wait. To be made first: it inherits what is
    open."""

    def __init__(self, daemon: Daemon):
        commands, self.commands = os.pipe()
        self.answers, answers = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(commands), os.close(answers)
            os.read(self.answers, 1)
            return
        with contextlib.suppress(BaseException):
            os.close(self.commands)
            os.sched_setaffinity(0, {max(os.sched_getaffinity(1))})
            with daemon.connect(program="other") as peer:
                os.write(answers, b".")
                os.read(commands, 1)
                os.set_blocking(commands, False)
                os.write(answers, b"%d" % self._longest(peer, commands))
        os._exit(0)

    @staticmethod
    def _longest(peer: wire.Connection, commands: int) -> int:
        frame = wire.frame("STATS", number=1)
        longest = 0
        while True:
            start = now()
            ask(peer, frame)
            longest = max(longest, now() - start)
            try:
                os.read(commands, 1)
            except BlockingIOError:
                continue
            return longest

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.commands)
        os.close(self.answers)
        os.waitpid(self.pid, 0)

    def begin(self):
        os.write(self.commands, b".")

    def end(self) -> int:
        os.write(self.commands, b".")
        return int(os.read(self.answers, 32))
