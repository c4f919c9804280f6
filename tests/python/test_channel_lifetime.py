"""Queues and topics in several processes: who joins how, and what is left when one is gone."""

import contextlib
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from multiprocessing import forkserver

import daemon as d
import numpy as np
import pytest
from forks import Child
from ring import ENTRY, MEMBER, MEMBERS_AT, Seat
from threads import together

import tensorcx as cx

pytestmark = pytest.mark.usefixtures("no_channel_left")


@pytest.fixture(scope="module", autouse=True)
def no_old_forkserver():
    """Its children have the environment of the process that started it: another daemon's."""
    forkserver._forkserver._stop()
    yield
    forkserver._forkserver._stop()


@pytest.fixture(params=["fork", "spawn", "forkserver"])
def context(request):
    return multiprocessing.get_context(request.param)


def join(process, code=0):
    process.join(d.DEADLINE)
    assert process.exitcode == code


# ------------------------------------------------------------------------------ by multiprocessing


def double_each(jobs, results):
    for x in jobs:
        results.send({"doubled": x.numpy() * 2})


def test_queues_are_passed_to_workers(context):
    with cx.queue("q", 4) as jobs, cx.queue("results") as results:
        workers = [context.Process(target=double_each, args=(jobs, results)) for _ in range(2)]
        for worker in workers:
            worker.start()
        got = []
        for i in range(30):
            jobs.send(np.full(10, i))
            while (x := results.try_recv()) is not None:
                got.append(int(x["doubled"][0]))
        jobs.shutdown()
        while len(got) < 30:
            got.append(int(results.recv(d.DEADLINE)["doubled"][0]))
        for worker in workers:
            join(worker)
        assert sorted(got) == list(range(0, 60, 2))


def add_up(topic, ready, results):
    with topic.subscribe() as subscription:
        ready.send(True)
        results.send(sum(int(x[0]) for x in subscription))


def test_a_topic_is_passed_to_subscribers(context):
    with (
        cx.topic("t", overflow="block") as topic,
        cx.queue("q") as ready,
        cx.queue("results") as results,
    ):
        readers = [
            context.Process(target=add_up, args=(topic, ready, results), daemon=True)
            for _ in range(2)
        ]
        for reader in readers:
            reader.start()
        for _ in readers:
            ready.recv(d.DEADLINE)
        for i in range(40):
            topic.send(np.full(10, i))
        topic.shutdown()
        assert [results.recv(d.DEADLINE).item() for _ in readers] == [sum(range(40))] * 2
        for reader in readers:
            join(reader)


def test_unrelated_programs_meet_by_name_in_any_order():
    program = "import sys, tensorcx as cx; q = cx.queue('q'); " + (
        "[q.send(int(sys.argv[1]) * 10 + i) for i in range(10)]"
    )
    senders = [subprocess.Popen([sys.executable, "-c", program, str(n)]) for n in range(3)]
    with cx.queue("q") as q:
        got = [q.recv(d.DEADLINE).item() for _ in range(30)]
    for sender in senders:
        assert sender.wait(d.DEADLINE) == 0
    assert sorted(got) == list(range(30))
    for n in range(3):  # first in, first out of each sender
        assert [x for x in got if x // 10 == n] == list(range(10 * n, 10 * n + 10))


def test_many_senders_and_readers():
    n, each = 64, 5
    buffers = 8 + 2 * n  # each reader keeps one while it waits for the next
    with cx.queue("q", 8, buffers=buffers, participants=2 * n + 1) as q, cx.queue("r") as results:

        def send(who):
            with cx.queue("q") as mine:
                for i in range(each):
                    mine.send(who * each + i)

        def read():
            with cx.queue("q") as mine, cx.queue("r") as back:
                for x in mine:
                    back.send(x)

        readers = [threading.Thread(target=read) for _ in range(n)]
        senders = [threading.Thread(target=send, args=[i]) for i in range(n)]
        for thread in readers + senders:
            thread.start()
        got = sorted(results.recv(d.DEADLINE).item() for _ in range(n * each))
        q.shutdown()
        for thread in readers + senders:
            thread.join(d.DEADLINE)
        assert got == list(range(n * each))


def test_many_threads_open_a_queue_at_once():
    n = 200

    def open_and_close(_):
        for _ in range(5):
            cx.queue("q").close()

    with cx.queue("q", participants=n + 1):
        assert together(open_and_close, n) == [None] * n


# ------------------------------------------------------------------------------------------ fork


def test_in_a_forked_child_a_queue_joins_anew():
    with cx.queue("q") as q:

        def use(child):
            assert q.recv(d.DEADLINE).item() == 1
            q.send(2)
            assert q.stats()["handles"] == 2
            q.close()
            assert q.closed

        q.send(1)
        with Child(use):
            pass
        assert q.recv(d.DEADLINE).item() == 2
        q.send(3)  # the parent's handle is as it was
        assert q.recv().item() == 3


def test_in_a_forked_child_a_subscription_is_closed():
    with cx.topic("t") as t, t.subscribe() as subscription:

        def use(child):
            for call in (subscription.recv, subscription.try_recv, lambda: list(subscription)):
                with pytest.raises(cx.ChannelClosed, match="subscribe in the child"):
                    call()
            with t.subscribe() as mine:
                child.say("subscribed")
                assert mine.recv(d.DEADLINE).item() == 1

        with Child(use) as child:
            assert child.hear() == "subscribed"
            t.send(1)
        assert subscription.recv().item() == 1


def test_what_was_received_is_inherited_and_kept_until_both_have_let_go():
    with cx.queue("q", 1, buffers=2) as q:
        q.send(np.arange(100))
        kept = [q.recv()]

        def use(child):
            (x,) = kept
            assert x.tolist() == list(range(100))
            child.say("seen")
            child.hear()
            assert x.tolist() == list(range(100))

        with Child(use) as child:
            child.hear()
            kept.clear()
            for i in range(20):  # only the other buffer is used
                q.send(np.full(100, i))
                assert q.recv()[50].item() == i
            child.say()

        def both_are_free():
            q.send(1)
            first = q.recv()
            try:
                q.send(2, timeout=0)
            except cx.Timeout:
                return False
            return first.item() + q.recv().item() == 3

        d.settle(both_are_free, "the buffer that the child had")


def test_a_loan_is_the_parents():
    with cx.queue("q", nbytes=100) as q:
        loan = q.loan(3, "int64")
        loan[...] = 5

        def use(child):
            with pytest.raises(ValueError, match="not a loan of this handle"):
                q.send(loan)
            loan.close()

        with Child(use):
            pass
        q.send(loan)
        assert q.recv().tolist() == [5, 5, 5]


def test_a_child_that_ends_closes_nothing_of_its_parents():
    with cx.queue("q") as q, cx.topic("t") as t, t.subscribe() as subscription:

        def close_all(child):
            q.close()
            subscription.close()
            t.close()

        with Child(close_all):
            pass
        q.send(1), t.send(2)
        assert (q.recv().item(), subscription.recv().item()) == (1, 2)


# ------------------------------------------------------------------------------------------- death

PROGRAM = """
import os, sys, numpy as np, tensorcx as cx
def say(text): print(text, flush=True)
"""


# Python ends a daemon thread wherever it is, with what it has at that moment: no leak of ours.
LEAVES_A_THREAD = {"LSAN_OPTIONS": "detect_leaks=0"}


@contextlib.contextmanager
def program(code, **environment):
    """A program that says "ready"; killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM + code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | environment,
    )
    try:
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close(), process.stdout.close()


HOLDER = """
q = cx.queue("q")
kept = [q.recv(60) for _ in range(3)]
say("ready")
sys.stdin.read()
"""


def test_a_timeout_names_the_process_that_keeps_the_buffers_and_its_death_frees_them():
    with cx.queue("q", 1, buffers=3, nbytes=100) as q:
        sender = threading.Thread(target=lambda: [q.send(i) for i in range(3)])
        sender.start()
        with program(HOLDER) as holder:
            sender.join(d.DEADLINE)
            with pytest.raises(cx.Timeout, match=rf"pid {holder.pid}, .*has 3 buffers"):
                q.send(3, timeout=0.05)
            (found,) = q.stats()["holders"]
            assert (found["pid"], found["buffers"]) == (holder.pid, 3)
            waiting = threading.Thread(target=lambda: q.send(3))
            waiting.start()
            holder.kill()
            waiting.join(d.DEADLINE)
            assert not waiting.is_alive() and q.recv().item() == 3


def test_a_stopped_subscriber_is_named_and_goes_on_later():
    code = """
t = cx.topic("t", overflow="block"); s = t.subscribe()
say("ready")
for x in s: cx.queue("q").send(x)
"""
    with (
        cx.topic("t", 2, overflow="block", nbytes=100) as t,
        cx.queue("q") as q,
        program(code) as p,
    ):
        p.send_signal(signal.SIGSTOP)
        with pytest.raises(cx.Timeout, match=rf"pid {p.pid}, "):
            for i in range(20):
                t.send(i, timeout=0.1)
        sent = t.stats()["messages"]
        p.send_signal(signal.SIGCONT)
        assert [q.recv(d.DEADLINE).item() for _ in range(sent)] == list(range(sent))
        t.shutdown()


BUSY = {
    "sends": "while True: q.send(a)",
    "sends loans": "while True:\n loan = q.loan(1000); loan[...] = 1; q.send(loan)",
    "sends bundles": "while True: q.send({'a': a, 'b': {'c': a[:3]}})",
    "sends large ones": "while True: q.send(large)",
    "sends what is shared": "s = cx.asarray(a)\nwhile True: q.send(s)",
    "receives": "for x in q: pass",
    "receives and keeps": "kept = []\nfor x in q: kept = [x] + kept[:4]",
    "tries": "while True: q.try_recv()",
}


@pytest.mark.parametrize("what", BUSY)
def test_killed_while_it(what):
    code = (
        "q = cx.queue('q'); a = np.ones(1000); large = np.ones(100000); say('ready')\n" + BUSY[what]
    )
    with cx.queue("q", 4, nbytes=16384) as q, cx.queue("q") as other:
        for _ in range(3):
            with program(code) as victim:
                for _ in range(20):
                    if what.startswith("sends"):
                        q.recv(d.DEADLINE)
                    else:
                        q.send(np.ones(1000), timeout=d.DEADLINE)
                victim.kill()
                victim.wait()
            d.settle(lambda: q.stats()["handles"] == 2, "the victim's end")
            while other.try_recv() is not None:
                pass
            assert q.stats()["holders"] == []
            for i in range(20):  # all buffers work
                q.send(np.full(10, i), timeout=0)
                assert other.recv(0)[9].item() == i


def test_a_reader_that_is_killed_loses_what_it_had_and_nothing_else():
    code = "q = cx.queue('q'); x = [q.recv(60), q.recv(60)]; say('ready'); sys.stdin.read()"
    with cx.queue("q") as q:
        for i in range(5):
            q.send(i)
        with program(code):
            pass
        assert [q.recv(d.DEADLINE).item() for _ in range(3)] == [2, 3, 4]


def test_interpreters_that_end_with_handles_and_messages_leave_nothing():
    code = """
import atexit, threading
q = cx.queue("q"); t = cx.topic("t"); s = t.subscribe()
t.send(1); x = s.recv(); loan = t.loan(1, "int8")
view = x.numpy()
threading.Thread(target=lambda: s.recv(), daemon=True).start()
atexit.register(lambda: t.send(2))
say("ready")
"""
    with program(code, **LEAVES_A_THREAD) as p:
        assert p.wait(d.DEADLINE) == 0
    d.settle(lambda: cx.stats()["channels"] == 0, "the channels' end")


def test_garbage_in_the_ring_is_an_error_for_one_message(daemon):
    with (
        cx.queue("q", 4, nbytes=256) as q,
        daemon.connect() as other,
        Seat(other.join("q")) as seat,
    ):
        for i in range(3):
            q.send(i)
        entry = MEMBERS_AT + MEMBER * seat["members"]  # of message 0
        desc = entry + ENTRY * seat["slots"]  # of buffer 0
        seat.memory[entry + 8 : entry + 12] = b"\xff\xff\xff\x7f"  # its buffer
        seat.memory[desc + 256 : desc + 512] = os.urandom(256)  # what is in the next one
        for _ in range(2):
            with pytest.raises(cx.Error, match=r"nonsense|cannot be right"):
                q.recv(0)
        assert q.recv(0).item() == 2
        q.send(3)
        assert q.recv(0).item() == 3


# ------------------------------------------------------------------------------------------ lists


def test_channels_tells_what_there_is_and_who_has_it():
    assert cx.channels() == []
    with cx.queue("q", 3, nbytes=100) as q, cx.topic("t") as t, t.subscribe() as subscription:
        t.send(1)
        q.send(1)
        kept = q.recv()
        mine = next(peer for peer in cx.clients() if peer["is_self"])
        seat = {"client": mine["id"], "pid": mine["pid"], "program": mine["program"]}
        seat |= {"is_open": True, "buffers": 0, "behind": 0}
        queue, topic = cx.channels()
        assert queue == {
            "name": "q",
            "kind": "queue",
            "overflow": "block",
            "capacity": 3,
            "buffers": 11,
            "participants": 128,
            "buffer_bytes": 256,
            "device": "cpu",
            "messages": 1,
            "depth": 0,
            "is_shut_down": False,
            "handles": [seat | {"buffers": 1}],
        }
        assert (topic["kind"], topic["overflow"], topic["depth"]) == ("topic", "drop_oldest", 1)
        assert topic["handles"] == [seat, seat | {"behind": 1}]
        with cx.queue("q"):  # or it would end
            q.close()
            assert cx.channels()[0]["handles"] == [seat | {"is_open": False, "buffers": 1}, seat]
        kept.close()
        subscription.close()
    d.settle(lambda: cx.channels() == [], "the end of both")


def test_more_channels_than_one_answer_can_list():
    names = sorted(f"{i:03}" + "x" * 252 for i in range(800))
    queues = [cx.queue(name, 1, participants=2) for name in names]
    assert [channel["name"] for channel in cx.channels()] == names
    for queue in queues:
        queue.close()


# -------------------------------------------------------------------------------- without a daemon


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_when_the_daemon_goes_all_calls_say_so_and_what_was_received_stays(tmp_path, how):
    running = d.Daemon(tmp_path, "--idle-exit", "0")
    client = cx.Client(running.path, autostart=False)
    q, t = client.queue("q", 2), client.topic("t")
    subscription = t.subscribe()
    q.send(np.arange(100))
    received = q.recv()
    failures = []

    def wait(call):
        try:
            call()
        except cx.DaemonLost as error:
            failures.append(error)

    waiting = (q.recv, subscription.recv, lambda: list(q), lambda: list(subscription))
    threads = [threading.Thread(target=wait, args=[call]) for call in waiting]
    for thread in threads:
        thread.start()
    running.process.send_signal(how)
    running.process.wait(d.DEADLINE)
    for thread in threads:
        thread.join(d.DEADLINE)
    assert len(failures) == len(threads)
    for call in (lambda: q.send(1), q.recv, q.try_recv, lambda: q.loan(1), t.subscribe):
        with pytest.raises(cx.DaemonLost):
            call()
    assert received.tolist() == list(range(100))
    q.close(), t.close(), subscription.close(), client.close()


def test_a_closed_client_opens_nothing_and_its_handles_go_on(daemon):
    client = cx.Client(daemon.path, autostart=False)
    q = client.queue("q")
    client.close()
    with pytest.raises(ValueError, match="client is closed"):
        client.queue("q")
    q.send(1)
    assert q.recv().item() == 1
    del client
    gc.collect()
    q.send(2)
    assert q.recv().item() == 2
    q.close()
