"""A client of the daemon that speaks the protocol by hand, right or wrong.

It needs no part of the product, so it also serves the other suites to look at the daemon from
outside.
"""

import array
import ctypes
import mmap
import os
import socket
import struct
from dataclasses import dataclass, field

from wire_table import (
    BY_OPCODE,
    CONSTANTS,
    DESC_HEAD,
    HEADER,
    MESSAGES,
    STATS,
    STRUCTS,
    Message,
    Status,
)

DEADLINE = float(os.environ.get("TEST_DEADLINE", "60"))  # seconds, against hangs only
ROOM = 256 * 1024

# Python's own mmap() keeps a second descriptor of the file open.
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
]  # fmt: skip
LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
MAP_FAILED = ctypes.c_void_p(-1).value

# What a client of today says of itself.
HELLO = {
    "magic": CONSTANTS["WIRE_MAGIC"],
    "version_min": CONSTANTS["WIRE_VERSION_MIN"],
    "version_max": CONSTANTS["WIRE_VERSION_MAX"],
    "layout": CONSTANTS["WIRE_LAYOUT"],
}

FLOAT32 = (2, 32, 1)
UINT8 = (1, 8, 1)
BOOL = (6, 8, 1)


class Refused(Exception):
    """A reply with a status other than OK."""

    def __init__(self, status: Status, text: str):
        super().__init__(f"{status.name}: {text}")
        self.status = status
        self.text = text


class Dropped(Exception):
    """The daemon closed the connection."""


@dataclass
class Reply:
    request: int
    status: Status
    destroyed: int
    text: str = ""  # of a failure
    fields: dict = field(default_factory=dict)
    tail: bytes = b""
    fds: list[int] = field(default_factory=list)

    def __getitem__(self, name: str):
        return self.fields[name]


def desc(
    shape=(), dtype=FLOAT32, *, strides=None, byte_offset=0, flags=0, device=1, index=0, ndim=None
):
    """An encoded description; C order unless `strides` says otherwise. `ndim` may lie."""
    if strides is None:
        strides, step = [0] * len(shape), 1
        for i in reversed(range(len(shape))):
            strides[i] = step
            step = min(step * max(shape[i], 1), 2**63 - 1)
    code, bits, lanes = dtype
    head = DESC_HEAD.pack(
        dtype={"code": code, "bits": bits, "lanes": lanes},
        device_type=device,
        device=index,
        flags=flags,
        ndim=len(shape) if ndim is None else ndim,
        byte_offset=byte_offset,
    )
    return head + struct.pack(f"={len(shape) + len(strides)}q", *shape, *strides)


def parse_desc(data: bytes) -> dict:
    head = DESC_HEAD.unpack(data)
    dims = struct.unpack(f"={2 * head['ndim']}q", data[DESC_HEAD.size :])
    return head | {"shape": dims[: head["ndim"]], "strides": dims[head["ndim"] :]}


def frame(message: Message | str, tail=b"", *, number=0, header=None, **fields) -> bytes:
    """A whole request with id `number`; `header` overrides fields of its header."""
    if isinstance(message, str):
        message = MESSAGES[message]
    body = message.request.pack(**fields) + tail
    head = {"nbytes": HEADER.size + len(body), "opcode": message.opcode, "request": number}
    return HEADER.pack(**head | (header or {})) + body


class Connection:
    """One SEQPACKET connection. `hello=False` leaves it fresh; `life_page=True` maps the life page,
    so that the daemon takes us for alive until this process ends."""

    def __init__(self, path, *, hello=True, program="wire-test", life_page=False):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(DEADLINE)
        self.numbers = 0
        self.keep_life_page = life_page
        try:
            self.socket.connect(str(path))
            if hello:
                self.welcome = self.hello(program=program)
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    # -------------------------------------------------------------------------------- any bytes

    def send_bytes(self, data: bytes, fds=()):
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self.socket.sendmsg([data], rights)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Dropped from error

    def receive_bytes(self) -> tuple[bytes, list[int]]:
        """One message and its descriptors, which the caller owns."""
        room = socket.CMSG_SPACE(64 * array.array("i").itemsize)
        try:
            data, ancillary, _, _ = self.socket.recvmsg(ROOM, room, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError as error:
            raise Dropped from error
        fds = array.array("i")
        for level, kind, payload in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
        if not data:
            raise Dropped
        return data, list(fds)

    def is_dropped(self) -> bool:
        """Waits until the daemon ends the connection; False when it answers instead."""
        try:
            _, fds = self.receive_bytes()
        except Dropped:
            return True
        for fd in fds:
            os.close(fd)
        return False

    # --------------------------------------------------------------------------------- messages

    def send(self, message: str, tail=b"", *, number=None, header=None, fds=(), **fields) -> int:
        """Sends a call or a note; returns the request id."""
        if number is None:
            self.numbers += MESSAGES[message].is_call
            number = self.numbers if MESSAGES[message].is_call else 0
        header = {"nfds": len(fds)} | (header or {})
        self.send_bytes(frame(message, tail, number=number, header=header, **fields), fds)
        return number

    def receive(self) -> Reply:
        """The next reply, whatever its status."""
        data, fds = self.receive_bytes()
        head = HEADER.unpack(data)
        assert head["nbytes"] == len(data), "the daemon's size is wrong"
        assert head["nfds"] == len(fds), "the daemon's descriptor count is wrong"
        body = data[HEADER.size :]
        reply = Reply(head["request"], Status(head["status"]), head["destroyed"], fds=fds)
        if reply.status is not Status.OK:
            reply.text = body.decode()
            return reply
        layout = BY_OPCODE[head["opcode"]].reply
        reply.fields, reply.tail = layout.unpack(body), body[layout.size :]
        return reply

    def call(self, message: str, tail=b"", **fields) -> Reply:
        """One call and its reply; Refused when that is not OK."""
        number = self.send(message, tail, **fields)
        reply = self.receive()
        assert reply.request == number, "the reply to another request"
        if reply.status is not Status.OK:
            raise Refused(reply.status, reply.text)
        return reply

    # ------------------------------------------------------------------------ calls in one line

    def hello(self, *, program="wire-test", **fields) -> Reply:
        """Says HELLO. Unless it is to be kept, the life page is let go, as by one who ends."""
        reply = self.call("HELLO", program.encode(), **(HELLO | fields))
        for fd in reply.fds:
            if self.keep_life_page:
                self.life_page = mmap.mmap(fd, 4096)
            os.close(fd)
        return reply

    def alloc(self, nbytes: int, device=0) -> dict:
        kind = 2 if device else 1
        return self.call("ALLOC", nbytes=nbytes, device_type=kind, device=device)["grant"]

    def devices(self) -> list[dict]:
        return unpack_all("wire_device", self.call("DEVICES").tail)

    def unmap(self, *segments: int):
        self.send("UNMAP", ids(segments))

    def map(self, segment: int) -> tuple[int, int]:
        """Size and descriptor (the caller's) of a segment."""
        reply = self.call("MAP", segment=segment)
        return reply["nbytes"], reply.fds[0]

    def publish(self, name, storage: int, description: bytes, *, flags=0, ttl_ms=0) -> int:
        name = as_bytes(name)
        return self.call(
            "PUBLISH",
            description + name,
            storage=storage,
            ttl_ms=ttl_ms,
            flags=flags,
            desc_nbytes=len(description),
            name_nbytes=len(name),
        )["version"]

    def put(self, name, data: bytes, description=None, *, flags=0, ttl_ms=0) -> Reply:
        name = as_bytes(name)
        description = desc((len(data),), UINT8) if description is None else description
        return self.call(
            "PUT", description + name + data, **put_fields(name, data, description, flags, ttl_ms)
        )

    def get(self, name, *, newer_than=0, flags=0) -> Reply:
        return self.call("GET", as_bytes(name), newer_than=newer_than, flags=flags)

    def delete(self, name) -> int:
        return self.call("DELETE", as_bytes(name))["version"]

    def release(self, *returned: tuple[int, int]):
        """Gives back (storage, grants) pairs."""
        pairs = [STRUCTS["wire_returned"].pack(storage=s, grants=n) for s, n in returned]
        self.send("RELEASE", b"".join(pairs))

    def hold(self, *storages: int) -> list[dict]:
        reply = self.call("HOLD", ids(storages))
        return unpack_all("wire_grant", reply.tail)

    def attach(self, storage: int, *older: int):
        self.call("ATTACH", ids(older), storage=storage)

    def fork(self) -> "ForkPage":
        """What a client does before it forks. Who has the page stands for the child."""
        page = ForkPage()
        self.send("FORK", fds=[page.fd])
        os.close(page.fd)
        return page

    def ticket(self, storage: int) -> int:
        return self.call("TICKET", storage=storage)["ticket"]

    def redeem(self, ticket: int, storage: int) -> dict:
        return self.call("REDEEM", ticket=ticket, storage=storage)["grant"]

    def stats(self) -> dict[str, int]:
        reply = self.call("STATS")
        return {name: reply[name] for name in STATS}

    def names(self, prefix=b"") -> list[bytes]:
        found: list[bytes] = []
        more = 1
        while more:
            after = found[-1] if found else b""
            reply = self.call(
                "LIST",
                as_bytes(prefix) + after,
                prefix_nbytes=len(as_bytes(prefix)),
                after_nbytes=len(after),
            )
            more, rest = reply["more"], reply.tail
            for _ in range(reply["count"]):
                entry = STRUCTS["wire_entry"].unpack(rest)
                start = STRUCTS["wire_entry"].size + entry["desc_nbytes"]
                end = start + entry["name_nbytes"]
                found.append(rest[start:end])
                rest = rest[(end + 7) // 8 * 8 :]
        return found

    def clients(self) -> list[dict]:
        found: list[dict] = []
        more = 1
        while more:
            reply = self.call("CLIENTS", after=found[-1]["client"] if found else 0)
            more, rest = reply["more"], reply.tail
            for _ in range(reply["count"]):
                client = STRUCTS["wire_client"].unpack(rest)
                end = STRUCTS["wire_client"].size + client["program_nbytes"]
                client["program"] = rest[STRUCTS["wire_client"].size : end].decode()
                found.append(client)
                rest = rest[(end + 7) // 8 * 8 :]
        return found

    # ---------------------------------------------------------------------------------- channels

    def join(self, name=b"", **fields) -> Reply:
        """A seat at a queue, made if need be; the descriptor in the reply is the caller's."""
        flags = fields.pop("flags", CONSTANTS["JOIN_CREATE"])
        return self.call("JOIN", as_bytes(name), flags=flags, **fields)

    def refer(self, channel: int, slot: int, buffer: int, *storages: int) -> int:
        reply = self.call("REFER", ids(storages), channel=channel, slot=slot, buffer=buffer)
        return reply["ref"]

    def fetch(self, channel: int, slot: int, buffer: int, ref: int) -> list[dict]:
        reply = self.call("FETCH", channel=channel, slot=slot, buffer=buffer, ref=ref)
        return unpack_all("wire_grant", reply.tail)

    def channels(self) -> list[dict]:
        head, seat = STRUCTS["wire_channel"], STRUCTS["wire_participant"]
        found: list[dict] = []
        more = 1
        while more:
            reply = self.call("CHANNELS", after=found[-1]["channel"] if found else 0)
            more, rest = reply["more"], reply.tail
            for _ in range(reply["count"]):
                channel = head.unpack(rest)
                end = head.size + channel["name_nbytes"]
                channel["name"] = rest[head.size : end].decode()
                start = (end + 7) // 8 * 8
                end = start + channel["count"] * seat.size
                channel["seats"] = unpack_all("wire_participant", rest[start:end])
                found.append(channel)
                rest = rest[end:]
        return found


class ForkPage:
    """A fork page that this process has mapped until close(); `fd` is the caller's."""

    def __init__(self):
        self.fd = os.memfd_create("fork", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, 4096)
        self.address = LIBC.mmap(None, 4096, mmap.PROT_READ, mmap.MAP_SHARED, self.fd, 0)
        assert self.address != MAP_FAILED

    def close(self):
        """As when the last process that has it ends."""
        LIBC.munmap(self.address, 4096)


def as_bytes(name) -> bytes:
    return name.encode() if isinstance(name, str) else bytes(name)


def put_fields(name: bytes, data: bytes, description: bytes, flags=0, ttl_ms=0) -> dict:
    return {
        "ttl_ms": ttl_ms,
        "flags": flags,
        "desc_nbytes": len(description),
        "name_nbytes": len(name),
        "data_nbytes": len(data),
    }


def ids(values) -> bytes:
    return struct.pack(f"={len(values)}Q", *values)


def unpack_all(name: str, data: bytes) -> list[dict]:
    layout = STRUCTS[name]
    return [layout.unpack(data[i:]) for i in range(0, len(data), layout.size)]
