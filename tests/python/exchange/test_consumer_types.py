"""from_dlpack as a consumer: dtypes, flags and devices of the exchange contract."""

import enum
import gc

import numpy as np
import pytest
from forge import BOOL, CPU, CUDA, FLOAT32, INT32, IS_COPIED, PADDED, READ_ONLY, Forge, Producer

import tensorcx as cx

COPIES = pytest.mark.parametrize("copy", [False, True], ids=["share", "copy"])
EVERY_COPY = pytest.mark.parametrize("copy", [None, False, True])
KINDS = pytest.mark.parametrize("versioned", [False, True], ids=["legacy", "versioned"])


@KINDS
@COPIES
@pytest.mark.parametrize(
    "dtype,name", [(FLOAT32, "float32"), (INT32, "int32"), (BOOL, "bool")], ids=str
)
def test_the_contracts_dtypes_are_accepted(versioned, copy, dtype, name):
    forged = Forge(np.ones(6, name).tobytes(), dtype=dtype, versioned=versioned)
    tensor = cx.from_dlpack(Producer(forged), copy=copy)
    assert tensor.dtype == np.dtype(name)
    assert np.asarray(tensor).tolist() == np.ones((2, 3), name).tolist()
    del tensor
    assert forged.is_released_once()


OTHERS = {
    "bool of 1 bit": (6, 1, 1),
    "bool of 32 bits": (6, 32, 1),
    "float32 x 4": (2, 32, 4),
    "float32 x 0": (2, 32, 0),
    "pointer": (3, 64, 1),
    "bfloat16": (4, 16, 1),
    "fp4": (17, 4, 1),
    "fp4 x 2": (17, 4, 2),
    "float8": (10, 8, 1),
    "float64": (2, 64, 1),
    "float16": (2, 16, 1),
    "uint8": (1, 8, 1),
    "int64": (0, 64, 1),
    "int8": (0, 8, 1),
    "complex64": (5, 64, 1),
    "no bits": (2, 0, 1),
    "unknown code": (200, 32, 1),
}


@KINDS
@EVERY_COPY
@pytest.mark.parametrize("dtype", OTHERS.values(), ids=OTHERS.keys())
def test_other_dtypes_are_refused_whatever_copy_says(versioned, copy, dtype):
    forged = Forge(bytes(512), dtype=dtype, versioned=versioned)
    with pytest.raises(cx.ExchangeError, match="dtype"):
        cx.from_dlpack(Producer(forged), copy=copy)
    assert forged.is_released_once()


def test_the_error_for_a_dtype_that_storage_knows_names_what_takes_it():
    with pytest.raises(cx.ExchangeError, match="asarray"):
        cx.from_dlpack(np.zeros(3, np.float64))
    assert cx.asarray(np.zeros(3, np.float64)).dtype == np.float64


# ---------------------------------------------------------------------------------------- flags


@pytest.mark.parametrize("copy", [None, False])
def test_read_only_memory_is_not_shared(copy):
    forged = Forge(flags=READ_ONLY)
    with pytest.raises(cx.ExchangeError, match="copy=True"):
        cx.from_dlpack(Producer(forged), copy=copy)
    assert forged.is_released_once()


def test_a_copy_of_read_only_memory_is_writable_and_isolated():
    forged = Forge(np.arange(6, dtype=np.float32).tobytes(), flags=READ_ONLY)
    tensor = cx.from_dlpack(Producer(forged), copy=True)
    assert forged.is_released_once()
    assert not tensor.readonly
    np.asarray(tensor)[0, 0] = 7
    assert np.asarray(tensor)[0].tolist() == [7, 1, 2]
    assert forged.read(4) == bytes(4)


@pytest.mark.parametrize("flags", [IS_COPIED, 1 << 20, 1 << 63, IS_COPIED | 1 << 40])
def test_other_flags_change_nothing(flags):
    forged = Forge(flags=flags)
    tensor = cx.from_dlpack(Producer(forged))
    assert not tensor.readonly
    np.asarray(tensor)[1, 2] = 5
    assert np.frombuffer(forged.read(), np.float32)[5] == 5


def test_padding_of_small_elements_means_nothing_for_whole_bytes():
    forged = Forge(np.arange(6, dtype=np.float32).tobytes(), flags=PADDED)
    assert np.asarray(cx.from_dlpack(Producer(forged))).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_legacy_capsule_means_writable():
    forged = Forge(versioned=False)
    tensor = cx.from_dlpack(Producer(forged))
    np.asarray(tensor)[0, 0] = 9
    assert np.frombuffer(forged.read(), np.float32)[0] == 9


# -------------------------------------------------------------------------------------- devices


@KINDS
@EVERY_COPY
@pytest.mark.parametrize(
    "device", [(3, 0), (7, 0), (8, 0), (10, 0), (13, 0), (99, 0), (0, 0), (-1, 0)]
)
def test_other_devices_are_refused_whatever_copy_says(versioned, copy, device):
    """The memory is poison: touching it would crash."""
    forged = Forge(device=device, data=8, versioned=versioned)
    source = Producer(forged)
    with pytest.raises(cx.ExchangeError, match="device"):
        cx.from_dlpack(source, copy=copy)
    gc.collect()
    assert forged.released == min(len(source.calls), 1)


@KINDS
@pytest.mark.parametrize("device_id", [1, -1, 2**31 - 1])
def test_the_cpu_has_one_number(versioned, device_id):
    forged = Forge(device=(CPU, device_id), versioned=versioned)
    with pytest.raises(cx.ExchangeError, match="device"):
        cx.from_dlpack(Producer(forged))


@EVERY_COPY
def test_a_capsule_on_another_device_than_announced_is_not_touched(copy):
    forged = Forge(device=(CUDA, 99), data=8)  # no machine has so many
    with pytest.raises(cx.ExchangeError):
        cx.from_dlpack(Producer(forged, device=(CPU, 0)), copy=copy)
    assert forged.is_released_once()


@pytest.mark.parametrize("announced", [(CUDA, 0), (3, 0)], ids=["cuda", "pinned"])
def test_the_capsule_decides_where_the_memory_is(announced):
    """torch announces pinned memory as another device and hands out a CPU capsule."""
    forged = Forge(np.arange(6, dtype=np.float32).tobytes())
    tensor = cx.from_dlpack(Producer(forged, device=announced))
    assert tensor.device == "cpu"
    assert np.asarray(tensor).tolist() == [[0, 1, 2], [3, 4, 5]]
    del tensor
    assert forged.is_released_once()


def test_a_device_may_be_an_enum():
    class Device(enum.IntEnum):
        CPU = 1

    tensor = cx.from_dlpack(Producer(Forge(), device=(Device.CPU, 0)))
    assert tensor.device == "cpu"


@pytest.mark.parametrize("device", ["cpu", (1,), 1, None, (1, 0, 0), ("1", "0")])
def test_a_device_that_is_none_never_crashes(device):
    """Refused or ignored, as the capsule decides; never anything else."""

    class Odd(Producer):
        def __dlpack_device__(self):
            return device

    forged = Forge()
    try:
        tensor = cx.from_dlpack(Odd(forged))
    except (TypeError, ValueError, BufferError):
        assert forged.released <= 1
    else:
        assert tensor.shape == (2, 3)
        del tensor
        assert forged.is_released_once()
