"""What many have that end together goes back in steps. Who asks for it meanwhile gets it: no limit
is reached by what only the dead have."""

import pytest
import wire
from daemon import Daemon, settle
from wire_table import CONSTANTS

MANY = 10_000
AT_ONCE = 50
KIB = 1024


def have_many(client, nbytes=1, named=False):
    """MANY storages that the client holds, with ephemeral names if `named`."""
    data, description = bytes(nbytes), wire.desc((nbytes,), wire.UINT8)
    for start in range(0, MANY, AT_ONCE):
        for i in range(start, start + AT_ONCE):
            name = b"%d" % i if named else b""
            fields = wire.put_fields(name, data, description, CONSTANTS["PUT_EPHEMERAL"] * named)
            client.send("PUT", description + name + data, **fields)
        for _ in range(AT_ONCE):
            assert client.receive()["grant"]["nbytes"] == nbytes


def wait_for_end(observer):
    """Until the daemon knows that the other client has ended."""
    settle(lambda: observer.stats()["clients"] == 1, "the other's end")


def test_memory_of_the_dead_is_free(tmp_path):
    options = ("--capacity=64M", "--warm-seconds=0")
    with Daemon(tmp_path, *options) as running, running.connect() as heir:
        with running.connect() as owner:
            have_many(owner, 4 * KIB)
            with pytest.raises(wire.Refused, match="--capacity"):
                heir.alloc(48 << 20)
        wait_for_end(heir)
        heir.alloc(48 << 20)


def test_the_dead_count_for_no_limit_of_clients(tmp_path):
    with Daemon(tmp_path, "--max-clients=2") as running, running.connect() as observer:
        with running.connect() as owner:
            have_many(owner)
            with pytest.raises(wire.Refused, match="--max-clients"):
                running.connect()
        wait_for_end(observer)
        running.connect().close()


def test_a_daemon_that_is_stopped_meanwhile_ends_well(tmp_path):
    with Daemon(tmp_path) as running, running.connect() as observer:
        with running.connect() as owner:
            have_many(owner, named=True)
        wait_for_end(observer)
        running.stop()
