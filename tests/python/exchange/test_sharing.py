"""from_dlpack shares or isolates exactly as asked, with NumPy and with our own tensors."""

import gc
import weakref

import numpy as np
import pytest
from forge import Forge, Producer

import tensorcx as cx

NUMPY = tuple(int(part) for part in np.__version__.split(".")[:3])
WRITABLE_IMPORT = NUMPY >= (2, 2, 5)  # of a versioned capsule
FORWARDS_COPY = NUMPY >= (2, 1, 0)

ARRAYS = {
    "float32": np.arange(6, dtype=np.float32).reshape(2, 3),
    "int32": np.arange(24, dtype=np.int32).reshape(2, 3, 4),
    "bool": np.array([True, False, True]),
    "scalar": np.array(3.5, np.float32),
    "empty": np.empty((0, 3), np.float32),
    "empty inside": np.empty((2, 0, 5), np.int32),
}
EVERY = pytest.mark.parametrize("source", ARRAYS.values(), ids=ARRAYS.keys())
NOT_EMPTY = pytest.mark.parametrize("source", [array for array in ARRAYS.values() if array.size])


def test_the_snippet_of_the_specification():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    shared = cx.from_dlpack(array, copy=False)
    view = np.from_dlpack(shared)
    assert view.ctypes.data == array.ctypes.data
    independent = cx.from_dlpack(shared, copy=True)

    array[0, 0] = 42
    assert view[0, 0] == 42
    assert np.asarray(shared)[0, 0] == 42
    assert np.asarray(independent)[0, 0] == 0


@EVERY
@pytest.mark.parametrize("copy", [None, False])
def test_sharing_means_the_same_address(source, copy):
    array = source.copy()
    tensor = cx.from_dlpack(array, copy=copy)
    assert tensor.shape == array.shape and tensor.dtype == array.dtype
    assert not tensor.readonly
    for view in np.from_dlpack(tensor), np.asarray(tensor):
        assert view.shape == array.shape and view.dtype == array.dtype
        assert np.array_equal(view, array)
        if array.size:
            assert tensor.data_ptr() == view.ctypes.data == array.ctypes.data
            assert np.shares_memory(view, array)


@NOT_EMPTY
def test_all_writable_owners_see_each_others_changes(source):
    array = source.copy()
    one, two = cx.from_dlpack(array), cx.from_dlpack(array)
    writers = [array, np.asarray(one), np.asarray(two)]
    if WRITABLE_IMPORT:
        writers.append(np.from_dlpack(one))
    for number, writer in enumerate(writers):
        writer[...] = number % 2
        for reader in (array, np.asarray(one), np.asarray(two), np.from_dlpack(two)):
            assert (reader == number % 2).all()


@EVERY
def test_a_copy_isolates(source):
    array = source.copy()
    before = array.copy()
    tensor = cx.from_dlpack(array, copy=True)
    if array.size:
        assert tensor.is_shared and tensor.data_ptr() != array.ctypes.data
    array[...] = ~array if array.dtype == bool else array + 1
    assert np.array_equal(np.asarray(tensor), before)
    np.asarray(tensor)[...] = 0
    if array.size:
        assert not np.array_equal(np.asarray(tensor), array)


def test_a_copy_lets_its_source_go():
    class Watched(np.ndarray):
        pass

    array = np.arange(6, dtype=np.float32).view(Watched)
    gone = weakref.ref(array)
    tensor = cx.from_dlpack(array, copy=True)
    del array
    gc.collect()
    assert gone() is None
    assert np.asarray(tensor).tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("copy", [None, False])
def test_shared_memory_lives_as_long_as_any_view(copy):
    class Watched(np.ndarray):
        pass

    array = np.arange(6, dtype=np.float32).view(Watched)
    gone = weakref.ref(array)
    view = np.from_dlpack(cx.from_dlpack(array, copy=copy))
    del array
    gc.collect()
    assert gone() is not None
    assert view.tolist() == [0, 1, 2, 3, 4, 5]
    del view
    gc.collect()
    assert gone() is None


def test_what_is_imported_twice_is_still_the_same_memory():
    array = np.arange(6, dtype=np.float32)
    tensor = cx.from_dlpack(cx.from_dlpack(cx.from_dlpack(array)))
    assert tensor.data_ptr() == array.ctypes.data


def test_a_chain_keeps_its_first_source_and_releases_it_once():
    forged = Forge(np.arange(6, dtype=np.float32).tobytes())
    tensor = cx.from_dlpack(Producer(forged))
    for _ in range(10):
        tensor = cx.from_dlpack(tensor, copy=False)
    array = np.from_dlpack(tensor)
    del tensor
    gc.collect()
    assert forged.released == 0
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert array.ctypes.data == forged.address
    del array
    assert forged.is_released_once()


def test_our_shared_tensor_imported_is_the_same_storage():
    tensor = cx.zeros((4,), "float32")
    again = cx.from_dlpack(tensor, copy=False)
    assert again.data_ptr() == tensor.data_ptr()
    assert again.is_shared
    np.asarray(again)[0] = 1
    assert np.asarray(tensor)[0] == 1


# --------------------------------------------------------------------------------- NumPy's rules


def read_only_arrays():
    frozen = np.arange(6, dtype=np.float32)
    frozen.flags.writeable = False
    return {
        "frozen": frozen,
        "bytes": np.frombuffer(bytes(range(24)), np.float32),
        "broadcast": np.broadcast_to(np.zeros((), np.float32), ()),
    }


@pytest.mark.parametrize("name", ["frozen", "bytes"])
@pytest.mark.parametrize("copy", [None, False])
def test_a_read_only_array_is_not_shared(name, copy):
    with pytest.raises(BufferError):
        cx.from_dlpack(read_only_arrays()[name], copy=copy)


@pytest.mark.parametrize("name", ["frozen", "bytes", "broadcast"])
def test_a_copy_of_a_read_only_array_is_writable(name):
    """NumPy before 2.1 does not export such an array at all: its buffer serves."""
    array = read_only_arrays()[name]
    tensor = cx.from_dlpack(array, copy=True)
    assert not tensor.readonly
    assert np.asarray(tensor).tobytes() == array.tobytes()
    np.asarray(tensor)[...] = 1
    assert (np.asarray(tensor) == 1).all()


@pytest.mark.parametrize("dtype", [">f4", ">i4"])
@pytest.mark.parametrize("copy", [None, False, True])
def test_foreign_byte_order_is_refused(dtype, copy):
    with pytest.raises(BufferError):
        cx.from_dlpack(np.arange(4).astype(dtype), copy=copy)


@pytest.mark.parametrize(
    "dtype", ["S4", "U2", "datetime64[s]", "V8", "object", "float64", "uint8", "complex64"]
)
@pytest.mark.parametrize("copy", [None, False, True])
def test_arrays_of_other_types_are_refused(dtype, copy):
    with pytest.raises(BufferError):
        cx.from_dlpack(np.zeros(4, dtype), copy=copy)


@pytest.mark.parametrize("copy", [None, False, True])
@pytest.mark.parametrize("layout", ["transposed", "reversed", "every other", "column"])
def test_other_layouts_are_refused(layout, copy):
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    view = {
        "transposed": array.T,
        "reversed": array[::-1],
        "every other": array[:, ::2],
        "column": array[:, 1],
    }[layout]
    with pytest.raises(BufferError):
        cx.from_dlpack(view, copy=copy)
    assert np.array_equal(np.asarray(cx.asarray(view)), view), "asarray packs any layout"


@pytest.mark.parametrize("row", [0, 1, 2])
def test_a_contiguous_part_of_an_array_is_shared_where_it_lies(row):
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    tensor = cx.from_dlpack(array[row], copy=False)
    assert tensor.data_ptr() == array[row].ctypes.data
    np.asarray(tensor)[0] = -1
    assert array[row, 0] == -1


def test_an_array_is_as_writable_as_numpy_allows():
    """NumPy imports writable from 2.2.5 on; np.asarray is writable with every version."""
    array = np.zeros(3, np.float32)
    tensor = cx.from_dlpack(array)
    assert np.from_dlpack(tensor).flags.writeable == WRITABLE_IMPORT
    assert np.asarray(tensor).flags.writeable


@pytest.mark.skipif(not FORWARDS_COPY, reason="NumPy asks for copies from 2.1 on")
def test_numpy_can_ask_for_a_copy():
    tensor = cx.from_dlpack(np.arange(3, dtype=np.float32))
    copied = np.from_dlpack(tensor, copy=True)
    np.asarray(tensor)[0] = 9
    assert copied.tolist() == [0, 1, 2]
    assert np.from_dlpack(tensor, copy=False)[0] == 9
    assert np.from_dlpack(tensor, device="cpu")[0] == 9


def test_ten_thousand_round_trips_leave_the_counts_as_they_were():
    array = np.zeros(256, np.float32)
    forged = Forge(bytes(1024), (256,))
    for _ in range(5000):
        cx.from_dlpack(array)
        np.from_dlpack(cx.from_dlpack(array))
    tensor = cx.from_dlpack(Producer(forged))
    for _ in range(5000):
        tensor.__dlpack__(max_version=(1, 0))
        np.from_dlpack(tensor)
    assert forged.released == 0
    del tensor
    assert forged.is_released_once()
