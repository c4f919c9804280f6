"""Sizes around 2^31 and 2^32 bytes, and products that do not fit 64 bits."""

import pytest
from helpers import LONG, Program, run

GiB = 1 << 30

WHOLE = """
shape, dtype = eval(sys.argv[1]), sys.argv[2]
tensor = cx.empty(shape, dtype)
count = int(np.prod([int(n) for n in shape], dtype=object))
assert tensor.size == count and tensor.nbytes == count * np.dtype(dtype).itemsize
flat = np.asarray(tensor).reshape(-1).view(np.uint8)
assert flat.nbytes == tensor.nbytes
flat[0], flat[-1] = 1, 2
flat[1 << 20 :: 1 << 20] = 3
cx.put("large", tensor)
del flat, tensor
"""

SEEN = """
shape, dtype = eval(sys.argv[1]), sys.argv[2]
tensor = cx.get("large")
assert tensor.shape == shape and tensor.dtype == dtype
flat = np.asarray(tensor).reshape(-1).view(np.uint8)
assert flat[0] == 1 and flat[-1] in (2, 3)
assert (flat[1 << 20 : -1 : 1 << 20] == 3).all()
cx.delete("large")
"""


def pass_on(daemon, shape, dtype):
    for code in WHOLE, SEEN:
        with Program(code, shape, dtype, socket=daemon.path) as program:
            program.finish(LONG)


@pytest.mark.parametrize("shape", [(2**24 + 1,), (4096, 4097), (2**23, 2, 2)], ids=str)
def test_odd_sizes_of_some_mebibytes(daemon, shape):
    pass_on(daemon, shape, "uint8")


LARGE = [
    ((2 * GiB - 1,), "uint8"), ((2 * GiB,), "uint8"), ((2 * GiB + 1,), "uint8"),
    ((2**31,), "int8"), ((65536, 65536), "uint8"), ((32768, 65536, 2), "uint8"),
    ((GiB + 2,), "float32"), ((4 * GiB - 1,), "uint8"), ((4 * GiB + 8,), "uint8"),
    ((6 * GiB // 8,), "float64"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("shape,dtype", LARGE, ids=str)
def test_sizes_around_31_and_32_bits(start, shape, dtype):
    pass_on(start("--capacity", "8G"), shape, dtype)


@pytest.mark.slow
def test_an_offset_beyond_4_gib(start):
    code = """
    whole = cx.empty((5 << 30,), "uint8")
    part = whole[(9 << 29) + 3 :]
    part[:5] = [1, 2, 3, 4, 5]
    cx.put("part", part)
    assert np.asarray(whole)[(9 << 29) + 4] == 2
    """
    seen = """
    part = cx.get("part")
    assert np.asarray(part)[:5].tolist() == [1, 2, 3, 4, 5]
    cx.delete("part")
    """
    daemon = start("--capacity", "8G")
    for text in code, seen:
        run(text, socket=daemon.path)


WRAPPING = [
    (2**32, 2**32), (2**63,), (2**62, 4), (-1,), (2**64,), (2**31, 2**31, 2**31), (2**62 + 1, 8),
]  # fmt: skip


def test_what_does_not_fit_64_bits_is_an_error_and_allocates_nothing(daemon):
    code = """
    for shape in eval(sys.argv[1]):
        for dtype in "uint8", "float64", "complex128":
            try:
                tensor = cx.empty(shape, dtype)
            except (ValueError, OverflowError, MemoryError):
                continue
            raise AssertionError(f"{shape} {dtype} became {tensor!r}")
    assert cx.stats()["storages"] == 0
    legal = cx.empty((2**31, 0, 2**40), "float64")
    assert legal.shape == (2**31, 0, 2**40) and legal.nbytes == 0
    """
    run(code, WRAPPING, socket=daemon.path)


def test_a_view_of_one_element_a_billion_times_over_does_not_take_a_gibibyte_in_silence(start):
    """A stride of 0: 2^30 elements on one byte. Packed it is 1 GiB, which does not fit here."""
    code = """
    wide = np.broadcast_to(np.zeros((), np.uint8), (1 << 30,))
    try:
        cx.put("wide", wide)
    except MemoryError as error:
        say("refused")
    """
    with Program(code, socket=start("--capacity", "64M").path) as program:
        program.expect("refused")
        program.finish()
