"""fork(): a child may use all that its parent had, as long as it likes; nobody waits for it."""

import gc
import multiprocessing
import os
import signal
import subprocess
from multiprocessing import forkserver

import daemon as d
import numpy as np
import pytest
from forks import Child

import tensorcx as cx

MiB = 1 << 20


def bytes_now() -> int:
    return cx.stats()["bytes"]


def settle_bytes(wanted):
    d.settle(lambda: bytes_now() == wanted, f"{wanted} bytes")


def is_same_memory(a, b):
    return a.storage_id == b.storage_id and a.data_ptr() == b.data_ptr()


# ----------------------------------------------------------------------------- using and letting go


def test_a_child_and_its_parent_see_each_others_writes():
    t = cx.full(MiB, 7, "uint8")

    def use(child):
        assert t.numpy()[1] == 7
        t[0] = 8
        child.say("written")
        child.hear()
        assert t.numpy()[2] == 9

    with Child(use) as child:
        assert child.hear() == "written"
        assert t.numpy()[0] == 8
        t[2] = 9
        child.say()


def test_a_child_that_ends_releases_nothing_of_its_parents():
    t = cx.full(4 * MiB, 7, "uint8")

    def let_go(child):
        t.close()
        gc.collect()

    with Child(let_go):
        pass
    assert bytes_now() == 4 * MiB
    assert (t.numpy() == 7).all()
    t.close()
    assert bytes_now() == 0


def test_what_the_parent_lets_go_is_not_reused_while_the_child_is_there():
    t = cx.full(4 * MiB, 7, "uint8")
    view = np.asarray(cx.full(1000, 7, "uint8"))[10:]

    def use(child):
        assert child.hear() == "gone"
        assert (t.numpy() == 7).all() and (view == 7).all()

    with Child(use) as child:
        t.close()
        view = None
        others = [cx.full(n, 1, "uint8") for n in (4 * MiB, 4 * MiB, 1000, 1000)]
        child.say("gone")
    del others
    settle_bytes(0)


def test_a_child_that_needs_nothing_any_more_keeps_nothing():
    t = cx.zeros(MiB)

    def let_go(child):
        t.close()
        child.say("done")
        child.hear()

    with Child(let_go) as child:
        assert child.hear() == "done"
        t.close()
        settle_bytes(0)
        child.say()


def test_another_program_in_the_child_keeps_nothing():
    t = cx.zeros(MiB)
    with Child(lambda _: os.execv("/bin/sleep", ["sleep", "600"]), -signal.SIGKILL) as child:
        t.close()
        settle_bytes(0)
        os.kill(child.pid, signal.SIGKILL)


def test_a_child_that_is_killed_keeps_nothing():
    t = cx.zeros(MiB)
    with Child(lambda child: child.hear(), -signal.SIGKILL) as child:
        t.close()
        assert bytes_now() == 8 * MiB
        os.kill(child.pid, signal.SIGKILL)
        settle_bytes(0)


def test_what_came_after_the_fork_is_not_kept_by_the_child():
    before = cx.zeros(10)
    with Child(lambda child: child.hear()) as child:
        after = cx.zeros(MiB)
        after.close()
        settle_bytes(before.nbytes)
        child.say()


def test_a_grandchild_keeps_what_both_others_let_go():
    t = cx.full(MiB, 7, "uint8")
    ours, theirs = os.pipe(), os.pipe()

    def use(_):
        os.write(theirs[1], b"there")
        os.read(ours[0], 1)
        os.write(theirs[1], b"7" if (t.numpy() == 7).all() else b"lost")

    def have_a_child(_):
        if os.fork() == 0:
            use(None)
            os._exit(0)
        t.close()

    with Child(have_a_child):
        pass
    assert os.read(theirs[0], 10) == b"there"
    t.close()
    other = cx.full(MiB, 1, "uint8")
    os.write(ours[1], b"!")
    assert os.read(theirs[0], 10) == b"7"
    for end in (*ours, *theirs):
        os.close(end)
    settle_bytes(other.nbytes)


def test_a_child_keeps_an_inherited_bundle_and_its_entries():
    bundle = cx.put("b", {"x": np.full(MiB, 7, "uint8"), "part": {"y": np.arange(5)}})
    cx.delete("b")
    part, view = bundle["part"], bundle["x"].numpy()[5:]

    def use(child):
        child.hear()
        assert (view == 7).all() and part["y"].tolist() == [0, 1, 2, 3, 4]
        cx.put("again", part)
        assert cx.get("again")["y"].storage_id == bundle.storage_id
        cx.delete("again")

    with Child(use) as child:
        bundle = part = view = None
        child.say()
    settle_bytes(0)


# ------------------------------------------------------------------------------------ passing it on


def test_a_child_publishes_what_it_inherited_without_a_copy():
    t = cx.full(MiB, 7, "uint8")

    def publish(child):
        assert t.is_shared and cx.is_shared(np.asarray(t)[5:])
        for x in cx.put("t", t), cx.put("array", np.asarray(t)[5:]), cx.asarray(t):
            assert x.storage_id == t.storage_id
        assert cx.get("t").data_ptr() == t.data_ptr()
        child.say("put")

    with Child(publish) as child:
        assert child.hear() == "put"
    assert is_same_memory(cx.get("t"), t)
    assert cx.get("array").data_ptr() == t.data_ptr() + 5
    assert cx.stats()["storages"] == 1
    cx.delete("t"), cx.delete("array")


def test_a_child_still_publishes_it_when_its_parent_has_let_go():
    t = cx.full(MiB, 7, "uint8")

    def publish(child):
        child.hear()
        cx.put("t", t)

    with Child(publish) as child:
        storage = t.storage_id
        t.close()
        child.say()
    assert cx.get("t").storage_id == storage and (cx.get("t").numpy() == 7).all()
    cx.delete("t")


def send(t, queue):
    queue.put(t)
    queue.put(t.ref())


def test_an_inherited_tensor_goes_on_to_a_third_process():
    t = cx.zeros(4)
    queue = multiprocessing.get_context("fork").Queue()
    answers = multiprocessing.get_context("spawn").SimpleQueue()
    sender = multiprocessing.get_context("fork").Process(target=send, args=(t, queue))
    sender.start()
    third = multiprocessing.get_context("spawn").Process(
        target=write_first, args=(queue.get(timeout=d.DEADLINE), answers)
    )
    assert is_same_memory(queue.get(timeout=d.DEADLINE), t)
    third.start()
    assert answers.get() == t.storage_id
    assert t.tolist() == [1, 0, 0, 0]
    for process in sender, third:
        process.join(d.DEADLINE)
        assert process.exitcode == 0
    answers.close()


def write_first(t, answers):
    t[0] = 1
    answers.put(t.storage_id)


def test_a_child_that_asks_is_a_client_of_its_own():
    t = cx.put("x", np.full(MiB, 7, "uint8"))

    def ask(child):
        own = cx.get("x")
        assert is_same_memory(own, t)
        t.close()
        (me,) = (c for c in cx.clients() if c["is_self"])
        child.say(f"{me['pid']} {me['tensors']}")
        child.hear()
        assert (own.numpy() == 7).all()

    with Child(ask) as child:
        assert child.hear() == f"{child.pid} 1"
        cx.delete("x")
        t.close()
        assert bytes_now() == MiB
        child.say()
    settle_bytes(0)


# -------------------------------------------------------------------------------------------- many


def test_a_hundred_children_of_a_parent_with_a_thousand_tensors():
    def verify(child):
        child.hear()
        assert all(t.numpy()[0] == i for i, t in enumerate(kept))

    def start():
        return Child(verify)

    before = len(d.descriptors()), len(d.shared_maps())
    kept = [cx.full(10, i, "int32") for i in range(1000)]
    children = [start() for _ in range(100)]
    kept = None
    gc.collect()
    assert cx.stats()["storages"] == 1000
    for child in children:
        child.say()
        child.wait()
    settle_bytes(0)
    assert len(d.descriptors()) <= before[0]
    cx.stats()  # what is empty is unmapped with a call
    assert len(d.shared_maps()) <= before[1]


def test_subprocesses_inherit_nothing_and_disturb_nobody():
    t = cx.full(MiB, 7, "uint8")
    with subprocess.Popen(["/bin/sleep", "600"]) as one:
        with subprocess.Popen(["/bin/sleep", "600"], preexec_fn=lambda: None) as two:  # noqa: PLW1509
            t.close()
            settle_bytes(0)
            two.kill()
        one.kill()


PRELOADED = """
import tensorcx as cx
T = cx.full(4, 7)
"""


def add_to_preloaded(sender):
    import preloaded

    preloaded.T.numpy()[0] += 1
    sender.send((preloaded.T, preloaded.T.tolist(), os.getppid()))


def test_children_of_a_forkserver_use_what_it_loaded_before(tmp_path, monkeypatch):
    (tmp_path / "preloaded.py").write_text(PRELOADED)
    monkeypatch.setenv("PYTHONPATH", f"{d.PACKAGES}:{tmp_path}")
    monkeypatch.syspath_prepend(tmp_path)
    context = multiprocessing.get_context("forkserver")
    forkserver._forkserver._stop()
    context.set_forkserver_preload(["preloaded"])
    try:
        servers = set()
        for seen in (8.0, 9.0):
            ours, theirs = context.Pipe()
            process = context.Process(target=add_to_preloaded, args=(theirs,))
            process.start()
            t, values, server = ours.recv()
            assert t.tolist() == values == [seen, 7, 7, 7]
            servers.add(server)
            process.join(d.DEADLINE)
            assert process.exitcode == 0
            ours.close(), theirs.close(), t.close()
        assert len(servers) == 1  # it has the tensor, its children inherited it
        assert bytes_now() == 32
    finally:
        forkserver._forkserver._stop()
        context.set_forkserver_preload([])
    settle_bytes(0)


@pytest.mark.parametrize("count", [1, 8])
def test_private_memory_is_inherited_as_any_memory(count):
    t = cx.from_dlpack(np.arange(count, dtype="float32"))

    def use(_):
        assert t.tolist() == list(range(count)) and not t.is_shared
        assert cx.asarray(t).is_shared

    with Child(use):
        pass
