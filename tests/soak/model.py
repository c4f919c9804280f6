"""What must be alive: a model of the daemon that knows no sockets, processes, segments or rings.

The conductor tells it each change that a member has acknowledged. What a member was doing when it
died may have happened or not: that is kept in `maybe` until the next inspection, which settles it
by looking.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import payload


@dataclass(eq=False)
class Cell:
    """One array in memory: whoever sees it sees this number."""

    number: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(eq=False)
class Storage:
    id: int  # 0: not known yet
    nbytes: int
    on_device: bool = False
    is_buffers: bool = False  # of a channel
    refers: "frozenset[Storage]" = frozenset()


@dataclass(eq=False)
class Leaf:
    path: tuple[str, ...]
    cell: Cell
    first: int = 0  # of its bytes, in those of the cell
    shape: tuple[int, ...] | None = None  # None: that of the cell
    storage: Storage | None = None  # None: private to a channel

    def shown(self):
        """As payload.seen()."""
        window = payload.window_of(self.cell.number) + self.first // payload.STEP
        shape = self.cell.shape if self.shape is None else self.shape
        return window, self.cell.dtype, shape


@dataclass(eq=False)
class Thing:
    """A tensor, bundle, view or message: what it shows, and what it keeps alive."""

    leaves: list[Leaf]
    storages: frozenset[Storage] = frozenset()
    kind: str = "tensor"
    readonly: bool = False
    channel: "Channel | None" = None  # of a message in a buffer: it keeps the channel's
    attached: frozenset[Storage] = frozenset()  # to that buffer
    page: "Page | None" = None  # by which a child inherited it
    origin: "Channel | None" = None  # of a message by reference: it may hold a buffer instead
    version: int = 0

    def shows(self):
        return [leaf.shown() for leaf in self.leaves]

    def like(self, **changes) -> "Thing":
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return Thing(**(values | {"version": 0} | changes))

    @property
    def on_device(self):
        buffers = {self.channel.buffers} if self.channel else set()
        return any(storage.on_device for storage in self.storages | buffers)


@dataclass(eq=False)
class Name:
    """What is under a name; `maybe` are puts and deletes of who died meanwhile."""

    current: Thing | None = None
    owner: "Holder | None" = None  # whose end is the end of the name
    until: float = 0  # when it ends by itself; 0: never
    versions: dict[int, Thing] = field(default_factory=dict)
    flying: list["Flight"] = field(default_factory=list)
    maybe: list["Flight"] = field(default_factory=list)
    is_leaving: bool = False  # a delete may have happened
    users: int = 0  # operations under way; -1: one that wants to be alone
    waiters: int = 0
    absent: float = 0  # when it may have been absent last, before another one was put

    def may_have_been_absent(self, since: float, now: float) -> bool:
        return self.absent >= since or self.may_be_absent(now)

    def may_be_absent(self, now: float) -> bool:
        flights = self.flying + self.maybe
        passing = self.is_leaving or any(f.owner or f.seconds for f in flights)
        is_alone = self.owner is not None and self.owner.is_doomed
        return self.current is None or passing or is_alone or 0 < self.until < now


@dataclass(eq=False)
class Flight:
    """A put under way."""

    thing: Thing
    owner: "Holder | None"
    seconds: float


@dataclass(eq=False)
class Ticket:
    thing: Thing
    data: bytes
    owner: int
    is_spent: bool = False
    is_sure: bool = True  # whether it is spent or not
    is_busy: bool = False  # it is being redeemed
    is_leased: bool = False  # its owner may have let go meanwhile


@dataclass(eq=False)
class Page:
    """What a parent held when it forked, as long as a child needs any of it."""

    owner: int
    storages: frozenset[Storage]
    perhaps: frozenset[Storage]
    attached: frozenset[Storage]  # to buffers that it had


@dataclass(eq=False)
class Message:
    number: int
    sender: int
    thing: Thing


@dataclass(eq=False)
class Channel:
    """A queue or topic, from its making to its deletion."""

    kind: str
    name: str
    options: dict
    buffers: Storage
    is_over: bool = False  # shut down
    users: int = 0  # operations under way; -1: one that wants to be alone
    sent: dict[int, Message] = field(default_factory=dict)  # not received by all, by number
    count: int = 0  # messages sent, for sure; of a topic
    issued: int = 0  # the last number given to a message
    flying: dict[int, Message] = field(default_factory=dict)
    maybe: dict[int, Message] = field(default_factory=dict)
    early: set[int] = field(default_factory=set)  # received, but not yet acknowledged
    lost: int = 0  # at most as many as this went with who received them
    is_busy: bool = False  # of those that only one at a time uses
    is_sure: bool = True  # False: who used it has died meanwhile

    @property
    def is_topic(self):
        return self.kind == "topic"

    def number_of(self, window: int) -> int:
        """Of the message that shows this window: the newest."""
        return self.issued - (self.issued - window) % payload.WINDOWS

    def find(self, number: int) -> Message | None:
        for some in self.sent, self.flying, self.maybe:
            if number in some:
                return some[number]
        return None


@dataclass(eq=False)
class Seat:
    """An open handle."""

    channel: Channel
    is_reader: bool = False
    last: dict[int, int] = field(default_factory=dict)  # by sender: the number received last
    received: int = 0
    missed: int = 0
    begin: tuple[int, int] = (0, 0)  # messages that there were when it subscribed: between
    page: None = None


@dataclass(eq=False)
class Holder:
    """A member, as the daemon should know it."""

    number: int
    pid: int
    is_connected: bool = False
    is_doomed: bool = False  # it ends now
    is_gone: bool = False
    uses_cuda: bool = False
    things: dict[int, Thing] = field(default_factory=dict)
    seats: dict[int, Seat] = field(default_factory=dict)

    def own(self) -> set[Storage]:
        """What it holds for sure."""
        held: set[Storage] = {seat.channel.buffers for seat in self.seats.values()}
        for thing in self.things.values():
            if not thing.page:
                held |= thing.storages if not thing.origin else set()
                held |= {thing.channel.buffers} if thing.channel else set()
        return held

    def perhaps(self) -> set[Storage]:
        held: set[Storage] = set()
        for thing in self.things.values():
            if not thing.page and thing.origin:
                held |= thing.storages | {thing.origin.buffers}
        return held


class Model:
    def __init__(self):
        self.storages: dict[int, Storage] = {}
        self.names: dict[str, Name] = {}
        self.tickets: list[Ticket] = []
        self.holders: dict[int, Holder] = {}
        self.channels: dict[str, Channel] = {}
        self.numbers = itertools.count(1)  # of payloads
        self.keys = itertools.count(1)  # of things

    def pages(self) -> set[Page]:
        """Those that somebody needs."""
        return {t.page for h in self.holders.values() for t in h.things.values() if t.page}

    def page(self, holder: Holder) -> Page:
        """Of a fork now. What only older pages keep is kept by this one, too, if the parent gets it
        again and lets it go."""
        parked = (page.storages for page in self.pages() if page.owner == holder.number)
        perhaps = holder.perhaps().union(*parked)
        own = (thing.attached for thing in holder.things.values() if not thing.page)
        attached = frozenset().union(*own)
        return Page(holder.number, frozenset(holder.own()), frozenset(perhaps), attached)

    def held_by(self, holder: Holder) -> tuple[set[Storage], set[Storage]]:
        """For sure, and perhaps."""
        pages = [page for page in self.pages() if page.owner == holder.number]
        sure = holder.own().union(*(page.storages for page in pages))
        return sure, holder.perhaps().union(*(page.perhaps for page in pages)) - sure

    def roots(self) -> Iterator[tuple[str, Iterable[Storage]]]:
        """Who keeps what alive for sure."""
        for page in self.pages():
            yield f"a buffer at a fork of member {page.owner}", page.attached
        for holder in self.holders.values():
            yield f"member {holder.number}, or a fork of it", self.held_by(holder)[0]
            for key, thing in holder.things.items():
                yield f"thing {key} of member {holder.number}", thing.storages | thing.attached
        for text, name in self.names.items():
            yield f"name {text}", name.current.storages if name.current else ()
        for ticket in self.tickets:
            if not ticket.is_spent:
                yield f"a ticket of member {ticket.owner}", ticket.thing.storages
        for channel in self.channels.values():
            yield channel.name, [channel.buffers]
            for number, message in channel.sent.items():
                yield f"message {number} of {channel.name}", message.thing.storages

    def alive(self) -> set[Storage]:
        """For sure."""
        return closure(storage for _, storages in self.roots() for storage in storages)

    def keepers(self, storage: Storage) -> list[str]:
        return [who for who, storages in self.roots() if storage in closure(storages)]

    def forget(self, holder: Holder):
        """It has ended."""
        holder.is_doomed = holder.is_gone = True
        holder.is_connected = False
        holder.things.clear(), holder.seats.clear()
        self.lease(holder)

    def settle(self, thing: Thing, ids: set[int]) -> str:
        """A new storage of a thing gets its id; the others are as known. What is wrong, or ""."""
        new = ids - {s.id for s in thing.storages} - self.storages.keys()
        for storage in thing.storages:
            if not storage.id and new:
                storage.id = new.pop()
                self.storages[storage.id] = storage
        known = {s.id for s in thing.storages}
        return "" if ids == known else f"storages {sorted(ids)} instead of {sorted(known)}"

    def lease(self, holder: Holder):
        """It has let something go."""
        own = holder.own()
        for ticket in self.tickets:
            if ticket.owner == holder.number and not ticket.thing.storages <= own:
                ticket.is_leased = True

    def start_over(self):
        """The daemon is gone: what is mapped is private memory from now on."""
        self.names = {text: Name() for text in self.names}
        self.storages, self.tickets, self.channels = {}, [], {}
        self.holders = {n: h for n, h in self.holders.items() if not h.is_gone}
        for holder in self.holders.values():
            holder.is_connected = False
            holder.seats.clear()
            for key, thing in holder.things.items():
                for leaf in thing.leaves:
                    leaf.storage = None
                holder.things[key] = thing.like(
                    storages=frozenset(), attached=frozenset(), channel=None, origin=None, page=None
                )

    def prune(self):
        alive = self.alive()
        self.storages = {s.id: s for s in alive if s.id}
        self.tickets = [t for t in self.tickets if not t.is_spent or t.thing.storages & alive]
        parents = {page.owner for page in self.pages()}
        self.holders = {n: h for n, h in self.holders.items() if not h.is_gone or n in parents}


def closure(roots: Iterable[Storage]) -> set[Storage]:
    reached, rest = set(), list(roots)
    while rest:
        storage = rest.pop()
        if storage not in reached:
            reached.add(storage)
            rest.extend(storage.refers)
    return reached


def pack_nbytes(private: list[Leaf], shared: list[Leaf]) -> int:
    """Of a bundle's own storage: private arrays aligned to 64, and an index."""
    data = sum(-(-nbytes_of(leaf.cell) // 64) * 64 for leaf in private)
    ids = len({leaf.storage for leaf in shared})
    items = sum(
        40 + 16 * len(leaf.shown()[2]) + -(-sum(len(key) + 3 for key in leaf.path) // 8) * 8
        for leaf in private + shared
    )
    return data + 16 + 8 * ids + items


def nbytes_of(cell: Cell) -> int:
    return payload.made(0, cell.dtype, cell.shape).nbytes
