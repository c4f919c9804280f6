"""A client killed in the middle of something: its work is undone, nobody else notices."""

import os
import signal

import pytest
from daemon import settle
from helpers import Program, run

BUSY = {
    "puts small": "while True: cx.put('mine', np.zeros(10), ephemeral=True)",
    "puts large": "big = np.ones(1 << 20)\nwhile True: cx.put('mine', big, ephemeral=True)",
    "puts bundles": """
b = {str(i): np.ones(1000) for i in range(50)}
while True: cx.put('mine', b, ephemeral=True)
""",
    "gets": "while True: np.asarray(cx.get('theirs')).sum()",
    "gets bundles": "while True: cx.get('bundle')['a'][0]",
    "makes": "while True: cx.empty((1 << 22,), 'float32')",
    "waits": "cx.get('never', timeout=600)",
    "waits in threads": """
import threading
def wait(): cx.get("never", timeout=600)
for i in range(8): threading.Thread(target=wait).start()
""",
    "asks": "while True: cx.names(); cx.clients()",
}


def kill_while(daemon, what, rounds):
    with daemon.connect() as other:
        other.put("theirs", bytes(1000))
        run("cx.put('bundle', {'a': np.arange(9)})", socket=daemon.path)
        for i in range(rounds):
            with Program("say('go')\n" + BUSY[what], socket=daemon.path) as victim:
                victim.expect("go")
                # Somewhere in its work, at another point each time.
                if "waits" in what:
                    settle(lambda: other.stats()["waiting"] > 0, "a waiting call")
                else:
                    begun = other.stats()["requests"] + 40 + 7 * i
                    settle(lambda begun=begun: other.stats()["requests"] > begun)
                victim.kill()
            assert other.get("theirs")["grant"]["nbytes"] == 1000
            settle(lambda: other.stats()["clients"] == 1, "the victim's end")
            stats = other.stats()
            assert (stats["names"], stats["storages"], stats["waiting"]) == (2, 2, 0)
        other.delete("theirs")
        other.delete("bundle")


@pytest.mark.parametrize("what", BUSY)
def test_killed_while_it(daemon, what):
    kill_while(daemon, what, rounds=3)


@pytest.mark.slow
@pytest.mark.parametrize("what", BUSY)
def test_killed_often_while_it(daemon, what):
    kill_while(daemon, what, rounds=60)


CLOSES_ALL = """
import socket
t = cx.put("kept", np.arange(1000))
view = np.asarray(t)
# As a program does that makes itself a daemon; 0, 1, 2 are our line to the test.
os.closerange(3, 4096)
# Others come under the old numbers: files, or sockets of just the same kind as ours.
files = [open(os.devnull, "r+b", buffering=0) for _ in range(20)] if sys.argv[1] == "files" else []
pairs = [] if files else [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                          for _ in range(10)]
say("closed")
hear()
view += 1                                   # its memory is still mapped
del t, view
try: cx.names()
except cx.DaemonLost: pass
assert cx.exists("kept")                    # a new connection; our files were not used for it
assert np.asarray(cx.get("kept"))[0] == 1
for file in files: file.write(b"still ours")
for one, other in pairs:
    other.setblocking(False)
    try: raise AssertionError(f"our socket was sent {other.recv(1000)}")
    except BlockingIOError: one.send(b"still ours")
cx.delete("kept")
say("done")
hear()
"""


@pytest.mark.parametrize("reopened", ["files", "sockets"])
def test_one_that_closes_all_its_descriptors_lives_on(daemon, reopened):
    """Its socket is closed, but it has our memory mapped: its holds stay until it ends."""
    with Program(CLOSES_ALL, reopened, socket=daemon.path) as program:
        program.expect("closed")
        stats = daemon.stats()
        assert (stats["storages"], stats["holds"]) == (1, 1)
        with daemon.connect() as client:
            (seen,) = [c for c in client.clients() if c["pid"] == program.pid]
            assert seen["connected"] == 0 and seen["storages"] == 1
        program.tell()
        program.expect("done")
        program.tell()
        program.finish()


def test_one_that_closes_all_its_descriptors_and_is_killed_frees_everything(daemon):
    code = """
    cx.put("mine", np.arange(1000), ephemeral=True)
    kept = cx.empty((1 << 22,), "uint8")
    os.closerange(3, 4096)
    say("closed")
    hear()
    """
    with Program(code, socket=daemon.path) as program:
        program.expect("closed")
        daemon.settle(storages=2)
        program.kill()
    daemon.settle_clean()


def test_one_that_execs_another_program_lets_go(daemon):
    """The process lives on under the same id, without our memory."""
    code = """
    kept = [cx.put("mine", np.arange(1000), ephemeral=True), cx.empty((1 << 22,), "uint8")]
    say("ready")
    hear()
    os.execv("/bin/sh", ["sh", "-c", "echo replaced; read line; ls /proc/$$/fd | wc -l"])
    """
    with Program(code, socket=daemon.path) as program:
        program.expect("ready")
        assert daemon.stats()["storages"] == 2
        program.tell()
        program.expect("replaced")
        daemon.settle_clean()
        program.tell()
        assert int(program.line()) <= 4  # 0, 1, 2 and at most one of the shell's own
        program.finish()


def test_one_that_breaks_the_contract_keeps_its_memory_until_it_ends(daemon):
    code = """
    c = wire.Connection(PATH, life_page=True)
    grant = c.put("x", b"abc")["grant"]
    c.send_bytes(b"nonsense")
    assert c.is_dropped()
    say("dropped")
    hear()
    """
    with Program(code, socket=daemon.path, raw=True) as program:
        program.expect("dropped")
        with daemon.connect() as client:
            client.delete("x")
        assert daemon.stats()["storages"] == 1, "its mapping would show somebody else's bytes"
        program.tell()
        program.finish()
    daemon.settle_clean()


def test_a_stopped_client_holds_up_nobody(daemon):
    code = "say('go')\nwhile True: cx.put('mine', np.zeros(1000), ephemeral=True)"
    with Program(code, socket=daemon.path) as program:
        program.expect("go")
        os.kill(program.pid, signal.SIGSTOP)
        with daemon.connect() as client:
            for i in range(100):
                client.put("theirs", b"%d" % i)
            client.delete("theirs")
        program.kill()
