"""The capsule forge: DLPack capsules and producers with every field free, right or wrong.

A Forge is one managed tensor in the making; capsule() puts it into the world. `released` counts how
often its deleter was called: 1 is right, 0 a leak, 2 a crash in real life.
"""

import ctypes
import gc
from ctypes import c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p

LEGACY, VERSIONED = b"dltensor", b"dltensor_versioned"
USED = {LEGACY: b"used_dltensor", VERSIONED: b"used_dltensor_versioned"}

CPU, CUDA = 1, 2
READ_ONLY, IS_COPIED, PADDED = 1, 2, 4

FLOAT32, INT32, BOOL = (2, 32, 1), (0, 32, 1), (6, 8, 1)


class DLDevice(ctypes.Structure):
    _fields_ = [("device_type", c_int32), ("device_id", c_int32)]


class DLDataType(ctypes.Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device", DLDevice),
        ("ndim", c_int32),
        ("dtype", DLDataType),
        ("shape", c_void_p),
        ("strides", c_void_p),
        ("byte_offset", c_uint64),
    ]


class DLManagedTensor(ctypes.Structure):
    _fields_ = [("dl_tensor", DLTensor), ("manager_ctx", c_void_p), ("deleter", c_void_p)]


class DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("manager_ctx", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("dl_tensor", DLTensor),
    ]


Deleter = ctypes.CFUNCTYPE(None, c_void_p)
Destructor = ctypes.PYFUNCTYPE(None, c_void_p)

python = ctypes.pythonapi
python.PyCapsule_New.restype = ctypes.py_object
python.PyCapsule_New.argtypes = [c_void_p, c_char_p, c_void_p]
python.PyCapsule_GetName.restype = c_char_p
python.PyCapsule_GetName.argtypes = [ctypes.py_object]

# The same functions for an object that is being destroyed: no reference may be taken on it.
is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, c_void_p, c_char_p)(("PyCapsule_IsValid", python))
get_pointer = ctypes.PYFUNCTYPE(c_void_p, c_void_p, c_char_p)(("PyCapsule_GetPointer", python))

in_the_world: dict[int, "Forge"] = {}  # by address of the managed tensor, until it is deleted


@Deleter
def delete(address):
    forge = in_the_world.get(address)
    if forge is None:
        return
    forge.released += 1


@Destructor
def destroy_capsule(capsule):
    """What a correct producer does: delete only what nobody has taken."""
    for name in LEGACY, VERSIONED:
        if is_valid(capsule, name):
            delete(get_pointer(capsule, name))


def capsule_name(capsule) -> bytes:
    return python.PyCapsule_GetName(capsule)


def contents(capsule):
    """The managed tensor in a capsule that nobody has taken yet; keeps the capsule."""
    name = capsule_name(capsule)
    kind = DLManagedTensorVersioned if name == VERSIONED else DLManagedTensor
    managed = kind.from_address(get_pointer(id(capsule), name))
    managed.capsule = capsule
    return managed


def dims(pointer: int, ndim: int) -> tuple[int, ...]:
    return tuple((c_int64 * ndim).from_address(pointer)) if pointer else ()


class Forge:
    """A managed tensor over `values` (bytes) that lie at a 256-byte boundary plus `shift`.

    Everything is free: `data`, `shape_pointer`, `strides_pointer` and `ndim` override what would be
    right; `strides` None means a NULL pointer; `deleter` False means none.
    """

    RIGHT = object()

    def __init__(
        self,
        values=bytes(24),
        shape=(2, 3),
        dtype=FLOAT32,
        *,
        versioned=True,
        version=(1, 3),
        strides=RIGHT,
        byte_offset=0,
        device=(CPU, 0),
        flags=0,
        deleter=True,
        shift=0,
        data=RIGHT,
        ndim=RIGHT,
        shape_pointer=RIGHT,
        strides_pointer=RIGHT,
    ):
        self.released = 0
        self.name = VERSIONED if versioned else LEGACY
        self.buffer = ctypes.create_string_buffer(len(values) + 512)
        self.address = (ctypes.addressof(self.buffer) + 255) // 256 * 256 + shift
        ctypes.memmove(self.address, bytes(values), len(values))
        self.shape = (c_int64 * len(shape))(*shape)
        if strides is Forge.RIGHT:
            strides = c_order(shape)
        self.strides = None if strides is None else (c_int64 * len(strides))(*strides)

        self.managed = (DLManagedTensorVersioned if versioned else DLManagedTensor)()
        tensor = self.managed.dl_tensor
        tensor.data = self.address if data is Forge.RIGHT else data
        tensor.device = DLDevice(*device)
        tensor.ndim = len(shape) if ndim is Forge.RIGHT else ndim
        tensor.dtype = DLDataType(*dtype)
        tensor.shape = pointer_to(self.shape) if shape_pointer is Forge.RIGHT else shape_pointer
        tensor.strides = (
            pointer_to(self.strides) if strides_pointer is Forge.RIGHT else strides_pointer
        )
        tensor.byte_offset = byte_offset
        self.managed.deleter = ctypes.cast(delete, c_void_p).value if deleter else None
        if versioned:
            self.managed.major, self.managed.minor = version
            self.managed.flags = flags
        in_the_world[ctypes.addressof(self.managed)] = self

    def capsule(self):
        """A new capsule; call it once, as the managed tensor can be taken once."""
        return python.PyCapsule_New(
            ctypes.addressof(self.managed), self.name, ctypes.cast(destroy_capsule, c_void_p)
        )

    def named(self, name: bytes):
        """A capsule under any other name; nobody deletes it."""
        return python.PyCapsule_New(ctypes.addressof(self.managed), name, None)

    def read(self, nbytes=24, offset=0) -> bytes:
        return ctypes.string_at(self.address + offset, nbytes)

    def write(self, values: bytes, offset=0):
        ctypes.memmove(self.address + offset, values, len(values))

    def is_released_once(self) -> bool:
        gc.collect()
        return self.released == 1


def pointer_to(array) -> int | None:
    return ctypes.addressof(array) if array is not None and len(array) else None


def c_order(shape) -> list[int]:
    strides, step = [0] * len(shape), 1
    for i in reversed(range(len(shape))):
        strides[i] = step
        step = min(abs(step * max(shape[i], 1)), 2**62)
    return strides


class Producer:
    """An object with __dlpack__ that hands out one forge and remembers how it was asked.

    `accepts` are the keywords it knows; any other one is a TypeError, as from an older library.
    `raises` is raised instead of answering; `capsule` is answered instead of a new one.
    """

    MODERN = ("stream", "max_version", "dl_device", "copy")

    def __init__(self, forge=None, *, accepts=MODERN, device=None, raises=None, capsule=None):
        self.forge = forge
        self.accepts = accepts
        self.device = device
        self.raises = raises
        self.answer = capsule
        self.calls: list[dict] = []

    def __dlpack__(self, **keywords):
        self.calls.append(keywords)
        unknown = keywords.keys() - set(self.accepts)
        if unknown:
            raise TypeError(f"__dlpack__() got an unexpected keyword argument {min(unknown)!r}")
        if self.raises is not None:
            raise self.raises
        return self.forge.capsule() if self.answer is None else self.answer

    def __dlpack_device__(self):
        if self.device is not None:
            return self.device
        device = self.forge.managed.dl_tensor.device
        return (device.device_type, device.device_id)
