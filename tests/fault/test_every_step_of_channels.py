"""SIGKILL, SIGSTOP and a new start at every step that has to do with a channel.

Two more members of the same channel see to it that each message is received whole or not at all,
none twice, in order, and none is lost but the victim's own; that the channel goes on, with all of
its buffers; and that who is stopped holds up nobody but who needs its lock.
"""

import os
import shutil
import signal
import tempfile
from concurrent.futures import ThreadPoolExecutor

import pytest
from accidents import OF_CHANNELS
from daemon import settle
from every_step import (
    count_all,
    each_moment,
    each_time,
    first_to_reach,
    go_through,
    kill_client,
    kill_daemon,
    stop_client,
    stop_daemon,
)
from members import CHANNEL, Members
from ring import Seat
from steps import OF_CHANNELS as SECTIONS
from steps import Stage, sections, unreached

LOCK_AWAITED = 1 << 31  # in its word

# How many messages an operation sends, and receives; others none.
FLOW = {
    "fork-queue": (0, 1), "send-small": (1, 0), "send-again": (1, 0), "send-first": (1, 0),
    "send-large": (1, 0), "send-shared": (2, 0), "send-bundle": (1, 0), "send-loan": (1, 0),
    "send-late": (1, 1), "receive-small": (0, 1), "receive-large": (0, 1),
    "receive-at-once": (0, 1), "receive-shared": (0, 2), "receive-bundle": (0, 1),
    "receive-late": (1, 1), "lag": (2, 0),
}  # fmt: skip

# What is done while a member has the lock.
WITH_LOCK = {
    "RING_LOCKED", "RING_WAIT_FLAGGED", "RING_WAIT_RESUMED", "RING_BUFFER_LOANED",
    "RING_FLOOR_MOVED", "RING_ENTRY_NUMBERED", "RING_ENTRY_WRITTEN", "RING_HEAD_MOVED",
    "RING_BUFFER_SENT", "RING_MESSAGE_USED", "RING_CURSOR_MOVED", "RING_READER_PLACED",
    "RING_READER_COUNTS",
}  # fmt: skip

each_operation = pytest.mark.parametrize("operation", OF_CHANNELS)


class ChannelStage(Stage):
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

    def flow(self, operation, was_killed):
        """What came of the operation is one of what may come of it; and the channel goes on."""
        sends, receives = FLOW.get(operation, (0, 0))
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
    folder = tempfile.mkdtemp(prefix="tcx-")
    with ChannelStage(folder) as stage:
        found = count_all(stage, OF_CHANNELS)
        stage.close()
    shutil.rmtree(folder)
    return found


@pytest.fixture
def stage(folder):
    with ChannelStage(folder) as stage:
        yield stage


def test_every_step_of_channels_is_reached(hits):
    two = {"RING_LOCK_AWAITED (client)", "RING_LOCK_PASSED (client)"}  # see below
    assert unreached(hits, SECTIONS) == two


# ------------------------------------------------------------------------------------ at each step


def kill_member(stage, operation, step, at):
    comes = kill_client(stage, operation, step, at)
    stage.flow(operation, was_killed=True)
    return comes


def stop_member(stage, operation, step, at):
    comes = stop_client(stage, operation, step, at)
    stage.flow(operation, was_killed=False)
    return comes


def stop_daemon_of_channel(stage, operation, step, at):
    comes = stop_daemon(stage, operation, step, at)
    stage.flow(operation, was_killed=False)
    return comes


WHAT = {
    "a member is killed": ("client", kill_member),
    "a member is stopped": ("client", stop_member),
    "the daemon is killed": ("daemon", kill_daemon),
    "the daemon is stopped": ("daemon", stop_daemon_of_channel),
}


@pytest.mark.parametrize("what", WHAT)
def test_where_it_is_reached_first(hits, stage, what):
    side, do = WHAT[what]
    ours = {step for title in SECTIONS for step in sections()[title]}
    for operation in OF_CHANNELS:
        moments = [m for m in first_to_reach(hits, operation, side) if m[0] in ours]
        go_through(stage, operation, moments, do)
    stage.close()


@pytest.mark.slow
@pytest.mark.parametrize("operation", OF_CHANNELS)
@pytest.mark.parametrize("what", WHAT)
def test_in_each_operation(hits, stage, what, operation):
    side, do = WHAT[what]
    each_moment(stage, operation, each_time(hits, operation, side), do)


# ---------------------------------------------------------------------------- two who want the lock


@pytest.fixture
def victim(stage):
    """About to send a message."""
    with stage.client() as client:
        stage.prepare(client, "send-small")
        yield client
    stage.flow("send-small", was_killed=True)
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
