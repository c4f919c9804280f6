"""SIGKILL, SIGSTOP and a new start at every step that has to do with a CUDA device (a fake one).

Somebody else has memory on it, in which every byte stays as it was; all other memory of the devices
is free afterwards.
"""

import contextlib

import cuda_array
import fakecuda
import numpy as np
import pytest
import steps
from daemon import settle
from every_step import (
    count_all,
    each_accident,
    each_time,
    first_to_reach,
    go_through,
    kill_daemon,
    stop_daemon,
)
from fakecuda import fake_machine  # noqa: F401  a fixture
from repertoire import OF_CUDA

import tensorcx as cx

pytestmark = pytest.mark.usefixtures("fake_machine")

NBYTES = 3 << 20
CAPACITY = "32M"  # see operations_cuda.c


def options(mode):
    return "--cuda", mode, "--cuda-capacity", CAPACITY


class CudaStage(steps.Stage):
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


@pytest.fixture(scope="module")
def hits(fake_machine):  # noqa: F811
    """By mode and operation: a step that both modes reach counts as the first one's."""
    counts = {mode: count_all(CudaStage, OF_CUDA, mode) for mode in MODES}
    return {(mode, operation): counts[mode][operation] for mode in MODES for operation in OF_CUDA}


@pytest.fixture
def stage(folder, mode):
    with CudaStage(folder, mode) as stage:
        yield stage


def test_every_step_of_cuda_is_reached(hits):
    one = {"DEVICES_FOUND (daemon)"}  # see below
    assert steps.unreached(hits, steps.OF_CUDA) == one


@each_mode
@each_accident
def test_where_it_is_reached_first(hits, stage, do, mode):
    for operation in OF_CUDA:
        moments = first_to_reach(hits, (mode, operation), do, steps.OF_CUDA)
        go_through(stage, operation, moments, do)
    stage.close()


@each_mode
@pytest.mark.parametrize("do", [kill_daemon, stop_daemon])
def test_while_the_devices_are_looked_for(folder, mode, do):
    """By the first who needs one."""
    with steps.Stage(folder, *options(mode)) as stage:
        go_through(stage, "cuda-put", [("DEVICES_FOUND", 1)], do)
        stage.close()


@pytest.mark.slow
@each_mode
@pytest.mark.parametrize("operation", OF_CUDA)
@each_accident
def test_in_each_operation(hits, stage, do, operation, mode):
    go_through(stage, operation, each_time(hits, (mode, operation), do), do)
    stage.close()
