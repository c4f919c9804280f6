"""SIGKILL and SIGSTOP at every step of a daemon's end, and of making its socket anew.

What clients have mapped stays as it is, nobody hangs, and the next daemon can serve at once.
"""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from daemon import settle
from every_step import find_next_daemon, find_successor
from steps import OF_END, Plan, Stage, Witness, by_side, unreached
from wire_table import Status

AS_CLIENT, AS_DAEMON = by_side(OF_END)
OF_SOCKET = ["FOLDER_MADE", "PATH_CLEARED", "SOCKET_BOUND", "SOCKET_LISTENS"]


@pytest.fixture
def stage(folder):
    with Stage(folder) as stage:
        yield stage


@pytest.fixture
def stopper(stage):
    """Whoever ends the daemon."""
    plan = Plan(stage.folder, "stopper")
    with Witness(stage.daemon.path, 4, **plan.environment) as stopper:
        stopper.plan = plan
        yield stopper


def all_find_the_next(stage):
    find_next_daemon(stage)
    stage.is_as_before()
    stage.close()


def test_every_step_is_reached(stage, stopper):
    stage.plan.begin()
    stopper.must("stop")
    assert stage.daemon.process.wait() == 0
    reached = {"client": stopper.plan.hits(), "daemon": stage.plan.hits()}
    assert unreached({"stop": reached}, OF_END) == set()
    all_find_the_next(stage)


@pytest.mark.parametrize("step", AS_CLIENT)
def test_who_ends_it_is_killed(stage, stopper, step):
    stopper.plan.begin(step)
    stopper.tell("stop")
    assert stopper.end() == (-signal.SIGKILL, "")
    assert stage.daemon.process.wait() == 0
    all_find_the_next(stage)


@pytest.mark.parametrize("step", AS_DAEMON)
def test_a_daemon_that_ends_is_killed(stage, step):
    stage.plan.begin(step)
    stage.daemon.process.terminate()
    assert stage.daemon.process.wait() == -signal.SIGKILL
    all_find_the_next(stage)


@pytest.mark.parametrize("step", AS_DAEMON)
def test_a_daemon_that_ends_is_stopped(stage, step):
    """The next one is started meanwhile, and serves when this one has gone."""
    ending = stage.daemon.process
    stage.plan.begin(step, 1, signal.SIGSTOP)
    ending.terminate()
    settle(stage.plan.has_stopped)
    assert stage.impatient.do("work")[0] in (Status.TIMEOUT, Status.LOST, Status.UNAVAILABLE)
    for witness in stage.witnesses:
        witness.must("check")
    its_plan, stage.plan = stage.plan, Plan(stage.folder, "next")
    with ThreadPoolExecutor() as pool:
        started = pool.submit(stage.start)
        its_plan.resume()
        started.result()
    assert ending.wait() == 0
    for witness in stage.witnesses:
        find_successor(witness)
    stage.is_as_before()
    stage.close()


@pytest.mark.parametrize("step", OF_SOCKET)
def test_a_daemon_that_makes_its_socket_anew_is_killed(stage, step):
    stage.plan.begin(step)
    os.unlink(stage.daemon.path)
    assert stage.daemon.process.wait() == -signal.SIGKILL
    all_find_the_next(stage)


@pytest.mark.parametrize("step", OF_SOCKET)
def test_a_daemon_that_makes_its_socket_anew_is_stopped(stage, step):
    stage.plan.begin(step, 1, signal.SIGSTOP)
    os.unlink(stage.daemon.path)
    settle(stage.plan.has_stopped)
    stage.worker.tell("work")
    assert stage.impatient.do("work")[0] == Status.TIMEOUT
    stage.plan.resume()
    assert stage.worker.answer() == (0, "")
    stage.impatient.must("work")
    settle(stage.daemon.path.exists)
    stage.is_as_before()
    stage.close()
