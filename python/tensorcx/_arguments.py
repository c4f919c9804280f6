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


def ttl_of(value: float) -> float:
    seconds = _seconds(value)
    if not seconds > 0:
        raise ValueError(f"ttl must be a positive number of seconds or None, not {value!r}")
    return seconds


def timeout_of(value: float | None) -> float:
    """As the library takes it: negative waits for ever."""
    if value is None:
        return -1.0
    seconds = _seconds(value)
    if not seconds >= 0:
        wanted = "0 (at once), a number of seconds or None (waits for ever)"
        raise ValueError(f"timeout must be {wanted}, not {value!r}")
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


def _seconds(value: float) -> float:
    """NaN if it is no finite number."""
    try:
        seconds = math.nan if isinstance(value, (str, bytes, bytearray)) else float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    return seconds if math.isfinite(seconds) else math.nan
