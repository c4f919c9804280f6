"""tensorcx doctor: what somebody with trouble needs to know, on one screen.

It asks the daemon what any client may ask, and Linux for the rest. It starts no daemon unless it is
told to, and no daemon, folder or limit can make it wait long or fail: what it cannot tell, it says.
"""

import errno
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import tensorcx as cx
from tensorcx import _doctor_machine, _doctor_place
from tensorcx import _machine as machine
from tensorcx._doctor_place import ELSEWHERE
from tensorcx._finding import Finding
from tensorcx._text import age_text, error_text, size_text

ANSWER_SECONDS = 5.0  # at most, for each question
MiB = 1 << 20


def examine(path: str | None, self_test: bool) -> tuple[list[Finding], dict[str, Any] | None]:
    """All findings, and the daemon's counters if it answers. Changes $TENSORCX_TIMEOUT."""
    findings = list(_doctor_place.variables())
    patience = min(_doctor_place.timeout() or ANSWER_SECONDS, ANSWER_SECONDS)
    os.environ["TENSORCX_TIMEOUT"] = str(patience)
    stats, pid = None, None
    try:
        client = cx.Client(path, False)
    except ValueError as error:
        findings.append(Finding("problem", "socket", str(error)))
    else:
        findings.append(_doctor_place.socket(path, client.socket))
        place = list(_doctor_place.folder_of(client.socket))
        is_good = all(finding.state != "problem" for finding in place)
        if is_good and self_test:
            start = list(_start(client.socket))
            place = [*_doctor_place.folder_of(client.socket), *start]  # a daemon may have made it
        findings += place
        if is_good:
            found, stats, pid = _daemon(client)
            findings += found
    findings += _doctor_place.program()
    findings += _doctor_machine.memory(pid, stats)
    findings += _doctor_machine.limits(pid)
    findings += _doctor_machine.system()
    if stats is not None:
        findings += _cuda(client, stats)
        findings += _self_test(client)  # last: what it uses must not show in the numbers
    return findings, stats


# ------------------------------------------------------------------------------------------- daemon


def _daemon(client: cx.Client) -> tuple[list[Finding], dict[str, Any] | None, int | None]:
    """Who listens, and what it answers. The pid is this process's view of it; None: unknown."""
    path = client.socket
    try:
        pid, uid = _listener(path)
    except (FileNotFoundError, ConnectionRefusedError):
        return [_absent(path)], None, None
    except BlockingIOError:
        advice = "ss -xlp shows which process it is"
        text = "its queue of new connections is full: it is stopped or stuck"
        return [Finding("problem", "daemon", text, advice)], None, None
    except OSError as error:
        reason = error.strerror or error_text(error)
        if error.errno == errno.EPROTOTYPE:
            reason = "another program listens there"
        elif error.errno == errno.EACCES:
            reason = "only the user of this daemon may connect to it"
        return [Finding("problem", "daemon", reason, ELSEWHERE)], None, None
    who = f"pid {pid} ({machine.program_of(pid)})" if pid else "in another pid namespace"
    if pid and machine.is_stopped(pid):
        advice = f"kill -CONT {pid}"
        return [Finding("problem", "daemon", f"{who} is stopped", advice)], None, pid
    try:
        stats = client.stats()
    except (cx.Error, OSError) as error:
        text = f"{who}: {error_text(error)}"
        return [Finding("problem", "daemon", text, _what_to_do(text, pid, uid))], None, pid
    text = f"{who}, version {stats['version']}, up {age_text(stats['uptime'])}, "
    text += f"{stats['clients'] - 1} other clients"
    findings = [Finding("ok", "daemon", text)]
    if stats["version"] != cx.__version__:
        text = f"the daemon is {stats['version']}, this package {cx.__version__}; they do talk"
        findings.append(Finding("note", "version", text, "tensorcx stop, and the next is the new"))
    if stats["dropped"]:
        text = f"{stats['dropped']} clients broke the protocol and were dropped"
        findings.append(Finding("note", "dropped", text, f"see the log{_log_of(pid, path)}"))
    return findings, stats, pid


def _listener(path: str) -> tuple[int, int]:
    """The process that listens, 0: not of this pid namespace; and its user. It need not answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.setblocking(False)
        probe.connect(path)
        size = struct.calcsize("3i")
        credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        pid, uid, _ = struct.unpack("iII", credentials)
        return pid, uid


def _what_to_do(trouble: str, pid: int, uid: int) -> str:
    """About a daemon that does not serve us."""
    if "--allow-uid" in trouble:
        return f"ask user {uid} to start it with --allow-uid={os.geteuid()}, or {ELSEWHERE}"
    if uid != os.geteuid():
        return f"ask user {uid}, whose it is, or {ELSEWHERE}"
    return f"end it (kill {pid}) if nobody needs its memory" if pid else ""


def _absent(path: str) -> Finding:
    text = "none answers"
    if os.path.exists(path):
        text += "; the socket is of one that was killed, the next one takes it over"
    if not _doctor_place.autostarts():
        advice = f"start tensorcxd --socket {path}, or unset TENSORCX_AUTOSTART"
        return Finding("problem", "daemon", f"{text}, and TENSORCX_AUTOSTART=0", advice)
    return Finding("note", "daemon", f"{text}; the first call that needs one starts it")


def _log_of(pid: int | None, path: str) -> str:
    named = machine.option_of(pid, "log") if pid else None
    return f" {named}" if named else ""


def _start(path: str) -> Iterator[Finding]:
    if not _doctor_place.autostarts():
        return
    try:
        cx.Client(path, True).connect()
    except (cx.Error, OSError) as error:
        yield Finding("problem", "start", error_text(error))


def _cuda(client: cx.Client, stats: dict[str, Any]) -> Iterator[Finding]:
    """Nothing where nobody uses CUDA: to ask would load its driver."""
    if not stats["devices"]:
        return
    try:
        devices = client.devices()
    except (cx.Error, OSError) as error:
        yield Finding("problem", "cuda", error_text(error))
        return
    for device in devices:
        text = f"{device['device']}, {device['name']} ({device['uuid']}), by {device['mode']}: "
        text += f"{size_text(device['bytes'])} in {device['storages']} tensors, "
        text += f"{size_text(device['committed_bytes'])} committed"
        text += f" of {size_text(device['capacity_bytes'])}"
        if device["device"] == "cuda:?":
            yield Finding("note", "cuda", text, "CUDA_VISIBLE_DEVICES hides it from this process")
        elif device["dying_bytes"]:
            text += f", {size_text(device['dying_bytes'])} given up and still mapped"
            advice = "tensorcx clients shows who has memory on devices; it is free when these end"
            yield Finding("note", "cuda", text, advice)
        else:
            yield Finding("ok", "cuda", text)


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
        yield Finding("problem", "self-test", error_text(error))
