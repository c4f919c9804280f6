"""The command line, as a program."""

import io
import json
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import tensorcx as cx
from tensorcx import cli


def run(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "tensorcx", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )


def output(*arguments):
    done = run(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def failure(*arguments, **options):
    """The one line an error is."""
    done = run(*arguments, **options)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("tensorcx: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.fixture
def published():
    cx.put("frames/left", np.zeros((1080, 1920), "uint8"))
    cx.put("obs", {"image": np.ones((2, 2)), "reward": np.float32(1)})
    yield
    for name in cx.names():
        cx.delete(name)


@pytest.fixture
def channels():
    with cx.queue("jobs", 4, nbytes=2048) as q, cx.topic("camera") as t, t.subscribe() as s:
        q.send(np.zeros(9)), q.send(1)
        kept = q.recv()
        t.send(1)
        yield s
        kept.close()
        q.recv()


def test_channels_shows_queues_and_topics(channels):
    header, camera, jobs = output("channels").splitlines()
    assert header.split()[:5] == ["NAME", "KIND", "WAITING", "MESSAGES", "BUFFERS"]
    assert camera.split()[:4] == ["camera", "topic", "1/8", "1"]
    assert jobs.split() == "jobs queue 1/4 2 12 x 2.0 KiB 1 1 open".split()  # noqa: SIM905


def test_stat_of_a_channel_names_who_has_handles(channels):
    said = output("stat", "camera")
    assert "drops the oldest" in said and "1 of 8 messages" in said
    pids = [line.split() for line in said.split("HANDLE\n")[1].splitlines()]
    assert [(line[0], line[-2], line[-1]) for line in pids] == [
        (str(os.getpid()), "0", "open"),
        (str(os.getpid()), "1", "open"),
    ]


def test_rm_ends_a_channel(channels):
    assert output("rm", "camera") == ""
    assert [x.item() for x in channels] == [1]
    assert "(deleted)" in output("channels")
    assert "camera" in failure("stat", "camera")


def test_ls_shows_names_dtypes_shapes_and_readable_sizes(published):
    header, left, obs = (line.split() for line in output("ls").splitlines())
    assert header == ["NAME", "DTYPE", "SHAPE", "BYTES", "VERSION", "AGE"]
    assert left[:5] == ["frames/left", "uint8", "1080x1920", "2.0", "MiB"]
    assert obs[:3] == ["obs", "bundle", "-"]
    assert output("ls", "obs").count("\n") == 2
    assert output("ls", "nothing") == output("ls", "nothing").splitlines()[0] + "\n"


def test_stat_tells_all_about_one_name(published):
    lines = dict(line.split(None, 1) for line in output("stat", "frames/left").splitlines())
    assert lines["shape"] == "1080x1920"
    assert lines["bytes"] == "2073600 (2.0 MiB)"
    assert lines["publisher"] == f"pid {os.getpid()}"
    assert lines["ttl"] == "none"
    assert "nowhere" in failure("stat", "nowhere")


def test_rm_removes_names(published):
    assert output("rm", "frames/left", "obs") == ""
    assert cx.names() == []
    assert "obs" in failure("rm", "obs")


@pytest.mark.parametrize("array", [np.arange(6.0).reshape(2, 3), np.array(True), np.zeros((0, 2))])
def test_put_and_get_carry_npy_files(tmp_path, array):
    np.save(tmp_path / "in.npy", array)
    assert output("put", "x", tmp_path / "in.npy") == ""
    assert output("get", "x", "-o", tmp_path / "out.npy") == ""
    cx.delete("x")
    back = np.load(tmp_path / "out.npy")
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


def test_get_writes_exactly_the_file_it_is_told(tmp_path, published):
    output("get", "frames/left", "-o", tmp_path / "plain")
    assert os.listdir(tmp_path) == ["plain"]


def test_put_and_get_say_what_they_cannot_do(tmp_path, published):
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    np.save(tmp_path / "dates.npy", np.array(["2024-01-01"], "M8[D]"))
    (tmp_path / "text.npy").write_text("no array")
    assert "objects" in failure("put", "x", tmp_path / "objects.npy").lower()
    assert "datetime64" in failure("put", "x", tmp_path / "dates.npy")
    failure("put", "x", tmp_path / "text.npy")
    assert "none.npy" in failure("put", "x", tmp_path / "none.npy")
    assert "bundle" in failure("get", "obs", "-o", tmp_path / "x.npy")
    assert "nowhere" in failure("get", "nowhere", "-o", tmp_path / "x.npy")
    assert not (tmp_path / "x.npy").exists()
    assert cx.names() == ["frames/left", "obs"]


def test_clients_shows_who_holds_what(published):
    held = cx.get("frames/left")
    sent = pickle.dumps(held.ref())
    lines = [line.split() for line in output("clients").splitlines()]
    assert lines[0] == ["PID", "PROGRAM", "TENSORS", "BYTES", "TICKETS", "WAITING", "AGE", "STATE"]
    (mine,) = [line for line in lines if line[0] == str(os.getpid())]
    assert "2.0 MiB 1 0 " in " ".join(mine) and "connected" in mine  # one ticket, nothing waits
    assert any("(this one)" in " ".join(line) for line in lines)
    pickle.loads(sent).close()
    held.close()


def test_stats_are_readable_or_json(published, daemon):
    stats = json.loads(output("stats", "--json"))
    assert stats["pid"] == daemon.pid
    assert stats["names"] == 2
    lines = dict(line.split(None, 1) for line in output("stats").splitlines())
    assert lines["names"] == "2"
    assert lines["bytes"].endswith("MiB")


def test_output_may_go_to_a_pipe_that_closes(published):
    for i in range(50):
        cx.put(f"many/{i}", np.zeros(1))
    shell = f"{sys.executable} -m tensorcx ls | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", shell], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout.split()[0] == "NAME"


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_ls_shows_all_names_whatever_the_output_can_show(published, encoding):
    cx.put("a/größe", np.zeros(1))
    done = run("ls", env=os.environ | {"PYTHONIOENCODING": encoding}, encoding="utf-8")
    assert (done.returncode, done.stderr) == (0, "")
    names = [line.split()[0] for line in done.stdout.splitlines()]
    shown = "a/größe".encode(encoding, "backslashreplace").decode(encoding)
    assert names == ["NAME", shown, "frames/left", "obs"]


def test_what_would_turn_the_line_around_is_shown_by_its_code(published):
    cx.put("a/\u202e", np.zeros(1))
    kept = cx.queue("a/\u2028")
    for command, shown in (("ls", r"a/\u202e"), ("channels", r"a/\u2028")):
        done = run(command, env=os.environ | {"PYTHONIOENCODING": "utf-8"}, encoding="utf-8")
        assert done.stdout.splitlines()[1].split()[0] == shown
    kept.close()


def test_output_may_be_closed(published):
    shell = f"{sys.executable} -m tensorcx ls >&-"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_name_that_is_no_text_is_refused_as_such(published):
    assert "must be UTF-8: '\\udcff" in failure("rm", "\udcff")


def test_without_a_daemon_every_command_says_so_and_starts_none(tmp_path):
    socket = tmp_path / "none.sock"
    environment = {k: v for k, v in os.environ.items() if k != "TENSORCX_AUTOSTART"}
    for command in (["ls"], ["stat", "x"], ["rm", "x"], ["clients"], ["stats"], ["stop"]):
        assert str(socket) in failure("--socket", socket, *command, env=environment)
    assert os.listdir(tmp_path) == []


def test_stop_ends_the_daemon_and_put_starts_one(tmp_path):
    np.save(tmp_path / "x.npy", np.ones(3))
    environment = {k: v for k, v in os.environ.items() if k != "TENSORCX_AUTOSTART"}
    environment["TENSORCX_SOCKET"] = str(tmp_path / "own.sock")

    def tool(*arguments):
        done = run(*arguments, env=environment)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    tool("put", "x", tmp_path / "x.npy")
    pid = json.loads(tool("stats", "--json"))["pid"]
    tool("stop")
    failure("ls", env=environment)
    assert pid != json.loads(output("stats", "--json"))["pid"]


def test_usage_errors_and_help_are_argparse_s():
    assert run().returncode == 2
    assert run("nonsense").returncode == 2
    assert "clients" in output("--help")
    assert output("--version") == f"tensorcx {cx.__version__}\n"


def test_rm_removes_what_is_there_and_names_what_is_not(published):
    cx.put("other", np.zeros(2))
    error = failure("rm", "nope", "other", "neither")
    assert "'nope', 'neither'" in error
    assert not cx.exists("other")


def test_stat_of_a_bundle_lists_its_parts():
    cx.put("obs", {"image": np.zeros((2, 3), "u1"), "more": {"reward": np.float32(1)}})
    lines = output("stat", "obs").splitlines()
    assert any(line.split() == ["image", "uint8", "2x3", "6", "B"] for line in lines)
    assert any(line.split() == ["more/reward", "float32", "scalar", "4", "B"] for line in lines)
    cx.delete("obs")


def test_get_writes_to_standard_output():
    cx.put("x", np.arange(6, dtype="f4"))
    done = subprocess.run(
        [sys.executable, "-m", "tensorcx", "get", "x", "-o", "-"], capture_output=True, check=True
    )
    assert np.load(io.BytesIO(done.stdout)).tolist() == [0, 1, 2, 3, 4, 5]
    cx.delete("x")


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"no array", b"\x93NUMPY\x01\x00garbage", b"PK\x03\x04"),
        b"\x93NUMPY\x01\x00\x10\x00{'descr': '<f4',\n",  # as Python 2 did not write it
    ],
)
def test_put_takes_only_npy_files_with_numbers(tmp_path, content):
    file = tmp_path / "file.npy"
    file.write_bytes(content)
    assert "no .npy file" in failure("put", "x", file)


def test_a_file_for_which_there_is_no_memory_is_not_called_wrong(monkeypatch, tmp_path):
    def load(*arguments, **options):
        raise MemoryError("no room for it")

    monkeypatch.setattr(np, "load", load)
    with pytest.raises(SystemExit, match=r"^tensorcx: no room for it$"):
        cli.main(["put", "x", str(tmp_path / "x.npy")])


def test_put_takes_no_npz_file(tmp_path):
    np.savez(tmp_path / "several.npz", a=np.zeros(2), b=np.zeros(3))
    assert "no .npy file" in failure("put", "x", tmp_path / "several.npz")
