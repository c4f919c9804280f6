"""Many processes start the daemon at the same moment: one wins, all are served by it."""

import contextlib
import os
import signal

import pytest
from daemon import Daemon, is_alive, settle
from helpers import Program

STARTS = """
hear()
cx.put(sys.argv[1], np.arange(10))
say(cx.stats()["pid"])
hear()
"""


def race(folder, count):
    path = f"{folder}/d.sock"
    with contextlib.ExitStack() as stack:
        programs = [
            stack.enter_context(Program(STARTS, i, socket=path, env={"TENSORCX_AUTOSTART": "1"}))
            for i in range(count)
        ]
        for program in programs:
            program.tell()
        daemons = {int(program.line()) for program in programs}
        assert len(daemons) == 1, f"{len(daemons)} daemons"
        for program in programs:
            program.tell()
            program.finish()
    return daemons.pop()


def end(pid):
    os.kill(pid, signal.SIGTERM)
    settle(lambda: not is_alive(pid), "the daemon's end")


def test_of_twenty_that_start_it_one_wins(folder):
    end(race(folder, 20))
    assert not os.path.exists(f"{folder}/d.sock")


def test_again_after_it_was_killed(folder):
    """The socket file and the lock file are still there; neither is in the way."""
    for _ in range(2):
        pid = race(folder, 5)
        os.kill(pid, signal.SIGKILL)
        settle(lambda pid=pid: not is_alive(pid), "the daemon's end")
        assert os.path.exists(f"{folder}/d.sock")
    end(race(folder, 3))


@pytest.mark.slow
def test_of_many_that_start_it_one_wins_every_time(folder):
    for _ in range(20):
        end(race(folder, 20))


def test_a_second_daemon_on_the_same_socket_says_who_serves(start):
    daemon = start()
    with pytest.raises(RuntimeError) as refused:
        Daemon(daemon.path.parent)
    assert str(daemon.pid) in str(refused.value) or "already" in str(refused.value)
    with daemon.connect() as client:
        assert client.stats()["pid"] == daemon.pid
