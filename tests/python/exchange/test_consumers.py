"""What real consumers make of our tensors: those of tests/support/peers.py that are installed here.

Each imports without copying, sees writes, and keeps the memory after the tensor is gone; the table
in docs/exchange.md says the same in words.
"""

import gc

import numpy as np
import peers
import pytest
from forge import Forge, Producer
from peers import NUMPY, Jax, Numpy, Onnx, Strict

import tensorcx as cx

VALUES = np.arange(6, dtype=np.float32)

PEERS = [peer for peer in peers.ALL if peers.is_here(peer)]
EVERY = pytest.mark.parametrize("peer", PEERS, ids=peers.name_of)
CASES = [
    pytest.param(peer, dtype, shape, id=f"{peers.name_of(peer)}-{dtype}-{shape}")
    for peer in PEERS
    for dtype, shape in [
        *((dtype, (2, 3)) for dtype in peers.EVERY_DTYPE),
        *(("float32", shape) for shape in peers.EVERY_SHAPE if shape != (2, 3)),
    ]
]


def given(dtype="float32", shape=(6,)):
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    return cx.asarray(values, copy=True), values


@pytest.mark.parametrize("peer,dtype,shape", CASES)
def test_the_memory_is_shared_where_they_know_the_dtype(peer, dtype, shape):
    tensor, values = given(dtype, shape)
    if dtype not in peer.dtypes:
        with pytest.raises((TypeError, ValueError, RuntimeError)):  # its own word
            peer.load(tensor)
        return
    view = peer.view(peer.load(tensor))
    if dtype in peer.narrows:
        assert 2 * view.itemsize == values.itemsize
    else:
        assert view.dtype == values.dtype
        assert not values.size or view.ctypes.data == tensor.data_ptr()
    assert view.shape == values.shape
    assert np.array_equal(view, values)


@EVERY
def test_a_part_is_shared_where_it_lies_as_they_want_it(peer):
    whole = cx.asarray(np.arange(64, dtype=np.int32), copy=True)
    for start in 1, 16:
        view = peer.view(peer.load(whole[start:]))
        assert view.tolist() == list(range(start, 64))
        is_shared = view.ctypes.data == whole.data_ptr() + 4 * start
        assert is_shared == (4 * start % peer.alignment == 0)


@EVERY
def test_our_writes_show(peer):
    tensor, _ = given()
    view = peer.view(peer.load(tensor))
    np.asarray(tensor)[3] = 33
    assert view[3] == 33


@pytest.mark.parametrize("peer", [p for p in PEERS if p not in (Jax, Onnx)], ids=peers.name_of)
def test_their_writes_show_where_they_can_write(peer):
    tensor, _ = given()
    view = peer.view(peer.load(tensor))
    if not view.flags.writeable:
        assert NUMPY < (2, 2, 5), "a consumer lost the right to write"
        pytest.skip("NumPy imports read-only before 2.2.5")
    view[2] = 22
    assert np.asarray(tensor)[2] == 22


@EVERY
def test_the_memory_outlives_the_tensor(peer):
    forged = Forge(VALUES.tobytes(), (6,))
    tensor = cx.from_dlpack(Producer(forged))
    array = peer.load(tensor)
    del tensor
    gc.collect()
    assert forged.released == 0
    assert peer.view(array).tolist() == VALUES.tolist()
    del array
    assert forged.is_released_once()


@EVERY
def test_many_imports_share_one_memory_and_each_is_let_go_once(peer):
    forged = Forge(VALUES.tobytes(), (6,))
    tensor = cx.from_dlpack(Producer(forged))
    arrays = [peer.load(tensor) for _ in range(20)]
    np.asarray(tensor)[0] = 5
    assert {peer.view(array)[0] for array in arrays} == {5.0}
    del tensor
    while arrays:
        gc.collect()
        assert forged.released == 0
        arrays.pop()
    assert forged.is_released_once()


@EVERY
def test_a_read_only_tensor_is_refused_or_honoured(peer):
    tensor = cx.put("fixed", VALUES, readonly=True)
    cx.delete("fixed")
    if not peer.takes_read_only:
        with pytest.raises(BufferError):
            peer.load(tensor)
        return
    view = peer.view(peer.load(tensor))
    assert view.ctypes.data == tensor.data_ptr()
    assert not view.flags.writeable


@EVERY
def test_a_published_tensor_is_opened_without_copying(peer):
    tensor = cx.put("exchange/one", VALUES)
    opened = cx.get("exchange/one")
    cx.delete("exchange/one")
    view = peer.view(peer.load(opened))
    assert view.ctypes.data == tensor.data_ptr()
    assert view.tolist() == VALUES.tolist()


@EVERY
def test_what_they_export_we_import_or_refuse_as_read_only(peer):
    tensor, values = given()
    theirs = peer.load(tensor)
    if peer in (Numpy, Strict) and NUMPY < (2, 1, 0):
        with pytest.raises((NotImplementedError, BufferError)):  # their own words, unchanged
            cx.from_dlpack(theirs)
        return
    if not peer.keeps_read_only or peer.view(theirs).flags.writeable:
        again = cx.from_dlpack(theirs)
        assert again.data_ptr() == tensor.data_ptr()
    else:
        with pytest.raises(cx.ExchangeError, match="read-only"):
            cx.from_dlpack(theirs)
        again = cx.from_dlpack(theirs, copy=True)
        assert again.data_ptr() != tensor.data_ptr()
    assert np.asarray(again).tolist() == values.tolist()


def test_pyarrow_makes_arrays_of_one_dimension():
    arrow = pytest.importorskip("pyarrow")
    tensor, values = given()
    array = arrow.Array.from_dlpack(tensor)
    assert array.to_numpy(zero_copy_only=True).ctypes.data == tensor.data_ptr()
    assert array.to_pylist() == values.tolist()
    with pytest.raises(arrow.ArrowInvalid):
        arrow.Array.from_dlpack(given(shape=(2, 3))[0])


def test_tvm_finds_our_memory_aligned():
    tvm_ffi = pytest.importorskip("tvm_ffi")
    tensor, _ = given()
    tvm_ffi.from_dlpack(tensor, require_alignment=256, require_contiguous=True)


def test_onnxruntime_writes_where_our_tensor_lies():
    pytest.importorskip("onnxruntime")
    tensor, _ = given()
    Onnx.load(tensor).update_inplace(np.full(6, 7, np.float32))
    assert tensor.tolist() == [7] * 6
