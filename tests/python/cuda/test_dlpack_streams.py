"""DLPack on a device: who waits for which stream, and what a missing wait would show.

A producer's work takes 150 ms here, so elements that are looked at too early are the old ones. That
a test notices is shown by its twin that leaves the wait out itself.
"""

import gc

import cuda_array
import cuda_driver as cuda
import fakecuda
import forge
import numpy as np
import pytest
from cuda_array import Array, now
from forge import Forge, Producer

import tensorcx as cx

pytestmark = pytest.mark.usefixtures("no_name_left")

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)
SLOW = 150  # milliseconds


@pytest.fixture
def slow(side):
    """An array of zeros that a kernel fills with ones, later."""
    array = Array((4,), "uint8", stream=side)
    array.write(np.zeros(4, "u1"))
    fakecuda.launch(array, 1, SLOW)
    return array


class Careless(Array):
    """Orders nothing, whatever stream it is told."""

    def __dlpack__(self, **keywords):
        return super().__dlpack__(**keywords | {"stream": -1})


class Old(Array):
    """Of before there were streams or versions."""

    def __dlpack__(self):
        return super().__dlpack__(stream=-1)


# -------------------------------------------------------------------------------------------- in


def int32(array):
    """The same memory as what from_dlpack() takes."""
    array.dtype, array.shape = np.dtype("int32"), (1,)
    return array


def test_import_waits_for_what_the_producer_has_under_way(slow):
    t = cx.from_dlpack(int32(slow))
    assert now(t) == [1] * 4
    assert t.data_ptr() == slow.address


def test_that_test_sees_a_missing_wait(side):
    careless = Careless((4,), "uint8", stream=side)
    careless.write(np.zeros(4, "u1"))
    fakecuda.launch(careless, 1, SLOW)
    t = cx.from_dlpack(int32(careless))
    assert now(t) == [0] * 4
    careless.synchronize()


def test_a_producer_is_asked_for_a_stream_that_it_must_know(slow):
    cx.from_dlpack(int32(slow))
    assert [asked["stream"] for asked in slow.asked] == [1]
    assert slow.asked[0]["max_version"][0] == 1


def test_a_producer_without_streams_is_waited_for(side):
    old = Old((4,), "uint8", stream=side)
    old.write(np.zeros(4, "u1"))
    fakecuda.launch(old, 1, SLOW)
    assert now(cx.from_dlpack(int32(old))) == [1] * 4


@pytest.mark.parametrize("device", [0, 1])
def test_the_producers_device_is_current_while_it_is_asked(device):
    class Picky(Array):
        def __dlpack__(self, **keywords):
            current = cuda.ctypes.c_int()
            cuda.call("cuCtxGetDevice", cuda.byref(current))
            if current.value != self.device:
                raise BufferError(f"the current device is {current.value}")
            return super().__dlpack__(**keywords)

    picky = Picky.of(VALUES, device=device)
    with cuda.current(1 - device):
        assert cx.from_dlpack(picky).device == f"cuda:{device}"
        assert cx.asarray(picky).device == f"cuda:{device}"
        current = cuda.ctypes.c_int()
        cuda.call("cuCtxGetDevice", cuda.byref(current))
        assert current.value == 1 - device


@pytest.mark.parametrize("copy", [None, False])
def test_import_shares_and_keeps_the_memory_alive(copy):
    array = Array.of(VALUES)
    address = array.address
    t = cx.from_dlpack(array, copy=copy)
    del array
    gc.collect()
    assert (t.data_ptr(), t.device, t.is_shared) == (address, "cuda:0", False)
    view = cuda_array.from_dlpack(t)
    view.write(VALUES + 1)
    assert t.cpu().tolist() == (VALUES + 1).tolist()
    del t, view
    fakecuda.d.settle(lambda: fakecuda.used() == 0, "the end of the producer's memory")


def test_a_copy_is_isolated_and_shared():
    array = Array.of(VALUES)
    t = cx.from_dlpack(array, copy=True)
    array.write(VALUES + 1)
    assert t.is_shared
    assert t.cpu().tolist() == VALUES.tolist()


@pytest.mark.parametrize("dtype", ["float64", "uint8", "float16"])
def test_the_contract_is_as_narrow_as_on_the_cpu(dtype):
    array = Array.of(VALUES.astype(dtype))
    for copy in (None, False, True):
        with pytest.raises(cx.ExchangeError, match="dtype"):
            cx.from_dlpack(array, copy=copy)
    assert cx.asarray(array).cpu().tolist() == VALUES.tolist()


def test_a_read_only_tensor_is_copied():
    address = Array.of(VALUES)
    forged = Forge(
        shape=(2, 3), data=address.address, device=(forge.CUDA, 0), flags=forge.READ_ONLY
    )
    with pytest.raises(cx.ExchangeError, match="read-only"):
        cx.from_dlpack(Producer(forged))
    forged = Forge(
        shape=(2, 3), data=address.address, device=(forge.CUDA, 0), flags=forge.READ_ONLY
    )
    t = cx.from_dlpack(Producer(forged), copy=True)
    assert not t.readonly
    assert t.cpu().tolist() == VALUES.tolist()
    fakecuda.d.settle(forged.is_released_once)


def test_strides_are_refused_and_the_producer_released():
    array = Array.of(VALUES)
    for take in (cx.from_dlpack, cx.asarray, lambda x: cx.put("x", x)):
        forged = Forge(shape=(3, 2), strides=(1, 3), data=array.address, device=(forge.CUDA, 0))
        with pytest.raises(cx.ExchangeError, match="contiguous"):
            take(Producer(forged))
        fakecuda.d.settle(forged.is_released_once)


@pytest.mark.parametrize(
    ("device", "where"), [("cpu", "cpu"), ("cuda:1", "cuda:1"), ("cuda", "cuda:0")]
)
def test_device_moves_what_comes_in(device, where):
    array = Array.of(VALUES)
    t = cx.from_dlpack(array, device=device)
    assert t.device == where
    assert t.cpu().tolist() == VALUES.tolist()
    assert cx.from_dlpack(VALUES, device=device).device == where
    if where != "cuda:0":
        with pytest.raises(cx.ExchangeError, match="copy"):
            cx.from_dlpack(array, device=device, copy=False)


def test_a_device_that_is_not_there_is_an_error():
    forged = Forge(shape=(2, 3), data=8, device=(forge.CUDA, 5))
    with pytest.raises(cx.ExchangeError, match="cuda:5: this process sees 2 CUDA devices"):
        cx.from_dlpack(Producer(forged))
    fakecuda.d.settle(forged.is_released_once)


def test_a_capsule_is_taken_once():
    capsule = Array.of(VALUES).__dlpack__(stream=1, max_version=(1, 0))

    class Holder:
        def __dlpack_device__(self):
            return (forge.CUDA, 0)

        def __dlpack__(self, **_):
            return capsule

    first = cx.from_dlpack(Holder())
    for take in (cx.from_dlpack, cx.asarray):
        with pytest.raises(cx.ExchangeError, match="consumed"):
            take(Holder())
    assert first.cpu().tolist() == VALUES.tolist()


def test_our_own_export_comes_back_as_itself():
    t = cx.asarray(VALUES, device="cuda:0")
    again = cx.from_dlpack(cx.from_dlpack(t))
    assert again.data_ptr() == t.data_ptr()
    assert again.storage_id == t.storage_id


# ------------------------------------------------------------------------------------- publishing


@pytest.mark.parametrize("kind", [Array, Careless, Old])
@pytest.mark.parametrize(
    "publish",
    [
        lambda x: cx.put("x", x),
        lambda x: cx.put("x", {"a": x})["a"],
        cx.asarray,
        lambda x: cx.asarray(x, device="cpu"),
    ],
    ids=["put", "bundle", "asarray", "cpu"],
)
def test_publishing_waits_for_the_writer(side, publish, kind):
    array = kind((4,), "uint8", stream=side)
    array.write(np.zeros(4, "u1"))
    fakecuda.launch(array, 1, SLOW)
    t = publish(array)
    assert (t.tolist() if t.device == "cpu" else now(t)) == [1] * 4


@pytest.mark.parametrize("stream", [None, "its own"])
def test_publishing_shared_memory_waits_for_the_writer(side, stream):
    t = cx.zeros(4, "uint8", device="cuda:0")
    view = cuda_array.from_dlpack(t, stream=side)
    fakecuda.launch(view, 1, SLOW)
    cx.put("x", t, stream=side if stream else None)
    assert now(cx.get("x")) == [1] * 4


def test_a_stream_that_was_named_is_the_only_one_waited_for(side):
    """So a wrong stream shows old bytes: these tests see a missing wait."""
    t = cx.zeros(4, "uint8", device="cuda:0")
    view = cuda_array.from_dlpack(t, stream=side)
    fakecuda.launch(view, 1, SLOW)
    with cuda.current():
        idle = cuda.stream_create()
    cx.put("x", t, stream=idle)
    assert now(cx.get("x")) == [0] * 4
    with cuda.current():
        cuda.stream_destroy(idle)


def test_a_ticket_waits_for_the_writer(side):
    import pickle

    t = cx.zeros(4, "uint8", device="cuda:0")
    view = cuda_array.from_dlpack(t, stream=side)
    fakecuda.launch(view, 1, SLOW)
    ticket = pickle.dumps(t.ref())
    assert now(t) == [1] * 4
    assert pickle.loads(ticket).data_ptr() == t.data_ptr()


@pytest.mark.parametrize("stream", [0, -1, -2, 2**63, 2**64 - 1, 2**64])
def test_streams_that_are_none(stream):
    t = cx.zeros(4, "uint8", device="cuda:0")
    for use in (
        lambda: cx.put("x", t, stream=stream),
        lambda: cx.put("x", {"a": t}, stream=stream),
        lambda: cx.asarray(t, stream=stream),
    ):
        with pytest.raises(cx.ExchangeError, match=f"stream {stream}"):
            use()
    with pytest.raises(TypeError, match="stream"):
        cx.put("x", t, stream="1")
    assert not cx.exists("x")


# --------------------------------------------------------------------------------------------- out


@pytest.mark.parametrize("stream", [None, -1, 1, 2, "its own"])
def test_export_takes_every_stream_of_dlpack(side, stream):
    t = cx.asarray(VALUES, device="cuda:0")
    number = side if stream == "its own" else stream
    view = cuda_array.from_dlpack(t, stream=number)
    assert view.address == t.data_ptr()
    assert view.numpy().tolist() == VALUES.tolist()


@pytest.mark.parametrize("stream", [0, -2, 2**64 - 1])
def test_export_refuses_what_is_no_stream(stream):
    t = cx.asarray(VALUES, device="cuda:0")
    with pytest.raises(cx.ExchangeError, match=f"stream {stream}"):
        t.__dlpack__(stream=stream)


@pytest.mark.parametrize("stream", ["x", 1.0, True, b"1"])
def test_a_stream_is_an_int(stream):
    with pytest.raises(TypeError, match="stream"):
        cx.zeros(3, device="cuda:0").__dlpack__(stream=stream)


def test_a_tensor_is_given_out_on_its_device():
    t = cx.asarray(VALUES, device="cuda:1")
    for kwargs, name in (({}, "dltensor"), ({"max_version": (1, 0)}, "dltensor_versioned")):
        for dl_device in (None, (2, 1)):
            capsule = t.__dlpack__(dl_device=dl_device, copy=False, **kwargs)
            assert forge.capsule_name(capsule).decode() == name
            tensor = forge.contents(capsule).dl_tensor
            assert (tensor.device.device_type, tensor.device.device_id) == (2, 1)
            assert (tensor.data, tensor.byte_offset) == (t.data_ptr(), 0)


@pytest.mark.parametrize("copy", [None, True])
def test_a_consumer_on_the_cpu_gets_a_copy(copy):
    t = cx.asarray(VALUES, device="cuda:0")
    capsule = t.__dlpack__(dl_device=(1, 0), copy=copy, max_version=(1, 0))
    managed = forge.contents(capsule)
    assert managed.dl_tensor.device.device_type == forge.CPU
    assert managed.flags & forge.IS_COPIED
    with pytest.raises(cx.ExchangeError, match="stays there, or is copied to the CPU"):
        t.__dlpack__(dl_device=(1, 0), copy=False)
    with pytest.raises(cx.ExchangeError, match="stream"):
        t.__dlpack__(dl_device=(1, 0), stream=1)


def test_numpy_may_ask_for_the_cpu():
    if not hasattr(np, "from_dlpack") or np.lib.NumpyVersion(np.__version__) < "2.1.0":
        pytest.skip("this NumPy asks for no device")
    t = cx.asarray(VALUES, device="cuda:0")
    assert np.from_dlpack(t, device="cpu").tolist() == VALUES.tolist()


def test_other_devices_are_refused():
    t = cx.asarray(VALUES, device="cuda:0")
    for device in ((2, 1), (3, 0), (10, 0), (1, 1)):
        with pytest.raises(cx.ExchangeError, match="dl_device"):
            t.__dlpack__(dl_device=device)
    with pytest.raises(cx.ExchangeError, match="dl_device"):
        cx.zeros(3).__dlpack__(dl_device=(2, 0))


def test_an_export_outlives_its_tensor():
    t = cx.asarray(VALUES, device="cuda:0")
    view = cuda_array.from_dlpack(t)
    t.close()
    del t
    assert view.numpy().tolist() == VALUES.tolist()
    unused = cx.asarray(VALUES, device="cuda:0").__dlpack__(stream=1)
    del unused


def test_memory_is_free_when_work_that_reads_it_is_done():
    before = cx.stats()["storages"]
    t = cx.full(4, 7, "uint8", device="cuda:0")
    view = cuda_array.from_dlpack(t)
    result = fakecuda.launch_read(view, SLOW)
    t.close()
    view.close()
    fakecuda.d.settle(lambda: cx.stats()["storages"] == before)
    assert list(result.raw) == [7] * 4


def test_foreign_memory_is_released_when_work_on_it_is_done():
    forged = Forge(shape=(1,), data=8, device=(forge.CUDA, 0))
    t = cx.from_dlpack(Producer(forged))
    array = Array.of(np.full(4, 7, "u1"))
    result = fakecuda.launch_read(array, SLOW)
    t.close()
    fakecuda.d.settle(forged.is_released_once)
    assert list(result.raw) == [7] * 4
