"""Standing references: asked for once, named by any number of messages of a channel."""

import daemon as d
import pytest
import wire
from refusal import refused
from ring import Seat
from wire_table import CONSTANTS, Status

CREATE, NO_BUFFER = CONSTANTS["JOIN_CREATE"], CONSTANTS["WIRE_NO_BUFFER"]


def sized(connection: wire.Connection, name="q", **fields) -> Seat:
    return Seat(connection.join(name, buffer_nbytes=1000, **fields))


def stand(client: wire.Connection, seat: Seat, storage: int) -> int:
    return client.refer(seat.channel, seat.slot, NO_BUFFER, storage)


def send(seat: Seat, buffer: int, ref: int):
    seat.use(buffer)
    seat.name(buffer, ref)
    seat.send(buffer)


def release(seat: Seat, buffer: int, client: wire.Connection):
    seat.use(buffer, False)
    assert seat["watched"]
    client.send("DONE", channel=seat.channel, buffer=buffer)
    for _ in range(2):  # a note and a call may be one event; what is loose goes at its end
        client.stats()


@pytest.fixture
def sent(client):
    """A seat, and a storage that its next messages may name: its ref."""
    seat = sized(client)
    storage = client.alloc(100)["storage"]
    return seat, storage, stand(client, seat, storage)


def test_it_is_the_same_each_time_and_each_reader_is_granted_it(daemon, client, sent):
    seat, storage, ref = sent
    assert stand(client, seat, storage) == ref
    send(seat, 0, ref), send(seat, 1, ref)
    with daemon.connect() as reader:
        theirs = sized(reader)
        for buffer in 0, 1:
            assert theirs.take() == buffer
            (grant,) = reader.fetch(theirs.channel, theirs.slot, buffer, ref)
            assert grant["storage"] == storage
        with refused(Status.STALE, "no reference"):
            reader.fetch(theirs.channel, theirs.slot, 1, ref + 1)


def test_nothing_is_told_while_its_sender_holds_the_storage(daemon, client, sent):
    seat, storage, ref = sent
    send(seat, 0, ref)
    seat.take()
    client.stats()
    assert not seat["watched"]
    seat.use(0, False)
    client.release((storage, 1))
    daemon.settle(storages=1)  # the buffers; the sweep may come after the next answer
    assert not seat["watched"]


def test_what_its_sender_let_go_stays_until_the_last_message_is_done(daemon, client, sent):
    seat, storage, ref = sent
    send(seat, 0, ref), send(seat, 1, ref)
    assert seat.take() == 0
    client.release((storage, 1))
    daemon.settle(storages=2)
    release(seat, 0, client)
    daemon.settle(storages=2)
    assert seat.take() == 1
    assert client.fetch(seat.channel, seat.slot, 1, ref)[0]["storage"] == storage
    release(seat, 1, client)
    client.release((storage, 1))
    daemon.settle(storages=1)
    assert not seat["watched"]


def test_a_buffer_that_names_another_reference_keeps_only_that(daemon, client, sent):
    seat, storage, ref = sent
    other = client.alloc(100)["storage"]
    send(seat, 0, ref), send(seat, 1, stand(client, seat, other))
    client.release((storage, 1), (other, 1))
    daemon.settle(storages=3)
    assert seat.take() == 0
    release(seat, 0, client)
    daemon.settle(storages=2)
    assert client.fetch(seat.channel, seat.slot, seat.take(), ref + 1)[0]["storage"] == other


def test_a_sender_that_is_gone_leaves_its_messages(daemon, client):
    seat = sized(client)
    with daemon.connect() as sender:
        theirs = sized(sender)
        storages = [sender.alloc(100)["storage"] for _ in range(2)]
        refs = [stand(sender, theirs, storage) for storage in storages]
        send(theirs, 0, refs[1])
        assert client.stats()["storages"] == 3
    daemon.settle(clients=1, storages=2)
    assert client.fetch(seat.channel, seat.slot, seat.take(), refs[1])[0]["storage"] == storages[1]
    with refused(Status.STALE, "no reference"):
        client.fetch(seat.channel, seat.slot, 0, refs[0])


def test_a_reader_that_is_gone_keeps_nothing(daemon, client, sent):
    seat, storage, ref = sent
    send(seat, 0, ref)
    with daemon.connect() as reader:
        assert sized(reader).take() == 0
        client.release((storage, 1))
        daemon.settle(storages=2)
    daemon.settle(storages=1)


def test_it_ends_with_its_handle(daemon, client, sent):
    seat, storage, ref = sent
    other = sized(client)
    send(seat, 0, ref)
    client.send("LEAVE", channel=seat.channel, slot=seat.slot)
    client.release((storage, 1))
    with refused(Status.STALE, "no handle"):
        client.refer(seat.channel, seat.slot + 5, NO_BUFFER, storage)
    assert other.take() == 0
    assert client.fetch(other.channel, other.slot, 0, ref)[0]["storage"] == storage
    release(other, 0, client)
    client.release((storage, 1))
    daemon.settle(storages=1)


def test_who_has_left_gets_none(tmp_path):
    """Its channel would end while room is made for the reference."""
    with d.Daemon(tmp_path, "--client-storages=3") as running, running.connect() as client:
        left, full = sized(client), sized(client, "full")
        storage = client.alloc(1)["storage"]
        for buffer in range(3):
            full.use(buffer)
            client.refer(full.channel, full.slot, buffer, storage)
        client.stats()
        for buffer in range(3):
            full.use(buffer, False)  # and nobody tells
        with running.stopped():  # it finds both together
            client.send("LEAVE", channel=left.channel, slot=left.slot)
            tail = wire.ids((storage,))
            client.send("REFER", tail, channel=left.channel, slot=left.slot, buffer=NO_BUFFER)
        assert client.receive().status is Status.STALE
        assert client.stats()["channels"] == 1


def test_who_received_keeps_it_when_the_channel_is_over(daemon, client, sent):
    """The name is free meanwhile, and what nobody received is dropped."""
    seat, storage, ref = sent
    lost = client.alloc(100)["storage"]
    send(seat, 0, ref), send(seat, 1, stand(client, seat, lost))
    with daemon.connect() as reader:
        theirs = sized(reader)
        assert theirs.take() == 0
        client.delete("q")
        client.send("LEAVE", channel=seat.channel, slot=seat.slot)
        client.release((storage, 1), (lost, 1))
        reader.send("LEAVE", channel=theirs.channel, slot=theirs.slot)
        daemon.settle(storages=2, channels=1)
        with refused(Status.NOT_FOUND, "gone"):
            reader.call("JOIN", channel=theirs.channel)
        again = sized(reader)
        assert again.channel != theirs.channel
        release(theirs, 0, reader)
        reader.send("LEAVE", channel=again.channel, slot=again.slot)
        reader.release((seat.grant["storage"], 2), (again.grant["storage"], 1))
        client.release((seat.grant["storage"], 1))
        daemon.settle(storages=0, channels=0)


def test_bits_of_a_seat_that_nobody_has_keep_no_channel(daemon, client):
    with daemon.connect() as sender:
        left, seat = sized(sender), sized(sender)
        sender.send("LEAVE", channel=left.channel, slot=left.slot)
        sender.stats()
        send(seat, 0, stand(sender, seat, sender.alloc(100)["storage"]))
        seat.use(0, slot=left.slot)
    daemon.settle(clients=1, storages=2)  # the message is still to be received
    client.delete("q")
    daemon.settle(storages=0, channels=0)


def test_who_let_go_and_holds_it_again_gets_another(daemon, client, sent):
    seat, storage, ref = sent
    send(seat, 0, ref)
    client.release((storage, 1))
    daemon.settle(storages=2)
    assert seat.take() == 0
    client.fetch(seat.channel, seat.slot, 0, ref)
    again = stand(client, seat, storage)
    assert again != ref
    assert stand(client, seat, storage) == again
    release(seat, 0, client)
    send(seat, 1, again)
    assert seat.take() == 1
    with refused(Status.STALE, "no reference"):
        client.fetch(seat.channel, seat.slot, 1, ref)
    assert client.fetch(seat.channel, seat.slot, 1, again)[0]["storage"] == storage
    assert not seat["watched"]


def test_of_two_senders_of_one_client_that_leaves_takes_only_its_own(daemon, client, sent):
    seat, storage, ref = sent
    other = sized(client)
    theirs = stand(client, other, storage)
    send(seat, 0, theirs)
    assert theirs != ref
    client.send("LEAVE", channel=other.channel, slot=other.slot)
    assert stand(client, seat, storage) == ref
    assert seat.take() == 0
    assert client.fetch(seat.channel, seat.slot, 0, theirs)[0]["storage"] == storage
    release(seat, 0, client)
    seat.use(0)
    with refused(Status.STALE, "no reference"):
        client.fetch(seat.channel, seat.slot, 0, theirs)
    assert stand(client, seat, storage) == ref


def test_it_is_for_one_storage_that_the_client_holds(client, sent, drops):
    seat, storage, _ = sent
    with refused(Status.STALE, "does not hold"):
        stand(client, seat, storage + 1)
    tail = wire.ids((storage, storage))
    client.send("REFER", tail, channel=seat.channel, slot=seat.slot, buffer=NO_BUFFER)
    drops.expect(client)


def test_there_are_at_most_as_many_as_buffers(daemon, client):
    seat = sized(client, capacity=1, buffers=2)
    storages = [client.alloc(1)["storage"] for _ in range(3)]
    for storage in storages[:2]:
        stand(client, seat, storage)
    with refused(Status.LIMIT, "2 standing references"):
        stand(client, seat, storages[2])
    with daemon.stopped():  # it finds both together
        client.release((storages[0], 1))
        tail = wire.ids(storages[2:])
        client.send("REFER", tail, channel=seat.channel, slot=seat.slot, buffer=NO_BUFFER)
    assert client.receive().status is Status.OK


def test_they_count_as_their_senders(tmp_path):
    with d.Daemon(tmp_path, "--client-storages=2") as running, running.connect() as client:
        seat = sized(client)
        storage = client.alloc(1)["storage"]
        seats = [seat, sized(client), sized(client)]
        for one in seats[:2]:
            stand(client, one, storage)
        with refused(Status.LIMIT, "--client-storages"):
            stand(client, seats[2], storage)


def test_a_release_and_the_end_of_a_message_in_one_go(daemon, client, sent):
    """The daemon finds both together."""
    seat, storage, ref = sent
    send(seat, 0, ref)
    with daemon.stopped():
        client.release((storage, 1))
        seat.take()
        seat.use(0, False)
        assert not seat["watched"]  # so nobody tells
    daemon.settle(storages=1)
