"""The module functions: each is the method of that name of the default client."""

import os
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from typing import Any, TypeVar, overload

from numpy.typing import DTypeLike

from tensorcx._arguments import Shape
from tensorcx._bundle import Bundle
from tensorcx._channel import ChannelEntry, Overflow, Queue, Topic
from tensorcx._client import Client, Entry
from tensorcx._safetensors import FilePath
from tensorcx._tensor import Tensor

_clients: dict[str, Client] = {}  # "default"; by socket, those that only unpickling needed

_F = TypeVar("_F", bound=Callable[..., Any])


def default_client() -> Client:
    """The client of the module functions; made when first needed."""
    try:
        return _clients["default"]
    except KeyError:
        # Of two threads both make one, the first wins; the other was never connected. A lock would
        # have to be repaired after fork.
        return _clients.setdefault("default", Client())


def client_at(socket: str) -> Client:
    """The client for what was pickled with this socket, an absolute path; starts no daemon."""
    default = default_client()
    if os.path.abspath(default.socket) == socket and not default._closed:
        return default
    return _clients.get(socket) or _clients.setdefault(socket, Client(socket, autostart=False))


def client_of(address: int, nbytes: int) -> Client | None:
    """The client, of those above, in whose daemon's memory all of these bytes lie; does not ask."""
    for client in tuple(_clients.values()):
        if client._is_shared(address, nbytes):
            return client
    return None


def connect(path: str | PathLike[str] | None = None, autostart: bool = True) -> Client:
    """Connects to a daemon now and makes it the one of the module functions.

    `path` is its socket; None means $TENSORCX_SOCKET or the user's own place. With `autostart` a
    daemon is started if none answers. Not needed otherwise: the first call that needs it connects.
    """
    client = Client(path, autostart)
    client.connect()
    _clients["default"] = client
    return client


def _as(method: Callable[..., Any]) -> Callable[[_F], _F]:
    """The documentation is the method's."""

    def apply(function: _F) -> _F:
        function.__doc__ = method.__doc__
        return function

    return apply


@_as(Client.empty)
def empty(shape: Shape, dtype: DTypeLike = float, *, device: str | None = None) -> Tensor:
    return default_client().empty(shape, dtype, device=device)


@_as(Client.zeros)
def zeros(shape: Shape, dtype: DTypeLike = float, *, device: str | None = None) -> Tensor:
    return default_client().zeros(shape, dtype, device=device)


@_as(Client.full)
def full(
    shape: Shape, fill_value: Any, dtype: DTypeLike | None = None, *, device: str | None = None
) -> Tensor:
    return default_client().full(shape, fill_value, dtype, device=device)


@_as(Client.empty_like)
def empty_like(x: Any, dtype: DTypeLike | None = None, *, device: str | None = None) -> Tensor:
    return default_client().empty_like(x, dtype, device=device)


@_as(Client.asarray)
def asarray(
    x: Any,
    dtype: DTypeLike | None = None,
    copy: bool | None = None,
    *,
    device: str | None = None,
    stream: int | None = None,
) -> Tensor:
    return default_client().asarray(x, dtype, copy, device=device, stream=stream)


@_as(Client.from_dlpack)
def from_dlpack(x: Any, /, *, device: str | None = None, copy: bool | None = None) -> Tensor:
    return default_client().from_dlpack(x, device=device, copy=copy)


@overload
def put(
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
@_as(Client.put)
def put(
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
    made: Tensor | Bundle = default_client().put(
        name,
        value,
        readonly=readonly,
        ttl=ttl,
        ephemeral=ephemeral,
        exclusive=exclusive,
        copy=copy,
        device=device,
        stream=stream,
    )
    return made


@_as(Client.put_safetensors)
def put_safetensors(
    name: str,
    path: FilePath,
    *,
    skip: str | Iterable[str] = (),
    readonly: bool = False,
    ttl: float | None = None,
    ephemeral: bool = False,
    device: str | None = None,
) -> Bundle:
    return default_client().put_safetensors(
        name, path, skip=skip, readonly=readonly, ttl=ttl, ephemeral=ephemeral, device=device
    )


@_as(Client.save_safetensors)
def save_safetensors(name: str, path: FilePath) -> None:
    default_client().save_safetensors(name, path)


@_as(Client.get)
def get(
    name: str,
    *,
    timeout: float | None = 0,
    newer_than: int | None = None,
    readonly: bool = False,
) -> Any:
    return default_client().get(name, timeout=timeout, newer_than=newer_than, readonly=readonly)


@_as(Client.delete)
def delete(name: str) -> None:
    default_client().delete(name)


@_as(Client.exists)
def exists(name: str) -> bool:
    return default_client().exists(name)


@_as(Client.names)
def names(prefix: str = "") -> list[str]:
    return default_client().names(prefix)


@_as(Client.entries)
def entries(prefix: str = "") -> list[Entry]:
    return default_client().entries(prefix)


@_as(Client.stat)
def stat(name: str) -> Entry:
    return default_client().stat(name)


@_as(Client.queue)
def queue(
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
    return default_client().queue(
        name,
        capacity,
        nbytes=nbytes,
        like=like,
        buffers=buffers,
        participants=participants,
        overflow=overflow,
        device=device,
    )


@_as(Client.topic)
def topic(
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
    return default_client().topic(
        name,
        capacity,
        nbytes=nbytes,
        like=like,
        buffers=buffers,
        participants=participants,
        overflow=overflow,
        device=device,
    )


@_as(Client.channels)
def channels() -> list[ChannelEntry]:
    return default_client().channels()


@_as(Client.is_shared)
def is_shared(x: Any) -> bool:
    return default_client().is_shared(x)


@_as(Client.stats)
def stats() -> dict[str, Any]:
    return default_client().stats()


@_as(Client.devices)
def devices() -> list[dict[str, Any]]:
    return default_client().devices()


@_as(Client.clients)
def clients() -> list[dict[str, Any]]:
    return default_client().clients()


@_as(Client.stop)
def stop() -> None:
    default_client().stop()
