"""What the examples measure, and what they say at their end."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorcx as cx


def wait_until(holds: Callable[[], bool]) -> bool:
    """Waits at most 30 s; whether it came true."""
    deadline = time.monotonic() + 30
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds()


def is_freed(held: int) -> bool:
    """Whether the daemon comes to hold no more than that; of ends it hears a moment later."""
    return wait_until(lambda: cx.stats()["bytes"] <= held)


def stats_at_rest() -> dict[str, Any]:
    """What the daemon has when it is done making its reserve: that is not this program's."""
    before = cx.stats()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        time.sleep(0.3)
        now = cx.stats()
        if now["committed_bytes"] == before["committed_bytes"]:
            return now
        before = now
    raise SystemExit(
        f"the daemon at {before['socket']} does not come to rest, other programs use it:"
        " name another TENSORCX_SOCKET, and this program has a daemon of its own"
    )


def memory(pid: int) -> int:
    """Bytes a process uses; a page that n processes share counts as 1/n in each of them (Pss)."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no Pss in /proc/{pid}/smaps_rollup")


def verdict(checks: dict[str, bool]) -> int:
    """Prints them; the program's exit status."""
    for what, holds in checks.items():
        print(f"{'yes' if holds else 'NO '} {what}")
    return 0 if all(checks.values()) else 1
