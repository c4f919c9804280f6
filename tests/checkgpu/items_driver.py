"""What the driver does with memory that is mapped by hand; no tensorcx."""

import ctypes
import itertools
import os
import threading
import time
from ctypes import byref, c_size_t, c_uint64, c_void_p

import cuda_driver as cuda
import kernels
import vmm
from item import MIB, QUICK, Clock, expect, free_bytes, item, settle_free, sizes
from peer import Peer

IPC_FLAGS = 1
BLOCK = 2 * MIB
CAPTURE_MODES = 0, 1, 2  # global, of the thread, relaxed


class IpcHandle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


@item(1, "what the device says of itself")
def properties():
    cuda.count_devices()
    numbers = (102, 103, 110, 124, 125, 128)
    name = ctypes.create_string_buffer(100)
    cuda.call("cuDeviceGetName", name, 100, 0)
    with cuda.current():
        return {
            "driver": cuda.version(),
            "name": name.value.decode(),
            "uuid": cuda.uuid(0),
            "bytes": cuda.free_and_total()[1],
            "attributes": {number: cuda.attribute(number) for number in numbers},
            "granularity": [vmm.granularity(0), vmm.granularity(1)],
        }


@item(3, "how long each call for mapped memory takes")
def vmm_latency():
    figures = {}
    for nbytes in sizes():
        rounds = 20 if nbytes <= 1024 * MIB else 5
        figures[nbytes // MIB] = steps_us(nbytes, rounds)
    return {"us_by_mib": figures}


def steps_us(nbytes: int, rounds: int) -> dict:
    clock = Clock()
    with cuda.current():
        for _ in range(rounds):
            own = clock.time("create", vmm.create, nbytes)
            fd = clock.time("export", vmm.export, own)
            handle = clock.time("import", vmm.import_, fd)
            os.close(fd)
            address = clock.time("reserve", vmm.reserve, nbytes)
            clock.time("map", vmm.map_at, address, nbytes, handle)
            clock.time("access", vmm.set_access, address, nbytes)
            vmm.release(own)
            clock.time("unmap", vmm.unmap, address, nbytes)
            clock.time("release", vmm.release, handle)
            clock.time("free", vmm.unreserve, address, nbytes)
    return clock.figures()


@item(4, "how long cuIpc takes")
def ipc_latency():
    figures = {}
    with Peer(opens_ipc) as peer, cuda.current():
        for nbytes in sizes():
            clock = Clock()
            address = cuda.allocate(nbytes)
            for _ in range(20):
                handle = clock.time("get", get_ipc, address)
            peer.say(handle)
            figures[nbytes // MIB] = clock.figures() | peer.hear()
            cuda.free(address)
        peer.say(None)
    return {"us_by_mib": figures}


def get_ipc(address: int) -> list[int]:
    handle = IpcHandle()
    cuda.call("cuIpcGetMemHandle", byref(handle), c_uint64(address))
    return list(handle.bytes)


def open_ipc(handle: list[int]) -> int:
    address = c_uint64()
    raw = IpcHandle((ctypes.c_ubyte * 64)(*handle))
    cuda.call("cuIpcOpenMemHandle_v2", byref(address), raw, IPC_FLAGS)
    return address.value


def close_ipc(address: int) -> None:
    cuda.call("cuIpcCloseMemHandle", c_uint64(address))


def opens_ipc(link):
    with cuda.current():
        while handle := link.hear():
            clock = Clock()
            for _ in range(10):
                address = clock.time("open", open_ipc, handle)
                clock.time("close", close_ipc, address)
            link.say(clock.figures())


@item(6, "many handles in one process, and many processes")
def many_handles():
    nbytes = BLOCK
    count = min(100 if QUICK else 10_000, free_bytes() // 2 // nbytes)
    with cuda.current():
        vmm.Mapping(vmm.descriptor(nbytes), nbytes).close()
        fds = len(os.listdir("/proc/self/fd"))
        started = time.monotonic()
        mapped = [vmm.Mapping(vmm.descriptor(nbytes), nbytes) for _ in range(count)]
        seconds = time.monotonic() - started
        expect(len(os.listdir("/proc/self/fd")) == fds, "descriptors stay with mappings")
        cuda.fill(mapped[-1].address, 1, nbytes)
        cuda.synchronize()
        for mapping in mapped:
            mapping.close()
    return {"handles": count, "us_each": round(seconds / count * 1e6, 1)} | many_processes()


def many_processes() -> dict:
    count = 3 if QUICK else 64
    baseline = free_bytes()
    fds = [vmm.descriptor(BLOCK) for _ in range(count)]
    peers = [Peer(maps_one) for _ in range(count)]
    for peer, fd in zip(peers, fds, strict=True):
        peer.say(fd=fd)
        os.close(fd)
    for peer in peers:
        expect(peer.hear() == "mapped", "a process could not map its handle")
        peer.say()
        peer.__exit__(None)
    return {"processes": count, "seconds_to_free": settle_free(baseline)}


def maps_one(link):
    cuda.count_devices()
    mapping = vmm.Mapping(link.hear_fd()[1], BLOCK)
    link.say("mapped")
    link.hear()
    mapping.close()


@item(9, "memory of a process that ended, from a descriptor that another one kept")
def kept_descriptor():
    with Peer(makes_and_ends, 64 * MIB) as maker:
        fd = maker.hear_fd()[1]
        maker.kill()
    with Peer(reads_all, 64 * MIB) as reader:
        reader.say(fd=fd)
        os.close(fd)
        expect(reader.hear() == {"right": True}, "the bytes are gone")
    return {}


def makes_and_ends(link, nbytes):
    with cuda.current():
        fd = vmm.descriptor(nbytes)
        mapping = vmm.Mapping(os.dup(fd), nbytes)
        cuda.fill(mapping.address, 7, nbytes)
        cuda.synchronize()
        link.say(fd=fd)
        link.hear()


def reads_all(link, nbytes):
    with cuda.current():
        mapping = vmm.Mapping(link.hear_fd()[1], nbytes, vmm.READ)
        link.say({"right": cuda.read(mapping.address, nbytes) == b"\7" * nbytes})


@item(12, "a write to memory that is mapped for reading")
def readonly_mapping():
    nbytes = BLOCK
    with cuda.current(), Peer(writes_readonly, nbytes) as writer, Peer(keeps, nbytes) as other:
        fd = vmm.descriptor(nbytes)
        mapping = vmm.Mapping(os.dup(fd), nbytes)
        cuda.fill(mapping.address, 7, nbytes)
        cuda.synchronize()
        writer.say(fd=fd)
        other.say(fd=fd)
        os.close(fd)
        figures = writer.hear()
        other.say()
        expect(figures["read"], "the reader read something else")
        expect(figures["error"] != 0, "the write had no error")
        expect(other.hear() == "lives", "another process lost its context, too")
        expect(cuda.read(mapping.address, nbytes) == b"\7" * nbytes, "it was written")
        mapping.close()
    return figures


def writes_readonly(link, nbytes):
    with cuda.current():
        mapping = vmm.Mapping(link.hear_fd()[1], nbytes, vmm.READ)
        read = cuda.read(mapping.address, nbytes) == b"\7" * nbytes
        error = code_of(lambda: (cuda.fill(mapping.address, 1, nbytes), cuda.synchronize()))
        after = code_of(lambda: cuda.allocate(1))
        link.say({"read": read, "error": error, "next_call": after, "context_lost": after != 0})
    os._exit(0)  # nothing can be cleaned up in a lost context


def keeps(link, nbytes):
    with cuda.current():
        mapping = vmm.Mapping(link.hear_fd()[1], nbytes)
        link.hear()
        cuda.fill(mapping.address + nbytes - 1, 7, 1)
        cuda.synchronize()
        link.say("lives")
        mapping.close()


def code_of(act) -> int:
    try:
        act()
    except cuda.CudaError as error:
        return error.code
    return 0


@item(13, "whether fresh memory shows old bytes")
def scrubbing():
    nbytes = 64 * MIB
    with cuda.current():
        leave_pattern(nbytes)
        here = count_pattern(nbytes)
        leave_pattern(nbytes)
        with Peer(looks_for_pattern, nbytes) as other:
            elsewhere = other.hear()
    return {"bytes": nbytes, "old_bytes_same_process": here, "old_bytes_other": elsewhere}


def leave_pattern(nbytes):
    mapping = vmm.Mapping(vmm.descriptor(nbytes), nbytes)
    cuda.fill(mapping.address, 0x5A, nbytes)
    cuda.synchronize()
    mapping.close()


def count_pattern(nbytes) -> int:
    mapping = vmm.Mapping(vmm.descriptor(nbytes), nbytes)
    found = cuda.read(mapping.address, nbytes).count(0x5A)
    mapping.close()
    return found


def looks_for_pattern(link, nbytes):
    with cuda.current():
        link.say(count_pattern(nbytes))


@item(14, "a process that imports what it exported")
def own_import():
    nbytes = BLOCK
    with cuda.current():
        fd = vmm.descriptor(nbytes)
        one, two = vmm.Mapping(os.dup(fd), nbytes), vmm.Mapping(fd, nbytes)
        cuda.fill(one.address, 3, nbytes)
        cuda.synchronize()
        expect(cuda.read(two.address, nbytes) == b"\3" * nbytes, "two mappings differ")
        one.close()
        two.close()
        address = cuda.allocate(nbytes)
        handle = get_ipc(address)
        code = code_of(lambda: open_ipc(handle))
        cuda.free(address)
    return {"ipc_own_handle": code}


@item(19, "an imported handle is exported again; RDMA")
def export_again():
    nbytes = BLOCK
    with cuda.current(), Peer(reads_all, nbytes) as reader:
        handle = vmm.create(nbytes, rdma=cuda.attribute(110))
        fd = vmm.export(handle)
        again = vmm.import_(fd)
        os.close(fd)
        vmm.release(handle)
        fd = vmm.export(again)
        vmm.release(again)
        mapping = vmm.Mapping(os.dup(fd), nbytes)
        cuda.fill(mapping.address, 7, nbytes)
        cuda.synchronize()
        reader.say(fd=fd)
        os.close(fd)
        expect(reader.hear() == {"right": True}, "the second descriptor is other memory")
        figures = {"rdma_attribute": cuda.attribute(110)} | dma_buf(mapping)
        mapping.close()
    return figures


def dma_buf(mapping) -> dict:
    """What a network card would ask for."""
    if not hasattr(cuda.library(), "cuMemGetHandleForAddressRange"):
        return {"dma_buf": "the driver has no such function"}
    fd = ctypes.c_int(-1)
    arguments = (byref(fd), c_uint64(mapping.address), c_size_t(mapping.nbytes), 1, c_uint64(0))
    code = code_of(lambda: cuda.call("cuMemGetHandleForAddressRange", *arguments))
    if fd.value >= 0:
        os.close(fd.value)
    capable = ctypes.c_int()
    asked = code_of(
        lambda: cuda.call("cuPointerGetAttribute", byref(capable), 15, c_uint64(mapping.address))
    )
    return {"dma_buf_error": code, "rdma_capable": capable.value if not asked else None}


@item(23, "cuMemFree waits for all work, also while somebody captures a graph")
def free_waits():
    with cuda.current():
        kernels.prepare()
        memory, work, captured = cuda.allocate(BLOCK), cuda.stream_create(), cuda.stream_create()
        waited = {}
        for nbytes, mode in itertools.product([1, BLOCK], CAPTURE_MODES):
            with cuda.capture(captured, mode):
                kernels.slow_fill(work, memory, BLOCK, 2, 200)
                thread = threading.Thread(target=allocate_and_free, args=[nbytes])
                thread.start()
                thread.join()
            code = code_of(lambda: cuda.call("cuStreamQuery", c_void_p(work)))
            waited[f"{nbytes} bytes, mode {mode}"] = code == 0
            cuda.stream_synchronize(work)
        cuda.free(memory)
    expect(all(waited.values()), f"cuMemFree has not waited: {waited}")
    return {}


def allocate_and_free(nbytes):
    mode = ctypes.c_int(2)  # relaxed
    with cuda.current():
        cuda.call("cuThreadExchangeStreamCaptureMode", byref(mode))
        cuda.free(cuda.allocate(nbytes))
