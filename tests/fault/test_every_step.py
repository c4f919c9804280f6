"""SIGKILL, SIGSTOP and a new start of a client, and of the daemon, at every step of each operation.

In a run of all, each step is tried once, with the first operation that reaches it; in the slow one
with each operation, the first and the last time that it is reached.
"""

import shutil
import tempfile

import pytest
from accidents import OPERATIONS
from every_step import (
    count_all,
    each_moment,
    each_time,
    first_to_reach,
    kill_client,
    kill_daemon,
    stop_client,
    stop_daemon,
)
from steps import OF_CHANNELS, OF_CUDA, OF_DAEMONS, Stage, sections, unreached

ALL = [
    *OPERATIONS, "put-expiring", "put-ephemeral", "get-again", "give-up", "flood", "lose",
    "fork-poor", "die",
]  # fmt: skip

each_operation = pytest.mark.parametrize("operation", ALL)


@pytest.fixture(scope="module")
def hits():
    folder = tempfile.mkdtemp(prefix="tcx-")
    with Stage(folder) as stage:
        found = count_all(stage, ALL)
        stage.close()
    shutil.rmtree(folder)
    return found


@pytest.fixture
def stage(folder):
    with Stage(folder) as stage:
        yield stage


def test_every_step_is_reached(hits):
    others = OF_DAEMONS + OF_CHANNELS + OF_CUDA  # tests of their own
    assert unreached(hits, sections().keys() - set(others)) == set()


@each_operation
def test_a_client_is_killed(hits, stage, operation):
    each_moment(stage, operation, first_to_reach(hits, operation, "client"), kill_client)


@each_operation
def test_a_client_is_stopped(hits, stage, operation):
    each_moment(stage, operation, first_to_reach(hits, operation, "client"), stop_client)


@each_operation
def test_a_daemon_is_killed(hits, stage, operation):
    each_moment(stage, operation, first_to_reach(hits, operation, "daemon"), kill_daemon)


@each_operation
def test_a_daemon_is_stopped(hits, stage, operation):
    each_moment(stage, operation, first_to_reach(hits, operation, "daemon"), stop_daemon)


@pytest.mark.slow
@each_operation
def test_a_client_is_killed_often(hits, stage, operation):
    each_moment(stage, operation, each_time(hits, operation, "client"), kill_client)


@pytest.mark.slow
@each_operation
def test_a_client_is_stopped_often(hits, stage, operation):
    each_moment(stage, operation, each_time(hits, operation, "client"), stop_client)


@pytest.mark.slow
@each_operation
def test_a_daemon_is_killed_often(hits, stage, operation):
    each_moment(stage, operation, each_time(hits, operation, "daemon"), kill_daemon)


@pytest.mark.slow
@each_operation
def test_a_daemon_is_stopped_often(hits, stage, operation):
    each_moment(stage, operation, each_time(hits, operation, "daemon"), stop_daemon)
