"""Our deleter may be called by any thread, by many at once, and after the interpreter is gone."""

import subprocess
from pathlib import Path

import pytest
from daemon import COMPILER
from helpers import SUPPORT, Program

PRELUDE = f"""
import ctypes
sys.path.insert(0, {str(SUPPORT)!r})
import forge
library = ctypes.CDLL(os.environ["DELETER"])  # gives up the GIL during a call
with_gil = ctypes.PyDLL(os.environ["DELETER"])
for entry in ("delete_on_thread", "delete_at_exit", "delete_at_unload"):
    for loaded in (library, with_gil):
        getattr(loaded, entry).argtypes = [ctypes.c_void_p, ctypes.c_void_p]

def take(tensor, **request):
    "Takes a capsule as a consumer does; returns the managed tensor and its deleter."
    capsule = tensor.__dlpack__(**request)
    managed = forge.contents(capsule)
    rename = ctypes.pythonapi.PyCapsule_SetName
    rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
    rename(capsule, forge.USED[forge.capsule_name(capsule)])
    return ctypes.addressof(managed), managed.deleter

LEGACY, VERSIONED = {{}}, {{"max_version": (1, 0)}}
def shared(n=1000): return cx.asarray(np.ones(n, np.float32), copy=True)
def private(n=1000): return cx.from_dlpack(np.ones(n, np.float32))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    built = tmp_path_factory.mktemp("deleter") / "deleter.so"
    source = Path(__file__).with_name("deleter.c")
    subprocess.run(
        [*COMPILER, "-Wall", "-O1", "-g", "-shared", "-fPIC", "-pthread", "-o", built, source],
        check=True,
    )
    return str(built)


@pytest.fixture
def consumer(library, daemon):
    """Runs a program that has the consumer loaded."""

    def run(code, *, says=(), code_wanted=0):
        environment = {"DELETER": library}
        with Program(PRELUDE + code, socket=daemon.path, env=environment) as program:
            for word in says:
                program.expect(word)
            assert program.end() == (code_wanted, "")

    return run


SOURCES = pytest.mark.parametrize("source", ["shared", "private"])
REQUESTS = pytest.mark.parametrize("request_", ["LEGACY", "VERSIONED"])


@SOURCES
@REQUESTS
@pytest.mark.parametrize("loaded", ["library", "with_gil"])
def test_on_a_thread_that_python_has_never_seen(consumer, daemon, source, request_, loaded):
    """With `with_gil` the caller keeps the GIL and waits: a deleter that wants it hangs."""
    if loaded == "with_gil" and source == "private":
        pytest.skip("NumPy's own deleter takes the GIL")
    consumer(f"""
for _ in range(200):
    managed, deleter = take({source}(), **{request_})
    {loaded}.delete_on_thread(managed, deleter)
""")


@SOURCES
@REQUESTS
def test_from_sixteen_threads_at_once(consumer, source, request_):
    consumer(f"""
for _ in range(50):
    tensor = {source}()
    pairs = [take(tensor, **{request_}) for _ in range(16)]
    del tensor
    managed = (ctypes.c_void_p * 16)(*[m for m, _ in pairs])
    deleters = (ctypes.c_void_p * 16)(*[d for _, d in pairs])
    library.delete_on_threads(managed, deleters, 16)
""")


def test_from_sixteen_threads_for_sixteen_storages(consumer):
    consumer("""
for _ in range(50):
    pairs = [take(shared(), **VERSIONED) for _ in range(16)]
    managed = (ctypes.c_void_p * 16)(*[m for m, _ in pairs])
    deleters = (ctypes.c_void_p * 16)(*[d for _, d in pairs])
    library.delete_on_threads(managed, deleters, 16)
assert cx.stats()["storages"] == 0
""")


@REQUESTS
@pytest.mark.parametrize("moment", ["exit", "unload"])
def test_after_the_interpreter_is_gone(consumer, request_, moment):
    consumer(
        f"""
managed, deleter = take(shared(), **{request_})
library.delete_at_{moment}(managed, deleter)
say("leaving")
""",
        says=["leaving", f"deleted at {moment}"],
    )


@pytest.mark.parametrize("moment", ["exit", "unload"])
def test_after_the_interpreter_and_the_daemon_are_gone(library, start, moment):
    daemon = start()
    code = f"""
managed, deleter = take(shared(), **VERSIONED)
library.delete_at_{moment}(managed, deleter)
say("ready")
hear()
"""
    with Program(PRELUDE + code, socket=daemon.path, env={"DELETER": library}) as program:
        program.expect("ready")
        daemon.kill()
        program.tell()
        program.expect(f"deleted at {moment}")
        assert program.end() == (0, "")


def test_while_another_thread_waits_for_the_daemon(library, daemon):
    """The deleter returns at once, and the daemon hears of it although somebody else is reading."""
    code = """
import threading
pairs = [take(shared(), **VERSIONED) for _ in range(4)]
waiter = threading.Thread(target=lambda: cx.get("late", timeout=60))
waiter.start()
hear()
for managed, deleter in pairs:
    library.delete_on_thread(managed, deleter)
say("deleted")
waiter.join()
cx.delete("late")
"""
    with Program(PRELUDE + code, socket=daemon.path, env={"DELETER": library}) as program:
        daemon.settle(waiting=1, storages=4)
        program.tell()
        program.expect("deleted")
        daemon.settle(waiting=1, storages=0)
        with daemon.connect() as other:
            other.put("late", b"x")
        program.finish()


def test_while_the_daemon_is_stopped(library, daemon):
    """A deleter never waits for an answer, nor for room in the socket."""
    code = """
pairs = [take(shared(10), **VERSIONED) for _ in range(5000)]
say("ready")
hear()
for managed, deleter in pairs:
    library.delete_on_thread(managed, deleter)
say("deleted")
hear()
assert cx.stats()["storages"] == 0
"""
    with Program(PRELUDE + code, socket=daemon.path, env={"DELETER": library}) as program:
        program.expect("ready")
        with daemon.stopped():
            program.tell()
            program.expect("deleted")
        program.tell()
        program.finish()


@pytest.mark.bare
def test_a_consumer_that_deletes_twice_harms_only_itself(library, daemon):
    code = """
managed, deleter = take(shared(), **VERSIONED)
for _ in range(2):
    library.delete_on_thread(managed, deleter)
"""
    with Program(PRELUDE + code, socket=daemon.path, env={"DELETER": library}) as program:
        program.end()
    assert daemon.stats()["dropped"] <= 1
