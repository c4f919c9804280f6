"""New tensors in shared memory, and what asarray() takes and refuses."""

import array
import re

import numpy as np
import pytest
from arrays import some

import tensorcx as cx


class Producer:
    """Has nothing but DLPack."""

    def __init__(self, array, device=(1, 0)):
        self.array = array
        self.device = device

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device


# -------------------------------------------------------------------------------------- new tensors


def test_empty_zeros_and_full_make_shared_memory():
    assert cx.empty((2, 3), "int16").shape == (2, 3)
    assert cx.zeros(4).tolist() == [0.0] * 4
    assert cx.zeros(4).dtype == np.float64
    assert cx.full((2,), 7).tolist() == [7, 7]
    assert cx.full((2,), 7).dtype == np.int64
    assert cx.full([2], 7, "float32").dtype == np.float32
    assert cx.zeros(np.array([2, 3])).shape == (2, 3)
    assert cx.empty((), bool).is_shared


def test_zeros_are_zero_also_in_recycled_memory():
    cx.full((1 << 20,), 255, "uint8").close()
    assert not np.asarray(cx.zeros((1 << 20,), "uint8")).any()


def test_empty_like_takes_shape_and_dtype():
    assert cx.empty_like(some()).shape == (2, 3)
    assert cx.empty_like(cx.zeros(3, "int8")).dtype == np.int8
    assert cx.empty_like(some(), "bool").dtype == np.bool_
    assert cx.empty_like([[1, 2]]).shape == (1, 2)


@pytest.mark.parametrize(
    ("shape", "error"),
    [
        ((-1,), ValueError),
        ((2, -3), ValueError),
        ((1 << 62, 1 << 62), ValueError),
        ((1 << 70,), ValueError),
        ((1,) * 65, ValueError),
        ("ab", TypeError),
        (2.5, TypeError),
        ((2, "3"), TypeError),
        (None, TypeError),
    ],
    ids=str,
)
def test_a_bad_shape_is_a_clear_error(shape, error):
    with pytest.raises(error, match=r"shape|dimension|elements|overflow|large"):
        cx.empty(shape, "float32")


@pytest.mark.parametrize("dtype", ["O", "M8[s]", "U3", "longdouble", ">f4", "i4,f4"])
def test_a_dtype_that_is_not_stored_is_named(dtype):
    with pytest.raises(cx.ExchangeError, match=re.escape(str(np.dtype(dtype)))):
        cx.empty(3, dtype)


def test_an_unknown_dtype_is_a_type_error():
    with pytest.raises(TypeError, match="nonsense"):
        cx.empty(3, "nonsense")


# ------------------------------------------------------------------------------------------ asarray


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (3, "int64", 3),
        (2.5, "float64", 2.5),
        (True, "bool", True),
        (1 + 2j, "complex128", 1 + 2j),
        ([1, 2], "int64", [1, 2]),
        (((1.0,), (2.0,)), "float64", [[1.0], [2.0]]),
        ([], "float64", []),
        (b"ab", "uint8", [97, 98]),
        (bytearray(b"ab"), "uint8", [97, 98]),
        (memoryview(b"ab")[::-1], "uint8", [98, 97]),
        (array.array("i", [1, -2]), "int32", [1, -2]),
        (np.float16(1.5), "float16", 1.5),
        (np.bool_(True), "bool", True),
        (range(3), "int64", [0, 1, 2]),
    ],
    ids=repr,
)
def test_asarray_takes_scalars_lists_and_buffers(value, dtype, expected):
    tensor = cx.asarray(value)
    assert tensor.dtype == np.dtype(dtype)
    assert tensor.tolist() == expected


LAYOUTS = {
    "transposed": lambda a: a.T,
    "reversed": lambda a: a[::-1, ::-1],
    "broadcast": lambda a: np.broadcast_to(a[0], (4, 3)),
    "every second": lambda a: a[:, ::2],
    "Fortran": np.asfortranarray,
    "read-only": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
    "unaligned": lambda a: np.frombuffer(b"x" + a.tobytes(), a.dtype, offset=1),
    "field of a record": lambda a: np.array([(1, 2.5), (3, 4.5)], "i1,f4")["f1"],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_asarray_packs_any_layout(layout):
    source = LAYOUTS[layout](some())
    tensor = cx.asarray(source)
    np.testing.assert_array_equal(np.asarray(tensor), source)
    tensor[...] = 0  # and its memory is writable, whatever the source was


def test_asarray_takes_what_has_only_dlpack():
    assert cx.asarray(Producer(some((3,), "uint16"))).tolist() == [0, 1, 2]


def test_asarray_refuses_other_devices_by_name():
    with pytest.raises(cx.ExchangeError, match=r"device \(8, 0\)"):
        cx.asarray(Producer(some(), device=(8, 0)))


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (np.array([object()]), "object"),
        ([None], "object"),
        ([1 << 70], "object"),
        ("text", "<U4"),
        (np.array(["2024-01-01"], "M8[D]"), "datetime64"),
        (np.datetime64("2024-01-01"), "datetime64"),
        (np.zeros(2, ">i4"), ">i4"),
        (np.zeros(2, np.longdouble), "float128"),
        (np.zeros(2, "i4,f4"), "f4"),
        (memoryview(b"ab").cast("c"), "S1"),
        (Producer(np.zeros(2, ">f4")), "float32|byte|native"),
    ],
    ids=lambda v: repr(v)[:20],
)
def test_asarray_names_the_dtype_it_does_not_take(value, named):
    with pytest.raises(cx.ExchangeError, match=named):
        cx.asarray(value)


def test_asarray_of_a_mapping_points_to_put():
    with pytest.raises(TypeError, match="put"):
        cx.asarray({"a": 1})


def test_asarray_copies_only_where_it_must():
    t = cx.asarray(some())
    for source in (t, np.asarray(t), memoryview(t), Producer(np.asarray(t)), np.from_dlpack(t)):
        assert cx.asarray(source).storage_id == t.storage_id
        assert cx.asarray(source, copy=False).storage_id == t.storage_id
        assert cx.asarray(source, copy=True).storage_id != t.storage_id
    assert cx.asarray(t, "float32").storage_id == t.storage_id
    assert cx.asarray(t.numpy().T).storage_id != t.storage_id


def test_asarray_without_leave_to_copy_refuses():
    private = cx.from_dlpack(some(), copy=False)
    for source in (some(), private, [1, 2], cx.asarray(some()).numpy().T):
        with pytest.raises(cx.ExchangeError, match="cop"):
            cx.asarray(source, copy=False)
    with pytest.raises(cx.ExchangeError, match="float32 to int8"):
        cx.asarray(cx.zeros(2, "float32"), "int8", copy=False)


def test_asarray_converts():
    assert cx.asarray([1, 2], "float32").dtype == np.float32
    assert cx.asarray(cx.zeros(2, "float32"), "int8").dtype == np.int8


def test_is_shared_knows_shared_memory_in_any_form():
    t = cx.asarray(some((4, 4)))
    shared = [
        t,
        np.asarray(t),
        np.asarray(t).T,
        np.asarray(t)[::-1, 1],
        memoryview(t),
        Producer(t.numpy()),
    ]
    assert all(cx.is_shared(x) for x in shared)
    private = [some(), [1], 3, "x", b"abc", None, np.array([None]), cx.from_dlpack(some()), {}]
    assert not any(cx.is_shared(x) for x in private)
