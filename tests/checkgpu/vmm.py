"""Memory that is created, exported and mapped by hand: what tensorcx does, without tensorcx."""

import ctypes
import os
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

import cuda_driver as cuda

DESCRIPTOR = 1  # the kind of exported handle
READ, READ_WRITE = 1, 3
MIB = 1 << 20


class Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", c_int)]


class Properties(ctypes.Structure):
    _fields_ = [
        ("type", c_int),
        ("handle_types", c_int),
        ("location", Location),
        ("win32", c_void_p),
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    ]


def properties(device: int = 0, rdma: int = 0) -> Properties:
    return Properties(1, DESCRIPTOR, Location(1, device), rdma=rdma)


def granularity(which: int = 0, device: int = 0) -> int:
    """0: the minimum, 1: recommended."""
    nbytes = c_size_t()
    cuda.call("cuMemGetAllocationGranularity", byref(nbytes), byref(properties(device)), which)
    return nbytes.value


def create(nbytes: int, device: int = 0, rdma: int = 0) -> int:
    handle = c_uint64()
    wanted = properties(device, rdma)
    cuda.call("cuMemCreate", byref(handle), c_size_t(nbytes), byref(wanted), c_uint64(0))
    return handle.value


def release(handle: int) -> None:
    cuda.call("cuMemRelease", c_uint64(handle))


def export(handle: int) -> int:
    fd = c_int()
    arguments = (byref(fd), c_uint64(handle), DESCRIPTOR, c_uint64(0))
    cuda.call("cuMemExportToShareableHandle", *arguments)
    return fd.value


def import_(fd: int) -> int:
    handle = c_uint64()
    cuda.call("cuMemImportFromShareableHandle", byref(handle), c_void_p(fd), DESCRIPTOR)
    return handle.value


def reserve(nbytes: int) -> int:
    address = c_uint64()
    arguments = (byref(address), c_size_t(nbytes), c_size_t(0), c_uint64(0), c_uint64(0))
    cuda.call("cuMemAddressReserve", *arguments)
    return address.value


def map_at(address: int, nbytes: int, handle: int) -> None:
    arguments = (c_uint64(address), c_size_t(nbytes), c_size_t(0), c_uint64(handle), c_uint64(0))
    cuda.call("cuMemMap", *arguments)


def set_access(address: int, nbytes: int, flags: int = READ_WRITE, device: int = 0) -> None:
    access = Access(Location(1, device), flags)
    cuda.call("cuMemSetAccess", c_uint64(address), c_size_t(nbytes), byref(access), c_size_t(1))


def unmap(address: int, nbytes: int) -> None:
    cuda.call("cuMemUnmap", c_uint64(address), c_size_t(nbytes))


def unreserve(address: int, nbytes: int) -> None:
    cuda.call("cuMemAddressFree", c_uint64(address), c_size_t(nbytes))


class Mapping:
    """A descriptor's memory, mapped; takes the descriptor."""

    def __init__(self, fd: int, nbytes: int, flags: int = READ_WRITE):
        handle = import_(fd)
        os.close(fd)
        self.nbytes = nbytes
        self.address = reserve(nbytes)
        map_at(self.address, nbytes, handle)
        release(handle)
        set_access(self.address, nbytes, flags)

    def close(self) -> None:
        unmap(self.address, self.nbytes)
        unreserve(self.address, self.nbytes)


def descriptor(nbytes: int) -> int:
    """Of fresh memory that has no other owner."""
    handle = create(nbytes)
    fd = export(handle)
    release(handle)
    return fd
