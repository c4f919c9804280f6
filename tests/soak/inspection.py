"""Now and then the world stands still, and what the daemon tells must be what the model knows."""

import operator
import re
import time

import daemon as d
import figures
import operations as op
import operations_channels as ch
from crew import resources_of
from model import Holder

# KiB, descriptors, mappings by which a process may vary: two old hands may have come to use a
# device meanwhile (a pidfd each), and connections of who looked may not be closed yet.
ROOM = 4096, 5, 64
MEMORY = re.compile(r"/dev/shm/tensorcx|/memfd:|fakecuda:")
SETTLE = 20  # seconds in which the daemon must have noticed everything


class Inspection:
    def __init__(self, soak, say):
        self.soak, self.model, self.say = soak, soak.model, say

    @property
    def observer(self) -> Holder:
        return self.soak.observer

    def run(self, seconds, interval):
        """Works and looks, in turns; early and late everything is let go, and must be as it was."""
        begin, first = time.monotonic(), None
        while (left := begin + seconds * 5 / 6 - time.monotonic()) > 0:
            self.soak.go(min(interval, left))
            self.look()
            if first is None and time.monotonic() - begin > seconds * 0.1:
                first = self.empty()
        last = self.empty()
        self.flat(first, last)
        while (left := begin + seconds - time.monotonic()) > 0:
            self.soak.go(min(interval / 2, left))
            self.restart()
            self.look()
        self.empty()
        self.report(time.monotonic() - begin, first, last)
        self.end()

    # ------------------------------------------------------------------------------- one inspection

    def look(self):
        soak = self.soak
        soak.calm()
        begin = time.monotonic()
        self.everybody(self.drained)
        self.queues()
        self.topics()
        self.boxes()
        self.tickets()
        self.names()
        self.settle()
        taken = set()
        self.everybody(lambda me: self.written(me, taken))
        self.everybody(lambda me: op.verify_these(soak, me, list(me.things)))
        self.model.prune()
        soak.done["inspection"] += 1
        alive = self.model.alive()
        self.say(
            f"  {len(soak.crew.peers)} members, {len(alive)} storages,"
            f" {sum(s.nbytes for s in alive) >> 20} MiB, {sum(soak.done.values())} operations,"
            f" {sum(soak.deaths.values())} deaths; looked for {time.monotonic() - begin:.2f} s"
        )

    def everybody(self, operation):
        for me in list(self.model.holders.values()):
            if not me.is_gone:
                self.soak.begin(me, operation(me))
        self.soak.until(lambda: not self.soak.running)

    def ask(self, generator):
        self.soak.run(self.observer, generator)

    def drained(self, me):
        for key, seat in me.seats.items():
            if seat.is_reader:
                yield from ch.drain(self.soak, me, key, seat)

    def written(self, me, taken):
        """To what all may write: who has it sees it. One writes to a cell; the set is of those."""
        soak = self.soak
        for key, thing in list(me.things.items()):
            leaf = thing.leaves[0]
            is_whole = leaf.cell.shape == leaf.shown()[2] and not leaf.first
            may_write = thing.kind == "tensor" and not thing.readonly and not thing.channel
            if may_write and is_whole and leaf.cell not in taken and soak.rng.random() < 0.05:
                taken.add(leaf.cell)
                number = next(self.model.numbers)
                error, text = yield "write", key, number
                soak.require(error is None, me, f"write: {error} {text}")
                leaf.cell.number = number

    # ------------------------------------------------------------------------------- another daemon

    def restart(self):
        """The daemon is killed or stopped while all work; the next one knows nothing."""
        soak, old = self.soak, self.soak.daemon
        soak.wake()
        soak.is_down = True
        if soak.chance.random() < 0.5:
            old.kill()
        else:
            old.stop()
        for number, generator in soak.running.items():
            self.forsaken(self.model.holders[number], soak.crew.peers[number].told)
            generator.close()
            soak.running[number] = whatever()
            next(soak.running[number])
        soak.until(soak.is_calm)
        soak.daemon = d.Daemon(old.path.parent, *soak.options)
        soak.is_down, soak.dropped, soak.ghosts = False, 0, 0
        tickets = [ticket.data for ticket in self.model.tickets] or [None]
        lost = {
            number: {key for key, t in holder.things.items() if t.on_device or t.page}
            for number, holder in self.model.holders.items()
        }
        self.model.start_over()
        self.everybody(lambda me: self.recovered(me, lost, soak.rng.choice(tickets)))
        self.everybody(lambda me: op.verify_these(soak, me, list(me.things)))
        self.everybody(lambda me: op.drop_these(soak, me, lost[me.number] & me.things.keys()))
        soak.create_channels()
        soak.done["restart"] += 1

    def forsaken(self, me, told):
        """What it is letting go of just now, it has no more."""
        operation, *arguments = told
        keys = {"close": arguments, "drop": arguments and arguments[0]}.get(operation, ())
        for key in keys:
            me.things.pop(key, None)

    def recovered(self, me, lost, ticket):
        """What a member has inherited is called shared for ever."""
        error, value = yield "recover", list(me.things), ticket
        self.soak.require(error is None, me, f"another daemon: {error} {value}")
        times, shared, redeemed = value
        wrong = set(shared) - lost[me.number]
        self.soak.require(not wrong, me, f"things {wrong} are shared, and their daemon is gone")
        self.soak.require(times <= 1, me, f"the loss of the daemon is told {times} times")
        self.soak.require(redeemed is None, me, "a ticket of another daemon is good")

    # --------------------------------------------------------------------------- what was left open

    def seats(self):
        """The observer's, of channels that exist."""
        return {k: s for k, s in self.observer.seats.items() if not s.channel.is_over}

    def queues(self):
        """Those whose users died are emptied; the others must be as long as they should."""
        for key, seat in self.seats().items():
            channel = seat.channel
            if channel.is_topic:
                continue
            if channel.maybe or channel.lost:
                self.ask(ch.drain(self.soak, self.observer, key, seat))
                lost = list(channel.sent)
                self.require(len(lost) <= channel.lost, f"{channel.name}: {lost} are lost")
                channel.sent.clear(), channel.maybe.clear()
                channel.lost = 0
            depth = self.answer("channel_stats", key)["depth"]
            wanted = len(channel.sent)
            self.require(depth == wanted, f"{channel.name}: {depth} wait, not {wanted}")

    def topics(self):
        """Every message has been received by, or was counted as missed by, who had subscribed."""
        for key, seat in self.seats().items():
            channel = seat.channel
            if not channel.is_topic:
                continue
            head = self.answer("channel_stats", key)["messages"]
            most = channel.count + len(channel.maybe)
            self.require(
                channel.count <= head <= most, f"{channel.name}: {head} messages of {channel.count}"
            )
            channel.count = head
            channel.maybe.clear()
            for me in self.model.holders.values():
                for reader in me.seats.values():
                    if reader.channel is channel and reader.is_reader:
                        self.all_received(me, reader, head)
            last = self.last_of(key, channel) if "overflow" not in channel.options else None
            channel.sent = {last.number: last} if last else {}

    def all_received(self, me, seat, head):
        low, high = seat.begin
        begin = head - seat.received - seat.missed
        what = f"{seat.channel.name}: {seat.received} received, {seat.missed} missed of {head}"
        self.soak.require(low <= begin <= high, me, f"{what}, from between {low} and {high}")
        seat.begin = begin, begin

    def last_of(self, key, channel):
        """The last message, which a topic keeps for who subscribes to the latest."""
        if channel.count == 0:
            return None
        found = []

        def peek():
            me, reader = self.observer, next(self.model.keys)
            error, text = yield "subscribe", reader, key, True
            self.require(error is None, f"subscribe: {error} {text}")
            error, value = yield "receive_all", reader
            self.require(error is None and len(value[0]) == 1, f"the latest: {error} {value}")
            window = value[0][0]["leaves"][0][1][0]
            found.append(channel.find(channel.number_of(window)))
            self.soak.shows(me, f"the latest of {channel.name}", value[0][0], found[0].thing)
            yield "close", reader
            yield "drop", [reader]

        self.ask(peek())
        return found[0]

    def answer(self, *words):
        """The observer's."""
        answers = []

        def ask():
            answers.append((yield words))

        self.ask(ask())
        error, value = answers[0]
        self.require(error is None, f"{words}: {error} {value}")
        return value

    def boxes(self):
        for name, channel in list(self.model.channels.items()):
            if not channel.is_sure:
                self.ask(self.forgiving("delete", name))
                del self.model.channels[name]

    def tickets(self):
        """Those that may be spent, or taken back, are spent now; then those that nobody has go."""
        for ticket in self.model.tickets:
            if not ticket.is_spent and (ticket.is_leased or not ticket.is_sure):
                self.ask(self.forgiving("redeem", 0, ticket.data, error="Stale"))
                ticket.is_spent = ticket.is_sure = True
        if self.soak.ghosts:
            time.sleep(1.1)  # the lease
            words = "make", 0, (1, "|u1", (2 * self.soak.capacity,)), "empty", {}
            self.ask(self.forgiving(*words, error="OutOfMemory"))
            self.soak.ghosts = 0

    def forgiving(self, *words, error="NotFound"):
        got, text = yield words
        self.require(got in (None, error), f"{words}: {got} {text}")

    def names(self):
        """What may have been put or deleted is looked at."""
        for text, name in self.model.names.items():
            if name.maybe or name.is_leaving or (name.owner and name.owner.is_gone):
                self.ask(self.found(text, name))
            versions = [name.current] if name.current else []
            name.versions = {thing.version: thing for thing in versions}
            name.maybe.clear()

    def found(self, text, name):
        deadline = time.monotonic() + SETTLE
        while True:
            error, shown = yield "get", 0, text, {}
            must_go = name.owner and name.owner.is_gone
            if error or not must_go or time.monotonic() > deadline:
                break
            if shown["version"] != name.current.version:
                break
        if error is None:
            me = self.observer
            if name.current is None or shown["version"] != name.current.version:
                floor = name.current.version if name.current else 0
                thing = op.got(self.soak, me, (text, name), shown, floor)
                flights = [f for f in name.maybe if f.thing.shows() == thing.shows()]
                name.owner, name.current = flights[0].owner, thing
                name.until = time.monotonic() if flights[0].seconds else 0
            self.require(not must_go, f"{text!r} is there, but its owner is gone")
        else:
            self.require(error == "NotFound", f"get {text!r}: {error} {shown}")
            absent = name.may_be_absent(time.monotonic())
            self.require(absent, f"{text!r} is gone")
            name.current, name.owner, name.until = None, None, 0
        name.is_leaving = False

    def require(self, condition, what):
        self.soak.require(condition, self.observer, what)

    # --------------------------------------------------------------------------- what there must be

    def settle(self):
        """Waits until what the daemon tells is as it must be."""
        end = time.monotonic() + SETTLE
        while wrong := figures.differences(self.soak, *self.answer("figures")):
            if time.monotonic() > end:
                wrong += figures.missing(self.model, self.soak.daemon.path)
                self.soak.fail(None, "\n  ".join(["the daemon differs", *wrong]))

    # ------------------------------------------------------------------------------ nothing is left

    def empty(self):
        """All go but the old hands, who let go of all. What daemon and observer have then."""
        soak = self.soak
        soak.calm()
        for peer in list(soak.crew.peers.values()):
            if peer.number > 4:
                soak.kill(peer)
        soak.until(lambda: len(soak.crew.peers) <= 4)
        self.look()
        self.everybody(self.gives_up)
        for name in list(self.model.channels):
            self.ask(self.forgiving("delete", name))
        for ticket in self.model.tickets:
            if not ticket.is_spent:
                self.ask(self.forgiving("redeem", 0, ticket.data, error="Stale"))
        for text, name in self.model.names.items():
            self.ask(self.forgiving("delete", text))
            name.current, name.owner, name.until = None, None, 0
        self.model.channels.clear(), self.model.tickets.clear()
        self.settle()
        self.model.prune()
        measured = self.resources()
        soak.create_channels()
        return measured

    def gives_up(self, me):
        for key in list(me.seats):
            yield from ch.leave_it(self.soak, me, key)
        keys = list(me.things)
        yield "drop", keys
        me.things.clear()
        self.model.lease(me)

    def resources(self):
        """Of the daemon and of the observer, when nothing is kept warm, here or on a device."""
        pid = self.soak.daemon.pid

        def is_empty():
            return not any(map(MEMORY.search, d.descriptors(pid).values()))

        self.soak.daemon.settle(segments=0)
        d.settle(is_empty, "the end of all memory")
        return resources_of(pid), self.answer("resources")

    def flat(self, first, last):
        for who, before, after in zip(("daemon", "observer"), first, last, strict=True):
            more = [b - a for a, b in zip(before, after, strict=True)]
            grown = any(map(operator.gt, more, ROOM))
            links = sorted(d.descriptors(self.soak.daemon.pid).values())
            self.require(not grown, f"the {who} has grown from {before} to {after}; {links}")

    def end(self):
        """The last ones go, in good order."""
        soak = self.soak
        for me in list(self.model.holders.values()):
            if not me.is_gone:
                soak.doom(me, 0)
                soak.begin(me, leaves())
        soak.until(lambda: not soak.crew.peers)
        soak.daemon.settle_clean()
        soak.daemon.settle(tickets=0, segments=0)

    def report(self, seconds, first, last):
        soak = self.soak
        say = self.say
        total = sum(soak.done.values())
        say(f"{total} operations in {seconds:.0f} s ({total / seconds:.0f}/s):")
        for name, count in soak.done.most_common():
            say(f"  {name:14} {count}")
        say(f"deaths: {dict(soak.deaths)}; most bytes: {soak.largest >> 20} MiB")
        for who, before, after in zip(("daemon", "observer"), first, last, strict=True):
            say(f"{who}: resident KiB, descriptors, mappings: {before}, at the end {after}")


def whatever():
    """Instead of an operation whose answer does not matter."""
    yield


def leaves():
    yield "end", "exit"
