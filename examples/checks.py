"""What the examples of queues and topics say at their end."""

import time
from collections.abc import Callable

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


def verdict(checks: dict[str, bool]) -> int:
    """Prints them; the program's exit status."""
    for what, holds in checks.items():
        print(f"{'yes' if holds else 'NO '} {what}")
    return 0 if all(checks.values()) else 1
