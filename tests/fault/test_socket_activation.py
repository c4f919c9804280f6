"""A service manager binds the socket, starts the daemon with it, and is told when it serves."""

import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import steps
import wire
from daemon import DEADLINE, PROGRAM, bare_environment, descriptors, settle
from helpers import Program
from helpers import run as run_program

# What a service manager does between fork and exec.
PASS = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_PID": str(os.getpid() + int(sys.argv[2])), "LISTEN_FDS": sys.argv[3]}
os.execv(sys.argv[4], sys.argv[4:])
"""


def command(fd: int, *options, pid_off=0, count="1", program=PROGRAM) -> dict:
    """The arguments of subprocess functions that start tensorcxd with that descriptor."""
    words = [fd, pid_off, count, program, *options]
    return {
        "args": [sys.executable, "-c", PASS, *map(str, words)],
        "pass_fds": [fd],
        "stdin": subprocess.DEVNULL,
        "env": bare_environment(),
    }


class Service:
    """The stand-in: a bound socket that outlives the daemons that serve it."""

    def __init__(self, folder):
        self.path = Path(folder) / "d.sock"
        self.log_path = Path(folder) / "daemon.log"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.bind(os.fspath(self.path))
        self.socket.listen()
        self.inode = self.path.stat().st_ino
        self.process = None

    def start(self, *options, program=PROGRAM, **environment):
        arguments = command(self.socket.fileno(), *options, program=program)
        arguments["env"] |= environment
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(**arguments, stdout=log, stderr=log)
        return self.process

    def connect(self) -> wire.Connection:
        return wire.Connection(self.path)

    def stop(self):
        self.process.terminate()
        assert self.process.wait(DEADLINE) == 0, self.log_path.read_text()

    def is_whole(self) -> bool:
        return self.path.stat().st_ino == self.inode


@pytest.fixture
def service(folder):
    service = Service(folder)
    with contextlib.closing(service.socket):
        yield service
        if service.process and service.process.poll() is None:
            service.process.kill()
            service.process.wait()


def test_clients_share_through_a_passed_socket(service):
    service.start()
    code = """
    cx.put("x", np.arange(10))
    assert cx.get("x").numpy().sum() == 45
    assert cx.stats()["pid"] == int(sys.argv[1])
    """
    run_program(code, service.process.pid, socket=service.path)
    assert f"event=server.start pid={service.process.pid} " in service.log_path.read_text()
    assert f"socket={service.path} " in service.log_path.read_text()
    service.stop()


@pytest.mark.parametrize("step", steps.OF_PASSED_SOCKET)
def test_a_client_that_has_come_is_served_by_the_next_when_one_is_killed(service, folder, step):
    plan = steps.Plan(folder, "daemon")
    plan.begin(step)
    with steps.Witness(service.path, 1) as witness:
        witness.tell("work")
        service.start(program=steps.PROGRAM, **plan.environment)
        assert service.process.wait(DEADLINE) == -signal.SIGKILL
        service.start(program=steps.PROGRAM)
        assert witness.answer() == (0, "")
        witness.finish()
    service.stop()


def test_the_daemon_and_not_the_manager_is_the_peer_that_clients_see(service):
    service.start()
    service.connect().close()  # answered: so the daemon has the socket
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(os.fspath(service.path))
        size = struct.calcsize("3i")
        peer = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    assert struct.unpack("3i", peer) == (service.process.pid, os.geteuid(), os.getegid())
    service.stop()


def test_a_client_that_comes_while_nobody_serves_is_served_by_the_next(service):
    service.start()
    service.connect().close()
    service.stop()
    assert service.is_whole()
    code = """
    say("connecting")
    cx.put("x", np.ones(3))
    say("served")
    """
    with Program(code, socket=service.path) as program:
        program.expect("connecting")
        service.start()
        program.expect("served")
        program.finish()
    service.stop()
    assert service.is_whole()
    assert set(os.listdir(service.path.parent)) == {"d.sock", "daemon.log"}, "no lock file"


def test_an_idle_daemon_ends_and_the_socket_stays(service):
    service.start("--idle-exit", "0.05")
    assert service.process.wait(DEADLINE) == 0
    assert 'reason="idle"' in service.log_path.read_text()
    assert service.is_whole()
    service.start()
    service.connect().close()
    service.stop()


def test_a_vanished_socket_is_the_managers_to_make_again(service):
    service.start("--warm-seconds", "0")
    with service.connect() as client:
        watched = list(descriptors(service.process.pid).values()).count("anon_inode:inotify")
        assert watched == 1, "the life pages, and not the folder"
        service.path.unlink()
        client.put("x", b"still served")
        client.delete("x")
    service.stop()
    assert not service.path.exists()
    assert "event=server.restore" not in service.log_path.read_text()


def test_a_second_daemon_at_that_path_is_refused(service):
    service.start()
    service.connect().close()  # answered: so it serves
    done = subprocess.run(
        [PROGRAM, "--socket", service.path], capture_output=True, text=True, timeout=DEADLINE,
        env=bare_environment(), check=False,
    )  # fmt: skip
    assert done.returncode == 1 and f"serves {service.path} already" in done.stderr
    assert service.is_whole()
    service.stop()


def serves(path):
    """Between bind() and listen() the socket is there and refuses."""
    try:
        wire.Connection(path).close()
    except OSError:
        return False
    return True


def test_the_variables_are_read_only_by_the_process_they_are_for(service):
    """Otherwise a client under a service manager could not start a daemon of its own."""
    own = service.path.parent / "own.sock"
    arguments = command(service.socket.fileno(), "--socket", own, pid_off=1)
    with open(service.log_path, "ab") as log:
        service.process = subprocess.Popen(**arguments, stdout=log, stderr=log)
    settle(lambda: serves(own), "a socket of its own")
    service.stop()


# ------------------------------------------------------------------------------------------ refused


def refused(fd, *options, says, **how):
    done = subprocess.run(
        **command(fd, *options, **how), capture_output=True, text=True, timeout=DEADLINE,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert says in done.stderr
    # A daemon that could not start logs why, and says it.
    assert all("event=" in line for line in done.stderr.splitlines()[:-1]), done.stderr


def unix(kind, path, listens=True) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, kind)
    made.bind(path)
    if listens:
        made.listen()
    return made


def tcp(folder):
    made = socket.socket()
    made.listen()
    return made


WRONG = {
    "stream": lambda folder: unix(socket.SOCK_STREAM, f"{folder}/x"),
    "datagram": lambda folder: unix(socket.SOCK_DGRAM, f"{folder}/x", False),
    "not listening": lambda folder: unix(socket.SOCK_SEQPACKET, f"{folder}/x", False),
    "abstract": lambda folder: unix(socket.SOCK_SEQPACKET, f"\0{folder}/x"),
    "connected": lambda folder: socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)[0],
    "TCP": tcp,
    "file": lambda folder: os.fdopen(os.open(folder, os.O_TMPFILE | os.O_RDWR)),
}


@pytest.mark.parametrize("kind", WRONG)
def test_another_kind_of_descriptor_is_refused(folder, kind):
    with WRONG[kind](folder) as wrong:
        refused(wrong.fileno(), says="is not a listening SOCK_SEQPACKET Unix socket")


@pytest.mark.parametrize("count", ["0", "2", "", "x", "99999999999999999999"])
def test_it_serves_one_socket(service, count):
    refused(service.socket.fileno(), count=count, says=f"LISTEN_FDS={count}: ")


@pytest.mark.parametrize("option", ["--background", "--ready-fd=3"])
def test_an_option_that_would_lose_the_socket_is_refused(service, option):
    refused(service.socket.fileno(), option, says=option)


# -------------------------------------------------------------------------------------------- ready


@pytest.mark.parametrize("is_abstract", [False, True], ids=["path", "abstract"])
@pytest.mark.parametrize("passed", [True, False], ids=["passed", "own socket"])
def test_the_manager_is_told_once_clients_are_served(service, is_abstract, passed):
    name = f"{service.path.parent}/notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name if is_abstract else name)
        manager.settimeout(DEADLINE)
        told = {"NOTIFY_SOCKET": "@" + name if is_abstract else name}
        path = service.path
        if passed:
            service.start(**told)
        else:
            path = path.parent / "own.sock"
            environment = bare_environment(**told)
            service.process = subprocess.Popen([PROGRAM, "--socket", path], env=environment)
        assert manager.recv(100) == b"READY=1"
    with wire.Connection(path) as client:
        client.put("x", b"y")
    assert service.process.poll() is None
    service.stop() if passed else service.process.terminate()


def test_a_daemon_that_a_client_starts_does_not_speak_for_the_clients_service(folder):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"{folder}/notify")
        environment = {"TENSORCX_AUTOSTART": "1", "NOTIFY_SOCKET": f"{folder}/notify"}
        code = "cx.put('x', np.ones(3)); cx.connect().stop()"  # returns after the daemon's end
        run_program(code, socket=f"{folder}/d.sock", env=environment)
        with pytest.raises(BlockingIOError):
            manager.recv(100, socket.MSG_DONTWAIT)


@pytest.mark.parametrize("name", ["/no/such/socket", "relative", "/" + "x" * 200, "vsock:2:1"])
def test_a_manager_that_cannot_be_told_is_only_logged(service, name):
    service.start(NOTIFY_SOCKET=name)
    service.connect().close()
    service.stop()
    assert "event=server.notify error=" in service.log_path.read_text()


# ------------------------------------------------------------------------------------- the real one


@pytest.mark.skipif(
    not shutil.which("systemd-socket-activate"), reason="needs the program systemd-socket-activate"
)
def test_systemd_socket_activate(folder):
    path = Path(folder) / "d.sock"
    words = ["systemd-socket-activate", "--seqpacket", "-l", path, PROGRAM]
    with open(f"{folder}/log", "wb") as log:
        process = subprocess.Popen(words, env=bare_environment(), stdout=log, stderr=log)
    try:
        settle(path.exists, "the socket")
        code = "cx.put('x', np.ones(3)); assert cx.stats()['pid'] == int(sys.argv[1])"
        run_program(code, process.pid, socket=path)
        process.terminate()
        assert process.wait(DEADLINE) == 0, Path(f"{folder}/log").read_text()
        assert path.exists()
    finally:
        process.kill()
        process.wait()
