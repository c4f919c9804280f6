"""SIGKILL, of clients or of the daemon: the memory goes back, and nothing blocks a restart."""

import os
import signal

import pytest
from daemon import Daemon, is_alive, settle, shm_files
from helpers import Program

MiB = 1 << 20

SHARES = """
n = int(sys.argv[1])
tensor = cx.put("big", np.ones(n, np.uint8), ephemeral=True)
held = cx.asarray(np.ones(n, np.uint8), copy=True)
say("shared")
hear()
"""


def kill_producers(daemon, nbytes, rounds):
    for _ in range(rounds):
        with Program(SHARES, nbytes, socket=daemon.path) as producer:
            producer.expect("shared")
            assert daemon.stats()["bytes"] == 2 * nbytes
            producer.kill()
        daemon.settle_clean()


def test_a_killed_producers_memory_comes_back(daemon):
    kill_producers(daemon, 64 * MiB, rounds=3)


@pytest.mark.slow
def test_a_killed_producers_memory_comes_back_every_time(daemon):
    kill_producers(daemon, 1024 * MiB, rounds=20)


READS_ON = """
tensor = cx.put("big", np.arange(1 << 24, dtype=np.float32))
array = np.asarray(tensor)
say("mapped")
hear()
assert array[-1] == (1 << 24) - 1
array[:] = 1
assert array.sum() == 1 << 24
assert not tensor.is_shared
try:
    cx.names()
except cx.DaemonLost as error:
    say("lost", error)
except cx.DaemonUnavailable as error:
    say("unavailable", error)
hear()
"""


def used(path="/dev/shm"):
    mount = os.statvfs(path)
    return (mount.f_blocks - mount.f_bfree) * mount.f_frsize


@pytest.mark.parametrize("backing", ["posix", "memfd"])
def test_mapped_memory_outlives_the_daemon_and_then_goes(start, folder, backing):
    daemon = start("--backing", backing)
    before = used()
    with Program(READS_ON, socket=daemon.path) as client:
        client.expect("mapped")
        assert daemon.stats()["committed_bytes"] >= 64 * MiB
        daemon.kill()
        client.tell()
        assert client.line().split()[0] in ("lost", "unavailable")
        # A new daemon takes the same socket without any cleaning.
        again = Daemon(daemon.path.parent, "--idle-exit", "0")
        with again, again.connect() as other:
            other.put("new", b"life")
            other.delete("new")
        client.tell()
        client.finish()
    if backing == "posix":
        settle(lambda: used() < before + 16 * MiB, "the pages' return")
    assert shm_files() == set()


def test_a_second_daemon_leaves_the_first_ones_memory_alone(start):
    first, second = start(), start()
    with Program(SHARES, MiB, socket=first.path) as client:
        client.expect("shared")
        with second.connect() as other:
            other.put("mine", bytes(1000))
            other.delete("mine")
        second.stop()
        assert first.stats()["bytes"] == 2 * MiB
        client.tell()
        client.finish()


def test_daemon_and_client_killed_at_once_leave_nothing(start):
    daemon = start()
    before = used()
    with Program(SHARES, 64 * MiB, socket=daemon.path) as client:
        client.expect("shared")
        os.kill(daemon.pid, signal.SIGKILL)
        os.kill(client.pid, signal.SIGKILL)
    settle(lambda: not is_alive(daemon.pid), "the daemon's end")
    settle(lambda: used() < before + 16 * MiB, "the pages' return")
    assert shm_files() == set()


def test_a_stopped_daemon_says_so_and_removes_its_socket(daemon):
    daemon.stop()
    assert not daemon.path.exists()
    assert "event=stop" in daemon.log() or "event=server.stop" in daemon.log()
