"""Queues: how they are opened and ended, and what waits on them."""

import copy
import gc
import inspect
import math
import pickle
import signal
import subprocess
import sys
import threading
import time

import daemon as d
import numpy as np
import pytest

import tensorcx as cx

pytestmark = pytest.mark.usefixtures("no_channel_left")


# -------------------------------------------------------------------------------- opening, closing


def test_who_opens_it_again_joins_and_need_not_say_how_it_was_made():
    with cx.queue("q", 3, nbytes=1000, buffers=9, participants=4) as first, cx.queue("q") as second:
        stats = second.stats()
        assert (stats["capacity"], stats["buffers"], stats["participants"]) == (3, 9, 4)
        assert (stats["buffer_bytes"], second.capacity, stats["handles"]) == (1024, 3, 2)
        first.send(5)
        assert second.recv().item() == 5


@pytest.mark.parametrize(
    "wrong",
    [
        {"capacity": 4},
        {"buffers": 10},
        {"participants": 5},
        {"nbytes": 5120},
        {"overflow": "drop_oldest"},
    ],
)
def test_other_settings_are_refused_with_both(wrong):
    with cx.queue("q", 3, nbytes=1000, buffers=9, participants=4):
        with pytest.raises(ValueError) as error:
            cx.queue("q", **wrong)
        for value in wrong.values():
            assert str(value) in str(error.value) or "drop" in str(error.value)


def test_a_queue_is_no_topic_and_no_tensor(q):
    with pytest.raises(ValueError, match="queue"):
        cx.topic("q")
    with pytest.raises(ValueError, match="queue"):
        cx.get("q")
    with pytest.raises(cx.Exists, match="queue"):
        cx.put("q", 3)
    with cx.put("tensor", 3), pytest.raises(cx.Exists, match="tensor"):
        cx.queue("tensor")
    cx.delete("tensor")


@pytest.mark.parametrize("value", [0, -1, 1 << 63, 1.5, "3"])
@pytest.mark.parametrize("what", ["capacity", "nbytes", "buffers", "participants"])
def test_settings_that_cannot_be_are_named(what, value):
    with pytest.raises(ValueError, match=what):
        cx.queue("q", **{what: value})


def test_settings_beyond_the_limits_are_refused_with_the_limit():
    for settings, word in (
        ({"capacity": 513}, "512"),
        ({"buffers": 897}, "896"),
        ({"participants": 1025}, "1024|1,024"),
    ):
        with pytest.raises(ValueError, match=word):
            cx.queue("q", **settings)
    with pytest.raises(ValueError, match="overflow"):
        cx.queue("q", overflow="fail")
    with pytest.raises(ValueError, match="pass one"):
        cx.queue("q", nbytes=3, like=3)
    with pytest.raises(TypeError, match="must be a str"):
        cx.queue(3)
    for name in ("", "a\n", "x" * 256):
        with pytest.raises(ValueError):
            cx.queue(name)


def test_a_buffer_may_have_more_than_4_gib_where_there_is_the_memory():
    with pytest.raises(cx.OutOfMemory, match="capacity"):
        cx.queue("q", nbytes=1 << 40)
    with pytest.raises(ValueError, match="more than any machine has"):
        cx.queue("q", nbytes=1 << 62)


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, "5", b"5"])
def test_timeouts_that_cannot_be_are_refused(q, value):
    for call in (lambda: q.recv(value), lambda: q.send(1, value), lambda: q.loan(1, "int8", value)):
        with pytest.raises(ValueError, match="timeout"):
            call()
    q.send(1)  # it is wrong also where there is nothing to wait for
    for wrong in -1, math.nan:
        with pytest.raises(ValueError, match="spin_us"):
            q.recv(0, spin_us=wrong)
    with pytest.raises(TypeError):
        q.recv(0, spin_us="1")


@pytest.mark.parametrize(
    ("call", "wrong"),
    [
        (lambda q: q.send(), "x"),
        (lambda q: q.send(1, 2, 3), "2 positional"),
        (lambda q: q.send(1, x=1), "two values for argument 'x'"),
        (lambda q: q.loan(dtype="int8"), "shape"),
        (lambda q: q.loan(1, size=3), "size"),
        (lambda q: q.recv(0, 1), "1 positional"),
        (lambda q: q.recv(block=False), "block"),
        (lambda q: q.try_recv(0), "0 positional"),
        (lambda q: q.loan("3", "int8"), "shape"),
    ],
)
def test_arguments_that_cannot_be_are_refused(q, call, wrong):
    with pytest.raises(TypeError, match=wrong):
        call(q)


def test_arguments_may_be_said_as_of_any_function(q):
    for loan in (
        q.loan((2, 3), np.dtype("f4"), 1),
        q.loan(dtype=np.float32, shape=[2, np.int64(3)], timeout=np.float64(1)),
        q.loan(timeout=None, shape=np.array([2, 3]), dtype=">f4"[1:]),
    ):
        assert (loan.shape, loan.dtype) == ((2, 3), np.float32)
        q.send(timeout=1, x=loan)
        assert q.recv(timeout=1).shape == (2, 3)
    assert q.loan(3).dtype == np.float64
    with pytest.raises(cx.ExchangeError, match="known are bool"):
        q.loan(3, [("a", "i4")])
    for method, names in ((q.send, "x timeout stream"), (q.loan, "shape dtype timeout")):
        assert list(inspect.signature(method).parameters) == names.split()
    assert inspect.signature(q.recv).parameters["spin_us"].kind is inspect.Parameter.KEYWORD_ONLY


def test_a_closed_handle_raises_and_the_others_go_on():
    with cx.queue("q") as kept:
        q = cx.queue("q")
        q.send(np.arange(4))
        received = q.recv()
        q.close()
        q.close()
        assert q.closed and "closed" in repr(q) and q.name == "q"
        for call in (
            lambda: q.send(1),
            q.recv,
            q.try_recv,
            lambda: q.loan(1),
            q.shutdown,
            lambda: next(iter(q)),
            lambda: pickle.dumps(q),
            q.stats,
        ):
            with pytest.raises(cx.ChannelClosed, match="closed"):
                call()
        assert np.array_equal(received.numpy(), np.arange(4)) and not kept.closed
        kept.send(1)
        assert kept.recv().item() == 1


def test_a_handle_that_is_dropped_is_closed():
    with cx.queue("q") as kept:
        cx.queue("q")
        gc.collect()
        assert kept.stats()["handles"] == 1


def test_what_was_loaned_outlives_its_handle():
    q = cx.queue("q", nbytes=100)
    loan = q.loan(3)
    view = loan.numpy()
    q.close()
    del q
    view[...] = 3
    assert np.array_equal(loan.numpy(), np.full(3, 3.0))


def test_after_shutdown_nothing_is_sent_and_what_is_left_is_received(q):
    loan = q.loan(1)
    for i in range(3):
        q.send(i)
    with cx.queue("q") as other:
        other.shutdown()
        other.shutdown()
    for call in (lambda: q.send(4), lambda: q.send(loan), lambda: q.loan(1)):
        with pytest.raises(cx.ChannelClosed, match="shut down"):
            call()
    assert q.stats()["is_shut_down"] and not q.closed
    assert [x.item() for x in q] == [0, 1, 2]
    assert list(q) == []
    with pytest.raises(cx.ChannelClosed):
        q.recv()
    with pytest.raises(cx.ChannelClosed):
        q.try_recv()


def test_iteration_keeps_no_message_while_it_waits(q):
    messages = iter(q)
    q.send(1)
    next(messages)
    assert q.stats()["holders"] == []


def test_a_queue_lives_while_it_has_a_message():
    q = cx.queue("q", 5)
    q.send(np.arange(7))
    q.close()
    with cx.queue("q") as again:
        assert again.capacity == 5 and np.array_equal(again.recv().numpy(), np.arange(7))
    with cx.queue("q") as new:
        assert new.capacity == 8 and new.stats()["messages"] == 0


def test_delete_ends_a_queue():
    with cx.queue("q") as q:
        q.send(1)
        cx.delete("q")
        with pytest.raises(cx.ChannelClosed):
            q.send(2)
        assert q.recv().item() == 1
        with pytest.raises(cx.ChannelClosed):
            q.recv()
        with cx.queue("q", 3) as other:
            assert other.capacity == 3
    with pytest.raises(cx.NotFound):
        cx.delete("q")


def test_a_handle_is_not_made_by_hand(q):
    for kind in (cx.Queue, cx.Topic, cx.Subscription):
        with pytest.raises(TypeError, match="made by"):
            kind()


def test_a_copy_of_a_handle_is_another_participant(q):
    for join in (copy.copy, lambda q: pickle.loads(pickle.dumps(q))):
        with join(q) as other:
            q.send(5)
            assert other.recv().item() == 5 and q.stats()["handles"] == 2


def test_stats_tell_what_went_through(q):
    for i in range(5):
        q.send(i)
    q.recv(), q.recv()
    stats = q.stats()
    assert (stats["messages"], stats["depth"], stats["readers"]) == (5, 3, 0)
    assert stats["bytes"] == stats["buffers"] * stats["buffer_bytes"] == 16 * 4096
    assert cx.stats()["channels"] == 1
    while q.try_recv() is not None:
        pass


# ----------------------------------------------------------------------------------------- waiting


def in_thread(function):
    """Starts it; the result of its join() is what the function returned or raised."""

    class Thread(threading.Thread):
        def run(self):
            try:
                self.result = function()
            except BaseException as error:
                self.result = error

        def join(self, timeout=d.DEADLINE):
            super().join(timeout)
            assert not self.is_alive()
            return self.result

    thread = Thread()
    thread.start()
    return thread


def test_a_timeout_of_recv_is_kept_and_says_what_was_missing(q):
    begun = time.monotonic()
    with pytest.raises(cx.Timeout, match=r'recv on queue "q" for 0.2 s: there was no message'):
        q.recv(timeout=0.2)
    assert time.monotonic() - begun >= 0.2
    with pytest.raises(TimeoutError):
        q.recv(timeout=0, spin_us=100)


def test_what_need_not_wait_does_not_hand_over_the_gil(q):
    q.send(1), q.recv()
    go, ran = threading.Event(), []
    interval = sys.getswitchinterval()
    other = in_thread(lambda: (go.wait(), ran.append(True)))
    try:
        sys.setswitchinterval(3600)  # the other thread runs when this one gives way, not before
        go.set()
        for _ in range(1000):
            q.send(q.loan(3, "int8"))
            q.recv()
        assert not ran
    finally:
        sys.setswitchinterval(interval)
    other.join()


def test_one_that_waits_gets_the_message_others_send(q):
    receiver = in_thread(lambda: q.recv().item())
    q.send(7)
    assert receiver.join() == 7
    receiver = in_thread(lambda: q.recv(timeout=60, spin_us=1000).item())
    q.send(8)
    assert receiver.join() == 8


def test_a_sender_that_waits_goes_on_when_there_is_room():
    with cx.queue("q", 1) as q:
        q.send(1)
        sender = in_thread(lambda: q.send(2))
        assert [q.recv().item(), q.recv(60).item()] == [1, 2]
        sender.join()


def test_other_threads_run_while_one_waits(q):
    timer = threading.Timer(0.1, q.send, [7])  # it needs Python to send
    timer.start()
    assert q.recv(timeout=d.DEADLINE).item() == 7
    for i in range(8):
        q.send(i)
    timer = threading.Timer(0.1, q.recv)
    timer.start()
    q.send(8, timeout=d.DEADLINE)
    timer.join()
    assert [q.recv().item() for _ in range(8)] == list(range(1, 9))


def test_waiting_uses_no_processor(q):
    begun = time.process_time()
    with pytest.raises(cx.Timeout):
        q.recv(timeout=1)
    assert time.process_time() - begun < 0.3


def test_close_and_shutdown_end_what_waits(q):
    with cx.queue("q") as other:
        receiver = in_thread(lambda: list(other))
        d.settle(receiver.is_alive)
        other.close()
        assert isinstance(receiver.join(), cx.ChannelClosed)
    with cx.queue("q") as other:
        receiver = in_thread(lambda: list(other))
        q.shutdown()
        assert receiver.join() == []


def start_waiting(name, wait):
    """A program that waits on a queue, and ends at Ctrl-C."""
    program = (
        "import signal, tensorcx as cx;"
        "signal.signal(signal.SIGINT, signal.default_int_handler);"
        f"q = cx.queue({name!r}); print('ready', flush=True); {wait}"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", program], text=True, **pipes)


def test_ctrl_c_ends_a_wait():
    waits = ["q.recv()", "list(q)", "q.recv(1e6)", "[q.send(i) for i in range(99)]"]
    waiters = [start_waiting(f"q{i}", wait) for i, wait in enumerate(waits)]
    for waiter in waiters:
        waiter.stdout.readline()
    time.sleep(0.3)  # they wait; nothing outside shows when that begins
    for waiter in waiters:
        waiter.send_signal(signal.SIGINT)
        _, errors = waiter.communicate(timeout=60)
        assert errors.rstrip().endswith("KeyboardInterrupt")
        assert "Traceback" in errors
    cx.delete("q3")  # what the last one sent is there


def test_a_signal_handler_that_raises_ends_the_wait(q):
    class Alarm(Exception):
        pass

    def ring(*_):
        raise Alarm

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(Alarm):
            q.recv()
        q.send(1)
        assert q.recv().item() == 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_many_threads_share_one_handle():
    with cx.queue("q", 4, nbytes=1024) as q:
        each, n = 200, 6

        def send(who):
            for i in range(each):
                q.send(np.full(100, who * each + i))

        def receive():
            return [int(x[99]) for x in q]

        receivers = [in_thread(receive) for _ in range(n)]
        senders = [in_thread(lambda who=who: send(who)) for who in range(n)]
        for sender in senders:
            assert sender.join() is None
        q.shutdown()
        got = sorted(x for receiver in receivers for x in receiver.join())
        assert got == list(range(n * each))
