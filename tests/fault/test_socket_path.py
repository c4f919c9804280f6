"""Where the socket lies: too long, somebody else's, a link, a plain file, gone."""

import fcntl
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from daemon import PROGRAM, Daemon, bare_environment, descriptors, settle
from helpers import Program

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: chown to another user")
STRANGER = 12345

SAYS_WHY = """
try:
    cx.connect(autostart=len(sys.argv) > 1)
except (cx.Error, ValueError) as error:
    say(type(error).__name__, error)
else:
    say("connected")
"""


def client_says(path, *autostart) -> str:
    environment = {"TENSORCX_AUTOSTART": "1"} if autostart else {}
    with Program(SAYS_WHY, *autostart, socket=path, env=environment) as program:
        line = program.line()
        program.finish()
    return line


def daemon_says(path) -> str:
    """What tensorcxd writes when it refuses that socket."""
    run = subprocess.run(
        [PROGRAM, "--socket", path], capture_output=True, text=True, timeout=60,
        env=bare_environment(), check=False,
    )  # fmt: skip
    assert run.returncode > 0, "the daemon served there"
    return run.stderr


def path_of(length, folder, filler="x") -> str:
    path = f"{folder}/"
    while len(os.fsencode(path)) < length:
        path += filler
    return path


@pytest.mark.parametrize("filler", ["x", " ", "ä"], ids=["plain", "blanks", "utf-8"])
def test_a_path_of_107_bytes_works(folder, filler):
    if (107 - len(folder) - 1) % len(filler.encode()):
        folder += "/"
    path = path_of(107, folder, filler)
    assert len(os.fsencode(path)) == 107
    with Daemon(folder, "--idle-exit", "0", socket_name=os.path.basename(path)):
        assert client_says(path) == "connected"


@pytest.mark.parametrize("length", [108, 109, 300, 5000])
def test_a_longer_path_is_refused_with_the_limit(folder, length):
    path = path_of(length, folder)
    for text in client_says(path), client_says(path, "autostart"), daemon_says(path):
        assert "107" in text and str(length) in text, text
    assert os.listdir(folder) == []


@pytest.mark.parametrize("kind", ["file", "folder", "fifo"])
def test_what_is_no_socket_is_refused_and_left_alone(folder, kind):
    path = f"{folder}/d.sock"
    if kind == "file":
        with open(path, "w") as file:
            file.write("precious")
    elif kind == "folder":
        os.mkdir(path)
    else:
        os.mkfifo(path)
    for text in client_says(path), client_says(path, "autostart"), daemon_says(path):
        assert path in text and "socket" in text, text
    assert os.path.exists(path)
    if kind == "file":
        with open(path) as file:
            assert file.read() == "precious"


@pytest.mark.parametrize("target", ["real.sock", "nowhere"])
def test_a_link_is_refused(folder, target):
    path = f"{folder}/d.sock"
    os.symlink(f"{folder}/{target}", path)
    with Daemon(folder, "--idle-exit", "0", socket_name="real.sock"):
        for text in client_says(path), client_says(path, "autostart"), daemon_says(path):
            assert path in text and "link" in text, text
    assert os.path.islink(path)


def test_a_link_in_place_of_the_folder_is_refused(folder):
    os.mkdir(f"{folder}/real", 0o700)
    os.symlink(f"{folder}/real", f"{folder}/link")
    with Daemon(f"{folder}/real", "--idle-exit", "0"):
        assert "link" in client_says(f"{folder}/link/d.sock")
    assert "link" in daemon_says(f"{folder}/link/d.sock")


@ROOT_ONLY
def test_a_socket_of_somebody_else_is_not_talked_to(folder):
    path = f"{folder}/d.sock"
    with Daemon(folder, "--idle-exit", "0"):
        os.chown(path, STRANGER, STRANGER)
        text = client_says(path)
        assert str(STRANGER) in text and "owned" in text, text


@ROOT_ONLY
def test_a_folder_of_somebody_else_is_not_used(folder):
    os.mkdir(f"{folder}/theirs", 0o700)
    os.chown(f"{folder}/theirs", STRANGER, STRANGER)
    path = f"{folder}/theirs/d.sock"
    for text in client_says(path, "autostart"), daemon_says(path):
        assert str(STRANGER) in text and "owned" in text, text
    assert os.listdir(f"{folder}/theirs") == []


def test_a_folder_that_others_may_write_to_is_not_used(folder):
    os.mkdir(f"{folder}/open")
    os.chmod(f"{folder}/open", 0o777)
    path = f"{folder}/open/d.sock"
    for text in client_says(path, "autostart"), daemon_says(path):
        assert f"{folder}/open" in text, text
    assert os.listdir(f"{folder}/open") == []


def test_the_folder_is_made_if_its_parent_is_there(folder):
    path = f"{folder}/made/d.sock"
    with Program(
        "cx.connect(); cx.stop()", socket=path, env={"TENSORCX_AUTOSTART": "1"}
    ) as program:
        program.finish()
    mode = os.stat(f"{folder}/made").st_mode
    assert mode & 0o777 == 0o700
    missing = f"{folder}/not/there/d.sock"
    assert f"{folder}/not" in client_says(missing, "autostart")


@pytest.mark.parametrize("mask", [0, 0o177, 0o777])
def test_whatever_the_umask_a_client_starts_a_daemon_for_its_owner_only(folder, mask):
    path = f"{folder}/new/d.sock"
    code = """
os.umask(int(sys.argv[1])); os.geteuid() or os.setuid(12345)
cx.put("a", 1); modes = [os.stat(x).st_mode & 0o777 for x in sys.argv[2:]]; cx.stop()
say(modes)
"""
    if os.geteuid() == 0:
        os.chown(folder, STRANGER, STRANGER)
    places = os.path.dirname(path), path, f"{folder}/new/d.lock", f"{folder}/new/d.log"
    environment = {"TENSORCX_AUTOSTART": "1"}
    with Program(code, mask, *places, socket=path, env=environment) as program:
        program.expect("[448, 384, 384, 384]")
        program.finish()


def test_the_socket_is_for_its_owner_only(daemon):
    assert os.stat(daemon.path).st_mode & 0o777 == 0o600


def test_a_socket_removed_while_running_comes_back(daemon):
    """A cleaner or a logout took the file: old clients go on, new ones find it again."""
    code = """
    cx.put("x", np.arange(3))
    say("ready")
    hear()
    assert cx.names() == ["x"]
    cx.delete("x")
    """
    with Program(code, socket=daemon.path) as program:
        program.expect("ready")
        os.unlink(daemon.path)
        settle(daemon.path.exists, "a new socket file")
        assert client_says(daemon.path) == "connected"
        program.tell()
        program.finish()
    assert client_says(daemon.path) == "connected"


def test_a_folder_removed_while_running_does_not_end_it(start, folder):
    daemon = start(checked=False)
    with daemon.connect() as client:
        client.put("x", b"abc")
        shutil.rmtree(daemon.path.parent)
        for _ in range(20):
            assert client.get("x")["grant"]["nbytes"] == 3
        client.delete("x")


def test_a_foreign_file_in_place_of_the_socket_is_left_alone(start):
    daemon = start(checked=False)
    with daemon.connect() as client:
        own = daemon.path.with_name("own")
        own.write_text("precious")
        os.replace(own, daemon.path)  # in one step: the daemon makes a missing socket anew
        for _ in range(20):
            client.stats()
        daemon.process.terminate()
        daemon.process.wait(60)
    assert not daemon.path.exists() or daemon.path.read_text() == "precious"


def test_a_stale_socket_of_a_killed_daemon_is_taken_over(folder):
    path = f"{folder}/d.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(path)
    assert "DaemonUnavailable" in client_says(path)
    with Daemon(folder, "--idle-exit", "0"):
        assert client_says(path) == "connected"


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM], ids=["stream", "dgram"])
def test_a_socket_that_another_program_serves_is_left_alone(folder, kind):
    path = f"{folder}/d.sock"
    with socket.socket(socket.AF_UNIX, kind) as server:
        server.bind(path)
        if kind == socket.SOCK_STREAM:
            server.listen()
        text = daemon_says(path)
        assert path in text and "another program" in text, text
        with socket.socket(socket.AF_UNIX, kind) as visitor:
            visitor.connect(path)


def test_a_daemon_whose_backlog_is_full_is_not_taken_for_dead(folder):
    path = f"{folder}/d.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(path)
        server.listen(0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as first:
            first.connect(path)
            text = daemon_says(path)
    assert "another daemon serves" in text and "pid" not in text, text


def test_a_place_whose_lock_another_holds_is_not_served(start, folder):
    """Its folder was moved, and at its path now is another one with a lock, but no socket yet."""
    daemon = start(checked=False)
    here, gone, new = daemon.path.parent, f"{folder}/gone", f"{folder}/new"
    os.mkdir(new, 0o700)
    lock = os.open(f"{new}/d.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.rename(here, gone)
        os.rename(new, here)
        daemon.log_path = Path(gone) / "daemon.log"
        settle(lambda: "event=server.restore error=" in daemon.log(), "an attempt to serve again")
        held = f"{here}/d.lock"
        settle(lambda: held not in descriptors(daemon.pid).values(), "it to let go of the lock")
        assert not daemon.path.exists()
        fcntl.flock(lock, fcntl.LOCK_UN)
        settle(daemon.path.exists, "the socket, once the lock is free")
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(lock)


@pytest.mark.slow
def test_a_move_further_up_is_noticed_too(folder):
    """Nobody tells of it, nor of a file system that is taken off: the daemon looks now and then."""
    os.makedirs(f"{folder}/up/down", 0o700)
    with Daemon(f"{folder}/up/down", "--idle-exit", "0") as daemon, daemon.connect():
        os.rename(f"{folder}/up", f"{folder}/gone")
        os.mkdir(f"{folder}/up", 0o700)
        settle(daemon.path.exists, "a new socket file")
        assert client_says(daemon.path) == "connected"
        daemon.log_path = Path(folder) / "gone/down/daemon.log"
