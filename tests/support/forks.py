"""Forked children that a test runs a function in."""

import contextlib
import itertools
import os
import select
import traceback

from daemon import DEADLINE


class Child:
    """Runs `function(child)` in a fork of this process, which ends by os._exit().

    The two talk by say() and hear(). The end of the `with` block waits for the child, which must
    have ended with `code`. What a function raises is shown on stderr and ends it with 1.
    """

    def __init__(self, function, code=0):
        self.code = code
        ours, theirs = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(ours[1]), os.close(theirs[0])
            self._reader, self._writer = ours[0], theirs[1]
            os._exit(self._run(function))
        self._reader, self._writer = theirs[0], ours[1]
        os.close(ours[0]), os.close(theirs[1])

    def _run(self, function):
        try:
            function(self)
        except BaseException as error:
            if isinstance(error, SystemExit):
                return error.code or 0
            traceback.print_exc()
            return 1
        return 0

    def close_others(self):
        """In the child: closes what it has inherited, but for what it talks by."""
        kept = sorted({0, 1, 2, self._reader, self._writer})
        for below, above in itertools.pairwise([*kept, 1 << 16]):
            os.closerange(below + 1, above)

    def say(self, text="."):
        os.write(self._writer, text.encode() + b"\n")

    def hear(self) -> str:
        """The next line; "" when the other side has ended."""
        text = b""
        while not text.endswith(b"\n"):
            assert select.select([self._reader], [], [], DEADLINE)[0], "nothing was said"
            byte = os.read(self._reader, 1)
            if not byte:
                return ""
            text += byte
        return text.decode().strip()

    def wait(self):
        with contextlib.suppress(OSError):
            os.close(self._writer), os.close(self._reader)
        got = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        assert got == self.code, f"the child ended with {got}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.wait()
