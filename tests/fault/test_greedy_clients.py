"""Clients that take all they can, read nothing, or say nothing harm nobody else."""

import contextlib
import resource

import wire
from daemon import DEADLINE, descriptors, settle
from helpers import Program

import tensorcx as cx

SILENT = 10_000

CONNECT = """
import resource, socket
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
silent = []
for _ in range(int(sys.argv[1])):
    silent.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    silent[-1].connect(PATH)
say("connected")
hear()
"""


def crowd(stack, daemon, count):
    """Programs that connect `count` times together and say nothing; as many as descriptors need."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    each = min(count, hard - 50)
    shares = [each] * (count // each) + [count % each] * (count % each > 0)
    return [
        stack.enter_context(Program(CONNECT, share, socket=daemon.path, raw=True))
        for share in shares
    ]


def at_most(limit):
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


def put_and_get(daemon):
    """All that a newcomer does."""
    client = cx.Client(daemon.path, autostart=False)
    client.put("name", [1.0, 2.0])
    assert client.get("name").tolist() == [1.0, 2.0]
    client.delete("name")


def test_ten_thousand_connections_that_say_nothing_are_survived(start):
    daemon = start()
    with contextlib.ExitStack() as stack:
        programs = crowd(stack, daemon, SILENT)
        for _ in range(20):  # while they come
            put_and_get(daemon)
        for program in programs:
            program.expect("connected")
        put_and_get(daemon)
        limit = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)[0]
        assert len(descriptors(daemon.pid)) < limit / 2
        for program in programs:
            program.tell()
            program.finish()
    daemon.settle(clients=0)


def test_silent_connections_take_no_clients_place(start):
    daemon = start("--max-clients", "4")
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(daemon.connect(hello=False)) for _ in range(50)]
        clients = [stack.enter_context(daemon.connect()) for _ in range(4)]
        assert [client.stats()["names"] for client in clients] == [0] * 4
        clients.pop().close()
        silent[0].hello()  # nobody needed its descriptor, so it is still welcome


def test_silent_connections_leave_descriptors_for_clients(start):
    daemon = start(preexec_fn=at_most(100))
    with contextlib.ExitStack() as stack:
        for _ in range(75):
            stack.enter_context(daemon.connect(hello=False))
        clients = [stack.enter_context(daemon.connect()) for _ in range(40)]
        for client in clients:
            client.stats()


def test_who_says_nothing_for_long_gives_way_and_who_came_last_stays(start):
    daemon = start(preexec_fn=at_most(100))
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(daemon.connect(hello=False)) for _ in range(30)]
        last = stack.enter_context(daemon.connect(hello=False))
        assert silent[0].is_dropped()
        last.hello()


FLOOD = """
import threading
c = wire.Connection(PATH)
c.socket.settimeout(None)
stop = threading.Event()
def read():
    while c.receive().request != 0xffffffff:
        pass
reader = threading.Thread(target=read)
reader.start()
say("flooding")
threading.Thread(target=lambda: (hear(), stop.set()), daemon=True).start()
message = wire.frame("PUT", wire.desc((1,), wire.UINT8) + b"flood" + b"x", number=1,
                     **wire.put_fields(b"flood", b"x", wire.desc((1,), wire.UINT8)))
while not stop.is_set():
    c.send_bytes(message)
c.send("STATS", number=0xffffffff)
reader.join()
"""


def test_one_that_sends_as_fast_as_it_can_starves_nobody(daemon):
    with contextlib.ExitStack() as stack:
        floods = [
            stack.enter_context(Program(FLOOD, socket=daemon.path, raw=True)) for _ in range(2)
        ]
        for flood in floods:
            flood.expect("flooding")
        with daemon.connect() as client:
            before = client.stats()["requests"]
            settle(lambda: client.stats()["requests"] > before + 10_000, "a flood")
            for i in range(50):
                client.put("mine", b"%d" % i)
                assert client.get("mine")["grant"]["nbytes"] == len(str(i))
            client.delete("mine")
        for flood in floods:
            flood.tell()
            flood.finish()
    with daemon.connect() as client:
        client.delete("flood")


def test_one_that_never_reads_is_dropped_and_the_log_says_why(start):
    daemon = start("--max-output", "128K")
    with daemon.connect() as deaf, daemon.connect() as other:
        other.put("name", b"data")
        while True:
            try:
                deaf.send("STATS")
            except wire.Dropped:
                break
            assert other.get("name")["grant"]["nbytes"] == 4
        other.delete("name")
    settle(lambda: "--max-output" in daemon.log(), "a line in the log")


LATE = """
import time
c = wire.Connection(PATH)
numbers = [c.send("STATS") for _ in range(2000)] + [c.send("GET", b"name", newer_than=0, flags=0)]
say("sent")
for number in numbers[:20]:
    time.sleep(0.1)
    assert c.receive().request == number
for number in numbers[20:]:
    reply = c.receive()
    assert reply.request == number
assert reply["grant"]["nbytes"] == 4
"""


def test_one_that_reads_late_gets_every_reply_and_delays_nobody(daemon):
    with daemon.connect() as other:
        other.put("name", b"data")
        with Program(LATE, socket=daemon.path, raw=True) as late:
            late.expect("sent")
            while late.process.poll() is None:
                assert other.get("name")["grant"]["nbytes"] == 4
            late.finish(DEADLINE)
        other.delete("name")
