"""What a test does in a child before exec, so that a program sees another machine: preexec_fn=."""

import ctypes
import os
import subprocess
from pathlib import Path

CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18
CLONE_NEWUSER = 0x10000000

libc = ctypes.CDLL(None, use_errno=True)


def small_dev_shm():
    """A mount namespace of its own with 64 MiB at /dev/shm; needs root and CAP_SYS_ADMIN."""
    for call in (
        lambda: libc.unshare(CLONE_NEWNS),
        lambda: libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None),
        lambda: libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=64m"),
    ):
        if call() != 0:
            raise OSError(ctypes.get_errno(), "cannot make a small /dev/shm")


def no_inotify():
    """A user namespace of its own in which there is none."""
    user = os.geteuid()
    if libc.unshare(CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "cannot make a user namespace")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/sys/user/max_inotify_instances").write_text("0")


def can(prepare) -> bool:
    try:
        return subprocess.run(["true"], preexec_fn=prepare, check=False).returncode == 0
    except subprocess.SubprocessError:
        return False
