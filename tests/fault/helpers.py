"""Programs that a fault test starts, talks to by lines, and kills."""

import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from daemon import DEADLINE, bare_environment

LONG = 20 * DEADLINE  # of programs in slow tests

SUPPORT = Path(__file__).resolve().parents[1] / "support"

TALK = """
import os, signal, sys
def say(*words): print(*words, flush=True)
def hear(): return sys.stdin.readline().strip()
def die(): os.kill(os.getpid(), signal.SIGKILL)
def become(uid): os.setgroups([]); os.setgid(uid); os.setuid(uid)
"""
PACKAGE = TALK + "import numpy as np\nimport tensorcx as cx\n"
RAW = f"""{TALK}
sys.path.insert(0, {str(SUPPORT)!r})
import wire
PATH = os.environ["TENSORCX_SOCKET"]
"""


class Process:
    """A process that is talked to by lines."""

    def __init__(self, command, env, **popen):
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            **popen,
        )
        self.heard = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in self.process.stdin, self.process.stdout, self.process.stderr:
            pipe.close()

    def has_answered(self) -> bool:
        """Whether there is something to hear, or its end."""
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def next_line(self) -> str | None:
        """The next line the program says; None when it ends instead."""
        end = time.monotonic() + DEADLINE
        while b"\n" not in self.heard:
            if not select.select([self.process.stdout], [], [], end - time.monotonic())[0]:
                raise AssertionError(f"the program says nothing; so far: {self.heard!r}")
            piece = os.read(self.process.stdout.fileno(), 65536)
            if not piece:
                return None
            self.heard += piece
        line, _, self.heard = self.heard.partition(b"\n")
        return line.decode()

    def line(self) -> str:
        """The next line the program says; fails with its stderr when it ends instead."""
        line = self.next_line()
        if line is None:
            code = self.process.wait(DEADLINE)
            error = self.process.stderr.read().decode(errors="replace")
            raise AssertionError(f"the program ended with {code}: {self.heard!r}\n{error}")
        return line

    def expect(self, word: str) -> str:
        """Waits for a line that begins with `word`; returns the rest of it."""
        line = self.line()
        assert line.startswith(word), f"expected {word!r}, heard {line!r}"
        return line[len(word) :].strip()

    def tell(self, word: str = ""):
        self.process.stdin.write(word.encode() + b"\n")
        self.process.stdin.flush()

    def end(self, deadline=DEADLINE) -> tuple[int, str]:
        """Waits for the end of the program: exit code (negative: signal) and stderr."""
        _, error = self.process.communicate(timeout=deadline)
        return self.process.returncode, error.decode(errors="replace")

    def finish(self, deadline=DEADLINE):
        """The same, and it must have ended well and in silence."""
        code, error = self.end(deadline)
        assert (code, error) == (0, ""), f"the program ended with {code}:\n{error}"

    def kill(self, number=signal.SIGKILL):
        self.process.send_signal(number)
        self.process.wait(DEADLINE)


class Program(Process):
    """A Python program with numpy as np, tensorcx as cx, and say(), hear(), die(), become().

    `raw` gives it the hand-made client (wire, PATH) instead, which starts faster. It finds the
    daemon by `socket` and starts none itself unless its environment says so.
    """

    def __init__(self, code: str, *args, socket=None, raw=False, env=None, **popen):
        environment = bare_environment(TENSORCX_AUTOSTART="0")
        if socket is not None:
            environment["TENSORCX_SOCKET"] = str(socket)
        prelude = RAW if raw else PACKAGE
        command = [sys.executable, "-c", prelude + textwrap.dedent(code), *args]
        super().__init__(command, environment | (env or {}), **popen)


def run(code: str, *args, **options):
    """Starts a program, waits for its end, which must be good."""
    with Program(code, *args, **options) as program:
        program.finish()


def resident_bytes(pid="self") -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
