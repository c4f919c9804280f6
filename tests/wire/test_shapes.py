"""Sizes, shapes and descriptions that a peer makes up never reach beyond a storage."""

import itertools

import pytest
import wire
from wire import BOOL, UINT8, Refused
from wire_table import CONSTANTS, Status

KiB, GiB = 1 << 10, 1 << 30

WRAPPING = {
    "2^32 x 2^32": wire.desc((2**32, 2**32), UINT8),
    "2^63-1 floats": wire.desc((2**63 - 1,)),
    "2^62 x 4": wire.desc((2**62, 4)),
    "wraps to 4 bytes": wire.desc((2**62 + 1,)),
    "65536^4": wire.desc((65536,) * 4),
    "negative": wire.desc((-1,)),
    "two negatives": wire.desc((-2, -2)),
    "negative beside zero": wire.desc((0, -5)),
    "most negative": wire.desc((-(2**63),)),
}

MALFORMED = {
    "negative ndim": wire.desc((1,), ndim=-1),
    "65 dimensions": wire.desc((1,) * 65)[: CONSTANTS["WIRE_DESC_MAX"]],
    "huge ndim": wire.desc((1,), ndim=2**31 - 1),
    "fewer dimensions than said": wire.desc((1,), ndim=2),
    "more dimensions than said": wire.desc((1, 1), ndim=1),
    "half a head": wire.desc(())[:12],
    "nothing": b"",
    "no lanes": wire.desc((1,), (2, 32, 0)),
    "half a byte": wire.desc((1,), (2, 4, 1)),
    "no bits": wire.desc((1,), (2, 0, 1)),
}

BEYOND = {
    "one element more": wire.desc((5,)),
    "byte offset": wire.desc((4,), byte_offset=4),
    "offset at the end": wire.desc((1,), byte_offset=16),
    "largest offset": wire.desc((1,), byte_offset=2**64 - 1),
    "offset wraps": wire.desc((4,), byte_offset=2**64 - 16),
    "negative stride": wire.desc((2,), strides=[-1]),
    "long stride": wire.desc((2,), strides=[4]),
    "huge stride": wire.desc((2,), strides=[2**62]),
    "most negative stride": wire.desc((3,), strides=[-(2**63)]),
    "strides whose sum wraps": wire.desc((2, 2), strides=[2**62, 2**62]),
    "wide element": wire.desc((1,), (2, 64, 16)),
    "empty but far away": wire.desc((0,), byte_offset=17),
}

BROKEN = WRAPPING | MALFORMED | BEYOND


@pytest.fixture
def storage(client):
    """16 bytes that belong to `client`."""
    return client.alloc(16)["storage"]


def expect_invalid(refused):
    assert refused.value.status is Status.INVALID
    assert refused.value.text, "no reason given"


@pytest.mark.parametrize("description", BROKEN.values(), ids=BROKEN.keys())
def test_publish_refuses_a_description_beyond_its_storage(client, storage, description):
    with pytest.raises(Refused) as refused:
        client.publish("name", storage, description)
    expect_invalid(refused)
    assert client.names() == []
    assert client.stats()["bytes"] == 16


@pytest.mark.parametrize("description", BROKEN.values(), ids=BROKEN.keys())
def test_put_refuses_a_description_beyond_its_data(client, description):
    with pytest.raises(Refused) as refused:
        client.put("name", bytes(16), description)
    expect_invalid(refused)
    assert client.names() == []
    assert client.stats()["storages"] == 0


@pytest.mark.parametrize(
    "description",
    [
        wire.desc((4,)),
        wire.desc((16,), BOOL),
        wire.desc((2,), strides=[-1], byte_offset=4),
        wire.desc((2**31, 0, 2**40)),
        wire.desc((0,), byte_offset=16),
        wire.desc((3,), byte_offset=4),
        wire.desc((2**40,), strides=[0]),
        wire.desc((1,) * 64),
        wire.desc((1,), strides=[2**62]),
    ],
    ids=lambda d: str(wire.parse_desc(d)["shape"])[:20],
)
def test_what_lies_inside_is_published_as_it_was_described(client, storage, description):
    client.publish("name", storage, description)
    assert client.get("name").tail == description
    client.delete("name")


@pytest.mark.parametrize("shape", [(), (0,), (5, 0), (0, 2**40), (2**31, 0, 2**40), (1, 8, 0, 128)])
def test_empty_and_scalar_shapes_keep_their_shape(client, shape):
    data = bytes(4) if shape == () else b""
    client.put("name", data, wire.desc(shape))
    reply = client.get("name")
    assert wire.parse_desc(reply.tail)["shape"] == shape
    assert reply["grant"]["nbytes"] == len(data)
    assert bool(reply["grant"]["segment"]) == bool(data), "nothing to map when empty"
    client.delete("name")


@pytest.mark.parametrize(
    "nbytes", [2**64 - 1, 2**64 - 255, 2**64 - 4096, 2**64 - 2**21, 2**63, 2**63 - 1, 2**62]
)
def test_an_impossible_size_is_never_a_small_storage(client, nbytes):
    before = client.stats()["committed_bytes"]
    with pytest.raises(Refused) as refused:
        client.alloc(nbytes)
    assert refused.value.status in (Status.OUT_OF_MEMORY, Status.INVALID)
    assert str(nbytes) in refused.value.text or "bytes" in refused.value.text
    assert client.stats()["committed_bytes"] <= before
    assert client.stats()["storages"] == 0


@pytest.mark.parametrize("device", [0, 2, 3, 10, 99, 2**16 - 1])
def test_memory_of_another_device_is_refused(client, device):
    with pytest.raises(Refused) as refused:
        client.call("ALLOC", nbytes=16, device_type=device)
    assert refused.value.status in (Status.INVALID, Status.EXCHANGE)
    assert "device" in refused.value.text


@pytest.mark.parametrize("device", [0, 2, 3, 2**16 - 1])
def test_a_description_on_another_device_than_its_storage_is_refused(client, storage, device):
    with pytest.raises(Refused) as refused:
        client.publish("name", storage, wire.desc((4,), device=device))
    expect_invalid(refused)


@pytest.mark.parametrize("n", [1, 7, 8, 255, 256, 257, 4095, 4096, 4097, 16383, 65537, 1 << 21])
def test_a_storage_has_exactly_the_size_asked_for(client, n):
    grant = client.alloc(n)
    assert grant["nbytes"] == n
    assert grant["offset"] % (4096 if n >= 64 * KiB else 256) == 0
    nbytes, fd = client.map(grant["segment"])
    with open(fd, "rb"):
        assert grant["offset"] + n <= nbytes


def test_two_storages_never_overlap(client):
    sizes = [1, 256, 257, 5000, 70_000, 1 << 20, 3, 0, 99] * 8
    grants = [client.alloc(n) for n in sizes]
    spans = sorted((g["segment"], g["offset"], g["offset"] + g["nbytes"]) for g in grants)
    for (segment, _, end), (next_segment, start, _) in itertools.pairwise(spans):
        assert segment == 0 or segment != next_segment or end <= start
    assert len({g["storage"] for g in grants}) == len(sizes), "an id was used twice"
