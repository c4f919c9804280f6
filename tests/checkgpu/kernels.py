"""Slow kernels: kernels.ptx, or the fake driver's own. They need a current context."""

import ctypes
import functools
from ctypes import byref, c_uint64, c_void_p
from pathlib import Path

import cuda_driver as cuda

BLOCKS, THREADS = 64, 256


def is_fake() -> bool:
    return hasattr(cuda.library(), "fakecuda_launch")


@functools.cache
def _function(name: str) -> c_void_p:
    module, function = c_void_p(), c_void_p()
    text = Path(__file__).with_suffix(".ptx").read_bytes()
    cuda.call("cuModuleLoadData", byref(module), text)
    cuda.call("cuModuleGetFunction", byref(function), module, name.encode())
    return function


def prepare() -> None:
    """Loads the kernels, so that the first launch does not wait for that."""
    if not is_fake():
        _function("slow_fill")
        _function("slow_read")


def _launch(name: str, stream: int, *values: int) -> None:
    parameters = [c_uint64(value) for value in values]
    pointers = (c_void_p * len(values))(*(ctypes.addressof(p) for p in parameters))
    grid = (BLOCKS, 1, 1, THREADS, 1, 1)
    cuda.call("cuLaunchKernel", _function(name), *grid, 0, c_void_p(stream), pointers, None)


def slow_fill(stream: int, address: int, nbytes: int, value: int, ms: int) -> None:
    """After `ms` of work fills memory with a byte."""
    if is_fake():
        fake = (c_void_p(stream), c_uint64(address), ctypes.c_size_t(nbytes))
        cuda.call("fakecuda_launch", *fake, ctypes.c_ubyte(value), ms)
    else:
        _launch("slow_fill", stream, address, nbytes, value, ms * 1_000_000)


class SlowRead:
    """Reads memory for `ms`; result() is what it saw last, once the stream has done it."""

    def __init__(self, stream: int, address: int, nbytes: int, ms: int):
        self.nbytes = nbytes
        if is_fake():
            self.seen = ctypes.create_string_buffer(nbytes)
            fake = (c_void_p(stream), c_uint64(address), ctypes.c_size_t(nbytes))
            cuda.call("fakecuda_read", *fake, ms, self.seen)
        else:
            self.copy = cuda.allocate(nbytes)
            _launch("slow_read", stream, address, nbytes, self.copy, ms * 1_000_000)

    def result(self) -> bytes:
        if is_fake():
            return self.seen.raw
        values = cuda.read(self.copy, self.nbytes)
        cuda.free(self.copy)
        return values
