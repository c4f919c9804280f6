"""install(): torch tensors on shared memory go between processes by reference."""

import gc
import multiprocessing
import os
import pickle
import resource
import time
from multiprocessing.reduction import ForkingPickler

import daemon as d
import pytest
import torch
from torch.multiprocessing import reductions

import tensorcx as cx
import torch_tensorcx as bridge
from tensorcx import _default

pytestmark = pytest.mark.usefixtures("installed")


@pytest.fixture
def not_installed():
    ForkingPickler.register(torch.UntypedStorage, reductions.reduce_storage)
    ForkingPickler.register(torch.Tensor, reductions.reduce_tensor)
    ForkingPickler.register(torch.nn.Parameter, reductions.reduce_tensor)
    yield
    bridge.install()


def sent(x):
    """What another process would get, in this one."""
    return pickle.loads(ForkingPickler.dumps(x))


def zeros(*shape):
    return bridge.to_torch(cx.zeros(shape, "float32"))


def is_same_view(a, b):
    whats = ("dtype", "shape", "requires_grad")
    return (
        a.data_ptr() == b.data_ptr()
        and a.stride() == b.stride()
        and all(getattr(a, what) == getattr(b, what) for what in whats)
    )


def join(process):
    process.join(d.DEADLINE)
    assert process.exitcode == 0


# ------------------------------------------------------------------------------------- processes

SpawnProcess = multiprocessing.get_context("spawn").Process
ForkServerProcess = multiprocessing.get_context("forkserver").Process


class Spawned(SpawnProcess):
    """A class of the user's own."""


PROCESSES = {
    "fork": multiprocessing.get_context("fork").Process,
    "spawn": Spawned,
    "forkserver": ForkServerProcess,
}


def answer_with_own(argument, ways, deeper):
    """Adds 1 to what comes, however; sends tensors of its own; and has a child that does so."""
    queue, simple, pipe, answers = ways
    for x in (argument, queue.get(timeout=d.DEADLINE), simple.get(), pipe.recv()["x"][0]):
        x.add_(1)
    own = zeros(3)
    answers.put(own)
    answers.put(own[1:])
    assert simple.get() == "received"
    if deeper:
        child = SpawnProcess(target=answer_with_own, args=(argument, ways, False))
        child.start()
        join(child)


@pytest.mark.parametrize(("method", "generations"), [("fork", 1), ("spawn", 2), ("forkserver", 1)])
def test_every_way_into_processes_and_out_of_them(method, generations):
    context = torch.multiprocessing.get_context(method)
    queue = multiprocessing.get_context(method).Queue()
    simple, answers = context.SimpleQueue(), context.Queue()
    ours, theirs = context.Pipe()
    t = cx.zeros(4, "float32")
    x = bridge.to_torch(t)
    ways = (queue, simple, theirs, answers)
    process = PROCESSES[method](target=answer_with_own, args=(x, ways, generations > 1))
    process.start()
    for generation in range(1, generations + 1):
        queue.put(x)
        simple.put(x)
        ours.send({"x": [x]})
        whole, part = (answers.get(timeout=d.DEADLINE) for _ in range(2))
        assert (t.numpy() == 4 * generation).all()
        assert cx.is_shared(whole) and cx.is_shared(part)
        whole[1] = 5
        assert part[0] == 5
        simple.put("received")
    join(process)


def test_a_forked_child_has_it_at_the_same_address():
    context = torch.multiprocessing.get_context("fork")
    queue, answers = context.Queue(), context.Queue()
    x = zeros(4)
    process = context.Process(target=lambda: answers.put(queue.get().data_ptr()))
    process.start()
    queue.put(x)
    assert answers.get(timeout=d.DEADLINE) == x.data_ptr()
    join(process)


def test_many_tensors_need_no_descriptors():
    context = torch.multiprocessing.get_context("fork")
    queue, answers = context.SimpleQueue(), context.SimpleQueue()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    process = context.Process(target=lambda: answers.put(queue.get()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        process.start()
        tensors = [zeros(1) for _ in range(3000)]
        queue.put(tensors)
        back = answers.get()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert all(a.data_ptr() == b.data_ptr() for a, b in zip(tensors, back, strict=True))
    join(process)


def test_the_sender_may_end_first():
    context = torch.multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=lambda: queue.put(zeros(4).fill_(7)))
    process.start()
    join(process)
    assert queue.get().tolist() == [7, 7, 7, 7]


def test_what_a_killed_receiver_did_not_take_is_free(forgetful):
    context = torch.multiprocessing.get_context("fork")
    queue, ready = context.SimpleQueue(), context.SimpleQueue()

    def take_one():
        x = queue.get()
        ready.put(x.shape)
        time.sleep(d.DEADLINE)

    process = context.Process(target=take_one)
    process.start()
    tensors = [zeros(1000) for _ in range(5)]
    for x in tensors:
        queue.put(x)
    assert ready.get() == (1000,)
    process.kill()
    process.join(d.DEADLINE)
    del x, tensors
    forgetful.settle(clients=1, tickets=0, bytes=0)


# ----------------------------------------------------------------------------------------- tensors

VIEWS = {
    "whole": lambda x: x,
    "slice": lambda x: x[1:3],
    "element": lambda x: x[1, 2],
    "column": lambda x: x[:, 1],
    "every other": lambda x: x[::2, ::2],
    "transposed": lambda x: x.t(),
    "expanded": lambda x: x[:1].expand(5, 4),
    "empty": lambda x: x[2:2],
    "bfloat16": lambda x: x.view(torch.bfloat16),
    "float8": lambda x: x.view(torch.float8_e4m3fn),
    "bool": lambda x: x.view(torch.bool),
    "complex": lambda x: x.view(torch.complex64),
    "conjugated": lambda x: x.view(torch.complex64).conj(),
    "imaginary part of it": lambda x: x.view(torch.complex64).conj().imag,
    "detached": lambda x: x.detach(),
    "parameter": torch.nn.Parameter,
    "frozen parameter": lambda x: torch.nn.Parameter(x[1], requires_grad=False),
    "leaf": lambda x: x.view(-1).requires_grad_(),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_every_view_arrives_as_it_is(view):
    x = zeros(4, 4).copy_(torch.arange(16.0).view(4, 4))
    a = view(x)
    b = sent(a)
    assert is_same_view(a, b) and type(a) is type(b)
    assert a.tolist() == b.tolist()
    assert (a.is_conj(), a.is_neg()) == (b.is_conj(), b.is_neg())


def test_what_is_not_a_leaf_is_refused_as_by_torch():
    with pytest.raises(RuntimeError, match="call detach"):
        ForkingPickler.dumps(zeros(4).requires_grad_() * 1 + zeros(4).requires_grad_().view(4))
    with pytest.raises(RuntimeError, match="call detach"):
        ForkingPickler.dumps(zeros(4).requires_grad_().view(2, 2))


def test_views_in_one_message_are_one_storage():
    x = zeros(4)
    a, b = sent([x[1:], x[:2]])
    a[0] = 5
    assert b[1] == 5
    assert a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


class Image(torch.Tensor):
    """A class of the user's own."""


def test_whatever_is_made_of_shared_storages():
    image = zeros(4).as_subclass(Image)
    assert type(sent(image)) is Image and is_same_view(sent(image), image)

    values = zeros(2).fill_(3)
    with torch.sparse.check_sparse_tensor_invariants(True):
        sparse = sent(torch.sparse_coo_tensor(torch.tensor([[0, 2]]), values, (4,)))
    assert sparse.to_dense().tolist() == [3, 0, 3, 0]
    assert sparse._values().data_ptr() == values.data_ptr()

    storage = values.untyped_storage()
    assert sent(storage).data_ptr() == storage.data_ptr()

    array = torch.from_numpy(cx.zeros(4).numpy())
    assert is_same_view(sent(array), array)


def test_a_module_runs_there_on_the_same_weights():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4))
    weight = torch.nn.Parameter(zeros(4, 4))
    model[0].weight = model[1].weight = weight
    there = sent(model)
    assert there[0].weight is there[1].weight and is_same_view(there[0].weight, weight)
    assert not cx.is_shared(there[1].bias.detach())


# ----------------------------------------------------------------------------------- untouched


@pytest.mark.parametrize("strategy", ["file_descriptor", "file_system"])
def test_other_tensors_go_as_they_always_do(strategy):
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy(strategy)
    try:
        x = torch.arange(4.0)
        y = sent(x)
        assert x.is_shared() and y.is_shared() and not cx.is_shared(y)
        y[0] = 9
        assert x[0] == 9
        assert sent(torch.empty(0)).shape == (0,)
        assert sent(torch.empty(3, device="meta")).device.type == "meta"
    finally:
        torch.multiprocessing.set_sharing_strategy(before)


def test_without_install_what_was_sent_no_longer_is_shared(not_installed):
    t = cx.zeros(4)
    x = bridge.to_torch(t)
    sent(x)
    assert x.data_ptr() != t.data_ptr()
    x.fill_(1)
    assert not t.numpy().any()


def test_share_memory_moves_it_all_the_same():
    x = zeros(4)
    address = x.data_ptr()
    assert x.share_memory_().data_ptr() != address


def test_installing_again_changes_nothing():
    reducers = dict(ForkingPickler._extra_reducers)
    bridge.install()
    assert ForkingPickler._extra_reducers == reducers


# ------------------------------------------------------------------------------------ daemons


def test_a_receiver_whose_own_daemon_is_another_passes_it_on(monkeypatch, tmp_path):
    x = zeros(4)
    data = ForkingPickler.dumps(x)
    monkeypatch.setenv("TENSORCX_SOCKET", str(tmp_path / "none"))
    monkeypatch.setattr(_default, "_clients", {})
    y = pickle.loads(data)
    assert is_same_view(y, x) and is_same_view(sent(y), x)
    assert len(_default._clients) == 2
    for client in _default._clients.values():
        client.close()


def test_from_a_daemon_that_is_gone_a_copy_arrives(forgetful):
    x = zeros(4).fill_(7)
    forgetful.stop()
    with pytest.raises(cx.DaemonLost):
        cx.exists("x")
    assert sent(x).tolist() == [7, 7, 7, 7]


def test_a_tensor_that_arrived_lives_on_its_own():
    x = zeros(1 << 20).fill_(7)
    y = sent(x)
    del x
    gc.collect()
    assert y.sum() == 7 << 20
    assert os.getpid() in {client["pid"] for client in cx.clients()}
