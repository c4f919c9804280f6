"""The soak in small: `make soak` takes half an hour of 64 members."""

import soak


def test_what_is_alive_is_what_the_model_says_whoever_died():
    world = soak.soak(seconds=8, members=12, seed=1, interval=2)
    assert world.done.total() > 500
    assert world.deaths.total() > 10
