"""Tensors of tensorcx on a device in PyTorch, CuPy, Numba and JAX."""

import gc
import importlib
import threading

import cuda_driver as cuda
import numpy as np
from item import address_of, expect, item, need, running_daemon, torch_with_cuda
from peer import Peer

import tensorcx as cx

DEVICE = "cuda:0"


@item(16, "PyTorch: views, streams, graphs, threads, the end of a program")
def with_torch():
    torch = torch_with_cuda()
    checks = [shares, slices, computes, side_stream, captures, other_thread, ends_with_tensors]
    with running_daemon():
        for check in checks:
            check(torch)
    return {"checks": [check.__name__ for check in checks], "torch": torch.__version__}


def shares(torch):
    x = cx.zeros((64, 64), "float32", device=DEVICE)
    y = torch.from_dlpack(x)
    expect(y.is_cuda and y.data_ptr() == address_of(x), "from_dlpack has copied")
    y.add_(1)
    expect((x.cpu().numpy() == 1).all(), "a write does not show")
    back = cx.from_dlpack(y)
    expect(address_of(back) == address_of(x), "the way back has copied")


def slices(torch):
    x = cx.zeros((64, 64), "float32", device=DEVICE)
    torch.from_dlpack(x[2:4]).fill_(5)
    values = x.cpu().numpy()
    expect((values[2:4] == 5).all() and values.sum() == 5 * 128, "a slice is somewhere else")
    expect((torch.from_dlpack(x).clone().cpu().numpy() == values).all(), "a clone differs")


def computes(torch):
    a = torch.randn(128, 128, device=DEVICE)
    shared = torch.from_dlpack(cx.put("a", a))
    expect(torch.equal(shared @ shared, a @ a), "a product differs")
    cx.delete("a")


def side_stream(torch):
    stream = torch.cuda.Stream()
    x = torch.zeros(1 << 20, device=DEVICE)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        x.fill_(3)
        cx.put("x", x, stream=stream.cuda_stream)
    expect((cx.get("x").cpu().numpy() == 3).all(), "put has not waited for its stream")
    cx.delete("x")


def captures(torch):
    x = torch.ones(1024, device=DEVICE)
    shared = cx.put("y", torch.zeros(1024, device=DEVICE))
    y = torch.from_dlpack(shared)
    doomed = torch.from_dlpack(cx.zeros((1024,), "float32", device=DEVICE))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y.copy_(x * 2)
        del doomed
        gc.collect()
    graph.replay()
    torch.cuda.synchronize()
    expect((shared.cpu().numpy() == 2).all(), "the graph computes something else")
    del graph
    cx.delete("y")


def other_thread(torch):
    held = [torch.from_dlpack(cx.zeros((1024,), device=DEVICE))]
    thread = threading.Thread(target=held.clear)  # it has no context
    thread.start()
    thread.join()
    torch.cuda.synchronize()


def ends_with_tensors(torch):
    with Peer(ends) as peer:
        peer.hear()


def ends(link):
    import torch

    global kept  # noqa: PLW0603  alive until the interpreter has gone
    kept = [torch.from_dlpack(cx.zeros((1024,), device=DEVICE)), cx.zeros((4,), device=DEVICE)]
    link.say()


@item(17, "CuPy, Numba, JAX")
def others():
    figures = {}
    with running_daemon():
        for name, check in ("cupy", with_cupy), ("numba.cuda", with_numba), ("jax", with_jax):
            try:
                module = importlib.import_module(name)
            except ImportError:
                figures[name] = "not installed"
                continue
            x = cx.full((4, 4), 3, "float32", device=DEVICE)
            check(module, x)
            figures[name] = "shared"
    need("shared" in figures.values(), f"{', '.join(figures)} are not installed")
    return figures


def with_cupy(cupy, x):
    y = cupy.from_dlpack(x)
    expect(y.data.ptr == address_of(x), "CuPy has copied")
    y += 1
    cupy.cuda.Device().synchronize()
    expect((x.cpu().numpy() == 4).all(), "CuPy writes somewhere else")


def with_numba(numba_cuda, x):
    y = numba_cuda.as_cuda_array(x)
    expect((y.copy_to_host() == 3).all(), "Numba reads something else")


def with_jax(jax, x):
    expect((np.asarray(jax.dlpack.from_dlpack(x)) == 3).all(), "JAX reads something else")


@item(20, "linear, beside PyTorch's")
def linear():
    torch = torch_with_cuda()
    try:
        import torch_tensorcx as bridge
    except ImportError:
        need(False, "the PyTorch bridge is not installed")
    figures = {}
    torch.manual_seed(0)
    x, w, b = (torch.randn(*shape, device=DEVICE) for shape in ((512, 1024), (256, 1024), (256,)))
    for tf32 in False, True:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        wanted = torch.nn.functional.linear(x, w, b)
        with running_daemon():
            got = bridge.linear(*(bridge.from_torch(t, copy=True) for t in (x, w, b)))
        error = (got - wanted).abs().max().item()
        figures["tf32" if tf32 else "float32"] = {
            "max_error": error,
            "equal": torch.equal(got, wanted),
        }
        expect(error <= 1e-6 * 1024**0.5 * wanted.abs().max().item(), f"linear is off by {error}")
    with cuda.current():
        cuda.synchronize()
    return figures
