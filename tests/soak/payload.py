"""Bytes that tell what they are: a number is a window of one random block that all processes have.

Whoever reads a tensor can say which number it is, and that every byte of it is.
"""

import numpy as np

STEP, WINDOWS, LARGEST = 64, 1 << 16, 24 << 20
_block = np.random.default_rng(0).integers(0, 256, STEP * WINDOWS + LARGEST, np.uint8)
_heads = _block.view(np.uint64)[:: STEP // 8]
_order = np.argsort(_heads)
_sorted = _heads[_order]


def window_of(number: int) -> int:
    return number % WINDOWS


def made(number: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """A private, read-only array; at least 8 bytes."""
    first = window_of(number) * STEP
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return _block[first : first + nbytes].view(dtype).reshape(shape)


def seen(array: np.ndarray) -> tuple[int, str, tuple[int, ...]]:
    """The window that these bytes are, dtype and shape; -1 if they are none."""
    content = np.frombuffer(array, np.uint8) if array.flags.c_contiguous else array.tobytes()
    head = content[:8].view(np.uint64)[0]
    at = int(_order[min(np.searchsorted(_sorted, head), len(_order) - 1)])
    right = np.array_equal(content, _block[at * STEP : at * STEP + len(content)])
    return at if right else -1, array.dtype.str, array.shape
