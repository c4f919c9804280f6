"""What tensorcx doctor finds out about memory, limits, and the system."""

import os
import resource
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

import tensorcx as cx
from tensorcx import _machine as machine
from tensorcx._finding import Finding
from tensorcx._text import size_text

MiB = 1 << 20


def memory(pid: int | None, stats: dict[str, Any] | None) -> Iterator[Finding]:
    if stats is not None:
        yield _capacity(stats)
        yield _backing(pid, stats)
    yield _dev_shm(pid, stats)
    yield _cgroup(pid)
    available = machine.meminfo("MemAvailable")
    if available is not None:
        text = f"{size_text(available)} of {size_text(machine.meminfo('MemTotal') or 0)} available"
        if available < 64 * MiB:
            yield Finding("problem", "memory", text, "free some: the daemon commits no more")
        else:
            yield Finding("ok", "memory", text)


def _capacity(stats: dict[str, Any]) -> Finding:
    capacity, used = stats["capacity_bytes"], stats["bytes"]
    text = f"{size_text(used)} in {stats['storages']} tensors, {size_text(stats['warm_bytes'])} "
    text += f"warm, {size_text(stats['committed_bytes'])} committed of {size_text(capacity)}"
    if used > capacity * 0.9:
        advice = "tensorcx clients and tensorcx ls show what keeps it; or a larger --capacity"
        return Finding("problem", "capacity", text, advice)
    return Finding("ok", "capacity", text)


def _backing(pid: int | None, stats: dict[str, Any]) -> Finding:
    kind = stats["backing"]
    asked = (pid and machine.option_of(pid, "backing")) or "auto"
    if asked != "auto":
        return Finding("ok", "backing", f"{kind} (--backing={asked})")
    if kind == "posix":
        return Finding("ok", "backing", "posix (auto: /dev/shm had room for the capacity)")
    why = "/dev/shm had less room than the capacity"
    if machine.gives_huge_pages():
        why = f"the kernel gives huge pages, or {why}"
    return Finding("ok", "backing", f"memfd (auto: {why})")


def _dev_shm(pid: int | None, stats: dict[str, Any] | None) -> Finding:
    """The daemon's, which may see another one than we do; else ours."""
    folder = "/dev/shm"
    theirs = f"/proc/{pid}/root/dev/shm"
    if pid and os.access(theirs, os.X_OK):
        folder = theirs
    try:
        mount = os.statvfs(folder)
    except OSError as error:
        text = f"{error.strerror}: the daemon uses memfd"
        return Finding("note", "/dev/shm", text)
    size, free = mount.f_blocks * mount.f_frsize, mount.f_bavail * mount.f_frsize
    text = f"{size_text(free)} of {size_text(size)} free"
    if stats is None and pid:
        return Finding("ok", "/dev/shm", text)
    if stats is None:
        half = (machine.meminfo("MemAvailable") or 0) // 2
        kind = "posix" if free >= half and not machine.gives_huge_pages() else "memfd"
        return Finding("ok", "/dev/shm", f"{text}: a daemon would use {kind} by default")
    left = stats["capacity_bytes"] - stats["committed_bytes"]
    if stats["backing"] == "memfd":
        return Finding("ok", "/dev/shm", f"{text}; not used (memfd)")
    if free < left:
        advice = "empty or enlarge it, or start the daemon with --backing=memfd"
        text += f", less than the {size_text(left)} that the capacity still allows"
        return Finding("problem", "/dev/shm", text, advice)
    return Finding("ok", "/dev/shm", text)


def _cgroup(pid: int | None) -> Finding:
    """The daemon's, where all shared memory counts; else ours, where a daemon would be started."""
    whose = "the daemon's" if pid else "this process's, where a daemon would start"
    found = machine.cgroup_of(pid or "self")
    if found is None:
        return Finding("note", "cgroup", f"{whose} is not known")
    text = f"{whose}: {found.path} (v{found.version})"
    if found.folder is None:
        return Finding("ok", "cgroup", f"{text}, no memory limit")
    text += f", {size_text(found.used)} used of {size_text(found.limit)} ({found.folder})"
    if found.room < 64 * MiB:
        advice = "raise that limit, or run tensorcxd as a service, in a cgroup of its own"
        return Finding("problem", "cgroup", text, advice)
    return Finding("ok", "cgroup", text)


# ------------------------------------------------------------------------------------------- limits


def limits(pid: int | None) -> Iterator[Finding]:
    yield _descriptors()
    if pid:
        yield _daemon_descriptors(pid)
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    used = machine.address_space() or 0
    if soft == resource.RLIM_INFINITY:
        yield Finding("ok", "address", "no limit of address space (RLIMIT_AS)")
    else:
        text = f"RLIMIT_AS is {size_text(soft)}, {size_text(used)} used: what does not fit, is not "
        text += "mapped"
        state = "problem" if soft - used < 64 * MiB else "note"
        yield Finding(state, "address", text, "ulimit -v unlimited")
    yield _inotify(pid)


def _descriptors() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(machine.links_of() or [])
    text = f"{used} used of {soft} (RLIMIT_NOFILE, hard limit {hard})"
    if soft != resource.RLIM_INFINITY and soft - used < 32:
        return Finding("problem", "descriptors", text, "ulimit -n 1024")
    if 0 <= hard < 4096:  # the daemon raises its soft limit to the hard one
        advice = "raise the hard limit where the daemon is started"
        text += "; a daemon started here serves fewer clients than its limit of 4096"
        return Finding("note", "descriptors", text, advice)
    return Finding("ok", "descriptors", text)


def _daemon_descriptors(pid: int) -> Finding:
    used, limit = machine.links_of(pid), machine.file_limit(pid)
    if used is None or limit is None:
        return Finding("note", "its files", f"not for this user to see (pid {pid})")
    text = f"the daemon uses {len(used)} of {limit}: one per client and per segment"
    if limit - len(used) < 32:
        advice = "start it with a higher hard limit, or end some of its clients"
        return Finding("problem", "its files", text, advice)
    return Finding("ok", "its files", text)


def _inotify(pid: int | None) -> Finding:
    """By it the daemon learns that a process has ended that closed its descriptors before."""
    instances = machine.number("/proc/sys/fs/inotify/max_user_instances")
    watches = machine.number("/proc/sys/fs/inotify/max_user_watches")
    text = f"at most {instances} instances and {watches} watches per user"
    links = machine.links_of(pid) if pid else None
    advice = "sysctl fs.inotify.max_user_instances=1024, and restart the daemon"
    if instances is None or watches is None:
        return Finding("note", "inotify", "this kernel has none; sockets alone tell who is gone")
    if links is not None and not any("inotify" in link for link in links):
        text += "; the daemon has got none: sockets alone tell it who is gone"
        return Finding("note", "inotify", text, advice)
    if watches < 4096:
        return Finding("note", "inotify", f"{text}; the daemon needs one per client", advice)
    return Finding("ok", "inotify", text)


# ------------------------------------------------------------------------------------------- system


def system() -> Iterator[Finding]:
    mode = machine.number("/proc/sys/vm/overcommit_memory")
    if mode == 2:
        left = (machine.meminfo("CommitLimit") or 0) - (machine.meminfo("Committed_AS") or 0)
        text = f"2 (strict): {size_text(max(left, 0))} may still be committed on this machine"
        state = "problem" if left < 64 * MiB else "note"
        yield Finding(state, "overcommit", text, "raise vm.overcommit_ratio if that is too little")
    else:
        yield Finding("ok", "overcommit", f"vm.overcommit_memory is {mode}")
    yield Finding("ok", "kernel", f"{os.uname().release} (needed: 5.14), {os.uname().machine}")
    yield _huge_pages()
    release = tuple(int(part) for part in np.__version__.split(".")[:3] if part.isdecimal())
    text = f"numpy {np.__version__}, tensorcx {cx.__version__}, Python {sys.version.split()[0]}"
    if release >= (2, 2, 5):
        yield Finding("ok", "python", text)
    else:
        text += ": np.from_dlpack gives read-only arrays before NumPy 2.2.5"
        yield Finding("note", "python", text, "write through np.asarray(t), or upgrade NumPy")


def _huge_pages() -> Finding:
    chosen = machine.huge_pages()
    if chosen is None:
        return Finding("ok", "huge pages", "this kernel has none for shared memory")
    if machine.gives_huge_pages():
        words = "a daemon started since then uses them, with --backing=auto or memfd"
    else:
        words = "not used; fresh memory and first access would be several times faster with them: "
        words += f"as root, echo advise >{machine.HUGE_PAGES}, then start the daemon anew"
    return Finding("ok", "huge pages", f"shmem_enabled is {chosen}: {words}")
