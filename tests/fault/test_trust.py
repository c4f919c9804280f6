"""Who poses as the daemon or stands in its way, and what a client cannot do by descriptors."""

import fcntl
import os
import socket
import subprocess

import pytest
from daemon import PROGRAM, bare_environment, descriptors, settle
from helpers import Program, run
from wire import Dropped, frame

OURSELVES, STRANGER = 61_011, 61_012

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: programs of other users")

POSES = """
import socket
become(int(sys.argv[1]))
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.bind(sys.argv[2])
server.listen()
say("listens")
connection, _ = server.accept()
say("was told", connection.recv(1000))
"""

ASKS = """
become(int(sys.argv[1]))
try: cx.names()
except cx.Error as error: say(type(error).__name__, error)
"""


@ROOT_ONLY
def test_who_listens_behind_a_file_of_ours_is_not_talked_to(folder):
    """Folder and file are ours, the process is not: it gets a connection and not a byte."""
    place = f"{folder}/place"
    path = f"{place}/d.sock"
    os.chmod(folder, 0o711)
    os.mkdir(place)
    os.chown(place, STRANGER, STRANGER)
    with Program(POSES, STRANGER, path, raw=True, socket=path) as stranger:
        stranger.expect("listens")
        for taken in place, path:
            os.chown(taken, OURSELVES, OURSELVES)
        os.chmod(place, 0o700)
        with Program(ASKS, OURSELVES, socket=path) as client:
            text = client.expect("DaemonUnavailable")
            client.finish()
        assert f"runs as user {STRANGER}" in text and f"TENSORCX_TRUST_UID={STRANGER}" in text
        stranger.expect("was told b''")


def daemon_says(folder) -> str:
    """What tensorcxd writes when it does not serve there."""
    done = subprocess.run(
        [PROGRAM, "--socket", f"{folder}/d.sock"], capture_output=True, text=True, timeout=60,
        env=bare_environment(), check=False,
    )  # fmt: skip
    assert done.returncode == 1
    return done.stderr


def test_a_lock_that_is_a_link_is_not_followed(folder):
    target = f"{folder}/precious"
    with open(target, "w") as file:
        file.write("precious")
    os.symlink(target, f"{folder}/d.lock")
    assert "d.lock" in daemon_says(folder)
    with open(target) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert file.read() == "precious"


@ROOT_ONLY
def test_a_dead_socket_of_somebody_else_is_left_alone(folder):
    path = f"{folder}/d.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(path)
    os.chown(path, STRANGER, STRANGER)
    assert f"belongs to user {STRANGER}" in daemon_says(folder)
    assert os.stat(path).st_uid == STRANGER


def test_a_socket_put_in_place_of_ours_is_left_alone_and_clients_stay(start, folder):
    """Who may write in the folder is the user itself: its other program gets the new clients."""
    daemon = start(checked=False)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind(f"{folder}/other")
        other.listen()
        with daemon.connect() as client:
            client.put("x", b"abc")
            os.replace(f"{folder}/other", daemon.path)
            assert client.get("x")["grant"]["nbytes"] == 3
        daemon.stop()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as visitor:
            visitor.connect(str(daemon.path))


def test_floods_of_descriptors_leave_none(daemon):
    """As many as a message can carry, in messages of every kind, from many connections."""
    with daemon.connect() as other, open(os.devnull) as null:
        before = len(descriptors(daemon.pid))
        for i in range(100):
            with daemon.connect(hello=i % 2 == 0) as flood, pytest.raises(Dropped):
                flood.send_bytes(frame("STATS", number=1), [null.fileno()] * 253)
                flood.send_bytes(frame("FORK"), [null.fileno()] * 253)
                while True:
                    flood.receive_bytes()
            assert other.stats()["names"] == 0
        settle(lambda: len(descriptors(daemon.pid)) <= before, "the end of all descriptors")


def test_shared_memory_is_left_out_of_core_dumps(daemon):
    code = """
    import re
    kept = [cx.put("x", np.zeros(10)), cx.empty(1 << 22)]
    with cx.queue("q") as queue:
        queue.send(np.zeros(10))
        maps = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", open("/proc/self/smaps").read(), flags=re.M)
        ours = [text for text in maps if re.match(r".*(/dev/shm/#|/memfd:tensorcx(?!-life))", text)]
        assert len(ours) >= 3, len(ours)
        for text in ours:
            assert " dd" in text.partition("VmFlags:")[2], text
        queue.recv(timeout=60)
    cx.delete("x")
    """
    run(code, socket=daemon.path)
