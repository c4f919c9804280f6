"""SIGKILL, SIGSTOP and a new start at every step that has to do with a CUDA device (a fake one).

Somebody else has memory on it, in which every byte stays as it was; all other memory of the devices
is free afterwards.
"""

import contextlib
import shutil
import tempfile

import cuda_array
import fakecuda
import numpy as np
import pytest
from accidents import OF_CUDA
from daemon import settle
from every_step import (
    count_all,
    each_moment,
    each_time,
    first_to_reach,
    go_through,
    kill_client,
    kill_daemon,
    stop_client,
    stop_daemon,
)
from fakecuda import fake_machine  # noqa: F401  a fixture
from steps import OF_CUDA as SECTIONS
from steps import Stage, sections, unreached

import tensorcx as cx

pytestmark = pytest.mark.usefixtures("fake_machine")

NBYTES = 3 << 20
CAPACITY = "32M"  # see operations_cuda.c


def options(mode):
    return "--cuda", mode, "--cuda-capacity", CAPACITY


class CudaStage(Stage):
    """With somebody who keeps memory on the device."""

    owner = None

    def __init__(self, folder, mode):
        super().__init__(folder, *options(mode))
        self.owner = cx.Client(self.daemon.path, autostart=False)
        self.have()
        self.used = fakecuda.used()
        self.before = self.stats()

    def have(self):
        """Its names are those of a witness, which nobody deletes."""
        self.bytes = np.random.default_rng(1).integers(0, 256, NBYTES, "u1")
        self.tensor = self.owner.put("witness-cuda", self.bytes, device="cuda:0")

    def start(self):
        super().start()
        if self.owner:
            self.is_whole()
            del self.tensor
            with contextlib.suppress(cx.DaemonLost):
                self.owner.names()
            self.have()

    def is_whole(self):
        assert (cuda_array.from_dlpack(self.tensor).numpy() == self.bytes).all()

    def rest(self, others=0):
        super().rest(others + 1)

    def members_go_on(self, plan):
        self.is_whole()

    def is_as_before(self):
        self.is_whole()
        super().is_as_before()
        settle(lambda: fakecuda.used() == self.used, f"the {self.used} bytes used before")
        settle(lambda: fakecuda.used(1) == 0, "the end of the other device's memory")

    def close(self):
        del self.tensor
        self.owner.close()
        super().close()


MODES = ["vmm", "ipc"]
each_mode = pytest.mark.parametrize("mode", MODES)


def count(mode):
    folder = tempfile.mkdtemp(prefix="tcx-")
    with CudaStage(folder, mode) as stage:
        found = count_all(stage, OF_CUDA)
        stage.close()
    shutil.rmtree(folder)
    return found


@pytest.fixture(scope="module")
def hits(fake_machine):  # noqa: F811
    """Of each mode."""
    return {mode: count(mode) for mode in MODES}


@pytest.fixture
def stage(folder, mode):
    with CudaStage(folder, mode) as stage:
        yield stage


def test_every_step_of_cuda_is_reached(hits):
    both = {(mode, operation): hits[mode][operation] for mode in MODES for operation in OF_CUDA}
    assert unreached(both, SECTIONS) == {"DEVICES_FOUND (daemon)"}  # see below


WHAT = {
    "a client is killed": ("client", kill_client),
    "a client is stopped": ("client", stop_client),
    "the daemon is killed": ("daemon", kill_daemon),
    "the daemon is stopped": ("daemon", stop_daemon),
}


def first_in_any_mode(hits, mode, operation, side):
    """Of the steps of CUDA, those that no operation before, and no mode before, reaches."""
    ours = {step for title in SECTIONS for step in sections()[title]}
    for before in MODES[: MODES.index(mode)]:
        ours -= {step for found in hits[before].values() for step in found[side]}
    return [moment for moment in first_to_reach(hits[mode], operation, side) if moment[0] in ours]


@each_mode
@pytest.mark.parametrize("what", WHAT)
def test_where_it_is_reached_first(hits, stage, what, mode):
    side, do = WHAT[what]
    for operation in OF_CUDA:
        go_through(stage, operation, first_in_any_mode(hits, mode, operation, side), do)
    stage.close()


@each_mode
@pytest.mark.parametrize("do", [kill_daemon, stop_daemon])
def test_while_the_devices_are_looked_for(folder, mode, do):
    """By the first who needs one."""
    with Stage(folder, *options(mode)) as stage:
        go_through(stage, "cuda-put", [("DEVICES_FOUND", 1)], do)
        stage.close()


@pytest.mark.slow
@each_mode
@pytest.mark.parametrize("operation", OF_CUDA)
@pytest.mark.parametrize("what", WHAT)
def test_in_each_operation(hits, stage, what, operation, mode):
    side, do = WHAT[what]
    each_moment(stage, operation, each_time(hits[mode], operation, side), do)
