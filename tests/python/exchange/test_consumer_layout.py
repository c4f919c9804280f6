"""from_dlpack as a consumer: shapes, strides, offsets, alignment; with hostile values."""

import numpy as np
import pytest
from forge import BOOL, INT32, Forge, Producer

import tensorcx as cx

VALUES = np.arange(64, dtype=np.float32)
KINDS = pytest.mark.parametrize("versioned", [False, True], ids=["legacy", "versioned"])
COPIES = pytest.mark.parametrize("copy", [False, True], ids=["share", "copy"])


def given(**changes) -> Forge:
    return Forge(VALUES.tobytes(), **changes)


def accepted(forged, copy=False):
    """Imports, looks at the values, and checks that everything is given back."""
    tensor = cx.from_dlpack(Producer(forged), copy=copy)
    array = np.asarray(tensor).copy()
    if not copy and array.size:
        expected = forged.managed.dl_tensor.data + forged.managed.dl_tensor.byte_offset
        assert tensor.data_ptr() == expected
    shape = tensor.shape
    del tensor
    assert forged.is_released_once()
    assert array.shape == shape
    return array


def refused(forged, copy=False, match=None):
    with pytest.raises(BufferError, match=match) as caught:
        cx.from_dlpack(Producer(forged), copy=copy)
    assert isinstance(caught.value, cx.ExchangeError)
    assert len(str(caught.value)) > 15, "an error that does not say much"
    assert forged.is_released_once()


@KINDS
@COPIES
def test_a_scalar_may_have_no_shape_and_no_strides(versioned, copy):
    array = accepted(given(shape=(), strides=None, versioned=versioned), copy)
    assert array.shape == () and array == 0


@KINDS
def test_a_scalars_shape_pointer_is_never_followed(versioned):
    forged = given(shape=(), shape_pointer=8, strides_pointer=16, versioned=versioned)
    assert accepted(forged).shape == ()


@KINDS
@COPIES
@pytest.mark.parametrize("data", [None, 8, Forge.RIGHT], ids=["null", "invalid", "valid"])
@pytest.mark.parametrize("shape", [(0, 3), (0,), (5, 0), (1, 8, 0, 128), (0, 2**40)])
def test_an_empty_tensor_needs_no_memory(versioned, copy, data, shape):
    array = accepted(given(shape=shape, data=data, versioned=versioned), copy)
    assert array.shape == shape


@COPIES
@pytest.mark.parametrize("strides", [(7, -5), (0, 0), (-1, 2**62), None])
def test_strides_of_an_empty_tensor_mean_nothing(copy, strides):
    assert accepted(given(shape=(2, 0), strides=strides), copy).shape == (2, 0)


@KINDS
@COPIES
def test_no_strides_mean_c_order(versioned, copy):
    array = accepted(given(shape=(2, 3), strides=None, versioned=versioned), copy)
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]


@COPIES
@pytest.mark.parametrize("stride", [0, 1, 99, -1, -7, 10**9, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_stride_of_a_single_element_means_nothing(copy, stride, place):
    shape = {0: (1, 77 - 13), 1: (8, 1, 8), 2: (4, 16, 1)}[place]
    strides = {0: [stride, 1], 1: [8, stride, 1], 2: [16, 1, stride]}[place]
    array = accepted(given(shape=shape, strides=strides), copy)
    assert array.ravel().tolist() == VALUES.tolist()


@KINDS
@COPIES
@pytest.mark.parametrize(
    "shape,strides",
    [((2, 3), (1, 2)), ((2, 2), (4, 1)), ((3,), (2,)), ((2, 3, 4), (12, 1, 3)), ((4, 4), (5, 1))],
    ids=["transposed", "cropped", "every other", "swapped", "diagonal"],
)
def test_other_layouts_are_refused_and_the_way_out_is_named(versioned, copy, shape, strides):
    refused(given(shape=shape, strides=strides, versioned=versioned), copy, match="asarray")


@COPIES
@pytest.mark.parametrize("strides", [(-1,), (0,), (2**62,), (-(2**63),)])
def test_negative_zero_and_huge_strides_are_refused(copy, strides):
    refused(given(shape=(3,), strides=strides), copy)


@KINDS
@COPIES
@pytest.mark.parametrize("offset", [4, 8, 24, 252])
def test_the_byte_offset_is_added_and_not_passed_on(versioned, copy, offset):
    forged = given(shape=(1,), byte_offset=offset, versioned=versioned)
    assert accepted(forged, copy).tolist() == [offset // 4]


@COPIES
@pytest.mark.parametrize("shift,offset", [(0, 2), (0, 1), (1, 0), (2, 0), (3, 2)])
def test_an_element_that_is_not_aligned_is_refused(copy, shift, offset):
    refused(given(shape=(1,), shift=shift, byte_offset=offset), copy, match="align")


@COPIES
@pytest.mark.parametrize("shift,offset", [(1, 3), (2, 2), (4, 0), (12, 0), (3, 5)])
def test_an_element_aligned_to_its_own_size_is_enough(copy, shift, offset):
    forged = Forge(bytes(300), shape=(3,), shift=shift, byte_offset=offset)
    forged.write(VALUES[:3].tobytes(), offset)
    assert accepted(forged, copy).tolist() == [0, 1, 2]


@COPIES
@pytest.mark.parametrize("shift", range(4))
def test_a_bool_lies_anywhere(copy, shift):
    forged = Forge(bytes([1, 0, 1, 1]), (4,), BOOL, shift=shift)
    assert accepted(forged, copy).tolist() == [True, False, True, True]


HOSTILE = {
    "negative ndim": {"ndim": -1},
    "most negative ndim": {"ndim": -(2**31)},
    "huge ndim": {"ndim": 2**31 - 1},
    "one dimension too many": {"shape": (1,) * 65},
    "negative dimension": {"shape": (2, -3)},
    "two negative dimensions": {"shape": (-2, -3)},
    "negative beside zero": {"shape": (0, -3)},
    "no shape": {"shape_pointer": None},
    "no data": {"data": None},
    "no data but an offset": {"data": None, "byte_offset": 16},
    "product overflows": {"shape": (2**40, 2**40)},
    "product wraps to 4 bytes": {"shape": (2**62 + 1,)},
    "product wraps to 0": {"shape": (2**32, 2**32)},
    "address wraps": {"shape": (2**60,), "data": 2**64 - 4096},
    "offset wraps": {"byte_offset": 2**64 - 4},
}


@KINDS
@COPIES
@pytest.mark.parametrize("changes", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_cannot_be_is_refused(versioned, copy, changes):
    refused(given(versioned=versioned, **changes), copy)


@COPIES
def test_sixty_four_dimensions_are_accepted(copy):
    """NumPy before 2.0 shows no more than 32 of them, so only the tensor is looked at."""
    tensor = cx.from_dlpack(Producer(given(shape=(1,) * 64)), copy=copy)
    assert (tensor.ndim, tensor.shape, tensor.size) == (64, (1,) * 64, 1)


def test_a_huge_shape_with_a_zero_is_legal():
    """NumPy cannot show it as an array, so only the tensor is looked at."""
    tensor = cx.from_dlpack(Producer(given(shape=(2**31, 0, 2**40), data=None)))
    assert (tensor.shape, tensor.size, tensor.nbytes) == ((2**31, 0, 2**40), 0, 0)


def test_integers_keep_their_bits():
    forged = Forge(np.array([-1, 2**31 - 1, -(2**31)], np.int32).tobytes(), (3,), INT32)
    assert accepted(forged).tolist() == [-1, 2**31 - 1, -(2**31)]
