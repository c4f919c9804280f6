"""Whatever the system may refuse it refuses once: memory, a descriptor, a call, a connection.

In the client or in the daemon: the call does without or ends with a clear error, it can be
repeated, and nothing is lost. accident_calls.h has the calls and their errors.
"""

from contextlib import ExitStack, suppress
from itertools import count

import pytest
import refusals
import wire
from accidents import (
    DESCRIPTOR,
    MAPPING,
    MEMORY,
    MESSAGE,
    OPTIONS,
    VARIANTS,
    Accidents,
    Client,
    nothing_remains,
)
from daemon import bare_environment
from refusals import fail_everywhere
from repertoire import OF_CHANNELS, OPERATIONS
from wire_table import Status

TO_THE_END = 1 << 30

each_operation = pytest.mark.parametrize("operation", [*OPERATIONS, *OF_CHANNELS])


@pytest.fixture
def in_client(built, folder, start):
    with refusals.in_client(built, folder, start) as scene:
        yield scene


@pytest.fixture
def in_daemon(built, folder, start):
    with refusals.in_daemon(built, folder, start) as scene:
        yield scene


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
