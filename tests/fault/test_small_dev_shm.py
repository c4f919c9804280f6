"""A /dev/shm of 64 MiB, as containers have it: an error of the call, never a bus error."""

import os
import re

import pytest
from daemon import settle
from helpers import Program
from namespaces import can, small_dev_shm

MiB = 1 << 20

pytestmark = pytest.mark.skipif(
    not can(small_dev_shm),
    reason="needs root and CAP_SYS_ADMIN: unshare(CLONE_NEWNS) and mount a tmpfs",
)


class Small:
    """A daemon that sees a small /dev/shm, which we see through its root folder."""

    def __init__(self, start, *options):
        self.daemon = start(*options, preexec_fn=small_dev_shm)
        self.shm = f"/proc/{self.daemon.pid}/root/dev/shm"

    def room(self) -> int:
        mount = os.statvfs(self.shm)
        return mount.f_bavail * mount.f_frsize

    def program(self, code):
        return Program(code, self.shm, socket=self.daemon.path)


def test_by_default_the_segments_are_memfds_and_the_log_says_so(start):
    small = Small(start)
    assert small.daemon.stats()["backing"] == 1
    assert re.search("event=store.(room|huge) .*backing=memfd", small.daemon.log())
    with small.program("""
tensor = cx.asarray(np.ones(100 << 20, np.uint8), copy=True)
assert np.asarray(tensor).sum() == 100 << 20
""") as program:  # fmt: skip
        program.finish()
    assert small.room() == 64 * MiB


def test_too_large_is_an_exception_with_numbers(start):
    small = Small(start, "--backing", "posix")
    with small.program("""
try:
    cx.asarray(np.ones(100 << 20, np.uint8), copy=True)
except MemoryError as error:
    assert isinstance(error, cx.OutOfMemory)
    assert str(100 << 20) in str(error) or "100" in str(error), error
    assert "/dev/shm" in str(error), error
else:
    raise AssertionError("100 MiB fitted into 64")
assert cx.asarray(np.ones(1 << 20, np.uint8), copy=True).is_shared
""") as program:  # fmt: skip
        program.finish()


def test_a_foreign_file_takes_the_room_and_gives_it_back(start):
    small = Small(start, "--backing", "posix")
    with small.program("""
foreign = os.path.join(sys.argv[1], "foreign")
def fill():
    with open(foreign, "wb") as file:
        try:
            while True: file.write(bytes(1 << 20)); file.flush()
        except OSError: pass
earlier = cx.asarray(np.zeros(8 << 20, np.uint8), copy=True)
try: fill()
except OSError: pass
try:
    cx.asarray(np.ones(16 << 20, np.uint8), copy=True)
except MemoryError as error:
    say("full:", error)
np.asarray(earlier)[:] = 1  # committed before: no page is missing
assert np.asarray(earlier).sum() == 8 << 20
os.unlink(foreign)
assert cx.asarray(np.ones(16 << 20, np.uint8), copy=True).is_shared
""") as program:  # fmt: skip
        assert "/dev/shm" in program.expect("full:")
        program.finish()


def test_full_to_the_last_page_and_one_given_back(start):
    small = Small(start, "--backing", "posix")
    with small.program("""
kept = []
try:
    while True:
        kept.append(cx.asarray(np.full(2 << 20, len(kept), np.uint8), copy=True))
except MemoryError:
    pass
assert len(kept) >= 16, len(kept)
for i, tensor in enumerate(kept):
    assert (np.asarray(tensor) == i).all()
    np.asarray(tensor)[:] = 255 - i
kept.pop(3).close()
kept.append(cx.asarray(np.zeros(2 << 20, np.uint8), copy=True))
assert (np.asarray(kept[-1]) == 0).all() and (np.asarray(kept[0]) == 255).all()
""") as program:  # fmt: skip
        program.finish()
    settle(lambda: small.room() == 64 * MiB, "the pages' return")


def test_capacity_is_no_larger_than_dev_shm_when_told_to_use_it(start):
    small = Small(start, "--backing", "posix")
    assert small.daemon.stats()["capacity_bytes"] <= 64 * MiB


def test_full_while_memory_is_being_committed_expired_tickets_make_room(start):
    small = Small(start, "--backing", "posix", "--ticket-lease", "0.001", "--reserve", "0")
    with small.daemon.connect() as client:
        with small.daemon.connect() as sender:
            sender.ticket(sender.alloc(24 * MiB)["storage"])
        small.daemon.settle(clients=1, holds=0, tickets=1)
        with open(f"{small.shm}/others", "wb") as others:
            os.posix_fallocate(others.fileno(), 0, small.room() - 4 * MiB)
        settle(lambda: small.daemon.stats()["uptime_ms"] > 100)  # the lease is over
        client.alloc(20 * MiB)
        assert client.stats()["tickets"] == 0
        os.unlink(f"{small.shm}/others")
