"""Our tensors as producers: __dlpack__ and __dlpack_device__ for any consumer."""

import ctypes
import gc
import itertools

import forge
import numpy as np
import pytest
from forge import CPU, IS_COPIED, LEGACY, READ_ONLY, VERSIONED, Forge, Producer

import tensorcx as cx

LEGACY_REQUESTS = [{}, {"max_version": None}, {"max_version": (0, 8)}, {"max_version": (0, 0)}]
VERSIONED_REQUESTS = [{"max_version": v} for v in [(1, 0), (1, 3), (2, 0), (100, 3)]]


def local():
    return cx.from_dlpack(np.arange(6, dtype=np.float32).reshape(2, 3))


def shared():
    return cx.asarray(np.arange(6, dtype=np.float32).reshape(2, 3), copy=True)


BOTH = pytest.mark.parametrize("make", [local, shared])


def take(capsule):
    """Calls the deleter as a consumer that is done would."""
    managed = forge.contents(capsule)
    name = forge.capsule_name(capsule)
    rename = forge.python.PyCapsule_SetName
    rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
    rename(capsule, forge.USED[name])
    forge.Deleter(managed.deleter)(ctypes.addressof(managed))


@BOTH
@pytest.mark.parametrize("request_", LEGACY_REQUESTS, ids=str)
def test_who_names_no_version_gets_the_old_struct(make, request_):
    capsule = make().__dlpack__(**request_)
    assert forge.capsule_name(capsule) == LEGACY


@BOTH
@pytest.mark.parametrize("request_", VERSIONED_REQUESTS, ids=str)
def test_who_knows_version_1_or_later_gets_version_1(make, request_):
    capsule = make().__dlpack__(**request_)
    assert forge.capsule_name(capsule) == VERSIONED
    assert forge.contents(capsule).major == 1


@BOTH
@pytest.mark.parametrize(
    "version", [1, (1,), (1, 0, 0), ("1", "0"), [1, 0], "10", (1.0, 0.0), (None, None)], ids=str
)
def test_a_version_is_a_tuple_of_two_integers(make, version):
    with pytest.raises(TypeError):
        make().__dlpack__(max_version=version)


@pytest.mark.parametrize("version", [(-1, 0), (2**80, 0), (1, 2**80)], ids=str)
def test_an_odd_version_is_an_error_or_an_answer_never_a_crash(version):
    try:
        capsule = local().__dlpack__(max_version=version)
    except (TypeError, ValueError, OverflowError, BufferError):
        return
    assert forge.capsule_name(capsule) in (LEGACY, VERSIONED)


def test_everything_is_a_keyword_and_known():
    tensor = local()
    with pytest.raises(TypeError):
        tensor.__dlpack__(None)
    with pytest.raises(TypeError):
        tensor.__dlpack__(1)
    with pytest.raises(TypeError):
        tensor.__dlpack__(nonsense=1)


def test_keywords_are_compared_by_value():
    """Strings made at run time are not the interned ones."""
    keyword = "".join(["max", "_", "version"])
    assert forge.capsule_name(local().__dlpack__(**{keyword: (1, 0)})) == VERSIONED


@BOTH
@pytest.mark.parametrize("request_", [{}, {"max_version": (1, 0)}], ids=["legacy", "versioned"])
def test_the_fields_are_as_the_header_wants_them(make, request_):
    tensor = make()
    capsule = tensor.__dlpack__(**request_)
    managed = forge.contents(capsule)
    inner = managed.dl_tensor
    assert inner.data == tensor.data_ptr()
    assert inner.byte_offset == 0
    assert (inner.device.device_type, inner.device.device_id) == (CPU, 0)
    assert (inner.dtype.code, inner.dtype.bits, inner.dtype.lanes) == (2, 32, 1)
    assert forge.dims(inner.shape, inner.ndim) == (2, 3)
    assert forge.dims(inner.strides, inner.ndim) == (3, 1)
    assert managed.deleter
    assert getattr(managed, "flags", 0) == 0


@pytest.mark.parametrize(
    "dtype,code",
    [
        ("bool", (6, 8)), ("int8", (0, 8)), ("int16", (0, 16)), ("int32", (0, 32)),
        ("int64", (0, 64)), ("uint8", (1, 8)), ("uint16", (1, 16)), ("uint32", (1, 32)),
        ("uint64", (1, 64)), ("float16", (2, 16)), ("float32", (2, 32)), ("float64", (2, 64)),
        ("complex64", (5, 64)), ("complex128", (5, 128)),
    ],
)  # fmt: skip
def test_every_dtype_of_storage_has_its_code(dtype, code):
    tensor = cx.zeros((3,), dtype)
    inner = forge.contents(tensor.__dlpack__(max_version=(1, 0))).dl_tensor
    assert (inner.dtype.code, inner.dtype.bits, inner.dtype.lanes) == (*code, 1)
    assert np.from_dlpack(tensor).dtype == np.dtype(dtype)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (2, 0, 4), (1,), (1, 1), (4, 1, 2)])
def test_every_shape_has_strides_and_an_empty_one_no_data(shape):
    tensor = cx.zeros(shape, "float32")
    inner = forge.contents(tensor.__dlpack__(max_version=(1, 0))).dl_tensor
    assert forge.dims(inner.shape, inner.ndim) == shape
    if shape:
        assert inner.strides
    if 0 in shape:
        assert not inner.data
    else:
        assert inner.data
        assert forge.dims(inner.strides, inner.ndim) == tuple(forge.c_order(shape))


def test_a_slice_exports_its_own_address_and_no_offset():
    tensor = cx.asarray(np.arange(12, dtype=np.float32).reshape(3, 4), copy=True)
    inner = forge.contents(tensor[1:].__dlpack__(max_version=(1, 0))).dl_tensor
    assert inner.data == tensor.data_ptr() + 16
    assert inner.byte_offset == 0


@pytest.mark.parametrize("dtype", ["float32", "bool", "complex128"])
def test_what_is_born_shared_is_aligned_for_everybody(dtype):
    """JAX shares only what is aligned to 64 bytes; some ask for 256."""
    for _ in range(10):
        assert cx.empty((3,), dtype).data_ptr() % 256 == 0


# ------------------------------------------------------------------------------- copy and device


@BOTH
@pytest.mark.parametrize("request_", [*LEGACY_REQUESTS, *VERSIONED_REQUESTS], ids=str)
def test_copy_true_gives_new_memory(make, request_):
    tensor = make()
    capsule = tensor.__dlpack__(copy=True, **request_)
    managed = forge.contents(capsule)
    assert managed.dl_tensor.data != tensor.data_ptr()
    assert ctypes.string_at(managed.dl_tensor.data, 24) == np.asarray(tensor).tobytes()
    if forge.capsule_name(capsule) == VERSIONED:
        assert managed.flags & IS_COPIED


@BOTH
@pytest.mark.parametrize("copy", [False, None])
def test_otherwise_the_memory_is_the_tensors_own(make, copy):
    tensor = make()
    managed = forge.contents(tensor.__dlpack__(copy=copy, max_version=(1, 0)))
    assert managed.dl_tensor.data == tensor.data_ptr()
    assert not managed.flags & IS_COPIED


@BOTH
def test_the_device_is_a_pair_of_integers(make):
    device = make().__dlpack_device__()
    assert tuple(device) == (CPU, 0) and isinstance(device, tuple)


@BOTH
@pytest.mark.parametrize("device", [None, (1, 0)])
def test_the_cpu_may_be_asked_for(make, device):
    tensor = make()
    managed = forge.contents(tensor.__dlpack__(dl_device=device))
    assert managed.dl_tensor.data == tensor.data_ptr()


@BOTH
@pytest.mark.parametrize("device", [(10, 0), (99, 0), (2, 0), (1, 1), (-1, 0)])
@pytest.mark.parametrize("copy", [None, False, True])
def test_another_device_cannot_be_asked_for(make, device, copy):
    with pytest.raises(BufferError):
        make().__dlpack__(dl_device=device, copy=copy)


@pytest.mark.parametrize("device", [1, "cpu", (1,), ("1", "0"), (1, 0, 0)], ids=str)
def test_a_device_is_a_tuple_of_two(device):
    with pytest.raises(TypeError):
        local().__dlpack__(dl_device=device)


@BOTH
@pytest.mark.parametrize("stream", [0, 1, 2, 12345, -1])
def test_the_cpu_has_no_streams(make, stream):
    with pytest.raises((BufferError, ValueError)):
        make().__dlpack__(stream=stream)
    assert make().__dlpack__(stream=None)


@pytest.mark.parametrize("stream", ["x", 1.5, (1,)])
def test_a_stream_is_never_something_else(stream):
    with pytest.raises((TypeError, BufferError, ValueError)):
        local().__dlpack__(stream=stream)


def test_every_combination_the_array_api_allows_works():
    for version, device, copy in itertools.product(
        [None, (0, 0), (1, 0), (2, 0)], [None, (1, 0)], [None, True, False]
    ):
        capsule = local().__dlpack__(max_version=version, dl_device=device, copy=copy, stream=None)
        assert forge.dims(forge.contents(capsule).dl_tensor.shape, 2) == (2, 3)


# -------------------------------------------------------------------------------------- lifetime


@pytest.mark.parametrize("request_", [{}, {"max_version": (1, 0)}], ids=["legacy", "versioned"])
def test_capsules_and_the_tensor_outlive_each_other(request_):
    forged = Forge(np.arange(6, dtype=np.float32).tobytes())
    tensor = cx.from_dlpack(Producer(forged))
    capsules = [tensor.__dlpack__(**request_) for _ in range(3)]
    capsules.pop()
    del tensor
    gc.collect()
    assert forged.released == 0
    inner = forge.contents(capsules[0]).dl_tensor
    assert ctypes.string_at(inner.data, 24) == np.arange(6, dtype=np.float32).tobytes()
    take(capsules.pop())
    gc.collect()
    assert forged.released == 0
    take(capsules.pop())
    assert forged.is_released_once()


@pytest.mark.parametrize("request_", [{}, {"max_version": (1, 0)}], ids=["legacy", "versioned"])
def test_a_capsule_that_was_taken_is_not_released_again_with_its_object(request_):
    forged = Forge()
    tensor = cx.from_dlpack(Producer(forged))
    capsule = tensor.__dlpack__(**request_)
    take(capsule)
    del capsule
    gc.collect()
    assert forged.released == 0, "the tensor still lives"
    del tensor
    assert forged.is_released_once()


@pytest.mark.parametrize("request_", [{}, {"max_version": (1, 0)}], ids=["legacy", "versioned"])
@pytest.mark.parametrize("copy", [None, True])
def test_a_capsule_dropped_while_an_error_is_on_its_way_leaves_it_alone(request_, copy):
    """The unfinished tuple, and the capsule in it, die with ZeroDivisionError pending."""
    tensor = local()
    for _ in range(100):
        with pytest.raises(ZeroDivisionError):
            (tensor.__dlpack__(copy=copy, **request_), 1 // 0)


def test_a_closed_tensor_exports_nothing():
    tensor = local()
    capsule = tensor.__dlpack__()
    tensor.close()
    with pytest.raises((ValueError, cx.Error)):
        tensor.__dlpack__()
    assert forge.dims(forge.contents(capsule).dl_tensor.shape, 2) == (2, 3)


# ------------------------------------------------------------------------------------- read-only


def test_a_read_only_tensor_says_so_or_is_not_exported():
    tensor = cx.put("fixed", np.arange(3, dtype=np.float32), readonly=True)
    cx.delete("fixed")
    with pytest.raises(BufferError):
        tensor.__dlpack__()
    with pytest.raises(BufferError):
        tensor.__dlpack__(max_version=(0, 8))
    managed = forge.contents(tensor.__dlpack__(max_version=(1, 0)))
    assert managed.flags & READ_ONLY
    assert not np.asarray(tensor).flags.writeable


def test_a_copy_of_a_read_only_tensor_is_anybodys():
    tensor = cx.put("fixed", np.arange(3, dtype=np.float32), readonly=True)
    cx.delete("fixed")
    managed = forge.contents(tensor.__dlpack__(copy=True, max_version=(1, 0)))
    assert not managed.flags & READ_ONLY and managed.flags & IS_COPIED
    assert forge.capsule_name(tensor.__dlpack__(copy=True)) == LEGACY
