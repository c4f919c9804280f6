"""Odd and hostile capsules on a device: taken or refused, never touched wrongly, released once."""

import cuda_array
import fakecuda
import forge
import numpy as np
import pytest
from cuda_array import Array
from forge import Forge, Producer

import tensorcx as cx

pytestmark = pytest.mark.usefixtures("no_name_left")

CUDA = (forge.CUDA, 0)
VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)

TAKE = {
    "from_dlpack": cx.from_dlpack,
    "copied": lambda x: cx.from_dlpack(x, copy=True),
    "asarray": cx.asarray,
    "put": lambda x: cx.put("x", x),
    "bundle": lambda x: cx.put("x", {"a": x}),
    "elsewhere": lambda x: cx.asarray(x, device="cpu"),
    "assigned": lambda x: cx.zeros((2, 3), "float32", device="cuda:0").__setitem__(..., x),
}
MALFORMED = {
    "no data": {"data": None},
    "negative number of dimensions": {"ndim": -1},
    "too many dimensions": {"shape": (1,) * 65},
    "no shape": {"shape_pointer": None},
    "negative dimension": {"shape": (2, -3)},
    "more elements than memory": {"shape": (1 << 40, 1 << 40)},
    "lanes": {"dtype": (2, 32, 2)},
    "unknown dtype": {"dtype": (17, 4, 1)},
    "strided": {"shape": (2, 3), "strides": (1, 2)},
    "negative stride": {"strides": (-3, 1)},
    "not aligned": {"byte_offset": 2},
    "managed memory": {"device": (13, 0)},
    "no device": {"device": (0, 0)},
    "no such device": {"device": (forge.CUDA, 7)},
    "negative device": {"device": (forge.CUDA, -1)},
    "another major version": {"version": (2, 0)},
}


@pytest.mark.parametrize("take", TAKE)
@pytest.mark.parametrize("wrong", MALFORMED)
def test_what_is_malformed_is_refused_and_released(wrong, take):
    device = {"data": 1 << 60, "device": CUDA}  # nobody may look there
    forged = Forge(**device | MALFORMED[wrong])
    with pytest.raises((cx.ExchangeError, cx.DeviceError, ValueError)):
        TAKE[take](Producer(forged, device=CUDA))
    fakecuda.d.settle(forged.is_released_once)
    assert not cx.exists("x")


@pytest.mark.parametrize("take", ["from_dlpack", "copied", "asarray", "elsewhere"])
@pytest.mark.parametrize("versioned", [True, False])
def test_offsets_empty_shapes_and_scalars(take, versioned):
    memory = Array.of(np.arange(8, dtype="f4"))
    for shape, offset, values in (
        ((), 4, 1),
        ((2, 3), 8, [[2, 3, 4], [5, 6, 7]]),
        ((1, 3), 0, [[0, 1, 2]]),
        ((0, 3), 0, []),
    ):
        data = memory.address if 0 not in shape else None
        forged = Forge(
            shape=shape,
            data=data,
            byte_offset=offset,
            device=CUDA,
            versioned=versioned,
            strides=None,
        )
        t = TAKE[take](Producer(forged, device=CUDA))
        assert t.shape == shape
        assert t.cpu().tolist() == values
        del t
        fakecuda.d.settle(forged.is_released_once)


def test_a_capsule_decides_where_the_memory_is():
    """Whatever its producer announces."""
    here = Forge(VALUES.tobytes())
    t = cx.asarray(Producer(here, device=CUDA))
    assert (t.device, t.tolist()) == ("cpu", VALUES.tolist())
    there = Array.of(VALUES, device=1)
    forged = Forge(data=there.address, device=(forge.CUDA, 1))
    t = cx.asarray(Producer(forged, device=CUDA))
    assert (t.device, t.cpu().tolist()) == ("cuda:1", VALUES.tolist())


@pytest.mark.parametrize("take", TAKE.keys() - {"assigned"})  # which asks no client
@pytest.mark.parametrize(
    "where, said",
    [("cuda:0", (forge.CPU, 0)), ("cuda:0", (forge.CUDA, 1)), ("cpu", CUDA)],
)
def test_shared_memory_is_where_it_is_whatever_a_capsule_says(where, said, take):
    t = cx.asarray(VALUES, copy=True, device=where)
    forged = Forge(data=t.data_ptr(), device=said)
    with pytest.raises((cx.ExchangeError, cx.DeviceError, ValueError)):
        TAKE[take](Producer(forged, device=CUDA))
    fakecuda.d.settle(forged.is_released_once)


def test_an_error_of_the_producer_passes_unchanged():
    class Own(Exception):
        pass

    for take in TAKE.values():
        with pytest.raises((Own, cx.ExchangeError)) as caught:
            take(Producer(Forge(device=CUDA), device=CUDA, raises=Own("mine")))
        assert "mine" in str(caught.value)


def test_a_daemon_copies_the_memory_of_another(tmp_path):
    with fakecuda.d.Daemon(tmp_path) as second, cx.Client(second.path, autostart=False) as other:
        t = cx.asarray(VALUES, device="cuda:0")
        copied = other.put("x", t)
        assert copied.data_ptr() != t.data_ptr()
        assert (copied.device, copied.cpu().tolist()) == ("cuda:0", VALUES.tolist())
        bundle = other.put("b", {"a": t, "b": VALUES})
        assert cuda_array.from_dlpack(bundle["a"]).numpy().tolist() == VALUES.tolist()
        other.delete("x")
        other.delete("b")
        del copied, bundle
