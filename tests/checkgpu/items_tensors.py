"""Tensors of tensorcx on a device, between processes: cost, order, death."""

import ctypes
import os
import time
from ctypes import byref, c_size_t, c_void_p
from pathlib import Path

import cuda_driver as cuda
import daemon as d
import kernels
import nvml
from item import (
    MIB,
    NOISE,
    QUICK,
    address_of,
    expect,
    free_bytes,
    item,
    running_daemon,
    settle_free,
)
from peer import Peer

import tensorcx as cx

NBYTES = (16 if QUICK else 256) * MIB
DEVICE = "cuda:0"
OLD, NEW = 1, 2  # what tensors are full of


def in_each_mode(check):
    """An item whose figures are those of `check(daemon)` with each kind of memory."""

    def check_each():
        figures = {}
        for mode in "vmm", "ipc":
            with running_daemon(f"--cuda={mode}") as daemon, cuda.current():
                cx.connect()
                kernels.prepare()
                cx.empty((1,), "uint8", device=DEVICE)  # now the daemon has all that it keeps
                figures[mode] = check(daemon)
        return figures

    return check_each


@item(2, "what a daemon with memory on a device costs")
def daemon_cost():
    nbytes = (64 if QUICK else 1024) * MIB
    before = free_bytes()
    with running_daemon() as daemon, daemon.connect() as connection:
        connection.call("DEVICES")
        loaded = free_bytes()
        connection.call("ALLOC", nbytes=nbytes, device_type=2, device=1)
        after = free_bytes()
        status = Path(f"/proc/{daemon.pid}/status").read_text()
        rss = next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]
        figures = {
            "driver_bytes": before - loaded,
            "allocation_bytes": loaded - after,
            "rss_kib": int(rss),
        } | nvml.process(cuda.uuid(0), daemon.pid)
    expect(abs(loaded - after - nbytes) <= NOISE, "the memory is not there")
    return figures | {"seconds_to_free": settle_free(before)}


@item(5, "copies in memory of tensorcx and in the driver's own")
def bandwidth():
    nbytes = 32 * MIB if QUICK else min(8192 * MIB, free_bytes() // 4)
    with running_daemon(), cuda.current():
        tensor = cx.empty((nbytes,), "uint8", device=DEVICE)
        own = cuda.allocate(nbytes)
        ours = copies_per_second(address_of(tensor), nbytes)
        theirs = copies_per_second(own, nbytes)
        figures = {"gib_s": round(ours, 1), "gib_s_driver": round(theirs, 1)}
        figures |= pinned(address_of(tensor), own, nbytes)
        cuda.free(own)
    figures["ratio"] = round(ours / theirs, 3)
    expect(kernels.is_fake() or figures["ratio"] >= 0.98, f"tensorcx is slower: {figures}")
    return figures


def copies_per_second(address: int, nbytes: int) -> float:
    """GiB/s of copying one half to the other, best of five."""
    half = nbytes // 2
    return best_gib_s(half, lambda: cuda.copy(address + half, address, half))


def best_gib_s(nbytes: int, act) -> float:
    best = 0.0
    for _ in range(5):
        cuda.synchronize()
        started = time.perf_counter()
        act()
        cuda.synchronize()
        best = max(best, nbytes / (time.perf_counter() - started) / 2**30)
    return best


def pinned(address: int, own: int, nbytes: int) -> dict:
    """From pinned memory of the host, and back."""
    if not hasattr(cuda.library(), "cuMemHostAlloc"):
        return {}
    nbytes = min(nbytes, 1024 * MIB)
    host = c_void_p()
    cuda.call("cuMemHostAlloc", byref(host), c_size_t(nbytes), 0)
    figures = {}
    for name, at in ("tensorcx", address), ("driver", own):
        device, size, stream = ctypes.c_uint64(at), c_size_t(nbytes), c_void_p(cuda.LEGACY)
        to_device = ("cuMemcpyHtoDAsync_v2", device, host, size, stream)
        to_host = ("cuMemcpyDtoHAsync_v2", host, device, size, stream)
        figures[name] = [
            round(best_gib_s(nbytes, lambda c=c: cuda.call(*c)), 1) for c in (to_device, to_host)
        ]
    cuda.call("cuMemFreeHost", host)
    return {"pinned_gib_s_in_out": figures}


# ------------------------------------------------------------------------------------------ death


@item(7, "a client that is killed, idle and with a running kernel")
@in_each_mode
def client_killed(daemon):
    figures = {}
    d.settle(lambda: committed() == 0, "the end of what was used before")
    baseline = free_bytes()
    for state, busy in ("idle", False), ("busy", True):
        with Peer(holds, busy) as client:
            client.hear()
            expect(free_bytes() <= baseline - NBYTES, "the client has no memory")
            client.kill()
        figures[f"seconds_to_free_{state}"] = settle_free(baseline)
        with Peer(holds, False) as another:
            another.hear()
            another.say()
        expect(daemon.process.poll() is None, "the daemon has ended")
    return figures


def holds(link, busy):
    with cuda.current():
        kernels.prepare()
        tensor = cx.empty((NBYTES,), "uint8", device=DEVICE)
        if busy:
            kernels.slow_fill(cuda.stream_create(), address_of(tensor), NBYTES, NEW, 3000)
        link.say()
        link.hear()


@item(8, "a daemon that is killed while a client computes")
@in_each_mode
def daemon_killed(daemon):
    baseline = free_bytes()
    with Peer(computes) as client:
        client.hear()
        daemon.kill()
        client.say()
        expect(client.hear() == {"wrong": 0}, "the client's result is wrong")
        client.say()
    return {"seconds_to_free": settle_free(baseline)}


def computes(link):
    with cuda.current():
        kernels.prepare()
        tensor = cx.empty((NBYTES,), "uint8", device=DEVICE)
        stream = cuda.stream_create()
        kernels.slow_fill(stream, address_of(tensor), NBYTES, NEW, 500)
        link.say()
        link.hear()
        cuda.stream_synchronize(stream)
        link.say({"wrong": wrong_bytes(tensor, NEW)})
        link.hear()


def wrong_bytes(tensor, value: int) -> int:
    return NBYTES - cuda.read(address_of(tensor), NBYTES).count(value)


# ------------------------------------------------------------------------------------------ order


@item(10, "what is published has been written")
@in_each_mode
def publish_waits(daemon):
    with Peer(reads_published) as reader:
        reader.hear()
        stream = cuda.stream_create()
        wrong = {}
        for way, given in ("all work", None), ("stream", stream):
            tensor = filled(OLD)
            kernels.slow_fill(stream, address_of(tensor), NBYTES, NEW, 200)
            cx.put(way, tensor, stream=given)
            reader.say([way, NEW])
            wrong[way] = reader.hear()
        unguarded = read_unguarded(reader, stream)
        reader.say(None)
    expect(not any(wrong.values()), f"readers saw bytes from before: {wrong}")
    expect(unguarded > 0, "this check cannot see a missing wait")
    return {"wrong_bytes_without_a_wait": unguarded}


def read_unguarded(reader, stream: int) -> int:
    """Bytes that are wrong where nobody waits; a machine that is busy gets several chances."""
    tensor = cx.put("unguarded", filled(OLD))
    wrong, ms = 0, 200
    while not wrong and ms <= 6400:
        cuda.fill(address_of(tensor), OLD, NBYTES)
        cuda.synchronize()
        kernels.slow_fill(stream, address_of(tensor), NBYTES, NEW, ms)
        reader.say(["unguarded", NEW])
        wrong = reader.hear()
        cuda.stream_synchronize(stream)
        ms *= 2
    return wrong


def filled(value: int):
    tensor = cx.empty((NBYTES,), "uint8", device=DEVICE)
    cuda.fill(address_of(tensor), value, NBYTES)
    cuda.synchronize()
    return tensor


def reads_published(link):
    with cuda.current():
        filled(OLD)  # so that the first read finds everything loaded
        link.say("ready")
        while wanted := link.hear():
            name, value = wanted
            link.say(wrong_bytes(cx.get(name, timeout=30), value))


@item(11, "memory that is let go while others still read it")
@in_each_mode
def release_while_reading(daemon):
    baseline = free_bytes()
    cx.put("x", filled(NEW))
    readers = [Peer(reads_slowly) for _ in range(2)]
    for reader in readers:
        reader.hear()
    cx.delete("x")
    again = filled(OLD)  # must not get the memory that is still read
    for reader in readers:
        expect(reader.hear() == {"wrong": 0}, "a reader saw memory of somebody else")
        reader.__exit__(None)
    del again
    return {"seconds_to_free": settle_free(baseline)}


def reads_slowly(link):
    with cuda.current():
        kernels.prepare()
        tensor = cx.get("x")
        stream = cuda.stream_create()
        read = kernels.SlowRead(stream, address_of(tensor), NBYTES, 300)
        del tensor  # the last reference of this process, with the kernel running
        link.say()
        cuda.stream_synchronize(stream)
        link.say({"wrong": NBYTES - read.result().count(NEW)})


@item(24, "a tensor that goes while a graph is captured")
@in_each_mode
def release_during_capture(daemon):
    tensor, stream = filled(OLD), cuda.stream_create()
    before = committed()
    with cuda.capture(stream):
        del tensor
        d.settle(lambda: committed() == 0, "the end of its memory")
    expect(before >= NBYTES, "the tensor had no memory")
    return {}


def committed() -> int:
    (device,) = cx.devices()[:1]
    return device["committed_bytes"] + device["dying_bytes"]


# ---------------------------------------------------------------------------------------- devices


@item(15, "devices that a process sees or not")
def visibility():
    with running_daemon():
        tensor = cx.put("x", cx.full((8,), 7, "uint8", device=DEVICE))
        with Peer(looks_at_x, CUDA_VISIBLE_DEVICES=cuda.uuid(0)) as sees:
            expect(sees.hear()[:2] == ["cuda:0", [7] * 8], "by UUID it is not the device")
        with Peer(looks_at_x, CUDA_VISIBLE_DEVICES="") as blind:
            what, text, cpu = blind.hear()
        expect(what == "DeviceError", f"a hidden device gave {what}: {text}")
        expect(cpu == [0.0] * 4, "without a device tensors on the CPU do not work")
        del tensor
    return {"hidden": text}


def looks_at_x(link):
    try:
        x = cx.get("x")
        link.say([x.device, x.cpu().numpy().tolist(), None])
    except cx.Error as error:
        link.say([type(error).__name__, str(error), cx.zeros(4).numpy().tolist()])


@item(21, "a fork of a process that uses a device")
def fork():
    with running_daemon(), Peer(forks) as parent:
        said = parent.hear()
        expect(said["child"] == 0, f"the child ended with {said['child']}")
        expect(said["parent"] == [7] * 8, "the parent's tensor is damaged")
    return {}


def forks(link):
    x = cx.full((8,), 7, "uint8", device=DEVICE)
    pid = os.fork()
    if pid == 0:
        os._exit(ends_well())
    _, status = os.waitpid(pid, 0)
    link.say({"child": os.waitstatus_to_exitcode(status), "parent": x.cpu().numpy().tolist()})


def ends_well() -> int:
    """0: CUDA is a clear error in the child, and the CPU works."""
    try:
        cx.empty((8,), device=DEVICE)
    except cx.DeviceError as error:
        if "fork" not in str(error):
            return 2
    else:
        return 1
    return 0 if cx.zeros(4).numpy().tolist() == [0.0] * 4 else 3
