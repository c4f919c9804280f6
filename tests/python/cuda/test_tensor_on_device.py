"""Tensors on a CUDA device: made, looked at, filled, copied, and what they cannot do."""

import copy
import pickle

import cuda_array
import fakecuda
import numpy as np
import pytest
from cuda_array import seen

import tensorcx as cx

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


def on_device(values=VALUES, device="cuda:0"):
    return cx.asarray(np.asarray(values), device=device)


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:1"])
def test_a_tensor_is_born_on_a_device(device):
    t = cx.zeros((2, 3), "int32", device=device)
    number = int(device.removeprefix("cuda").removeprefix(":") or 0)
    assert (t.device, t.shape, t.dtype) == (f"cuda:{number}", (2, 3), np.int32)
    assert t.__dlpack_device__() == (2, number)
    assert t.is_shared
    assert not t.readonly
    assert seen(t).tolist() == [[0, 0, 0], [0, 0, 0]]
    assert fakecuda.used(number) > 0


def test_memory_on_a_device_is_aligned_and_counted():
    before = cx.stats()["storages"]
    t = cx.empty(1000, "uint8", device="cuda:0")
    assert t.data_ptr() % 256 == 0
    assert t.nbytes == 1000
    assert cx.stats()["storages"] == before + 1
    assert next(peer for peer in cx.clients() if peer["is_self"])["device_bytes"] >= 1000


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float16", "complex128"])
@pytest.mark.parametrize("shape", [(), (3,), (0, 4), (2, 1, 3)])
def test_every_dtype_and_shape_goes_there_and_back(dtype, shape):
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    t = on_device(values)
    assert (t.shape, t.dtype, t.device) == (shape, values.dtype, "cuda:0")
    back = t.cpu()
    assert back.device == "cpu"
    assert back.numpy().dtype == values.dtype
    assert np.array_equal(back.numpy(), values)


def test_full_and_empty_like_follow_the_device():
    t = cx.full((2, 2), 7, "int32", device="cuda:1")
    assert seen(t).tolist() == [[7, 7], [7, 7]]
    assert cx.empty_like(t).device == "cuda:1"
    assert cx.empty_like(t, device="cpu").device == "cpu"
    assert cx.empty_like(np.zeros(3), device="cuda:0").device == "cuda:0"
    foreign = cuda_array.Array.of(VALUES, device=1)
    like = cx.empty_like(foreign)
    assert (like.device, like.shape, like.dtype) == ("cuda:1", (2, 3), np.float32)
    assert cx.empty_like(foreign, "int8", device="cuda:0").dtype == np.int8


@pytest.mark.parametrize(
    ("device", "error"),
    [
        ("gpu", cx.ExchangeError),
        ("cuda:", cx.ExchangeError),
        ("cuda:-1", cx.ExchangeError),
        ("cuda:x", cx.ExchangeError),
        ("", cx.ExchangeError),
        (0, TypeError),
        (("cuda", 0), TypeError),
        ("cuda:2", cx.DeviceError),
        ("cuda:9999", cx.DeviceError),
    ],
)
def test_a_device_that_is_none_is_named(device, error):
    with pytest.raises(error, match=r"device|cuda"):
        cx.empty(3, device=device)
    with pytest.raises(error):
        cx.put("x", VALUES, device=device)
    with pytest.raises(error):
        on_device().to(device)
    assert not cx.exists("x")


def test_to_gives_another_handle_or_a_copy():
    t = on_device()
    same = t.to("cuda:0")
    assert same is not t
    assert same.data_ptr() == t.data_ptr()
    other = t.to("cuda:1")
    assert (other.device, seen(other).tolist()) == ("cuda:1", VALUES.tolist())
    t[0, 0] = 9
    assert seen(same)[0, 0] == 9
    assert seen(other)[0, 0] == 0
    here = t.cpu()
    assert here.cpu().data_ptr() == here.data_ptr()
    assert here.to("cuda").device == "cuda:0"


def test_copies_stay_on_the_device():
    t = on_device(device="cuda:1")
    for copied in (t.copy(), copy.deepcopy(t)):
        assert (copied.device, seen(copied).tolist()) == ("cuda:1", VALUES.tolist())
        assert copied.data_ptr() != t.data_ptr()
    assert copy.copy(t).data_ptr() == t.data_ptr()


def test_parts_are_on_the_same_memory():
    t = on_device(np.arange(24, dtype="int32").reshape(2, 3, 4))
    assert len(t) == 2
    assert t[1].data_ptr() == t.data_ptr() + 48
    assert seen(t[1, 2]).tolist() == [20, 21, 22, 23]
    assert seen(t[1, 2, 3]).item() == 23
    assert t[None, ..., :].shape == (1, 2, 3, 4)
    assert t[:, :0].shape == (2, 0, 4)
    assert [part.shape for part in t] == [(3, 4)] * 2
    with pytest.raises(cx.ExchangeError, match=r"not contiguous$"):
        t[:, 1]
    with pytest.raises(IndexError):
        t[2]
    with pytest.raises(TypeError):
        len(t[1, 2, 3])


def test_assignment_copies_to_the_device():
    t = cx.zeros((2, 3), "float32", device="cuda:0")
    t[...] = 0.5
    assert seen(t).tolist() == [[0.5] * 3] * 2
    t[1] = [1, 2, 3]
    t[0, 2] = np.float64(7)
    assert seen(t).tolist() == [[0.5, 0.5, 7], [1, 2, 3]]
    t[...] = cuda_array.Array.of(VALUES)
    assert seen(t).tolist() == VALUES.tolist()
    t[0] = on_device(np.array([7, 8, 9], "f4"), "cuda:1")
    assert seen(t)[0].tolist() == [7, 8, 9]
    here = cx.zeros((2, 3), "float32")
    here[...] = t
    assert here.tolist() == seen(t).tolist()


def test_assignment_may_overlap():
    t = cx.asarray(np.arange(6, dtype="f4"), device="cuda:0")
    t[:4] = t[2:]
    assert t.cpu().tolist() == [2, 3, 4, 5, 4, 5]
    t[1:] = t[:5]
    assert t.cpu().tolist() == [2, 2, 3, 4, 5, 4]
    t[...] = t
    assert t.cpu().tolist() == [2, 2, 3, 4, 5, 4]


def test_assignment_between_devices_changes_no_dtype_and_repeats_nothing():
    t = cx.zeros((2, 3), "float32", device="cuda:0")
    for wrong in (on_device([1, 2, 3]), on_device(np.zeros((3, 2), "f4"))):
        with pytest.raises(ValueError, match=r"shape|dtype"):
            t[...] = wrong
    with pytest.raises(ValueError, match="broadcast"):
        t[...] = [1, 2]
    with pytest.raises(cx.ExchangeError, match="contiguous"):
        t[:, 0] = 1
    with pytest.raises(TypeError, match="index"):
        t[np.zeros((2, 3), bool)] = 1
    assert not seen(t).any()


def test_a_read_only_tensor_is_not_assigned_to():
    with cx.put("x", VALUES, device="cuda:0"):
        t = cx.get("x", readonly=True)
    cx.delete("x")
    with pytest.raises(ValueError, match="read-only"):
        t[...] = 1
    assert t.__cuda_array_interface__["data"] == (t.data_ptr(), True)


@pytest.mark.parametrize(
    "use",
    [
        lambda t: t.numpy(),
        np.asarray,
        np.sum,
        memoryview,
        bytes,
        lambda t: t.item(),
        lambda t: t.tolist(),
        lambda t: t == 0,
        bool,
        lambda t: np.add(t, 1),
    ],
    ids=range(10),
)
def test_what_needs_the_cpu_names_the_way_there(use):
    t = on_device(VALUES[0, :1])
    with pytest.raises(BufferError, match=r"cuda:0.*t\.cpu\(\)"):
        use(t)


def test_it_says_where_it_is():
    assert repr(on_device()) == "Tensor(shape=(2, 3), dtype=float32, device='cuda:0')"


def test_the_cuda_array_interface():
    t = on_device()
    assert t.__cuda_array_interface__ == {
        "version": 3,
        "shape": (2, 3),
        "typestr": "<f4",
        "data": (t.data_ptr(), False),
        "strides": None,
        "stream": None,
    }
    assert on_device(np.zeros((0, 2))).__cuda_array_interface__["data"][0] == 0
    assert not hasattr(t.cpu(), "__cuda_array_interface__")
    t.close()
    with pytest.raises(ValueError, match="closed"):
        _ = t.__cuda_array_interface__


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_pickle_has_the_bytes_and_goes_to_the_same_device(protocol):
    t = on_device(device="cuda:1")
    data = pickle.dumps(t, protocol)
    t.close()
    again = pickle.loads(data)
    assert (again.device, seen(again).tolist()) == ("cuda:1", VALUES.tolist())


def test_asarray_shares_what_is_shared_and_copies_the_rest():
    t = on_device()
    assert cx.asarray(t).data_ptr() == t.data_ptr()
    assert cx.asarray(cuda_array.from_dlpack(t)).storage_id == t.storage_id
    foreign = cuda_array.Array.of(VALUES)
    copied = cx.asarray(foreign)
    assert copied.device == "cuda:0"
    assert copied.is_shared
    assert seen(copied).tolist() == VALUES.tolist()
    for there in (foreign, t):
        with pytest.raises(cx.ExchangeError, match="copy"):
            cx.asarray(there, copy=False, device="cpu")
    with pytest.raises(cx.ExchangeError, match="copy"):
        cx.asarray(foreign, copy=False)
    with pytest.raises(BufferError, match=r"t\.cpu\(\)"):
        cx.asarray(t, "int8")


def test_is_shared_knows_views_of_others():
    t = on_device()
    assert cx.is_shared(t)
    assert cx.is_shared(cuda_array.from_dlpack(t))
    assert not cx.is_shared(cuda_array.Array.of(VALUES))


def test_the_last_handle_gives_the_memory_back():
    before = cx.stats()["storages"]
    t = on_device(np.zeros(5 << 20, "u1"))
    view = cuda_array.from_dlpack(t)
    t.close()
    assert view.numpy().sum() == 0
    assert cx.stats()["storages"] == before + 1
    del view
    fakecuda.d.settle(lambda: cx.stats()["storages"] == before)
