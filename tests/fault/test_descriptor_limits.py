"""Out of descriptors, in a client or in the daemon: a clear error, and it can be tried again."""

import os
import resource
import socket
from pathlib import Path

import pytest
import wire
from daemon import settle
from helpers import Program, run

CLIENT = """
import resource
tensor = cx.put("name", np.arange(5 << 20))          # connected, but the segment of "other" is new
say("ready")
hear()
limit = 64
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
files = []
try:
    while True:
        files.append(open(os.devnull))
except OSError:
    pass
for _ in range(3):
    try:
        cx.get("other")
    except cx.Error as error:
        text = str(error)
        assert "descriptor" in text, text
        assert str(limit) in text or "RLIMIT_NOFILE" in text or "ulimit" in text, text
    else:
        raise AssertionError("mapped without a descriptor")
say("refused")
del files
assert np.asarray(cx.get("other"))[0] == 7
del tensor
cx.delete("name")
cx.delete("other")
assert cx.stats()["storages"] == 0, "a reference was lost"
"""


def test_a_client_without_descriptors_gets_an_error_and_can_try_again(daemon):
    with Program(CLIENT, socket=daemon.path) as program:
        program.expect("ready")
        other = 'cx.put("other", np.full(5 << 20, 7))'
        with Program(other, socket=daemon.path) as writer:
            writer.finish()
        program.tell()
        program.expect("refused")
        program.finish()


def test_a_client_that_cannot_even_connect_says_why(daemon):
    code = """
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    files = []
    try:
        while True:
            files.append(open(os.devnull))
    except OSError:
        pass
    try:
        cx.names()
    except cx.Error as error:
        assert "descriptor" in str(error) or "open files" in str(error), error
    else:
        raise AssertionError("connected without a descriptor")
    del files
    assert cx.names() == []
    """
    run(code, socket=daemon.path)


def test_a_client_that_reads_its_replies_is_never_told_that_it_does_not(daemon):
    """Each tensor is a new segment here, so each asks for a descriptor."""
    code = """
    source = np.arange(6)
    for _ in range(2000):
        cx.asarray(source, copy=True)
    """
    run(code, socket=daemon.path)


def is_asleep(pid) -> bool:
    """In a row of looks: a process that spins is running in most of them."""
    states = [
        Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for _ in range(50)
    ]
    return set(states) == {"S"}


def at_most(limit):
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


def test_a_daemon_without_descriptors_serves_its_clients_and_tells_the_new_ones(start):
    """Old clients go on; new ones wait or get an answer; and it does not spin meanwhile."""
    daemon = start(preexec_fn=at_most(80), checked=False)
    clients, refused = [daemon.connect()], 0
    clients[0].put("first", b"makes the segment that is still to be had")
    for _ in range(150):
        try:
            clients.append(daemon.connect())
        except (wire.Dropped, wire.Refused, ConnectionError):
            refused += 1
    assert len(clients) >= 20 and refused >= 50
    for client in clients:
        assert client.stats()["clients"] == len(clients)
    clients[0].put("small", b"still works")

    knocking = [knock(daemon) for _ in range(20)]
    assert clients[1].get("small")["grant"]["nbytes"] == 11
    settle(lambda: is_asleep(daemon.pid), "a daemon that waits and does not spin")
    for late in knocking:
        late.close()

    clients[0].delete("small")
    clients[0].delete("first")
    for client in clients:
        client.close()
    with settle(lambda: connects(daemon), "a place for a new client") as late:
        assert late.stats()["storages"] == 0
    daemon.settle_clean()


def connects(daemon):
    try:
        return daemon.connect()
    except (wire.Dropped, wire.Refused, ConnectionError):
        return None


def test_a_daemon_without_descriptors_refuses_segments_and_keeps_its_word(start):
    daemon = start(preexec_fn=at_most(64), checked=False)
    with daemon.connect() as client:
        grants = []
        with pytest.raises(wire.Refused) as refused:
            for _ in range(100):
                grants.append(client.alloc(17 << 20))  # each a segment of its own
        assert len(grants) >= 10
        assert "descriptor" in refused.value.text or "open files" in refused.value.text
        client.release(*[(grant["storage"], 1) for grant in grants])
        # It closes them piece by piece in the background.
        assert settle(lambda: allocates(client, 17 << 20), "room for a segment")


@pytest.mark.parametrize("backing", ["posix", "memfd"])
def test_descriptors_that_memory_leaves_are_for_new_clients(start, backing):
    daemon = start("--backing", backing, preexec_fn=at_most(64), checked=False)
    with daemon.connect() as client:
        client.put("small", b"is never deleted here")
        grants = []
        while grant := allocates(client, 17 << 20):
            grants.append((grant["storage"], 1))
        with pytest.raises(wire.Refused, match="descriptor"):
            client.join("queue")
        for _ in range(5):
            with daemon.connect() as late:
                late.put("small", b"needs no new segment")
        client.release(*grants)
        assert settle(lambda: allocates(client, 17 << 20), "room for a segment")


def test_a_fork_that_the_daemon_has_no_descriptor_for_keeps_all_until_the_parents_end(start):
    daemon = start("--warm-seconds", "0", preexec_fn=at_most(64), checked=False)
    with daemon.connect() as parent:
        inherited = parent.alloc(100)["storage"]
        others = crowd(daemon, 64)
        page = parent.fork()
        parent.release((inherited, 1))
        page.close()
        assert parent.stats()["storages"] == 1
        assert 'event=fork.unwatched reason="the note came without a page"' in daemon.log()
    for other in others:
        other.close()
    settle(lambda: descriptors(daemon) < 32, "the clients' end")
    daemon.settle_clean()


def crowd(daemon, limit):
    """Clients, then connections that say nothing, until not one descriptor is left."""
    others = []
    while other := connects(daemon):
        others.append(other)
    while descriptors(daemon) < limit:
        others.append(knock(daemon))
    return others


def knock(daemon):
    late = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    late.connect(str(daemon.path))
    return late


def descriptors(daemon) -> int:
    return len(os.listdir(f"/proc/{daemon.pid}/fd"))


def allocates(client, nbytes):
    try:
        return client.alloc(nbytes)
    except wire.Refused:
        return None


def test_the_daemon_raises_its_soft_limit(start):
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard <= 256:
        pytest.skip("the hard limit leaves no room to raise the soft one")
    daemon = start(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard)))
    soft, _ = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
    assert soft == hard


def test_ten_thousand_small_tensors_need_few_descriptors(daemon):
    code = """
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    kept = [cx.put(f"t/{i}", np.full(1024, i, np.float32)) for i in range(10_000)]
    assert all(kept[i][0].item() == i for i in range(0, 10_000, 100))
    say("here")
    hear()
    for name in cx.names():
        cx.delete(name)
    """
    with Program(code, socket=daemon.path) as program:
        program.expect("here")
        assert descriptors(daemon) < 50
        assert len(os.listdir(f"/proc/{program.pid}/fd")) < 50
        program.tell()
        program.finish()
