"""First inputs for the targets of libFuzzer, made from the protocol's own tables: seeds.py FOLDER.

Each input does something that is right, in the form that its target's head describes, so that what
the fuzzer changes in it goes wrong deep inside. What it once found that way is in corpus/, a line
of base64 each; seeds.py --keep FOLDER writes that.
"""

import base64
import itertools
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import wire
from wire_table import MESSAGES, STRUCTS

ORDER = sorted(MESSAGES, key=lambda name: MESSAGES[name].opcode)  # as in messages.def
MESSAGE, BYTES, DESCRIPTORS, SCRIBBLE, TURN_DEAF, HANG_UP = range(6)

ON_DEVICE = 1 << 56  # of a segment's id, on the first one


def sized(data: bytes) -> bytes:
    return struct.pack("=H", len(data)) + data


# ----------------------------------------------------------------------------------- fuzz_daemon


def step(data: bytes, *, kind: int = MESSAGE, client: int = 0) -> bytes:
    return bytes([kind, client]) + sized(data)


def body(message: str, tail: bytes = b"", **fields: object) -> bytes:
    return bytes([ORDER.index(message)]) + MESSAGES[message].request.pack(**fields) + tail


def request(message: str, tail: bytes = b"", *, client: int = 0, **fields: object) -> bytes:
    return step(body(message, tail, **fields), client=client)


def put(name: bytes, data: bytes) -> bytes:
    description = wire.desc((len(data),), wire.UINT8)
    fields = wire.put_fields(name, data, description)
    return request("PUT", description + name + data, **fields)


def daemon() -> Iterator[bytes]:
    alloc = request("ALLOC", nbytes=5000, device_type=1)
    join = request("JOIN", b"q", flags=4, buffer_nbytes=64)
    description = wire.desc((10,))
    publish = request(
        "PUBLISH", description + b"n", storage=1, desc_nbytes=len(description), name_nbytes=1
    )
    release = STRUCTS["wire_returned"].pack(storage=1, grants=1)
    two = wire.ids([1, 2])
    yield alloc + request("MAP", segment=1) + publish + request("GET", b"n", client=1)
    yield put(b"n", b"abc") + request("STAT", b"n") + request("DELETE", b"n")
    yield request("GET", b"n", flags=1, client=1) + put(b"n", b"abc")
    yield request("GET", b"n", flags=1) + request("CANCEL", request=2)
    yield request("GET", b"n", flags=1) + step(b"", kind=HANG_UP) + put(b"n", b"abc")
    yield (
        put(b"a", b"1") + put(b"b", b"2") + request("LIST", b"ab", prefix_nbytes=1, after_nbytes=1)
    )
    yield alloc * 2 + request("HOLD", two) + request("RELEASE", release * 2)
    yield alloc * 2 + request("ATTACH", wire.ids([1]), storage=2) + request("RELEASE", release)
    yield alloc + request("TICKET", storage=1) + request("REDEEM", ticket=1, storage=1, client=1)
    yield alloc + request("ALIVE", two) + request("UNMAP", two) + request("DEVICES")
    for nbytes in 5000, 3 << 20:
        there = request("DEVICES") + request("ALLOC", nbytes=nbytes, device_type=2, device=1) * 2
        yield there + request("MAP", segment=ON_DEVICE + 1) * 2 + request("TICKET", storage=1)
        yield there + request("RELEASE", release) + request("UNMAP", wire.ids([ON_DEVICE + 1]))
        yield there + request("MAP", segment=ON_DEVICE + 1) + step(b"", kind=HANG_UP) + there
        yield there + publish + request("GET", b"n", client=1) + step(b"", kind=HANG_UP, client=1)
    yield request("JOIN", b"q", flags=4, buffer_nbytes=64, device=1) + request("CHANNELS")
    page = step(bytes([1, 0]) + body("FORK"), kind=DESCRIPTORS)
    yield alloc + page + request("RELEASE", release) + step(b"", kind=HANG_UP)
    yield join + join + request("BUFFERS", channel=1) + request("CHANNELS")
    loaned = step(struct.pack("=HI", 100, 1), kind=SCRIBBLE)  # our mask: buffer 0
    refer = request("REFER", wire.ids([2]), channel=1, slot=0, buffer=0)
    fetch = request("FETCH", channel=1, ref=1, slot=0, buffer=0)
    done = request("DONE", channel=1, buffer=0) + request("LEAVE", channel=1, slot=0)
    yield join + alloc + loaned + refer + fetch + done
    yield join + alloc + loaned + refer + step(b"", kind=HANG_UP) + request("CHANNELS", client=1)
    standing = request("REFER", wire.ids([2]), channel=1, slot=0, buffer=2**32 - 1)
    few = request(
        "JOIN", b"q", flags=4, buffer_nbytes=64, participants=4
    )  # its descriptions in reach
    named = step(struct.pack("=HIHIHI", 100, 1, 256, 1, 288, 1), kind=SCRIBBLE)  # by reference 1
    yield few + alloc + standing * 2 + named + fetch + request("RELEASE", release) + done
    yield join + request("DELETE", b"q") + request("JOIN", channel=1, client=1)
    large = request("ALLOC", nbytes=1_500_000, device_type=1)
    yield large * 2 + request("RELEASE", release) + large
    yield large + request("ALLOC", nbytes=2**62, device_type=1)
    deaf = step(b"", kind=TURN_DEAF)
    yield put(b"n", b"abc") + deaf + request("LIST") * 40 + request("MAP", segment=1) * 3 + deaf
    words = b"".join(struct.pack("=HI", at, 3) for at in (32, 34, 36, 40, 96, 100))
    yield join + step(words, kind=SCRIBBLE) + request("RETURN", channel=1) + request("CHANNELS")
    yield request("STATS") + request("CLIENTS") + request("STOP")
    yield step(wire.frame("HELLO", b"fuzz", number=1, **wire.HELLO), kind=BYTES)


def daemons() -> Iterator[bytes]:
    """With each way to own memory on a device."""
    for kind in b"\0", b"\2":
        yield from (kind + steps for steps in daemon())


# ------------------------------------------------------------------------------------ fuzz_reply


def reply(
    message: str, tail: bytes = b"", *, fd: int = 0, status: int = 0, **fields: object
) -> bytes:
    layout = MESSAGES[message].reply
    data = (layout.pack(**fields) if status == 0 else b"") + tail
    return bytes([0, MESSAGES[message].opcode, status, fd]) + sized(data)


def calls(*kinds: str, early: int = 99) -> bytes:
    known = ["get", "put", "put_bundle", "pass_ticket", "redeem", "queue", "list", "stat"]
    known += ["clients", "channels", "topic", "wait", "device", "new", "pass_on", "stats"]
    return bytes(known.index(kind) + 1 for kind in kinds).ljust(6, b"\0") + bytes([early])


def bundle_index() -> bytes:
    """Two tensors, as client/index.h has them."""
    found = struct.pack("=IIII", 0x42584354, 2, 0, 0)
    for key in b"a", b"weight":
        description = wire.desc((2, 3), byte_offset=1024)
        keys = struct.pack("=H", len(key)) + key + b"\0"
        found += struct.pack("=IIHHI", 0, len(keys), len(description), 1, 0) + description + keys
        found += bytes(-len(found) % 8)
    return found


GRANT = {"storage": 1, "nbytes": 4096, "segment": 1, "offset": 0}
SHAPE = {"capacity": 8, "buffers": 16, "participants": 4, "slots": 8, "buffer_nbytes": 256}
SEGMENT = reply("MAP", fd=1, nbytes=65536, segment=1)
DESCRIPTION = wire.desc((2, 3))
GOT = reply("GET", DESCRIPTION, grant=GRANT, version=1) + SEGMENT
NOTHING = sized(b"")


def replies() -> Iterator[bytes]:
    yield calls("get") + NOTHING + GOT
    yield calls("get", "get") + NOTHING + GOT + reply("GET", DESCRIPTION, grant=GRANT, version=2)
    bundle = wire.desc((len(bundle_index()),), wire.UINT8, flags=2)
    bundled = reply("GET", bundle, grant=GRANT, version=1) + SEGMENT
    yield calls("get") + sized(bundle_index()) + bundled
    ticket = reply("TICKET", ticket=7) + reply("REDEEM", grant=GRANT)
    yield calls("pass_ticket") + NOTHING + GOT + ticket
    put = reply("PUT", grant=GRANT | {"nbytes": 24})
    yield calls("put", "put_bundle") + NOTHING + put + SEGMENT
    entry = {"desc_nbytes": len(DESCRIPTION), "name_nbytes": 4}
    page = STRUCTS["wire_entry"].pack(**entry) + DESCRIPTION + b"name" + bytes(4)
    listed = reply("LIST", page, count=1) + reply("STAT", DESCRIPTION, entry=entry)
    yield calls("list", "stat") + NOTHING + listed
    client = STRUCTS["wire_client"].pack(client=3, program_nbytes=4) + b"fuzz" + bytes(4)
    yield calls("clients", "stats") + NOTHING + reply("CLIENTS", client, count=1) + reply("STATS")
    channel = STRUCTS["wire_channel"].pack(channel=1, name_nbytes=1, count=1) + b"q" + bytes(7)
    seat = STRUCTS["wire_participant"].pack(client=1)
    yield calls("channels") + NOTHING + reply("CHANNELS", channel + seat, count=1)
    yield calls("wait") + NOTHING + GOT
    made = reply("ALLOC", grant=GRANT | {"nbytes": 24})
    yield calls("new") + NOTHING + made + SEGMENT + reply("DELETE")
    for late in "get", "put", "pass_ticket", "queue", "wait":
        yield calls(late, "stats", "stats", early=0) + NOTHING + GOT + reply("STATS") * 2
    yield calls("get") + NOTHING + reply("GET", b"no tensor is named so", status=1)


def replies_of_channels() -> Iterator[bytes]:
    buffers = SEGMENT + reply("BUFFERS", grant=GRANT, buffer_nbytes=256)
    for flags, kind in (0, "queue"), (1, "topic"):
        seat = {"channel": 1, "flags": flags, "fd": 3 + flags, **SHAPE}
        joined = reply("JOIN", grant=GRANT, **seat) + SEGMENT
        yield calls(kind) + NOTHING + joined
        yield calls(kind) + sized(bundle_index()) + reply("JOIN", slot=1, **seat) * 2 + buffers * 2
        fetched = reply("FETCH", STRUCTS["wire_grant"].pack(**GRANT | {"storage": 2}))
        yield calls(kind) + NOTHING + joined + fetched
    shared = reply("PUBLISH", version=2) + reply("ALLOC", b"no room", status=4)
    joined = reply("JOIN", grant=GRANT, channel=1, fd=3, **SHAPE) + SEGMENT
    referred = reply("REFER", ref=1) * 2
    yield (calls("pass_on", early=8) + NOTHING + GOT + shared + joined + referred + reply("STATS"))


def replies_of_devices() -> Iterator[bytes]:
    device = {"device": 1, "uuid": bytes(15) + b"\1", "name": b"fake"}
    known, by_handle = (
        reply("DEVICES", STRUCTS["wire_device"].pack(mapping=mapping, **device), count=1)
        for mapping in (1, 2)
    )
    there = GRANT | {"segment": ON_DEVICE + 1}
    on_device = {"segment": ON_DEVICE + 1, "nbytes": 2 << 20, "device": 1}
    mapped = reply("MAP", fd=5, mapping=1, **on_device)
    handle = reply("MAP", bytes(64), mapping=2, **on_device)
    description = wire.desc((2, 3), device=2, index=1)
    answer = reply("GET", description, grant=there, version=1)
    yield calls("get") + NOTHING + answer + known + mapped
    yield calls("get") + NOTHING + answer + mapped + known
    yield calls("get") + NOTHING + answer + by_handle + handle
    made = reply("ALLOC", grant=there | {"nbytes": 24})
    yield calls("device") + NOTHING + known + made + mapped + known
    yield calls("device", "get", early=2) + NOTHING + known + made + mapped + answer
    joined = reply("JOIN", grant=there, channel=1, fd=3, **SHAPE)
    yield calls("queue") + NOTHING + joined + known + mapped


# ----------------------------------------------------------------------------------- the others


def index() -> Iterator[bytes]:
    yield b"\1" + bundle_index()
    yield b"\0" + struct.pack("=Q", 4096) + wire.desc((2, 3), byte_offset=64)
    yield b"\0" + struct.pack("=Q", 4096) + wire.desc((2, 0, 3), strides=(-1, 2**62, 1))


def ring() -> Iterator[bytes]:
    steps = bytes([5, 3, 3, 4, 6, 7, 3, 20, 8, 3, 4])
    for shape in range(4):
        yield bytes([shape]) + steps
        yield bytes([shape]) + steps + struct.pack("=BHI", 0, 34, 5) + steps
    yield bytes([0, 3, 2, 0]) + bytes(16) + wire.desc((2, 3)).ljust(240, b"\0") + bytes([4])


def dlpack() -> Iterator[bytes]:
    for copy, versioned, layout in itertools.product(range(3), range(2), (0, 0x40, 0x50, 0x08)):
        yield bytes([copy, versioned, 2, layout, 2, 3, 3, 1]) + bytes(20)


def text() -> Iterator[bytes]:
    yield from (
        b"\0frames/left",
        b"\0\xc3\xa4\xf0\x9f\x8e\x89",
        b"\0a\nb",
        b"\1/run/user/1/t/d.sock",
    )
    yield from (b"\1" + b"d" * 107, b"\2" + b"1000,7", b"\2" + b"1," * 40, b"\3--capacity\n64G")
    yield b"\3--socket=/x\n--backing=memfd\n--warm-seconds=0.5\n--allow-uid=1,2\n--background"


TARGETS = {
    "daemon": daemons,
    "reply": lambda: itertools.chain(replies(), replies_of_channels(), replies_of_devices()),
    "index": index,
    "ring": ring,
    "dlpack": dlpack,
    "text": text,
}


CORPUS = Path(__file__).with_name("corpus")


def found(target: str) -> list[bytes]:
    file = CORPUS / f"{target}.txt"
    return [base64.b64decode(line) for line in file.read_text().split()] if file.exists() else []


def write(folder: Path) -> None:
    for name, inputs in TARGETS.items():
        target = f"fuzz_{name}"
        place = folder / target
        place.mkdir(parents=True, exist_ok=True)
        for number, data in enumerate([*inputs(), *found(target)]):
            (place / f"seed-{number}").write_bytes(data)


def keep(folder: Path) -> None:
    CORPUS.mkdir(exist_ok=True)
    for name in TARGETS:
        place = folder / f"fuzz_{name}"
        lines = sorted(base64.b64encode(file.read_bytes()) for file in place.iterdir())
        (CORPUS / f"{place.name}.txt").write_bytes(b"\n".join(lines) + b"\n")


if __name__ == "__main__":
    keep(Path(sys.argv[2])) if sys.argv[1] == "--keep" else write(Path(sys.argv[1]))
