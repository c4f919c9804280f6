"""The processes of the soak, from outside: born, told, heard, stopped, killed, gone."""

import contextlib
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOM = 1 << 18


class Peer:
    """A member; gone when its socket is closed and the parent of all has reaped it."""

    def __init__(self, number: int, sock: socket.socket):
        self.number, self.sock = number, sock
        self.pid, self.handle = 0, -1  # until it is born
        self.identity = (0, 0)  # as a member says
        self.codes: set[int] = set()  # with which it may end
        self.is_stopped = self.is_deaf = False
        self.since = 0.0  # when it was told what it has not answered; 0: nothing
        self.told: tuple = ()

    def __repr__(self):
        return f"member {self.number} (pid {self.pid})"


class Crew:
    def __init__(self, environment: dict[str, str], program: list[str]):
        self.selector = selectors.DefaultSelector()
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.parent = subprocess.Popen(
            [*program, str(theirs.fileno())], pass_fds=[theirs.fileno()], env=environment
        )
        theirs.close()
        self.selector.register(self.control, selectors.EVENT_READ)
        self.peers: dict[int, Peer] = {}  # by number
        self.ended: dict[tuple[int, int], int] = {}  # code, of those not said to be gone
        self.count = 0
        word, _ = pickle.loads(self.control.recv(ROOM))
        assert word == "ready"

    def spawn(self) -> Peer:
        peer, theirs = self.expect()
        socket.send_fds(self.control, [pickle.dumps("spawn")], [theirs.fileno()])
        theirs.close()
        return peer

    def expect(self) -> tuple[Peer, socket.socket]:
        """One that is to be born with this socket."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.count += 1
        peer = self.peers[self.count] = Peer(self.count, ours)
        self.selector.register(ours, selectors.EVENT_READ, peer)
        return peer, theirs

    def tell(self, peer: Peer, *words, descriptor: socket.socket | None = None):
        peer.since, peer.told = time.monotonic(), words
        descriptors = [descriptor.fileno()] if descriptor else []
        with contextlib.suppress(OSError):  # it has just died; that is heard next
            socket.send_fds(peer.sock, [pickle.dumps(words)], descriptors)

    def events(self, seconds: float):
        """What happens meanwhile: peer, and "born" with a pid, "answer", or "gone" with a code."""
        for key, _ in self.selector.select(max(0, seconds)):
            if key.data is None:
                self._reaped()
            else:
                yield from self._heard(key.data)
        for peer in [peer for peer in self.peers.values() if peer.is_deaf]:
            if peer.identity in self.ended or not peer.pid:
                del self.peers[peer.number]
                peer.since = 0
                if peer.pid:
                    os.close(peer.handle)
                yield peer, "gone", self.ended.pop(peer.identity, None)

    def _reaped(self):
        data = self.control.recv(ROOM)
        if not data:
            raise AssertionError(f"the parent of all ended with {self.parent.wait()}")
        _, identity, code = pickle.loads(data)
        self.ended[identity] = code

    def _heard(self, peer):
        try:
            data = peer.sock.recv(ROOM)
        except ConnectionResetError:
            data = b""
        if not data:
            self.selector.unregister(peer.sock)
            peer.sock.close()
            peer.is_deaf = True
            return
        kind, what = pickle.loads(data)
        if kind == "born":
            peer.identity, peer.pid = what, what[0]
            peer.handle = os.pidfd_open(peer.pid)
            yield peer, "born", peer.pid
        else:
            peer.since = 0
            yield peer, "answer", (kind, what)

    def kill(self, peer: Peer, number: int):
        self._signal(peer, number)

    def _signal(self, peer, number):
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(peer.handle, number)

    def stop(self, peer: Peer):
        self._signal(peer, signal.SIGSTOP)
        peer.is_stopped = True

    def go_on(self, peer: Peer):
        self._signal(peer, signal.SIGCONT)
        if peer.is_stopped and peer.since:
            peer.since = time.monotonic()
        peer.is_stopped = False

    def hanging(self, seconds: float) -> list[Peer]:
        """Who owes an answer for longer than that, and is not stopped."""
        before = time.monotonic() - seconds
        return [p for p in self.peers.values() if 0 < p.since < before and not p.is_stopped]

    def end(self) -> int:
        self.control.close()
        try:
            return self.parent.wait(20)
        finally:
            self.parent.kill()


def resources_of(pid):
    """KiB of its own memory, descriptors, mappings."""
    place = Path("/proc", str(pid))
    status = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
    maps = (place / "maps").read_text().count("\n")
    return int(status["RssAnon"].split()[0]), len(os.listdir(place / "fd")), maps


def program() -> list[str]:
    return [sys.executable, str(Path(__file__).with_name("member.py"))]
