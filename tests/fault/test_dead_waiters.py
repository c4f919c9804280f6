"""Waiters that died or were stopped do no harm to the daemon nor to those who live."""

import contextlib
import os
import signal

import pytest
import wire
from helpers import Program
from wire_table import CONSTANTS

WAITER = """
c = wire.Connection(PATH, life_page=True)
c.send("GET", b"late", flags=1)
say("waiting")
print(c.receive()["grant"]["nbytes"], flush=True)
"""


def publish_to(daemon, *, alive, killed, stopped):
    with contextlib.ExitStack() as stack:
        living = [stack.enter_context(daemon.connect()) for _ in range(alive)]
        for connection in living:
            connection.send("GET", b"late", flags=CONSTANTS["GET_WAIT"])
        others = [
            stack.enter_context(Program(WAITER, socket=daemon.path, raw=True))
            for _ in range(killed + stopped)
        ]
        for program in others:
            program.expect("waiting")
        daemon.settle(waiting=alive + killed + stopped)
        for program in others[:killed]:
            program.kill()
        for program in others[killed:]:
            os.kill(program.pid, signal.SIGSTOP)
        with daemon.connect() as publisher:
            publisher.put("late", b"here now")
            for connection in living:
                assert connection.receive()["grant"]["nbytes"] == 8
            assert publisher.get("late")["grant"]["nbytes"] == 8
            for program in others[killed:]:
                os.kill(program.pid, signal.SIGCONT)
                program.expect("8")
                program.finish()
            publisher.delete("late")


def test_the_living_get_their_answer(daemon):
    publish_to(daemon, alive=15, killed=8, stopped=3)


@pytest.mark.slow
def test_the_living_get_their_answer_among_many(daemon):
    publish_to(daemon, alive=100, killed=100, stopped=40)


def test_a_peer_that_closes_while_it_is_answered_is_no_trouble(daemon):
    for _ in range(50):
        with daemon.connect() as client:
            for _ in range(20):
                client.send("STATS")
    assert daemon.stats()["dropped"] == 0


def test_a_waiter_in_the_package_is_killed(daemon):
    with Program("say('go'); cx.get('never', timeout=600)", socket=daemon.path) as program:
        program.expect("go")
        daemon.settle(waiting=1)
        program.kill()
    daemon.settle(waiting=0, clients=0)


def test_a_waiter_can_be_interrupted_from_the_keyboard(daemon):
    code = """
    import signal
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
    say("go")
    try:
        cx.get("never", timeout=600)
    except KeyboardInterrupt:
        say("interrupted")
    assert cx.names() == []
    """
    with Program(code, socket=daemon.path) as program:
        program.expect("go")
        daemon.settle(waiting=1)
        os.kill(program.pid, signal.SIGINT)
        program.expect("interrupted")
        daemon.settle(waiting=0)
        program.finish()


def test_a_wait_that_runs_out_says_how_long_it_was(daemon):
    code = """
    try:
        cx.get("never", timeout=0.2)
    except cx.Timeout as error:
        assert isinstance(error, TimeoutError)
        assert "never" in str(error) and "0.2" in str(error), error
        say("timed out")
    """
    with Program(code, socket=daemon.path) as program:
        program.expect("timed out")
        program.finish()


def test_one_byte_and_silence_are_no_trouble(daemon):
    with daemon.connect(hello=False) as silent, daemon.connect(hello=False) as short:
        short.send_bytes(b"x")
        with daemon.connect() as client:
            assert client.stats()["clients"] >= 1
        with pytest.raises(wire.Dropped):
            short.receive_bytes()
        silent.hello()
