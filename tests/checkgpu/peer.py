"""Another process, with a socket to it: one that an item can kill."""

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("checkgpu.py")
DEADLINE = 120


class Link:
    """Messages of JSON, each with at most one descriptor."""

    def __init__(self, sock: socket.socket):
        self.socket = sock
        self.socket.settimeout(DEADLINE)

    def say(self, message=None, fd: int | None = None) -> None:
        fds = [] if fd is None else [fd]
        socket.send_fds(self.socket, [json.dumps(message).encode()], fds)

    def hear(self):
        return self.hear_fd()[0]

    def hear_fd(self):
        data, fds, _, _ = socket.recv_fds(self.socket, 1 << 16, 1)
        if not data:
            raise EOFError("the other process has ended")
        for fd in fds:
            os.set_inheritable(fd, False)
        return json.loads(data), fds[0] if fds else None


class Peer(Link):
    """Runs `function(link, *arguments)` of an items module in a program of its own."""

    def __init__(self, function, *arguments, prefix=(), **environment: str):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        name = f"{function.__module__}:{function.__name__}"
        self.process = subprocess.Popen(
            [*prefix, sys.executable, PROGRAM, "--peer", name, str(theirs.fileno()),
             json.dumps(arguments)],
            pass_fds=[theirs.fileno()],
            env=os.environ | environment,
        )  # fmt: skip
        theirs.close()
        super().__init__(ours)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.socket.close()
        if kind is not None:
            self.process.kill()
        code = self.process.wait(DEADLINE)
        if kind is None and code not in (0, -signal.SIGKILL):
            raise AssertionError(f"{self.process.args[-3]} ended with {code}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE)


def run(name: str, fd: str, arguments: str) -> None:
    """The other process."""
    module, function = name.split(":")
    link = Link(socket.socket(fileno=int(fd)))
    getattr(importlib.import_module(module), function)(link, *json.loads(arguments))
