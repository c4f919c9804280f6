"""What Linux tells about a process and its limits, read from /proc and /sys. Knows no daemon.

Every function answers None, or leaves out, what this system does not tell.
"""

import ctypes
import os
from pathlib import Path
from typing import NamedTuple

UNLIMITED = 1 << 60  # version 1 writes "no limit" as a number near 2**63


def read(path: str | Path) -> str | None:
    """A small file; None: it is not there, or not for us."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return None


def number(path: str | Path) -> int | None:
    text = (read(path) or "").strip()
    return int(text) if text.isdecimal() else None


def meminfo(key: str) -> int | None:
    """A line of /proc/meminfo, in bytes."""
    return _after(read("/proc/meminfo"), f"{key}:", 1024)


def _after(text: str | None, key: str, unit: int = 1) -> int | None:
    for line in (text or "").splitlines():
        words = line.split()
        if words and words[0] == key:
            return int(words[1]) * unit
    return None


HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"


def huge_pages(root: str = "") -> str | None:
    """What the kernel is told about huge pages for shared memory: "never", "advise", ..."""
    text = read(f"{root}{HUGE_PAGES}") or ""
    return text.partition("[")[2].partition("]")[0] or None


def gives_huge_pages(root: str = "") -> bool:
    """Whether a daemon gets some that asks for them."""
    return huge_pages(root) in ("always", "within_size", "advise", "force")


# ---------------------------------------------------------------------------------------- processes


def program_of(pid: int) -> str | None:
    """The file that a process runs, without its folder, cut to 15 bytes."""
    text = read(f"/proc/{pid}/comm")
    return None if text is None else text.rstrip("\n")


def is_stopped(pid: int) -> bool:
    """By SIGSTOP, a terminal or a debugger."""
    text = read(f"/proc/{pid}/stat") or ""
    return text.rpartition(")")[2].split()[:1] in (["T"], ["t"])


def option_of(pid: int, name: str) -> str | None:
    """What a process was started with: `--name VALUE` or `--name=VALUE`."""
    words = (read(f"/proc/{pid}/cmdline") or "").split("\0")
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == f"--{name}":
            return following
        if word.startswith(f"--{name}="):
            return word.partition("=")[2]
    return None


def has_more_rights() -> bool:
    """Than its caller, so that libraries do not listen to the environment: AT_SECURE."""
    return bool(ctypes.CDLL(None).getauxval(23))


def links_of(pid: int | str = "self") -> list[str] | None:
    """What the open descriptors of a process are."""
    try:
        folder = Path(f"/proc/{pid}/fd")
        links = []
        for entry in folder.iterdir():
            try:
                links.append(os.readlink(entry))
            except FileNotFoundError:  # closed meanwhile
                continue
        return links
    except OSError:
        return None


def file_limit(pid: int) -> int | None:
    """How many descriptors a process may have."""
    for line in (read(f"/proc/{pid}/limits") or "").splitlines():
        if line.startswith("Max open files"):
            words = line.split()
            return int(words[3]) if words[3].isdecimal() else UNLIMITED
    return None


def address_space() -> int | None:
    """Bytes of address space that this process uses."""
    return _after(read("/proc/self/status"), "VmSize:", 1024)


# ------------------------------------------------------------------------------------------ cgroups


class Cgroup(NamedTuple):
    version: int
    path: str
    folder: str | None  # of the cgroup that sets the least limit; None: there is no limit
    limit: int
    used: int

    @property
    def room(self) -> int:
        return max(self.limit - self.used, 0)


_FILES = {  # of each version: where, limits, usage, what of it the kernel gives up when asked
    1: ("/sys/fs/cgroup/memory", ["memory.limit_in_bytes"], "memory.usage_in_bytes",
        "total_inactive_file"),
    2: ("/sys/fs/cgroup", ["memory.max", "memory.high"], "memory.current", "inactive_file"),
}  # fmt: skip


def cgroup_of(pid: int | str = "self", root: str = "") -> Cgroup | None:
    """Where a process's memory counts, and the limit that leaves the least. Tests set `root`."""
    text = read(f"{root}/proc/{pid}/cgroup")
    found = _memory_cgroup(text or "")
    if found is None:
        return None
    version, path = found
    top, limits, usage, reclaimable = _FILES[version]
    tightest = Cgroup(version, path, None, 0, 0)
    # In a container the path may be the host's, and only the top is there.
    for below in (Path(path), *Path(path).parents):
        folder = f"{root}{top}{below}".rstrip("/")
        numbers = (number(f"{folder}/{name}") for name in limits)
        limit = min((n for n in numbers if n is not None), default=UNLIMITED)
        if limit >= UNLIMITED:
            continue
        cache = _after(read(f"{folder}/memory.stat"), reclaimable) or 0
        used = max((number(f"{folder}/{usage}") or 0) - cache, 0)
        found_here = Cgroup(version, path, folder.removeprefix(root), limit, used)
        if tightest.folder is None or found_here.room < tightest.room:
            tightest = found_here
    return tightest


def _memory_cgroup(text: str) -> tuple[int, str] | None:
    """With both versions mounted, the one that has the memory."""
    lines = [line.split(":", 2) for line in text.splitlines() if line.count(":") >= 2]
    for _, controllers, path in lines:
        if "memory" in controllers.split(","):
            return 1, path
    for hierarchy, _, path in lines:
        if hierarchy == "0":
            return 2, path
    return None
