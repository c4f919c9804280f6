"""SIGKILL, SIGSTOP and a new start at every step that has to do with a channel.

Two more members of the same channel see to it that each message is received whole or not at all,
none twice, in order, and none is lost but the victim's own; that the channel goes on, with all of
its buffers; and that who is stopped holds up nobody but who needs its lock.
"""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
import steps
from daemon import settle
from every_step import count_all, each_accident, each_time, first_to_reach, go_through
from members import CHANNEL, Members
from repertoire import OF_CHANNELS
from ring import Seat

LOCK_AWAITED = 1 << 31  # in its word

# What is done while a member has the lock.
WITH_LOCK = {
    "RING_LOCKED", "RING_WAIT_FLAGGED", "RING_WAIT_RESUMED", "RING_BUFFER_LOANED",
    "RING_FLOOR_MOVED", "RING_ENTRY_NUMBERED", "RING_ENTRY_WRITTEN", "RING_HEAD_MOVED",
    "RING_BUFFER_SENT", "RING_MESSAGE_USED", "RING_CURSOR_MOVED", "RING_READER_PLACED",
    "RING_READER_COUNTS",
}  # fmt: skip


class ChannelStage(steps.Stage):
    """With two members, who are in before an operation begins, if there is a channel yet."""

    members = None

    def __init__(self, folder):
        super().__init__(folder)
        self.members = Members(self.daemon.path)
        self.before = self.stats()

    def start(self):
        super().start()
        if self.members:
            self.members.find_successor()

    def rest(self, others=0):
        super().rest(others + len(self.members.clients))

    def members_join(self, connection):
        entry = next((c for c in connection.channels() if c["name"] == CHANNEL), None)
        self.depth = entry["depth"] if entry else 0
        self.members.join(entry)

    def members_go_on(self, plan):
        self.members.go_on()
        assert self.members.is_held_up(plan.page.pid) == (plan.step in WITH_LOCK)

    def has_outcome(self, operation, was_killed):
        """And the channel goes on."""
        sends, receives = OF_CHANNELS[operation]
        before = self.depth
        self.rest()
        with self.daemon.connect() as connection:
            self.members_join(connection)
        others = self.members.talk()
        if was_killed:
            assert before - receives <= others <= before + sends
        else:
            assert others == before + sends - receives
        self.members.let_go()

    def is_as_before(self):
        self.members.leave()
        super().is_as_before()

    def close(self):
        self.members.close()
        super().close()


@pytest.fixture(scope="module")
def hits():
    return count_all(ChannelStage, OF_CHANNELS)


@pytest.fixture
def stage(folder):
    with ChannelStage(folder) as stage:
        yield stage


def test_every_step_of_channels_is_reached(hits):
    two = {"RING_LOCK_AWAITED (client)", "RING_LOCK_PASSED (client)"}  # see below
    assert steps.unreached(hits, steps.OF_CHANNELS) == two


@each_accident
def test_where_it_is_reached_first(hits, stage, do):
    for operation in OF_CHANNELS:
        moments = first_to_reach(hits, operation, do, steps.OF_CHANNELS)
        go_through(stage, operation, moments, do)
    stage.close()


@pytest.mark.slow
@pytest.mark.parametrize("operation", OF_CHANNELS)
@each_accident
def test_in_each_operation(hits, stage, do, operation):
    go_through(stage, operation, each_time(hits, operation, do), do)
    stage.close()


# ---------------------------------------------------------------------------- two who want the lock


@pytest.fixture
def victim(stage):
    """About to send a message."""
    with stage.client() as client:
        stage.prepare(client, "send-small")
        yield client
    stage.has_outcome("send-small", was_killed=True)
    stage.is_as_before()
    stage.close()


def goes(client, number):
    """It dies, or is stopped and goes on."""
    settle(client.accidents.happened, "the signal")
    if number == signal.SIGSTOP:
        settle(client.accidents.has_stopped)
        client.accidents.resume()
        assert client.answer() == (0, "")
        client.clean()
        client.finish()
    else:
        assert client.end() == (-signal.SIGKILL, "")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_who_waits_for_the_lock(stage, victim, number):
    with stage.daemon.connect() as owner, Seat(owner.join(CHANNEL)) as seat:
        seat["lock"] = owner.welcome["client"]
        victim.accidents.begin("RING_LOCK_AWAITED", 1, number)
        victim.tell("act send-small")
        settle(victim.accidents.happened, "the signal")
        assert stage.members.is_held_up(os.getpid())
        seat["lock"] = 0
        goes(victim, number)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_who_gives_the_lock_to_others_that_wait(stage, victim, number):
    victim.accidents.begin("RING_LOCKED", 1, signal.SIGSTOP)
    victim.tell("act send-small")
    settle(victim.accidents.has_stopped)
    with (
        stage.daemon.connect() as onlooker,
        Seat(onlooker.join(CHANNEL)) as seat,
        ThreadPoolExecutor(1) as pool,
    ):
        sending = pool.submit(stage.members.send_as_others)
        settle(lambda: seat["lock"] & LOCK_AWAITED)
        pid = victim.pid
        victim.accidents.begin("RING_LOCK_PASSED", 1, number)
        os.kill(pid, signal.SIGCONT)
        goes(victim, number)
        sending.result()
        stage.depth += 1
