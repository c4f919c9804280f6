"""What callers say besides arrays, checked: shapes, numbers, modes."""

import math
import operator
from collections.abc import Iterable, Sequence
from typing import SupportsIndex

import numpy as np

from tensorcx import _core

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


def copy_flag_of(copy: bool | None) -> int:
    """As _core.PUT_COPY and PUT_NO_COPY; 0: where it is needed."""
    if copy is None:
        return 0
    if not isinstance(copy, bool | np.bool_):
        raise TypeError(f"copy must be True, False or None, not {copy!r}")
    return _core.PUT_COPY if copy else _core.PUT_NO_COPY


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


def version_of(value: int | None) -> int:
    """0: any."""
    try:
        version = 0 if value is None else operator.index(value)
    except TypeError:
        version = -1
    if not 0 <= version < 1 << 64:
        raise ValueError(f"newer_than must be a version (an int) or None, not {value!r}")
    return version


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
