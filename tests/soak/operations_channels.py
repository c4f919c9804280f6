"""Operations on queues and topics: whole messages, in order, none twice, lost only with the dead.

Each message of a channel has a number, which its bytes tell. A sender's messages must be received
in their order; what a queue's receiver or sender was doing when it died is settled at the next
inspection, which drains the queue.
"""

from model import Cell, Channel, Leaf, Message, Seat, Storage, Thing, nbytes_of
from operations import Died, fresh, of_kind, spec

BUFFER = 16 << 10
CAPACITY = 8
KINDS = {  # name: (kind, options): all have the same buffers
    "q/0": ("queue", {}),
    "q/1": ("queue", {}),
    "q/2": ("queue", {}),
    "device/q": ("queue", {"device": "cuda:0"}),
    "topic/drops": ("topic", {}),
    "topic/drops2": ("topic", {}),
    "topic/blocks": ("topic", {"overflow": "block"}),
}


def opened(name: str, kind: str, options: dict, buffers=64) -> Channel:
    options = {"capacity": CAPACITY, "nbytes": BUFFER, "buffers": buffers} | options
    storage = Storage(0, BUFFER * buffers, "device" in options, is_buffers=True)
    return Channel(kind, name, options, storage)


# ------------------------------------------------------------------------------------------ handles


def join(judge, me):
    channels = [c for c in judge.model.channels.values() if c.name in KINDS and c.users >= 0]
    channel = judge.one_of([c for c in channels if me.uses_cuda or not c.buffers.on_device])
    if channel is None:
        return
    yield from join_it(judge, me, channel)


def join_it(judge, me, channel):
    key = next(judge.model.keys)
    channel.users += 1
    try:
        error, text = yield "join", key, channel.kind, channel.name, channel.options
    finally:
        channel.users -= 1
    judge.require(error is None, me, f"open {channel.name}: {error} {text}")
    me.seats[key] = Seat(channel)
    return key


def subscribe(judge, me):
    topics = [
        k
        for k, seat in me.seats.items()
        if seat.channel.is_topic and not seat.is_reader and not seat.channel.is_over
    ]
    of = judge.one_of(topics)
    if of is None or len(me.seats) > 5:
        return
    channel, key = me.seats[of].channel, next(judge.model.keys)
    latest = "overflow" not in channel.options and judge.rng.random() < 0.3
    least = channel.count - latest
    channel.users += 1
    try:
        error, text = yield "subscribe", key, of, latest
    finally:
        channel.users -= 1
    judge.require(error is None, me, f"subscribe to {channel.name}: {error} {text}")
    me.seats[key] = Seat(channel, is_reader=True, begin=(max(0, least), channel.issued))


def leave(judge, me):
    key = judge.one_of(list(me.seats))
    if key is not None:
        yield from leave_it(judge, me, key)


def leave_it(judge, me, key):
    error, text = yield "close", key
    judge.require(error is None, me, f"close a handle: {error} {text}")
    error, text = yield "drop", [key]
    judge.require(error is None, me, f"del a handle: {error} {text}")
    del me.seats[key]


def seat_of(judge, me, wanted):
    """(key, seat) of one that may be used now."""
    usable = [k for k, seat in me.seats.items() if seat.channel.users >= 0 and wanted(seat)]
    key = judge.one_of(usable)
    return (key, me.seats[key]) if key is not None else (None, None)


# ------------------------------------------------------------------------------------------ sending


def message(judge, me, channel, number):
    """(how, words) to send it, and the Thing that is received."""
    rng = judge.rng
    how = rng.choices(["send", "loan", "bundle", "large", "mixed"], [40, 25, 15, 4, 16])[0]
    if channel.options.get("overflow") == "block" and how in ("large", "mixed"):
        how = "send"
    if how == "large":
        cell = judge.cell([0, 0, 1, 0], number)
        if nbytes_of(cell) > BUFFER:
            return "send", spec(cell), fresh(cell)
    cell = judge.cell([1, 0, 0, 0], number)
    if channel.buffers.on_device and how != "loan":  # it lies elsewhere
        return "send", spec(cell), fresh(cell)
    if how in ("send", "loan", "large"):
        return how if how == "loan" else "send", spec(cell), Thing([Leaf((), cell)])
    tensors = [k for k in of_kind(me, "tensor", device=False) if me.things[k].leaves[0].storage]
    key = judge.one_of(tensors) if how == "mixed" else None
    if key is None:
        other = Cell(next(judge.model.numbers), "|u1", (100,))
        words = {"n": spec(cell), "x": spec(other)}
        return "send", words, Thing([Leaf(("n",), cell), Leaf(("x",), other)], kind="bundle")
    first, leaf, readonly = Leaf(("n",), cell), me.things[key].leaves[0], me.things[key].readonly
    referred = Leaf(("x",), leaf.cell, leaf.first, leaf.shape, leaf.storage)
    thing = Thing([first, referred], frozenset([leaf.storage]), "bundle", readonly)
    return "send", {"n": spec(cell), "x": key}, thing


def send(judge, me):
    key, seat = seat_of(judge, me, lambda seat: not seat.is_reader)
    if key is not None:
        yield from send_it(judge, me, key, seat, judge.rng.randrange(1, 6))


def send_it(judge, me, key, seat, count):
    channel, words = seat.channel, []
    numbers = range(channel.issued + 1, channel.issued + count + 1)
    channel.issued += count
    for number in numbers:
        how, source, thing = message(judge, me, channel, number)
        words.append((how, source))
        channel.flying[number] = Message(number, me.number, thing)
    channel.users += 1
    try:
        error, value = yield "send", key, words, judge.rng.choice([0, 0.02, 0.2])
    except Died:
        flown = {n: channel.flying.pop(n) for n in numbers}
        channel.maybe |= {n: m for n, m in flown.items() if n not in channel.early}
        channel.early.difference_update(numbers)
        raise
    finally:
        channel.users -= 1
    judge.require(error is None, me, f"send to {channel.name}: {error} {value}")
    sent, stopped, text = value
    if stopped == "ChannelClosed":
        judge.require(channel.is_over, me, f"{channel.name} is closed: {text}")
    elif stopped:
        judge.require(judge.shortage(me, stopped) or stopped == "Timeout", me, f"send: {text}")
    channel.count += sent
    for i, number in enumerate(numbers):
        flown = channel.flying.pop(number)
        if i < sent and number not in channel.early:
            channel.sent[number] = flown
        judge.require(
            i < sent or number not in channel.early, me, f"{channel.name}: {number} was not sent"
        )
        channel.early.discard(number)


# ---------------------------------------------------------------------------------------- receiving


def receive(judge, me):
    key, seat = seat_of(judge, me, lambda seat: seat.is_reader or not seat.channel.is_topic)
    if key is not None:
        yield from receive_it(judge, me, key, seat)


def receive_it(judge, me, key, seat):
    rng, channel = judge.rng, seat.channel
    keys = [
        next(judge.model.keys) if rng.random() < 0.1 and len(me.things) < 40 else 0
        for _ in range(rng.randrange(1, 9))
    ]
    channel.users += 1
    try:
        error, value = yield "receive", key, keys, rng.choice([0, 0.02, 0.2])
    except Died:
        channel.lost += len(keys)
        raise
    finally:
        channel.users -= 1
    judge.require(error is None, me, f"receive from {channel.name}: {error} {value}")
    shown, ended, seat.missed = value
    if ended == "ChannelClosed":
        judge.require(channel.is_over, me, f"{channel.name} is closed")
    for kept, each in zip(keys, shown, strict=False):
        received(judge, me, seat, kept, each)


def drain(judge, me, key, seat):
    """At an inspection: everything that is there."""
    error, value = yield "receive_all", key
    judge.require(error is None or seat.channel.is_over, me, f"drain: {error} {value}")
    if error is None:
        shown, _, seat.missed = value
        for each in shown:
            received(judge, me, seat, 0, each)


def received(judge, me, seat, key, shown):
    channel = seat.channel
    number = channel.number_of(shown["leaves"][0][1][0])
    found = channel.find(number)
    what = f"{channel.name}: message {number}"
    judge.require(found, me, f"{what} was not sent, or received already: {shown}")
    thing = found.thing
    judge.shows(me, what, shown, thing)
    last = seat.last.get(found.sender, 0)
    judge.require(number > last, me, f"{what} of {found.sender} came after {last}")
    seat.last[found.sender] = number
    seat.received += 1
    if number in channel.flying and not channel.is_topic:
        judge.require(number not in channel.early, me, f"{what} was received already")
        channel.early.add(number)
    elif not channel.is_topic:
        channel.sent.pop(number, None), channel.maybe.pop(number, None)
    if key:
        in_buffer = any(leaf.storage is None for leaf in thing.leaves)
        me.things[key] = thing.like(
            channel=channel if in_buffer else None,
            origin=channel if thing.storages else None,
            attached=thing.storages if in_buffer else frozenset(),
        )


# ------------------------------------------------------------------- queues without anybody in them


def post(judge, me):
    """A queue is made, filled and left; it lives as long as there is something in it."""
    boxes = [c for c in judge.model.channels.values() if c.name.startswith("box/")]
    if len(boxes) >= 10:
        return
    name = f"box/{next(judge.model.numbers)}"
    channel = judge.model.channels[name] = opened(name, "queue", {}, buffers=CAPACITY + 8)
    channel.is_busy = True
    try:
        key = yield from join_it(judge, me, channel)
        yield from send_it(judge, me, key, me.seats[key], judge.rng.randrange(1, CAPACITY))
        yield from leave_it(judge, me, key)
    except Died:
        channel.is_sure = False
        raise
    finally:
        channel.is_busy = False
    if not channel.sent:
        del judge.model.channels[name]


def collect(judge, me):
    """Another one empties it, and it is gone."""
    boxes = [
        c
        for c in judge.model.channels.values()
        if c.name.startswith("box/") and c.is_sure and not c.is_busy
    ]
    channel = judge.one_of(boxes)
    if channel is None:
        return
    channel.is_busy = True
    try:
        key = yield from join_it(judge, me, channel)
        seat = me.seats[key]
        while channel.sent:
            before = len(channel.sent)
            yield from receive_it(judge, me, key, seat)
            judge.require(
                len(channel.sent) < before, me, f"{channel.name}: {list(channel.sent)} are lost"
            )
        yield from leave_it(judge, me, key)
    except Died:
        channel.is_sure = False
        raise
    finally:
        channel.is_busy = False
    del judge.model.channels[channel.name]


# ----------------------------------------------------------------------------- the end of a channel


def renew(judge, me, key):
    """By the observer: shuts a channel down, takes what is left, and makes it anew."""
    seat = me.seats[key]
    channel = seat.channel
    del judge.model.channels[channel.name]
    channel.users = -1
    if channel.is_topic and "overflow" not in channel.options:  # so that none by reference is last
        channel.issued += 1
        cell = Cell(channel.issued, "|u1", (8,))
        channel.sent[channel.issued] = Message(channel.issued, me.number, Thing([Leaf((), cell)]))
        yield "send", key, [("send", spec(cell))], 1
    channel.is_over = True
    error, text = yield "shutdown", key
    judge.require(error is None, me, f"shut {channel.name} down: {error} {text}")
    if not channel.is_topic:
        yield from drain(judge, me, key, seat)
        lost = list(channel.sent)
        judge.require(len(lost) <= channel.lost, me, f"{channel.name}: {lost} are lost")
    error, text = yield "delete", channel.name
    judge.require(error is None, me, f"delete {channel.name}: {error} {text}")
    yield from leave_it(judge, me, key)
    channel.users = 0
    yield from create(judge, me, channel.name)


def create(judge, me, name):
    kind, options = KINDS[name]
    channel = opened(name, kind, options)
    yield from join_it(judge, me, channel)
    judge.model.channels[name] = channel
