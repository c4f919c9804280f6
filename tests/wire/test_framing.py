"""What is no message of the protocol costs its sender the connection, and nobody else anything."""

import contextlib
import os
import random

import pytest
import wire
from wire_table import BY_OPCODE, CONSTANTS, HEADER, MESSAGES

READY = [m for m in MESSAGES.values() if m.state == "READY"]
CALLS = [m for m in READY if m.is_call]
EVERY = pytest.mark.parametrize("message", READY, ids=str)


def valid(message, **changes):
    """A request with the right size and an empty body; `changes` go to its header."""
    return wire.frame(message, number=1 if message.is_call else 0, header=changes)


@EVERY
def test_a_body_one_byte_short_is_a_breach(client, drops, message):
    data = valid(message, nbytes=HEADER.size + message.request.size - 1)
    client.send_bytes(data[:-1])
    drops.expect(client)


@EVERY
def test_a_header_without_body_is_a_breach(client, drops, message):
    client.send_bytes(valid(message, nbytes=HEADER.size)[: HEADER.size])
    drops.expect(client)


@EVERY
def test_a_tail_one_byte_too_long_is_a_breach(client, drops, message):
    tail = bytes(message.request_tail + 1)
    client.send_bytes(wire.frame(message, tail, number=int(message.is_call)))
    drops.expect(client)


@EVERY
@pytest.mark.parametrize("lie", [0, 23, 24, "one less", "one more", 2**31, 2**32 - 1])
def test_a_size_in_the_header_that_is_not_the_real_one_is_a_breach(client, drops, message, lie):
    real = HEADER.size + message.request.size
    nbytes = {"one less": real - 1, "one more": real + 1}.get(lie, lie)
    client.send_bytes(valid(message, nbytes=nbytes))
    drops.expect(client)


@EVERY
def test_a_request_carries_no_status_and_no_count_of_segments(daemon, drops, message):
    for field in "status", "destroyed":
        with daemon.connect() as client:
            client.send_bytes(valid(message, **{field: 1}))
            drops.expect(client)


@EVERY
def test_a_call_has_a_request_id_and_a_note_has_none(client, drops, message):
    client.send_bytes(valid(message, request=0 if message.is_call else 1))
    drops.expect(client)


@EVERY
@pytest.mark.parametrize("sent,counted", [(1, 0), (1, 1), (0, 1), (3, 1), (3, 3), (200, 200)])
def test_descriptors_where_none_belong_are_closed(client, drops, message, sent, counted):
    with open(os.devnull) as null:
        client.send_bytes(valid(message, nfds=counted), [null.fileno()] * sent)
    drops.expect(client)


@pytest.mark.parametrize("sent", [1, 3, 200])
@pytest.mark.parametrize("hello", [False, True], ids=["fresh", "ready"])
def test_descriptors_that_come_with_no_byte_at_all_are_closed(daemon, sent, hello):
    with daemon.connect(hello=hello) as client, open(os.devnull) as null:
        client.send_bytes(b"", [null.fileno()] * sent)
        assert client.is_dropped()


@EVERY
def test_nothing_but_hello_is_heard_before_hello(daemon, drops, message):
    with daemon.connect(hello=False) as fresh:
        fresh.send_bytes(valid(message))
        drops.expect(fresh)


def test_hello_is_said_once(client, drops):
    client.send_bytes(wire.frame("HELLO", b"again", number=1))
    drops.expect(client)


@pytest.mark.parametrize("opcode", [0, 15, 55, 68, 4711, 0xFFFF])
def test_an_unknown_opcode_is_a_breach(client, drops, opcode):
    assert opcode not in BY_OPCODE
    client.send_bytes(HEADER.pack(nbytes=HEADER.size + 8, opcode=opcode, request=1) + bytes(8))
    drops.expect(client)


@pytest.mark.parametrize("length", [1, 3, 4, 12, HEADER.size - 1])
@pytest.mark.parametrize("hello", [False, True], ids=["fresh", "ready"])
def test_half_a_header_is_a_breach(daemon, drops, length, hello):
    with daemon.connect(hello=hello) as client:
        client.send_bytes(wire.frame("STATS", number=1)[:length])
        drops.expect(client)


@EVERY
def test_half_a_message_and_a_closed_socket_leave_nothing(daemon, message):
    data = valid(message)
    with daemon.connect() as client:
        client.send_bytes(data[: len(data) // 2])


@pytest.mark.parametrize(
    "length", [CONSTANTS["WIRE_MESSAGE_MAX"], CONSTANTS["WIRE_MESSAGE_MAX"] + 1, 150_000]
)
@pytest.mark.parametrize("hello", [False, True], ids=["fresh", "ready"])
def test_a_message_larger_than_any_is_a_breach(daemon, drops, length, hello):
    with daemon.connect(hello=hello) as client:
        head = HEADER.pack(nbytes=length, opcode=MESSAGES["PUT"].opcode, request=1)
        client.send_bytes(head + bytes(length - HEADER.size))
        drops.expect(client)


@pytest.mark.parametrize("seed", range(4))
def test_random_bytes_are_a_breach(daemon, drops, seed):
    dice = random.Random(seed)
    for _ in range(25):
        with daemon.connect(hello=dice.random() < 0.5) as client:
            client.send_bytes(dice.randbytes(dice.randint(1, 5000)))
            drops.expect(client)


@pytest.mark.parametrize("message", [m for m in CALLS if m.name != "STOP"], ids=str)
def test_random_fields_in_a_sound_frame_are_answered_or_a_breach(daemon, message):
    """Random ids, sizes, names and descriptions: an answer or the end, never silence or damage."""
    dice = random.Random(message.opcode)
    for _ in range(20):
        body = dice.randbytes(message.request.size + dice.randint(0, min(message.request_tail, 99)))
        head = HEADER.pack(nbytes=HEADER.size + len(body), opcode=message.opcode, request=7)
        with daemon.connect() as client:
            client.send_bytes(head + body)
            try:
                client.send("CANCEL", request=7)  # a GET that happens to wait is called off
                reply = client.receive()
            except wire.Dropped:
                continue
            assert reply.request == 7
            for fd in reply.fds:
                os.close(fd)


@pytest.mark.parametrize("name", ["RELEASE", "CANCEL"])
def test_random_fields_in_a_note_are_ignored_or_a_breach(daemon, name):
    message = MESSAGES[name]
    dice = random.Random(message.opcode)
    for _ in range(20):
        body = dice.randbytes(message.request.size + 16 * dice.randint(0, 4) * (name == "RELEASE"))
        head = HEADER.pack(nbytes=HEADER.size + len(body), opcode=message.opcode)
        with daemon.connect() as client:
            client.send_bytes(head + body)
            with contextlib.suppress(wire.Dropped):
                assert client.stats()["storages"] == 0
