"""What somebody without rights tries: the environment of a setuid program, /proc, ptrace."""

import os
import shutil
import subprocess
from pathlib import Path

import daemon as d
import pytest
from helpers import Program

OWNER, STRANGER = 61_021, 61_022

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: programs of other users")

SETUID = r"""
#include <stdio.h>
#include <sys/auxv.h>
#include <tensorcx.h>

/* A sanitizer may not look into such a program. */
const char *__asan_default_options(void) {
    return "detect_leaks=0";
}

int main(void) {
    tcx_client_options_t options = {0};
    tcx_client_t *client;

    printf("%lu\n", getauxval(AT_SECURE));
    if (tcx_client_open(&options, &client) != TCX_OK || tcx_client_connect(client) != TCX_OK) {
        puts(tcx_error());
    }
    return 0;
}
"""


@pytest.fixture
def setuid(folder):
    """A program of OWNER's that anybody may run; its library has no daemon beside it."""
    program, package = Path(folder) / "program", d.PACKAGES / "tensorcx"
    os.chmod(folder, 0o711)
    shutil.copy(package / "lib" / "libtensorcx.so.0", folder)
    source = program.with_suffix(".c")
    source.write_text(SETUID)
    library = [f"{folder}/libtensorcx.so.0", f"-Wl,-rpath,{folder}"]
    include = f"-I{package}/include"
    subprocess.run([*d.COMPILER, include, source, *library, "-o", program], check=True)
    os.chown(program, OWNER, OWNER)
    os.chmod(program, 0o6755)
    yield program
    shutil.rmtree(f"/tmp/tensorcx-{OWNER}", ignore_errors=True)  # the default place


def say_as(uid: int, program: Path, **env: str) -> list[str]:
    done = subprocess.run(
        [program], env=env, user=uid, group=uid, extra_groups=[], cwd="/",
        text=True, stdout=subprocess.PIPE, timeout=d.DEADLINE, check=True,
    )  # fmt: skip
    is_secure, *lines = done.stdout.splitlines()
    if uid != OWNER and is_secure == "0":
        pytest.skip("setuid programs do not work where temporary files are (nosuid)")
    return lines


def trap(folder) -> tuple[Path, Path]:
    """A program that leaves a trace, under the daemon's name, and that trace."""
    place = Path(folder) / "bin"
    place.mkdir()
    program, trace = place / "tensorcxd", place / "was_here"
    program.write_text(f"#!/bin/sh\n: >{trace}\n")
    program.chmod(0o755)
    place.chmod(0o777)
    return program, trace


@pytest.mark.parametrize("variable", ["TENSORCXD", "PATH"])
def test_a_setuid_program_starts_nothing_that_its_caller_names(folder, setuid, variable):
    program, trace = trap(folder)
    env = {variable: str(program.parent if variable == "PATH" else program)}
    [text] = say_as(STRANGER, setuid, **env)
    assert "tensorcxd is not found" in text
    assert not trace.exists()
    say_as(OWNER, setuid, **env)  # its own user may
    assert trace.exists()


def test_a_setuid_program_is_led_to_no_other_socket(folder, setuid):
    place = Path(folder) / "place"
    place.mkdir()
    os.chown(place, OWNER, OWNER)
    env = {
        "TENSORCX_SOCKET": f"{place}/d.sock",
        "XDG_RUNTIME_DIR": str(place),
        "TENSORCX_AUTOSTART": "0",
    }
    [text] = say_as(STRANGER, setuid, **env)
    assert str(place) not in text and f"/tmp/tensorcx-{OWNER}/" in text
    [text] = say_as(OWNER, setuid, **env)
    assert f"{place}/d.sock" in text


LOOKS = """
become(int(sys.argv[1]))
import ctypes
pid = int(sys.argv[2])
for path in f"/proc/{pid}/fd", f"/proc/{pid}/map_files", f"/proc/{pid}/mem", f"/proc/{pid}/maps":
    try: os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(1)
    except PermissionError: continue
    say("can read", path)
for fd in range(200):
    try: os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
    except OSError: continue
    say("can open", fd)
libc = ctypes.CDLL(None, use_errno=True)
PTRACE_SEIZE = 0x4206
if libc.ptrace(PTRACE_SEIZE, pid, 0, 0) == 0: say("can trace")
say("done")
"""


def test_another_user_reaches_no_memory_through_proc(folder):
    """Neither by the daemon's descriptors nor by a client's maps, though memfds have mode 0777."""
    os.chmod(folder, 0o711)
    owned = Path(folder) / "owned"
    owned.mkdir()
    os.chown(owned, OWNER, OWNER)
    put = f"become({OWNER})\nkept = cx.put('x', np.arange(3)); say('put'); hear(); cx.delete('x')"
    program = shutil.copy(d.PROGRAM, f"{folder}/tensorcxd")
    options = {"user": OWNER, "group": OWNER, "extra_groups": []}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(d, "PROGRAM", program)
        daemon = d.Daemon(owned, "--backing", "memfd", "--idle-exit", "0", **options)
    with daemon, Program(put, socket=daemon.path) as client:
        client.expect("put")
        for pid in daemon.pid, client.pid:
            with Program(LOOKS, STRANGER, pid, raw=True, socket=daemon.path) as stranger:
                assert stranger.line() == "done"
                stranger.finish()
        client.tell()
        client.finish()


def test_a_runtime_folder_of_somebody_else_is_not_used(folder):
    """Whoever sets it for another: the default place is taken, not that one."""
    os.chmod(folder, 0o777)
    ask = (
        f"become({OWNER})\nos.environ['XDG_RUNTIME_DIR'] = {folder!r}\n"
        + """
try: cx.names()
except cx.DaemonUnavailable as error: say(error)
"""
    )
    with Program(ask) as program:
        assert folder not in program.line()
        program.finish()
    assert os.listdir(folder) == []
