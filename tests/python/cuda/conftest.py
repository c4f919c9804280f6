"""The tests of tests/python/cuda run on two devices of the fake driver (tests/fakecuda)."""

import pytest
from fakecuda import delays, fake_machine, faults  # noqa: F401  fixtures


@pytest.fixture(scope="module", autouse=True)
def daemon(fake_machine, daemon):  # noqa: F811
    """Started on that machine."""
    return daemon
