"""Grants and holds: nobody gives back more than he was given, nobody is freed by somebody else."""

import itertools
import os

import pytest
import wire
from daemon import Daemon
from wire import Refused
from wire_table import CONSTANTS, Status


def test_every_reply_that_grants_adds_one(daemon, client):
    """Three grants: the put's own, and one for each get. The storage lives until all are back."""
    storage = client.put("name", b"abc")["grant"]["storage"]
    client.get("name")
    client.get("name")
    client.delete("name")
    client.release((storage, 2))
    assert client.stats()["storages"] == 1
    client.release((storage, 1))
    assert client.stats()["storages"] == 0


def test_a_release_that_crosses_a_new_grant_takes_nothing_away(client):
    """The client had received one grant when it let go; the second was on its way."""
    storage = client.put("name", b"abc")["grant"]["storage"]
    get = client.send("GET", b"name")
    client.release((storage, 1))
    client.send("DELETE", b"name")
    assert client.receive().request == get
    client.receive()
    assert client.stats()["storages"] == 1
    client.release((storage, 1))
    assert client.stats()["storages"] == 0


def test_one_release_carries_many(client):
    grants = [client.alloc(100) for _ in range(500)]
    client.release(*[(g["storage"], 1) for g in grants])
    assert client.stats()["storages"] == 0


@pytest.mark.parametrize("grants", [2, 2**32, 2**64 - 1])
def test_returning_more_grants_than_given_is_a_breach(client, drops, grants):
    storage = client.alloc(100)["storage"]
    client.release((storage, grants))
    drops.expect(client)


def test_returning_the_same_grant_twice_is_a_breach(client, drops):
    storage = client.alloc(100)["storage"]
    client.release((storage, 1), (storage, 1))
    drops.expect(client)


@pytest.mark.parametrize("storage", [0, 10**6, 2**64 - 1])
def test_returning_what_never_was_is_a_breach(client, drops, storage):
    client.release((storage, 1))
    drops.expect(client)


def test_returning_somebody_elses_grant_is_a_breach_and_harms_nobody(daemon, client, drops):
    storage = client.alloc(100)["storage"]
    with daemon.connect() as thief:
        thief.release((storage, 1))
        drops.expect(thief)
    assert client.stats()["storages"] == 1
    client.release((storage, 1))


def test_half_a_pair_is_a_breach(client, drops):
    client.send("RELEASE", bytes(15))
    drops.expect(client)


# ----------------------------------------------------------------------------------------- HOLD


def test_hold_gives_grants_in_the_order_asked(daemon, client):
    grants = [client.alloc(n) for n in (10, 20, 30)]
    with daemon.connect() as other:
        wanted = [grants[i]["storage"] for i in (2, 0, 1, 2)]
        held = other.hold(*wanted)
        assert [h["storage"] for h in held] == wanted
        assert [h["nbytes"] for h in held] == [30, 10, 20, 30]
        client.release(*[(g["storage"], 1) for g in grants])
        daemon.settle(holds=3, storages=3)
        other.release(*[(storage, 1) for storage in wanted])
        daemon.settle(storages=0)


@pytest.mark.parametrize("unknown", [0, 10**6, 2**64 - 1])
def test_hold_on_what_is_gone_is_stale_and_grants_nothing(client, unknown):
    storage = client.alloc(10)["storage"]
    with pytest.raises(Refused) as refused:
        client.hold(storage, unknown)
    assert refused.value.status is Status.STALE
    client.release((storage, 1))
    assert client.stats()["storages"] == 0, "a failed HOLD left a grant"


def test_hold_on_nothing_is_an_empty_answer(client):
    assert client.hold() == []


@pytest.mark.parametrize("name", ["HOLD", "ATTACH", "ALIVE"])
def test_half_an_id_is_a_breach(client, drops, name):
    client.send(name, bytes(7))
    drops.expect(client)


# --------------------------------------------------------------------------------------- ATTACH


def test_a_pack_keeps_what_is_attached_alive(daemon, client):
    old, pack = client.alloc(10)["storage"], client.alloc(20)["storage"]
    client.attach(pack, old)
    client.release((old, 1))
    assert client.stats()["storages"] == 2
    assert client.hold(old)[0]["nbytes"] == 10, "what a pack refers to can be held"
    client.release((old, 1), (pack, 1))
    assert client.stats()["storages"] == 0


def test_a_chain_of_packs_goes_with_its_last(client):
    storages = [client.alloc(8)["storage"] for _ in range(50)]
    for older, younger in itertools.pairwise(storages):
        client.attach(younger, older)
    client.release(*[(s, 1) for s in storages[:-1]])
    assert client.stats()["storages"] == 50
    client.release((storages[-1], 1))
    assert client.stats()["storages"] == 0


@pytest.mark.parametrize("case", ["younger", "itself", "foreign", "unknown", "unknown pack"])
def test_attach_takes_only_older_storages_that_the_client_holds(daemon, client, case):
    with daemon.connect() as other:
        foreign = other.alloc(5)["storage"]
        older, pack, younger = (client.alloc(5)["storage"] for _ in range(3))
        target, attached = {
            "younger": (pack, younger),
            "itself": (pack, pack),
            "foreign": (pack, foreign),
            "unknown": (pack, 2**50),
            "unknown pack": (2**50, older),
        }[case]
        with pytest.raises(Refused) as refused:
            client.attach(target, older, attached)
        assert refused.value.status in (Status.INVALID, Status.STALE)
        client.release((older, 1), (pack, 1), (younger, 1))
        other.release((foreign, 1))
        daemon.settle(storages=0)  # a failed ATTACH attached nothing


def test_more_than_may_be_attached_is_not_attached_in_part(tmp_path):
    with Daemon(tmp_path, "--max-storages", "4") as running, running.connect() as client:
        old, pack = client.alloc(10)["storage"], client.alloc(20)["storage"]
        client.attach(pack, old)
        with pytest.raises(Refused, match="--max-storages=4") as refused:
            client.attach(pack, *[old] * 4)
        assert refused.value.status is Status.LIMIT
        client.attach(pack, *[old] * 3)
        client.release((old, 1), (pack, 1))
        assert client.stats()["storages"] == 0


def test_publishing_a_foreign_storage_is_refused(daemon, client):
    storage = client.alloc(16)["storage"]
    with daemon.connect() as thief, pytest.raises(Refused) as refused:
        thief.publish("mine", storage, wire.desc((4,)))
    assert refused.value.status in (Status.INVALID, Status.STALE)
    assert client.names() == []


# -------------------------------------------------------------------------------- MAP and ALIVE


@pytest.mark.parametrize("segment", [0, 10**6, 2**64 - 1])
def test_mapping_what_is_no_segment_is_an_error(client, segment):
    with pytest.raises(Refused) as refused:
        client.map(segment)
    assert refused.value.status in (Status.STALE, Status.INVALID)


def test_a_mapped_segment_shows_what_another_client_wrote(daemon, client):
    grant = client.put("name", b"from the daemon's side")["grant"]
    with daemon.connect() as reader:
        nbytes, fd = reader.map(reader.get("name")["grant"]["segment"])
    with open(fd, "r+b") as segment:
        assert os.pread(segment.fileno(), grant["nbytes"], grant["offset"]) == (
            b"from the daemon's side"
        )
        assert os.fstat(segment.fileno()).st_size == nbytes
    client.delete("name")


def test_alive_tells_the_dead_segments_apart(daemon, client):
    big = 1 << 26  # one of its own
    one, two = client.alloc(big), client.alloc(big)
    assert one["segment"] != two["segment"]
    client.release((one["storage"], 1))
    daemon.settle(segments=1)
    reply = client.call("ALIVE", wire.ids([one["segment"], two["segment"], 10**9]))
    assert reply.tail == bytes([0, 1, 0])


def test_every_reply_counts_the_segments_destroyed(daemon, client):
    before = client.call("STATS").destroyed
    grant = client.alloc(1 << 26)
    client.release((grant["storage"], 1))
    daemon.settle(segments=0)
    assert client.call("STATS").destroyed > before


def test_descriptors_nobody_reads_are_limited(daemon):
    """Unread MAP replies hold descriptors in flight, which the kernel counts per user."""
    with daemon.connect() as lazy:
        segment = lazy.alloc(100)["segment"]
        sent = 0
        lazy.socket.settimeout(0)
        try:
            while sent < 5000:
                lazy.send("MAP", segment=segment)
                sent += 1
        except (BlockingIOError, wire.Dropped):
            pass
        with daemon.connect() as other:
            grant = other.alloc(100)
            os.close(other.map(grant["segment"])[1])
        lazy.socket.settimeout(wire.DEADLINE)


def test_the_flag_readonly_travels_with_the_description(client):
    client.put("fixed", bytes(4), wire.desc((1,), flags=CONSTANTS["DESC_READONLY"]))
    assert wire.parse_desc(client.get("fixed").tail)["flags"] == CONSTANTS["DESC_READONLY"]
    client.delete("fixed")
