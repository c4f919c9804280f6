"""Memory that was sent and never taken, taken twice, too late, or from somebody who is gone."""

import pickle

import daemon as d
import numpy as np
import pytest
from helpers import Program

import tensorcx as cx
from tensorcx import _default

MiB = 1 << 20

SENDER = """
import pickle
t = cx.full(1 << 20, 7, "uint8")
data = [pickle.dumps(t.ref()) for _ in range(int(sys.argv[1]))]
say(*(x.hex() for x in data))
if hear() == "let go":
    t.close()
    say("done")
    hear()
die()
"""


def sent(program) -> list[bytes]:
    return [bytes.fromhex(word) for word in program.line().split()]


@pytest.fixture
def client(start):
    """Makes clients, and closes them before the daemons of start() are looked at."""
    made = []

    def client(daemon):
        made.append(cx.Client(daemon.path, autostart=False))
        return made[-1]

    yield client
    for one in made:
        one.close()


@pytest.fixture(autouse=True)
def receivers(start, monkeypatch, tmp_path):
    """The clients that unpickling makes. No daemon is the default one: the pickle names it."""
    monkeypatch.setenv("TENSORCX_SOCKET", str(tmp_path / "none"))
    made = {}
    monkeypatch.setattr(_default, "_clients", made)
    yield made
    for one in made.values():
        one.close()


def is_all(tensor, value):
    return (tensor.numpy() == value).all()


# ------------------------------------------------------------------------------------- never taken


def test_what_nobody_takes_goes_when_the_last_client_is_gone(start):
    daemon = start("--ticket-lease", "0")
    with Program(SENDER, 3, socket=daemon.path) as program:
        sent(program)
        assert daemon.stats()["tickets"] == 3
        program.kill()
    daemon.settle(clients=0, tickets=0, storages=0, bytes=0)


def test_without_a_lease_it_goes_with_the_senders_last_hold(start, client):
    daemon = start("--ticket-lease", "0")
    sender = client(daemon)
    t = sender.full(MiB, 7, "uint8")
    data = pickle.dumps(t.ref())
    assert is_all(pickle.loads(data), 7)
    data = pickle.dumps(t.ref())
    t.close()
    daemon.settle(tickets=0, bytes=0)
    with pytest.raises(cx.Stale):
        pickle.loads(data)


def test_a_ticket_is_kept_for_its_lease_also_when_memory_is_short(start, client):
    daemon = start("--capacity", "64M")
    receiver = client(daemon)
    private = np.full(40 * MiB, 7, "uint8")  # the copy is held by nothing but its ticket
    data = pickle.dumps(receiver.asarray(private).ref())
    with pytest.raises(cx.OutOfMemory):
        receiver.empty(40 * MiB, "uint8")
    assert is_all(pickle.loads(data), 7)
    assert receiver.empty(40 * MiB, "uint8").nbytes == 40 * MiB


def test_a_lease_begins_when_the_sender_lets_go(start, client):
    daemon = start("--ticket-lease", "0.2", "--capacity", "64M")
    receiver = client(daemon)
    with Program(SENDER, 1, socket=daemon.path) as program:
        (data,) = sent(program)
        with pytest.raises(cx.OutOfMemory):
            receiver.empty(64 * MiB, "uint8")  # the sender has it: no lease runs
        program.tell("let go")
        program.expect("done")

        def is_taken_back():
            try:
                receiver.empty(64 * MiB, "uint8").close()
            except cx.OutOfMemory:
                return False
            return True

        d.settle(is_taken_back, "the end of the lease")
        with pytest.raises(cx.Stale):
            pickle.loads(data)
        program.kill()


# -------------------------------------------------------------------------------- once, many times


@pytest.mark.parametrize("then", ["let go", "killed", "still there"])
def test_it_can_be_taken_many_times_while_anybody_has_it(daemon, then):
    with Program(SENDER, 1, socket=daemon.path) as program:
        (data,) = sent(program)
        if then == "let go":
            program.tell(then)
            program.expect("done")
        elif then == "killed":
            program.kill()
        several = [pickle.loads(data) for _ in range(5)]
        assert len({t.storage_id for t in several}) == 1 and is_all(several[4], 7)
        program.kill()
    daemon.settle(tickets=0, clients=1, bytes=MiB)
    assert is_all(pickle.loads(data), 7)
    several.clear()
    daemon.settle(bytes=0)
    with pytest.raises(cx.Stale):
        pickle.loads(data)


def test_three_processes_take_the_same_one(daemon):
    take = """
    import pickle
    t = pickle.loads(bytes.fromhex(sys.argv[1]))
    assert (t.numpy() == 7).all()
    say(t.storage_id)
    hear()
    """
    with Program(SENDER, 1, socket=daemon.path) as sender:
        (data,) = sent(sender)
        first = Program(take, data.hex(), socket=daemon.path)
        storage = first.line()
        sender.kill()
        with first:
            for _ in range(2):
                with Program(take, data.hex(), socket=daemon.path) as program:
                    assert program.line() == storage
                    program.tell()
                    program.finish()
            first.tell()
            first.finish()


# ------------------------------------------------------------------------------------------ daemons


def test_a_ticket_of_a_daemon_that_was_is_stale(folder):
    with d.Daemon(folder, "--idle-exit", "0") as first:
        other = cx.Client(first.path)
        t = other.full(10, 7)
        data = pickle.dumps(t.ref())
        assert is_all(pickle.loads(data), 7)
        first.stop()
        for error in (cx.DaemonLost, cx.DaemonUnavailable):  # it was connected before
            with pytest.raises(error):
                pickle.loads(data)
        with d.Daemon(folder, "--idle-exit", "0") as second:
            with pytest.raises(cx.Stale, match="another daemon"):
                pickle.loads(data)
            with pytest.raises(cx.DaemonLost):
                other.stats()
            again = pickle.loads(pickle.dumps(t.ref()))  # copied: its memory is the old one's
            assert is_all(again, 7) and again.is_shared and not t.is_shared
            assert second.stats()["storages"] == 1
            again.close()


def test_a_daemon_that_does_not_answer_is_a_timeout(start, client, receivers, monkeypatch):
    monkeypatch.setenv("TENSORCX_TIMEOUT", "0.3")
    daemon = start("--ticket-lease", "0")
    sender = client(daemon)
    t = sender.full(10, 7)
    data = pickle.dumps(t.ref())
    pickle.loads(data).close()
    with daemon.stopped():
        for use in (lambda: pickle.loads(data), lambda: pickle.dumps(t.ref())):
            with pytest.raises(cx.Timeout):
                use()
    assert is_all(pickle.loads(data), 7)
    t.close()
    sender.stats(), receivers[str(daemon.path)].stats()  # answers that came too late are read
    daemon.settle(tickets=0, holds=0, bytes=0)


def test_a_ticket_whose_redemption_timed_out_is_good_later(start, client, receivers, monkeypatch):
    monkeypatch.setenv("TENSORCX_TIMEOUT", "0.3")
    daemon = start("--ticket-lease", "0.01")  # not before it has no client
    sender = client(daemon)
    pickle.loads(pickle.dumps(sender.zeros(10).ref())).close()  # connects
    receiver = receivers[str(daemon.path)]
    data = pickle.dumps(sender.full(10, 7).ref())
    daemon.settle(holds=0)
    with daemon.stopped(), pytest.raises(cx.Timeout):
        pickle.loads(data)
    receiver.stats()  # the answer that came too late is read
    daemon.settle(holds=0, tickets=1)
    assert is_all(pickle.loads(data), 7)


# ------------------------------------------------------------------------------------------- killed


KILLED = {
    "sends": "while True: pickle.dumps(t.ref())",
    "receives": "while True: pickle.loads(data)",
    "sends and receives": "while True: pickle.loads(pickle.dumps(b.ref()))",
}


@pytest.mark.parametrize("what", KILLED)
def test_killed_while_it(start, what):
    daemon = start("--ticket-lease", "0")
    code = f"""
import pickle
t, b = cx.zeros(10), cx.put("b", {{"x": np.ones(3)}}, ephemeral=True)
data = pickle.dumps(t.ref())
say("go")
{KILLED[what]}
"""
    with daemon.connect() as other:
        for i in range(3):
            with Program(code, socket=daemon.path) as victim:
                victim.expect("go")
                begun = other.stats()["requests"] + 40 + 7 * i
                d.settle(lambda begun=begun: other.stats()["requests"] > begun)
                victim.kill()
            d.settle(lambda: other.stats()["clients"] == 1, "the victim's end")
    daemon.settle_clean()
