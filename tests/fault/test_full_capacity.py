"""A full store: an error with numbers, and everything works again when something is given back."""

import gc
import os

import numpy as np
import pytest
import wire
from helpers import Program
from wire_table import Status

import tensorcx as cx

MiB = 1 << 20


@pytest.fixture
def small(start):
    return start("--capacity", "32M")


def test_more_than_all_is_refused_with_all_the_numbers(small):
    client = cx.Client(small.path, autostart=False)
    with pytest.raises(cx.OutOfMemory) as caught:
        client.empty((100 * MiB,), "uint8")
    assert isinstance(caught.value, MemoryError)
    text = str(caught.value)
    assert any(asked in text for asked in (str(100 * MiB), "100 MiB", "100.0 MiB")), text
    assert any(limit in text for limit in (str(32 * MiB), "32 MiB", "32.0 MiB")), text
    assert "--capacity" in text


def test_the_error_says_who_holds_most(small):
    with Program("t = cx.zeros(20 << 20, 'uint8'); say('here'); hear()", socket=small.path) as hog:
        hog.expect("here")
        with small.connect() as client, pytest.raises(wire.Refused) as refused:
            client.alloc(20 * MiB)
        assert refused.value.status is Status.OUT_OF_MEMORY
        assert str(hog.pid) in refused.value.text
        hog.tell()
        hog.finish()


def test_filled_to_the_brim_and_one_given_back(small):
    client = cx.Client(small.path, autostart=False)
    kept = []
    with pytest.raises(cx.OutOfMemory):
        while len(kept) < 1000:
            kept.append(client.full((MiB,), len(kept), "uint8"))
    assert len(kept) >= 16
    kept.pop(3)
    gc.collect()
    kept.append(client.full((MiB,), 99, "uint8"))
    for i, tensor in enumerate(kept[:3]):
        assert (np.asarray(tensor) == i).all()
    assert small.stats()["committed_bytes"] <= 32 * MiB


def test_small_puts_fill_it_too(small):
    client = cx.Client(small.path, autostart=False)
    count = 0
    with pytest.raises(cx.OutOfMemory):
        while count < 100_000:
            client.put(f"n/{count}", np.zeros(4096, np.uint8))
            count += 1
    assert count >= 32 * MiB // 4096 // 2
    for name in client.names():
        client.delete(name)


def test_a_failed_put_changes_nothing(small):
    client = cx.Client(small.path, autostart=False)
    first = client.put("name", np.arange(10))
    with pytest.raises(cx.OutOfMemory):
        client.put("name", np.zeros(64 * MiB, np.uint8))
    assert client.get("name").version == first.version
    with pytest.raises(cx.OutOfMemory):
        client.put("bundle", {"a": np.zeros(64 * MiB, np.uint8), "b": np.zeros(3)})
    assert client.names() == ["name"]
    client.delete("name")


def test_the_warm_pool_gives_way(start):
    """Freed memory is kept for the next tensor, but never stands in its way."""
    daemon = start("--capacity", "64M", "--warm-seconds", "3600", checked=False)
    with daemon.connect() as client:
        for nbytes in [30 * MiB, 20 * MiB, 40 * MiB, 60 * MiB, 3 * MiB, 62 * MiB]:
            client.release((client.alloc(nbytes)["storage"], 1))
            assert client.stats()["storages"] == 0
            assert client.stats()["warm_bytes"] <= 16 * MiB


LIMITS = {
    "--max-storages": lambda client: client.alloc(1),
    "--max-names": lambda client: client.put(f"n{client.numbers}", b"x"),
    "--max-channels": lambda client: os.close(client.join(f"q{client.numbers}").fds[0]),
    "--max-waiting": lambda client: client.send("GET", b"never", flags=1),
}


@pytest.mark.parametrize("option", LIMITS)
def test_a_limit_names_its_option(start, option):
    daemon = start(option, "10")
    with daemon.connect() as client, pytest.raises(wire.Refused) as refused:
        for _ in range(12):
            LIMITS[option](client)
        reply = client.receive()
        raise wire.Refused(reply.status, reply.text)
    assert refused.value.status is Status.LIMIT
    assert option in refused.value.text and "10" in refused.value.text
    with daemon.connect() as client:
        for name in client.names():
            client.delete(name)


def test_too_many_clients_are_told_the_limit(start):
    daemon = start("--max-clients", "5", checked=False)
    clients = [daemon.connect() for _ in range(5)]
    with pytest.raises((wire.Refused, wire.Dropped)) as caught:
        daemon.connect().close()
    if isinstance(caught.value, wire.Refused):
        assert caught.value.status is Status.LIMIT and "--max-clients" in caught.value.text
    clients.pop().close()
    clients[0].stats()
    clients += [daemon.connect()]
    for client in clients:
        assert client.stats()["clients"] == 5
    for client in clients:
        client.close()


def test_a_channel_whose_buffers_cannot_be_had_sends_by_reference_until_they_can(small):
    client = cx.Client(small.path, autostart=False)
    large = np.full(4 * MiB, 7, "uint8")  # times 16 buffers
    with client.queue("q") as q:
        for message in large, {"x": large, "n": 3}:
            q.send(message)
        assert q.stats()["buffer_bytes"] == 0
        received = q.recv()
        assert received.is_shared and (received.numpy() == 7).all()
        assert (q.recv()["x"].numpy() == 7).all()
        with pytest.raises(cx.OutOfMemory, match=f"no memory for {64 * MiB} bytes"):
            q.loan(large.shape, "uint8")
        with pytest.raises(cx.OutOfMemory, match=f"no memory for {40 * MiB} bytes"):
            q.send(np.zeros(40 * MiB, "uint8"))
        del received
        q.send(large[:MiB])
        assert q.stats()["buffer_bytes"] == MiB
        assert not q.recv().is_shared
