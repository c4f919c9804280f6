"""Says clearly where tensorcx does not run, instead of failing later in odd ways."""

import os
import re
import sys

_KERNEL = (5, 14)  # MADV_POPULATE_READ
_MACHINES = ("x86_64", "aarch64")


def check() -> None:
    """ImportError unless this is Linux 5.14 or newer on x86-64 or arm64."""
    if sys.platform != "linux":
        raise ImportError(f"tensorcx needs Linux, this is {sys.platform}")
    system = os.uname()
    if system.machine not in _MACHINES:
        raise ImportError(f"tensorcx needs x86-64 or arm64, this is {system.machine}")
    found = re.match(r"(\d+)\.(\d+)", system.release)
    if found and tuple(map(int, found.groups())) < _KERNEL:
        raise ImportError(f"tensorcx needs Linux 5.14 or newer, this is {system.release}")
