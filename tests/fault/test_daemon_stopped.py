"""A daemon that stopped answering (SIGSTOP), or was killed, while its clients are busy."""

import contextlib
import time

import pytest
from daemon import Daemon, settle
from helpers import Program

CALLS = [
    "cx.put('x', np.zeros(1 << 20))", "cx.put('x', np.zeros(3))", "cx.get('old')", "cx.names()",
    "cx.stats()", "cx.empty((1 << 20,), 'uint8')", "cx.delete('old')", "cx.connect()",
]  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_a_silent_daemon_is_a_timeout_that_names_the_setting(daemon, call):
    code = f"""
    import atexit
    cx.put("old", np.arange(3))
    say("ready")
    hear()
    try:
        {call}
    except (cx.Timeout, cx.DaemonLost, cx.DaemonUnavailable) as error:
        assert "TENSORCX_TIMEOUT" in str(error) or "1 s" in str(error), error
        say("gave up")
    hear()
    cx.delete("old") if cx.exists("old") else None
    cx.delete("x") if cx.exists("x") else None
    """
    with Program(code, socket=daemon.path, env={"TENSORCX_TIMEOUT": "1"}) as program:
        program.expect("ready")
        with daemon.stopped():
            program.tell()
            program.expect("gave up")
        # What was asked meanwhile is answered now: nothing granted may be lost.
        program.tell()
        program.finish()


def test_what_is_mapped_works_while_the_daemon_is_stopped(daemon):
    code = """
    tensor = cx.put("x", np.arange(1000))
    say("ready")
    hear()
    array = np.asarray(tensor)
    array += 1
    assert np.from_dlpack(tensor).sum() == array.sum()
    del array, tensor
    say("done")
    hear()
    cx.delete("x")
    """
    with Program(code, socket=daemon.path) as program:
        program.expect("ready")
        with daemon.stopped():
            program.tell()
            program.expect("done")
        program.tell()
        program.finish()


LOAD = """
import threading
stop = threading.Event()
threading.Thread(target=lambda: (hear(), stop.set()), daemon=True).start()
me, rounds, kept = os.getpid(), 0, []
say("working")
while not stop.is_set():
    for size in 3, 50_000, 3_000_000:
        cx.put(f"{me}/{size}", np.full(size, rounds, np.uint32))
        assert (np.asarray(cx.get(f"{me}/{size}")) == rounds).all()
    kept = [*kept[-9:], cx.get(f"{me}/3")]
    assert [t[0].item() for t in kept] == list(range(max(0, rounds - 9), rounds + 1))
    rounds += 1
for name in cx.names(prefix=f"{me}/"):
    cx.delete(name)
"""


def test_a_daemon_stopped_for_a_second_under_load_loses_nothing(daemon):
    with contextlib.ExitStack() as stack:
        programs = [stack.enter_context(Program(LOAD, socket=daemon.path)) for _ in range(4)]
        for program in programs:
            program.expect("working")
        before = daemon.stats()["requests"]
        settle(lambda: daemon.stats()["requests"] > before + 100, "load")
        with daemon.stopped():
            time.sleep(1)
        before = daemon.stats()["requests"]
        settle(lambda: daemon.stats()["requests"] > before + 100, "load again")
        assert daemon.stats()["dropped"] == 0
        for program in programs:
            program.tell()
            program.finish()


@pytest.mark.parametrize("state", ["stopped", "killed"])
def test_a_process_can_end_without_its_daemon(start, state):
    daemon = start()
    code = """
    kept = [cx.put(f"x/{i}", np.arange(100_000), ephemeral=True) for i in range(20)]
    views = [np.from_dlpack(t) for t in kept]
    say("ready")
    hear()
    """
    with Program(code, socket=daemon.path) as program:
        program.expect("ready")
        if state == "killed":
            daemon.kill()
        with daemon.stopped() if state == "stopped" else contextlib.nullcontext():
            program.tell()
            program.finish()


def test_who_waits_is_woken_when_the_daemon_is_killed(start):
    daemon = start()
    code = """
    say("waiting")
    try:
        cx.get("never", timeout=600)
    except cx.DaemonLost as error:
        assert isinstance(error, ConnectionError)
        say("lost")
    """
    with Program(code, socket=daemon.path) as program:
        program.expect("waiting")
        daemon.settle(waiting=1)
        daemon.kill()
        program.expect("lost")
        program.finish()


def test_many_threads_that_wait_are_all_woken(start):
    daemon = start()
    code = """
    import threading
    lost = []
    def wait(i):
        try: cx.get(f"never/{i}", timeout=600)
        except cx.DaemonLost: lost.append(i)
    threads = [threading.Thread(target=wait, args=(i,)) for i in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    say(len(lost))
    """
    with Program(code, socket=daemon.path) as program:
        daemon.settle(waiting=8)
        daemon.kill()
        program.expect("8")
        program.finish()


def test_the_next_call_finds_the_next_daemon(start, folder):
    first = start()
    code = """
    old = cx.put("x", np.arange(1000))
    assert old.is_shared
    say("ready")
    hear()
    try: cx.names()
    except (cx.DaemonLost, cx.DaemonUnavailable): pass
    say("noticed")
    hear()
    assert cx.names() == []                 # another daemon: names are gone
    assert not old.is_shared                # memory of a dead daemon is private now
    assert np.asarray(old).sum() == 499_500
    new = cx.put("x", old)                  # and is copied when it is published
    assert new.is_shared and new.storage_id != 0
    assert new.data_ptr() != old.data_ptr()
    assert np.array_equal(np.asarray(cx.get("x")), np.arange(1000))
    cx.delete("x")
    """
    with Program(code, socket=first.path) as program:
        program.expect("ready")
        first.kill()
        program.tell()
        program.expect("noticed")
        with Daemon(first.path.parent, "--idle-exit", "0", "--warm-seconds", "0") as second:
            program.tell()
            program.finish()
            second.settle_clean()
