"""A ticket keeps what is on its way; once nobody will come for it, the memory is had back."""

import os

import daemon as d
import pytest
import wire
from wire_table import Status

MIB = 1 << 20


@pytest.fixture(autouse=True)
def nothing_left(request):
    """In the daemon of the file, if a test uses it."""
    if "daemon" in request.fixturenames:
        request.getfixturevalue("daemon").settle_clean()
        yield
        request.getfixturevalue("daemon").settle_clean()
    else:
        yield


@pytest.fixture
def receiver(daemon):
    with daemon.connect(program="receiver") as connection:
        yield connection


def refused(connection: wire.Connection, call, *arguments) -> str:
    """The text of the refusal, which must be STALE."""
    with pytest.raises(wire.Refused) as error:
        call(*arguments)
    assert error.value.status is Status.STALE
    assert connection.stats()["pid"], "the connection goes on"
    return error.value.text


def failed(call) -> bool:
    try:
        call()
    except wire.Refused:
        return True
    return False


def test_a_ticket_is_redeemed_for_the_memory_it_was_made_for(daemon, client, receiver):
    storage = client.put("", b"on its way")["grant"]["storage"]
    ticket = client.ticket(storage)
    client.release((storage, 1))
    grant = receiver.redeem(ticket, storage)
    assert (grant["storage"], grant["nbytes"]) == (storage, 10)
    _, fd = receiver.map(grant["segment"])
    assert os.pread(fd, 10, grant["offset"]) == b"on its way"
    os.close(fd)
    assert receiver.stats()["tickets"] == 0
    receiver.release((storage, 1))
    daemon.settle(storages=0)


def test_a_redeemed_ticket_works_again_while_somebody_holds_the_storage(daemon, client, receiver):
    storage = client.alloc(100)["storage"]
    ticket = client.ticket(storage)
    for _ in range(3):
        receiver.redeem(ticket, storage)
    receiver.release((storage, 3))
    client.release((storage, 1))
    daemon.settle(storages=0)
    assert "--ticket-lease" in refused(receiver, receiver.redeem, ticket, storage)


def test_the_sender_may_redeem_its_own_ticket(client):
    storage = client.alloc(100)["storage"]
    ticket = client.ticket(storage)
    client.redeem(ticket, storage)
    client.release((storage, 2))
    assert client.stats()["storages"] == 0


def test_each_ticket_of_a_storage_keeps_it(client, receiver):
    storage = client.alloc(100)["storage"]
    tickets = [client.ticket(storage) for _ in range(3)]
    assert len(set(tickets)) == 3
    client.release((storage, 1))
    for ticket in tickets:
        receiver.redeem(ticket, storage)
        receiver.release((storage, 1))
    assert receiver.stats()["storages"] == 0


def test_a_ticket_outlives_its_sender(daemon, receiver):
    with daemon.connect() as sender:
        storage = sender.put("", b"last words")["grant"]["storage"]
        ticket = sender.ticket(storage)
    daemon.settle(clients=1)  # the receiver
    assert receiver.redeem(ticket, storage)["nbytes"] == 10
    assert receiver.stats()["tickets"] == 0


def test_a_ticket_keeps_what_a_pack_refers_to(client, receiver):
    old, pack = client.alloc(10)["storage"], client.alloc(20)["storage"]
    client.attach(pack, old)
    ticket = client.ticket(pack)
    client.release((old, 1), (pack, 1))
    receiver.redeem(ticket, pack)
    assert receiver.hold(old)[0]["nbytes"] == 10


def test_only_what_a_client_holds_it_can_send(client, receiver):
    storage = client.alloc(100)["storage"]
    refused(receiver, receiver.ticket, storage)
    client.release((storage, 1))
    refused(client, client.ticket, storage)


@pytest.mark.parametrize("storage", [0, 10**6, 2**64 - 1])
def test_a_ticket_for_what_never_was_is_refused(client, storage):
    refused(client, client.ticket, storage)


@pytest.mark.parametrize("ticket", [0, 10**6, 2**64 - 1])
def test_an_unknown_ticket_is_worth_what_the_storage_is(daemon, client, receiver, ticket):
    """It may have been used up, or taken back."""
    storage = client.alloc(100)["storage"]
    assert receiver.redeem(ticket, storage)["nbytes"] == 100
    receiver.release((storage, 1))
    client.release((storage, 1))
    daemon.settle(storages=0)
    refused(receiver, receiver.redeem, ticket, storage)


def test_a_ticket_of_another_storage_is_refused_and_not_used_up(client, receiver):
    one, other = client.alloc(10)["storage"], client.alloc(20)["storage"]
    ticket = client.ticket(one)
    refused(receiver, receiver.redeem, ticket, other)
    refused(receiver, receiver.redeem, ticket, 10**6)
    client.release((one, 1), (other, 1))
    assert receiver.redeem(ticket, one)["nbytes"] == 10


# --------------------------------------------------------------------------------------- the lease


def test_tickets_nobody_redeems_are_taken_back_when_no_client_is_left(tmp_path):
    with d.Daemon(tmp_path, "--ticket-lease", "0.2", "--warm-seconds", "0") as running:
        with running.connect() as sender:
            sender.ticket(sender.alloc(MIB)["storage"])
        d.settle(lambda: "event=ticket.expire count=1 bytes=1048576" in running.log())
        assert running.stats()["tickets"] == 0
        running.settle_clean()


def test_while_somebody_is_there_an_expired_ticket_can_be_redeemed(tmp_path):
    with d.Daemon(tmp_path, "--ticket-lease", "0.001") as running, running.connect() as receiver:
        with running.connect() as sender:
            storage = sender.alloc(MIB)["storage"]
            ticket = sender.ticket(storage)
        running.settle(clients=1, holds=0)
        assert receiver.redeem(ticket, storage)["nbytes"] == MIB


def test_without_a_lease_tickets_go_with_their_senders_hold(tmp_path):
    with d.Daemon(tmp_path, "--ticket-lease", "0") as running, running.connect() as client:
        storage = client.alloc(100)["storage"]
        ticket = client.ticket(storage)
        assert client.stats()["tickets"] == 1
        client.redeem(client.ticket(storage), storage)
        client.release((storage, 2))
        d.settle(lambda: client.stats()["tickets"] == 0)
        assert client.stats()["storages"] == 0
        refused(client, client.redeem, ticket, storage)


@pytest.mark.parametrize("shares", [1, 3, 300])
def test_expired_tickets_make_room_before_memory_is_refused(tmp_path, shares):
    """The whole capacity is on its way to somebody who never came."""
    options = ("--capacity", "32M", "--ticket-lease", "0.001")
    with d.Daemon(tmp_path, *options) as running, running.connect() as client:
        with running.connect() as sender:
            for _ in range(shares):
                sender.ticket(sender.alloc(30 * MIB // shares)["storage"])
        running.settle(clients=1, holds=0, tickets=shares)
        d.settle(lambda: not failed(lambda: client.alloc(28 * MIB)))
        assert client.stats()["tickets"] == 0
        assert f"event=ticket.expire count={shares} " in running.log()


def test_expired_tickets_make_room_among_the_storages(tmp_path):
    options = ("--max-storages", "10", "--ticket-lease", "0.001")
    with d.Daemon(tmp_path, *options) as running, running.connect() as client:
        with running.connect() as sender:
            for _ in range(10):
                sender.ticket(sender.alloc(8)["storage"])
        running.settle(clients=1, holds=0, storages=10)
        d.settle(lambda: not failed(lambda: client.alloc(8)))
        assert client.stats()["storages"] == 1


def test_expired_tickets_make_room_in_their_senders_own_limits(tmp_path):
    options = ("--client-bytes", "4M", "--client-tickets", "2", "--ticket-lease", "0.001")
    with d.Daemon(tmp_path, *options) as running, running.connect() as client:

        def send():
            storage = client.alloc(2 * MIB)["storage"]
            client.ticket(storage)
            client.release((storage, 1))

        for _ in range(6):
            d.settle(lambda: not failed(send))
        assert client.stats()["tickets"] <= 2


def test_a_client_has_only_so_many_tickets(tmp_path):
    options = ("--client-tickets", "3")
    with d.Daemon(tmp_path, *options) as running, running.connect() as client:
        storage = client.alloc(8)["storage"]
        tickets = [client.ticket(storage) for _ in range(3)]
        with pytest.raises(wire.Refused) as error:
            client.ticket(storage)
        assert error.value.status is Status.LIMIT
        assert "--client-tickets=3" in error.value.text and "maxsize" in error.value.text
        client.redeem(tickets[1], storage)
        client.ticket(storage)


def test_there_are_only_so_many_tickets_whoever_made_them(tmp_path):
    """Expired ones make room, those of clients that are gone as well."""
    options = ("--max-storages", "10", "--ticket-lease", "0.001")
    with d.Daemon(tmp_path, *options) as running, running.connect() as client:

        def send_ten(sender):
            storage = sender.alloc(8)["storage"]
            for _ in range(10):
                d.settle(lambda: not failed(lambda: sender.ticket(storage)))
            assert client.stats()["tickets"] == 10
            return storage

        for _ in range(3):
            with running.connect() as sender:
                send_ten(sender)
        storage = send_ten(client)
        with pytest.raises(wire.Refused) as error:
            client.ticket(storage)
        assert error.value.status is Status.LIMIT
        assert "--max-storages" in error.value.text and "maxsize" in error.value.text


def test_who_finds_no_memory_is_told_what_tickets_keep(tmp_path):
    with d.Daemon(tmp_path, "--capacity", "64M") as running, running.connect() as client:

        def text():
            with pytest.raises(wire.Refused) as error:
                client.alloc(60 * MIB)
            assert error.value.status is Status.OUT_OF_MEMORY
            return error.value.text

        storages = [client.alloc(4 * MIB)["storage"] for _ in range(3)]
        pack = client.alloc(100)["storage"]
        client.attach(pack, storages[2])
        tickets = [client.ticket(storage) for storage in (*storages, pack, pack)]
        assert "tickets" not in text()  # their sender holds it all
        client.release(*((storage, 1) for storage in storages))
        assert "5 tickets that nobody has redeemed keep 8 MiB" in text()
        client.redeem(tickets[0], storages[0])
        assert "4 tickets that nobody has redeemed keep 4 MiB" in text()
        client.redeem(tickets[1], storages[1])
        assert "tickets" not in text()
        client.release((storages[0], 1), (storages[1], 1), (pack, 1))
        assert "3 tickets that nobody has redeemed keep 100 bytes" in text()


@pytest.mark.parametrize("why", ["its sender holds it", "its lease is not over"])
def test_a_ticket_that_may_still_be_redeemed_is_not_taken_for_memory(tmp_path, why):
    options = ("--capacity", "32M", "--ticket-lease", "60" if "lease" in why else "0.001")
    with d.Daemon(tmp_path, *options) as running, running.connect() as client:
        storage = client.alloc(30 * MIB)["storage"]
        ticket = client.ticket(storage)
        if "lease" in why:
            client.release((storage, 1))
        with pytest.raises(wire.Refused) as error:
            client.alloc(28 * MIB)
        assert error.value.status is Status.OUT_OF_MEMORY
        assert client.redeem(ticket, storage)["nbytes"] == 30 * MIB


def test_a_killed_sender_is_done_as_well(tmp_path):
    options = ("--capacity", "32M", "--ticket-lease", "0.001")
    with d.Daemon(tmp_path, *options) as running, running.connect() as client:
        sender = os.fork()
        if sender == 0:
            connection = running.connect(life_page=True)
            connection.ticket(connection.alloc(30 * MIB)["storage"])
            os.kill(os.getpid(), 9)
        os.waitpid(sender, 0)
        running.settle(clients=1, holds=0, tickets=1)
        d.settle(lambda: not failed(lambda: client.alloc(28 * MIB)))


def test_the_lease_begins_though_children_keep_what_the_sender_held(tmp_path):
    with d.Daemon(tmp_path, "--ticket-lease", "0", "--warm-seconds", "0") as running:
        with running.connect() as client:
            storage = client.alloc(100)["storage"]
            client.ticket(storage)
            page = client.fork()
            client.release((storage, 1))
            d.settle(lambda: client.stats()["tickets"] == 0)
            assert client.stats()["storages"] == 1
            page.close()
        running.settle_clean()


def test_the_daemon_does_not_end_for_want_of_work_before_the_lease(tmp_path):
    options = ("--idle-exit", "1", "--ticket-lease", "60")
    with d.Daemon(tmp_path, *options) as running:
        with running.connect() as sender:
            storage = sender.alloc(100)["storage"]
            ticket = sender.ticket(storage)
        d.settle(lambda: "event=client.close" in running.log())
        with pytest.raises(AssertionError):  # a time in which it would have ended
            d.settle(lambda: running.process.poll() is not None, deadline=1.5)
        with running.connect() as receiver:
            receiver.redeem(ticket, storage)
        assert running.process.wait(d.DEADLINE) == 0


def test_the_daemon_ends_for_want_of_work_after_the_lease(tmp_path):
    with d.Daemon(tmp_path, "--idle-exit", "1", "--ticket-lease", "0.05") as running:
        with running.connect() as sender:
            sender.ticket(sender.alloc(100)["storage"])
        assert running.process.wait(d.DEADLINE) == 0
        assert "event=ticket.expire count=1 bytes=100" in running.log()


def test_the_daemon_ends_in_good_order_with_tickets_on_their_way(tmp_path):
    with d.Daemon(tmp_path) as running, running.connect() as client:
        storage = client.alloc(MIB)["storage"]
        for _ in range(5):
            client.ticket(storage)
        with running.connect() as gone:
            gone.ticket(gone.alloc(MIB)["storage"])
        running.stop()
