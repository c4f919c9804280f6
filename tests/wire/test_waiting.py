"""Calls in flight: pipelined, waiting, cancelled, abandoned."""

import contextlib

import pytest
import wire
from wire import Refused
from wire_table import CONSTANTS, Status

WAIT = CONSTANTS["GET_WAIT"]


def test_pipelined_requests_get_one_answer_each(client):
    sent = [client.send("STATS") for _ in range(100)]
    sent += [client.send("GET", b"nothing") for _ in range(100)]
    answers = [client.receive() for _ in sent]
    assert sorted(a.request for a in answers) == sorted(sent)
    assert sum(a.status is Status.NOT_FOUND for a in answers) == 100


def test_a_waiting_call_holds_up_nobody(client):
    waiting = client.send("GET", b"later", flags=WAIT)
    for _ in range(20):
        assert client.stats()["waiting"] == 1
    description = wire.desc((4,), wire.UINT8)
    client.send(
        "PUT", description + b"laterhere", **wire.put_fields(b"later", b"here", description)
    )
    answers = {reply.request: reply for reply in (client.receive(), client.receive())}
    assert answers[waiting].status is Status.OK
    assert answers[waiting]["grant"]["nbytes"] == 4
    client.delete("later")


def test_all_who_wait_for_a_name_are_woken(daemon, client):
    with contextlib.ExitStack() as stack:
        waiters = [stack.enter_context(daemon.connect()) for _ in range(30)]
        for waiter in waiters:
            waiter.send("GET", b"start", flags=WAIT)
        daemon.settle(waiting=30)
        client.put("start", b"go")
        for waiter in waiters:
            assert waiter.receive()["grant"]["nbytes"] == 2
        client.delete("start")


def test_more_than_are_woken_at_once_are_all_woken(daemon, client):
    with daemon.connect() as waiter:
        for _ in range(1000):
            waiter.send("GET", b"start", flags=WAIT)
        daemon.settle(waiting=1000)
        version = client.put("start", b"go")["version"]
        assert {waiter.receive()["version"] for _ in range(1000)} == {version}
    client.delete("start")


def test_waiting_for_something_newer_ends_with_the_next_version(daemon, client):
    first = client.put("name", b"old")["version"]
    with daemon.connect() as waiter:
        waiter.send("GET", b"name", flags=WAIT, newer_than=first)
        daemon.settle(waiting=1)
        second = client.put("name", b"newer")["version"]
        reply = waiter.receive()
        assert reply["version"] == second > first
        assert reply["grant"]["nbytes"] == 5
    with pytest.raises(Refused) as refused:
        client.get("name", newer_than=second)
    assert refused.value.status is Status.NOT_FOUND
    client.delete("name")


def test_a_cancelled_wait_is_answered_cancelled(client):
    waiting = client.send("GET", b"never", flags=WAIT)
    client.send("CANCEL", request=waiting)
    reply = client.receive()
    assert (reply.request, reply.status) == (waiting, Status.CANCELLED)
    assert client.stats()["waiting"] == 0


@pytest.mark.parametrize("number", [0, 4711, 2**32 - 1])
def test_cancelling_a_request_that_does_not_exist_changes_nothing(client, number):
    client.send("CANCEL", request=number)
    assert client.stats()["clients"] == 1


def test_cancelling_a_finished_request_changes_nothing(client):
    done = client.send("STATS")
    client.receive()
    client.send("CANCEL", request=done)
    assert client.stats()["clients"] == 1


def test_cancelling_somebody_elses_request_changes_nothing(daemon, client):
    with daemon.connect() as other:
        waiting = other.send("GET", b"mine", flags=WAIT)
        daemon.settle(waiting=1)
        client.send("CANCEL", request=waiting)
        client.put("mine", b"abc")
        assert other.receive().status is Status.OK
        client.delete("mine")


def test_a_cancel_that_comes_too_late_loses_nothing(client):
    """The answer was granted already: it still comes, so the client can give it back."""
    client.put("name", b"abc")
    waiting = client.send("GET", b"name", flags=WAIT)
    client.send("CANCEL", request=waiting)
    reply = client.receive()
    assert (reply.request, reply.status) == (waiting, Status.OK)
    client.delete("name")
    client.release((reply["grant"]["storage"], 2))
    assert client.stats()["storages"] == 0


def test_a_waiter_that_leaves_is_forgotten(daemon, client):
    for _ in range(10):
        with daemon.connect() as waiter:
            waiter.send("GET", b"ghost", flags=WAIT)
    daemon.settle(waiting=0, clients=1)
    client.put("ghost", b"abc")
    assert client.stats()["holds"] == 1, "a dead waiter was given a hold"
    client.delete("ghost")


def test_a_client_that_never_reads_is_bounded(daemon):
    """It asks for pages of a long list and reads none; everybody else is served as before."""
    with daemon.connect() as client:
        for i in range(300):
            client.put(f"{i:03}" + "x" * 200, b"x")
        with daemon.connect() as lazy:
            lazy.socket.settimeout(0)
            with contextlib.suppress(BlockingIOError, wire.Dropped):
                for _ in range(20_000):
                    lazy.send("LIST")
            for _ in range(20):
                assert client.get("000" + "x" * 200)["grant"]["nbytes"] == 1
            assert resident_mib(daemon.pid) < 256
        for name in client.names():
            client.delete(name)


def resident_mib(pid):
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * 4096 / 2**20


def test_many_waits_of_one_client_are_limited_or_served(daemon, client):
    with daemon.connect() as greedy:
        for i in range(2000):
            try:
                greedy.send("GET", b"w%d" % i, flags=WAIT)
            except wire.Dropped:
                break
        assert client.stats()["clients"] >= 1
    daemon.settle(waiting=0)


def test_what_a_client_held_goes_with_it(daemon):
    with daemon.connect() as client:
        for _ in range(100):
            client.alloc(1000)
        client.alloc(1 << 22)
    daemon.settle(holds=0, storages=0, bytes=0)


def test_a_commit_nobody_waits_for_any_more_is_undone(daemon):
    for _ in range(5):
        with daemon.connect() as client:
            client.send("ALLOC", nbytes=1 << 28, device_type=1)
    daemon.settle(storages=0, bytes=0, waiting=0)


def test_clients_are_listed_with_what_they_hold(daemon, client):
    client.alloc(1000)
    with daemon.connect(program="other") as other:
        other.send("GET", b"never", flags=WAIT)
        daemon.settle(waiting=1)
        seen = {c["program"]: c for c in client.clients()}
    assert seen["wire-test"]["storages"] == 1
    assert seen["wire-test"]["bytes"] == 1000
    assert seen["other"]["waiting"] == 1
    assert seen["other"]["connected"] == 1
