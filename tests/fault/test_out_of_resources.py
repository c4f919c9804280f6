"""Whatever the system may refuse it refuses once: memory, a descriptor, a call, a connection.

In the client or in the daemon: the call does without or ends with a clear error, it can be
repeated, and nothing is lost. accident_calls.h has the calls and their errors.
"""

from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import count

import pytest
import wire
from accidents import (
    DESCRIPTOR,
    EVERYTHING,
    MAPPING,
    MEMORY,
    MESSAGE,
    OF_CHANNELS,
    OPERATIONS,
    OPTIONS,
    VARIANTS,
    Accidents,
    Client,
    no_more,
    nothing_remains,
)
from daemon import Daemon, bare_environment, settle
from wire_table import Status

TO_THE_END = 1 << 30

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

each_operation = pytest.mark.parametrize("operation", [*OPERATIONS, *OF_CHANNELS])


@dataclass
class Scene:
    """A daemon, its client, the accidents of one of them, and what calls may then end with."""

    daemon: Daemon
    client: Client
    accidents: Accidents
    may_say: set[Status]
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
        assert again == (0, ""), (function, error, status, text)
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
        return self.client.possessions(), self.daemon.footprint(), self.accidents.blocks

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


@pytest.fixture
def in_client(built, folder, start):
    daemon = start(*OPTIONS)
    accidents = Accidents(built, folder, "client")
    with Client(built, daemon.path, accidents) as client:
        yield Scene(daemon, client, accidents, MAY_SAY)
        client.finish()


@pytest.fixture
def in_daemon(built, folder, start):
    accidents = Accidents(built, folder, "daemon")
    daemon = start(*OPTIONS, env=bare_environment(**accidents.environment))
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


@each_operation
def test_once_in_a_client(in_client, operation):
    fail_everywhere(in_client, operation)


@each_operation
def test_once_in_the_daemon(in_daemon, operation):
    fail_everywhere(in_daemon, operation)


@pytest.mark.slow
@pytest.mark.parametrize("variant", range(1, VARIANTS))
@each_operation
def test_with_another_error_in_a_client(in_client, operation, variant):
    fail_everywhere(in_client, operation, variant=variant)


@pytest.mark.slow
@pytest.mark.parametrize("variant", range(1, VARIANTS))
@each_operation
def test_with_another_error_in_the_daemon(in_daemon, operation, variant):
    fail_everywhere(in_daemon, operation, variant=variant)


@pytest.mark.slow
@pytest.mark.parametrize("operation", sorted({*OPERATIONS} - {"wait"}))  # who publishes fails, too
@pytest.mark.parametrize("kind", [MEMORY, MAPPING, DESCRIPTOR])
def test_from_some_time_on_in_a_client(in_client, operation, kind):
    fail_everywhere(in_client, operation, kind, TO_THE_END)


@pytest.mark.parametrize("operation", ["redeem", "redeem-bundle"])
def test_a_ticket_that_could_not_be_redeemed_is_good_later(in_client, operation):
    client, accidents = in_client.client, in_client.accidents
    for at in count(1):
        client.prepare(operation)
        accidents.plan(MEMORY | MAPPING | DESCRIPTOR, at)
        status, _ = client.act(operation)
        happened = accidents.end()
        if status != Status.OK:
            assert client.act(operation) == (0, "")
        in_client.end()
        if not happened:
            break


def test_the_kernel_is_not_asked_in_a_busy_loop_for_a_messages_memory(built, folder, daemon):
    accidents = Accidents(built, folder, "client")
    with Client(built, daemon.path, accidents, TENSORCX_TIMEOUT="0.2") as client:
        client.prepare("list")
        accidents.plan(MESSAGE, 1, TO_THE_END)
        status, text = client.act("list")
        tries = accidents.page.passed
        accidents.end()
        assert status == Status.TIMEOUT and "0.2" in text
        assert tries < 1000
        client.clean()
        client.finish()
    nothing_remains(daemon)


def test_nor_does_the_daemon_ask_it_in_a_busy_loop(built, folder, start):
    accidents = Accidents(built, folder, "daemon")
    daemon = start(*OPTIONS, env=bare_environment(**accidents.environment))
    quiet = Accidents(built, folder, "client")
    with Client(built, daemon.path, quiet, TENSORCX_TIMEOUT="0.3") as client:
        client.prepare("list")
        accidents.plan(MESSAGE, 1, TO_THE_END)
        status, _ = client.act("list")
        tries = accidents.page.passed
        accidents.end()
        assert status == Status.TIMEOUT
        assert 1 < tries < 300
        assert client.act("list") == (0, "")
        client.clean()
        client.finish()
    nothing_remains(daemon)


def test_in_the_daemon_for_one_more_connection_of_many(built, folder, start):
    """Also where the tables of what it is built on have to grow."""
    accidents = Accidents(built, folder, "daemon")
    daemon = start(*OPTIONS, env=bare_environment(**accidents.environment))
    with ExitStack() as connections:
        for _ in range(80):
            for at in count(1):
                accidents.plan(MEMORY, at)
                with suppress(wire.Dropped, wire.Refused):
                    connections.enter_context(daemon.connect())
                if not accidents.end():
                    break
