"""Lets every test folder import what lies in tests/support; gives slow tests their time."""

import gc
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.remove(str(HERE))  # pytest's own: tests/torch would pass for PyTorch where that is not
sys.path.insert(0, str(HERE / "support"))


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(1200))


def pytest_collection_finish():
    """Whatever is loaded by now stays: a gc.collect() after each test need not look at it."""
    gc.collect()
    gc.freeze()
