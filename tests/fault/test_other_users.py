"""A daemon that serves several users (--allow-uid): who gets in, who is trusted, who sees what."""

import os
import shutil
import stat
import subprocess
from pathlib import Path

import daemon as d
import pytest
from helpers import Program

OWNER, GUEST, STRANGER = 61_001, 61_002, 61_003
TRUSTS = {"TENSORCX_TRUST_UID": f"7,{OWNER}"}

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: programs of other users")


def mode(path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.fixture
def open_folder(folder, monkeypatch):
    """A folder of OWNER's that others may enter, and a copy of the program that they may run."""
    monkeypatch.setattr(d, "PROGRAM", shutil.copy(d.PROGRAM, f"{folder}/tensorcxd"))
    os.mkdir(f"{folder}/open")
    os.chown(f"{folder}/open", OWNER, OWNER)
    for path in folder, f"{folder}/tensorcxd", f"{folder}/open":
        os.chmod(path, 0o711 if os.path.isdir(path) else 0o755)
    return f"{folder}/open"


@pytest.fixture
def shared(open_folder):
    options = ["--allow-uid", str(GUEST), "--warm-seconds", "3600", "--idle-exit", "0"]
    with d.Daemon(open_folder, *options, user=OWNER, group=OWNER, extra_groups=[]) as daemon:
        yield daemon
        with as_owner(daemon, "assert cx.stats()['storages'] == 0") as program:
            program.finish()


def as_user(uid, daemon, code, **env):
    # What it imports may not be for others to read.
    imports = "from tensorcx import _doctor, cli"
    return Program(f"{imports}\nbecome({uid})\n{code}", socket=daemon.path, env=env)


def as_owner(daemon, code):
    return as_user(OWNER, daemon, code)


def as_guest(daemon, code):
    return as_user(GUEST, daemon, code, **TRUSTS)


def refusal(uid, daemon, **env) -> str:
    code = """
try: cx.names()
except cx.DaemonUnavailable as error: say(error)
else: say("admitted")
"""
    with as_user(uid, daemon, code, **env) as program:
        text = program.line()
        program.finish()
        return text


def test_an_admitted_user_shares_with_the_daemons_own(shared):
    put = "cx.put('x', np.arange(1_000_000)); cx.put('small', np.ones(3)); say('put'); hear()"
    with as_owner(shared, put) as owner:
        owner.expect("put")
        code = """
assert cx.get("small").tolist() == [1, 1, 1]
array = np.asarray(cx.get("x"))
assert array.sum() == 499_999_500_000
array[0] = 7
say(*sorted({c["uid"] for c in cx.clients()}))
"""
        with as_guest(shared, code) as guest:
            guest.expect(f"{OWNER} {GUEST}")
            guest.finish()
        owner.tell()
        owner.finish()
    with as_owner(
        shared, "assert cx.get('x')[0].item() == 7; cx.delete('x'); cx.delete('small')"
    ) as p:
        p.finish()


def test_who_is_not_admitted_is_told_the_option(shared):
    text = refusal(STRANGER, shared, **TRUSTS)
    assert f"--allow-uid={STRANGER}" in text and f"serves user {OWNER}" in text


def test_root_is_not_admitted_by_itself(shared):
    assert "--allow-uid=0" in refusal(0, shared, **TRUSTS)


@pytest.mark.parametrize(
    "env", [{}, {"TENSORCX_TRUST_UID": "8"}, {"TENSORCX_TRUST_UID": "x"}], ids=str
)
def test_no_daemon_of_another_user_is_trusted_unless_it_is_named(shared, env):
    text = refusal(GUEST, shared, **env)
    assert f"TENSORCX_TRUST_UID={OWNER} trusts" in text


def test_without_the_option_nobody_else_can_reach_the_socket(open_folder):
    with d.Daemon(open_folder, user=OWNER, group=OWNER, extra_groups=[]) as daemon:
        assert mode(daemon.path) == 0o600
        assert "--allow-uid" in refusal(GUEST, daemon, **TRUSTS)


def test_with_it_others_reach_the_socket_and_nothing_else(open_folder):
    options = ["--allow-uid", str(GUEST), "--log", f"{open_folder}/made.log"]
    path = Path(open_folder) / "made" / "d.sock"
    with d.Daemon(open_folder, *options, socket_name="made/d.sock", user=OWNER, umask=0o077):
        assert [mode(path.parent), mode(path)] == [0o711, 0o666]
        assert [mode(path.with_suffix(".lock")), mode(f"{open_folder}/made.log")] == [0o600] * 2


def test_a_closed_folder_that_was_there_is_not_opened_behind_its_owners_back(folder):
    done = subprocess.run(
        [d.PROGRAM, "--allow-uid", str(GUEST), "--socket", f"{folder}/d.sock"],
        capture_output=True, text=True, check=False, timeout=d.DEADLINE, env=d.bare_environment(),
    )  # fmt: skip
    assert done.returncode == 1
    assert f"chmod 711 {folder}" in done.stderr
    assert mode(folder) == 0o700


def test_the_command_line_tells_clients_of_several_users_apart(shared):
    with as_owner(shared, "cx.names(); say('here'); hear()") as owner:
        owner.expect("here")
        with as_guest(shared, "cli.main(['clients'])") as guest:
            assert guest.line().split()[:3] == ["PID", "USER", "PROGRAM"]
            assert guest.line().split()[:2] == [str(owner.pid), str(OWNER)]
            assert guest.line().split()[:2] == [str(guest.pid), str(GUEST)]
            guest.finish()
        owner.tell()
        owner.finish()


def test_doctor_knows_whom_this_user_trusts(shared):
    code = """
findings, _ = _doctor.examine(None, False)
for f in findings:
    if f.topic in ("folder", "file", "daemon"): say(f.state, f.topic, f.text, f.advice)
"""
    with as_guest(shared, code) as program:
        for topic in "folder", "file", "daemon":
            program.expect(f"ok {topic}")
        program.finish()
    with as_user(GUEST, shared, code) as program:
        assert f"TENSORCX_TRUST_UID={OWNER}" in program.expect("problem folder")
        program.finish()
    with as_user(STRANGER, shared, code, **TRUSTS) as program:
        program.expect("ok folder"), program.expect("ok file")
        text = program.expect("problem daemon")
        assert f"ask user {OWNER} to start it with --allow-uid={STRANGER}, or name" in text
        assert "kill" not in text
        program.finish()


@pytest.mark.parametrize("nbytes", [300, 70_000, 3 << 20, 40 << 20])
def test_memory_of_one_user_is_never_shown_to_another(shared, nbytes):
    """Freed memory is kept warm, but for the same user only."""
    write = f"[cx.full(({nbytes},), 0xAA, 'uint8') for _ in range(3)]"
    look = f"assert not any(np.asarray(cx.empty(({nbytes},), 'uint8')).any() for _ in range(6))"
    with as_owner(shared, write) as program:
        program.finish()
    with as_guest(shared, f"{look}\n{write}") as program:
        program.finish()
    with as_guest(shared, "assert cx.stats()['warm_bytes'] > 0") as program:
        program.finish()
    with as_owner(
        shared, f"kept = cx.empty(({nbytes},), 'uint8'); assert 0xAA in np.asarray(kept)"
    ) as p:
        p.finish()
