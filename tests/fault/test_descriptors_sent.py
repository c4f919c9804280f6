"""Descriptors that cannot be closed at once, or cannot be sent at all, are one client's trouble."""

import array
import contextlib
import ctypes
import os
import resource
import socket
import struct

import pytest
from daemon import settle
from wire_table import Status

LINGER_S = 3600


@contextlib.contextmanager
def lingering():
    """A TCP socket with bytes that nobody reads: its last close() waits an hour for that."""
    with socket.socket() as server, socket.socket() as ours:
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        ours.connect(server.getsockname())
        theirs, _ = server.accept()
        ours.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                ours.send(bytes(1 << 16))
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_S))
        with theirs:
            yield ours
            if ours.fileno() >= 0:
                ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))


@pytest.mark.parametrize("copies", [1, 2, 20])
def test_a_descriptor_whose_close_blocks_does_not_stop_the_daemon(start, copies):
    daemon = start(checked=False)
    with daemon.connect(hello=False) as peer, lingering() as file:
        with daemon.stopped():
            peer.send_bytes(bytes(24), [file.fileno()] * copies)
            os.close(file.detach())  # does not wait: one is on its way
        assert peer.is_dropped()
        with daemon.connect() as client:
            assert client.stats()["dropped"] == 1


def test_nor_do_many_keep_memory_from_others(start):
    """More than the daemon has threads that commit memory."""
    daemon = start(checked=False)
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(daemon.connect(hello=False)) for _ in range(8)]
        files = [stack.enter_context(lingering()) for _ in peers]
        with daemon.stopped():
            for peer, file in zip(peers, files, strict=True):
                peer.send_bytes(bytes(24), [file.fileno()])
                os.close(file.detach())
        assert all(peer.is_dropped() for peer in peers)
        with daemon.connect() as client:
            client.alloc(64 << 20)
        daemon.stop()


PR_CAPBSET_DROP, CAP_SYS_ADMIN, CAP_SYS_RESOURCE = 24, 21, 24
LIMIT = 100


def as_an_ordinary_user():
    """In the child: the kernel's limit on descriptors in flight holds for it, and is low."""
    libc = ctypes.CDLL(None)
    for capability in CAP_SYS_ADMIN, CAP_SYS_RESOURCE:
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))


@contextlib.contextmanager
def in_flight(count):
    """That many descriptors of this user are in sockets, sent and not received."""
    ours, theirs = socket.socketpair()
    with ours, theirs, open(os.devnull) as null:
        for _ in range(count // 100):
            rights = array.array("i", [null.fileno()] * 100)
            ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        yield


def expect_refusal(client, number):
    reply = client.receive()
    while reply.request != number:
        reply = client.receive()
    assert reply.status is Status.SYSTEM
    assert "descriptors" in reply.text and "repeat" in reply.text, reply.text
    assert not reply.fds


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user cannot go over its own limit")
@pytest.mark.parametrize("unread", [0, 4000], ids=["at once", "after unread replies"])
def test_a_descriptor_that_the_kernel_does_not_let_pass_is_an_error_of_that_call(start, unread):
    daemon = start(preexec_fn=as_an_ordinary_user)
    with daemon.connect() as observer, daemon.connect() as client:
        segment = client.alloc(100)["segment"]
        before = observer.stats()["requests"]
        for _ in range(unread):
            client.send("STATS")
        if unread:
            number = client.send("MAP", segment=segment)
            settle(lambda: observer.stats()["requests"] > before + unread, "the daemon to have all")
            with in_flight(500):
                expect_refusal(client, number)
        else:
            with in_flight(500):
                expect_refusal(client, client.send("MAP", segment=segment))
        _, fd = client.map(segment)
        os.close(fd)


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user cannot go over its own limit")
@pytest.mark.parametrize("unread", [0, 4000], ids=["at once", "after unread replies"])
def test_a_seat_comes_without_its_control_block_when_the_kernel_does_not_let_it_pass(start, unread):
    daemon = start(preexec_fn=as_an_ordinary_user)
    with daemon.connect() as observer, daemon.connect() as client:
        before = observer.stats()["requests"]
        for _ in range(unread):
            client.send("STATS")
        number = None
        if unread:
            number = client.send("JOIN", b"q", flags=4)
            settle(lambda: observer.stats()["requests"] > before + unread, "the daemon to have all")
        with in_flight(500):
            if not unread:
                number = client.send("JOIN", b"q", flags=4)
            reply = client.receive()
            while reply.request != number:
                reply = client.receive()
        assert (reply.status, reply.fds) == (Status.OK, [])
        client.send("LEAVE", channel=reply["channel"], slot=reply["slot"])
        again = client.join("q")
        os.close(again.fds[0])
        assert again["slot"] == reply["slot"]
