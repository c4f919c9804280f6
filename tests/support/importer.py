"""A client that speaks the protocol by hand, in a process of its own.

Who has memory of a device mapped is gone only when its process is; so such a client must not be the
test's process.
"""

import json
import os
import signal

import wire
from forks import Child
from ring import Seat
from wire_table import Status


class Served:
    """In the child: the connection, and the descriptors of what it has mapped."""

    def __init__(self, path):
        self.connection = wire.Connection(path, life_page=True)
        self.mapped: dict[int, list[int]] = {}

    def __getattr__(self, name: str):
        return getattr(self.connection, name)

    def map(self, segment: int) -> dict:
        reply = self.connection.call("MAP", segment=segment)
        self.mapped.setdefault(segment, []).extend(reply.fds)
        return reply.fields | {"tail": len(reply.tail), "fds": len(reply.fds)}

    def unmap(self, *segments: int):
        for segment in segments:
            for fd in self.mapped.pop(segment, []):
                os.close(fd)
        self.connection.unmap(*segments)
        self.connection.stats()  # it has been heard

    def release(self, storage: int, grants=1):
        self.connection.release((storage, grants))
        self.connection.stats()

    def hold(self, storage: int) -> dict:
        return self.connection.hold(storage)[0]

    def alive(self, *segments: int) -> list[int]:
        return list(self.connection.call("ALIVE", wire.ids(segments)).tail)

    def seat(self, name: str, **fields) -> list[int]:
        """Takes a seat at a channel, and uses its first buffer."""
        self.taken = Seat(self.connection.join(name, **fields))
        self.taken.use(0)
        return [self.taken.channel, self.taken.slot]

    def disconnect(self):
        """The socket and the life page are closed; the process goes on."""
        self.connection.close()
        self.connection.life_page.close()


def serve(child, path):
    child.close_others()
    served = Served(path)
    child.say("ready")
    while line := child.hear():
        name, args, named = json.loads(line)
        try:
            answer = [0, getattr(served, name)(*args, **named)]
        except wire.Refused as refused:
            answer = [refused.status, refused.text]
        except wire.Dropped:
            answer = [0, "dropped"]
        child.say(json.dumps(answer))


class Importer:
    """Its methods are those of Served and of wire.Connection, with plain arguments and results."""

    def __init__(self, path):
        self.child = Child(lambda child: serve(child, path))
        self.pid = self.child.pid
        assert self.child.hear() == "ready"

    def __getattr__(self, name: str):
        def call(*args, **named):
            self.start(name, *args, **named)
            return self.answer()

        return call

    def start(self, name: str, *args, **named):
        """Asks, and does not wait for the answer."""
        self.child.say(json.dumps([name, args, named]))

    def answer(self):
        status, value = json.loads(self.child.hear())
        if status:
            raise wire.Refused(Status(status), value)
        return value

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.child:
            self.child.wait()

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        self.child.code = -signal.SIGKILL
        self.child.wait()
        self.child = None
