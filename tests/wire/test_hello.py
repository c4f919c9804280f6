"""The first message: who speaks which version, and what a peer of another one is told."""

import os
import struct

import pytest
import recorded
import wire
from wire import Refused
from wire_table import CONSTANTS, HEADER, Status

NEWEST = CONSTANTS["WIRE_VERSION_MAX"]


def test_the_hello_of_every_version_is_on_record():
    assert list(recorded.HELLO) == list(recorded.HELLO_REPLY) == list(range(1, NEWEST + 1))


@pytest.mark.parametrize("version", recorded.HELLO)
def test_a_recorded_hello_is_answered_as_it_was_or_told_to_upgrade(daemon, version):
    with daemon.connect(hello=False) as client:
        client.send_bytes(recorded.HELLO[version])
        if version < CONSTANTS["WIRE_VERSION_MIN"]:
            assert "upgrade the client" in client.receive().text
            return
        answer, (page,) = client.receive_bytes()
        os.close(page)
        layout = recorded.HELLO_REPLY[version]
        stats = client.stats()
        found = struct.unpack_from(layout, answer, HEADER.size)
        assert found[:5] == (version, 0, CONSTANTS["WIRE_LAYOUT"], 0, stats["boot_id"])
        assert found[6:] == (daemon.pid, 0)
        assert answer[HEADER.size + struct.calcsize(layout) :].decode(), "no version text"
        assert stats["clients"] == 1


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
    """A recorded HELLO with another range of versions, as another client would send it."""
    hello = bytearray(recorded.HELLO[1])
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
            client.send_bytes(recorded.HELLO[NEWEST])


def test_what_we_say_today_is_the_newest_on_record():
    assert wire.frame("HELLO", b"old", number=1, **wire.HELLO) == recorded.HELLO[NEWEST]


def test_every_hello_begins_alike():
    """What a daemon must find in that of any version, to say which side to upgrade."""
    for version, hello in recorded.HELLO.items():
        nbytes, opcode, nfds, request = struct.unpack_from("=IHHI", hello)
        assert (nbytes, opcode, nfds, request) == (len(hello), 1, 0, 1)
        magic, low, high = struct.unpack_from("=4sHH", hello, HEADER.size)
        assert magic == b"TCX1" and low <= version == high
