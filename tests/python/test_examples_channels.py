"""The examples of queues and topics, in short: each has its own checks, and leaves nothing."""

import re

from example import run_example


def test_frames_are_whole_and_none_is_lost_but_those_counted(daemon):
    output = run_example("frames.py", 40)
    assert output.count("yes ") == 4
    assert "40 frames of 2.8 MB, decoded once" in output
    for who in ("every frame", "the newest "):
        received, missed = re.search(rf"{who}: (\d+) frames and (\d+) missed", output).groups()
        assert int(received) > 0 and int(received) + int(missed) == 40
    assert re.search(r"process \d+ holds 3 frames, and is killed", output)
    daemon.settle(clients=1, channels=0)


def test_rollouts_come_in_order_and_can_be_played_again(daemon):
    output = run_example("rollouts.py", 3)
    assert output.count("yes ") == 3
    assert "384 steps of 4 actors" in output and "12 rollouts of 3.2 MB" in output
    daemon.settle(clients=1, channels=0, names=0)


def test_batches_are_what_the_trainer_would_have_made_itself(daemon):
    output = run_example("batches.py", 30)
    assert output.count("yes ") == 3
    daemon.settle(clients=1, channels=0, names=0)
