"""What stats(), devices(), clients(), doctor and the command line tell of devices."""

import json
import subprocess
import sys

import fakecuda
import numpy as np
import pytest
from cuda_array import Array

import tensorcx as cx

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


def run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "tensorcx", *arguments],
        capture_output=True,
        text=True,
        env=fakecuda.environment(**environment) | {"TENSORCX_SOCKET": cx.stats()["socket"]},
        check=False,
    )


def output(*arguments, **environment):
    done = run(*arguments, **environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def held():
    """Bytes on devices that this process holds."""
    return next(peer for peer in cx.clients() if peer["is_self"])["device_bytes"]


@pytest.fixture
def named():
    cx.put("x", VALUES, device="cuda:1")
    cx.put("b", {"a": Array.of(VALUES), "c": VALUES})
    fakecuda.d.settle(lambda: held() == 0, "the end of what put() returned")
    yield
    cx.delete("x")
    cx.delete("b")


def test_devices_are_told_by_the_numbers_of_this_process(named):
    devices = cx.devices()
    assert [device["device"] for device in devices] == ["cuda:0", "cuda:1"]
    for device, uuid in zip(devices, fakecuda.UUIDS, strict=False):
        assert device["uuid"].replace("-", "").removeprefix("GPU") == uuid
        assert device["mode"] in ("vmm", "ipc")
        assert device["name"]
        assert 0 < device["bytes"] <= device["committed_bytes"] <= device["capacity_bytes"]
        assert device["capacity_bytes"] <= device["total_bytes"] == 1 << 30
        assert device["storages"] == 1


def test_stats_count_devices_once_they_are_used(named):
    stats = cx.stats()
    assert stats["devices"] == 2
    assert stats["storages"] >= 3
    assert held() == 0  # names hold it, not this process
    with cx.get("x"):
        assert held() > 0


def test_the_commands_that_list(named):
    lines = [line.split() for line in output("ls").splitlines()]
    assert lines[0] == ["NAME", "DTYPE", "SHAPE", "DEVICE", "BYTES", "VERSION", "AGE"]
    assert [line[3] for line in lines[1:]] == ["-", "cuda:1"]
    assert ["device", "cuda:1"] in [line.split() for line in output("stat", "x").splitlines()]
    parts = output("stat", "b").splitlines()
    assert any(line.split()[:4] == ["a", "float32", "2x3", "cuda:0"] for line in parts)
    assert any(line.split()[:4] == ["c", "float32", "2x3", "cpu"] for line in parts)
    lines = [line.split() for line in output("devices").splitlines()]
    assert lines[0][:4] == ["DEVICE", "NAME", "UUID", "MODE"]
    assert [line[0] for line in lines[1:]] == ["cuda:0", "cuda:1"]


def test_the_command_stats_shows_each_device(named):
    text = output("stats")
    assert text.count("committed_bytes") == 3
    assert "cuda:1" in text
    told = json.loads(output("stats", "--json"))
    assert [device["device"] for device in told["cuda"]] == ["cuda:0", "cuda:1"]


def test_the_command_clients_shows_who_has_memory_on_devices(named):
    assert "ON DEVICES" not in output("clients")
    t = cx.get("x")
    assert "ON DEVICES" in output("clients")
    t.close()


def test_doctor_shows_devices(named):
    done = run("doctor", "--json")
    found = json.loads(done.stdout)["findings"]
    texts = [finding["text"] for finding in found if finding["topic"] == "cuda"]
    assert len(texts) == 2
    assert "cuda:0" in texts[0]
    assert "committed of" in texts[0]


def test_a_file_goes_to_a_device_and_back(tmp_path):
    np.save(tmp_path / "in.npy", VALUES)
    output("put", "f", str(tmp_path / "in.npy"), "--device", "cuda:1")
    assert cx.stat("f")["device"] == "cuda:1"
    output("get", "f", "-o", str(tmp_path / "out.npy"))
    assert np.load(tmp_path / "out.npy").tolist() == VALUES.tolist()
    cx.delete("f")


def test_a_process_that_does_not_see_a_device_still_knows_of_it(named):
    hidden = {"CUDA_VISIBLE_DEVICES": "0"}
    assert "cuda:?" in output("ls", **hidden)
    assert "cuda:?" in output("devices", **hidden)
    assert "cuda:?" in output("stat", "x", **hidden)
    done = run("doctor", "--json", **hidden)
    found = json.loads(done.stdout)["findings"]
    assert any("CUDA_VISIBLE_DEVICES" in finding["advice"] for finding in found)
    done = run("get", "x", "-o", "-", **hidden)
    assert done.returncode == 1
    assert "CUDA_VISIBLE_DEVICES" in done.stderr
