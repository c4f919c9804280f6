"""The CUDA driver by ctypes, as little of it as tests need: the machine's, or the fake one.

Nothing here is tensorcx. Addresses and streams are ints; streams as in DLPack (1 legacy default, 2
per thread, else a pointer). Memory, streams and events need a current context: see current().
"""

import contextlib
import ctypes
import functools
from ctypes import byref, c_int, c_size_t, c_ubyte, c_uint64, c_void_p

LEGACY, PER_THREAD = 1, 2
NON_BLOCKING = 1  # of a stream: waits for no legacy stream
OUT_OF_MEMORY, DEINITIALIZED, STUB_LIBRARY, NO_DEVICE = 2, 4, 34, 100
INVALID_CONTEXT, NOT_READY, ILLEGAL_ADDRESS = 201, 600, 700


class CudaError(RuntimeError):
    def __init__(self, function: str, code: int):
        super().__init__(f"{function}: {text(code)}")
        self.code = code


@functools.cache
def library():
    return ctypes.CDLL("libcuda.so.1")


def text(code: int) -> str:
    words = ctypes.c_char_p()
    if library().cuGetErrorName(code, byref(words)) or words.value is None:
        return f"error {code}"
    return f"{words.value.decode()} ({code})"


def call(function: str, *arguments) -> None:
    code = getattr(library(), function)(*arguments)
    if code:
        raise CudaError(function, code)


def is_visible() -> bool:
    """Whether there is a driver with a device; a driver that fails is an error."""
    try:
        return count_devices() > 0
    except OSError:
        return False
    except CudaError as error:
        if error.code in (STUB_LIBRARY, NO_DEVICE):
            return False
        raise


def count_devices() -> int:
    count = c_int()
    call("cuInit", 0)
    call("cuDeviceGetCount", byref(count))
    return count.value


def uuid(device: int) -> str:
    """As nvidia-smi prints it, for CUDA_VISIBLE_DEVICES."""
    raw = (c_ubyte * 16)()
    call("cuDeviceGetUuid_v2", byref(raw), device)
    digits = bytes(raw).hex()
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def attribute(number: int, device: int = 0) -> int:
    value = c_int()
    call("cuDeviceGetAttribute", byref(value), number, device)
    return value.value


def version() -> int:
    value = c_int()
    call("cuDriverGetVersion", byref(value))
    return value.value


@functools.cache
def context(device: int) -> int:
    """The primary one, which is kept from now on."""
    found = c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", byref(found), device)
    return found.value


@contextlib.contextmanager
def current(device: int = 0):
    call("cuCtxPushCurrent_v2", c_void_p(context(device)))
    try:
        yield
    finally:
        call("cuCtxPopCurrent_v2", None)


def synchronize() -> None:
    call("cuCtxSynchronize")


# ----------------------------------------------------------------------------------------- memory


def allocate(nbytes: int) -> int:
    address = c_uint64()
    call("cuMemAlloc_v2", byref(address), c_size_t(max(nbytes, 1)))
    return address.value


def free(address: int) -> None:
    call("cuMemFree_v2", c_uint64(address))


def free_and_total() -> tuple[int, int]:
    left, total = c_size_t(), c_size_t()
    call("cuMemGetInfo_v2", byref(left), byref(total))
    return left.value, total.value


def write(address: int, values: bytes, stream: int = LEGACY) -> None:
    """Is done when it returns."""
    call("cuMemcpyHtoDAsync_v2", c_uint64(address), values, c_size_t(len(values)), c_void_p(stream))
    stream_synchronize(stream)


def read(address: int, nbytes: int, stream: int = LEGACY) -> bytes:
    """After all that the stream was given before."""
    values = ctypes.create_string_buffer(nbytes)
    call("cuMemcpyDtoHAsync_v2", values, c_uint64(address), c_size_t(nbytes), c_void_p(stream))
    stream_synchronize(stream)
    return values.raw


def copy(to: int, source: int, nbytes: int, stream: int = LEGACY) -> None:
    call("cuMemcpyDtoDAsync_v2", c_uint64(to), c_uint64(source), c_size_t(nbytes), c_void_p(stream))


def fill(address: int, value: int, nbytes: int, stream: int = LEGACY) -> None:
    call("cuMemsetD8Async", c_uint64(address), c_ubyte(value), c_size_t(nbytes), c_void_p(stream))


# ------------------------------------------------------------------------------ streams and events


def stream_create(flags: int = NON_BLOCKING) -> int:
    stream = c_void_p()
    call("cuStreamCreate", byref(stream), flags)
    return stream.value


def stream_destroy(stream: int) -> None:
    call("cuStreamDestroy_v2", c_void_p(stream))


def stream_synchronize(stream: int) -> None:
    call("cuStreamSynchronize", c_void_p(stream))


def stream_wait_for(stream: int, other: int) -> None:
    """What `stream` is given from now on waits for what `other` has been given."""
    event = c_void_p()
    call("cuEventCreate", byref(event), 2)  # without timing
    call("cuEventRecord", event, c_void_p(other))
    call("cuStreamWaitEvent", c_void_p(stream), event, 0)
    call("cuEventDestroy_v2", event)


@contextlib.contextmanager
def capture(stream: int, mode: int = 0):
    """A graph capture, whose graph is thrown away; CudaError 901 at its end if it was disturbed."""
    graph = c_void_p()
    call("cuStreamBeginCapture_v2", c_void_p(stream), mode)
    try:
        yield
    finally:
        call("cuStreamEndCapture", c_void_p(stream), byref(graph))
        if graph:
            call("cuGraphDestroy", graph)
