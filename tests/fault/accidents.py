"""Accidents at a chosen moment: SIGKILL at a message, the n-th malloc() that fails, and so on.

accident.c is preloaded into a client or a daemon and looks into a page that the test shares with
it; operations.c is the client, which does one operation at a time, as it is told.
"""

import ctypes
import errno
import mmap
import operator
import signal
import subprocess
from pathlib import Path

from daemon import COMPILER, PACKAGES, Daemon, bare_environment, descriptors, shared_maps
from helpers import Process

KILL, MEMORY, MAPPING, DESCRIPTOR, MESSAGE, SYSTEM, CONNECTION = (1 << bit for bit in range(7))
EVERYTHING = MEMORY | MAPPING | DESCRIPTOR | MESSAGE | SYSTEM | CONNECTION
VARIANTS = 5  # of the errors that a call may fail with

# Small slabs are quickly made, and 2 MiB are a segment of their own. What nobody uses goes at once,
# and a ticket without a sender when nobody is left.
OPTIONS = (
    "--capacity", "32M",
    "--reserve", "0", "--warm-seconds", "0", "--ticket-lease", "0.01",
)  # fmt: skip


class Page(ctypes.Structure):
    """accident.h: what is to happen in a process, and what has happened."""

    _fields_ = (
        *(
            (name, ctypes.c_int)
            for name in ("kinds", "at", "times", "variant", "passed", "happened")
        ),
        ("blocks", ctypes.c_long),
        ("function", ctypes.c_char * 48),
        ("number", ctypes.c_int),
    )


class Accidents:
    """The accidents of our code in one process; `environment` is for its start."""

    def __init__(self, built: Path, folder: str, name: str):
        self.path = path = f"{folder}/{name}.accidents"
        with open(path, "w+b") as file:
            file.truncate(mmap.PAGESIZE)
            self.page = Page.from_buffer(mmap.mmap(file.fileno(), mmap.PAGESIZE))
        self.environment = {
            "LD_PRELOAD": str(built / "accident.so"),
            "ACCIDENT": path,
            "ACCIDENT_ONLY_IN": "/tensorcx/",  # the library, the daemon, the extension
        }

    def plan(self, kinds: int, at: int, times: int = 1, variant: int = 0):
        self.page.kinds = 0
        self.page.at, self.page.times, self.page.variant = at, times, variant
        self.page.passed, self.page.happened, self.page.function = 0, 0, b""
        self.page.kinds = kinds

    def end(self) -> bool:
        """No more accidents. Whether there have been any."""
        self.page.kinds = 0
        return self.page.happened > 0

    @property
    def last(self) -> tuple[str, str]:
        """The function that failed last, and with which error; ("", "") when none has."""
        function = self.page.function.decode()
        return function, errno.errorcode[self.page.number] if function else ""

    @property
    def blocks(self) -> int:
        """How many pieces of malloc()'s memory the process has."""
        return self.page.blocks


class Client(Process):
    """Runs operations.c."""

    def __init__(self, built: Path, socket, accidents: Accidents, **environment: str):
        self.accidents = accidents
        environment |= accidents.environment
        super().__init__([built / "operations", socket], bare_environment(**environment))

    def do(self, words: str) -> tuple[int, str]:
        """The status and text that a word ends with."""
        self.tell(words)
        return self.answer()

    def answer(self) -> tuple[int, str]:
        status, _, text = self.line().partition(" ")
        return int(status), text

    def prepare(self, operation: str):
        assert self.do(f"prepare {operation}") == (0, "")

    def act(self, operation: str) -> tuple[int, str]:
        return self.do(f"act {operation}")

    def act_or_die(self, operation: str) -> tuple[int, str] | None:
        return self.do_or_die(f"act {operation}")

    def do_or_die(self, words: str) -> tuple[int, str] | None:
        """The same as do(), but None when it was killed."""
        self.tell(words)
        line = self.next_line()
        if line is None:
            assert self.end() == (-signal.SIGKILL, "")
            return None
        status, _, text = line.partition(" ")
        return int(status), text

    def drop(self, daemon: Daemon):
        """Lets go of what came of its operations, and waits until the daemon has it."""
        assert self.do("drop") == (0, "")
        daemon.settle(holds=1)  # what it keeps from the start

    def clean(self):
        """Gives everything back and closes its connection."""
        assert self.do("clean") == (0, "")

    def possessions(self) -> tuple[int, int, int]:
        """How many descriptors, shared mappings and pieces of memory it has."""
        return len(descriptors(self.pid)), len(shared_maps(self.pid)), self.accidents.blocks


def no_more(now: tuple[int, ...], before: tuple[int, ...]) -> bool:
    return all(map(operator.le, now, before))


def nothing_remains(daemon: Daemon):
    """Waits until the daemon has nothing, but for the names that clients left."""
    with daemon.connect() as second:
        for name in [*second.names(), *(c["name"] for c in second.channels() if c["name"])]:
            second.delete(name)
        second.put("after", b"still here")
        assert second.get("after")["grant"]["nbytes"] == 10
        second.delete("after")
    daemon.settle(
        clients=0, holds=0, storages=0, bytes=0, names=0, tickets=0, waiting=0, segments=0
    )


def compile_all(folder: Path):
    """Builds accident.so and operations in `folder`."""
    here = Path(__file__).parent
    package = PACKAGES / "tensorcx"
    compiler = [
        *COMPILER,
        "-std=gnu11",
        "-D_GNU_SOURCE",
        "-Wall",
        "-O1",
        "-pthread",
    ]
    preloaded = ["-shared", "-fPIC"]
    if "sanitize" in " ".join(COMPILER):  # the program's malloc() is theirs, and comes after ours
        names = ("malloc", "calloc", "realloc", "free")
        preloaded += [f"-D__libc_{name}=__interceptor_{name}" for name in names]
        preloaded += ["-DSANITIZED", "-fno-sanitize=all", "-ftls-model=initial-exec"]
        preloaded += ["-foptimize-sibling-calls"]
    library = ["-I", package / "include", package / "lib" / "libtensorcx.so.0"]
    library += [f"-Wl,-rpath,{package}/lib"]
    for command in (
        [*preloaded, here / "accident.c", "-o", folder / "accident.so", "-ldl"],
        [*here.glob("operations*.c"), "-o", folder / "operations", *library],
    ):
        subprocess.run([*compiler, *command], check=True)
