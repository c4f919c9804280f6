"""State dicts among processes: one copy, free again after the last user, all old or all new."""

import itertools
import multiprocessing
import os
import signal

import daemon as d
import pytest
import torch
from forks import Child
from torch import nn

import tensorcx as cx
import torch_tensorcx as bridge


class Model(nn.Module):
    """Tied weights, and buffers."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Parameter(torch.randn(50, 20))
        self.head = nn.Linear(20, 50)
        self.head.weight = self.embed
        self.norm = nn.BatchNorm1d(20)

    def forward(self, x):
        return self.head(self.norm(self.embed[x]))


X = torch.arange(50)


@pytest.fixture
def published():
    model = Model().eval()
    model.norm.running_mean.fill_(0.5)
    bridge.put_state_dict("m", model)
    yield model
    if cx.exists("m"):
        cx.delete("m")


def serve(pipe):
    """A worker: loads, answers what it computes and sees, leaves a mark, ends when told."""
    torch.set_num_threads(1)  # a forked child has none of its parent's
    model = Model().eval()
    bridge.load(model, "m")
    with torch.no_grad():
        pipe.send((model(X).tolist(), model.head.weight is model.embed))
        assert pipe.recv() == "mark"
        model.norm.num_batches_tracked += 1
    pipe.send("marked")
    assert pipe.recv() == "end"


class Worker:
    def __init__(self, context):
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, what=None):
        if what:
            self.pipe.send(what)
        assert self.pipe.poll(d.DEADLINE), "the worker says nothing"
        return self.pipe.recv()

    def end(self, code=0):
        if code:
            self.process.kill()
        else:
            self.pipe.send("end")
        self.process.join(d.DEADLINE)
        assert self.process.exitcode == code


@pytest.mark.parametrize(("method", "count"), [("fork", 4), ("spawn", 2)])
def test_workers_run_on_one_copy(published, method, count):
    before = cx.stats()
    workers = [Worker(multiprocessing.get_context(method)) for _ in range(count)]
    with torch.no_grad():
        expected = published(X).tolist()
    assert [worker.ask() for worker in workers] == [(expected, True)] * count
    assert cx.stats()["clients"] == before["clients"] + count
    assert (cx.stats()["bytes"], cx.stats()["storages"]) == (before["bytes"], before["storages"])
    assert [worker.ask("mark") for worker in workers] == ["marked"] * count
    assert bridge.get_state_dict("m")["norm.num_batches_tracked"] == count  # each wrote to it
    for worker in workers:
        worker.end()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_memory_is_free_when_the_last_user_is_killed(published, daemon, method):
    worker = Worker(multiprocessing.get_context(method))
    worker.ask()
    cx.delete("m")
    assert cx.stats()["bytes"] > 0
    worker.end(-signal.SIGKILL)
    daemon.settle(bytes=0, storages=0)


def test_memory_is_free_when_workers_are_killed_while_they_load(published, daemon):
    def load_always(child):
        torch.set_num_threads(1)
        child.say()
        while True:
            bridge.load(Model(), "m")

    for _ in range(10):
        with Child(load_always, -signal.SIGKILL) as child:
            child.hear()
            os.kill(child.pid, signal.SIGKILL)
    cx.delete("m")
    daemon.settle(bytes=0, storages=0)


def fill(model, value):
    with torch.no_grad():
        for t in model.state_dict().values():
            t.fill_(value)


def test_each_load_is_all_old_or_all_new(published):
    """A writer publishes all the time; each version is of one value throughout."""
    fill(published, 0)
    bridge.put_state_dict("m", published)

    def write(_):
        torch.set_num_threads(1)
        for value in itertools.count(1):
            fill(published, value)
            bridge.put_state_dict("m", published)

    def read(_):
        torch.set_num_threads(1)
        model, last, seen = Model(), 0, set()
        while len(seen) < 50:
            bridge.load(model, "m")
            values = torch.cat([t.flatten().double() for t in model.state_dict().values()])
            assert values.min() == values.max() >= last, "a mixture, or older than before"
            last = values[0].item()
            seen.add(last)

    with Child(write, -signal.SIGKILL) as writer:
        with Child(read), Child(read):
            pass
        os.kill(writer.pid, signal.SIGKILL)


def test_workers_wait_for_the_next_version(published):
    fill(published, 0)
    version = bridge.put_state_dict("m", published).version

    def follow(child):
        torch.set_num_threads(1)
        model, newest = Model(), version
        child.say("ready")
        for value in (1, 2, 3):
            weights = cx.get("m", newer_than=newest, timeout=d.DEADLINE)
            newest = weights.version
            bridge.load(model, weights)
            child.say(str(model.embed[0, 0].item()))
            assert child.hear() == str(value)

    with Child(follow) as child:
        assert child.hear() == "ready"
        for value in (1, 2, 3):
            fill(published, value)
            bridge.put_state_dict("m", published)
            assert child.hear() == f"{value}.0"
            child.say(str(value))
