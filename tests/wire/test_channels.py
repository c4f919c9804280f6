"""Channels: seats, buffers and names; how long they last; what the dead leave behind."""

import contextlib
import os
import random
import signal
import socket
import struct

import daemon as d
import pytest
import wire
from refusal import refused
from ring import JOINED, LEFT, SUBSCRIBED, Seat
from wire_table import CONSTANTS, Status

CREATE, TOPIC = CONSTANTS["JOIN_CREATE"], CONSTANTS["JOIN_TOPIC"]
DROP_OLDEST = CONSTANTS["JOIN_DROP_OLDEST"]


def joined(connection: wire.Connection, name="q", **fields) -> Seat:
    return Seat(connection.join(name, **fields))


def sized(connection: wire.Connection, name="q", **fields) -> Seat:
    return joined(connection, name, buffer_nbytes=1000, **fields)


def settle_channels(connection: wire.Connection, count: int):
    d.settle(lambda: connection.stats()["channels"] == count, f"{count} channels")


# ------------------------------------------------------------------------------------------- join


def test_a_join_makes_a_channel_and_takes_a_seat(client):
    seat = joined(client)
    shape = [seat.shape[name] for name in ("capacity", "buffers", "slots", "participants")]
    assert shape == [8, 16, 16, 128]
    assert (seat["capacity"], seat["buffers"], seat["slots"], seat["members"]) == (8, 16, 16, 128)
    assert (seat.slot, seat.buffer_nbytes, seat.grant["storage"]) == (0, 0, 0)
    assert (seat.member("client"), seat.member("state")) == (client.welcome["client"], JOINED)
    assert seat["members_used"] == 1
    assert client.stats()["channels"] == 1


def test_all_who_join_have_the_same_block_and_each_a_seat(daemon, client):
    first, second = joined(client), joined(client)
    with daemon.connect() as other:
        third = joined(other)
        assert [s.slot for s in (first, second, third)] == [0, 1, 2]
        first["head"] = 0  # no message, whatever was there
        third["floor"] = 77
        assert (first["floor"], second["floor"]) == (77, 77)
        third["floor"] = 0
        assert third.member("client", slot=0) == client.welcome["client"]
        assert client.stats()["channels"] == 1


def test_the_block_is_sealed_and_no_fork_page(client, drops):
    reply = client.join("q", capacity=1, buffers=2, participants=1)
    assert os.fstat(reply.fds[0]).st_size > 4096
    with pytest.raises(PermissionError):
        os.ftruncate(reply.fds[0], 4096)
    client.send("FORK", fds=reply.fds)
    drops.expect(client)
    os.close(reply.fds[0])


def test_a_join_by_number_takes_any_shape_and_needs_no_name(client):
    seat = joined(client, capacity=3, flags=CREATE | TOPIC | DROP_OLDEST)
    client.delete("q")
    again = joined(client, b"", channel=seat.channel, flags=0)
    assert (again.channel, again.slot, again.shape["capacity"]) == (seat.channel, 1, 3)
    with refused(Status.NOT_FOUND, "gone"):
        client.join(channel=seat.channel + 1, flags=0)
    with refused(Status.NOT_FOUND, "no queue"):
        client.join("q", flags=0)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"capacity": 4}, ["capacity=8", "capacity=4"]),
        ({"buffers": 17}, ["buffers=16", "buffers=17"]),
        ({"participants": 5}, ["participants=128", "participants=5"]),
        ({"buffer_nbytes": 2000}, ["nbytes=1024", "nbytes=2048"]),
        ({"flags": CREATE | TOPIC}, ["is a queue", "topic was asked"]),
        ({"flags": CREATE | DROP_OLDEST}, ["overflow=block", "overflow=drop_oldest"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_other_settings_than_it_has_are_refused_naming_both(client, asked, words):
    sized(client)
    sized(client, capacity=8, buffers=16, participants=128)
    with refused(Status.INVALID, *words):
        client.join("q", **asked)
    assert len(client.channels()[0]["seats"]) == 2


@pytest.mark.parametrize(
    "shape",
    [
        {"capacity": 513},
        {"capacity": 2**32 - 1},
        {"buffers": 8},
        {"buffers": 897},
        {"buffers": 9, "flags": CREATE | TOPIC},
        {"participants": 1025},
        {"buffer_nbytes": 2**64 - 1},
        {"buffer_nbytes": 2**60},
    ],
    ids=str,
)
def test_a_shape_that_cannot_be_is_refused(client, shape):
    with refused(Status.INVALID):
        client.join("q", **shape)
    assert client.stats()["channels"] == 0


@pytest.mark.parametrize("name", [b"", b"a\nb", b"\xff", b"x" * 256])
def test_a_channels_name_is_a_name(client, name, drops):
    if len(name) > CONSTANTS["WIRE_NAME_MAX"]:
        client.send("JOIN", name, flags=CREATE)
        drops.expect(client)
    else:
        with refused(Status.INVALID):
            client.join(name)


# ------------------------------------------------------------------------------------------ names


def test_a_name_is_a_tensors_or_a_channels(client):
    client.put("t", b"x")
    with refused(Status.EXISTS, "tensor"):
        client.join("t")
    client.delete("t")
    joined(client, "q")
    joined(client, "t", flags=CREATE | TOPIC)
    with refused(Status.EXISTS, "is a queue"):
        client.put("q", b"x")
    with refused(Status.EXISTS, "is a topic"):
        client.publish("t", client.alloc(1)["storage"], wire.desc((1,), wire.UINT8))
    with refused(Status.INVALID, "is a queue", r"cx\.queue"):
        client.get("q")
    with refused(Status.INVALID, "is a topic", r"cx\.topic"):
        client.call("STAT", b"t")
    assert client.names() == []


def test_delete_closes_and_takes_the_name(client):
    seat = joined(client)
    client.delete("q")
    assert seat["closed"] == 1
    with refused(Status.NOT_FOUND):
        client.delete("q")
    new = joined(client)
    assert (new.channel, new["closed"]) == (seat.channel + 1, 0)
    assert client.stats()["channels"] == 2
    client.send("LEAVE", channel=seat.channel, slot=seat.slot)
    settle_channels(client, 1)


# ---------------------------------------------------------------------------------------- buffers


@pytest.mark.parametrize(
    ("asked", "nbytes"),
    [(1, 256), (256, 256), (257, 512), (65535, 65536), (65537, 69632), (1 << 20, 1 << 20)],
)
def test_a_channel_has_its_size_from_who_comes_first(daemon, client, asked, nbytes):
    seat = joined(client)
    assert client.call("BUFFERS", channel=seat.channel, nbytes=0)["buffer_nbytes"] == 0
    reply = client.call("BUFFERS", channel=seat.channel, nbytes=asked)
    assert (reply["buffer_nbytes"], reply["grant"]["nbytes"]) == (nbytes, 16 * nbytes)
    with daemon.connect() as other:
        assert Seat(other.join("q")).grant == reply["grant"]
        again = other.call("BUFFERS", channel=seat.channel, nbytes=5 * asked)
        assert again.fields == reply.fields
    assert client.stats()["bytes"] == 16 * nbytes


def test_a_join_may_give_the_size_as_well(client):
    joined(client)
    seat = sized(client)
    assert (seat.buffer_nbytes, seat.grant["nbytes"]) == (1024, 16 * 1024)
    assert client.stats()["storages"] == 1


def test_who_does_not_participate_is_told_nothing(daemon, client):
    seat = sized(client)
    with daemon.connect() as other:
        with refused(Status.STALE):
            other.call("BUFFERS", channel=seat.channel, nbytes=1)
        with refused(Status.STALE):
            other.call("BUFFERS", channel=seat.channel + 1, nbytes=1)


def test_buffers_that_cannot_be_had_leave_a_channel_without(client):
    seat = joined(client)
    with refused(Status.OUT_OF_MEMORY, "capacity"):
        client.call("BUFFERS", channel=seat.channel, nbytes=1 << 45)
    with refused(Status.OUT_OF_MEMORY):
        client.join("new", buffer_nbytes=1 << 45)
    assert client.call("BUFFERS", channel=seat.channel, nbytes=0)["buffer_nbytes"] == 0
    assert (client.stats()["channels"], client.stats()["storages"]) == (1, 0)


def test_the_buffers_outlast_the_channel_for_who_holds_them(client):
    seat = sized(client)
    client.send("LEAVE", channel=seat.channel, slot=seat.slot)
    settle_channels(client, 0)
    assert client.stats()["bytes"] == 16 * 1024
    client.release((seat.grant["storage"], 1))
    assert client.stats()["bytes"] == 0


# --------------------------------------------------------------------------------------- lifetime


def test_a_queue_waits_for_its_last_message(daemon):
    with daemon.connect() as sender:
        seat = sized(sender)
        for buffer in 0, 1:
            seat.use(buffer)
            seat.send(buffer)
    daemon.settle(clients=0)
    assert (daemon.stats()["channels"], daemon.stats()["storages"]) == (1, 1)
    with daemon.connect() as reader:
        seat = sized(reader)
        assert reader.channels()[0]["depth"] == 2
        assert seat.take() == 0
        seat.use(0, False)
    daemon.settle(clients=0)
    assert daemon.stats()["channels"] == 1
    with daemon.connect() as reader:
        assert sized(reader).take() == 1
    daemon.settle(clients=0, channels=0, storages=0)


def test_a_topic_lasts_as_long_as_its_handles(daemon):
    with daemon.connect() as sender:
        seat = sized(sender, flags=CREATE | TOPIC)
        seat.use(0)
        seat.send(0)
    daemon.settle(channels=0, storages=0)


def test_a_deleted_queue_waits_for_nobody(daemon):
    with daemon.connect() as sender:
        seat = sized(sender)
        seat.use(0)
        seat.send(0)
        sender.delete("q")
    daemon.settle(channels=0, storages=0)


def test_messages_wait_until_they_are_deleted(daemon, client):
    with daemon.connect() as sender:
        seat = sized(sender)
        seat.use(0)
        seat.send(0)
    daemon.settle(clients=1, channels=1)
    client.delete("q")
    settle_channels(client, 0)


def test_a_seat_is_given_again_once_nothing_is_used(client):
    seat = sized(client)
    kept = sized(client)
    seat.use(3)
    client.send("LEAVE", channel=seat.channel, slot=seat.slot)
    assert sized(client).slot == 2
    assert (seat.member("state"), seat.uses()) == (LEFT, {3})
    assert [(s["slot"], s["left"], s["holds"]) for s in client.channels()[0]["seats"]] == [
        (0, 1, 1), (1, 0, 0), (2, 0, 0)
    ]  # fmt: skip
    seat.use(3, False)
    assert sized(client).slot == 0
    assert kept.member("state", slot=0) == JOINED


def test_a_left_seat_or_anothers_is_a_breach(daemon, client, drops):
    seat = sized(client)
    other = daemon.connect()
    other.send("LEAVE", channel=seat.channel, slot=seat.slot)
    drops.expect(other)
    client.send("LEAVE", channel=seat.channel, slot=seat.slot)
    client.send("LEAVE", channel=seat.channel, slot=seat.slot)
    drops.expect(client)


# ------------------------------------------------------------------------------------------ death


@contextlib.contextmanager
def victim(daemon):
    """Another process that uses two seats and has the lock: its id, its client number."""
    end, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        with daemon.connect(life_page=True) as connection:
            seats = [sized(connection), sized(connection)]
            number = connection.welcome["client"]
            seats[0].use(2)
            seats[1].use(7)
            seats[1]["lock"] = number | 1 << 31
            theirs.send(struct.pack("=Q", number))
            signal.pause()
    try:
        yield pid, *struct.unpack("=Q", end.recv(8))
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        end.close()
        theirs.close()


def test_what_a_killed_client_used_and_locked_is_free(daemon, client):
    seat = sized(client)
    words = ("data_event", "room_event", "free_event")
    with victim(daemon) as (pid, number):
        before = [seat[word] for word in words]
        assert [seat.member("client", slot) for slot in (1, 2)] == [number] * 2
        assert (seat.uses(1), seat.uses(2), seat["lock"]) == ({2}, {7}, number | 1 << 31)
        os.kill(pid, signal.SIGKILL)
        d.settle(lambda: seat["lock"] == 0)
        for slot in 1, 2:
            assert (seat.uses(slot), seat.member("state", slot)) == (set(), LEFT)
        assert all(seat[word] > old for word, old in zip(words, before, strict=True))
    assert (seat.member("state"), sized(client).slot) == (JOINED, 1)


def test_a_daemon_that_ends_changes_nothing_for_those_who_live(tmp_path):
    """They may not know yet: a buffer that is read would be written to by the next to send."""
    with d.Daemon(tmp_path) as ending, ending.connect(life_page=True) as client:
        seat, other = sized(client), sized(client, "topic", flags=CREATE | TOPIC)
        page = client.fork()
        for buffer in 2, 4:
            seat.use(buffer)
            client.fork().close()
        client.send("RETURN", channel=seat.channel, slot=seat.slot, buffer=4)
        other.use(7)
        other["lock"] = client.welcome["client"]
        assert client.stats()["channels"] == 2
        before = bytes(seat.memory), bytes(other.memory)
        ending.stop()
        assert (bytes(seat.memory), bytes(other.memory)) == before
        page.close()


def test_a_dropped_client_that_lives_stays_in(daemon, client, drops):
    seat = sized(client)
    victim = daemon.connect(life_page=True)
    theirs = sized(victim)
    theirs.use(1)
    victim.send("LEAVE", channel=99, slot=0)
    drops.expect(victim)
    assert client.channels()[0]["seats"][1]["holds"] == 1
    assert (seat.uses(theirs.slot), seat.member("state", theirs.slot)) == ({1}, JOINED)
    victim.life_page.close()
    d.settle(lambda: seat.uses(theirs.slot) == set())


def test_another_owners_lock_is_left_alone(daemon, client):
    seat = sized(client)
    seat["lock"] = client.welcome["client"]
    with daemon.connect() as other:
        theirs = sized(other)
        theirs.use(1)
    d.settle(lambda: seat.uses(theirs.slot) == set())
    assert seat["lock"] == client.welcome["client"]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("flags", [CREATE, CREATE | TOPIC | DROP_OLDEST], ids=["queue", "topic"])
def test_garbage_in_the_block_harms_its_channel_only(daemon, client, flags, seed):
    noise = random.Random(seed)
    with daemon.connect() as vandal:
        seat = sized(vandal, flags=flags, participants=4)
        storage = vandal.alloc(10)["storage"]
        seat.use(1)
        vandal.refer(seat.channel, seat.slot, 1, storage)
        for _ in range(20):
            start = noise.choice([0, 128, 384, noise.randrange(seat.nbytes)])
            end = min(seat.nbytes, start + noise.choice([8, 300, seat.nbytes]))
            fill = noise.choice([noise.randbytes(end - start), bytes(end - start)])
            seat.memory[start:end] = noise.choice([fill, b"\xff" * (end - start)])
            try:
                reply = client.join("q", flags=flags)
                os.close(reply.fds[0])
                client.send("LEAVE", channel=reply["channel"], slot=reply["slot"])
                client.release((reply["grant"]["storage"], 1))
            except wire.Refused as error:
                assert error.status is Status.LIMIT
            client.channels()
            vandal.send("DONE", channel=seat.channel, buffer=noise.randrange(2**32))
            vandal.send("RETURN", channel=seat.channel, slot=seat.slot, buffer=1)
            vandal.send("RETURN", channel=seat.channel, slot=0, buffer=noise.randrange(2**32))
            vandal.fork().close()
        vandal.delete("q")
    daemon.settle(channels=0, storages=0)


def test_a_seat_that_others_scribble_into_goes_with_its_client(daemon, client):
    seat = sized(client)
    other = daemon.connect()
    theirs = sized(other)
    page = other.fork()
    other.close()
    d.settle(lambda: seat.member("state", theirs.slot) == LEFT)
    seat.use(5, slot=theirs.slot)
    page.close()
    d.settle(lambda: len(client.clients()) == 1)
    assert [s["slot"] for s in client.channels()[0]["seats"]] == [seat.slot]


# ------------------------------------------------------------------------------------------ forks


def test_an_inherited_buffer_is_free_when_it_was_returned_and_the_page_is_closed(client):
    seat = sized(client)
    seat.use(4)
    page = client.fork()
    client.stats()
    seat.use(5)
    for buffer in 4, 5:
        client.send("RETURN", channel=seat.channel, slot=seat.slot, buffer=buffer)
    client.stats()
    assert seat.uses() == {4}, "5 came after the fork"
    page.close()
    d.settle(lambda: seat.uses() == set())


def test_an_inherited_buffer_whose_page_is_closed_is_the_clients(client):
    seat = sized(client)
    seat.use(4)
    client.fork().close()
    client.stats()
    assert seat.uses() == {4}
    client.send("RETURN", channel=seat.channel, slot=seat.slot, buffer=4)
    d.settle(lambda: seat.uses() == set())


@pytest.mark.parametrize("first", [0, 1])
def test_all_pages_that_have_a_buffer_keep_it(client, first):
    seat = sized(client)
    seat.use(4)
    pages = [client.fork(), client.fork()]
    client.send("RETURN", channel=seat.channel, slot=seat.slot, buffer=4)
    pages.append(client.fork())
    pages.pop(first).close()
    client.stats()
    assert seat.uses() == {4}
    pages.pop(0).close()
    d.settle(lambda: seat.uses() == set())
    pages.pop().close()


def test_children_keep_what_a_parent_had_that_is_gone(daemon, client):
    seat = sized(client)
    parent = daemon.connect()
    theirs = sized(parent)
    theirs.use(4)
    page = parent.fork()
    parent.stats()
    theirs.use(5)
    parent.close()
    d.settle(lambda: seat.member("state", theirs.slot) == LEFT)
    assert seat.uses(theirs.slot) == {4}
    assert client.channels()[0]["seats"][1] == {
        "client": parent.welcome["client"], "slot": 1, "left": 1, "holds": 1, "behind": 0
    }  # fmt: skip
    page.close()
    d.settle(lambda: seat.uses(theirs.slot) == set())
    assert len(client.channels()[0]["seats"]) == 1


def test_a_fork_without_a_page_keeps_buffers_until_the_client_ends(daemon, client):
    seat = sized(client)
    parent = daemon.connect()
    theirs = sized(parent)
    theirs.use(4)
    parent.send("FORK")
    parent.send("RETURN", channel=theirs.channel, slot=theirs.slot, buffer=4)
    parent.stats()
    assert seat.uses(theirs.slot) == {4}
    parent.close()
    d.settle(lambda: seat.uses(theirs.slot) == set())


def test_a_channel_may_end_before_the_pages_that_have_its_buffers(client):
    seat = sized(client)
    seat.use(4)
    page = client.fork()
    client.send("RETURN", channel=seat.channel, slot=seat.slot, buffer=4)
    client.send("LEAVE", channel=seat.channel, slot=seat.slot)
    settle_channels(client, 0)
    page.close()
    client.stats()
    assert seat.uses() == {4}, "nobody looks after it any more"


def test_to_return_what_is_not_there_does_nothing(client):
    seat = sized(client)
    for slot, buffer in [(0, 3), (0, 16), (0, 2**32 - 1), (1, 0), (2**32 - 1, 0)]:
        client.send("RETURN", channel=seat.channel, slot=slot, buffer=buffer)
    client.send("RETURN", channel=seat.channel + 1, slot=0, buffer=0)
    client.send("DONE", channel=seat.channel + 1, buffer=0)
    assert client.stats()["channels"] == 1


# ------------------------------------------------------------------------------------------- list


def test_channels_are_listed_by_page(client):
    names = [f"{i:03}" + "n" * 200 for i in range(400)]
    for name in names:
        os.close(client.join(name).fds[0])
    found = client.channels()
    assert [channel["name"] for channel in found] == names
    assert all(channel["count"] == 1 for channel in found)


def test_a_channel_is_listed_with_what_its_block_says(client):
    seat = sized(client, flags=CREATE | TOPIC | DROP_OLDEST, capacity=4)
    seat.use(0)
    seat.use(9)
    seat.set_member("state", SUBSCRIBED)
    for buffer in 1, 2, 3:
        seat.use(buffer)
        seat.send(buffer)
    (found,) = client.channels()
    seats = found.pop("seats")
    assert found == {
        "channel": seat.channel,
        "buffer_nbytes": 1024,
        "messages": 3,
        "depth": 3,
        "closed": 0,
        "flags": TOPIC | DROP_OLDEST,
        "capacity": 4,
        "buffers": 12,
        "participants": 128,
        "count": 1,
        "name_nbytes": 1,
        "device": 0,
        "reserved": 0,
        "name": "q",
    }
    number = client.welcome["client"]
    assert seats == [{"client": number, "slot": 0, "left": 0, "holds": 2, "behind": 3}]
