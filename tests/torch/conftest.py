"""Every test module here has a daemon of its own, and every test must leave it empty."""

import gc

import torch  # noqa: F401
from empty import daemon, nothing_left  # noqa: F401  fixtures

gc.collect()
gc.freeze()  # each test collects what it left; PyTorch's own half a million objects stay anyway
