"""No daemon, or none any more: what needs it says so, what does not goes on."""

import os
import signal

import pytest
from daemon import PROGRAM, Daemon, bare_environment, is_alive, settle
from helpers import Program, run

SOLO = """
array = np.arange(6, dtype=np.float32)
tensor = cx.from_dlpack(array, copy=False)
assert np.from_dlpack(tensor).ctypes.data == array.ctypes.data
assert not tensor.is_shared and not cx.is_shared(array)
del tensor
"""


def test_private_exchange_needs_no_daemon(folder):
    run(SOLO, socket=f"{folder}/none.sock")
    assert os.listdir(folder) == []


CALLS = [
    "cx.get('x')", "cx.put('x', array)", "cx.empty((3,), 'float32')", "cx.names()", "cx.stats()",
    "cx.delete('x')", "cx.exists('x')", "cx.clients()", "cx.from_dlpack(array, copy=True)",
    "cx.connect()", "cx.get('x', timeout=600)", "cx.put('x', {'a': array})", "cx.stop()",
]  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_without_autostart_every_call_says_that_no_daemon_answers(folder, call):
    path = f"{folder}/none.sock"
    code = (
        SOLO
        + f"""
try:
    {call.replace("connect()", "connect(autostart=False)")}
except cx.DaemonUnavailable as error:
    assert isinstance(error, ConnectionError)
    assert {path!r} in str(error), error
else:
    raise AssertionError("no error")
"""
    )
    run(code, socket=path)
    assert os.listdir(folder) == []


def test_the_first_call_starts_one_and_it_ends_by_itself(folder):
    path = f"{folder}/run/d.sock"
    code = "cx.put('x', np.arange(3)); say(cx.stats()['pid']); hear(); cx.stop()"
    os.mkdir(f"{folder}/run", 0o700)
    with Program(code, socket=path, env={"TENSORCX_AUTOSTART": "1"}) as program:
        pid = int(program.line())
        assert is_alive(pid) and os.path.exists(path)
        program.tell()
        program.finish()
    settle(lambda: not is_alive(pid), "the daemon's end")
    assert not os.path.exists(path)


def test_the_daemon_owes_nothing_to_its_starter(folder):
    """Own session, folder /, no terminal, nothing inherited, not a child, default signals."""
    code = """
    import threading
    os.set_inheritable(os.dup(1), True)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    say(cx.stats()["pid"], os.getsid(0))
    hear()
    try: os.waitpid(-1, os.WNOHANG); raise AssertionError("the daemon is our child")
    except ChildProcessError: pass
    """
    path = f"{folder}/d.sock"
    with Program(code, socket=path, env={"TENSORCX_AUTOSTART": "1"}) as program:
        pid, session = map(int, program.line().split())
        assert os.getsid(pid) != session
        assert os.readlink(f"/proc/{pid}/cwd") == "/"
        links = {n: os.readlink(f"/proc/{pid}/fd/{n}") for n in os.listdir(f"/proc/{pid}/fd")}
        assert links["0"] == links["1"] == links["2"] == "/dev/null"
        ours = {os.readlink(f"/proc/{program.pid}/fd/{n}") for n in (0, 1, 2)}
        assert not ours & set(links.values()), links
        with open(f"/proc/{pid}/status") as status:
            masks = dict(line.split(":\t") for line in status.read().splitlines() if "Sig" in line)
        assert int(masks["SigBlk"], 16) == 0
        assert not int(masks["SigIgn"], 16) & 1 << signal.SIGTERM - 1
        assert os.sched_getaffinity(pid) == os.sched_getaffinity(0)
        program.tell()
        program.finish()
    os.kill(pid, signal.SIGTERM)
    settle(lambda: not is_alive(pid), "the daemon's end")


def test_a_program_that_cannot_start_gives_its_reason_to_the_caller(folder):
    path = f"{folder}/d.sock"
    missing = {"TENSORCX_AUTOSTART": "1", "TENSORCXD": f"{folder}/no-such-program"}
    code = """
    try:
        cx.names()
    except cx.DaemonUnavailable as error:
        assert sys.argv[1] in str(error), error
    else:
        raise AssertionError("no error")
    """
    run(code, "no-such-program", socket=path, env=missing)
    # A program that starts but refuses: its own words reach the caller.
    os.symlink("/nonexistent", path)
    run(code, "link", socket=path, env={"TENSORCX_AUTOSTART": "1"})


def test_a_name_outlives_a_daemon_only_in_memory(folder):
    with Daemon(folder, "--idle-exit", "0") as first, first.connect() as client:
        client.put("x", b"abc")
        boot = client.welcome["boot_id"]
    with Daemon(folder, "--idle-exit", "0") as second, second.connect() as client:
        assert client.names() == []
        assert client.welcome["boot_id"] != boot


def test_it_ends_by_itself_when_nobody_needs_it(folder):
    daemon = Daemon(folder, "--idle-exit", "0.05")
    assert daemon.process.wait(60) == 0
    assert not daemon.path.exists()


def test_it_does_not_end_while_a_client_or_a_name_is_there(folder):
    daemon = Daemon(folder, "--idle-exit", "1")
    with daemon.connect() as client:
        client.put("x", b"abc", ttl_ms=600)
        for _ in range(50):
            client.stats()
    with daemon.connect() as client:
        assert client.names() in ([b"x"], [])
    assert daemon.process.wait(60) == 0


def test_the_program_is_where_the_package_says():
    assert os.access(PROGRAM, os.X_OK), PROGRAM
    assert "TENSORCXD" in bare_environment()
