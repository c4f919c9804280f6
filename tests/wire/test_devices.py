"""CUDA devices on the wire, in both ways to share them, on the fake driver: sizes, who has what
mapped, unclean ends, shortage."""

import os
import random
import signal

import daemon as d
import fakecuda
import pytest
import wire
from importer import Importer
from refusal import refused
from ring import Seat
from wire_table import CONSTANTS, Status

MiB = 1 << 20
SLAB = 16 * MiB
TOTAL = 1 << 30
CUDA = 2
MAPPINGS = {"vmm": 1, "ipc": 2}


@pytest.fixture(scope="module", params=MAPPINGS)
def mode(request):
    return request.param


@pytest.fixture(scope="module")
def daemon(mode, tmp_path_factory):
    """Overrides that of all wire tests: this one has two devices."""
    directory = tmp_path_factory.mktemp("devices")
    options = ["--warm-seconds", "0", "--idle-exit", "0", f"--cuda={mode}"]
    with fakecuda.machine("2"), d.Daemon(directory, *options) as running:
        with running.connect() as first:  # what the daemon makes only once
            first.put("warm-up", b"x")
            first.delete("warm-up")
            first.devices()
            if mode == "ipc":
                first.alloc(1, 1), first.alloc(1, 2)
        settle_empty(running)
        yield running
        settle_empty(running)


@pytest.fixture(autouse=True)
def empty_devices(daemon, nothing_left):
    yield
    settle_empty(daemon)


@pytest.fixture
def importer(daemon):
    with Importer(daemon.path) as process:
        yield process


def device(daemon, number=1) -> dict:
    with daemon.connect() as observer:
        return observer.devices()[number - 1]


def settle_device(daemon, number=1, **wanted):
    """Waits until DEVICES tells these figures of a device."""

    def reached():
        seen.update(device(daemon, number))
        return all(seen[name] == value for name, value in wanted.items())

    seen: dict = {}
    try:
        d.settle(reached)
    except AssertionError as error:
        raise AssertionError(f"wanted {wanted}, the device stays at {seen}") from error


def settle_empty(daemon):
    for number in 1, 2:
        settle_device(daemon, number, storages=0, bytes=0, committed_bytes=0, dying_bytes=0)
    d.settle(lambda: not fakecuda.left(), "the end of device memory")


# ---------------------------------------------------------------------------------------- devices


def test_devices_are_told_with_uuid_name_and_figures(client, mode):
    for number, told in enumerate(client.devices(), 1):
        assert told["device"] == number
        assert told["uuid"].hex() == fakecuda.UUIDS[number - 1]
        assert told["name"].rstrip(b"\0") == b"Fake GPU"
        assert told["mapping"] == MAPPINGS[mode]
        assert told["total_bytes"] == TOTAL
        assert told["capacity_bytes"] == TOTAL // 100 * 90 // (2 * MiB) * (2 * MiB)
    assert client.stats()["devices"] == 2


def test_a_client_that_asks_for_no_device_starts_nothing(tmp_path):
    with fakecuda.machine(FAKECUDA_TRACE=str(tmp_path / "trace")), d.Daemon(tmp_path) as daemon:
        with daemon.connect() as client:
            client.put("x", b"x")
            assert client.stats()["devices"] == 0
        assert not fakecuda.calls(tmp_path / "trace")


# ------------------------------------------------------------------------------------------ alloc


@pytest.mark.parametrize(
    "nbytes, committed",
    [(1, SLAB), (2 * MiB - 1, SLAB), (2 * MiB + 1, SLAB), (SLAB, SLAB), (SLAB + 1, SLAB + 2 * MiB)],
)
def test_memory_is_made_in_whole_units(daemon, client, nbytes, committed):
    grant = client.alloc(nbytes, 1)
    assert (grant["nbytes"], grant["segment"] >> 56) == (nbytes, 1)
    assert device(daemon)["committed_bytes"] == committed == fakecuda.used(0)
    assert device(daemon)["bytes"] == nbytes
    assert device(daemon, 2)["committed_bytes"] == 0 == client.stats()["committed_bytes"]
    assert client.stats()["bytes"] == 0


def test_no_bytes_need_no_memory(daemon, client):
    grant = client.alloc(0, 2)
    assert (grant["segment"], grant["offset"]) == (0, 0)
    told = device(daemon, 2)
    assert (told["storages"], told["committed_bytes"]) == (1, 0)


def test_small_ones_share_segments_and_descriptors(daemon, client):
    before = len(d.descriptors(daemon.pid))
    grants = [client.alloc(1000, 1) for _ in range(10_000)]
    assert len({(g["segment"], g["offset"]) for g in grants}) == len(grants)
    assert {g["segment"] for g in grants} == {grants[0]["segment"]}
    assert len(d.descriptors(daemon.pid)) <= before + 2


def test_more_than_the_device_has_is_told_at_once(client):
    device = ("Fake GPU, GPU-face0000-", "1 GiB")
    with refused(Status.OUT_OF_MEMORY, "a larger --cuda-capacity", *device):
        client.alloc(TOTAL, 1)
    for nbytes in 2**63, 2**64 - 1:
        with refused(Status.OUT_OF_MEMORY, "the device has not so much", *device):
            client.alloc(nbytes, 1)


@pytest.mark.parametrize("kind, number", [(1, 1), (2, 0), (0, 0), (13, 1)])
def test_a_kind_and_its_number_must_fit(client, kind, number):
    with refused(Status.INVALID, f"device type {kind}, device {number}"):
        client.call("ALLOC", nbytes=1, device_type=kind, device=number)


@pytest.mark.parametrize("number", [3, 65535])
def test_a_device_that_is_not_there_is_told(client, number):
    with refused(Status.INVALID, f"CUDA device {number}: this daemon has 2"):
        client.alloc(1, number)


def test_clients_are_told_how_much_everybody_holds_where(client):
    client.alloc(5000, 1), client.alloc(7000, 2), client.alloc(300)
    (told,) = client.clients()
    assert (told["bytes"], told["device_bytes"], told["storages"]) == (300, 12_000, 3)


# ------------------------------------------------------------------------------------------ names


def test_a_name_must_tell_the_device_of_its_memory(client):
    storage = client.alloc(12, 2)["storage"]
    for kind, index in (1, 0), (CUDA, 1), (CUDA, 0), (1, 2):
        with refused(Status.INVALID, "another device"):
            client.publish("x", storage, wire.desc((3,), device=kind, index=index))
    client.publish("x", storage, wire.desc((3,), device=CUDA, index=2))
    assert wire.parse_desc(client.get("x").tail)["device"] == 2
    client.delete("x")


def test_a_name_of_no_bytes_has_a_device_too(client):
    storage = client.alloc(0, 1)["storage"]
    with refused(Status.INVALID, "another device"):
        client.publish("x", storage, wire.desc((0,)))
    client.publish("x", storage, wire.desc((0,), device=CUDA, index=1))
    client.delete("x")


def test_data_in_a_message_is_for_the_cpu(client):
    with refused(Status.INVALID, "another device"):
        client.put("x", b"abcd", wire.desc((1,), device=CUDA, index=1))


def test_a_ticket_takes_memory_of_a_device_along(daemon, client):
    storage = client.alloc(100, 1)["storage"]
    ticket = client.ticket(storage)
    client.release((storage, 1))
    with daemon.connect() as other:
        assert other.redeem(ticket, storage)["segment"] >> 56 == 1


# -------------------------------------------------------------------------------------------- map


def test_a_segment_comes_as_a_descriptor_or_as_a_handle(importer, mode):
    segment = importer.alloc(100, 2)["segment"]
    told = importer.map(segment)
    assert (told["segment"], told["device"], told["nbytes"]) == (segment, 2, SLAB)
    assert (told["mapping"], told["fds"], told["tail"]) == {
        "vmm": (1, 1, 0),
        "ipc": (2, 0, CONSTANTS["WIRE_IPC_HANDLE"]),
    }[mode]


def test_a_segment_of_no_device_is_gone(importer):
    segment = importer.alloc(100, 1)["segment"]
    for other in (
        segment + 1,
        segment + (1 << 56),
        segment + (9 << 56),
        segment ^ (1 << 56),
        2**64 - 1,
    ):
        with refused(Status.STALE):
            importer.map(other)
        assert importer.alive(other) == [0]
    assert importer.alive(segment) == [1]


def test_what_is_mapped_lingers_until_it_is_unmapped(daemon, importer):
    grant = importer.alloc(64 * MiB, 1)
    importer.map(grant["segment"])
    importer.release(grant["storage"])
    settle_device(daemon, committed_bytes=0, dying_bytes=64 * MiB)
    assert importer.alive(grant["segment"]) == [0]
    assert fakecuda.used(0) == 64 * MiB
    importer.unmap(grant["segment"])
    settle_empty(daemon)


def test_each_map_is_unmapped(daemon, importer):
    grant = importer.alloc(64 * MiB, 1)
    for _ in range(3):
        importer.map(grant["segment"])
    importer.release(grant["storage"])
    importer.unmap(grant["segment"], grant["segment"])
    settle_device(daemon, dying_bytes=64 * MiB)
    importer.unmap(grant["segment"])
    settle_empty(daemon)


def test_all_who_have_it_mapped_must_be_done(daemon, importer):
    grant = importer.alloc(64 * MiB, 1)
    importer.map(grant["segment"])
    with Importer(daemon.path) as other:
        other.hold(grant["storage"])
        other.map(grant["segment"])
        importer.release(grant["storage"]), other.release(grant["storage"])
        importer.unmap(grant["segment"])
        settle_device(daemon, dying_bytes=64 * MiB)
    settle_empty(daemon)  # its process has ended


@pytest.mark.parametrize("times", [0, 1])
def test_unmapping_what_is_not_mapped_is_a_breach(daemon, times):
    dropped = daemon.stats()["dropped"]
    with Importer(daemon.path) as process:
        segment = process.alloc(100, 1)["segment"]
        for _ in range(times):
            process.map(segment)
        assert process.unmap(*[segment] * (times + 1)) == "dropped"
    daemon.settle(dropped=dropped + 1, clients=0)


@pytest.mark.parametrize("segment", [0, 1, 2**64 - 1])
def test_unmapping_a_segment_of_no_device_is_a_breach(client, drops, segment):
    client.alloc(100)
    client.unmap(segment)
    drops.expect(client)


def test_ids_that_are_none_are_a_breach(client, drops):
    client.send("UNMAP", b"1234")
    drops.expect(client)


# ------------------------------------------------------------------------------------------- ends


def test_what_a_killed_client_held_is_not_handed_out_again(daemon, client):
    other = client.alloc(1000, 1)
    with Importer(daemon.path) as process:
        held = process.alloc(2 * MiB, 1)
        process.map(held["segment"])
        process.kill()
    daemon.settle(holds=1)
    assert held["segment"] == other["segment"]
    taken = [client.alloc(MiB, 1) for _ in range(20)]
    begin, end = held["offset"], held["offset"] + held["nbytes"]
    for grant in taken:
        outside = grant["offset"] + MiB <= begin or end <= grant["offset"]
        assert grant["segment"] != held["segment"] or outside


def test_what_a_client_returned_is_handed_out_again(daemon, client):
    client.alloc(1000, 1)
    with Importer(daemon.path) as process:
        held = process.alloc(2 * MiB, 1)
        process.map(held["segment"])
        process.release(held["storage"])
        process.kill()
    assert client.alloc(2 * MiB, 1) == held | {"storage": held["storage"] + 1}


def test_a_client_is_gone_only_when_its_process_is(daemon, importer):
    held = importer.alloc(64 * MiB, 1)
    importer.map(held["segment"])
    importer.disconnect()
    daemon.settle(clients=0)
    settle_device(daemon, storages=1, bytes=64 * MiB)
    os.kill(importer.pid, signal.SIGSTOP)
    settle_device(daemon, storages=1, bytes=64 * MiB)
    os.kill(importer.pid, signal.SIGCONT)
    importer.kill()
    settle_empty(daemon)


def test_a_client_that_maps_nothing_any_more_is_gone_with_its_life_page(daemon, importer):
    grant = importer.alloc(64 * MiB, 1)
    importer.map(grant["segment"])
    importer.unmap(grant["segment"])
    importer.disconnect()
    settle_empty(daemon)


def test_a_client_that_mapped_nothing_is_gone_with_its_life_page(daemon, importer):
    importer.alloc(64 * MiB, 1)
    importer.disconnect()
    settle_empty(daemon)


@pytest.mark.parametrize("step", ["alloc", "map", "release", "unmap"])
def test_a_client_that_is_killed_at_any_point_leaves_nothing(daemon, step):
    with Importer(daemon.path) as process:
        grant = process.alloc(64 * MiB, 1)
        if step != "alloc":
            process.map(grant["segment"])
        if step in ("release", "unmap"):
            process.release(grant["storage"])
        if step == "unmap":
            process.unmap(grant["segment"])
        process.kill()
    settle_empty(daemon)


def test_a_client_that_is_killed_while_it_waits_leaves_nothing(daemon):
    for _ in range(10):
        with Importer(daemon.path) as process:
            process.start("alloc", 512 * MiB, 1)
            process.kill()
    settle_empty(daemon)


def test_memory_of_a_device_is_not_kept_for_children(daemon, client):
    grant = client.alloc(64 * MiB, 1)
    page = client.fork()
    client.release((grant["storage"], 1))
    settle_device(daemon, storages=0)
    page.close()


class Disorder:
    """Clients that take, map, release, unmap in any order, and are killed in between."""

    def __init__(self, path, seed: int):
        self.path, self.random = path, random.Random(seed)
        self.clients = [(Importer(path), [], []) for _ in range(4)]

    def step(self):
        number = self.random.randrange(len(self.clients))
        client, held, mapped = self.clients[number]
        match self.random.choices(["take", "map", "release", "unmap", "kill"], [4, 4, 4, 3, 1])[0]:
            case "take":
                nbytes = self.random.choice([100, 3 * MiB, 20 * MiB])
                held.append(client.alloc(nbytes, self.random.choice([1, 2])))
            case "map" if held:
                segment = self.random.choice(held)["segment"]
                client.map(segment)
                mapped.append(segment)
            case "release" if held:
                client.release(held.pop(self.random.randrange(len(held)))["storage"])
            case "unmap" if mapped:
                client.unmap(mapped.pop(self.random.randrange(len(mapped))))
            case "kill":
                client.kill()
                self.clients[number] = (Importer(self.path), [], [])

    def end(self):
        for client, _, _ in self.clients:
            client.__exit__()


@pytest.mark.parametrize("seed", range(3))
def test_whatever_clients_do_nothing_is_left(daemon, seed):
    disorder = Disorder(daemon.path, seed)
    for _ in range(200):
        disorder.step()
    disorder.end()
    settle_empty(daemon)
    daemon.settle(clients=0)


# --------------------------------------------------------------------------------------- shortage


def test_who_finds_no_memory_gets_what_is_unmapped_meanwhile(daemon, client, importer):
    grant = importer.alloc(600 * MiB, 1)
    importer.map(grant["segment"])
    importer.release(grant["storage"])
    settle_device(daemon, dying_bytes=600 * MiB)
    number = client.send("ALLOC", nbytes=700 * MiB, device_type=CUDA, device=1)
    settle_device(daemon, committed_bytes=700 * MiB)  # it waits
    importer.unmap(grant["segment"])
    reply = client.receive()
    assert (reply.request, reply.status) == (number, Status.OK)


def test_who_waits_in_vain_is_told_who_has_it_mapped(daemon, client, importer):
    grant = importer.alloc(600 * MiB, 1)
    importer.map(grant["segment"])
    importer.release(grant["storage"])
    with refused(
        Status.OUT_OF_MEMORY, "driver has none left", "committed", f"pid {importer.pid}, wire-test",
        "still has 600 MiB mapped",
    ):  # fmt: skip
        client.alloc(700 * MiB, 1)
    client.alloc(300 * MiB, 1)  # there is that much
    assert client.alloc(100)["segment"] >> 56 == 0


def test_a_killed_client_makes_room_for_who_waits(daemon, client):
    with Importer(daemon.path) as process:
        grant = process.alloc(600 * MiB, 1)
        process.map(grant["segment"])
        process.release(grant["storage"])
        settle_device(daemon, dying_bytes=600 * MiB)
        client.send("ALLOC", nbytes=700 * MiB, device_type=CUDA, device=1)
        process.kill()
    assert client.receive().status is Status.OK


def test_the_capacity_is_a_limit_of_its_own(client):
    client.alloc(500 * MiB, 1)
    with refused(Status.OUT_OF_MEMORY, "capacity is used up", "in use 500 MiB by 1 tensors"):
        client.alloc(500 * MiB, 1)
    client.alloc(500 * MiB, 2)


# --------------------------------------------------------------------------------------- channels


def test_buffers_lie_on_the_device_that_was_asked_for(daemon, client):
    seats = [
        client.join("a", buffer_nbytes=1000, device=2, capacity=2),
        client.join("b", capacity=2),
    ]
    for seat in seats:
        os.close(seat.fds[0])
    assert seats[0]["grant"]["segment"] >> 56 == 2
    told = client.call("BUFFERS", channel=seats[1]["channel"], nbytes=1000, device=1)
    assert told["grant"]["segment"] >> 56 == 1
    assert [(c["name"], c["device"]) for c in client.channels()] == [("a", 2), ("b", 1)]
    assert device(daemon, 2)["storages"] == 1


def test_who_asks_for_another_device_is_told(client):
    os.close(client.join("a", buffer_nbytes=1000, device=2).fds[0])
    with refused(Status.INVALID, "another device"):
        client.join("a", buffer_nbytes=1000, device=1)
    with refused(Status.INVALID, "this daemon has 2"):
        client.join("b", buffer_nbytes=1000, device=7)
    os.close(client.join("a", buffer_nbytes=1000).fds[0])


def test_buffers_of_the_dead_are_free_only_when_their_process_has_ended(daemon, client):
    seat = Seat(client.join("a", buffer_nbytes=1000, device=1))
    with Importer(daemon.path) as process:
        _, slot = process.seat("a")
        process.map(seat.grant["segment"])
        process.disconnect()
        daemon.settle(clients=1)
        assert seat.uses(slot) == {0}
        process.kill()
        d.settle(lambda: seat.uses(slot) == set(), "the dead one's buffers")


def test_a_returned_buffer_is_not_kept_for_children(client):
    seat = Seat(client.join("a", buffer_nbytes=1000, device=1))
    seat.use(0)
    page = client.fork()
    client.send("RETURN", channel=seat.channel, slot=seat.slot, buffer=0)
    client.stats()
    assert seat.uses() == set()
    page.close()
