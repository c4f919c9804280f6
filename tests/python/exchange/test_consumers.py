"""What real consumers make of our tensors: NumPy, array-api-strict, tvm-ffi, pyarrow.

Each imports without copying, sees writes, and keeps the memory after the tensor is gone; the table
in docs/exchange.md says the same in words.
"""

import gc

import numpy as np
import pytest
from forge import Forge, Producer

import tensorcx as cx

NUMPY = tuple(int(part) for part in np.__version__.split(".")[:3])
VALUES = np.arange(6, dtype=np.float32)


def optional(name):
    """A consumer that may be missing, or too new for this NumPy."""
    return pytest.importorskip(name, exc_type=ImportError)


class WithNumpy:
    dtypes = ("bool", "int32", "float32")
    shapes = ((), (6,), (2, 3), (0,))
    takes_read_only = NUMPY >= (2, 1, 0)
    honours_read_only = True

    load = staticmethod(np.from_dlpack)

    @staticmethod
    def view(array):
        return array


class WithStrict:
    """array-api-strict hands the request on to NumPy."""

    dtypes = ("bool", "int32", "float32")
    shapes = ((), (6,), (2, 3), (0,))
    takes_read_only = NUMPY >= (2, 1, 0)
    honours_read_only = True

    @staticmethod
    def load(tensor):
        return optional("array_api_strict").from_dlpack(tensor)

    @staticmethod
    def view(array):
        return np.asarray(array._array)


class WithTvm:
    """tvm-ffi asks for the old struct, which cannot say that it is read-only."""

    dtypes = ("bool", "int32", "float32")
    shapes = ((), (6,), (2, 3), (0,))
    takes_read_only = False
    honours_read_only = False

    @staticmethod
    def load(tensor):
        return optional("tvm_ffi").from_dlpack(tensor)

    @staticmethod
    def view(array):
        return np.from_dlpack(array)


class WithArrow:
    """pyarrow asks for version (1, 3) and takes no bool."""

    dtypes = ("int32", "float32")
    shapes = ((), (6,), (2, 3), (0,))
    takes_read_only = True
    honours_read_only = True

    @staticmethod
    def load(tensor):
        return optional("pyarrow").Tensor.from_dlpack(tensor)

    @staticmethod
    def view(array):
        return array.to_numpy()


CONSUMERS = [WithNumpy, WithStrict, WithTvm, WithArrow]
EVERY = pytest.mark.parametrize("consumer", CONSUMERS, ids=lambda c: c.__name__[4:].lower())
CASES = [
    pytest.param(consumer, dtype, shape, id=f"{consumer.__name__[4:].lower()}-{dtype}-{shape}")
    for consumer in CONSUMERS
    for dtype in consumer.dtypes
    for shape in consumer.shapes
]


def given(dtype="float32", shape=(6,)):
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    return cx.asarray(values, copy=True), values


@pytest.mark.parametrize("consumer,dtype,shape", CASES)
def test_the_memory_is_shared(consumer, dtype, shape):
    tensor, values = given(dtype, shape)
    view = consumer.view(consumer.load(tensor))
    assert view.dtype == values.dtype and view.shape == values.shape
    assert np.array_equal(view, values)
    if values.size:
        assert view.ctypes.data == tensor.data_ptr()


@EVERY
def test_our_writes_show(consumer):
    tensor, _ = given()
    view = consumer.view(consumer.load(tensor))
    np.asarray(tensor)[3] = 33
    assert view[3] == 33


@EVERY
def test_their_writes_show_where_they_can_write(consumer):
    tensor, _ = given()
    view = consumer.view(consumer.load(tensor))
    if not view.flags.writeable:
        assert NUMPY < (2, 2, 5), "a consumer lost the right to write"
        pytest.skip("NumPy imports read-only before 2.2.5")
    view[2] = 22
    assert np.asarray(tensor)[2] == 22


@EVERY
def test_the_memory_outlives_the_tensor(consumer):
    forged = Forge(VALUES.tobytes(), (6,))
    tensor = cx.from_dlpack(Producer(forged))
    array = consumer.load(tensor)
    del tensor
    gc.collect()
    assert forged.released == 0
    assert consumer.view(array).tolist() == VALUES.tolist()
    del array
    assert forged.is_released_once()


@EVERY
def test_many_imports_share_one_memory_and_each_is_let_go_once(consumer):
    forged = Forge(VALUES.tobytes(), (6,))
    tensor = cx.from_dlpack(Producer(forged))
    arrays = [consumer.load(tensor) for _ in range(20)]
    np.asarray(tensor)[0] = 5
    assert {consumer.view(array)[0] for array in arrays} == {5.0}
    del tensor
    while arrays:
        gc.collect()
        assert forged.released == 0
        arrays.pop()
    assert forged.is_released_once()


@EVERY
def test_a_read_only_tensor_is_refused_or_honoured(consumer):
    tensor = cx.put("fixed", VALUES, readonly=True)
    cx.delete("fixed")
    if not consumer.takes_read_only:
        with pytest.raises(BufferError):
            consumer.load(tensor)
        return
    view = consumer.view(consumer.load(tensor))
    assert view.ctypes.data == tensor.data_ptr()
    assert view.flags.writeable is not consumer.honours_read_only


@EVERY
def test_a_published_tensor_is_opened_without_copying(consumer):
    tensor = cx.put("exchange/one", VALUES)
    opened = cx.get("exchange/one")
    cx.delete("exchange/one")
    view = consumer.view(consumer.load(opened))
    assert view.ctypes.data == tensor.data_ptr()
    assert view.tolist() == VALUES.tolist()


@pytest.mark.parametrize("consumer", [WithStrict, WithTvm, WithArrow])
def test_what_they_export_we_import_or_refuse_as_read_only(consumer):
    tensor, values = given()
    theirs = consumer.load(tensor)
    if consumer is WithStrict and NUMPY < (2, 1, 0):
        with pytest.raises(NotImplementedError):  # its own word on versions, unchanged
            cx.from_dlpack(theirs)
        return
    if consumer is WithTvm or consumer.view(theirs).flags.writeable:
        again = cx.from_dlpack(theirs)
        assert again.data_ptr() == tensor.data_ptr()
    else:
        with pytest.raises(cx.ExchangeError, match="read-only"):
            cx.from_dlpack(theirs)
        again = cx.from_dlpack(theirs, copy=True)
        assert again.data_ptr() != tensor.data_ptr()
    assert np.asarray(again).tolist() == values.tolist()


def test_pyarrow_refuses_bool_with_its_own_words():
    arrow = optional("pyarrow")
    tensor, _ = given("bool")
    with pytest.raises(arrow.ArrowInvalid):
        arrow.Tensor.from_dlpack(tensor)


def test_pyarrow_makes_arrays_of_one_dimension():
    arrow = optional("pyarrow")
    tensor, values = given()
    array = arrow.Array.from_dlpack(tensor)
    assert array.to_numpy(zero_copy_only=True).ctypes.data == tensor.data_ptr()
    assert array.to_pylist() == values.tolist()
    with pytest.raises(arrow.ArrowInvalid):
        arrow.Array.from_dlpack(given(shape=(2, 3))[0])


def test_tvm_finds_our_memory_aligned():
    tvm_ffi = optional("tvm_ffi")
    tensor, _ = given()
    tvm_ffi.from_dlpack(tensor, require_alignment=256, require_contiguous=True)
