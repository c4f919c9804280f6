"""Arrays for tests in which any will do."""

import numpy as np


def some(shape=(2, 3), dtype="float32"):
    """0, 1, 2 and so on."""
    return np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
