"""What put(), asarray() and assignment take: what shows memory, or NumPy makes an array of."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, NewType

import numpy as np

from tensorcx import _core
from tensorcx._dtypes import DTYPES, EXCHANGED, format_of
from tensorcx._errors import ExchangeError

Array = np.ndarray[Any, np.dtype[Any]]
Capsule = NewType("Capsule", object)  # DLPack's
Source = _core.Tensor | Array | Capsule  # a capsule: of elements on a CUDA device
Path = tuple[str, ...]

_CPU, _CUDA, _CUDA_HOST = 1, 2, 3  # DLPack device types; NumPy can read the first and the last
_LEGACY_STREAM, NO_STREAM = 1, -1  # as DLPack numbers them
_DLPACK_VERSION = (1, 3)
_DEPTH_MAX = 64
_DTYPES = frozenset(DTYPES.values())


def address_of(array: Array) -> int:
    """Where its first element is. Needs no import, so it works while the interpreter ends."""
    return int(array.__array_interface__["data"][0])


def bounds_of(value: object) -> tuple[int, int] | None:
    """The lowest address of its elements, and the number of bytes up to the end of the highest.

    None: it shows no memory.
    """
    if is_on_cuda(value):
        layout = layout_of(source_of(value, NO_STREAM))
        return layout.address, layout.nbytes
    array = view_of(value)
    if array is None:
        return None
    if array.size == 0:
        return address_of(array), 0
    reaches = [(n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)]
    low = sum(reach for reach in reaches if reach < 0)
    high = sum(reach for reach in reaches if reach > 0)
    return address_of(array) + low, high - low + array.itemsize


class Layout(NamedTuple):
    """What elements look like, and where they lie."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    device: str
    address: int
    nbytes: int

    @property
    def ndim(self) -> int:
        return len(self.shape)


def layout_of(source: Source) -> Layout:
    shape, format, device, address, nbytes = _core.describe(source)
    return Layout(shape, DTYPES[format], device, address, nbytes)


def view_of(value: object) -> Array | None:
    """An array on the memory that `value` shows, without a copy; None: it shows none."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, np.generic):
        return None  # some show bytes instead of what they are
    if hasattr(value, "__dlpack__"):
        return _view_by_dlpack(value)
    return _view_by_buffer(value)


def array_on(value: Any) -> Array:
    """An array on the memory that `value` shows as a buffer."""
    try:
        array: Array | None = np.asarray(memoryview(value))
    except NotImplementedError:
        array = None
    if array is None or array.base is None:  # short of memory, NumPy reads element by element
        raise MemoryError("no memory for an array on a buffer")
    return array


def _view_by_buffer(value: Any) -> Array | None:
    try:
        return array_on(value)
    except (TypeError, ValueError, BufferError):
        return None


def exchanged_view_of(producer: Any) -> Array | None:
    """What a producer that exports no capsule shows as a buffer, if the contract takes it.

    NumPy before 2.1 does not export read-only arrays.
    """
    view = _view_by_buffer(producer)
    if view is None or view.dtype not in EXCHANGED:
        return None
    return view if view.flags.c_contiguous and view.flags.aligned else None


def _view_by_dlpack(value: Any) -> Array:
    device = device_of(value)
    if device[0] not in (_CPU, _CUDA_HOST):
        raise ExchangeError(f"{_describe(value)} lies on device {device}, out of the CPU's reach")
    try:
        return np.from_dlpack(value)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        view = _view_by_buffer(value)
        if view is None:
            raise ExchangeError(f"{_describe(value)} cannot be shared: {error}") from error
        return view


def device_of(producer: Any) -> tuple[int, int]:
    """Where a DLPack producer's elements are: type and number, as DLPack has them."""
    device = producer.__dlpack_device__()
    if not isinstance(device, tuple) or len(device) != 2:
        kind = _describe(producer)
        raise TypeError(f"{kind}.__dlpack_device__() must return a pair, not {device}")
    return int(device[0]), int(device[1])


def is_on_cuda(value: object) -> bool:
    """Whether `value`, no tensor of ours, is one of another framework on a CUDA device."""
    if isinstance(value, np.ndarray | np.generic) or not hasattr(value, "__dlpack__"):
        return False
    return device_of(value)[0] == _CUDA


def capsule_of(producer: Any, stream: int | None = None) -> tuple[Capsule, int | None]:
    """A capsule of the newest version the producer has, and the stream on which to wait for it.

    It is not asked to copy: not every producer can, and not every one that does says so. On a CUDA
    device it is asked to order its work before `stream`, the legacy default one unless given; the
    stream that comes back is None if the producer knows no streams: wait for all work.
    """
    kind, ordinal = device_of(producer)
    if kind != _CUDA:
        return _request(producer.__dlpack__, {"max_version": _DLPACK_VERSION}, {})[0], None
    on = {"stream": _LEGACY_STREAM if stream is None else stream}
    capsule, said = _core.on_device(  # some look at which device is the current one
        ordinal, _request, producer.__dlpack__, on | {"max_version": _DLPACK_VERSION}, on, {}
    )
    return capsule, said.get("stream")


def _request(export: Any, *ways: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Older producers do not know all keywords: the first way to ask that one takes."""
    for keywords in ways[:-1]:
        try:
            return export(**keywords), keywords
        except TypeError:  # or an error inside, which then comes again
            pass
    return export(**ways[-1]), ways[-1]


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


def source_of(value: object, stream: int | None = None) -> Source:
    """What the C half reads: a Tensor, or an array of a dtype that shared memory knows.

    `stream`: on which a CUDA producer's elements are being written.
    """
    if isinstance(value, _core.Tensor):
        return value
    if isinstance(value, Mapping):
        raise TypeError("a mapping is no array; put() makes a bundle of it")
    try:
        array = as_array(value)
    except ExchangeError:
        if is_on_cuda(value):
            return capsule_of(value, stream)[0]
        raise
    format_of(array.dtype)
    return array


def message_of(
    value: Any, stream: int | None = None
) -> "Source | list[tuple[Path, Source | None]]":
    """The same; of a mapping, a list of its items."""
    if type(value) is np.ndarray and value.dtype in _DTYPES:
        return value
    if not isinstance(value, Mapping):
        return source_of(value, stream)
    items: list[tuple[Path, Source | None]] = []
    try:
        items.extend(items_of(value, stream=stream))
    except BaseException:
        items.clear()  # while no exception is on its way: destructors of capsules may be Python
        raise
    return items


def items_of(
    mapping: Mapping[str, Any], path: Path = (), stream: int | None = None
) -> Iterator[tuple[Path, Source | None]]:
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
            yield from items_of(value, below, stream)
        else:
            yield below, _named_source_of(value, below, stream)


def _named_source_of(value: object, path: Path, stream: int | None) -> Source:
    try:
        return source_of(value, stream)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise ExchangeError(f"{'/'.join(path)!r}: {error}") from error
