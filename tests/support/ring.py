"""A channel's control block, read and written by hand.

What proto/shm/ring_layout.h fixes is written down here a second time, so that these tests notice
when it moves. One process does one thing at a time here, so there is no lock to take.
"""

import mmap
import os
import struct

WORDS = 14
JOINED, SUBSCRIBED, LEFT = 1, 2, 3

FIELDS = {
    "magic": (0, "Q"),
    "layout": (8, "I"),
    "flags": (12, "I"),
    "capacity": (16, "I"),
    "buffers": (20, "I"),
    "slots": (24, "I"),
    "members": (28, "I"),
    "members_used": (40, "I"),
    "watched": (44, "I"),
    "lock": (128, "I"),
    "closed": (132, "I"),
    "head": (136, "Q"),
    "floor": (144, "Q"),
    "cursor": (152, "Q"),
    "data_event": (256, "I"),
    "room_event": (260, "I"),
    "free_event": (264, "I"),
}
MEMBER_FIELDS = {"client": (0, "I"), "state": (4, "I"), "cursor": (8, "Q")}
MEMBERS_AT, MEMBER = 384, 128
ENTRY, DESC = 16, 256


class Seat:
    """What a JOIN gave: the block, mapped, and one member of it."""

    def __init__(self, reply):
        self.channel, self.slot = reply["channel"], reply["slot"]
        self.grant, self.buffer_nbytes = reply["grant"], reply["buffer_nbytes"]
        self.shape = reply.fields
        (fd,) = reply.fds
        self.nbytes = os.fstat(fd).st_size
        self.memory = mmap.mmap(fd, self.nbytes)
        os.close(fd)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.memory.close()

    def __getitem__(self, name: str) -> int:
        at, kind = FIELDS[name]
        return struct.unpack_from("=" + kind, self.memory, at)[0]

    def __setitem__(self, name: str, value: int):
        at, kind = FIELDS[name]
        struct.pack_into("=" + kind, self.memory, at, value)

    def member(self, name: str, slot=None) -> int:
        at, kind = MEMBER_FIELDS[name]
        return struct.unpack_from("=" + kind, self.memory, self.member_at(slot) + at)[0]

    def set_member(self, name: str, value: int, slot=None):
        at, kind = MEMBER_FIELDS[name]
        struct.pack_into("=" + kind, self.memory, self.member_at(slot) + at, value)

    def member_at(self, slot=None) -> int:
        return MEMBERS_AT + MEMBER * (self.slot if slot is None else slot)

    def uses(self, slot=None) -> set[int]:
        """The buffers in a member's mask."""
        words = struct.unpack_from(f"={WORDS}Q", self.memory, self.member_at(slot) + 16)
        return {64 * w + b for w in range(WORDS) for b in range(64) if words[w] >> b & 1}

    def use(self, buffer: int, used=True, slot=None):
        at = self.member_at(slot) + 16 + buffer // 64 * 8
        (word,) = struct.unpack_from("=Q", self.memory, at)
        bit = 1 << buffer % 64
        struct.pack_into("=Q", self.memory, at, word | bit if used else word & ~bit)

    def name(self, buffer: int, ref: int):
        """What the buffer's description refers to."""
        at = MEMBERS_AT + MEMBER * self.shape["participants"] + ENTRY * self.shape["slots"]
        at += -at % 128
        struct.pack_into("=Q", self.memory, at + DESC * buffer, ref)

    def send(self, buffer: int):
        """A loaned buffer goes off."""
        head = self["head"]
        at = MEMBERS_AT + MEMBER * self.shape["participants"]
        at += ENTRY * (head & (self.shape["slots"] - 1))
        struct.pack_into("=QII", self.memory, at, head, buffer, 0)
        self["head"] = head + 1
        self.use(buffer, False)

    def take(self) -> int:
        """The next message of a queue: its buffer."""
        cursor = self["cursor"]
        at = MEMBERS_AT + MEMBER * self.shape["participants"]
        at += ENTRY * (cursor & (self.shape["slots"] - 1))
        number, buffer, _ = struct.unpack_from("=QII", self.memory, at)
        assert number == cursor
        self.use(buffer)
        self["cursor"] = cursor + 1
        return buffer
