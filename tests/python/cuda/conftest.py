"""The tests of tests/python/cuda run on two devices of the fake driver (tests/fakecuda)."""

import cuda_driver as cuda
import pytest
from fakecuda import delays, fake_machine, faults  # noqa: F401  fixtures

import tensorcx as cx


@pytest.fixture(scope="module", autouse=True)
def daemon(fake_machine, daemon):  # noqa: F811
    """Started on that machine."""
    return daemon


@pytest.fixture
def side():
    """A stream that waits for no other."""
    with cuda.current():
        stream = cuda.stream_create()
    yield stream
    with cuda.current():
        cuda.stream_synchronize(stream)
        cuda.stream_destroy(stream)


@pytest.fixture
def no_name_left():
    """A test that fails does not let others fail."""
    yield
    for name in cx.names():
        cx.delete(name)
