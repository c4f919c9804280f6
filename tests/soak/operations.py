"""What members are told to do, and how the model judges what they answer.

An operation is a generator: it yields words for its member (member.py) and is sent the answer, an
error's name or None, and a value or text. If the member dies meanwhile, Died is raised in it: what
was under way may have happened or not.
"""

import time

from model import (
    Cell,
    Flight,
    Leaf,
    Name,
    Storage,
    Thing,
    Ticket,
    nbytes_of,
    pack_nbytes,
)


class Died(Exception):
    """The member is gone."""


def spec(cell):
    return cell.number, cell.dtype, cell.shape


def fresh(cell, device=False, first=0) -> Thing:
    """A tensor with a storage of its own."""
    storage = Storage(0, nbytes_of(cell), device)
    return Thing([Leaf((), cell, first, None, storage)], frozenset([storage]))


def of_kind(me, *kinds, device=None):
    return [
        key
        for key, thing in me.things.items()
        if thing.kind in kinds and device in (None, thing.on_device)
    ]


# -------------------------------------------------------------------------------- tensors and views


def make(judge, me):
    device = judge.on_device(me)
    cell, key = judge.cell(), next(judge.model.keys)
    how = judge.rng.choice(["empty", "zeros", "asarray"])
    options = {"device": "cuda:0"} if device else {}
    error, shown = yield "make", key, spec(cell), how, options
    if judge.shortage(me, error, nbytes_of(cell), device):
        return
    judge.require(error is None, me, f"{how}: {error} {shown}")
    thing = fresh(cell, device)
    judge.shows(me, how, shown, thing)
    me.things[key] = thing


def view(judge, me):
    """A view, or an entry of a bundle, which lives longer than what it is of."""
    of = judge.one_of(of_kind(me, "tensor", "bundle", device=False))
    if of is None:
        return
    key, thing = next(judge.model.keys), me.things[of]
    kind = "entry"
    if thing.kind == "tensor":
        kind = judge.rng.choice(["numpy", "memoryview", "dlpack", "capsule", "handle"])
    error, path = yield "view", key, of, kind
    judge.require(error is None, me, f"{kind}: {error} {path}")
    if kind == "entry":
        leaf = next(leaf for leaf in thing.leaves if leaf.path == path)
        held = frozenset([leaf.storage]) if leaf.storage else frozenset()
        me.things[key] = thing.like(
            leaves=[Leaf((), leaf.cell, leaf.first, leaf.shape, leaf.storage)],
            storages=held,
            kind="tensor",
            channel=None if held else thing.channel,
            attached=frozenset() if held else thing.attached,
        )
    else:
        me.things[key] = thing.like(kind="tensor" if kind == "handle" else kind)


def part(judge, me):
    """A slice, from a multiple of 64 bytes."""
    long = [k for k in of_kind(me, "tensor", device=False) if len(me.things[k].shows()[0][2]) == 1]
    of = judge.one_of(long)
    if of is None:
        return
    thing = me.things[of]
    leaf = thing.leaves[0]
    itemsize = int(leaf.cell.dtype[2:])
    count = leaf.shown()[2][0]
    step, least = 64 // itemsize, 8 // itemsize
    first = judge.rng.randrange(0, max(1, count - step)) // step * step
    length = judge.rng.randrange(least, count - first + 1) if count - first > least else least
    key = next(judge.model.keys)
    error, shown = yield "part", key, of, first, length
    judge.require(error is None, me, f"a slice: {error} {shown}")
    cut = Leaf((), leaf.cell, leaf.first + first * itemsize, (length,), leaf.storage)
    me.things[key] = thing.like(leaves=[cut])
    judge.sees(me, "a slice", [what for _, what, _ in shown["leaves"]], me.things[key])


def verify(judge, me):
    keys = [k for k in me.things if judge.rng.random() < 0.3]
    yield from verify_these(judge, me, keys)


def verify_these(judge, me, keys):
    if not keys:
        return
    error, seen = yield "verify", keys
    judge.require(error is None, me, f"a look at what it has: {error} {seen}")
    for key in keys:
        judge.sees(me, f"thing {key}, {me.things[key].kind}", seen[key], me.things[key])


def drop(judge, me):
    keys = [k for k in me.things if judge.rng.random() < 0.4]
    if not keys:
        return
    if judge.rng.random() < 0.3 and me.things[keys[0]].kind in ("tensor", "bundle"):
        error, text = yield "close", keys[0]
        judge.require(error is None, me, f"close: {error} {text}")
    yield from drop_these(judge, me, keys)


def drop_these(judge, me, keys):
    error, text = yield "drop", keys
    judge.require(error is None, me, f"del: {error} {text}")
    for key in keys:
        del me.things[key]
    judge.model.lease(me)


# -------------------------------------------------------------------------------------------- names


def source_of(judge, me, device):
    """(words for a member, Thing): something new, something it has, a bundle of both."""
    if judge.rng.random() < 0.25:
        return bundle_of(judge, me, device)
    key = judge.one_of(of_kind(me, "tensor", "numpy", "memoryview", "dlpack", device=device))
    if key is not None and judge.rng.random() < 0.4:
        thing = me.things[key]
        if not thing.storages:
            return key, copied(thing)
        return key, thing.like(kind="tensor", page=None, origin=None)
    cell = judge.cell()
    return spec(cell), fresh(cell, device)


def copied(thing):
    """As it is now, in memory of its own."""
    leaf = thing.leaves[0]
    return fresh(
        Cell(leaf.cell.number, leaf.cell.dtype, leaf.shown()[2]), thing.on_device, leaf.first
    )


def bundle_of(judge, me, device):
    words, private, shared, readonly = {}, [], [], False
    tensors = of_kind(me, "tensor", "numpy", device=False)
    for i in range(judge.rng.randrange(1, 5)):
        path = (f"k{i}",)
        key = judge.one_of(tensors)
        thing = me.things[key] if key is not None and judge.rng.random() < 0.3 else None
        if thing and thing.leaves[0].storage:
            leaf, readonly = thing.leaves[0], readonly or thing.readonly
            words[path[0]] = key
            shared.append(Leaf(path, leaf.cell, leaf.first, leaf.shape, leaf.storage))
        else:
            cell = judge.cell([60, 30, 2, 0])
            words[path[0]] = spec(cell)
            private.append(Leaf(path, cell))
    leaves = sorted(private + shared, key=lambda leaf: leaf.path)
    refers = frozenset(leaf.storage for leaf in shared)
    pack = Storage(0, pack_nbytes(private, shared), refers=refers)
    for leaf in private:
        leaf.storage = pack
    return words, Thing(leaves, refers | {pack}, "bundle", readonly)


def put(judge, me):
    rng = judge.rng
    text, name = judge.name(me, waited=True)
    device = text.startswith("d/") and rng.random() < 0.9
    words, thing = source_of(judge, me, device)
    if device and thing.kind == "bundle":
        return
    options = {"device": "cuda:0"} if device and isinstance(words, tuple) else {}
    if text.startswith("e/"):
        options["ephemeral"] = True
    if text.startswith("t/"):
        options["ttl"] = rng.choice([0.05, 0.5, 2, 300])
    if rng.random() < 0.15:
        options["readonly"] = True
    if rng.random() < 0.1 and name.users == 0:
        options["exclusive"] = True
    yield from put_it(judge, me, (text, name), (words, thing), options)


def put_it(judge, me, where, what, options):
    (text, name), (words, thing) = where, what
    key = next(judge.model.keys) if judge.rng.random() < 0.5 else 0
    alone = "exclusive" in options
    thing = thing.like(readonly=thing.readonly or "readonly" in options)
    owner = me if "ephemeral" in options else None
    flight = Flight(thing, owner, options.get("ttl", 0))
    is_free = name.may_be_absent(time.monotonic())
    name.flying.append(flight)
    name.users += 1 if not alone else -1
    begun = time.monotonic()
    try:
        error, shown = yield "put", key, text, words, options
    except Died:
        name.maybe.append(flight)
        raise
    finally:
        name.flying.remove(flight)
        name.users -= 1 if not alone else -1
    asked = sum(s.nbytes for s in thing.storages if not s.id)
    if judge.shortage(me, error, asked, thing.on_device):
        return
    if alone and error == "Exists":
        judge.require(
            name.current or name.maybe, me, f"put {text!r}: exists, without having been put"
        )
        return
    judge.require(error is None, me, f"put {text!r}: {error} {shown}")
    is_free |= name.may_be_absent(time.monotonic())
    judge.require(not alone or is_free, me, f"put {text!r}, exclusive, replaced something")
    judge.shows(me, f"put {text!r}", shown, thing)
    version = shown["version"]
    judge.require(version not in name.versions, me, f"put {text!r}: version {version} again")
    thing.version = version
    name.versions[version] = thing
    if name.may_be_absent(now := time.monotonic()):
        name.absent = now
    if name.current is None or version > name.current.version:
        name.current, name.owner, name.is_leaving = thing, owner, False
        name.until = begun + options["ttl"] if "ttl" in options else 0
    if key:
        me.things[key] = thing.like()


def get(judge, me):
    key = next(judge.model.keys)
    options = {"readonly": True} if judge.rng.random() < 0.1 else {}
    (thing,) = yield from getting(judge, me, lambda text: ("get", key, text, options))
    if thing:
        me.things[key] = thing.like(readonly=thing.readonly or "readonly" in options)


def get_in_threads(judge, me):
    yield from getting(judge, me, lambda text: ("get_in_threads", text, 4))


def getting(judge, me, words):
    """The things that were got under one name; None: there was nothing."""
    text, name = judge.name(me)
    begun = time.monotonic()
    was_absent = name.may_be_absent(begun)
    floor = name.current.version if name.current else 0
    name.users += 1
    try:
        answer = yield words(text)
    finally:
        name.users -= 1
    things = []
    for error, shown in answer[1] if isinstance(answer[1], list) else [answer]:
        if error == "NotFound":
            may_be = was_absent or name.may_have_been_absent(begun, time.monotonic())
            judge.require(may_be, me, f"get {text!r}: NotFound, but version {floor} was put")
            things.append(None)
        else:
            judge.require(error is None, me, f"get {text!r}: {error} {shown}")
            things.append(got(judge, me, (text, name), shown, 0 if was_absent else floor))
    return things


def got(judge, me, where: tuple[str, Name], shown, floor) -> Thing:
    """What a member has got, which must have been put."""
    (text, name), version = where, shown["version"]
    judge.require(version >= floor, me, f"get {text!r}: version {version}, older than {floor}")
    thing = name.versions.get(version)
    if thing is None:
        seen = [leaf[1] for leaf in shown["leaves"]]
        flights = (f.thing for f in name.flying + name.maybe if f.thing.shows() == seen)
        thing = next(flights, None)
    judge.require(thing, me, f"get {text!r}: version {version}, {shown}, was never put")
    judge.shows(me, f"get {text!r}", shown, thing)
    return thing.like(version=version)


def wait(judge, me):
    """For a newer version; somebody will put one."""
    text, name = judge.name(me, prefixes=("n/",))
    key, newer = next(judge.model.keys), name.current.version if name.current else 0
    name.waiters += 1
    try:
        error, shown = yield "get", key, text, {"timeout": 60, "newer_than": newer}
    finally:
        name.waiters -= 1
    judge.require(error is None, me, f"wait for {text!r} newer than {newer}: {error} {shown}")
    me.things[key] = got(judge, me, (text, name), shown, newer + 1)


def delete(judge, me):
    text, name = judge.name(me)
    if name.users:
        return
    is_free = name.may_be_absent(time.monotonic())
    name.users = -1
    try:
        error, value = yield "delete", text
    except Died:
        name.is_leaving = True
        raise
    finally:
        name.users = 0
    if error == "NotFound":
        is_free |= name.may_be_absent(time.monotonic())
        judge.require(is_free, me, f"delete {text!r}: NotFound, but it was put")
    else:
        judge.require(error is None, me, f"delete {text!r}: {error} {value}")
        judge.require(name.current or name.maybe, me, f"delete {text!r}: it was never put")
    name.current, name.owner, name.until = None, None, 0


def look_around(judge, me):
    prefix = judge.rng.choice(["n/", "e/", "", "none/"])
    error, names = yield "look_around", prefix
    judge.require(error is None, me, f"names: {error} {names}")
    for text in names:
        judge.require(text in judge.model.names, me, f"a name {text!r} that nobody has put")


# ------------------------------------------------------------------------------------------ tickets


def ticket(judge, me):
    shared = [k for k in of_kind(me, "tensor", "bundle") if me.things[k].storages]
    key = judge.one_of([k for k in shared if not me.things[k].channel])
    if key is None:
        return
    thing = me.things[key]
    try:
        error, data = yield "ticket", key
    except Died:
        judge.ghosts += 1
        raise
    judge.require(error is None, me, f"ref(): {error} {data}")
    sent = thing.like(page=None, origin=None)
    judge.model.tickets.append(Ticket(sent, data, me.number))
    judge.model.lease(me)  # what was inherited is not its own


def redeem(judge, me):
    unspent = [t for t in judge.model.tickets if t.is_sure and not t.is_spent and not t.is_busy]
    ticket = judge.one_of([t for t in unspent if me.uses_cuda or not t.thing.on_device])
    if ticket is None:
        return
    key = next(judge.model.keys)
    ticket.is_busy = True
    try:
        error, shown = yield "redeem", key, ticket.data
    except Died:
        ticket.is_sure = False
        raise
    finally:
        ticket.is_busy = False
    ticket.is_spent = True
    if error == "Stale":
        judge.require(ticket.is_leased, me, f"a ticket is stale: {shown}")
        return
    judge.require(error is None, me, f"a ticket: {error} {shown}")
    judge.shows(me, "a ticket", shown, ticket.thing)
    me.things[key] = ticket.thing.like()


def redeem_again(judge, me):
    """A ticket that is spent is good as long as anybody has the memory."""
    spent = [t for t in judge.model.tickets if t.is_spent and t.thing.storages <= me.own()]
    ticket = judge.one_of(spent)
    if ticket is None:
        return
    key = next(judge.model.keys)
    error, shown = yield "redeem", key, ticket.data
    judge.require(error is None, me, f"a ticket, again: {error} {shown}")
    judge.shows(me, "a ticket, again", shown, ticket.thing)
    me.things[key] = ticket.thing.like()
