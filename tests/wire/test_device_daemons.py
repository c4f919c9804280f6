"""Daemons with a CUDA driver of their own, on the fake one: none, a bad one, one that refuses or
takes its time; capacity; ends and restarts."""

import contextlib
import os

import daemon as d
import fakecuda
import pytest
from importer import Importer
from refusal import refused
from wire_table import Status

MiB = 1 << 20
CUDA = 2


@pytest.fixture(params=["vmm", "ipc"])
def mode(request):
    return request.param


@pytest.mark.parametrize(
    "variant, extra, words",
    [
        ("broken", {}, "no CUDA driver"),
        ("stub", {}, "stub, not a driver"),
        ("missing", {}, "has no .*: upgrade it"),
        ("", {"FAKECUDA_DEVICES": "0"}, "sees no device"),
        ("", {"FAKECUDA_VERSION": "11080"}, "speaks CUDA 11.8, and 12.0 is needed"),
        ("", {"FAKECUDA_FAIL": "cuInit:1:999"}, "cannot be initialised: CUDA_ERROR_UNKNOWN"),
        ("", {"FAKECUDA_FAIL": "cuDeviceGetUuid_v2:1:999"}, "cuDeviceGetUuid_v2 of device 0"),
    ],
)
def test_without_a_device_the_cpu_works(tmp_path, mode, variant, extra, words):
    env = fakecuda.environment(variant, FAKECUDA_DIR=str(tmp_path), **extra)
    with d.Daemon(tmp_path, f"--cuda={mode}", env=env) as daemon, daemon.connect() as client:
        for call in client.devices, lambda: client.alloc(1, 1):
            with refused(Status.DEVICE, "tensorcxd cannot use CUDA: ", words):
                call()
        client.put("x", b"x")
        assert client.stats()["devices"] == 0


def test_off_needs_no_driver(tmp_path):
    trace = tmp_path / "trace"
    env = fakecuda.environment(FAKECUDA_TRACE=str(trace))
    with (
        d.Daemon(tmp_path, "--cuda=off", env=env) as daemon,
        daemon.connect() as client,
        refused(Status.DEVICE, "--cuda=off"),
    ):
        client.devices()
    assert not trace.exists()


FUNCTIONS = {
    "vmm": ["cuMemCreate", "cuMemExportToShareableHandle", "cuMemRelease"],
    "ipc": [
        "cuDevicePrimaryCtxRetain",
        "cuCtxPushCurrent_v2",
        "cuMemAlloc_v2",
        "cuIpcGetMemHandle",
    ],
}


@pytest.mark.parametrize("error", [2, 304, 999])
def test_a_refusal_of_the_driver_fails_one_request(tmp_path, mode, error):
    for function in FUNCTIONS[mode]:
        env = {"FAKECUDA_FAIL": f"{function}:1:{error}"}
        status = Status.OUT_OF_MEMORY if error == 2 else Status.DEVICE
        text = "driver has none left" if error == 2 else f"{function} of the CUDA driver says"
        with (
            fakecuda.machine(**env),
            d.Daemon(tmp_path, f"--cuda={mode}") as daemon,
            daemon.connect() as client,
        ):
            with refused(status, text):
                client.alloc(64 * MiB, 1)
            client.alloc(64 * MiB, 1)
            client.alloc(100)


def test_while_the_driver_takes_its_time_all_else_goes_on(tmp_path, mode):
    trace = tmp_path / "trace"
    os.mkfifo(trace)  # the driver waits in each call until somebody reads
    with (
        fakecuda.machine(FAKECUDA_TRACE=str(trace)),
        contextlib.ExitStack() as daemon_ends,
        d.Daemon(tmp_path, f"--cuda={mode}") as daemon,
        daemon.connect() as client,
        contextlib.ExitStack() as stack,
    ):
        waiting = [stack.enter_context(daemon.connect()) for _ in range(16)]
        for other in waiting:
            other.send("ALLOC", nbytes=20 * MiB, device_type=CUDA, device=1)
        daemon.settle(waiting=len(waiting))
        client.put("x", b"x")
        client.alloc(64 * MiB)  # committed on threads
        assert client.stats()["waiting"] == len(waiting)
        reader = os.open(trace, os.O_RDWR)  # has room for all that it says
        daemon_ends.callback(os.close, reader)
        assert {other.receive().status for other in waiting} == {Status.OK}


def test_a_capacity_is_kept_to(tmp_path, mode):
    with (
        fakecuda.machine(),
        d.Daemon(tmp_path, f"--cuda={mode}", "--cuda-capacity=10M") as daemon,
        daemon.connect() as client,
    ):
        assert [told["capacity_bytes"] for told in client.devices()] == [10 * MiB] * 2
        grants = [client.alloc(2 * MiB, 1) for _ in range(5)]
        with refused(Status.OUT_OF_MEMORY, "capacity 10 MiB"):
            client.alloc(1, 1)
        client.release(*[(grant["storage"], 1) for grant in grants])
        client.alloc(10 * MiB, 1)


def test_a_new_daemon_knows_nothing_of_the_old_ones_memory(tmp_path, mode):
    with fakecuda.machine():
        old = d.Daemon(tmp_path, f"--cuda={mode}")
        with Importer(old.path) as process:
            segment = process.alloc(64 * MiB, 1)["segment"]
            process.map(segment)
            old.kill()
        with d.Daemon(tmp_path, f"--cuda={mode}") as daemon, Importer(daemon.path) as process:
            with refused(Status.STALE):
                process.map(segment)
            process.alloc(900 * MiB, 1)


def test_a_daemon_ends_while_all_is_mapped(tmp_path, mode):
    with (
        fakecuda.machine(),
        d.Daemon(tmp_path, f"--cuda={mode}") as daemon,
        Importer(daemon.path) as process,
    ):
        for nbytes in 100, 64 * MiB:
            grant = process.alloc(nbytes, 1)
            process.map(grant["segment"])
        process.release(grant["storage"])
        daemon.stop()
