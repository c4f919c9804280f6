"""References on their way to another process: a pickle carries a ticket instead of the bytes."""

import copy
import os
from typing import TYPE_CHECKING, Any

from tensorcx._errors import DaemonLost

if TYPE_CHECKING:
    from tensorcx._bundle import Bundle
    from tensorcx._tensor import Tensor


class Ref:
    """Carries a tensor or bundle by reference with any pickler; unpickles to the tensor itself.

    Made by `t.ref()`; keeps the memory alive. Each pickling asks the daemon for a ticket, which
    keeps the memory alive until it is unpickled once; unpickling again gives the same memory as
    long as anything else keeps it, and `Stale` after that. A ticket that nobody unpickles ends
    after its lease (docs/lifetime.md).
    """

    __slots__ = ("_target",)

    def __init__(self, target: "Tensor | Bundle") -> None:
        self._target = copy.copy(target)

    def __reduce__(self) -> tuple[Any, ...]:
        return by_reference(self._target)

    def __copy__(self) -> "Ref":
        return self

    def __deepcopy__(self, memo: Any) -> "Ref":
        return self

    def __repr__(self) -> str:
        return f"Ref({self._target!r})"


def by_reference(x: "Tensor | Bundle") -> tuple[Any, ...]:
    """A reducer, as pickle knows them. Asks the daemon for a ticket."""
    keys = getattr(x, "_path", ())  # of a part of a bundle: the whole travels
    socket = os.path.abspath(x._client.socket)
    return redeem, (_ticket(x, socket), socket, *keys)


def _ticket(x: "Tensor | Bundle", socket: str) -> bytes:
    """Where multiprocessing pickles in a thread, an error would lose the message unseen."""
    from tensorcx._default import client_at

    client = client_at(socket) if x._client.closed else x._client
    try:
        return client._ticket(x)
    except DaemonLost:  # told once; the next daemon gets a copy
        return client._ticket(x)


def redeem(ticket: bytes, socket: str, *keys: str) -> Any:
    """Unpickles: the tensor or bundle that the daemon at `socket` keeps; starts no daemon."""
    from tensorcx._default import client_at

    found: Any = client_at(socket)._redeem(ticket)
    for key in keys:
        found = found[key]
    return found
