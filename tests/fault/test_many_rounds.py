"""Round after round of everything a client can do: nothing grows, in the client or the daemon."""

import pytest
from accidents import OPTIONS, Accidents, Client, no_more, nothing_remains
from daemon import bare_environment, settle
from helpers import resident_bytes
from repertoire import OF_CHANNELS, OPERATIONS

EVERYTHING = [*OPERATIONS, *OF_CHANNELS, "put-expiring", "put-ephemeral", "die"]
ROOM = 1 << 20  # that the resident memory of a process may vary


def go_round(client, daemon, rounds):
    """Afterwards the client has given everything back."""
    for _ in range(rounds):
        for operation in EVERYTHING:
            client.prepare(operation)
            assert client.act(operation) == (0, "")
    client.drop(daemon)
    client.clean()
    nothing_remains(daemon)


def rounds_of_everything(built, folder, start, rounds):
    accidents = Accidents(built, folder, "daemon")
    daemon = start(*OPTIONS, env=bare_environment(**accidents.environment))
    with Client(built, daemon.path, Accidents(built, folder, "client")) as client:
        go_round(client, daemon, rounds // 10)
        had, footprint, blocks = client.possessions(), daemon.footprint(), accidents.blocks
        resident = resident_bytes(client.pid) + resident_bytes(daemon.pid)
        go_round(client, daemon, rounds)
        assert no_more(client.possessions(), had)
        daemon.settle_footprint(footprint)
        settle(lambda: accidents.blocks <= blocks, f"the daemon's return to {blocks} blocks")
        assert resident_bytes(client.pid) + resident_bytes(daemon.pid) <= resident + ROOM
        client.finish()


@pytest.mark.bare
def test_fifty_rounds(built, folder, start):
    rounds_of_everything(built, folder, start, 50)


@pytest.mark.slow
def test_a_thousand_rounds(built, folder, start):
    rounds_of_everything(built, folder, start, 1000)
