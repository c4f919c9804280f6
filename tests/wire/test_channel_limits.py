"""Channels: their limits, each named in its error; what messages refer to; the daemon's end."""

import os

import daemon as d
import pytest
import wire
from refusal import refused
from ring import Seat
from wire_table import CONSTANTS, Status

CREATE, TOPIC = CONSTANTS["JOIN_CREATE"], CONSTANTS["JOIN_TOPIC"]


def sized(connection: wire.Connection, name="q", **fields) -> Seat:
    return Seat(connection.join(name, buffer_nbytes=1000, **fields))


def release(seat: Seat, buffer: int, client: wire.Connection):
    """What a reader does with a message by reference."""
    seat.use(buffer, False)
    client.send("DONE", channel=seat.channel, buffer=buffer)


# ------------------------------------------------------------------------------------ by reference


def test_a_message_keeps_what_it_refers_to_until_it_is_read(daemon, client):
    seat = sized(client)
    storages = [client.alloc(100)["storage"] for _ in range(3)]
    seat.use(2)
    ref = client.refer(seat.channel, seat.slot, 2, *storages)
    client.release(*[(storage, 1) for storage in storages])
    seat.send(2)
    assert client.stats()["storages"] == 4
    with daemon.connect() as reader:
        theirs = sized(reader)
        assert theirs.take() == 2
        grants = reader.fetch(theirs.channel, theirs.slot, 2, ref)
        assert [grant["storage"] for grant in grants] == storages
        release(theirs, 2, reader)
        reader.release((storages[0], 1))
        daemon.settle(storages=3)  # the sweep may come after the next answer
        with refused(Status.STALE, "does not use buffer 2"):
            reader.fetch(theirs.channel, theirs.slot, 2, ref)
    daemon.settle(storages=1)


def test_a_buffer_that_is_loaned_again_keeps_nothing_of_before(daemon, client):
    """It was never seen free: the next who loaned it was faster than the sweep."""
    seat = sized(client)
    storage = client.alloc(100)["storage"]
    seat.use(0)
    client.refer(seat.channel, seat.slot, 0, storage)
    client.release((storage, 1))
    daemon.settle(storages=2)
    seat.name(0, 0)
    client.send("DONE", channel=seat.channel, buffer=0)
    daemon.settle(storages=1)


def test_only_who_uses_the_buffer_attaches_and_redeems(daemon, client):
    seat = sized(client)
    storage = client.alloc(10)["storage"]
    with refused(Status.STALE, "does not use buffer 1"):
        client.refer(seat.channel, seat.slot, 1, storage)
    seat.use(1)
    with refused(Status.STALE, "does not use buffer 16"):
        client.refer(seat.channel, seat.slot, 16, storage)
    with refused(Status.STALE, "no handle"):
        client.refer(seat.channel, seat.slot + 1, 1, storage)
    with refused(Status.STALE, "no handle"):
        client.refer(seat.channel + 1, seat.slot, 1, storage)
    with refused(Status.STALE, "does not hold"):
        client.refer(seat.channel, seat.slot, 1, storage, storage + 1)
    ref = client.refer(seat.channel, seat.slot, 1, storage)
    with daemon.connect() as other:
        sized(other)
        with refused(Status.STALE, "no handle"):
            other.fetch(seat.channel, seat.slot, 1, ref)
        with refused(Status.STALE, "does not hold"):
            theirs = sized(other)
            theirs.use(2)
            other.refer(seat.channel, theirs.slot, 2, storage)
    with refused(Status.STALE, "no reference"):
        client.fetch(seat.channel, seat.slot, 1, ref + 1)


@pytest.mark.parametrize("tail", [b"", b"1234567"])
def test_references_are_a_list_of_ids(client, drops, tail):
    seat = sized(client)
    client.send("REFER", tail, channel=seat.channel, slot=seat.slot, buffer=0)
    drops.expect(client)


def test_to_attach_again_replaces(client):
    seat = sized(client)
    old, new = client.alloc(10)["storage"], client.alloc(10)["storage"]
    seat.use(1)
    client.refer(seat.channel, seat.slot, 1, old)
    ref = client.refer(seat.channel, seat.slot, 1, new)
    client.release((old, 1), (new, 1))
    assert client.stats()["storages"] == 2
    assert [grant["storage"] for grant in client.fetch(seat.channel, 0, 1, ref)] == [new]


def test_what_a_dead_reader_or_sender_had_is_dropped(daemon, client):
    seat = sized(client)
    with daemon.connect() as sender:
        theirs = sized(sender)
        for buffer in 1, 2:
            theirs.use(buffer)
            storage = sender.alloc(10)["storage"]
            sender.refer(theirs.channel, theirs.slot, buffer, storage)
            sender.release((storage, 1))
        theirs.send(1)
        assert client.stats()["storages"] == 3
    daemon.settle(storages=2)  # the loan is gone, the message is not
    with daemon.connect() as reader:
        assert sized(reader).take() == 1
    daemon.settle(storages=1)
    assert client.channels()[0]["depth"] == 0
    assert seat.uses() == set()


def test_a_channel_that_ends_lets_go_what_its_messages_referred_to(daemon):
    with daemon.connect() as sender:
        seat = sized(sender)
        seat.use(1)
        sender.refer(seat.channel, seat.slot, 1, sender.alloc(10)["storage"])
        seat.send(1)
    assert daemon.settle(clients=0)["storages"] == 2
    with daemon.connect() as other:
        other.delete("q")
    daemon.settle(channels=0, storages=0)


def test_memory_of_messages_that_were_read_is_found_when_it_is_short(tmp_path):
    with d.Daemon(tmp_path, "--capacity=64M") as running, running.connect() as client:
        seat = sized(client)
        storage = client.alloc(40 << 20)["storage"]
        seat.use(1)
        client.refer(seat.channel, seat.slot, 1, storage)
        client.release((storage, 1))
        seat.send(1)
        with refused(Status.OUT_OF_MEMORY):
            client.alloc(40 << 20)
        seat.take()
        seat.use(1, False)  # and nobody says so
        client.alloc(40 << 20)


def test_a_channel_is_not_joined_after_its_last_handle_was_closed(tmp_path):
    with d.Daemon(tmp_path, "--max-storages=1") as running, running.connect() as client:
        other = Seat(client.join("other"))
        storage = client.alloc(10)["storage"]
        other.use(1)
        client.refer(other.channel, other.slot, 1, storage)
        client.release((storage, 1))
        other.use(1, False)  # found when the join below wants a storage; so are ended channels
        last = Seat(client.join("last"))
        with running.stopped():  # so that both come at once
            client.send("LEAVE", channel=last.channel, slot=last.slot)
            client.send("JOIN", channel=last.channel, buffer_nbytes=1000)
        assert client.receive().status is Status.NOT_FOUND
        assert [found["name"] for found in client.channels()] == ["other"]


def test_who_finds_no_memory_is_told_what_forgotten_queues_keep(tmp_path):
    with d.Daemon(tmp_path, "--capacity=64M") as running, running.connect() as client:
        with running.connect() as sender:
            seat = Seat(sender.join("q", buffer_nbytes=2 << 20))
            seat.use(0)
            seat.send(0)
        running.settle(clients=1)
        with refused(
            Status.OUT_OF_MEMORY, "1 queues that nobody has open keep 32 MiB", "tensorcx rm"
        ):
            client.alloc(60 << 20)
        client.delete("q")
        client.alloc(60 << 20)


# ----------------------------------------------------------------------------------------- limits


def test_as_many_participants_as_the_channel_was_made_for(client):
    seats = [sized(client, participants=2) for _ in range(2)]
    with refused(Status.LIMIT, "2 participants", "participants="):
        client.join("q")
    client.send("LEAVE", channel=seats[0].channel, slot=0)
    assert sized(client).slot == 0


def test_each_limit_names_its_option(tmp_path):
    options = ["--max-channels=2", "--client-channels=3", "--client-bytes=1M", "--max-storages=9"]
    with d.Daemon(tmp_path, *options) as running, running.connect() as client:
        seats = [sized(client, name) for name in "abb"]
        with refused(Status.LIMIT, "3 handles", "--client-channels"):
            client.join("a")
        with running.connect() as other, refused(Status.LIMIT, "2 channels", "--max-channels"):
            other.join("c")
        client.delete("b")
        for seat in seats[1:]:
            client.send("LEAVE", channel=seat.channel, slot=seat.slot)
        with refused(Status.OUT_OF_MEMORY, "--client-bytes"):
            client.join("b", buffer_nbytes=1 << 17)
        storage = client.alloc(1)["storage"]
        seats[0].use(1)
        with refused(Status.LIMIT, "--max-storages"):
            client.refer(seats[0].channel, 0, 1, *[storage] * 10)
        assert client.refer(seats[0].channel, 0, 1, *[storage] * 9)


def test_queues_that_wait_for_their_messages_count_as_their_makers(tmp_path):
    with d.Daemon(tmp_path, "--client-channels=2") as running, running.connect() as client:
        for name in "ab":
            seat = sized(client, name)
            seat.use(0)
            seat.send(0)
            client.send("LEAVE", channel=seat.channel, slot=seat.slot)
        with refused(Status.LIMIT, "2 queues and topics", "--client-channels"):
            client.join("c")
        client.delete("a")
        sized(client, "c")


def test_references_count_as_their_senders(tmp_path):
    with d.Daemon(tmp_path, "--client-storages=4") as running, running.connect() as client:
        seat = sized(client)
        storage = client.alloc(1)["storage"]
        seat.use(1)
        with refused(Status.LIMIT, "--client-storages"):
            client.refer(seat.channel, 0, 1, *[storage] * 5)
        client.refer(seat.channel, 0, 1, *[storage] * 4)
        seat.use(2)
        with refused(Status.LIMIT, "--client-storages"):
            client.refer(seat.channel, 0, 2, storage)
        seat.use(1, False)  # what was read is looked for before anybody is refused
        client.refer(seat.channel, 0, 2, storage)


def test_a_handle_that_was_closed_counts_until_its_buffers_are_free(tmp_path):
    with d.Daemon(tmp_path, "--client-channels=1") as running, running.connect() as client:
        seat = sized(client)
        seat.use(1)
        with running.connect() as other:
            sized(other)
            client.send("LEAVE", channel=seat.channel, slot=seat.slot)
            with refused(Status.LIMIT, "--client-channels"):
                client.join("q")
            seat.use(1, False)
            sized(client)


def test_a_client_that_reads_no_replies_gets_no_more_blocks(daemon):
    with daemon.connect() as client:
        for _ in range(200):
            client.send("JOIN", b"q", flags=CREATE)
        d.settle(lambda: daemon.stats()["requests"] > 200, "all of them handled")
        replies = [client.receive() for _ in range(200)]
        limited = [reply for reply in replies if reply.status is Status.LIMIT]
        assert limited and all("unread" in reply.text for reply in limited)
        for reply in replies:
            for fd in reply.fds:
                os.close(fd)
        assert len(client.channels()[0]["seats"]) == 200 - len(limited)


# -------------------------------------------------------------------------------------------- end


def test_the_daemon_does_not_end_while_a_message_waits(tmp_path):
    with d.Daemon(tmp_path, "--idle-exit=1") as running:
        with running.connect() as sender:
            seat = sized(sender)
            seat.use(0)
            seat.send(0)
        with pytest.raises(AssertionError):
            d.settle(lambda: running.process.poll() is not None, deadline=1.5)
        with running.connect() as reader:
            sized(reader).take()
        d.settle(lambda: running.process.poll() is not None, "the idle end")


def test_the_daemon_ends_well_with_channels_in_every_state(tmp_path):
    with d.Daemon(tmp_path) as running:
        with running.connect() as gone:
            seat = sized(gone, "waits")
            seat.use(0)
            gone.refer(seat.channel, 0, 0, gone.alloc(10)["storage"])
            seat.send(0)
        client = running.connect(life_page=True)
        seat = sized(client, "forked", flags=CREATE | TOPIC)
        seat.use(1)
        page = client.fork()
        client.send("RETURN", channel=seat.channel, slot=0, buffer=1)
        client.join("unsized", flags=CREATE)
        client.delete("forked")
        running.stop()
        page.close()
        client.close()
        client.life_page.close()
