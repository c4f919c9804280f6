"""A client that dies between asking for memory and publishing it leaves nothing, at any point."""

import signal

import pytest
from helpers import Program

MiB = 1 << 20

POINTS = {
    "alloc written": "c.send('ALLOC', nbytes=N, device_type=1)",
    "alloc answered": "grant = c.alloc(N)",
    "descriptor received": "size, fd = c.map(grant['segment'])",
    "mapped": "import mmap; memory = mmap.mmap(fd, size)",
    "half filled": "at = grant['offset']; memory[at:at + N // 2] = bytes(N // 2)",
    "filled": "memory[at:at + N] = bytes(N)",
    "half a publish written": "c.send_bytes(wire.frame('PUBLISH', number=9)[:30])",
    "publish written": "c.send('PUBLISH', d + b'name', storage=grant['storage'], flags=1,"
    " desc_nbytes=len(d), name_nbytes=4)",
    "published": "c.publish('name', grant['storage'], d, flags=1)",
    "put written": "c.send('PUT', d + b'name' + bytes(4),"
    " **wire.put_fields(b'name', bytes(4), d, 1))",
    "map written": "c.send('MAP', segment=grant['segment'])",
    "hold written": "c.send('HOLD', wire.ids([grant['storage']]))",
}  # fmt: skip

# What each point needs before it; the others follow "alloc answered" directly.
CHAIN = ["alloc answered", "descriptor received", "mapped", "half filled", "filled"]


def program(point: str, nbytes: int) -> str:
    if point == "alloc written":
        before = []
    elif point in CHAIN:
        before = CHAIN[: CHAIN.index(point)]
    else:
        before = CHAIN[:5] if "publish" in point else CHAIN[:1]
    lines = [
        f"N = {nbytes}",
        "d = wire.desc((1,))",
        "c = wire.Connection(PATH, life_page=True)",
        *(POINTS[step] for step in [*before, point]),
        "die()",
    ]
    return "\n".join(lines)


def die_at(daemon, point, nbytes, rounds):
    for _ in range(rounds):
        with Program(program(point, nbytes), socket=daemon.path, raw=True) as client:
            code, error = client.end()
            assert code == -signal.SIGKILL, error
        daemon.settle_clean()


@pytest.mark.parametrize("point", POINTS)
def test_nothing_stays_used(start, point):
    """Four times 24 MiB fit only if each gives everything back."""
    die_at(start("--capacity", "64M"), point, 24 * MiB, rounds=4)


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_nothing_stays_used_in_a_hundred_rounds(start, point):
    die_at(start("--capacity", "256M"), point, 100 * MiB, rounds=100)
