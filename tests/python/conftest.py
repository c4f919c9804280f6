"""Every test module here has a daemon of its own, and every test must leave it empty."""

import pytest
from empty import daemon, nothing_left  # noqa: F401  fixtures

import tensorcx as cx


@pytest.fixture
def no_channel_left():
    """A test that fails does not let others fail."""
    yield
    for found in cx.channels():
        if found["name"]:
            cx.delete(found["name"])


@pytest.fixture
def q():
    with cx.queue("q", nbytes=4096) as queue:
        yield queue
