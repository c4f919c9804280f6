"""Client: everything that asks one daemon. The module functions use a default one."""

from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any, Self, TypedDict, cast, overload

import numpy as np
from numpy.typing import DTypeLike

from tensorcx import _core, _safetensors
from tensorcx._arguments import Shape, copy_flag_of, device_text, shape_of, ttl_of, version_of
from tensorcx._bundle import Bundle
from tensorcx._channel import (
    ChannelEntry,
    Overflow,
    Queue,
    Topic,
    buffer_of,
    counts_of,
    entry_of,
    flags_of,
)
from tensorcx._dtypes import DTYPES, format_of
from tensorcx._errors import ExchangeError, NotFound
from tensorcx._sources import (
    NO_STREAM,
    as_array,
    bounds_of,
    capsule_of,
    device_of,
    exchanged_view_of,
    is_on_cuda,
    items_of,
    layout_of,
    message_of,
    source_of,
)
from tensorcx._tensor import Tensor


class Entry(TypedDict):
    """A name, as stat() and entries() tell it."""

    name: str
    version: int
    is_bundle: bool
    dtype: np.dtype[Any] | None  # None: a bundle
    shape: tuple[int, ...] | None
    device: str | None  # "cuda:?": one that this process does not see
    nbytes: int  # of its storage, and of those that a bundle refers to
    storage_id: int
    readonly: bool
    ephemeral: bool
    age: float  # seconds since this version was put
    ttl: float | None  # seconds left; None: no limit
    holders: int  # clients that use the storage
    publisher: int  # process id


class Client(_core.Client):
    """One daemon, as this process sees it; connects when a call first needs it.

    A process needs one client for a daemon; another one has a connection of its own, and knows the
    memory of the first. Any thread may use it at any time.

    `path` is the daemon's socket; None means $TENSORCX_SOCKET or the user's own place. With
    `autostart` a daemon is started if none answers.
    """

    __slots__ = ("__weakref__",)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --------------------------------------------------------------------------------- new tensors

    def empty(self, shape: Shape, dtype: DTypeLike = float, *, device: str | None = None) -> Tensor:
        """A new tensor in shared memory, in C order; it may show old bytes of the same user.

        `dtype`: bool, (u)int8 to 64, float16 to 64, complex64 and 128; ExchangeError for others.
        `device`: "cpu", the default, or a CUDA device as "cuda:0", by this process's numbers;
        DeviceError if it cannot be used. OutOfMemory says what is used up. The memory is free when
        nobody has a handle, a view or a name of it any more.
        """
        return self._empty(shape_of(shape), format_of(dtype), False, device)

    def zeros(self, shape: Shape, dtype: DTypeLike = float, *, device: str | None = None) -> Tensor:
        """A new tensor in shared memory, all zero; the rest as for empty()."""
        return self._empty(shape_of(shape), format_of(dtype), True, device)

    def full(
        self,
        shape: Shape,
        fill_value: Any,
        dtype: DTypeLike | None = None,
        *,
        device: str | None = None,
    ) -> Tensor:
        """A new tensor in shared memory, filled; the dtype is the value's, unless given.

        `fill_value`: a scalar, or what NumPy repeats to the shape. The rest as for empty().
        """
        kind = np.asarray(fill_value).dtype if dtype is None else dtype
        tensor = self.empty(shape, kind, device=device)
        tensor[...] = fill_value
        return tensor

    def empty_like(
        self, x: Any, dtype: DTypeLike | None = None, *, device: str | None = None
    ) -> Tensor:
        """A new tensor in shared memory with the shape and, unless given, dtype, device of `x`."""
        like: Any = x
        if is_on_cuda(x):
            like = layout_of(source_of(x, NO_STREAM))
        elif not isinstance(x, Tensor):
            like = as_array(x)
        kind = format_of(like.dtype if dtype is None else dtype)
        return self._empty(like.shape, kind, False, device or getattr(like, "device", None))

    def asarray(
        self,
        x: Any,
        dtype: DTypeLike | None = None,
        *,
        device: str | None = None,
        copy: bool | None = None,
        stream: int | None = None,
    ) -> Tensor:
        """`x` as a tensor in shared memory, on the device where it is, unless given.

        Shared memory that is contiguous is not copied, everything else is. `copy=True` always
        copies, `copy=False` raises ExchangeError instead. Takes tensors, everything with DLPack or
        the buffer protocol, scalars and lists. `stream` as for put().
        """
        if dtype is not None:
            array = x.numpy() if isinstance(x, Tensor) else as_array(x)
            if array.dtype != np.dtype(dtype):
                if copy is False:
                    raise ExchangeError(f"{array.dtype} to {np.dtype(dtype)} needs a copy")
                format_of(dtype)
                x = array.astype(dtype)
        return self._put(None, source_of(x, stream), copy_flag_of(copy), 0.0, device, stream)

    def from_dlpack(
        self, x: Any, /, *, device: str | None = None, copy: bool | None = None
    ) -> Tensor:
        """`x` as a tensor, by the exchange contract (docs/exchange.md).

        CPU and CUDA; float32, int32, bool; C-contiguous. Shares the memory of `x`, and keeps it
        alive; with `copy=True` makes a copy in shared memory. Of a tensor on a CUDA device all that
        its producer had ordered before is done when this returns. `device`: where the result shall
        be, "cpu" or "cuda:0"; elsewhere than `x` it is a copy. What is refused here, asarray() and
        put() take.
        """
        flag = copy_flag_of(copy)
        device_of(x)  # an object without a device is no producer; the capsule tells which it is
        try:
            capsule, stream = capsule_of(x)
        except BufferError:
            source = exchanged_view_of(x) if copy else None
            if source is None:
                raise
            return self._put(None, source, _core.PUT_COPY, 0.0, device, None)
        tensor = self._from_capsule(capsule, _COPY_MODES[flag], stream)
        if device is None or device_text(device) == tensor.device:
            return tensor
        if copy is False:
            raise ExchangeError(f"from {tensor.device} to {device} needs a copy")
        return tensor.to(device)

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
        device: str | None = ...,
        stream: int | None = ...,
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
        device: str | None = ...,
        stream: int | None = ...,
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
        device: str | None = None,
        stream: int | None = None,
    ) -> Tensor | Bundle:
        """Publishes `value` under `name`, replacing what is there; readers keep what they have.

        Returns a handle on what is published. `value`: whatever asarray() takes; a mapping becomes
        a bundle. Shared memory that is contiguous is published as it is (later writes show);
        everything else is copied. `copy=True` takes a snapshot, `copy=False` raises ExchangeError
        where a copy would be needed. `readonly`: whoever gets it by this name may not write;
        handles from before still may. `ttl`: seconds until the name goes. `ephemeral`: the name
        goes when this process is gone, or when this client is closed and the last tensor that came
        through it is gone. `exclusive`: Exists, if the name does. A name has 1 to 255 bytes of
        UTF-8 without control characters, else ValueError. OutOfMemory says what is used up.

        `device`: "cpu" or "cuda:0"; without it each tensor stays on the device where it is. What
        lies on a CUDA device is published when it has been written: this waits for `stream`, a
        number as in DLPack, or without it for all that this process does on the device.
        """
        if not isinstance(name, str):
            raise TypeError(f"a name must be a str, not {type(name).__name__}")
        flags = copy_flag_of(copy)
        if readonly:
            flags |= _core.PUT_READONLY
        if ephemeral:
            flags |= _core.PUT_EPHEMERAL
        if exclusive:
            flags |= _core.PUT_EXCLUSIVE
        seconds = 0.0 if ttl is None else ttl_of(ttl)
        message = message_of(value, stream)
        if isinstance(message, list):
            return self._put_bundle(name, message, flags, seconds, device, stream)
        return self._put(name, message, flags, seconds, device, stream)

    def put_safetensors(
        self,
        name: str,
        path: _safetensors.FilePath,
        *,
        skip: str | Iterable[str] = (),
        readonly: bool = False,
        ttl: float | None = None,
        ephemeral: bool = False,
        device: str | None = None,
    ) -> Bundle:
        """Publishes the tensors of a safetensors file as a bundle; the keys stay as they are.

        The bytes go from the file to shared memory, without a private copy, and with `device`
        ("cuda:0") from there to the device. `skip` leaves tensors
        out: their keys, or patterns as in "lm_head.*". A dtype that shared memory does not know
        (BF16, F8_E4M3, ...) is an ExchangeError that names the tensors, a damaged file a
        ValueError. The file's free-text metadata is dropped. Needs tensorcx[safetensors].
        """
        arrays = _safetensors.read(self, path, skip)
        return self.put(
            name, arrays, readonly=readonly, ttl=ttl, ephemeral=ephemeral, device=device
        )

    def save_safetensors(self, name: str, path: _safetensors.FilePath) -> None:
        """Writes what is published under `name` to a safetensors file, replacing it atomically.

        A file that is replaced keeps its mode.
        Keys of nested bundles are joined by "."; a single tensor gets the key "tensor". Tensors on
        the same memory are written twice: the format knows no sharing. Needs tensorcx[safetensors].
        """
        with self.get(name) as found:
            _safetensors.write(found, path)

    def _bundle(self, value: Mapping[str, Any]) -> Bundle:
        """A bundle without a name, copied."""
        return self._put_bundle(None, list(items_of(value)), _core.PUT_COPY, 0.0, None, None)

    def get(
        self,
        name: str,
        *,
        timeout: float | None = 0,
        newer_than: int | None = None,
        readonly: bool = False,
    ) -> Any:
        """What is published under `name`, a Tensor or a Bundle; the same memory, not a copy.

        Without `timeout`, or with 0, NotFound at once if there is nothing. `timeout=5` waits so
        many seconds for it and raises Timeout then; `timeout=None` waits for ever.
        `newer_than=version` wants a later version than that one. `readonly`: this handle does not
        want to write.
        """
        return self._get(name, timeout, version_of(newer_than), bool(readonly))

    def exists(self, name: str) -> bool:
        """Whether there is a tensor or bundle under this name.

        ValueError if it is the name of a queue or topic, as of get().
        """
        try:
            self._stat(name, True)
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
        """What the daemon knows about this name; NotFound if there is none."""
        return _entry(self._stat(name, False)[0])

    # ------------------------------------------------------------------------------------ channels

    def queue(
        self,
        name: str,
        capacity: int | None = None,
        *,
        nbytes: int | None = None,
        like: Any = None,
        buffers: int | None = None,
        participants: int | None = None,
        overflow: Overflow = "block",
        device: str | None = None,
    ) -> Queue:
        """Opens a queue, and makes it if there is none: each message goes to one receiver.

        All who open it by this name meet, in any order. What is not said is as the first one made
        it; what is said and differs is a ValueError that names both. `capacity`: messages that
        wait to be received, 1 to 512 (8). `nbytes` of a buffer, or `like` a message (else the first
        message decides; larger ones go by reference). `buffers`: with those that senders fill and
        receivers keep, at most 896 (capacity + 8). `participants`: handles at a time, at most 1,024
        (128). Full, senders wait, or with `overflow="drop_oldest"` the oldest message goes.
        `device` of the buffers, "cpu" or "cuda:0" (else that of `like`, or of the first message):
        what lies on another one goes by reference.
        Exists: the name is a tensor's.
        """
        counts = counts_of(capacity, buffers, participants)
        buffer = buffer_of(nbytes, like, device)
        return self._channel(Queue, name, flags_of(Queue, overflow), *counts, *buffer)

    def topic(
        self,
        name: str,
        capacity: int | None = None,
        *,
        nbytes: int | None = None,
        like: Any = None,
        buffers: int | None = None,
        participants: int | None = None,
        overflow: Overflow = "drop_oldest",
        device: str | None = None,
    ) -> Topic:
        """Opens a topic, and makes it if there is none: each message goes to all who subscribed.

        Settings as for queue(). Whoever is more than `capacity` messages behind misses some, and
        is told how many; with `overflow="block"` senders wait for the slowest instead.
        """
        counts = counts_of(capacity, buffers, participants)
        buffer = buffer_of(nbytes, like, device)
        return self._channel(Topic, name, flags_of(Topic, overflow), *counts, *buffer)

    def channels(self) -> list[ChannelEntry]:
        """All queues and topics of the daemon, sorted by name, and who has handles of them."""
        found = self._channels()
        clients = {peer["id"]: peer for peer in self.clients()}
        return sorted((entry_of(each, clients) for each in found), key=itemgetter("name"))

    # ----------------------------------------------------------------------------------- memory

    def is_shared(self, x: Any) -> bool:
        """Whether the memory of `x` lies in the daemon, all of it."""
        if isinstance(x, Tensor | Bundle):
            return x.is_shared
        try:
            bounds = bounds_of(x)
        except ExchangeError:
            return False
        return bounds is not None and self._is_shared(*bounds)

    def __repr__(self) -> str:
        return f"Client({self.socket!r})"


def _entry(found: dict[str, Any]) -> Entry:
    found["dtype"] = DTYPES.get(found.pop("format"))
    if found["ttl"] < 0:
        found["ttl"] = None
    return cast(Entry, found)


# ------------------------------------------------------------------------------------------- DLPack

_COPY_MODES = {
    0: _core.COPY_IF_NEEDED,
    _core.PUT_NO_COPY: _core.COPY_NEVER,
    _core.PUT_COPY: _core.COPY_ALWAYS,
}
