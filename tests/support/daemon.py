"""A daemon of the tests' own, on a private socket, watched from outside.

TENSORCXD names another program to run (one built with sanitizers, say).
"""

import contextlib
import os
import re
import select
import signal
import subprocess
import time
from pathlib import Path

import wire

DEADLINE = wire.DEADLINE
ROOT = Path(__file__).resolve().parents[2]
PACKAGES = Path(os.environ.get("TENSORCX_PACKAGES", ROOT / "build" / "python"))
PROGRAM = os.environ.get("TENSORCXD", str(PACKAGES / "tensorcx" / "lib" / "tensorcxd"))
COMPILER = os.environ.get("CC", "cc").split()  # with options that what was built needs

OURS = re.compile(r"/dev/shm/#|/memfd:")  # how the kernel shows segments and life pages


def settle(condition, what="the condition", deadline=DEADLINE):
    """Asks until `condition()` is true and returns its value; fails after a generous deadline."""
    end = time.monotonic() + deadline
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not come true within {deadline} s")
        select.select([], [], [], 0.005)


def is_alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def descriptors(pid="self") -> dict[int, str]:
    """Open descriptors of a process and what they are."""
    found = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that lists the folder
            found[int(entry.name)] = os.readlink(entry)
    return found


def shared_maps(pid="self") -> list[str]:
    """The mappings of our segments and life pages in a process."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return list(filter(OURS.search, lines))


def shm_files() -> set[str]:
    """What of ours has a name in /dev/shm: nothing, ever."""
    return {name for name in os.listdir("/dev/shm") if name.startswith("tensorcx")}


def bare_environment(**extra: str) -> dict[str, str]:
    """This environment without what steers tensorcx, plus `extra`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TENSORCX", "XDG_RUNTIME"))}
    return kept | {"PYTHONPATH": str(PACKAGES), "TENSORCXD": PROGRAM} | extra


class Daemon:
    """Runs `tensorcxd OPTIONS` in the foreground until stop() or the end of the `with` block.

    Without a reserve, so that its counters show what the test does.
    """

    def __init__(self, directory, *options: str, socket_name="d.sock", **popen):
        self.path = Path(directory) / socket_name
        self.log_path = Path(directory) / "daemon.log"
        ready, theirs = os.pipe()
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [
                    popen.pop("program", PROGRAM),
                    "--socket",
                    self.path,
                    "--ready-fd",
                    str(theirs),
                    "--reserve=0",
                    *options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs, *popen.pop("pass_fds", ())],
                env=popen.pop("env", None) or bare_environment(),
                **popen,
            )
        os.close(theirs)
        with open(ready, "rb") as answer:
            said = answer.read() if select.select([answer], [], [], DEADLINE)[0] else b"nothing"
        if said != b"R":
            self.process.kill()
            self.process.wait()
            raise RuntimeError(f"tensorcxd said {said!r}; log: {self.log()}")

    @property
    def pid(self) -> int:
        return self.process.pid

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.stop()
        else:
            self.kill()

    def stop(self):
        """Ends it in good order; a daemon that does not end with 0 fails the test."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        code = self.process.wait(DEADLINE)
        assert code == 0, f"tensorcxd ended with {code}; log: {self.log()}"

    def kill(self):
        self.process.kill()
        self.process.wait(DEADLINE)

    @contextlib.contextmanager
    def stopped(self):
        """None of its threads runs until the end of the block."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            settle(lambda: all(state == "T" for state in self._states()), "the daemon to stop")
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def _states(self) -> list[str]:
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks]

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    # ------------------------------------------------------------------------------------ looking

    def connect(self, **options) -> wire.Connection:
        return wire.Connection(self.path, **options)

    def stats(self) -> dict[str, int]:
        """What a fresh client is told; it does not count itself."""
        with self.connect(program="observer") as observer:
            stats = observer.stats()
        stats["clients"] -= 1
        return stats

    def settle(self, **wanted: int) -> dict[str, int]:
        """Waits until the statistics are as wanted, e.g. settle(clients=0, bytes=0)."""
        seen: dict[str, int] = {}

        def reached():
            seen.update(self.stats())
            return all(seen[name] == value for name, value in wanted.items())

        try:
            settle(reached)
        except AssertionError as error:
            shown = {name: seen[name] for name in wanted}
            raise AssertionError(f"wanted {wanted}, the daemon stays at {shown}") from error
        return seen

    def settle_clean(self) -> dict[str, int]:
        """Waits until nothing is left: no client, storage, name, channel, waiter."""
        nothing = dict.fromkeys(("clients", "holds", "storages", "bytes", "names", "waiting"), 0)
        return self.settle(**nothing, channels=0)

    def footprint(self) -> tuple[int, int]:
        """Descriptors and shared mappings of the daemon with one client and no segment.

        It closes what it has done with in its own time, so this waits until it has.
        """
        self.settle(clients=0, segments=0)
        with self.connect() as observer:

            def links():
                observer.stats()
                return list(descriptors(self.pid).values())

            settle(lambda: not any(map(OURS.search, links())), "the segments' end")
            return len(links()), len(shared_maps(self.pid))

    def settle_footprint(self, before: tuple[int, int]):
        """Waits until there are no more descriptors and mappings than `before`."""

        def reached():
            now = self.footprint()
            return now[0] <= before[0] and now[1] <= before[1]

        settle(reached, f"the daemon's footprint {before}")
