"""The first message: who speaks which version, and what a peer of another one is told."""

import os
import struct

import pytest
import wire
from wire import Refused
from wire_table import CONSTANTS, STRUCTS, Status

# HELLO of version 1 as it went over the wire when it was new: program "old", request 1. It never
# changes, so that every daemon can tell every client what is wrong.
GOLDEN = bytes.fromhex(
    "33000000" "0100" "0000" "01000000" "00000000" "0000000000000000"  # header
    "54435831" "0100" "0100" "01000000" "00000000" "0000000000000000"  # struct wire_hello
    "6f6c64"
)  # fmt: skip


def test_the_golden_hello_is_still_understood(daemon):
    with daemon.connect(hello=False) as client:
        client.send_bytes(GOLDEN)
        reply = client.receive()
        assert reply.status is Status.OK
        assert reply["version"] == 1
        assert client.stats()["clients"] == 1


def test_the_reply_says_who_answers(daemon, client):
    stats = client.stats()
    assert client.welcome["boot_id"] == stats["boot_id"] != 0
    assert client.welcome["pid"] == stats["pid"] == daemon.pid
    assert client.welcome["layout"] == CONSTANTS["WIRE_LAYOUT"]
    assert client.welcome.tail.decode(), "no version text"


def test_the_reply_brings_a_life_page(daemon):
    with daemon.connect(hello=False) as client:
        reply = client.call("HELLO", b"test", **wire.HELLO)
        (page,) = reply.fds
        with open(page, "rb") as file:
            assert os.fstat(page).st_size > 0, "nothing to map"
            assert "memfd" in os.readlink(f"/proc/self/fd/{file.fileno()}")


def test_clients_get_ids_of_their_own(daemon):
    with daemon.connect() as one, daemon.connect() as two:
        assert one.welcome["client"] != two.welcome["client"]


@pytest.mark.parametrize(
    "low,high,newer",
    [(0, 0, "daemon"), (2, 9, "client"), (999, 999, "client"), (0xFFFF, 0xFFFF, "client")],
)
def test_another_version_is_told_which_side_to_upgrade(daemon, low, high, newer):
    """A golden HELLO with another range of versions, as an older or newer client would send it."""
    hello = bytearray(GOLDEN)
    struct.pack_into("=HH", hello, 28, low, high)
    older = {"daemon": "client", "client": "daemon"}[newer]
    with daemon.connect(hello=False) as client:
        client.send_bytes(bytes(hello))
        reply = client.receive()
        assert reply.status is Status.VERSION
        assert f"upgrade the {older}" in reply.text
        assert client.is_dropped()


def test_a_range_that_contains_our_version_is_welcome(daemon):
    with daemon.connect(hello=False) as client:
        assert client.hello(version_min=0, version_max=7)["version"] == 1


def test_another_layout_is_refused_with_a_text(daemon):
    with daemon.connect(hello=False) as client, pytest.raises(Refused) as refused:
        client.hello(layout=CONSTANTS["WIRE_LAYOUT"] + 1)
    assert refused.value.status is Status.VERSION
    assert "upgrade" in refused.value.text


def test_wrong_magic_is_a_breach(daemon, drops):
    with daemon.connect(hello=False) as client:
        client.send("HELLO", b"x", **(wire.HELLO | {"magic": 0x31323334}))
        drops.expect(client)


def test_unknown_features_are_ignored(daemon):
    with daemon.connect(hello=False) as client:
        reply = client.hello(features=2**64 - 1)
        assert reply["features"] != 2**64 - 1, "the daemon claims features it cannot know"


@pytest.mark.parametrize("program", ["", "x" * 255, "näme with blanks", "/usr/bin/../x"])
def test_any_clean_program_name_is_shown_as_it_is(daemon, program):
    with daemon.connect(program=program) as client:
        assert program in [c["program"] for c in client.clients()]


@pytest.mark.parametrize("program", [b"\x1b[31mred", b"two\nlines", b"\xff\xfe", b"nul\0"])
def test_a_program_name_never_brings_control_characters_to_others(daemon, client, program):
    with daemon.connect(hello=False) as dirty:
        dirty.send("HELLO", program, **wire.HELLO)
        dirty.is_dropped()  # or welcomed; what counts is what others see
        for seen in client.clients():
            assert seen["program"].isprintable()
    assert "\x1b" not in daemon.log()


def test_a_silent_connection_keeps_nobody_waiting(daemon):
    silent = [daemon.connect(hello=False) for _ in range(50)]
    try:
        with daemon.connect() as client:
            client.put("while/silent", b"abc")
            assert client.get("while/silent")["grant"]["nbytes"] == 3
            client.delete("while/silent")
            assert client.stats()["clients"] <= 51
    finally:
        for connection in silent:
            connection.close()


def test_a_client_that_leaves_before_the_reply_leaves_nothing(daemon):
    """The reply, with the life page's descriptor, is in flight or not yet sent."""
    for _ in range(20):
        with daemon.connect(hello=False) as client:
            client.send_bytes(GOLDEN)


def test_hello_has_its_promised_shape():
    layout = STRUCTS["wire_hello"]
    assert [name for name, _ in layout.fields][:4] == [
        "magic",
        "version_min",
        "version_max",
        "layout",
    ]
    assert wire.frame("HELLO", b"old", number=1, **wire.HELLO) == GOLDEN
