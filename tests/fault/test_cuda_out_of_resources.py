"""Whatever the system may refuse it refuses once, in an operation on a CUDA device.

On the fake driver, which is refused nothing itself: what it refuses is in test_cuda_faults.c. No
connection ends: what such a one had on a device is the daemon's again when the process has ended.
"""

import pytest
import refusals
from accidents import CONNECTION, EVERYTHING
from fakecuda import fake_machine  # noqa: F401  a fixture
from refusals import fail_everywhere
from repertoire import OF_CUDA

pytestmark = pytest.mark.usefixtures("fake_machine")

ROOM = ("--cuda-capacity", "32M")


def operations(*quick):
    """All of them, of which only the quick ones run in `make check`."""
    slow = [pytest.param(name, marks=pytest.mark.slow) for name in OF_CUDA if name not in quick]
    return pytest.mark.parametrize("operation", [*quick, *slow])


each_mode = pytest.mark.parametrize("mode", ["vmm", pytest.param("ipc", marks=pytest.mark.slow)])


@each_mode
@operations("cuda-put", "cuda-get")
def test_once_in_a_client(built, folder, start, operation, mode):
    with refusals.in_client(built, folder, start, *ROOM, "--cuda", mode) as scene:
        scene.blocks_of_driver = 4  # one in each thread that has called it
        fail_everywhere(scene, operation, EVERYTHING & ~CONNECTION)


@each_mode
@operations("cuda-put")
def test_once_in_the_daemon(built, folder, start, operation, mode):
    with refusals.in_daemon(built, folder, start, *ROOM, "--cuda", mode) as scene:
        scene.blocks_of_driver = 4  # one in each thread that has called it
        fail_everywhere(scene, operation, EVERYTHING & ~CONNECTION)
