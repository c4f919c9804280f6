"""Client: everything that asks one daemon. The module functions use a default one."""

import math
import operator
from collections.abc import Iterable, Mapping
from typing import Any, Self, SupportsIndex, TypedDict, cast, overload

import numpy as np
from numpy.typing import DTypeLike

from tensorcx import _core
from tensorcx._bundle import Bundle
from tensorcx._dtypes import DTYPES, EXCHANGED, format_of
from tensorcx._errors import ExchangeError, NotFound
from tensorcx._sources import items_of, source_of, view_of
from tensorcx._tensor import Tensor

Shape = SupportsIndex | Iterable[SupportsIndex]

_DLPACK_VERSION = (1, 3)


class Entry(TypedDict):
    """A name, as stat() and entries() tell it."""

    name: str
    version: int
    is_bundle: bool
    dtype: np.dtype[Any] | None  # None: a bundle
    shape: tuple[int, ...] | None
    nbytes: int  # of the storage
    storage_id: int
    readonly: bool
    ephemeral: bool
    age: float  # seconds since this version was put
    ttl: float | None  # seconds left; None: no limit
    holders: int  # clients that use the storage
    publisher: int  # process id


class Client(_core.Client):
    """One daemon, as this process sees it; connects when a call first needs it.

    `path` is the daemon's socket; None means $TENSORCX_SOCKET or the user's own place. With
    `autostart` a daemon is started if none answers.
    """

    __slots__ = ("__weakref__",)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --------------------------------------------------------------------------------- new tensors

    def empty(self, shape: Shape, dtype: DTypeLike = float) -> Tensor:
        """A new tensor in shared memory; it may show old bytes of the same user."""
        return self._empty(_shape(shape), format_of(dtype), False)

    def zeros(self, shape: Shape, dtype: DTypeLike = float) -> Tensor:
        """A new tensor in shared memory, all zero."""
        return self._empty(_shape(shape), format_of(dtype), True)

    def full(self, shape: Shape, fill_value: Any, dtype: DTypeLike | None = None) -> Tensor:
        """A new tensor in shared memory, filled; the dtype is the value's, unless given."""
        tensor = self.empty(shape, np.asarray(fill_value).dtype if dtype is None else dtype)
        tensor[...] = fill_value
        return tensor

    def empty_like(self, x: Any, dtype: DTypeLike | None = None) -> Tensor:
        """A new tensor in shared memory with the shape and, unless given, the dtype of `x`."""
        source = source_of(x)
        return self._empty(source.shape, format_of(source.dtype if dtype is None else dtype), False)

    def asarray(self, x: Any, dtype: DTypeLike | None = None, copy: bool | None = None) -> Tensor:
        """`x` as a tensor in shared memory.

        Shared memory that is contiguous is not copied, everything else is. `copy=True` always
        copies, `copy=False` raises ExchangeError instead. Takes tensors, everything with DLPack or
        the buffer protocol, scalars and lists.
        """
        source = source_of(x)
        if dtype is not None and np.dtype(dtype) != source.dtype:
            if copy is False:
                raise ExchangeError(f"{source.dtype} to {np.dtype(dtype)} needs a copy")
            format_of(dtype)
            source = np.asarray(source, dtype)
        return self._put(None, source, _copy_flag(copy), 0.0)

    def from_dlpack(
        self, x: Any, /, *, device: str | None = None, copy: bool | None = None
    ) -> Tensor:
        """`x` as a tensor, by the exchange contract (docs/exchange.md).

        CPU; float32, int32, bool; C-contiguous. Shares the memory of `x`, and keeps it alive; with
        `copy=True` makes a copy in shared memory. What is refused here, asarray() and put() take.
        """
        if device not in (None, "cpu"):
            raise ExchangeError(f"device {device!r}: there is only 'cpu'")
        x.__dlpack_device__()  # an object without it is no producer; the capsule tells the device
        try:
            capsule = _request_capsule(x)
        except BufferError:
            source = _exchanged_view(x) if copy else None
            if source is None:
                raise
            return self._put(None, source, _core.PUT_COPY, 0.0)
        return self._from_capsule(capsule, _COPY_MODES[None if copy is None else bool(copy)])

    # --------------------------------------------------------------------------------------- names

    @overload
    def put(
        self,
        name: str,
        value: Mapping[str, Any],
        *,
        readonly: bool = ...,
        ttl: float | None = ...,
        ephemeral: bool = ...,
        exclusive: bool = ...,
        copy: bool | None = ...,
    ) -> Bundle: ...
    @overload
    def put(
        self,
        name: str,
        value: Any,
        *,
        readonly: bool = ...,
        ttl: float | None = ...,
        ephemeral: bool = ...,
        exclusive: bool = ...,
        copy: bool | None = ...,
    ) -> Tensor: ...
    def put(
        self,
        name: str,
        value: Any,
        *,
        readonly: bool = False,
        ttl: float | None = None,
        ephemeral: bool = False,
        exclusive: bool = False,
        copy: bool | None = None,
    ) -> Tensor | Bundle:
        """Publishes `value` under `name`, replacing what is there; readers keep what they have.

        A mapping becomes a bundle. Shared memory that is contiguous is published as it is (later
        writes show); everything else is copied. `copy=True` takes a snapshot, `copy=False` raises
        ExchangeError where a copy would be needed. `readonly`: nobody may write any more. `ttl`:
        seconds until the name goes. `ephemeral`: the name goes when this process is gone.
        `exclusive`: Exists, if the name does.
        """
        if not isinstance(name, str):
            raise TypeError(f"a name must be a str, not {name!r}")
        flags = _copy_flag(copy)
        if readonly:
            flags |= _core.PUT_READONLY
        if ephemeral:
            flags |= _core.PUT_EPHEMERAL
        if exclusive:
            flags |= _core.PUT_EXCLUSIVE
        seconds = 0.0 if ttl is None else _seconds(ttl, "ttl")
        if isinstance(value, Mapping):
            return self._put_bundle(name, list(items_of(value)), flags, seconds)
        return self._put(name, source_of(value), flags, seconds)

    def _bundle(self, value: Mapping[str, Any]) -> Bundle:
        """A bundle without a name, copied."""
        return self._put_bundle(None, list(items_of(value)), _core.PUT_COPY, 0.0)

    def get(
        self, name: str, *, timeout: float | None = 0, newer_than: int = 0, readonly: bool = False
    ) -> Tensor | Bundle:
        """What is published under `name`; the same memory, not a copy.

        NotFound at once if there is nothing; `timeout` waits so many seconds for it (None: without
        limit) and raises Timeout. `newer_than=version` wants a later version than that one.
        `readonly`: this handle does not want to write.
        """
        wait = -1.0 if timeout is None else 0.0 if timeout == 0 else _seconds(timeout, "timeout")
        return self._get(name, wait, newer_than, readonly)

    def exists(self, name: str) -> bool:
        """Whether there is something under this name."""
        try:
            self._stat(name)
        except NotFound:
            return False
        return True

    def names(self, prefix: str = "") -> list[str]:
        """All names that begin with `prefix`, sorted."""
        return self._list(prefix, True)

    def entries(self, prefix: str = "") -> list[Entry]:
        """As names(), with all that the daemon knows about each."""
        return list(map(_entry, self._list(prefix, False)))

    def stat(self, name: str) -> Entry:
        """What the daemon knows about this name."""
        return _entry(self._stat(name)[0])

    def is_shared(self, x: Any) -> bool:
        """Whether the memory of `x` lies in the daemon, all of it."""
        if isinstance(x, Tensor | Bundle):
            return x.is_shared
        try:
            view = view_of(x)
            return view is not None and self._is_shared(view)
        except ExchangeError:
            return False

    def __repr__(self) -> str:
        return f"Client({self.socket!r})"


def _shape(shape: Shape) -> tuple[int, ...]:
    try:
        if isinstance(shape, Iterable):
            return tuple(map(operator.index, shape))
        return (operator.index(shape),)
    except TypeError:
        raise TypeError(f"a shape is an int or a sequence of ints, not {shape!r}") from None


def _copy_flag(copy: bool | None) -> int:
    if copy is None:
        return 0
    return _core.PUT_COPY if copy else _core.PUT_NO_COPY


def _seconds(value: float, name: str) -> float:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be a positive number of seconds or None, not {value!r}")
    return float(value)


def _entry(found: dict[str, Any]) -> Entry:
    found["dtype"] = DTYPES.get(found.pop("format"))
    if found["ttl"] < 0:
        found["ttl"] = None
    return cast(Entry, found)


# ------------------------------------------------------------------------------------------- DLPack

_COPY_MODES: dict[bool | None, int] = {
    None: _core.COPY_IF_NEEDED,
    False: _core.COPY_NEVER,
    True: _core.COPY_ALWAYS,
}


def _request_capsule(producer: Any) -> Any:
    """A capsule of the newest version the producer has.

    It is not asked to copy: not every producer can, and not every one that does says so.
    """
    try:
        return producer.__dlpack__(max_version=_DLPACK_VERSION)
    except TypeError:  # older than versions, or an error inside, which then comes again
        return producer.__dlpack__()


def _exchanged_view(producer: Any) -> np.ndarray[Any, np.dtype[Any]] | None:
    """What a producer that exports no capsule shows as a buffer, if the contract takes it.

    NumPy before 2.1 does not export read-only arrays.
    """
    try:
        view = np.asarray(memoryview(producer))
    except (TypeError, ValueError, BufferError):
        return None
    fits = view.dtype in EXCHANGED and view.flags.c_contiguous and view.flags.aligned
    return view if fits else None
