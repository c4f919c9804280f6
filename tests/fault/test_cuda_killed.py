"""SIGKILL of a client, or of the daemon, before each call of the CUDA driver that it makes."""

import contextlib
import signal

import cuda_array
import fakecuda
import numpy as np
import pytest
from daemon import Daemon, settle
from fakecuda import fake_machine  # noqa: F401  a fixture
from helpers import SUPPORT, Program

import tensorcx as cx

pytestmark = pytest.mark.usefixtures("fake_machine")

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)

# All that a client does with a device; "mine" is what the victim leaves when it ends well.
WORK = f"""
sys.path.insert(0, {str(SUPPORT)!r})
from cuda_array import Array, from_dlpack
VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)
def work():
    with cx.queue("queue", nbytes=24, device="cuda:0") as queue:
        queue.send(Array.of(VALUES))
        assert from_dlpack(queue.recv()).numpy().tolist() == VALUES.tolist()
    t = cx.put("mine", VALUES, device="cuda:0")
    large = cx.zeros((9 << 20,), "uint8", device="cuda:0")
    assert t.to("cuda:1").cpu().tolist() == VALUES.tolist()
    cx.put("bundle", {{"here": VALUES, "there": t, "copied": Array.of(VALUES)}}, device="cuda:0")
    with cx.get("bundle") as bundle:
        assert bundle["there"].cpu().tolist() == VALUES.tolist()
    foreign = cx.from_dlpack(Array.of(VALUES))
    del large, foreign, t, bundle
    cx.delete("mine"), cx.delete("bundle")
"""
VICTIM = WORK + "work()\nsay('done')"
# Whoever is left: what is called may find the daemon lost, any number of times, and nothing else.
SURVIVOR = (
    WORK
    + """
while True:
    try:
        work()
        say("done")
        break
    except (cx.DaemonLost, cx.DaemonUnavailable) as error:
        say("lost")
        hear()
"""
)


def first_and_last(calls):
    """(function, n) before which to kill, from a trace's count of each function."""
    return sorted({(function, n) for function, count in calls.items() for n in (1, count)})


def driven_by(tmp_path, run):
    """What `run(environment)` calls of the driver."""
    trace = tmp_path / "trace"
    run({"FAKECUDA_TRACE": str(trace)})
    return first_and_last(fakecuda.calls(trace))


def kill_before(function, n):
    return {"FAKECUDA_FAIL": f"{function}:{n}:{-signal.SIGKILL}"}


@pytest.mark.parametrize("mode", ["vmm", "ipc"])
def test_a_client_killed_before_any_call_of_the_driver_leaves_nothing(start, tmp_path, mode):
    daemon = start("--cuda", mode)

    def run(environment):
        with Program(VICTIM, socket=daemon.path, env=environment) as victim:
            return victim.next_line()

    with cx.Client(daemon.path, autostart=False) as client:
        t = client.put("ours", VALUES, device="cuda:0")
        before = fakecuda.used()
        deaths = 0
        for function, n in driven_by(tmp_path, run):
            deaths += run(kill_before(function, n)) is None
            settle(lambda: client.stats()["clients"] == 1, f"the end of who died at {function}")
            for name in ("mine", "bundle", "queue"):
                with contextlib.suppress(cx.NotFound):
                    client.delete(name)
            settle(lambda: fakecuda.used() == before, f"the end of its memory, {function} {n}")
            settle(lambda: fakecuda.used(1) == 0, f"the end of its memory, {function} {n}")
            assert cuda_array.from_dlpack(t).numpy().tolist() == VALUES.tolist()
        assert deaths > 20
        client.delete("ours")
        del t
    settle(lambda: fakecuda.used() == 0, "the end of the memory")


@pytest.mark.parametrize("mode", ["vmm", "ipc"])
def test_a_daemon_killed_before_any_call_of_the_driver_is_replaced(folder, tmp_path, mode):
    options = "--cuda", mode, "--warm-seconds", "0", "--idle-exit", "0"

    def run(environment):
        """Whether the daemon died; then the client works with the next."""
        daemon = Daemon(folder, *options, env=fakecuda.environment(**environment))
        try:
            with Program(SURVIVOR, socket=daemon.path) as survivor:
                if survivor.line() == "done":
                    return False
                assert daemon.process.wait() == -signal.SIGKILL
                with Daemon(folder, *options):
                    survivor.tell()
                    while survivor.line() == "lost":
                        survivor.tell()
                    survivor.finish()
                    settle(lambda: fakecuda.used() == 0, "the end of the memory")
                return True
        finally:
            daemon.kill()

    deaths = 0
    for function, n in driven_by(tmp_path, run):
        deaths += run(kill_before(function, n))
    assert deaths > 8
