"""A daemon in a cgroup with little memory: an error that names the limit; it is never killed."""

import itertools
import os
from pathlib import Path

import pytest
import wire
from wire_table import Status

from tensorcx import _machine as machine

MiB = 1 << 20
LIMIT = {1: "memory.limit_in_bytes", 2: "memory.max"}


def make_cgroup() -> Path:
    """One below ours that allows 64 MiB; LookupError or OSError: this machine does not let us."""
    own = machine.cgroup_of()
    if own is None:
        raise LookupError("no cgroup counts memory")
    group = Path({1: "/sys/fs/cgroup/memory", 2: "/sys/fs/cgroup"}[own.version] + own.path)
    group /= f"tensorcx-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / LIMIT[own.version]).write_text(str(64 * MiB))
    except OSError:
        group.rmdir()
        raise
    return group


def remove(group: Path):
    for pid in (group / "cgroup.procs").read_text().split():
        (group.parent / "cgroup.procs").write_text(pid)
    group.rmdir()


def can_make_cgroups() -> bool:
    try:
        remove(make_cgroup())
    except (LookupError, OSError):
        return False
    return True


pytestmark = pytest.mark.skipif(
    not can_make_cgroups(), reason="needs root and a cgroup below ours that can limit memory"
)


@pytest.fixture
def limited(start):
    """A daemon that may have 64 MiB, and believes in a capacity of 4 GiB."""
    group = make_cgroup()

    def enter():  # in the child before exec
        (group / "cgroup.procs").write_text(str(os.getpid()))

    try:
        yield start("--capacity", "4G", preexec_fn=enter)
    finally:
        remove(group)


def test_what_does_not_fit_is_refused_and_the_limit_named(limited):
    with limited.connect() as client:
        with pytest.raises(wire.Refused) as refused:
            client.alloc(100 * MiB)
        assert refused.value.status is Status.OUT_OF_MEMORY
        assert "the memory limit of the daemon's cgroup" in refused.value.text
        granted = client.alloc(40 * MiB)
        client.release((granted["storage"], 1))
        client.release((client.alloc(50 * MiB)["storage"], 1))


@pytest.mark.parametrize("nbytes", [4096, MiB, 20 * MiB])
def test_filled_to_the_limit_it_lives_and_has_room_again(limited, nbytes):
    with limited.connect() as client:
        storages = []
        with pytest.raises(wire.Refused) as refused:
            for _ in itertools.count():
                storages.append(client.alloc(nbytes)["storage"])
        assert refused.value.status is Status.OUT_OF_MEMORY
        assert len(storages) * nbytes >= 32 * MiB
        for storage in storages:
            client.release((storage, 1))
        client.release((client.alloc(nbytes)["storage"], 1))
