"""Libraries that take and give tensors by DLPack, each as it is used.

`load` makes its tensor of one of ours, `make` of a NumPy array: on the memory of that where it can.
`view` shows its elements to NumPy.
"""

import importlib.util

import numpy as np

NUMPY = tuple(int(part) for part in np.__version__.split(".")[:3])

INTEGERS = tuple(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))
FLOATS = ("float16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
WIDE = ("int64", "uint64", "float64", "complex128")
EVERY_DTYPE = ("bool", *INTEGERS, *FLOATS, *COMPLEX)
EVERY_SHAPE = ((), (6,), (2, 3), (0,), (2, 0, 3), (1, 1), (1,) * 8)
EVERY_LAYOUT = ("whole", "offset", "empty", "reversed", "stepped", "transposed", "repeated")


class Peer:
    """What each can do. Some can say in no direction that memory is read-only."""

    dtypes = EVERY_DTYPE  # of ours, that it takes
    narrows: tuple[str, ...] = ()  # that it takes by a copy with half the bits
    alignment = 1  # what does not lie so it copies
    takes_read_only = True
    keeps_read_only = True
    made_dtypes = EVERY_DTYPE
    layouts = EVERY_LAYOUT  # of an array, that its tensors can have
    makes_on_arrays = True  # else in memory of its own


class Numpy(Peer):
    module = "numpy"
    takes_read_only = NUMPY >= (2, 1, 0)

    load = staticmethod(np.from_dlpack)
    make = view = staticmethod(lambda array: array)


class Strict(Peer):
    """It hands all on to NumPy."""

    module = "array_api_strict"
    dtypes = made_dtypes = ("bool", *INTEGERS, "float32", "float64", *COMPLEX)
    takes_read_only = NUMPY >= (2, 1, 0)

    @staticmethod
    def load(tensor):
        return import_("array_api_strict").from_dlpack(tensor)

    @staticmethod
    def make(array):
        return import_("array_api_strict").asarray(array, copy=False)

    @staticmethod
    def view(array):
        return np.asarray(array._array)


class Tvm(Peer):
    """It asks for the old struct, and gives the new one."""

    module = "tvm_ffi"
    takes_read_only = keeps_read_only = False
    layouts = ("whole", "offset", "empty", "reversed", "stepped", "transposed")

    @staticmethod
    def load(tensor):
        return import_("tvm_ffi").from_dlpack(tensor)

    make = load
    view = staticmethod(np.from_dlpack)


class Arrow(Peer):
    """It asks for version (1, 3)."""

    module = "pyarrow"
    dtypes = made_dtypes = (*INTEGERS, *FLOATS)
    layouts = ("whole", "offset", "empty", "stepped", "transposed", "repeated")

    @staticmethod
    def load(tensor):
        return import_("pyarrow").Tensor.from_dlpack(tensor)

    @staticmethod
    def make(array):
        return import_("pyarrow").Tensor.from_numpy(array)

    @staticmethod
    def view(array):
        return array.to_numpy()


class Jax(Peer):
    """It asks for the old struct and gives it, and never writes to memory."""

    module = "jax"
    narrows = WIDE
    alignment = 64
    takes_read_only = keeps_read_only = False
    made_dtypes = tuple(dtype for dtype in EVERY_DTYPE if dtype not in WIDE)
    layouts = ("whole", "empty")
    makes_on_arrays = False

    @staticmethod
    def load(tensor):
        return import_("jax.numpy").from_dlpack(tensor)

    @staticmethod
    def make(array):
        return import_("jax.numpy").array(array)

    view = staticmethod(np.from_dlpack)


class Onnx(Peer):
    """It asks for the old struct and gives it, and takes capsules only."""

    module = "onnxruntime"
    dtypes = made_dtypes = ("bool", *INTEGERS, *FLOATS)
    takes_read_only = keeps_read_only = False
    layouts = ("whole", "offset", "empty")

    @staticmethod
    def load(tensor):
        core = import_("onnxruntime.capi.onnxruntime_pybind11_state")
        return core.OrtValue.from_dlpack(tensor.__dlpack__())

    @staticmethod
    def make(array):
        return import_("onnxruntime").OrtValue.ortvalue_from_numpy(array)._ortvalue

    view = staticmethod(np.from_dlpack)


ALL = [Numpy, Strict, Tvm, Arrow, Jax, Onnx]


def name_of(peer) -> str:
    return peer.__name__.lower()


def import_(name):
    return importlib.import_module(name)


def is_here(peer) -> bool:
    return importlib.util.find_spec(peer.module) is not None
