"""tensorcx doctor: each trouble is told as a problem, with what to do; without trouble, none is."""

import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

import daemon as d
import pytest
import wire_table
from namespaces import can, no_inotify, small_dev_shm

import tensorcx as cx
from tensorcx import _machine as machine

STRANGER = 12345
MiB = 1 << 20
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: chown to another user")


@pytest.fixture
def folder():
    """A private folder with a short name: the path of a socket has 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="tcx-") as path:
        yield path


def examine(*options, env=None, **popen):
    """Exit code, findings by topic, and the counters of the daemon."""
    done = subprocess.run(
        [sys.executable, "-m", "tensorcx", *map(str, options), "--json"],
        capture_output=True, text=True, timeout=100, check=False,
        env=os.environ | (env or {}), **popen,
    )  # fmt: skip
    assert done.stderr == ""
    told = json.loads(done.stdout)
    found = {finding["topic"]: finding for finding in told["findings"]}
    assert len(found) == len(told["findings"])
    problems = [finding for finding in found.values() if finding["state"] == "problem"]
    assert told["problems"] == len(problems)
    assert done.returncode == (1 if problems else 0)
    return found, told["stats"]


def problem(found, topic, *words):
    """The finding is a problem and its text or advice has these words."""
    assert found[topic]["state"] == "problem", found[topic]
    told = found[topic]["text"] + " -> " + found[topic]["advice"]
    for word in words:
        assert str(word) in told, told


def problems(found) -> list[str]:
    return [topic for topic, finding in found.items() if finding["state"] == "problem"]


# ------------------------------------------------------------------------------------- no trouble


def test_a_running_daemon_is_described_and_tested(daemon):
    tensor = cx.zeros(1000, "uint8")
    found, stats = examine("doctor")
    assert problems(found) == []
    assert found["socket"]["text"] == f"{daemon.path} ($TENSORCX_SOCKET)"
    assert f"user {os.geteuid()}, mode 700" in found["folder"]["text"]
    assert f"user {os.geteuid()}, mode 600" in found["file"]["text"]
    assert f"pid {daemon.pid} (tensorcxd), version {cx.__version__}" in found["daemon"]["text"]
    assert found["self-test"]["text"].startswith("put 1 MiB")
    assert (stats["pid"], stats["storages"]) == (daemon.pid, 1)
    assert "1000 B in 1 tensors" in found["capacity"]["text"]
    assert found["cgroup"]["text"].startswith("the daemon's: /")
    assert "off" in found["autostart"]["text"]  # the fixture's environment
    assert found["program"]["text"].startswith("/")
    del tensor


def test_for_people_it_is_a_screen_of_lines():
    done = subprocess.run(
        [sys.executable, "-m", "tensorcx", "doctor"],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert 15 < len(lines) < 40
    assert all(line.startswith(("ok  ", "note  ", "problem  ", " ")) for line in lines)


@pytest.mark.parametrize("rule", ["--socket", "$TENSORCX_SOCKET", "$XDG_RUNTIME_DIR"])
def test_it_tells_which_rule_decided_about_the_socket(folder, rule):
    path, options, env = f"{folder}/x.sock", [], {"TENSORCX_SOCKET": "", "XDG_RUNTIME_DIR": folder}
    if rule == "--socket":
        options = ["--socket", path]
    elif rule == "$TENSORCX_SOCKET":
        env["TENSORCX_SOCKET"] = path
    else:
        path = f"{folder}/tensorcx/tensorcxd.sock"
    found, _ = examine(*options, "doctor", env=env)
    assert found["socket"]["text"] == f"{path} ({rule})"


def test_a_runtime_folder_that_is_passed_over_is_named():
    env = {"TENSORCX_SOCKET": "", "XDG_RUNTIME_DIR": "/nowhere"}
    found, _ = examine("doctor", env=env)
    assert found["socket"]["state"] == "note"
    assert "/nowhere is no folder of this user" in found["socket"]["text"]


@ROOT_ONLY
def test_a_program_with_more_rights_than_its_caller_is_told_what_it_ignores(folder):
    python = shutil.copy(os.path.realpath(sys.executable), f"{folder}/python")
    os.chown(python, -1, STRANGER)
    os.chmod(python, 0o2755)  # setgid
    env = {"TENSORCX_SOCKET": "/x", "TENSORCXD": "/y", "TENSORCX_TRUST_UID": "z"}
    found, _ = examine("--socket", f"{folder}/x.sock", "doctor", env=env, executable=python)
    assert found["rights"]["state"] == "note"
    assert "ignored: TENSORCX_SOCKET TENSORCX_TRUST_UID TENSORCXD" in found["rights"]["text"]
    assert "trust" not in found
    assert "/y" not in found["program"]["text"]


# ------------------------------------------------------------------------------------ no daemon


def test_no_daemon_is_no_problem_where_the_next_call_starts_one(folder):
    path = f"{folder}/x.sock"
    found, stats = examine("--socket", path, "doctor", env={"TENSORCX_AUTOSTART": "1"})
    assert (found["daemon"]["state"], stats) == ("note", None)
    assert "self-test" not in found
    assert os.listdir(folder) == []  # none was started


def test_no_daemon_is_a_problem_where_nobody_starts_one(folder):
    path = f"{folder}/x.sock"
    found, _ = examine("--socket", path, "doctor")
    problem(found, "daemon", "none answers", "TENSORCX_AUTOSTART=0", f"tensorcxd --socket {path}")


def test_with_self_test_one_is_started(folder):
    path, env = f"{folder}/x.sock", {"TENSORCX_AUTOSTART": "1"}
    found, stats = examine("--socket", path, "doctor", "--self-test", env=env)
    cx.Client(path, False).stop()
    assert found["self-test"]["state"] == "ok"
    assert stats["socket"] == path


def test_a_daemon_that_cannot_start_gives_its_reason(folder):
    env = {"TENSORCX_AUTOSTART": "1", "TENSORCXD": f"{folder}/none"}
    found, _ = examine("--socket", f"{folder}/x.sock", "doctor", "--self-test", env=env)
    problem(found, "start", f"{folder}/none")
    problem(found, "program", f"$TENSORCXD={folder}/none", "name it in TENSORCXD")


def test_a_program_that_is_another_is_named():
    found, _ = examine("doctor", env={"TENSORCXD": "/bin/true"})
    assert found["program"]["state"] == "note"
    assert "/bin/true ($TENSORCXD)" in found["program"]["text"]


def test_the_socket_of_a_killed_daemon_is_told_from_a_missing_one(folder):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(f"{folder}/x.sock")
    found, _ = examine("--socket", f"{folder}/x.sock", "doctor")
    problem(found, "daemon", "of one that was killed")


# ------------------------------------------------------------------------ a daemon with trouble


def test_a_stopped_daemon_is_told_without_waiting_for_it(folder):
    with d.Daemon(folder, "--idle-exit", "0") as stopped:
        os.kill(stopped.pid, signal.SIGSTOP)
        found, stats = examine("--socket", stopped.path, "doctor", "--self-test")
        problem(found, "daemon", "is stopped", f"kill -CONT {stopped.pid}")
        assert stats is None


def test_who_listens_and_never_answers_is_given_up(folder):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(f"{folder}/x.sock")
        silent.listen(4)
        env = {"TENSORCX_TIMEOUT": "0.2"}
        found, _ = examine("--socket", f"{folder}/x.sock", "doctor", env=env)
    problem(found, "daemon", f"pid {os.getpid()}", "0.2 s")


def test_a_queue_that_is_full_is_told(folder):
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stuck,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as first,
    ):
        stuck.bind(f"{folder}/x.sock")
        stuck.listen(0)
        first.connect(f"{folder}/x.sock")
        found, _ = examine("--socket", f"{folder}/x.sock", "doctor")
    problem(found, "daemon", "queue of new connections is full")


def test_a_daemon_of_another_protocol_says_which_side_to_upgrade(folder):
    text = b"this daemon speaks 7 to 9, you speak 1: upgrade the client"
    size = wire_table.HEADER.size + len(text)
    refusal = wire_table.HEADER.pack(
        nbytes=size, opcode=1, request=1, status=wire_table.Status.VERSION
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind(f"{folder}/x.sock")
        other.listen(4)
        doctor = subprocess.Popen(
            [sys.executable, "-m", "tensorcx", "--socket", f"{folder}/x.sock", "doctor"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        other.accept()[0].close()  # it only looked who listens
        peer, _ = other.accept()
        with peer:
            peer.recv(1000)
            peer.send(refusal + text)
            told, _ = doctor.communicate(timeout=60)
    assert doctor.returncode == 1
    assert "problem  daemon" in told and text.decode() in told


def test_another_program_on_the_socket_is_told(folder):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(f"{folder}/x.sock")
        other.listen(4)
        found, _ = examine("--socket", f"{folder}/x.sock", "doctor")
    problem(found, "daemon", "another program listens there")


def test_a_full_daemon_is_a_problem(folder):
    options = ("--idle-exit", "0", "--capacity", "64M", "--warm-seconds", "0")
    with d.Daemon(folder, *options) as full, full.connect() as client:
        client.alloc(62 * MiB)
        found, _ = examine("--socket", full.path, "doctor")
    problem(found, "capacity", "62.0 MiB in 1 tensors", "of 64.0 MiB", "tensorcx clients")


# -------------------------------------------------------------------------- a place with trouble


def test_a_path_that_is_too_long_is_a_problem_with_the_limit(folder):
    found, _ = examine("--socket", f"{folder}/{'x' * 100}", "doctor")
    problem(found, "socket", 107)
    assert "daemon" not in found


def test_a_folder_that_cannot_be_made_is_a_problem(folder):
    found, _ = examine("--socket", f"{folder}/not/there/x.sock", "doctor")
    problem(found, "folder", f"{folder}/not/there is not there", f"{folder}/not")


@pytest.mark.parametrize(
    ("path", "topic"), [("/proc/x.sock", "file"), ("/proc/x/y.sock", "folder")]
)
def test_a_place_where_nothing_can_be_made_is_a_problem_for_root_too(path, topic):
    found, _ = examine("--socket", path, "doctor", env={"TENSORCX_AUTOSTART": "1"})
    problem(found, topic, "is not there, and cannot be made: /proc: ", "TENSORCX_SOCKET")
    assert "daemon" not in found


@ROOT_ONLY
def test_a_folder_of_somebody_else_is_a_problem(folder):
    os.mkdir(f"{folder}/theirs", 0o700)
    os.chown(f"{folder}/theirs", STRANGER, STRANGER)
    found, _ = examine("--socket", f"{folder}/theirs/x.sock", "doctor", "--self-test")
    problem(found, "folder", f"user {STRANGER}", f"user {os.geteuid()}", "TENSORCX_SOCKET")
    assert "daemon" not in found
    assert os.listdir(f"{folder}/theirs") == []


@ROOT_ONLY
def test_a_socket_of_somebody_else_is_a_problem(folder):
    with d.Daemon(folder, "--idle-exit", "0") as theirs:
        os.chown(theirs.path, STRANGER, STRANGER)
        found, stats = examine("--socket", theirs.path, "doctor")
    problem(found, "file", f"user {STRANGER}", "TENSORCX_SOCKET")
    assert stats is None


@pytest.mark.parametrize("kind", ["link", "open", "file"])
def test_a_folder_that_cannot_be_trusted_is_a_problem(folder, kind):
    place = f"{folder}/place"
    words = {"link": "real path", "open": f"chmod go-w {place}", "file": "not a folder"}
    if kind == "link":
        os.symlink(folder, place)
    elif kind == "open":
        os.mkdir(place)
        os.chmod(place, 0o777)
    else:
        open(place, "w").close()
    found, _ = examine("--socket", f"{place}/x.sock", "doctor")
    problem(found, "folder", words[kind])


def test_a_file_in_place_of_the_socket_is_a_problem(folder):
    open(f"{folder}/x.sock", "w").close()
    found, _ = examine("--socket", f"{folder}/x.sock", "doctor")
    problem(found, "file", "no socket", "remove it")


# -------------------------------------------------------------------------- settings with trouble


@pytest.mark.parametrize("text", ["soon", "30s", "-1", "0", "nan", "1_0", "3 "])
def test_a_timeout_that_the_library_ignores_is_a_problem(text):
    found, _ = examine("doctor", env={"TENSORCX_TIMEOUT": text})
    problem(found, "timeout", f"TENSORCX_TIMEOUT={text} is no positive number", "ignored")


@pytest.mark.parametrize("text", ["joe", "7,", "7, 8", "-1", f"{(1 << 32) - 1}", "7," * 32 + "7"])
def test_a_list_of_trusted_users_that_the_library_ignores_is_a_problem(text):
    found, _ = examine("doctor", env={"TENSORCX_TRUST_UID": text})
    problem(found, "trust", f"TENSORCX_TRUST_UID={text} is no list of users", "commas")


def test_settings_that_are_good_or_empty_are_not_mentioned():
    for timeout, trust in ("", ""), ("2.5", "7,8"):
        env = {"TENSORCX_TIMEOUT": timeout, "TENSORCX_TRUST_UID": trust}
        found, _ = examine("doctor", env=env)
        assert "timeout" not in found and "trust" not in found


# ------------------------------------------------------------------------------ limits in the way


def limit(kind, soft, hard=None):
    return lambda: resource.setrlimit(kind, (soft, hard or resource.getrlimit(kind)[1]))


def test_few_descriptors_are_a_problem():
    found, _ = examine("doctor", preexec_fn=limit(resource.RLIMIT_NOFILE, 20))
    problem(found, "descriptors", "of 20", "ulimit -n")


def test_a_low_hard_limit_is_noted_for_the_daemon():
    found, _ = examine("doctor", preexec_fn=limit(resource.RLIMIT_NOFILE, 500, 500))
    assert found["descriptors"]["state"] == "note"
    assert "hard limit 500" in found["descriptors"]["text"]


def test_a_daemon_with_few_descriptors_is_a_problem(folder):
    few = limit(resource.RLIMIT_NOFILE, 48, 48)
    with d.Daemon(folder, "--idle-exit", "0", preexec_fn=few) as poor:
        connections = [poor.connect() for _ in range(8)]
        found, _ = examine("--socket", poor.path, "doctor")
        for connection in connections:
            connection.close()
    problem(found, "its files", "of 48", "hard limit")


@pytest.mark.bare
def test_limited_address_space_is_noted():
    found, _ = examine("doctor", preexec_fn=limit(resource.RLIMIT_AS, 16 << 30))
    assert found["address"]["state"] == "note"
    assert "16.0 GiB" in found["address"]["text"]


NEEDS_MOUNT = pytest.mark.skipif(not can(small_dev_shm), reason="needs root and CAP_SYS_ADMIN")


@pytest.mark.skipif(not can(no_inotify), reason="needs a user namespace")
def test_a_daemon_without_inotify_is_noted(folder):
    with d.Daemon(folder, "--idle-exit", "0", preexec_fn=no_inotify) as deaf:
        found, _ = examine("--socket", deaf.path, "doctor")
    assert found["inotify"]["state"] == "note"
    assert "the daemon has got none" in found["inotify"]["text"]
    assert "max_user_instances" in found["inotify"]["advice"]


@NEEDS_MOUNT
def test_a_small_dev_shm_is_told_with_what_the_daemon_does_about_it(folder):
    with d.Daemon(folder, "--idle-exit", "0", preexec_fn=small_dev_shm) as small:
        found, _ = examine("--socket", small.path, "doctor")  # we see another /dev/shm
    assert problems(found) == []
    assert found["backing"]["text"].startswith("memfd (auto: /dev/shm had less room")
    assert found["/dev/shm"]["text"] == "64.0 MiB of 64.0 MiB free; not used (memfd)"


@NEEDS_MOUNT
def test_a_dev_shm_that_somebody_else_fills_is_a_problem(folder):
    options = ("--idle-exit", "0", "--backing", "posix", "--capacity", "48M")
    with d.Daemon(folder, *options, preexec_fn=small_dev_shm) as small:
        with open(f"/proc/{small.pid}/root/dev/shm/foreign", "wb") as file:
            file.write(bytes(32 * MiB))
        found, _ = examine("--socket", small.path, "doctor")
    problem(found, "/dev/shm", "32.0 MiB of 64.0 MiB", "48.0 MiB", "--backing=memfd")
    assert found["backing"]["text"] == "posix (--backing=posix)"


@NEEDS_MOUNT
def test_without_a_daemon_it_tells_what_one_would_use(folder):
    env = {"TENSORCX_AUTOSTART": "1"}
    path = f"{folder}/x.sock"
    found, _ = examine("--socket", path, "doctor", env=env, preexec_fn=small_dev_shm)
    assert "a daemon would use memfd" in found["/dev/shm"]["text"]


# -------------------------------------------------------------------------------- memory limits


def lay(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_the_tightest_limit_above_a_process_counts_version_2(tmp_path):
    lay(tmp_path, {
        "proc/self/cgroup": "0::/user.slice/app.scope\n",
        "sys/fs/cgroup/user.slice/app.scope/memory.max": "max\n",
        "sys/fs/cgroup/user.slice/memory.max": f"{100 * MiB}\n",
        "sys/fs/cgroup/user.slice/memory.current": f"{80 * MiB}\n",
        "sys/fs/cgroup/user.slice/memory.stat": f"anon 1\ninactive_file {10 * MiB}\n",
    })  # fmt: skip
    found = machine.cgroup_of(root=str(tmp_path))
    assert found[:3] == (2, "/user.slice/app.scope", "/sys/fs/cgroup/user.slice")
    assert (found.limit, found.used, found.room) == (100 * MiB, 70 * MiB, 30 * MiB)
    lay(tmp_path, {"sys/fs/cgroup/user.slice/memory.high": f"{90 * MiB}\n"})
    found = machine.cgroup_of(root=str(tmp_path))
    assert (found.limit, found.room) == (90 * MiB, 20 * MiB)


def test_the_tightest_limit_above_a_process_counts_version_1(tmp_path):
    lay(tmp_path, {
        "proc/7/cgroup": "4:cpu,memory:/docker/abc\n0::/\n",  # a host's path: only the top is here
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{50 * MiB}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{60 * MiB}\n",
    })  # fmt: skip
    found = machine.cgroup_of(7, root=str(tmp_path))
    assert found[:3] == (1, "/docker/abc", "/sys/fs/cgroup/memory")
    assert found.room == 0


@pytest.mark.parametrize("chosen", ["always", "within_size", "advise", "never", "deny", "force"])
def test_huge_pages_are_given_unless_they_are_forbidden(tmp_path, chosen):
    choices = "always within_size advise never deny force"
    lay(tmp_path, {machine.HUGE_PAGES[1:]: choices.replace(chosen, f"[{chosen}]") + "\n"})
    assert machine.huge_pages(str(tmp_path)) == chosen
    assert machine.gives_huge_pages(str(tmp_path)) == (chosen not in ("never", "deny"))


def test_a_kernel_without_huge_pages_has_none(tmp_path):
    assert machine.huge_pages(str(tmp_path)) is None
    assert not machine.gives_huge_pages(str(tmp_path))


@pytest.mark.parametrize("text", ["", "0::/\n", "4:memory:/\n", "nonsense\n"])
def test_no_limit_is_no_limit(tmp_path, text):
    lay(tmp_path, {
        "proc/self/cgroup": text,
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    })  # fmt: skip
    found = machine.cgroup_of(root=str(tmp_path))
    assert found is None or found.folder is None
