"""Whatever the system refuses a daemon that starts: it says so and ends, or does without.

Never a hang, never a signal, and the next start works.
"""

import os
import select
import signal
import socket
import struct
import subprocess
from itertools import count
from pathlib import Path

import pytest
import wire
from accidents import EVERYTHING, OPTIONS, VARIANTS, Accidents
from daemon import DEADLINE, PROGRAM, bare_environment, is_alive, settle
from helpers import Program


def end(path):
    """It serves, and ends when it is told to."""
    with wire.Connection(path) as client:
        client.put("name", b"bytes")
        credentials = client.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid = struct.unpack("3i", credentials)[0]
    os.kill(pid, signal.SIGTERM)
    settle(lambda: not is_alive(pid), "the end of the daemon")


def start(path, accidents, *options) -> tuple[int, str]:
    """Starts a daemon, and ends it if it serves: its exit status, and what its starter heard.

    The accidents are over when it has spoken. What it has when it gives up is no leak.
    """
    ready, theirs = os.pipe()
    with open(ready) as answer:
        process = subprocess.Popen(
            [PROGRAM, "--socket", path, "--ready-fd", str(theirs), *OPTIONS, *options],
            pass_fds=[theirs],
            stderr=subprocess.DEVNULL,
            env=bare_environment(LSAN_OPTIONS="detect_leaks=0", **accidents.environment),
        )
        os.close(theirs)
        try:
            said = answer.read() if select.select([answer], [], [], DEADLINE)[0] else ""
            accidents.end()
            if said == "R":
                end(path)
            return process.wait(DEADLINE), said
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("where", "variant"),
    [("", 0)]
    + [
        pytest.param(where, variant, marks=pytest.mark.slow)
        for where in ("", "--background")
        for variant in range(VARIANTS)
        if where or variant
    ],
)
def test_a_start_that_fails_says_why(built, folder, where, variant):
    path = Path(folder, "new", "d.sock")
    options = ["--log", f"{folder}/log", *filter(None, [where])]
    accidents = Accidents(built, folder, "daemon")
    for at in count(1):
        accidents.plan(EVERYTHING, at, variant=variant)
        code, said = start(path, accidents, *options)
        if said == "R":
            assert code == 0, accidents.last
        else:
            assert said and code in ({0, 1} if where else {1}), (accidents.last, code, said)
            assert not path.exists(), (accidents.last, said)
            assert start(path, accidents) == (0, "R"), accidents.last
        if not accidents.page.happened:
            break


@pytest.mark.slow
@pytest.mark.parametrize("variant", range(VARIANTS))
def test_a_call_that_starts_a_daemon_fails_with_a_text_and_then_works(built, folder, variant):
    path = Path(folder, "d.sock")
    accidents = Accidents(built, folder, "both")
    code = """
    say("ready")
    while hear():
        try:
            with cx.Client() as client:
                client.exists("name")
            say("R")
        except (cx.Error, MemoryError) as error:
            say(type(error).__name__, error)
    """
    with Program(
        code, socket=path, env={"TENSORCX_AUTOSTART": "1", **accidents.environment}
    ) as program:
        program.expect("ready")
        for at in count(1):
            accidents.plan(EVERYTHING, at, variant=variant)
            program.tell("go")
            said = program.line()
            happened = accidents.end()
            program.tell("go")
            assert program.line() == "R", (accidents.last, said)
            end(path)
            if not happened:
                break
        program.tell()
        program.finish()


@pytest.mark.parametrize("size", [0, 1 << 20, 20 << 20])
def test_a_client_that_may_not_write_files_leaves_no_daemon_that_serves_nobody(folder, size):
    code = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
for nbytes in 10, 32 << 20:
    try:
        say(cx.put("a", np.zeros(nbytes, "u1")).nbytes)
    except cx.Error as error:
        say(type(error).__name__, error)
os.path.exists(sys.argv[2]) and cx.stop()
"""
    socket = f"{folder}/d.sock"
    with Program(code, size, socket, socket=socket, env={"TENSORCX_AUTOSTART": "1"}) as program:
        first, second = program.line(), program.line()
        program.finish()
    assert first == "10" if size > 16 << 20 else "DaemonUnavailable" in first
    assert "RLIMIT_FSIZE" in second
