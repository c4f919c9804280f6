"""The module functions: each is the method of that name of the default client."""

import inspect
import os
from collections.abc import Callable
from os import PathLike
from typing import Concatenate, ParamSpec, TypeVar

from tensorcx._client import Client

_clients: dict[str, Client] = {}  # "default"; by socket, those that only unpickling needed

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


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
    if os.path.abspath(default.socket) == socket and not default.closed:
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
    daemon is started if none answers. DaemonUnavailable if there is none then. Not needed
    otherwise: the first call that needs it connects.
    """
    client = Client(path, autostart)
    client.connect()
    _clients["default"] = client
    return client


def _of_default(
    method: Callable[Concatenate[Client, _Arguments], _Result],
) -> Callable[_Arguments, _Result]:
    """The method as a function, of the default client."""

    def function(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        return method(default_client(), *args, **kwargs)

    function.__name__ = function.__qualname__ = method.__name__
    function.__doc__ = method.__doc__
    signature = inspect.signature(method)
    _, *parameters = signature.parameters.values()
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return function


asarray = _of_default(Client.asarray)
channels = _of_default(Client.channels)
clients = _of_default(Client.clients)
delete = _of_default(Client.delete)
devices = _of_default(Client.devices)
empty = _of_default(Client.empty)
empty_like = _of_default(Client.empty_like)
entries = _of_default(Client.entries)
exists = _of_default(Client.exists)
from_dlpack = _of_default(Client.from_dlpack)
full = _of_default(Client.full)
get = _of_default(Client.get)
is_shared = _of_default(Client.is_shared)
names = _of_default(Client.names)
put = _of_default(Client.put)
put_safetensors = _of_default(Client.put_safetensors)
queue = _of_default(Client.queue)
save_safetensors = _of_default(Client.save_safetensors)
stat = _of_default(Client.stat)
stats = _of_default(Client.stats)
stop = _of_default(Client.stop)
topic = _of_default(Client.topic)
zeros = _of_default(Client.zeros)
