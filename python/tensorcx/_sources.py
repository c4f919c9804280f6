"""What put(), asarray() and assignment take: what shows memory, or NumPy makes an array of."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tensorcx import _core
from tensorcx._dtypes import DTYPES, format_of
from tensorcx._errors import ExchangeError

Array = np.ndarray[Any, np.dtype[Any]]
Source = _core.Tensor | Array
Path = tuple[str, ...]

_CPU, _CUDA_HOST = 1, 3  # DLPack device types whose memory NumPy can read
_DEPTH_MAX = 64
_DTYPES = frozenset(DTYPES.values())


def address_of(array: Array) -> int:
    """Where its first element is. Needs no import, so it works while the interpreter ends."""
    return int(array.__array_interface__["data"][0])


def bounds_of(array: Array) -> tuple[int, int]:
    """The lowest address of its elements, and the number of bytes up to the end of the highest."""
    if array.size == 0:
        return address_of(array), 0
    reaches = [(n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)]
    low = sum(reach for reach in reaches if reach < 0)
    high = sum(reach for reach in reaches if reach > 0)
    return address_of(array) + low, high - low + array.itemsize


def view_of(value: object) -> Array | None:
    """An array on the memory that `value` shows, without a copy; None: it shows none."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, np.generic):
        return None  # some show bytes instead of what they are
    if hasattr(value, "__dlpack__"):
        return _view_by_dlpack(value)
    return _view_by_buffer(value)


def _view_by_buffer(value: Any) -> Array | None:
    try:
        return np.asarray(memoryview(value))
    except (TypeError, ValueError, BufferError):
        return None


def _view_by_dlpack(value: Any) -> Array:
    device = value.__dlpack_device__()
    if not isinstance(device, tuple) or len(device) != 2:
        raise TypeError(f"{_describe(value)}.__dlpack_device__() must return a pair, not {device}")
    if device[0] not in (_CPU, _CUDA_HOST):
        raise ExchangeError(
            f"{_describe(value)} lies on device {device}; only CPU memory can be shared"
        )
    try:
        return np.from_dlpack(value)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        view = _view_by_buffer(value)
        if view is None:
            raise ExchangeError(f"{_describe(value)} cannot be shared: {error}") from error
        return view


def _describe(value: object) -> str:
    module = "" if type(value).__module__ == "builtins" else f"{type(value).__module__}."
    kind = f"{module}{type(value).__qualname__}"
    dtype = getattr(value, "dtype", None)
    return kind if dtype is None else f"{kind} of dtype {dtype}"


def as_array(value: object) -> Array:
    """`value` as an array: on its own memory if it shows some, else what NumPy makes of it."""
    # Importing numpy.ma takes milliseconds of the first put, and without it nothing is masked.
    if isinstance(value, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ())):
        raise ExchangeError("a masked array would lose its mask: pass x.filled(...) or x.data")
    view = view_of(value)
    array = np.asarray(value) if view is None else view
    if array.dtype == object:
        raise ExchangeError(
            f"{_describe(value)} is no array of numbers or bools: its dtype is object"
        )
    return array


def source_of(value: object) -> Source:
    """What the C half reads: a Tensor, or an array of a dtype that shared memory knows."""
    if isinstance(value, _core.Tensor):
        return value
    if isinstance(value, Mapping):
        raise TypeError("a mapping is no array; put() makes a bundle of it")
    array = as_array(value)
    format_of(array.dtype)
    return array


def message_of(value: Any) -> "Source | list[tuple[Path, Source | None]]":
    """The same; of a mapping, a list of its items."""
    if type(value) is np.ndarray and value.dtype in _DTYPES:
        return value
    return list(items_of(value)) if isinstance(value, Mapping) else source_of(value)


def items_of(mapping: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, Source | None]]:
    """The leaves of a tree of mappings, with paths; an empty mapping below the top is a leaf."""
    if len(path) >= _DEPTH_MAX:
        raise ValueError(f"mappings nested more than {_DEPTH_MAX} deep: {'/'.join(path[:3])}/...")
    if path and not mapping:
        yield path, None
    for key, value in mapping.items():
        if not isinstance(key, str):
            where = f"in {'/'.join(path)!r}" if path else "of a bundle"
            raise TypeError(f"keys {where} must be str, not {type(key).__name__}")
        below = (*path, key)
        if isinstance(value, Mapping):
            yield from items_of(value, below)
        else:
            yield below, _named_source_of(value, below)


def _named_source_of(value: object, path: Path) -> Source:
    try:
        return source_of(value)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise ExchangeError(f"{'/'.join(path)!r}: {error}") from error
