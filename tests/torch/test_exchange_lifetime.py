"""Memory that PyTorch and tensorcx share lives until the last of both is gone, however it goes."""

import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import daemon as d
import numpy as np
import pytest
import torch
from forge import BOOL, FLOAT32, INT32, READ_ONLY, Forge, Producer

import tensorcx as cx
import torch_tensorcx as bridge

N = 10_000


def run(code, *arguments):
    """A program of its own, to its end; its exit code must be 0."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stdout}{done.stderr}"
    assert not done.stderr, done.stderr
    return done.stdout


def churn():
    """What would be written over memory that was freed too early."""
    gc.collect()
    for i in range(100_000):
        bytearray(i % 500)
    return [torch.full((N,), -1, dtype=torch.int32) for _ in range(20)]


def private():
    """A tensorcx tensor on private memory, and a reference that dies with that memory."""
    array = np.arange(N, dtype=np.int32)
    return bridge.from_torch(torch.from_numpy(array)), weakref.ref(array)


def shared():
    tensor = cx.asarray(np.arange(N, dtype=np.int32), copy=True)
    return tensor, lambda: cx.stats()["storages"] or None


WAYS = {
    "bridge": bridge.to_torch,
    "part": lambda t: bridge.to_torch(t[10:]),
    "view": lambda t: bridge.to_torch(t).reshape(100, -1)[1:],
    "torch.from_dlpack": torch.from_dlpack,
    "torch.as_tensor": torch.as_tensor,
    "and back": lambda t: bridge.to_torch(bridge.from_torch(bridge.to_torch(t))),
}
EVERY = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
SOURCES = pytest.mark.parametrize("source", [private, shared])


@SOURCES
@EVERY
@pytest.mark.parametrize("end", ["dropped", "closed", "in a cycle"])
def test_a_torch_tensor_is_good_after_the_handle_is(source, way, end):
    tensor, memory = source()
    x = way(tensor)
    if end == "closed":
        tensor.close()
    elif end == "in a cycle":
        cycle = [tensor, x]
        cycle.append(cycle)
    del tensor
    kept = churn()
    assert memory() is not None
    assert (x >= 0).all() and x[-1].max() == N - 1
    assert (x.fill_(3) == 3).all()
    del x, kept
    cycle = None
    gc.collect()
    d.settle(lambda: memory() is None)


@SOURCES
def test_frombuffer_keeps_the_handle_and_so_the_memory(source):
    """The handle only, not its buffer: close() would end the memory, as the documentation says."""
    tensor, memory = source()
    x = torch.frombuffer(tensor, dtype=torch.int32)
    del tensor
    kept = churn()
    assert memory() is not None and x.tolist() == list(range(N))
    del x, kept
    d.settle(lambda: memory() is None)


def test_a_tensorcx_tensor_is_good_after_the_torch_tensor_is_gone():
    tensor, memory = private()
    kept = churn()
    assert np.array_equal(tensor, np.arange(N)) and memory() is not None
    del tensor, kept
    gc.collect()
    assert memory() is None


@pytest.mark.parametrize("dtype", [FLOAT32, INT32, BOOL], ids=["float32", "int32", "bool"])
def test_many_torch_tensors_share_one_memory_and_each_is_let_go_once(dtype):
    forged = Forge(bytes(24), (6,), dtype)
    tensor = cx.from_dlpack(Producer(forged))
    views = [bridge.to_torch(tensor) for _ in range(20)] + [torch.from_dlpack(tensor)]
    views[0][0] = 1
    assert all(view[0] == 1 and view.data_ptr() == forged.address for view in views)
    del tensor
    while views:
        gc.collect()
        assert forged.released == 0
        views.pop()
    assert forged.is_released_once()


def test_an_empty_tensor_is_let_go_too():
    forged = Forge(b"", (5, 0))
    x = bridge.to_torch(cx.from_dlpack(Producer(forged)))
    assert x.shape == (5, 0) and forged.released == 0
    del x
    assert forged.is_released_once()


def test_a_read_only_tensor_that_torch_imports_by_itself_is_written_through():
    """Why to_torch refuses it. When this fails, PyTorch has learned it, and the table wants it."""
    with pytest.raises(cx.ExchangeError, match="read-only"):
        cx.from_dlpack(Producer(Forge(flags=READ_ONLY)))
    tensor = cx.put("fixed", torch.zeros(3), readonly=True)
    cx.delete("fixed")
    torch.from_dlpack(tensor)[0] = 5
    assert tensor.tolist() == [5, 0, 0]


def test_pytorch_itself_takes_and_gives_as_the_contract_says():
    x = torch.arange(6.0).reshape(2, 3)
    for copy in None, False:
        assert cx.from_dlpack(x, copy=copy).data_ptr() == x.data_ptr()
    copied = cx.from_dlpack(x, copy=True)
    x[0, 0] = 9
    assert copied.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert torch.from_dlpack(copied).data_ptr() == copied.data_ptr()
    assert torch.from_dlpack(copied, copy=True).data_ptr() != copied.data_ptr()
    assert torch.from_dlpack(copied, device="cpu").tolist() == copied.tolist()
    with pytest.raises(BufferError):
        cx.from_dlpack(x.clone().requires_grad_())
    with pytest.raises(BufferError):
        cx.from_dlpack(x.T)


# ------------------------------------------------------------------------------------------ threads


@SOURCES
def test_threads_let_go_of_views_at_once(source):
    tensor, memory = source()
    bar = threading.Barrier(16)
    boxes = [[bridge.to_torch(tensor)] for _ in range(16)]
    del tensor

    def let_go(box):
        bar.wait()
        box.clear()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(let_go, boxes))
    gc.collect()
    d.settle(lambda: memory() is None)


def test_threads_exchange_the_same_tensor():
    x = torch.zeros(16)

    def exchange(i):
        for _ in range(200):
            bridge.to_torch(bridge.from_torch(x))[i] += 1
        return bridge.from_torch(x, copy=True).is_shared

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(exchange, range(16)))
    assert x.tolist() == [200] * 16


# ---------------------------------------------------------------------------------------- processes


def test_another_program_writes_and_this_one_sees_it():
    x = bridge.to_torch(cx.put("x", torch.zeros(3)))
    run("""
import torch_tensorcx as bridge, tensorcx as cx
x = bridge.to_torch(cx.get("x"))
x += 1
again = bridge.from_torch(x)
assert again.is_shared and again.storage_id == cx.get("x").storage_id
cx.put("empty", bridge.from_torch({"a": x[:0], "b": x.reshape(3, 1, 1)}))
""")
    assert x.tolist() == [1, 1, 1]
    back = bridge.to_torch(cx.get("empty"))
    assert back["a"].shape == (0,) and back["b"].data_ptr() == x.data_ptr()
    cx.delete("x")
    cx.delete("empty")


def test_a_forked_child_has_the_same_memory():
    both = bridge.to_torch(cx.zeros(3, "float32"))
    own = torch.zeros(3)
    handle = bridge.from_torch(own)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            bridge.from_torch(both)[0] = 1
            bridge.to_torch(bridge.from_torch(both))[1] = 2
            bridge.to_torch(handle)[0] = 9  # the child's copy of private memory
            cx.put("from child", both)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert both.tolist() == [1, 2, 0] and own.tolist() == [0, 0, 0]
    assert bridge.to_torch(cx.get("from child")).data_ptr() == both.data_ptr()
    cx.delete("from child")


# --------------------------------------------------------------------- the end of the interpreter

AT_THE_END = """
import os, signal, sys, threading
import torch
import tensorcx as cx
import torch_tensorcx as bridge

born = cx.zeros(100_000, "float32")
on_born = bridge.to_torch(born)
imported = torch.from_dlpack(cx.put("x", torch.ones(3)))
shared = bridge.from_torch(torch.ones(3))
back = bridge.to_torch(shared)
bundle = bridge.to_torch(cx.put("b", {"a": torch.ones(3)}))
cycle = [on_born, shared]
cycle.append(cycle)
cx.delete("x")
cx.delete("b")
class Late:
    def __init__(self): self.view = bridge.to_torch(born)
    def __del__(self): self.view.add_(1)
late = Late()
started = threading.Event()
elements = on_born.numpy()
def read():  # not by torch: its threads abort such an end, with any tensor
    while True:
        elements.sum()
        started.set()
threading.Thread(target=read, daemon=True).start()
started.wait()
if sys.argv[1] == "gone":
    os.kill(cx.stats()["pid"], signal.SIGKILL)
"""


def test_tensors_that_live_at_the_end_do_no_harm(daemon):
    run(AT_THE_END, "there")
    daemon.settle(storages=0, clients=1)


def test_nor_when_the_daemon_is_gone(tmp_path, monkeypatch):
    running = d.Daemon(tmp_path)
    try:
        monkeypatch.setenv("TENSORCX_SOCKET", str(running.path))
        run(AT_THE_END, "gone")
        assert running.process.wait(d.DEADLINE) == -signal.SIGKILL
    finally:
        running.kill()


@pytest.mark.slow
def test_nor_ever(daemon):
    for _ in range(200):
        run(AT_THE_END, "there")
        daemon.settle(storages=0, clients=1)
