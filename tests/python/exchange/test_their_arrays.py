"""What arrays of other libraries are to us: of those in tests/support/peers.py that are installed.

from_dlpack() shares what the contract takes, put() takes every layout of every dtype it knows.
"""

import gc
import weakref

import numpy as np
import peers
import pytest
from peers import Numpy, Onnx, Strict, Tvm

import tensorcx as cx

CONTRACT = ("float32", "int32", "bool")
PEERS = [  # before NumPy 2.1 read-only arrays cannot be given away
    peer
    for peer in peers.ALL
    if peers.is_here(peer) and (peer not in (Numpy, Strict) or peers.NUMPY >= (2, 1, 0))
]
EVERY = pytest.mark.parametrize("peer", PEERS, ids=peers.name_of)
BASE = np.arange(24).reshape(4, 6)


def pairs(of):
    return [pytest.param(p, x, id=f"{peers.name_of(p)}-{x}") for p in PEERS for x in of(p)]


def laid_out(layout, dtype="float32"):
    """An array; "repeated" is read-only, as NumPy makes it."""
    base = BASE.astype(dtype)
    return {
        "whole": base,
        "offset": base[1:],
        "empty": base[:, :0],
        "reversed": base[::-1],
        "stepped": base[::2],
        "transposed": base.T,
        "repeated": np.broadcast_to(base[0], (4, 6)),
    }[layout]


@pytest.fixture
def put():
    yield lambda value: cx.put("theirs", value)
    if cx.exists("theirs"):
        cx.delete("theirs")


@pytest.mark.parametrize("peer,dtype", pairs(lambda peer: peer.made_dtypes))
def test_put_takes_every_dtype(peer, dtype, put):
    array = laid_out("whole", dtype)
    tensor = put(peer.make(array))
    assert tensor.dtype == array.dtype
    assert np.array_equal(tensor, array)


@pytest.mark.parametrize("peer,layout", pairs(lambda peer: peer.layouts))
def test_put_takes_every_layout(peer, layout, put):
    array = laid_out(layout)
    tensor = put(peer.make(array))
    assert tensor.shape == array.shape
    assert np.array_equal(tensor, array)


@pytest.mark.parametrize("peer,layout", pairs(lambda peer: peer.layouts))
def test_from_dlpack_shares_what_is_contiguous(peer, layout):
    array = laid_out(layout)
    theirs = peer.make(array)
    if layout in ("whole", "offset", "empty"):
        tensor = cx.from_dlpack(theirs)
        assert tensor.shape == array.shape
        assert np.array_equal(tensor, array)
        if peer.makes_on_arrays and array.size:
            assert tensor.data_ptr() == array.ctypes.data
    else:
        for copy in None, False, True:
            with pytest.raises(cx.ExchangeError, match="C-contiguous"):
                cx.from_dlpack(theirs, copy=copy)


@pytest.mark.parametrize("peer,dtype", pairs(lambda peer: peer.made_dtypes))
def test_from_dlpack_takes_the_contracts_dtypes_and_names_what_takes_others(peer, dtype):
    array = laid_out("whole", dtype)
    theirs = peer.make(array)
    if dtype in CONTRACT:
        assert np.array_equal(cx.from_dlpack(theirs), array)
        copied = cx.from_dlpack(theirs, copy=True)
        assert np.array_equal(copied, array)
        assert copied.data_ptr() != array.ctypes.data
    else:
        with pytest.raises(cx.ExchangeError, match="asarray"):
            cx.from_dlpack(theirs)


@EVERY
def test_read_only_memory_is_shared_by_nobody_who_keeps_the_flag(peer, put):
    array = laid_out("whole")
    array.flags.writeable = False
    if peer is Tvm:
        with pytest.raises(BufferError):  # NumPy cannot tell it
            peer.make(array)
        return
    theirs = peer.make(array)
    if peer.keeps_read_only:
        for copy in None, False:
            with pytest.raises(cx.ExchangeError, match="read-only"):
                cx.from_dlpack(theirs, copy=copy)
    else:
        assert not cx.from_dlpack(theirs).readonly
    copied = cx.from_dlpack(theirs, copy=True)
    assert not copied.readonly and np.array_equal(copied, array)
    assert np.array_equal(put(theirs), array)


@pytest.mark.parametrize("peer", [p for p in PEERS if p is not Onnx], ids=peers.name_of)
def test_memory_that_is_shared_with_us_outlives_their_tensor(peer):
    """But for onnxruntime, whose tensor only borrows the array."""
    array = laid_out("whole")
    owner = weakref.ref(array)
    theirs = peer.make(array)
    tensor = cx.from_dlpack(theirs)
    del array, theirs
    gc.collect()
    assert np.array_equal(tensor, BASE)
    if peer.makes_on_arrays:
        assert owner() is not None
    del tensor
    gc.collect()
    assert owner() is None


@EVERY
def test_what_was_put_needs_their_tensor_no_more(peer, put):
    array = laid_out("whole")
    owner = weakref.ref(array)
    tensor = put(peer.make(array))
    del array
    gc.collect()
    assert owner() is None
    assert np.array_equal(tensor, BASE)


@EVERY
def test_a_tensor_of_ours_that_comes_back_is_not_copied(peer, put):
    tensor = cx.asarray(laid_out("whole"), copy=True)
    assert put(peer.load(tensor)).storage_id == tensor.storage_id
    del tensor
    gc.collect()


@EVERY
def test_a_bundle_takes_them_beside_our_own(peer, put):
    theirs = peer.make(laid_out("whole", "int32"))
    bundle = put({"theirs": theirs, "same": theirs, "ours": cx.zeros(3)})
    assert np.array_equal(bundle["theirs"], BASE) and np.array_equal(bundle["same"], BASE)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_dtypes_that_we_do_not_know_are_refused_and_named(dtype):
    numpy = pytest.importorskip("jax.numpy")
    theirs = numpy.ones((2, 3), dtype)
    with pytest.raises(cx.ExchangeError, match=dtype):
        cx.put("theirs", theirs)
    with pytest.raises(cx.ExchangeError, match="is not exchanged"):
        cx.from_dlpack(theirs)
    assert cx.put("theirs", theirs.astype("float32")).tolist() == [[1.0] * 3] * 2
    cx.delete("theirs")


def test_an_arrow_array_is_read_only_and_its_bools_are_bits():
    arrow = pytest.importorskip("pyarrow")
    with pytest.raises(cx.ExchangeError, match="read-only"):
        cx.from_dlpack(arrow.array([1.0, 2.0], "float32"))
    assert cx.put("theirs", arrow.array([1.0, 2.0], "float32")).tolist() == [1.0, 2.0]
    with pytest.raises(cx.ExchangeError, match="Bit-packed"):
        cx.put("theirs", arrow.array([True, False]))
    cx.delete("theirs")
