"""An operation that fails wherever it can, in its client or in the daemon; what is right then."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

from accidents import EVERYTHING, OPTIONS, Accidents, Client, no_more, nothing_remains
from daemon import Daemon, bare_environment, settle
from wire_table import Status

# What a call may end with beside success, and what else after a call of the system's that failed.
MAY_SAY = {Status.OUT_OF_MEMORY, Status.SYSTEM}
END_OF_CONNECTION = {
    ("sendmsg", "EPIPE"),
    ("sendmsg", "ECONNRESET"),
    ("recvmsg", "ECONNRESET"),
    ("recvmsg", "ENOMEM"),
}
MAY_SAY_AFTER = {
    "sendmsg": {Status.LOST},
    "recvmsg": {Status.LOST},
    "connect": {Status.UNAVAILABLE},
    "getsockopt": {Status.DENIED},  # nobody knows who serves
}


@dataclass
class Scene:
    """A daemon, its client, the accidents of one of them, and what calls may then end with."""

    daemon: Daemon
    client: Client
    accidents: Accidents
    may_say: set[Status]
    blocks_of_driver: int = 0  # that it makes once, at some time
    drops: bool = True  # what came of the operation is the daemon's again as soon as it is let go

    def let_fail(self, operation, kinds, at, times=1, variant=0):
        """Whether there was an `at`-th chance."""
        self.client.prepare(operation)
        self.accidents.plan(kinds, at, times, variant)
        status, text = self.client.act(operation)
        happened = self.accidents.end()
        function, error = self.accidents.last
        may_say = self.may_say | MAY_SAY_AFTER.get(function, set())
        assert status == Status.OK or (status in may_say and text), (function, error, status, text)
        is_end = (function, error) in END_OF_CONNECTION
        self.client.prepare(operation)
        again = self.client.act(operation)
        if is_end and again[0] == Status.LOST:  # the operation ended before that was seen
            self.client.prepare(operation)
            again = self.client.act(operation)
        assert again == (0, ""), (function, error, status, text, again)
        # What a connection that is lost had, or one that forked and had no page, the daemon has
        # again when nothing of that connection is left.
        self.drops = not is_end and not operation.startswith("fork")
        return happened

    def end(self):
        if self.drops:
            self.client.drop(self.daemon)
        self.client.clean()
        nothing_remains(self.daemon)

    def possessions(self):
        *others, blocks = self.client.possessions()
        of_client = (*others, blocks + self.blocks_of_driver)
        return of_client, self.daemon.footprint(), self.accidents.blocks + self.blocks_of_driver

    def settle(self, before):
        client, footprint, blocks = before
        settle(
            lambda: no_more(self.client.possessions(), client),
            f"after {self.accidents.last}, the client's return to {client}",
        )
        self.daemon.settle_footprint(footprint)
        settle(
            lambda: self.accidents.blocks <= blocks,
            f"after {self.accidents.last}, the return to {blocks} blocks of memory",
        )


@contextmanager
def in_client(built, folder, start, *options) -> Iterator[Scene]:
    daemon = start(*OPTIONS, *options)
    accidents = Accidents(built, folder, "client")
    with Client(built, daemon.path, accidents) as client:
        yield Scene(daemon, client, accidents, MAY_SAY)
        client.finish()


@contextmanager
def in_daemon(built, folder, start, *options) -> Iterator[Scene]:
    accidents = Accidents(built, folder, "daemon")
    daemon = start(*OPTIONS, *options, env=bare_environment(**accidents.environment))
    with Client(built, daemon.path, Accidents(built, folder, "client")) as client:
        yield Scene(daemon, client, accidents, MAY_SAY | {Status.INTERNAL, Status.LIMIT})
        client.finish()


def fail_everywhere(scene, operation, kinds=EVERYTHING, times=1, variant=0):
    """Lets the operation fail at its first chance, at its second, and so on to the last."""
    scene.let_fail(operation, 0, 0)  # what is made once and kept is made now
    scene.end()
    before = scene.possessions()
    for at in count(1):
        happened = scene.let_fail(operation, kinds, at, times, variant)
        scene.end()
        scene.settle(before)
        if not happened:
            break
