"""Several processes on CUDA devices: the same memory, whatever numbers they use, however they end.

On the fake driver. Programs end well, are killed, fork, see other devices, have no driver.
"""

import subprocess
import sys
import tempfile

import cuda_array
import fakecuda
import numpy as np
import pytest
from daemon import descriptors, settle
from fakecuda import fake_machine  # noqa: F401  a fixture
from helpers import SUPPORT, Program, run

import tensorcx as cx

pytestmark = pytest.mark.usefixtures("fake_machine")

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)
CUDA = f"""
sys.path.insert(0, {str(SUPPORT)!r})
import cuda_array, cuda_driver as cuda, fakecuda
from cuda_array import Array
VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)
def seen(t): return cuda_array.from_dlpack(t).numpy().tolist()
"""


@pytest.fixture(params=["vmm", "ipc"])
def daemon(start, request):
    """Of either mode."""
    return start("--cuda", request.param)


@pytest.fixture
def client(daemon):
    with cx.Client(daemon.path, autostart=False) as client:
        yield client


def program(daemon, code, *args, **environment):
    return Program(CUDA + code, *args, socket=daemon.path, env=environment)


def seen(tensor):
    return cuda_array.from_dlpack(tensor).numpy().tolist()


# ---------------------------------------------------------------------------------- the same memory


def test_who_published_may_go(daemon):
    run(CUDA + "cx.put('x', Array.of(VALUES))", socket=daemon.path)
    run(CUDA + "assert seen(cx.get('x')) == VALUES.tolist()", socket=daemon.path)
    run(CUDA + "cx.delete('x')", socket=daemon.path)
    settle(lambda: fakecuda.used() == 0, "the end of the memory")


def test_each_sees_what_the_other_writes(daemon, client):
    t = client.put("x", VALUES, device="cuda:0")
    with program(daemon, "t = cx.get('x'); t[...] = 7; say('done'); hear(); say(seen(t))") as other:
        other.expect("done")
        assert seen(t) == [[7] * 3] * 2
        t[...] = 8
        other.tell()
        assert other.line() == str([[8.0] * 3] * 2)
        other.finish()
    client.delete("x")


@pytest.mark.parametrize("daemon", ["vmm"], indirect=True)
def test_multiprocessing_carries_the_reference(daemon):
    code = """
import multiprocessing

def work(t, queue, answers):
    t[...] = 5
    answers.put(queue.get())

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    t, other = cx.zeros(4, "int32", device="cuda:0"), cx.zeros(4, "int32", device="cuda:1")
    queue, answers = context.Queue(), context.Queue()
    child = context.Process(target=work, args=(t, queue, answers))
    child.start()
    queue.put(other)
    back = answers.get(timeout=60)
    child.join()
    assert child.exitcode == 0
    assert seen(t) == [5] * 4
    assert back.data_ptr() == other.data_ptr()
"""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:  # children import it
        file.write("import sys\nimport numpy as np\nimport tensorcx as cx\n" + CUDA + code)
        file.flush()
        environment = fakecuda.environment(TENSORCX_SOCKET=str(daemon.path))
        subprocess.run([sys.executable, file.name], env=environment, check=True)


# -------------------------------------------------------------------------------- other numbers


@pytest.mark.parametrize("daemon", ["vmm"], indirect=True)
@pytest.mark.parametrize(
    ("visible", "number"),
    [("0,1", 1), ("1,0", 0), ("1", 0), (f"GPU-{fakecuda.UUIDS[1][:8]}", None)],
)
def test_a_device_has_the_number_of_whoever_looks(daemon, client, visible, number):
    if number is None:  # by UUID, in full: all of them begin alike
        uuid = client.devices()[1]["uuid"]
        visible, number = uuid, 0
    client.put("x", VALUES, device="cuda:1")
    code = "t = cx.get('x'); say(t.device); say(seen(t)); say(cx.stat('x')['device'])"
    with program(daemon, code, CUDA_VISIBLE_DEVICES=visible) as other:
        assert other.line() == f"cuda:{number}"
        assert other.line() == str(VALUES.tolist())
        assert other.line() == f"cuda:{number}"
        other.finish()
    client.delete("x")


@pytest.mark.parametrize("daemon", ["vmm"], indirect=True)
@pytest.mark.parametrize("visible", ["0", ""])
def test_a_device_that_is_hidden_is_an_error_and_the_cpu_is_not(daemon, client, visible):
    client.put("x", VALUES, device="cuda:1")
    client.put("y", VALUES)
    code = """
try:
    cx.get("x")
except cx.DeviceError as error:
    say(error)
assert cx.get("y").tolist() == VALUES.tolist()
"""
    with program(daemon, code, CUDA_VISIBLE_DEVICES=visible) as other:
        assert "CUDA_VISIBLE_DEVICES" in other.line() or visible == ""
        other.finish()
    client.delete("x")
    client.delete("y")


# -------------------------------------------------------------------------------- without CUDA


def test_nothing_of_cuda_is_touched_on_the_cpu(start, tmp_path):
    trace = tmp_path / "trace"
    daemon = start(env=fakecuda.environment(FAKECUDA_TRACE=str(trace)))
    code = """
cx.put("x", {"a": np.zeros(3)})
cx.get("x")["a"].cpu().to("cpu").numpy()
with cx.queue("q") as q:
    q.send(1)
    q.recv()
cx.stats(), cx.clients(), cx.channels(), cx.entries()
assert "libcuda" not in open("/proc/self/maps").read()
cx.delete("x")
"""
    environment = fakecuda.environment(FAKECUDA_TRACE=str(trace))
    run(code, socket=daemon.path, env=environment)
    assert not trace.exists()


@pytest.mark.parametrize("daemon", ["vmm"], indirect=True)
def test_who_only_looks_at_names_does_not_use_cuda_whatever_others_have_put(daemon, client):
    client.put("x", VALUES, device="cuda:0")
    code = """
assert cx.exists("x") and cx.names() == ["x"]
assert "libcuda" not in open("/proc/self/maps").read()
if os.fork() == 0:
    assert seen(cx.get("x")) == VALUES.tolist()
    os._exit(0)
assert os.wait()[1] == 0
"""
    with program(daemon, code) as other:
        other.finish()
    client.delete("x")


DRIVERS = {
    "none": ({"variant": "broken"}, "libcuda.so.1"),
    "a stub": ({"variant": "stub"}, "stub|driver"),
    "one that lacks a function": ({"variant": "missing"}, "cu[A-Z]"),
    "one that is too old": ({"FAKECUDA_VERSION": "11080"}, "11[.]8|12[.]0"),
    "no device": ({"FAKECUDA_DEVICES": "0"}, "device"),
}


@pytest.mark.parametrize("which", DRIVERS)
def test_a_machine_with_another_driver(start, which):
    """One clear error, and the CPU works."""
    extra, said = DRIVERS[which]
    environment = fakecuda.environment(**extra)
    daemon = start(env=environment if which != "no device" else fakecuda.environment())
    code = """
import re
for use in (
    lambda: cx.empty(3, device="cuda:0"),
    lambda: cx.put("x", np.zeros(3), device="cuda:0"),
    lambda: cx.zeros(3).to("cuda:0"),
    lambda: cx.queue("q", nbytes=3, device="cuda:0"),
):
    try:
        use()
    except cx.DeviceError as error:
        assert re.search(sys.argv[1], str(error)), error
    else:
        raise AssertionError("no error")
cx.put("x", np.arange(3))
assert cx.get("x").tolist() == [0, 1, 2]
cx.delete("x")
"""
    run(code, said, socket=daemon.path, env=environment)


def test_a_daemon_that_shall_not_use_cuda_says_so(start):
    daemon = start("--cuda=off")
    with cx.Client(daemon.path, autostart=False) as client:
        with pytest.raises(cx.DeviceError, match="--cuda=off"):
            client.empty(3, device="cuda:0")
        assert client.zeros(3).tolist() == [0] * 3
        assert client.stats()["devices"] == 0


# --------------------------------------------------------------------------------------- forks


def test_a_forked_child_of_a_cuda_user(daemon):
    code = """
t, here = cx.zeros(3, device="cuda:0"), cx.zeros(3)
pid = os.fork()
if pid == 0:
    try:
        here[...] = 7
        assert cx.put("x", here).data_ptr() == here.data_ptr()
        for use in (
            lambda: cx.empty(3, device="cuda:0"),
            lambda: t.cpu(),
            lambda: t.__setitem__(0, 1),
            lambda: cx.asarray(np.zeros(3), device="cuda:0"),
        ):
            try:
                use()
            except cx.DeviceError as error:
                assert "fork" in str(error) and "spawn" in str(error), error
            else:
                raise AssertionError("no error")
        del t
        assert cx.get("x").tolist() == [7] * 3
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert here.tolist() == [7] * 3
t[...] = 5
assert seen(t) == [5] * 3
cx.delete("x")
"""
    run(CUDA + code, socket=daemon.path)


@pytest.mark.parametrize("daemon", ["vmm"], indirect=True)
def test_a_child_forked_before_cuda_uses_it(daemon):
    code = """
here = cx.zeros(3)
pid = os.fork()
if pid == 0:
    t = cx.asarray(here, device="cuda:0")
    os._exit(seen(t) != [0] * 3)
assert os.waitpid(pid, 0)[1] == 0
assert seen(cx.asarray(here, device="cuda:0")) == [0] * 3
"""
    run(CUDA + code, socket=daemon.path)


# ------------------------------------------------------------------------------- ends of processes


BUSY = {
    "holds": "t = cx.get('x'); say('go'); hear()",
    "makes": "say('go')\nwhile True: cx.empty(1 << 22, 'uint8', device='cuda:0')",
    "puts": "say('go')\nwhile True: cx.put('mine', VALUES, device='cuda:0', ephemeral=True)",
    "gets": "say('go')\nwhile True: seen(cx.get('x'))",
    "works": """
view = cuda_array.from_dlpack(cx.get('x'))
fakecuda.launch(view, 9, 60000)
say('go')
hear()
""",
    "sends": """
q = cx.queue("q", nbytes=24, device="cuda:0")
say('go')
while True: q.send(Array.of(VALUES)), q.recv()
""",
}


@pytest.mark.parametrize("what", BUSY)
def test_killed_while_it(daemon, client, what):
    t = client.put("x", VALUES, device="cuda:0")
    with program(daemon, BUSY[what]) as victim:
        victim.expect("go")
        begun = client.stats()["requests"]
        if what not in ("holds", "works", "sends"):
            settle(lambda: client.stats()["requests"] > begun + 30)
        victim.kill()
    settle(lambda: client.stats()["clients"] == 1, "the victim's end")
    if what != "works":
        assert seen(t) == VALUES.tolist()
    assert seen(client.asarray(VALUES, device="cuda:0")) == VALUES.tolist()
    client.delete("x")
    t.close()
    del t
    settle(lambda: client.devices()[0]["bytes"] == 0)
    settle(lambda: fakecuda.used() == 0, "the end of the memory")


def test_a_writer_killed_right_after_it_published(daemon, client):
    code = """
with cuda.current():
    array = Array((6,), "uint8", stream=cuda.stream_create())
array.write(np.zeros(6, "u1"))
fakecuda.launch(array, 3, 100)
cx.put("x", array)
die()
"""
    with program(daemon, code) as writer:
        writer.end()
    with client.get("x") as t:
        assert t.cpu().tolist() == [3] * 6
    client.delete("x")


def test_an_interpreter_that_ends_with_tensors_in_use(daemon):
    code = """
import threading
t = cx.zeros((1 << 20,), "uint8", device="cuda:0")
view, part, capsule = cuda_array.from_dlpack(t), t[:100], t.__dlpack__(stream=1)
class Cycle: pass
cycle = Cycle()
cycle.me, cycle.tensor = cycle, cx.asarray(VALUES, device="cuda:1")
foreign = cx.from_dlpack(Array.of(VALUES))
threading.Thread(target=lambda: seen(t), daemon=True).start()
"""
    run(CUDA + code, socket=daemon.path)
    settle(lambda: fakecuda.used() == 0, "the end of the memory")


def test_the_end_of_an_interpreter_waits_for_deleters(daemon):
    """They are called when the device is done, and those of this producer are Python functions."""
    code = """
import atexit, weakref
def look(): assert [array() for array in arrays] == [None] * 50
arrays = [Array.of(VALUES) for _ in range(50)]
foreign = [cx.from_dlpack(array) for array in arrays]
arrays[:] = map(weakref.ref, arrays)
atexit.unregister(cx._core.devices_end)
atexit.register(look)  # the last that is registered is the first that runs
atexit.register(cx._core.devices_end)
fakecuda.launch(Array.of(VALUES), 3, 200)
del foreign
"""
    run(CUDA + code, socket=daemon.path)


def test_the_end_of_an_interpreter_waits_for_a_deleter_that_is_slow(daemon):
    """Longer than for those not called yet: it would come back to an interpreter that is gone."""
    code = """
import time
class Slow(Array):
    def __del__(self):
        say("go")
        time.sleep(1.5)
        super().__del__()
        say("deleted")
foreign = cx.from_dlpack(Slow.of(VALUES))
del foreign
"""
    with program(daemon, code) as ending:
        ending.expect("go")
        ending.expect("deleted")
        ending.finish()


def test_the_daemon_is_killed(start):
    """What is mapped stays, by descriptor: nobody owns it any more but who uses it."""
    daemon = start("--cuda=vmm", checked=False)
    with cx.Client(daemon.path, autostart=False) as client:
        t = client.asarray(VALUES, device="cuda:0")
        daemon.kill()
        with pytest.raises(cx.DaemonLost):
            client.put("x", t)
        assert not t.is_shared
        assert seen(t) == VALUES.tolist()
        t[0] = 9
        assert seen(t)[0] == [9] * 3
        assert fakecuda.used() > 0
        del t
    settle(lambda: fakecuda.used() == 0, "the end of the memory")


def test_memory_of_a_daemon_that_is_gone_is_copied_to_the_next(start, folder):
    daemon = start("--cuda=vmm", checked=False)
    with cx.Client(daemon.path, autostart=False) as client:
        t = client.asarray(VALUES, device="cuda:0")
        daemon.stop()
        again = type(daemon)(f"{folder}/0", "--warm-seconds", "0", "--idle-exit", "0")
        with again:
            with pytest.raises(cx.DaemonLost):
                client.put("x", t)
            put = client.put("x", t)
            assert put.data_ptr() != t.data_ptr()
            assert seen(put) == VALUES.tolist()
            client.delete("x")
            del put, t


# -------------------------------------------------------------------------------------- limits


def test_a_full_device_says_so(start):
    daemon = start("--cuda-capacity=16M")
    with cx.Client(daemon.path, autostart=False) as client:
        held = [client.empty(4 << 20, "uint8", device="cuda:0") for _ in range(3)]
        with pytest.raises(cx.OutOfMemory, match="16"):
            client.empty(8 << 20, "uint8", device="cuda:0")
        other = client.empty(8 << 20, "uint8", device="cuda:1")
        held.clear()
        big = client.empty(16 << 20, "uint8", device="cuda:0")
        assert big.nbytes == 16 << 20
        assert other.device == "cuda:1"


def test_many_small_tensors_take_no_descriptors(daemon, client):
    first = client.zeros(10, device="cuda:0")
    before = len(descriptors()), len(descriptors(daemon.pid))
    many = [client.empty(10, device="cuda:0") for _ in range(2000)]
    assert len(descriptors()) <= before[0] + 1
    assert len(descriptors(daemon.pid)) <= before[1] + 2
    assert fakecuda.used() <= 64 << 20
    del many, first


def test_a_lost_context_is_told_and_the_cpu_goes_on(daemon, client):
    t = client.put("x", VALUES, device="cuda:0")
    code = """
t = cx.get("x")
fakecuda.fail("cuMemcpyDtoHAsync_v2:1+:700,cuMemcpyDtoH_v2:1+:700,cuCtxSynchronize:1+:700")
for use in (t.cpu, lambda: cx.put("y", t)):
    try:
        use()
    except cx.DeviceError as error:
        say(error)
assert cx.zeros(3).tolist() == [0] * 3
cx.put("z", VALUES)
say(cx.get("z").tolist())
"""
    with program(daemon, code) as other:
        assert "context of this process is lost" in other.line()
        assert "context of this process is lost" in other.line()
        assert other.line() == str(VALUES.tolist())
        other.end()
    assert seen(t) == VALUES.tolist()
    client.delete("x")
    client.delete("z")
