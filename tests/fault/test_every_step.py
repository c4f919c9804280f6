"""SIGKILL, SIGSTOP and a new start of a client, and of the daemon, at every step of each operation.

In a run of all, each step is tried once, with the first operation that reaches it; in the slow one
with each operation, the first and the last time that it is reached.
"""

import pytest
from every_step import count_all, each_accident, each_time, first_to_reach, go_through
from repertoire import FOR_STEPS, OPERATIONS
from steps import OF_THE_REST, Stage, unreached

ALL = [*OPERATIONS, *FOR_STEPS]

each_operation = pytest.mark.parametrize("operation", ALL)


@pytest.fixture(scope="module")
def hits():
    return count_all(Stage, ALL)


@pytest.fixture
def stage(folder):
    with Stage(folder) as stage:
        yield stage


def test_every_step_is_reached(hits):
    assert unreached(hits, OF_THE_REST) == set()


@each_operation
@each_accident
def test_where_it_is_reached_first(hits, stage, do, operation):
    go_through(stage, operation, first_to_reach(hits, operation, do), do)
    stage.close()


@pytest.mark.slow
@each_operation
@each_accident
def test_in_each_operation(hits, stage, do, operation):
    go_through(stage, operation, each_time(hits, operation, do), do)
    stage.close()
