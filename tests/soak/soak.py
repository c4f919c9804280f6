"""The conductor: tells members what to do, kills them, and compares what they see with the model.

python soak.py --seconds 1800 --members 64 --seed 1
"""

import argparse
import collections
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))

import crew  # noqa: E402
import daemon as d  # noqa: E402
import fakecuda  # noqa: E402
import inspection  # noqa: E402
import operations as op  # noqa: E402
import operations_channels as ch  # noqa: E402
from judge import Judge  # noqa: E402
from model import Holder, Model, Name  # noqa: E402

OPERATIONS = [
    (op.make, 8), (op.put, 14), (op.get, 16), (op.get_in_threads, 1), (op.wait, 2), (op.delete, 3),
    (op.view, 10), (op.part, 5), (op.verify, 8), (op.drop, 9), (op.look_around, 1),
    (op.ticket, 4), (op.redeem, 4), (op.redeem_again, 2),
    (ch.join, 3), (ch.subscribe, 4), (ch.leave, 2), (ch.send, 14), (ch.receive, 16),
    (ch.post, 1), (ch.collect, 1),
]  # fmt: skip
LOCAL = {
    "verify",
    "drop",
    "close",
    "view",
    "part",
    "fork",
    "write",
}  # of these the daemon knows nothing
CAPACITY = 1 << 30
LOG = d.ROOT / "build" / "soak.log"  # of the one that failed last
PATIENCE = 60  # seconds for any answer
OLD_HANDS = 4  # members that live to the end; the first is the observer, which has devices


class Soak(Judge):
    def __init__(self, daemon, team: crew.Crew, seed: int, members: int):
        super().__init__(Model(), seed, CAPACITY)
        self.daemon, self.crew, self.members, self.seed = daemon, team, members, seed
        self.options = OPTIONS
        self.chance = random.Random(seed + 1)  # of accidents
        self.running: dict[int, object] = {}  # operations, by member
        self.legacies: dict[int, dict] = {}  # what a child inherits
        self.log = collections.deque(maxlen=50_000)
        self.done, self.deaths = collections.Counter(), collections.Counter()
        self.largest = 0
        self.is_daemon_stopped = False
        self.is_down = False  # the daemon is to be gone
        self.dropped = 0  # clients, for breaking the protocol
        self.appointments = []  # (when, what to do), after a stop
        self.next_accident = 0.0
        for kind, count in ("n", 40), ("e", 10), ("t", 10), ("d", 6):
            self.model.names |= {f"{kind}/{i}": Name() for i in range(count)}
        for _ in range(members):
            self.crew.spawn()
        self.until(lambda: 1 in self.model.holders)
        self.create_channels()

    def create_channels(self):
        for name in ch.KINDS:
            self.run(self.observer, ch.create(self, self.observer, name))

    @property
    def observer(self) -> Holder:
        return self.model.holders[1]

    # ------------------------------------------------------------------------------ what goes wrong

    def fail(self, me, what):
        words = [f"member {me.number} "] if me else []
        words += [word for word in what.replace(":", " ").split() if "/" in word]
        told = [line for line in self.log if any(word in line for word in words)]
        story = "\n".join(f"    {line}" for line in told[-30:])
        LOG.write_text("\n".join(self.log))
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = None if self.is_down else self.daemon.process.wait(1)
            what += f" (the daemon has ended with {code}: {self.daemon.log()[-2000:]})"
        raise AssertionError(
            f"seed {self.seed}, {me and self.crew.peers.get(me.number)}: {what}\n{story}"
        )

    def note(self, number, text):
        self.log.append(f"{time.monotonic():.4f} member {number} {text:.400}")

    # ----------------------------------------------------------------------------------- operations

    def begin(self, me, generator):
        self.running[me.number] = generator
        self.advance(me, generator)

    def advance(self, me, generator, answer=None):
        try:
            *words, last = generator.send(answer)
        except StopIteration:
            del self.running[me.number]
            return
        descriptor = last if hasattr(last, "fileno") else None
        words = words if descriptor else [*words, last]
        self.note(me.number, f"{words}")
        self.crew.tell(self.crew.peers[me.number], *words, descriptor=descriptor)

    def run(self, me, generator):
        """To its end."""
        self.begin(me, generator)
        self.until(lambda: me.number not in self.running)

    def until(self, condition):
        while not condition():
            self.turn(0.05)

    def turn(self, seconds):
        """What has happened is judged."""
        for peer, kind, what in self.crew.events(seconds):
            getattr(self, f"on_{kind}")(peer, what)
        for peer in self.crew.hanging(PATIENCE):
            self.fail(self.model.holders.get(peer.number), f"no answer to {peer.told}")
        if self.daemon.process.poll() is not None and not self.is_down:
            self.fail(
                None, f"the daemon ended with {self.daemon.process.returncode}: {self.daemon.log()}"
            )

    def on_born(self, peer, pid):
        self.note(peer.number, f"is born, pid {pid}")
        things = self.legacies.pop(peer.number, None)
        cuda = things is None and (peer.number % 4 == 0 or peer.number == 1)
        holder = Holder(peer.number, pid, things=things or {}, uses_cuda=cuda)
        self.model.holders[peer.number] = holder

    def on_answer(self, peer, answer):
        self.note(peer.number, f"-> {answer}")
        me = self.model.holders[peer.number]
        self.done[peer.told[0]] += 1
        me.is_connected |= peer.told[0] not in LOCAL
        self.advance(me, self.running[peer.number], answer)

    def on_gone(self, peer, code):
        self.note(peer.number, f"ended with {code}")
        me = self.model.holders.get(peer.number)
        self.legacies.pop(peer.number, None)
        if me is None:
            return
        if code not in peer.codes:
            self.fail(me, f"ended with {code}")
        generator = self.running.pop(peer.number, None)
        self.deaths["in an operation" if generator else "idle"] += 1
        try:
            if generator:
                generator.throw(op.Died)
        except op.Died:
            pass
        self.model.forget(me)

    # ------------------------------------------------------------------------------------- mischief

    def work(self):
        """Everybody has something to do; as many come as have gone."""
        peers = [p for p in self.crew.peers.values() if not p.is_deaf]
        for _ in range(self.members - len(peers)):
            self.crew.spawn()
        idle = self.model.holders.keys() & self.crew.peers.keys() - self.running.keys() - {1}
        for number in idle:
            self.begin(self.model.holders[number], self.something(self.model.holders[number]))
        if not self.running.get(1) and self.rng.random() < 0.002:
            seats = [k for k, s in self.observer.seats.items() if s.channel.users == 0]
            if seats:
                self.begin(self.observer, ch.renew(self, self.observer, self.rng.choice(seats)))

    def something(self, me):
        crowded = len(me.things) > 40
        if crowded:
            return op.drop(self, me)
        if len(me.seats) > 6:
            return ch.leave(self, me)
        chance = self.rng.random()
        if chance < 0.003 and me.number > OLD_HANDS:
            return end(self, me)
        if chance < 0.006 and not me.uses_cuda and len(self.crew.peers) < self.members * 5 // 4:
            return fork(self, me)
        operation = self.rng.choices(*zip(*OPERATIONS, strict=True))[0]
        return operation(self, me)

    def accidents(self):
        """Some are killed, at whatever they do; some are stopped, and go on or are killed then."""
        now = time.monotonic()
        due = [each for each in self.appointments if each[0] <= now]
        self.appointments = [each for each in self.appointments if each[0] > now]
        for _, act in due:
            act()
        if now < self.next_accident:
            return
        self.next_accident = now + self.chance.expovariate(6)
        what = self.chance.choices([self.hurt_somebody, self.be_rude, self.stop_daemon], [90, 8, 2])
        what[0]()

    def later(self, act, most=3.0):
        """Mostly soon."""
        self.appointments.append((time.monotonic() + self.chance.random() ** 3 * most, act))

    def hurt_somebody(self):
        peer = self.chance.choice(list(self.crew.peers.values()))
        if peer.is_deaf or not peer.pid or peer.is_stopped or peer.codes:
            return
        is_mortal = peer.number > OLD_HANDS
        if is_mortal and self.chance.random() < 0.6:
            self.kill(peer, self.chance.choice([9, 9, 9, 15]))
        elif peer.number != 1:
            self.crew.stop(peer)
            dies = is_mortal and self.chance.random() < 0.4
            self.later(lambda: self.kill(peer) if dies else self.crew.go_on(peer))

    def be_rude(self):
        """A client that speaks the protocol by hand, ends with memory in use, or with nonsense."""
        if self.is_daemon_stopped:
            return
        with self.daemon.connect(program="rude") as raw:
            raw.alloc(self.chance.randrange(1, 1 << 20))
            if self.chance.random() < 0.5:
                raw.send_bytes(b"nonsense" * 10)
                self.dropped += 1

    def stop_daemon(self):
        self.daemon.process.send_signal(signal.SIGSTOP)
        self.is_daemon_stopped = True
        self.later(self.continue_daemon, 1.0)

    def continue_daemon(self):
        self.daemon.process.send_signal(signal.SIGCONT)
        self.is_daemon_stopped = False

    def kill(self, peer, number=signal.SIGKILL):
        self.doom(self.model.holders[peer.number], -number)
        self.crew.kill(peer, number)

    def doom(self, me, code):
        me.is_doomed = True
        self.crew.peers[me.number].codes.add(code)

    def go(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.accidents()
            self.work()
            self.turn(0.01)
            self.largest = max(self.largest, sum(s.nbytes for s in self.model.storages.values()))

    def wake(self):
        """Nobody is stopped."""
        self.continue_daemon()
        for peer in self.crew.peers.values():
            if peer.is_stopped:
                self.crew.go_on(peer)
        self.appointments.clear()

    def is_calm(self):
        passing = (p for p in self.crew.peers.values() if p.codes or p.is_deaf or not p.pid)
        return not self.running and not any(passing)

    def calm(self):
        """Nobody is stopped, nobody dies, nobody does anything."""
        self.wake()
        while not self.is_calm():
            for text, name in self.model.names.items():
                if name.waiters and 1 not in self.running and name.users >= 0:
                    cell = self.cell([1, 0, 0, 0])
                    what = op.spec(cell), op.fresh(cell)
                    put = op.put_it(self, self.observer, (text, name), what, {})
                    self.begin(self.observer, put)
            self.turn(0.01)


# --------------------------------------------------------------------------------- coming and going


def fork(soak, me):
    """A child has some of what its parent has."""
    things = {k: t for k, t in me.things.items() if soak.rng.random() < 0.5}
    page = soak.model.page(me)
    peer, theirs = soak.crew.expect()
    soak.legacies[peer.number] = {
        k: t.like(page=(t.page or page) if t.storages or t.channel else None)
        for k, t in things.items()
    }
    try:
        error, text = yield "fork", list(things), theirs
    finally:
        theirs.close()
    soak.require(error is None, me, f"fork: {error} {text}")


def end(soak, me):
    """In good order, or less so."""
    how, code = soak.rng.choice([("exit", 0), ("exception", 1), ("exec", 0), ("_exit", 3)])
    soak.doom(me, code)
    yield "end", how


# -------------------------------------------------------------------------------------- the program

OPTIONS = ["--capacity", str(CAPACITY), "--warm-seconds", "1", "--ticket-lease", "1"]


def soak(seconds: float, members: int, seed: int, interval: float, say=print) -> Soak:
    """The last sixth of the time the daemon itself is killed now and then."""
    files = d.shm_files()
    say(f"seed {seed}, {seconds:.0f} s, {members} members")
    with fakecuda.machine(), tempfile.TemporaryDirectory(prefix="tcx-") as folder:
        daemon = d.Daemon(folder, *OPTIONS)
        environment = d.bare_environment(
            TENSORCX_SOCKET=str(daemon.path), TENSORCX_AUTOSTART="0", OPENBLAS_NUM_THREADS="1"
        )
        team = crew.Crew(environment, crew.program())
        world = Soak(daemon, team, seed, members)
        try:
            inspection.Inspection(world, say).run(seconds, interval)
            code = team.end()
            assert code == 0, f"the parent of all ended with {code}"
            world.daemon.stop()
        finally:
            team.parent.kill()
            world.daemon.kill()
    d.settle(lambda: d.shm_files() <= files, "the end of our files in /dev/shm")
    return world


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--members", type=int, default=64)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3)))
    parser.add_argument("--interval", type=float, default=20, help="seconds between inspections")
    given = parser.parse_args()
    soak(given.seconds, given.members, given.seed, given.interval)


if __name__ == "__main__":
    main()
