"""Tensor: properties, elements, slices, handles, copies, pickles, and NumPy on top of it."""

import array
import copy
import gc
import io
import pickle
import weakref

import numpy as np
import pytest
from arrays import some
from threads import together

import tensorcx as cx

DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
]
SHAPES = [(), (0,), (1,), (7,), (2, 3), (0, 3), (2, 0, 4), (3, 1, 2), (1,) * 32]


@pytest.fixture
def t():
    """float32 (2, 3), 0 to 5, in shared memory."""
    return cx.asarray(some())


# --------------------------------------------------------------------------------------- properties


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_stored_dtype_comes_back_as_it_went(dtype):
    source = some(dtype=dtype)
    tensor = cx.asarray(source)
    assert tensor.dtype == source.dtype
    assert isinstance(tensor.dtype, np.dtype)
    assert tensor.itemsize == source.itemsize
    back = np.asarray(tensor)
    assert back.dtype == source.dtype
    np.testing.assert_array_equal(back, source)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape_comes_back_as_it_went(shape):
    source = some(shape)
    tensor = cx.asarray(source)
    assert tensor.shape == shape
    assert tensor.ndim == len(shape)
    assert tensor.size == source.size
    assert tensor.nbytes == source.nbytes
    np.testing.assert_array_equal(np.asarray(tensor), source)


def test_a_tensor_tells_what_it_is(t):
    assert t.shape == (2, 3)
    assert t.strides == (12, 4)
    assert t.device == "cpu"
    assert t.readonly is False
    assert t.is_shared is True
    assert t.storage_id > 0
    assert t.name is None
    assert t.version == 0
    assert t.data_ptr() == np.asarray(t).ctypes.data


def test_a_published_tensor_knows_its_name_and_version():
    first, second = cx.put("x", some()), cx.put("x", some())
    got = cx.get("x")
    cx.delete("x")
    assert (first.name, second.name, got.name) == ("x", "x", "x")
    assert 0 < first.version < second.version == got.version


def test_private_memory_is_not_shared():
    source = some()
    tensor = cx.from_dlpack(source, copy=False)
    assert tensor.is_shared is False
    assert tensor.storage_id == 0
    assert tensor.data_ptr() == source.ctypes.data


def test_repr_tells_shape_dtype_name_and_mode():
    assert repr(cx.empty((2, 3), "int16")) == "Tensor(shape=(2, 3), dtype=int16)"
    named = cx.put("frames/left", some(), readonly=True)
    cx.delete("frames/left")
    expected = f"name='frames/left', version={named.version}, readonly)"
    assert repr(named) == f"Tensor(shape=(2, 3), dtype=float32, {expected}"
    assert repr(cx.from_dlpack(some(), copy=False)).endswith("private)")


def test_a_tensor_cannot_be_made_by_its_class():
    with pytest.raises(TypeError, match="empty"):
        cx.Tensor()


# ----------------------------------------------------------------------------------------- elements


def test_item_and_tolist_give_python_scalars(t):
    assert t.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert cx.asarray(np.int64(-7)).item() == -7
    with pytest.raises(ValueError):
        t.item()


def test_length_and_truth_are_as_with_numpy(t):
    assert len(t) == 2
    assert [row.tolist() for row in t] == t.tolist()
    assert not cx.asarray(0.0)
    with pytest.raises(ValueError, match="ambiguous"):
        bool(t)
    for action in (len, list):
        with pytest.raises(TypeError):
            action(cx.asarray(1.0))


@pytest.mark.parametrize(
    "key",
    [
        0,
        -1,
        slice(1, None),
        slice(None),
        ...,
        (1, 2),
        (0, slice(1, 3)),
        (None, 1),
        np.int64(1),
        slice(2, 2),
        (slice(0, 1), slice(None, None, -3)),
        (1, ...),
    ],
    ids=str,
)
def test_a_contiguous_part_is_a_tensor_on_the_same_memory(t, key):
    part, expected = t[key], np.asarray(t)[key]
    assert isinstance(part, cx.Tensor)
    np.testing.assert_array_equal(np.asarray(part), expected)
    assert part.shape == np.shape(expected)
    part[...] = 9
    assert np.all(np.asarray(t)[key] == 9)


def test_a_part_lives_on_without_the_whole(t):
    row = t[1]
    t.close()
    assert row.tolist() == [3.0, 4.0, 5.0]
    assert row.name is None


@pytest.mark.parametrize(
    "key", [(slice(None), 0), slice(None, None, -1), (..., slice(0, 2))], ids=str
)
def test_a_part_that_is_not_contiguous_is_refused(t, key):
    with pytest.raises(cx.ExchangeError, match=r"not contiguous; t\.numpy\(\)\["):
        t[key]


@pytest.mark.parametrize("key", [[0, 1], True, np.array([True, False]), "a", 1.0], ids=str)
def test_an_index_that_would_copy_is_refused(t, key):
    with pytest.raises(TypeError, match="index"):
        t[key]


def test_an_index_out_of_range_is_an_index_error(t):
    with pytest.raises(IndexError):
        t[2]
    with pytest.raises(IndexError):
        t[0, 0, 0]


def test_assignment_writes_to_the_memory(t):
    view = np.asarray(t)
    t[...] = 1
    t[0] = [7, 8, 9]
    t[:, 0] = cx.asarray([5.0, 6.0])
    t[view > 8] = 0
    assert view.tolist() == [[5, 8, 0], [6, 1, 1]]


def test_assignment_takes_whatever_has_dlpack(t):
    class Producer:
        def __dlpack__(self, **options):
            return some().__dlpack__(**options)

        def __dlpack_device__(self):
            return (1, 0)

    t[...] = 0
    t[...] = Producer()
    assert t.tolist() == some().tolist()


def test_assignment_that_does_not_fit_changes_nothing(t):
    with pytest.raises(ValueError):
        t[...] = np.zeros(4)
    assert t.tolist() == some().tolist()


# ----------------------------------------------------------------------------- buffers and NumPy


def test_numpy_shares_the_memory_and_may_write(t):
    for view in (t.numpy(), np.asarray(t), np.asarray(memoryview(t)), np.array(t, copy=False)):
        assert view.flags.writeable
        assert view.ctypes.data == t.data_ptr()
    np.asarray(t)[1, 2] = 42
    assert t.tolist()[1][2] == 42


def test_where_numpy_has_no_memory_for_a_view_there_is_no_copy_either(monkeypatch):
    """It swallows that, and reads element by element."""
    t = cx.zeros(3)
    monkeypatch.setattr(np, "asarray", lambda buffer: np.array(buffer.tolist()))
    with pytest.raises(MemoryError):
        t.numpy()


def test_np_array_copies(t):
    copied = np.array(t)
    copied[...] = -1
    assert t.tolist() == some().tolist()


def test_array_protocol_converts_and_copies_as_asked(t):
    assert t.__array__().ctypes.data == t.data_ptr()
    assert t.__array__(copy=False).ctypes.data == t.data_ptr()
    assert t.__array__(copy=True).ctypes.data != t.data_ptr()
    assert np.asarray(t, dtype="int64").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert t.__array__("int64").dtype == np.int64
    with pytest.raises(ValueError):
        t.__array__("int64", copy=False)


def test_arithmetic_goes_through_numpy(t):
    assert (np.asarray(t) + 1).tolist() == np.add(t, 1).tolist()
    assert np.concatenate([t, t]).shape == (4, 3)


def test_a_memoryview_has_format_shape_and_strides(t):
    view = memoryview(t)
    assert (view.format, view.shape, view.strides, view.readonly) == ("f", (2, 3), (12, 4), False)
    assert view.tobytes() == some().tobytes()
    assert memoryview(cx.asarray(1.5)).shape == ()
    assert memoryview(cx.empty((0, 3), "int8")).nbytes == 0


def test_a_plain_buffer_request_sees_the_bytes(t):
    assert bytearray(t) == some().tobytes()
    assert array.array("f", some().tobytes()) == array.array("f", bytes(t))


def test_read_only_memory_refuses_every_way_to_write():
    cx.put("x", some(), readonly=True)
    for tensor in (cx.get("x"), cx.get("x", readonly=True), cx.get("x")[0]):
        assert tensor.readonly
        assert not np.asarray(tensor).flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            tensor[...] = 0
        with pytest.raises(TypeError):
            memoryview(tensor)[0] = 0
        with pytest.raises((BufferError, TypeError), match=r"read-only|read-write"):
            io.BytesIO(b"1234").readinto(tensor)
    cx.delete("x")


def test_a_handle_may_give_up_writing_for_itself_only(t):
    writable = cx.put("x", some())
    careful = cx.get("x", readonly=True)
    cx.delete("x")
    assert (writable.readonly, careful.readonly) == (False, True)
    writable[0, 0] = 5
    assert careful.tolist()[0][0] == 5


def test_shared_memory_is_aligned_for_every_consumer():
    for shape in [(1,), (3, 5), (1 << 14,), (1 << 20,)]:
        tensor = cx.empty(shape, "uint8")
        assert tensor.data_ptr() % 256 == 0
        if tensor.nbytes >= 64 << 10:
            assert tensor.data_ptr() % 4096 == 0


# ------------------------------------------------------------------------------- handles and copies


def test_after_close_every_access_is_a_clear_error(t):
    t.close()
    t.close()  # again is fine
    for attribute in (
        *("shape", "strides", "ndim", "size", "nbytes", "dtype", "device", "name", "version"),
        *("storage_id", "readonly", "is_shared"),
    ):
        with pytest.raises(ValueError, match="the tensor is closed"):
            getattr(t, attribute)
    actions = [
        np.asarray,
        memoryview,
        len,
        bool,
        copy.copy,
        copy.deepcopy,
        pickle.dumps,
        np.from_dlpack,
        lambda x: x.numpy(),
        lambda x: x.item(),
        lambda x: x.tolist(),
        lambda x: x.copy(),
        lambda x: x.data_ptr(),
        lambda x: x[0],
        lambda x: x.__setitem__(0, 1),
        lambda x: x.__dlpack__(),
        lambda x: cx.put("x", x),
        cx.asarray,
        cx.from_dlpack,
    ]
    for action in actions:
        with pytest.raises(ValueError, match="closed"):
            action(t)
    assert t.closed and repr(t) == "Tensor(closed)"


def test_views_outlive_close(t):
    views = [np.asarray(t), memoryview(t), np.from_dlpack(t), t[1:]]
    t.close()
    gc.collect()
    assert cx.stats()["storages"] == 1
    assert all(np.asarray(view).ravel()[-1] == 5 for view in views)
    view = np.asarray(views[0])
    view[1, 2] = 8  # and see each other's writes
    assert views[1][1, 2] == 8


def test_a_with_block_closes():
    with cx.asarray(some()) as t:
        assert t.tolist() == some().tolist()
    with pytest.raises(ValueError):
        t.tolist()


def test_copy_is_independent_and_shared(t):
    other = t.copy()
    other[...] = 0
    assert t.tolist() == some().tolist()
    assert other.is_shared and other.storage_id != t.storage_id
    assert cx.from_dlpack(some(), copy=False).copy().is_shared


def test_copy_of_read_only_memory_is_writable():
    cx.put("x", some(), readonly=True)
    other = cx.get("x").copy()
    cx.delete("x")
    other[...] = 1
    assert other.tolist() == [[1] * 3] * 2


def test_copy_copy_is_another_handle_on_the_same_memory(t):
    other = copy.copy(t)
    t.close()
    assert other.tolist() == some().tolist()


def test_deepcopy_copies_the_bytes(t):
    other = copy.deepcopy(t)
    assert other.storage_id != t.storage_id
    assert other.tolist() == t.tolist()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)], ids=str)
def test_pickle_carries_the_bytes(protocol, shape):
    tensor = cx.asarray(some(shape, "complex64"))
    data = pickle.dumps(tensor, protocol)
    tensor.close()
    back = pickle.loads(data)
    assert back.is_shared and not back.readonly
    assert back.dtype == np.complex64
    np.testing.assert_array_equal(np.asarray(back), some(shape, "complex64"))
    assert back.storage_id != pickle.loads(data).storage_id


def test_pickle_out_of_band_does_not_copy(t):
    buffers = []
    data = pickle.dumps(t, 5, buffer_callback=buffers.append)
    assert len(data) < 500
    t[0, 0] = 77
    assert pickle.loads(data, buffers=buffers).tolist()[0][0] == 77


def test_weak_references_see_the_end(t):
    reference = weakref.ref(cx.asarray(some()))
    gc.collect()
    assert reference() is None
    assert weakref.ref(t)() is t


def test_a_cycle_through_a_client_is_collected():
    class Holder(cx.Client):  # with a __dict__, so it can hold its own tensors
        pass

    holder = Holder()
    holder.tensor = holder.zeros(3)
    seen = weakref.ref(holder)
    del holder
    gc.collect()
    assert seen() is None


def test_handles_made_and_dropped_by_many_threads_leave_nothing(t):
    def work(_):
        for _ in range(200):
            np.asarray(copy.copy(t)[1])[0]
            memoryview(t).release()
            np.from_dlpack(t)

    assert together(work) == [None] * 8
    assert t.tolist() == some().tolist()


# ------------------------------------------------------------------------------ as NumPy's scalars


@pytest.mark.parametrize("value", [53, 51.5, True, 3 + 4j])
def test_one_element_is_a_number_not_the_text_in_its_bytes(value):
    scalar = np.asarray(value)
    t = cx.asarray(scalar)
    assert complex(t) == complex(scalar)
    if not isinstance(value, complex):
        assert (int(t), float(t), f"{t:.1f}") == (int(value), float(value), f"{value:.1f}")


def test_a_small_unsigned_integer_is_not_read_as_a_digit():
    assert int(cx.full((), 53, "uint8")) == 53
    assert [10, 11, 12][cx.full((), 2, "uint8")] == 12


def test_several_elements_are_no_number(t):
    for number in (int, float, complex):
        with pytest.raises(ValueError, match="size 1"):
            number(t)
    with pytest.raises(TypeError, match="index"):
        [1, 2][t]


def test_comparison_is_of_each_element(t):
    other = t.copy()
    other[0, 0] = 99
    assert (t == t.copy()).all() and not (t == other).all() and (t != other).sum() == 1
    assert ((t == 1.0) == (t.numpy() == 1.0)).all()
    assert len({t, other}) == 2


def test_a_read_only_tensor_says_how_to_write():
    t = cx.put("fixed", some(), readonly=True)
    with pytest.raises(ValueError, match=r"t\.copy\(\)"):
        t[...] = 0
    cx.delete("fixed")
