"""SIGKILL of a client, or of the daemon, before and after each message of each operation.

Of the library and the daemon as they are, without a build for tests; test_every_step.py does more
with one, and so these are slow.
"""

import signal
from itertools import count

import pytest
from accidents import KILL, OPTIONS, Accidents, Client, nothing_remains
from daemon import Daemon, bare_environment
from repertoire import CHILD_DIED, OPERATIONS
from wire_table import Status

FEWEST = 4  # before and after two messages; that the last one has been sent may go unnoticed

each_operation = pytest.mark.parametrize("operation", OPERATIONS)


@pytest.mark.slow
@each_operation
def test_a_client_killed_at_any_message_leaves_nothing(built, folder, start, operation):
    daemon = start(*OPTIONS)
    before = daemon.footprint()
    accidents = Accidents(built, folder, "client")
    for at in count(1):
        with Client(built, daemon.path, accidents) as client:
            client.prepare(operation)
            accidents.plan(KILL, at)
            outcome = client.act_or_die(operation)
            was_killed = accidents.end()
        nothing_remains(daemon)
        daemon.settle_footprint(before)
        if not was_killed:
            assert outcome == (0, "") and at >= FEWEST
            break
        assert outcome is None or outcome[0] == CHILD_DIED


@pytest.mark.slow
@each_operation
def test_a_daemon_killed_at_any_message_is_lost_and_replaced(built, folder, operation):
    accidents = Accidents(built, folder, "daemon")
    for at in count(1):
        daemon = Daemon(folder, *OPTIONS, env=bare_environment(**accidents.environment))
        try:
            with Client(built, daemon.path, Accidents(built, folder, "client")) as client:
                client.prepare(operation)
                accidents.plan(KILL, at)
                status, text = client.act(operation)
                if not accidents.end():
                    assert (status, text) == (0, "") and at >= FEWEST
                    break
                assert status in (Status.OK, Status.LOST, Status.UNAVAILABLE)
                assert status == Status.OK or text
                assert daemon.process.wait() == -signal.SIGKILL
                with Daemon(folder, *OPTIONS) as successor:
                    with successor.connect():  # as long as anybody is left, tickets are
                        find_successor(client, operation)
                    client.finish()
                    nothing_remains(successor)
        finally:
            daemon.kill()


def find_successor(client, operation):
    """The first call may still find out that the daemon is lost."""
    client.prepare(operation)
    status, text = client.act(operation)
    if status == Status.LOST:
        client.prepare(operation)
        status, text = client.act(operation)
    assert status == Status.OK, (status, text)


def test_a_ticket_of_the_next_daemon_is_redeemed_at_once(built, folder):
    """By one that has not noticed yet that its daemon is another."""
    daemon = Daemon(folder, *OPTIONS)
    with Client(built, daemon.path, Accidents(built, folder, "client")) as client:
        client.prepare("list")
        assert client.act("list") == (0, "")
        daemon.kill()
        with Daemon(folder, *OPTIONS) as successor:
            with successor.connect():
                client.prepare("redeem")
                assert client.act("redeem") == (0, "")
            client.finish()
            nothing_remains(successor)
