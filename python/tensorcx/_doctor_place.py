"""What tensorcx doctor finds out about the socket, who is trusted, and the daemon's program."""

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import tensorcx as cx
from tensorcx import _machine as machine
from tensorcx._finding import Finding
from tensorcx._text import error_text

ELSEWHERE = "name another socket in TENSORCX_SOCKET"


def socket(given: str | None, path: str) -> Finding:
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


def folder_of(path: str) -> Iterator[Finding]:
    """The folder and the file, by the rules of the library."""
    folder = os.path.dirname(path) or "/"
    try:
        info = os.lstat(folder)
    except FileNotFoundError:
        why = _refusal_of(os.path.dirname(folder))
        if why:
            text = f"{folder} is not there, and cannot be made: {why}"
            yield Finding("problem", "folder", text, f"make it with mode 700, or {ELSEWHERE}")
        else:
            yield Finding("ok", "folder", f"{folder} is not there; a daemon makes it")
        return
    except OSError as error:
        yield Finding("problem", "folder", f"{folder}: {error.strerror}", ELSEWHERE)
        return
    writable = info.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not info.st_mode & stat.S_ISVTX
    text = f"{folder}, {_owner(info)}"
    if stat.S_ISLNK(info.st_mode):
        yield Finding("problem", "folder", f"{text} is a link", "name the socket by its real path")
    elif not stat.S_ISDIR(info.st_mode):
        yield Finding("problem", "folder", f"{text} is not a folder", ELSEWHERE)
    elif not _is_trusted(info.st_uid):
        text += f", and this process runs as user {os.geteuid()}"
        yield Finding("problem", "folder", text, f"{ELSEWHERE}, or {_trust(info)}")
    elif writable:
        yield Finding("problem", "folder", f"{text}: others may write", f"chmod go-w {folder}")
    else:
        yield Finding("ok", "folder", text)
        yield from _socket_file(path)


def _socket_file(path: str) -> Iterator[Finding]:
    try:
        info = os.lstat(path)
    except FileNotFoundError:
        why = _refusal_of(os.path.dirname(path))
        if why:  # else the daemon's finding says so
            yield Finding(
                "problem", "file", f"{path} is not there, and cannot be made: {why}", ELSEWHERE
            )
        return
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
        yield Finding("problem", "file", text, f"{ELSEWHERE}, or {_trust(info)}")
    else:
        yield Finding("ok", "file", text)


def _refusal_of(folder: str) -> str:
    """Why nothing new can be made there, root or not: it is tried. Empty if something can."""
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return f"{folder}: {error.strerror}"
    return ""


def _is_trusted(uid: int) -> bool:
    return uid in (os.geteuid(), 0) or uid in (_trusted() or [])


def _trusted() -> list[int] | None:
    """The users in $TENSORCX_TRUST_UID; None: it is no such list, and the library ignores it."""
    named = (os.environ.get("TENSORCX_TRUST_UID") or "0").split(",")  # root is, anyway
    if not all(name.isascii() and name.isdecimal() for name in named):
        return None
    users = list(map(int, named))
    return users if len(users) <= 32 and max(users) < (1 << 32) - 1 else None


def _trust(info: os.stat_result) -> str:
    return f"trust that user: TENSORCX_TRUST_UID={info.st_uid}"


def _owner(info: os.stat_result) -> str:
    return f"user {info.st_uid}, mode {stat.S_IMODE(info.st_mode):03o}"


# ---------------------------------------------------------------------------------------- variables


DISTRUSTED = ("TENSORCX_SOCKET", "TENSORCX_TRUST_UID", "TENSORCXD", "XDG_RUNTIME_DIR", "PATH")


def variables() -> Iterator[Finding]:
    """What is set and ignored, because the library cannot read it, or must not: then unsets it."""
    if machine.has_more_rights():
        ignored = [name for name in DISTRUSTED if os.environ.pop(name, None)]
        told = f"more than its caller's (AT_SECURE), so these are ignored: {' '.join(ignored)}"
        yield Finding("note", "rights", told, "name the socket in the program, or by --socket")
    text = os.environ.get("TENSORCX_TIMEOUT")
    if text and timeout() is None:
        told = f"TENSORCX_TIMEOUT={text} is no positive number of seconds, and ignored"
        yield Finding("problem", "timeout", told, "unset it, or say TENSORCX_TIMEOUT=30")
    if _trusted() is None:
        told = f"TENSORCX_TRUST_UID={os.environ['TENSORCX_TRUST_UID']} is no list of users, and "
        advice = "name at most 32 by their numbers, with commas between, as in 1000,1001"
        yield Finding("problem", "trust", f"{told}ignored: nobody is trusted by it", advice)


def timeout() -> float | None:
    """$TENSORCX_TIMEOUT as the library reads it; None: it takes its default."""
    text = os.environ.get("TENSORCX_TIMEOUT", "")
    try:
        seconds = float(text)
    except ValueError:
        return None
    is_read = seconds > 0 and "_" not in text and text == text.rstrip()  # as strtod() does
    return seconds if is_read else None


# -------------------------------------------------------------------------------------------- start


def autostarts() -> bool:
    return os.environ.get("TENSORCX_AUTOSTART") != "0"


def program() -> Iterator[Finding]:
    """Whether a client starts a daemon, and which program that would be."""
    if autostarts():
        yield Finding("ok", "autostart", "on: a client starts the daemon that it needs")
    else:
        yield Finding("ok", "autostart", "off: TENSORCX_AUTOSTART=0")
    program, why = _program()
    wrong = "problem" if autostarts() else "note"
    if program is None:
        advice = "name it in TENSORCXD, or install the package again"
        yield Finding(wrong, "program", f"tensorcxd is not found {why}", advice)
        return
    try:
        said = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=5, check=True
        ).stdout.split()
    except (OSError, subprocess.SubprocessError) as error:
        yield Finding(wrong, "program", f"{program} ({why}): {error_text(error)}")
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
