"""Queues and topics: rings of messages between processes, with buffers of their own."""

import os
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self, TypedDict, cast

from tensorcx import _core
from tensorcx._arguments import count_of
from tensorcx._errors import ChannelClosed
from tensorcx._sources import NO_STREAM, Path, Source, items_of, layout_of, source_of

Overflow = Literal["block", "drop_oldest"]


class Holder(TypedDict):
    """Who uses buffers of a channel, or has messages yet to receive."""

    client: int  # its id in clients()
    pid: int  # 0: not known
    program: str
    buffers: int  # loaned or received
    behind: int  # a subscription's messages


class Seat(TypedDict):
    """Who has a handle of a channel."""

    client: int  # its id in clients()
    pid: int  # 0: it is gone
    program: str
    is_open: bool  # False: the handle is closed, what it has received is not
    buffers: int  # loaned or received
    behind: int  # a subscription's messages


class ChannelEntry(TypedDict):
    """A queue or topic, as channels() tells it."""

    name: str  # "": it was deleted
    kind: Literal["queue", "topic"]
    overflow: Overflow
    capacity: int
    buffers: int
    participants: int
    buffer_bytes: int
    device: str  # of the buffers; "cuda:?": one that this process does not see
    messages: int
    depth: int
    is_shut_down: bool
    handles: list[Seat]


class ChannelStats(TypedDict):
    """What stats() of a queue or topic tells."""

    capacity: int  # messages that wait to be received
    buffers: int
    participants: int  # handles at a time
    buffer_bytes: int  # of one buffer; 0: no message has needed one yet
    bytes: int  # of all buffers
    device: str  # where these are
    messages: int  # sent since the channel was made
    depth: int  # of these, not yet received, by the slowest
    handles: int  # that are open
    readers: int  # subscriptions; any handle of a queue may receive
    missed: int  # dropped or skipped before messages that this handle received
    is_shut_down: bool
    holders: list[Holder]


class _Handle(_core.Channel):
    """One participant of a channel."""

    __slots__ = ()

    @property
    def capacity(self) -> int:
        """How many messages may wait to be received."""
        return int(self._info()["capacity"])

    def stats(self) -> ChannelStats:
        """What goes through the channel, and who holds how many of its buffers. Asks the daemon."""
        info: dict[str, Any] = self._info()
        del info["flags"]
        info["holders"] = self._holders()
        return cast(ChannelStats, info)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        closed = ", closed" if self.closed else ""
        return f"{type(self).__name__}({self.name!r}{closed})"


class _Sender(_Handle, _core.Sender):
    __slots__ = ()

    def shutdown(self) -> None:
        """Ends the channel for everybody.

        Nothing is sent any more; receivers get what is left, then iteration ends and recv() raises
        ChannelClosed.
        """
        self._shutdown()

    def __reduce__(self) -> tuple[Any, ...]:
        """Whoever unpickles it joins by name, with a handle of its own."""
        if self.closed:
            raise ChannelClosed(f"{self!r} cannot be pickled")
        info = self._info()
        settings = map(info.get, ("flags", "capacity", "buffers", "participants", "buffer_bytes"))
        socket = os.path.abspath(self._client.socket)
        device = info["device"] if info["buffer_bytes"] else None  # not said yet
        return _join, (type(self), socket, self.name, *settings, device)


class _Receiver(_Handle, _core.Receiver):
    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        """Messages as they come, until the channel is shut down and nothing is left."""
        try:
            while True:
                yield self.recv()
        except ChannelClosed:
            if not self._info()["is_shut_down"]:  # a handle that is closed is no quiet end
                raise


class Queue(_Sender, _Receiver):
    """A handle of a queue: each message goes to one receiver, first in, first out.

    Opened by queue(). Any handle sends and receives, any thread may use it. The queue lives while
    it has a handle, or a message that nobody has received. `close()`, or leaving a `with` block,
    ends this handle only; `shutdown()` ends the queue. Pickled, for another process, it joins there
    by name; the child of a fork joins anew when it first uses it.
    """

    __slots__ = ("__weakref__",)


class Topic(_Sender):
    """A handle of a topic: each message goes to all who have subscribed by then.

    Opened by topic(), sends; subscribe() receives. Any thread may use it. The topic lives while it
    has a handle or a subscription. `close()`, or leaving a `with` block, ends this handle only;
    `shutdown()` ends the topic. Pickled, for another process, it joins there by name; the child of
    a fork joins anew when it first uses it.
    """

    __slots__ = ("__weakref__",)

    def subscribe(self, *, latest: bool = False) -> "Subscription":
        """Receives every message from the next one on; with `latest` the newest at each recv().

        `latest` begins with the last message that was sent, and is for topics that drop the
        oldest. A subscription is a participant of its own, and outlives this handle.
        """
        return self._subscribe(Subscription, bool(latest))


class Subscription(_Receiver):
    """A handle that receives a topic's messages; `subscribe()` makes it.

    Any thread may use it. In the child of a fork it is closed: subscribe there.
    """

    __slots__ = ("__weakref__",)

    @property
    def missed(self) -> int:
        """Messages dropped or skipped before those that were received."""
        return int(self._info()["missed"])

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a subscription is not pickled: pass the topic, and subscribe there")


# ----------------------------------------------------------------------------------------- settings


def flags_of(kind: type[Queue] | type[Topic], overflow: Overflow) -> int:
    if overflow not in ("block", "drop_oldest"):
        raise ValueError(f"overflow must be 'block' or 'drop_oldest', not {overflow!r}")
    drops = _core.CHANNEL_DROP_OLDEST if overflow == "drop_oldest" else 0
    return drops | (_core.CHANNEL_TOPIC if kind is Topic else 0)


def counts_of(
    capacity: int | None, buffers: int | None, participants: int | None
) -> tuple[int, int, int]:
    """0: not said."""
    return (
        count_of(capacity, "capacity"),
        count_of(buffers, "buffers"),
        count_of(participants, "participants"),
    )


def buffer_of(nbytes: int | None, like: Any, device: str | None) -> tuple[int, str | None]:
    """Size and device of buffers for messages `like` this one; 0 and None: not said."""
    if like is None:
        return count_of(nbytes, "nbytes", most=(1 << 63) - 1), device
    if nbytes is not None:
        raise ValueError("nbytes= and like= both say how large a buffer is: pass one")
    if not isinstance(like, Mapping):
        layout = layout_of(source_of(like, NO_STREAM))
        return max(1, layout.nbytes), device or layout.device
    items = items_of(like, stream=NO_STREAM)
    return 16 + sum(_item_nbytes(path, source) for path, source in items), device


def _item_nbytes(path: Path, source: Source | None) -> int:
    """Of one item in a bundle: elements, aligned to 64, and its place in the index."""
    keys = sum(len(key.encode()) + 3 for key in path)
    if source is None:
        return 16 + keys + -keys % 8
    layout = layout_of(source)
    return (layout.nbytes + 63) // 64 * 64 + 40 + 16 * layout.ndim + keys + -keys % 8


def entry_of(found: dict[str, Any], clients: dict[int, dict[str, Any]]) -> ChannelEntry:
    """An entry of _core, with the names of those who have handles. Takes `found`."""
    flags, seats = found.pop("flags"), found.pop("seated")
    found["kind"] = "topic" if flags & _core.CHANNEL_TOPIC else "queue"
    found["overflow"] = "drop_oldest" if flags & _core.CHANNEL_DROP_OLDEST else "block"
    gone = {"pid": 0, "program": ""}
    for seat in seats:
        client = clients.get(seat["client"], gone)
        seat |= {"pid": client["pid"], "program": client["program"]}
    found["handles"] = seats
    return cast(ChannelEntry, found)


def _join(kind: Any, socket: str, *settings: Any) -> Any:
    """Unpickles; starts no daemon."""
    from tensorcx._default import client_at

    return client_at(socket)._channel(kind, *settings)
