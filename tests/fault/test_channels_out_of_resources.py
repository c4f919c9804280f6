"""No memory, mapping or descriptor in the daemon, wherever a channel asks for one.

The call ends with a clear error and can be repeated, and nothing is lost.
"""

from itertools import count

import pytest
import wire
from accidents import DESCRIPTOR, MAPPING, MEMORY, OPTIONS, Accidents
from daemon import bare_environment, settle
from ring import Seat
from wire_table import Status

MAY_SAY = {Status.OUT_OF_MEMORY, Status.SYSTEM, Status.INTERNAL}


class Scene:
    """What each call needs: a queue, and a storage that was sent through it by reference."""

    def __init__(self, client: wire.Connection):
        self.client = client
        self.seat = Seat(client.join("q", buffer_nbytes=1000))
        self.storage = client.alloc(10)["storage"]
        self.seat.use(0)
        self.ref = client.refer(self.seat.channel, 0, 0, self.storage)
        self.unsized = Seat(client.join("unsized"))

    def join(self):
        Seat(self.client.join("q"))

    def join_new(self):
        Seat(self.client.join("new", buffer_nbytes=100))

    def join_large(self):
        Seat(self.client.join("large", buffer_nbytes=1 << 17))

    def buffers(self):
        self.client.call("BUFFERS", channel=self.unsized.channel, nbytes=1 << 17)

    def refer(self):
        self.seat.use(1)
        self.client.refer(self.seat.channel, 0, 1, *[self.storage] * 10)

    def fetch(self):
        self.client.fetch(self.seat.channel, 0, 0, self.ref)

    def fork(self):
        self.client.fork().close()

    def channels(self):
        assert len(self.client.channels()) == 2


CALLS = ["join", "join_new", "join_large", "buffers", "refer", "fetch", "fork", "channels"]


@pytest.fixture
def accidents(built, folder):
    return Accidents(built, folder, "daemon")


@pytest.fixture
def daemon(start, accidents):
    return start(*OPTIONS, env=bare_environment(**accidents.environment))


def fails(daemon, accidents, call, kind, at) -> bool:
    """Whether there was an `at`-th chance to fail."""
    with daemon.connect() as client:
        scene = Scene(client)
        accidents.plan(kind, at)
        try:
            getattr(scene, call)()
        except wire.Refused as refused:
            assert refused.status in MAY_SAY and refused.text, refused
        happened = accidents.end()
        client.stats()
        getattr(scene, call)()
    daemon.settle(clients=0, channels=0, storages=0, holds=0, segments=0)
    return happened


@pytest.mark.parametrize("call", CALLS)
def test_once_in_the_daemon(daemon, accidents, call):
    fails(daemon, accidents, call, 0, 0)  # what is made once and kept is made now
    footprint, blocks = daemon.footprint(), accidents.blocks
    for kind in MEMORY, MAPPING, DESCRIPTOR:
        for at in count(1):
            happened = fails(daemon, accidents, call, kind, at)
            daemon.settle_footprint(footprint)
            settle(lambda: accidents.blocks <= blocks, f"the return to {blocks} blocks of memory")
            if not happened:
                break
