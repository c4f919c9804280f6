"""A signal at a chosen step of a process, and everybody else as witnesses.

`make steps` builds daemon and library so that they count the steps that they reach (proto/step),
and look into a page that the test shares with them, whether a signal is to come. operations.c
is the client that does something, witness.c those whose data must not suffer.
"""

import ctypes
import mmap
import os
import re
import signal
from pathlib import Path

from accidents import OPTIONS, Client
from daemon import ROOT, Daemon, bare_environment, settle, shm_files
from helpers import Process
from wire_table import Status

BUILT = Path(os.environ.get("TENSORCX_STEPS_BUILD", ROOT / "build" / "steps"))
PROGRAM = str(BUILT / "bin" / "tensorcxd")
LIST = ROOT / "proto" / "step" / "steps.def"

SIDES = dict(re.findall(r"^STEP\((\w+), (CLIENT|DAEMON|BOTH),", LIST.read_text(), re.M))
NAMES = list(SIDES)
NONE = len(NAMES)
SIDE_NAMES = ("client", "daemon")

PATIENCE = "0.15"  # of the impatient, in seconds

ALIKE = (
    "clients", "holds", "storages", "bytes", "names", "tickets", "channels", "waiting", "segments",
)  # fmt: skip


def below(*titles: str) -> list[str]:
    """The steps below these comment lines of the list."""
    parts = re.split(r"^/\* (.*) \*/$", LIST.read_text(), flags=re.M)
    texts = [parts[parts.index(title) + 1] for title in titles]
    return [step for text in texts for step in re.findall(r"^STEP\((\w+)", text, re.M)]


OF_START, OF_END = below("A daemon begins"), below("A daemon ends")
OF_PASSED_SOCKET = below("A daemon on a passed socket")
OF_CHANNELS = below("The ring of a channel", "A client's channels", "The daemon's channels")
OF_CUDA = below("CUDA")
OF_THE_REST = set(NAMES).difference(OF_START, OF_END, OF_PASSED_SOCKET, OF_CHANNELS, OF_CUDA)


def by_side(names: list[str]) -> tuple[list[str], ...]:
    """Those of these steps that only a client reaches, and those that only a daemon does."""
    return tuple([name for name in names if SIDES[name] == side] for side in ("CLIENT", "DAEMON"))


def unreached(hits: dict, wanted) -> set[str]:
    """Which of these steps no operation has reached, with the side that has not."""
    reached = {side: {s for found in hits.values() for s in found[side]} for side in SIDE_NAMES}
    return {
        f"{step} ({side})"
        for step in wanted
        for side in SIDE_NAMES
        if SIDES[step] in (side.upper(), "BOTH") and step not in reached[side]
    }


class Page(ctypes.Structure):
    """step.c: at which step a signal is to come, whom it came to, how often each was reached."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("step", "at", "signal", "pid")),
        ("hits", ctypes.c_int * len(NAMES)),
    )


class Plan:
    """What is to happen in one process and its children; `environment` is for its start."""

    def __init__(self, folder: str, name: str):
        path = f"{folder}/{name}.steps"
        with open(path, "w+b") as file:
            file.truncate(ctypes.sizeof(Page))
            self.page = Page.from_buffer(mmap.mmap(file.fileno(), ctypes.sizeof(Page)))
        self.begin()
        self.environment = {"TENSORCX_STEPS": path}

    def start_over(self):
        """For another process."""
        ctypes.memset(self.page.hits, 0, ctypes.sizeof(self.page.hits))
        self.begin()

    def begin(self, step: str | None = None, at: int = 1, number: int = signal.SIGKILL):
        """Counts from here on; the signal comes the at-th time that `step` is reached."""
        self.page.step = NONE
        self.step = step
        self.begun = list(self.page.hits)
        self.has_come = False
        self.page.signal, self.page.pid = number, 0
        if step:
            self.page.at = self.begun[NAMES.index(step)] + at
            self.page.step = NAMES.index(step)

    def has_stopped(self) -> bool:
        """Whether somebody is stopped at the step."""
        return self.page.pid != 0 and state(self.page.pid) == "T"

    def resume(self):
        self.has_come = True
        os.kill(self.page.pid, signal.SIGCONT)
        self.page.pid = 0

    def end(self) -> bool:
        """No more signals. Whether one has come."""
        self.page.step = NONE
        return self.happened()

    def happened(self) -> bool:
        return self.has_come or self.page.pid != 0

    def hits(self) -> dict[str, int]:
        """How often each step was reached since it began."""
        counts = zip(NAMES, self.page.hits, self.begun, strict=True)
        return {name: now - before for name, now, before in counts if now > before}

    def total(self, step: str) -> int:
        return self.page.hits[NAMES.index(step)]


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


class Witness(Process):
    """Runs witness.c."""

    def __init__(self, socket, seed: int, **environment: str):
        self.is_impatient = "TENSORCX_TIMEOUT" in environment
        command = [BUILT / "fault" / "witness", socket, str(seed)]
        environment = {"TENSORCX_AUTOSTART": "0", "TENSORCXD": PROGRAM} | environment
        super().__init__(command, bare_environment(**environment))

    def do(self, word: str) -> tuple[int, str]:
        self.tell(word)
        return self.answer()

    def answer(self) -> tuple[int, str]:
        status, _, text = self.line().partition(" ")
        return int(status), text

    def must(self, word: str):
        """It works; who is impatient may have to ask again."""
        said = self.do(word)
        while self.is_impatient and said[0] == Status.TIMEOUT:
            said = self.do(word)
        assert said == (0, ""), f"a witness's {word}"


def names(connection) -> list[bytes]:
    """Of tensors and of channels."""
    channels = (channel["name"].encode() for channel in connection.channels())
    return [*connection.names(), *filter(None, channels)]


class Stage:
    """A daemon with steps, and clients beside the one that something happens to.

    All have had tensors from the start. The keeper only looks at them, the worker puts and gets
    others, and the impatient one asks for something while nobody can answer.
    """

    def __init__(self, folder: str, *options: str):
        self.folder = folder
        self.files = shm_files()
        self.plan = Plan(folder, "daemon")
        self.options = options
        self.start()
        self.empty = self.daemon.footprint()
        self.keeper = Witness(self.daemon.path, 1)
        self.worker = Witness(self.daemon.path, 2)
        self.impatient = Witness(self.daemon.path, 3, TENSORCX_TIMEOUT=PATIENCE)
        self.witnesses = (self.keeper, self.worker, self.impatient)
        for witness in self.witnesses:
            witness.must("hold")
        self.before = self.stats()

    def start(self):
        """A daemon, the first or the next one."""
        env = bare_environment(**self.plan.environment)
        options = (*OPTIONS, *self.options)
        self.plan.start_over()
        self.daemon = Daemon(self.folder, *options, program=PROGRAM, env=env)

    def stats(self) -> dict[str, int]:
        stats = self.daemon.stats()
        return {name: stats[name] for name in ALIKE}

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        for witness in self.witnesses:
            witness.__exit__(kind)
        self.daemon.kill()

    def client(self) -> Client:
        return Client(BUILT / "fault", self.daemon.path, Plan(self.folder, "client"))

    def go_on(self):
        """Lets the daemon go on, which an operation may have stopped."""
        self.daemon.process.send_signal(signal.SIGCONT)

    def prepare(self, client: Client, operation: str):
        """Sets the scene, and waits until who helped with that has gone."""
        client.prepare(operation)
        with self.daemon.connect() as other:
            count = sum(c["pid"] == client.pid and c["connected"] for c in other.clients())
            self.members_join(other)
        self.rest(count)

    def rest(self, others: int = 0):
        """Waits until the daemon has done with all clients but the witnesses and `others`."""

        def is_resting():
            clients = self.plan.total("CLIENT_OPENED") - self.plan.total("CLIENT_GONE")
            dying = self.plan.total("SEGMENT_DOOMED") - self.plan.total("SEGMENT_FREED")
            return clients == len(self.witnesses) + others and dying == 0

        settle(is_resting, "the daemon's rest")

    def others_go_on(self, plan: Plan):
        """While somebody is stopped at a step."""
        self.worker.must("work")
        self.keeper.must("look")
        self.members_go_on(plan)

    def has_outcome(self, operation: str, was_killed: bool):
        """What came of it is what may have come of it."""

    def members_join(self, connection):
        """Those of a channel, which the daemon tells of."""

    def members_go_on(self, plan: Plan):
        """While somebody is stopped at a step: those who need no daemon."""

    def is_as_before(self):
        """The witnesses' data is whole, and the daemon has nothing else."""
        for witness in self.witnesses:
            witness.must("check")
            witness.must("look")
        self.worker.must("work")
        settle(self.has_only_theirs, f"the daemon's {self.before}")

    def has_only_theirs(self) -> bool:
        with self.daemon.connect() as other:
            for name in names(other):
                if not name.startswith(b"witness-"):
                    other.delete(name)
            other.send("ALLOC", nbytes=1 << 40, device_type=1)  # takes back what nobody redeems
            other.receive()
        return self.stats() == self.before

    def close(self):
        """Everybody leaves, and nothing remains."""
        for witness in self.witnesses:
            witness.must("leave")
            witness.finish()
        with self.daemon.connect() as other:
            for name in names(other):
                other.delete(name)
        self.daemon.settle_footprint(self.empty)
        self.daemon.stop()
        settle(lambda: shm_files() <= self.files, "the end of what has a name in /dev/shm")


def words(operation: str) -> tuple[str, ...]:
    """What a client is told from its beginning of an operation to its leaving."""
    return f"act {operation}", "drop", "clean"
