"""SIGKILL of who sends or keeps shared tensors in a channel: none is freed early, none stays."""

import contextlib
import random
import time

import pytest
from daemon import DEADLINE
from helpers import Program

import tensorcx as cx

SIZE, POOL = 1000, 6

SENDS = """
q = cx.queue("q")
pool = [cx.full(size, i, "f4") for i in range(n)]
say("ready")
while True:
    i = rng.randrange(n)
    if rng.random() < 0.2:
        pool[i] = cx.full(size, i, "f4")
    q.send({"x": pool[i]} if rng.random() < 0.1 else pool[i])
"""
RECEIVES = """
q = cx.queue("q")
kept = []
say("ready")
while True:
    x = q.recv()
    if isinstance(x, cx.Bundle):
        x = x["x"]
    kept.append((x, x.numpy()[0]))
    if rng.random() < 0.2:
        kept.clear()
    for y, number in kept:
        if not (y.numpy() == number).all():
            say("freed early:", number, y.numpy()[:3])
    del kept[: -rng.randrange(1, 8)]
"""
HEAD = f"""
import random
size, n, rng = {SIZE}, {POOL}, random.Random(int(sys.argv[1]))
"""


def kill_at_random(daemon, rounds):
    rng = random.Random(rounds)
    codes = [SENDS, SENDS, RECEIVES, RECEIVES]
    with contextlib.ExitStack() as stack:

        def program(code):
            made = stack.enter_context(Program(HEAD + code, rng.randrange(99), socket=daemon.path))
            made.expect("ready")
            return made

        programs = [program(code) for code in codes]
        for _ in range(rounds):
            time.sleep(rng.random() * 0.05)
            i = rng.randrange(len(codes))
            end(programs[i])
            programs[i] = program(codes[i])
        for one in programs:
            end(one)


def end(program):
    assert program.process.poll() is None
    program.kill()
    assert program.next_line() is None  # nothing was wrong


def drain(daemon):
    """Everybody is gone, and so is what they kept: what is left is to be received, and whole."""
    with cx.Client(daemon.path) as client, client.queue("q") as q:
        daemon.settle(clients=1)
        while (x := q.recv(DEADLINE) if q.stats()["depth"] else None) is not None:
            array = (x["x"] if isinstance(x, cx.Bundle) else x).numpy()
            assert (array == array[0]).all()
            del x, array
        assert client.stats()["bytes"] <= 1 << 20


def test_killed_while_they_pass_shared_tensors_on(daemon):
    kill_at_random(daemon, rounds=15)
    drain(daemon)


@pytest.mark.slow
def test_killed_often_while_they_pass_shared_tensors_on(daemon):
    kill_at_random(daemon, rounds=200)
    drain(daemon)
