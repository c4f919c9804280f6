"""Numbers and shapes as callers give them, checked."""

import math
import operator
from collections.abc import Iterable, Sequence
from typing import SupportsIndex

import numpy as np

Shape = SupportsIndex | Iterable[SupportsIndex]


def shape_of(shape: Shape) -> tuple[SupportsIndex, ...]:
    """As the C half takes it, which looks at what is in a tuple."""
    if isinstance(shape, tuple):
        return shape
    try:
        if not isinstance(shape, Iterable):
            return (operator.index(shape),)
        if isinstance(shape, Sequence | np.ndarray) and not isinstance(shape, str | bytes):
            return tuple(map(operator.index, shape))
    except TypeError:
        pass
    raise TypeError(f"a shape is an int or a sequence of ints, not {shape!r}")


def device_text(device: str) -> str:
    """As a tensor's `device` says it."""
    return "cuda:0" if device == "cuda" else device


def ttl_of(value: float) -> float:
    try:
        seconds = math.nan if isinstance(value, (str, bytes, bytearray)) else float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ValueError(f"ttl must be a positive number of seconds or None, not {value!r}")
    return seconds


def count_of(value: int | None, what: str, most: int = (1 << 32) - 1) -> int:
    """0: not said."""
    if value is None:
        return 0
    try:
        count = operator.index(value)
    except TypeError:
        count = 0
    if not 0 < count <= most:
        raise ValueError(f"{what} must be an int from 1 to {most:,} or None, not {value!r}")
    return count
