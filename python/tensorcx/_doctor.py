"""tensorcx doctor: what somebody with trouble needs to know, on one screen.

It asks the daemon what any client may ask, and Linux for the rest. It starts no daemon unless it is
told to, and no daemon, folder or limit can make it wait long or fail: what it cannot tell, it says.
"""

import errno
import os
import resource
import shutil
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import tensorcx as cx
from tensorcx import _machine as machine
from tensorcx._text import age_text, size_text

ANSWER_SECONDS = 5.0  # at most, for each question
MiB = 1 << 20


class Finding(NamedTuple):
    state: str  # "ok", "note": works, but worth knowing; "problem"
    topic: str
    text: str
    advice: str = ""


def examine(path: str | None, self_test: bool) -> tuple[list[Finding], dict[str, Any] | None]:
    """All findings, and the daemon's counters if it answers. Changes $TENSORCX_TIMEOUT."""
    os.environ["TENSORCX_TIMEOUT"] = str(_patience())
    findings: list[Finding] = []
    stats, pid = None, None
    try:
        client = cx.Client(path, False)
    except ValueError as error:
        findings.append(Finding("problem", "socket", str(error)))
    else:
        findings.append(_socket(path, client.socket))
        place = list(_place(client.socket))
        is_good = all(finding.state != "problem" for finding in place)
        if is_good and self_test:
            start = list(_start(client.socket))
            place = [*_place(client.socket), *start]  # a daemon may have made it
        findings += place
        if is_good:
            found, stats, pid = _daemon(client)
            findings += found
    findings += _start_settings()
    findings += _memory(pid, stats)
    findings += _limits(pid)
    findings += _system()
    if stats is not None:  # last: what it uses must not show in the numbers
        findings += _self_test(client)
    return findings, stats


def _patience() -> float:
    try:
        seconds = float(os.environ.get("TENSORCX_TIMEOUT", ""))
    except ValueError:
        return ANSWER_SECONDS
    return seconds if 0 < seconds < ANSWER_SECONDS else ANSWER_SECONDS


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


# ------------------------------------------------------------------------------------------- place


def _socket(given: str | None, path: str) -> Finding:
    """Which rule decided; the library has applied it."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    state = "ok"
    if given:
        why = "--socket"
    elif os.environ.get("TENSORCX_SOCKET"):
        why = "$TENSORCX_SOCKET"
    elif runtime and path == f"{runtime}/tensorcx/tensorcxd.sock":
        why = "$XDG_RUNTIME_DIR"
    else:
        why = "default of this user" if path.startswith("/run/") else "default: no /run/user folder"
        if runtime:
            state = "note"
            why += f"; $XDG_RUNTIME_DIR={runtime} is no folder of this user"
    return Finding(state, "socket", f"{path} ({why})")


def _place(path: str) -> Iterator[Finding]:
    """The folder and the file, by the rules of the library."""
    folder = os.path.dirname(path) or "/"
    elsewhere = "name another socket in TENSORCX_SOCKET"
    try:
        info = os.lstat(folder)
    except FileNotFoundError:
        parent = os.path.dirname(folder)
        if os.access(parent, os.W_OK | os.X_OK):
            yield Finding("ok", "folder", f"{folder} is not there; a daemon makes it")
        else:
            text = f"{folder} is not there, and cannot be made in {parent}"
            yield Finding("problem", "folder", text, f"make it with mode 700, or {elsewhere}")
        return
    except OSError as error:
        yield Finding("problem", "folder", f"{folder}: {error.strerror}", elsewhere)
        return
    writable = info.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not info.st_mode & stat.S_ISVTX
    text = f"{folder}, {_owner(info)}"
    if stat.S_ISLNK(info.st_mode):
        yield Finding("problem", "folder", f"{text} is a link", "name the socket by its real path")
    elif not stat.S_ISDIR(info.st_mode):
        yield Finding("problem", "folder", f"{text} is not a folder", elsewhere)
    elif not _is_trusted(info.st_uid):
        text += f", and this process runs as user {os.geteuid()}"
        yield Finding("problem", "folder", text, f"{elsewhere}, or {_trust(info)}")
    elif writable:
        yield Finding("problem", "folder", f"{text}: others may write", f"chmod go-w {folder}")
    else:
        yield Finding("ok", "folder", text)
        yield from _socket_file(path)


def _socket_file(path: str) -> Iterator[Finding]:
    try:
        info = os.lstat(path)
    except FileNotFoundError:
        return  # the daemon's finding says so
    except PermissionError as error:
        advice = f"its daemon lets this user in with --allow-uid={os.geteuid()}"
        yield Finding("problem", "file", f"{path}: {error.strerror}", advice)
        return
    except OSError as error:
        yield Finding("problem", "file", f"{path}: {error.strerror}")
        return
    text = f"{os.path.basename(path)}, {_owner(info)}"
    if not stat.S_ISSOCK(info.st_mode):
        kind = "a link" if stat.S_ISLNK(info.st_mode) else "no socket"
        yield Finding("problem", "file", f"{text} is {kind}", "remove it, or name another socket")
    elif not _is_trusted(info.st_uid):
        text += f", and this process runs as user {os.geteuid()}"
        advice = f"name another socket in TENSORCX_SOCKET, or {_trust(info)}"
        yield Finding("problem", "file", text, advice)
    else:
        yield Finding("ok", "file", text)


def _is_trusted(uid: int) -> bool:
    named = os.environ.get("TENSORCX_TRUST_UID", "").split(",")
    is_named = all(map(str.isdecimal, named)) and uid in map(int, named)
    return uid in (os.geteuid(), 0) or is_named


def _trust(info: os.stat_result) -> str:
    return f"trust that user: TENSORCX_TRUST_UID={info.st_uid}"


def _owner(info: os.stat_result) -> str:
    return f"user {info.st_uid}, mode {stat.S_IMODE(info.st_mode):03o}"


# ------------------------------------------------------------------------------------------- daemon


def _daemon(client: cx.Client) -> tuple[list[Finding], dict[str, Any] | None, int | None]:
    """Who listens, and what it answers. The pid is this process's view of it; None: unknown."""
    path = client.socket
    try:
        pid = _listener(path)
    except (FileNotFoundError, ConnectionRefusedError):
        return [_absent(path)], None, None
    except BlockingIOError:
        advice = "ss -xlp shows which process it is"
        text = "its queue of new connections is full: it is stopped or stuck"
        return [Finding("problem", "daemon", text, advice)], None, None
    except OSError as error:
        elsewhere = "name another socket in TENSORCX_SOCKET"
        reason = error.strerror or _one_line(error)
        if error.errno == errno.EPROTOTYPE:
            reason = "another program listens there"
        elif error.errno == errno.EACCES:
            reason = "only the user of this daemon may connect to it"
        return [Finding("problem", "daemon", reason, elsewhere)], None, None
    who = f"pid {pid} ({machine.program_of(pid)})" if pid else "in another pid namespace"
    if pid and machine.is_stopped(pid):
        advice = f"kill -CONT {pid}"
        return [Finding("problem", "daemon", f"{who} is stopped", advice)], None, pid
    try:
        stats = client.stats()
    except (cx.Error, OSError) as error:
        advice = f"end it (kill {pid}) if nobody needs its memory" if pid else ""
        return [Finding("problem", "daemon", f"{who}: {_one_line(error)}", advice)], None, pid
    text = f"{who}, version {stats['version']}, up {age_text(stats['uptime_ms'] / 1000)}, "
    text += f"{stats['clients'] - 1} other clients"
    findings = [Finding("ok", "daemon", text)]
    if stats["version"] != cx.__version__:
        text = f"the daemon is {stats['version']}, this package {cx.__version__}; they do talk"
        findings.append(Finding("note", "version", text, "tensorcx stop, and the next is the new"))
    if stats["dropped"]:
        text = f"{stats['dropped']} clients broke the protocol and were dropped"
        findings.append(Finding("note", "dropped", text, f"see the log{_log_of(pid, path)}"))
    return findings, stats, pid


def _listener(path: str) -> int:
    """The process that listens; 0: not of this pid namespace. It need not answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.setblocking(False)
        probe.connect(path)
        size = struct.calcsize("3i")
        credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        pid: int = struct.unpack("3i", credentials)[0]
        return pid


def _absent(path: str) -> Finding:
    text = "none answers"
    if os.path.exists(path):
        text += "; the socket is of one that was killed, the next one takes it over"
    if not _autostarts():
        advice = f"start tensorcxd --socket {path}, or unset TENSORCX_AUTOSTART"
        return Finding("problem", "daemon", f"{text}, and TENSORCX_AUTOSTART=0", advice)
    return Finding("note", "daemon", f"{text}; the first call that needs one starts it")


def _log_of(pid: int | None, path: str) -> str:
    named = machine.option_of(pid, "log") if pid else None
    return f" {named}" if named else ""


def _start(path: str) -> Iterator[Finding]:
    if not _autostarts():
        return
    try:
        cx.Client(path, True).connect()
    except (cx.Error, OSError) as error:
        yield Finding("problem", "start", _one_line(error))


# ---------------------------------------------------------------------------------------- self-test

_CHILD = """
import sys, time
sys.path[:0] = [sys.argv[1]]
import numpy as np, tensorcx as cx
client = cx.Client(sys.argv[2], False)
begin = time.perf_counter()
array = client.get(sys.argv[3]).numpy()
took = time.perf_counter() - begin
assert array.sum() == array.size, "other bytes came than were put"
array[0] = 2
print(took)
"""


def _self_test(client: cx.Client) -> Iterator[Finding]:
    """A child reads what we put, and we see what it writes."""
    name = f"tensorcx-doctor/{os.getpid()}"
    package = str(Path(cx.__file__).parents[1])
    begin = time.perf_counter()
    try:
        tensor = client.put(name, np.ones(MiB, np.uint8), ephemeral=True)
        put = time.perf_counter() - begin
        try:
            child = subprocess.run(
                [sys.executable, "-c", _CHILD, package, client.socket, name],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        finally:
            client.delete(name)
        if child.returncode != 0:
            reason = (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
            yield Finding("problem", "self-test", f"the child process: {reason}")
        elif tensor.numpy()[0] != 2:
            yield Finding("problem", "self-test", "what the child process wrote does not show here")
        else:
            total = time.perf_counter() - begin
            text = f"put 1 MiB {put * 1e3:.1f} ms, get in a child process "
            text += f"{float(child.stdout) * 1e3:.1f} ms, in all {total:.1f} s with its start"
            yield Finding("ok", "self-test", text)
    except (cx.Error, OSError, ValueError, MemoryError, subprocess.SubprocessError) as error:
        yield Finding("problem", "self-test", _one_line(error))


# -------------------------------------------------------------------------------------------- start


def _autostarts() -> bool:
    return os.environ.get("TENSORCX_AUTOSTART") != "0"


def _start_settings() -> Iterator[Finding]:
    """Whether a client starts a daemon, and which program that would be."""
    if _autostarts():
        yield Finding("ok", "autostart", "on: a client starts the daemon that it needs")
    else:
        yield Finding("ok", "autostart", "off: TENSORCX_AUTOSTART=0")
    program, why = _program()
    wrong = "problem" if _autostarts() else "note"
    if program is None:
        advice = "name it in TENSORCXD, or install the package again"
        yield Finding(wrong, "program", f"tensorcxd is not found {why}", advice)
        return
    try:
        said = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=5, check=True
        ).stdout.split()
    except (OSError, subprocess.SubprocessError) as error:
        yield Finding(wrong, "program", f"{program} ({why}): {_one_line(error)}")
        return
    if said[-1:] == [cx.__version__]:
        yield Finding("ok", "program", f"{program} ({why})")
    else:
        text = f"{program} ({why}) is {' '.join(said)}, this package {cx.__version__}"
        yield Finding("note", "program", text, "unset TENSORCXD, or name one of the same version")


def _program() -> tuple[str | None, str]:
    """As autostart.c: $TENSORCXD, beside the library, /usr/local/bin, $PATH."""
    named = os.environ.get("TENSORCXD")
    if named:
        found = named if os.access(named, os.X_OK) else None
        return found, "$TENSORCXD" if found else f"at $TENSORCXD={named}"
    library = Path(cx.__file__).parent / "lib"
    for path in (library / "tensorcxd", library.parent / "bin" / "tensorcxd"):
        if os.access(path, os.X_OK):
            return str(path), "in the package"
    for folders, why in (("/usr/local/bin", "installed"), (os.environ.get("PATH", ""), "$PATH")):
        found = shutil.which("tensorcxd", path=folders)
        if found:
            return found, why
    return None, "in the package, /usr/local/bin and $PATH"


# ------------------------------------------------------------------------------------------- memory


def _memory(pid: int | None, stats: dict[str, Any] | None) -> Iterator[Finding]:
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


def _limits(pid: int | None) -> Iterator[Finding]:
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


def _system() -> Iterator[Finding]:
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
