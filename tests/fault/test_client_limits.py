"""What one client may make is limited, and counted until it is gone; others are not affected."""

import numpy as np
import pytest
import wire
from daemon import settle
from wire_table import Status

import tensorcx as cx

MiB = 1 << 20
LIMITS = {
    "--client-bytes": ("10M", Status.OUT_OF_MEMORY, lambda client, _: client.alloc(MiB)),
    "--client-storages": ("10", Status.LIMIT, lambda client, _: client.alloc(1)),
    "--client-names": ("10", Status.LIMIT, lambda client, i: client.put(f"name/{i}", b"x")),
}


def until_refused(client, make) -> tuple[int, wire.Refused]:
    for i in range(1000):
        try:
            make(client, i)
        except wire.Refused as refused:
            return i, refused
    raise AssertionError("never refused")


@pytest.mark.parametrize("option", LIMITS)
def test_a_limit_names_its_option_and_leaves_others_alone(start, option):
    limit, status, make = LIMITS[option]
    daemon = start(option, limit)
    with daemon.connect() as greedy, daemon.connect() as other:
        made, refused = until_refused(greedy, make)
        assert (made, refused.status) == (10, status)
        assert option in refused.text and str(10 * MiB if "bytes" in option else 10) in refused.text
        make(other, 1000)
        assert until_refused(other, make)[0] == 9
        for name in other.names():
            other.delete(name)


def test_what_is_given_back_can_be_made_again(start):
    daemon = start("--client-storages", "3")
    with daemon.connect() as client:
        grants = [client.alloc(100) for _ in range(3)]
        for _ in range(10):
            client.release((grants.pop()["storage"], 1))
            grants.append(client.alloc(100))


def test_who_only_reads_is_charged_nothing(start):
    daemon = start("--client-storages", "3", "--client-bytes", "1M")
    with daemon.connect() as reader:
        for i in range(20):
            with daemon.connect() as writer:
                writer.put(f"name/{i}", bytes(60_000))
            reader.get(f"name/{i}")
        assert reader.stats()["storages"] == 20
        reader.alloc(100)
        for name in reader.names():
            reader.delete(name)


def test_a_producer_is_charged_for_what_its_readers_keep(start):
    daemon = start("--client-storages", "1")
    with daemon.connect() as producer, daemon.connect() as reader:
        grant = producer.put("name", b"x")["grant"]
        reader.get("name")
        producer.delete("name")
        producer.release((grant["storage"], 1))
        with pytest.raises(wire.Refused, match="--client-storages=1"):
            producer.alloc(1)
        reader.release((grant["storage"], 1))
        settle(lambda: producer.stats()["storages"] == 0)
        producer.alloc(1)


def test_a_name_can_be_put_again_at_the_limit(start):
    daemon = start("--client-names", "2")
    with daemon.connect() as client, daemon.connect() as other:
        for name in ["a", "b", "a", "b"]:
            client.put(name, b"x")
        other.put("c", b"x")
        with pytest.raises(wire.Refused, match="--client-names=2"):
            client.put("c", b"mine")
        assert other.get("c")["version"] == 5
        for name in "abc":
            other.delete(name)
        client.put("c", b"mine")
        client.delete("c")


def test_names_of_clients_that_have_ended_are_charged_to_nobody_else(start):
    daemon = start("--client-names", "5")
    for i in range(4):
        with daemon.connect() as client:
            for j in range(5):
                client.put(f"{i}/{j}", b"x")
    with daemon.connect() as client:
        assert len(client.names()) == 20
        client.put("0/0", b"replaced")
        for name in client.names():
            client.delete(name)
        for j in range(5):
            client.put(f"{j}", b"x")
        for name in client.names():
            client.delete(name)


def test_references_of_bundles_are_limited_too(start):
    daemon = start("--client-storages", "4")
    with daemon.connect() as client, daemon.connect() as other:
        old = [client.alloc(1)["storage"] for _ in range(3)]
        pack = client.alloc(1)["storage"]
        client.attach(pack, *old)
        with pytest.raises(wire.Refused, match="--client-storages=4"):
            client.attach(pack, *old)
        other.hold(pack, *old)
        with pytest.raises(wire.Refused) as refused:
            other.attach(pack, *old)  # else it could use up what the maker may
        assert refused.value.status is Status.INVALID


def test_it_is_the_usual_exception_in_python(start):
    daemon = start("--client-bytes", "1M", "--client-names", "1")
    client = cx.Client(daemon.path, autostart=False)
    with pytest.raises(cx.OutOfMemory, match="--client-bytes=1048576") as caught:
        client.put("big", np.zeros(2 * MiB, np.uint8))
    assert isinstance(caught.value, MemoryError)
    client.put("one", np.zeros(3))
    with pytest.raises(cx.Error, match="--client-names=1"):
        client.put("two", np.zeros(3))
    assert client.names() == ["one"]
    client.delete("one")


def test_tickets_on_their_way_are_limited_and_those_that_arrived_do_not_count(start):
    daemon = start("--client-tickets", "3")
    with daemon.connect() as sender, daemon.connect() as receiver:
        storage = sender.alloc(100)["storage"]
        tickets = [sender.ticket(storage) for _ in range(3)]
        with pytest.raises(wire.Refused, match="--client-tickets=3") as refused:
            sender.ticket(storage)
        assert refused.value.status is Status.LIMIT
        receiver.alloc(1)
        receiver.redeem(tickets.pop(), storage)
        tickets.append(sender.ticket(storage))
        for ticket in tickets:
            receiver.redeem(ticket, storage)


def test_one_with_too_many_waiting_calls_is_told_so_and_others_can_wait(start):
    daemon = start("--max-waiting", "10")
    with daemon.connect() as greedy, daemon.connect() as other:
        for i in range(11):
            greedy.send("GET", f"late/{i}".encode(), flags=1)
        reply = greedy.receive()
        assert reply.status is Status.LIMIT and "--max-waiting" in reply.text
        other.send("GET", b"late/0", flags=1)
        with daemon.connect() as publisher:
            publisher.put("late/0", b"here")
            assert [c.receive()["grant"]["nbytes"] for c in (greedy, other)] == [4, 4]
            publisher.delete("late/0")
