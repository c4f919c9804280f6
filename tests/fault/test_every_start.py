"""SIGKILL, SIGTERM and SIGSTOP at every step of a daemon's start by a client, of either of them.

Who asks next is served, by one daemon; nobody waits longer than it is willing to; nothing is in the
way of the next start.
"""

import os
import signal
from pathlib import Path

import pytest
import wire
from daemon import is_alive, settle
from steps import OF_START, PATIENCE, Plan, Witness, by_side, unreached
from wire_table import Status

AS_CLIENT, AS_DAEMON = by_side(OF_START)


class Start:
    """A client that starts a daemon, of which both look into the same plan, and another client."""

    def __init__(self, folder: str):
        self.folder = folder
        self.path = f"{folder}/d.sock"
        self.plan = Plan(folder, "start")
        autostart = {"TENSORCX_AUTOSTART": "1"}
        self.first = Witness(self.path, 1, **autostart, **self.plan.environment)
        self.other = Witness(self.path, 2, **autostart, TENSORCX_TIMEOUT=PATIENCE)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.first.__exit__(kind)
        self.other.__exit__(kind)
        for pid in self.daemons():
            os.kill(pid, signal.SIGKILL)

    def daemons(self) -> list[int]:
        """The processes that serve this path, or want to."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if words[0].endswith(b"tensorcxd") and self.path.encode() in words:
                found.append(int(entry.name))
        return [pid for pid in found if is_alive(pid)]

    def end(self):
        """All that there are are served by one daemon, which ends and leaves nothing."""
        self.other.must("work")
        settle(lambda: len(self.daemons()) == 1, "one daemon")
        with wire.Connection(self.path) as client:
            assert client.stats()["pid"] == self.daemons()[0]
            client.call("STOP")
        settle(lambda: not self.daemons(), "the daemon's end")
        assert not os.path.exists(self.path)


@pytest.fixture
def start(folder):
    with Start(folder) as start:
        yield start


def test_every_step_is_reached(start):
    start.first.must("work")
    hits = start.plan.hits()
    assert unreached({"start": {"client": hits, "daemon": hits}}, OF_START) == set()
    start.end()


@pytest.mark.parametrize("step", AS_CLIENT)
def test_a_client_is_killed(start, step):
    start.plan.begin(step)
    start.first.tell("work")
    assert start.first.end() == (-signal.SIGKILL, "")
    start.end()


@pytest.mark.parametrize("step", AS_CLIENT)
def test_a_client_is_stopped(start, step):
    start.plan.begin(step, 1, signal.SIGSTOP)
    start.first.tell("work")
    settle(start.plan.has_stopped)
    start.other.must("work")
    start.plan.resume()
    assert start.first.answer() == (0, "")
    start.end()


@pytest.mark.parametrize("step", AS_DAEMON)
def test_the_daemon_is_killed(start, step):
    start.plan.begin(step)
    status, text = start.first.do("work")
    assert start.plan.end()
    assert status in (Status.OK, Status.UNAVAILABLE, Status.LOST) and bool(text) == bool(status)
    start.first.must("work")
    start.end()


@pytest.mark.parametrize("step", AS_DAEMON)
def test_the_daemon_is_told_to_end(start, step):
    start.plan.begin(step, 1, signal.SIGTERM)
    status, text = start.first.do("work")
    assert start.plan.end()
    assert status in (Status.OK, Status.UNAVAILABLE, Status.LOST) and bool(text) == bool(status)
    start.first.must("work")
    start.end()


@pytest.mark.parametrize("step", AS_DAEMON)
def test_the_daemon_is_stopped(start, step):
    start.plan.begin(step, 1, signal.SIGSTOP)
    start.first.tell("work")
    settle(start.plan.has_stopped)
    status, text = start.other.do("work")
    assert status in (Status.OK, Status.TIMEOUT) and bool(text) == bool(status)
    start.plan.resume()
    assert start.first.answer() == (0, "")
    start.end()
