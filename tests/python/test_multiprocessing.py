"""multiprocessing carries references: queues, pipes, arguments, pools, executors, managers."""

import concurrent.futures
import multiprocessing
import os
import pickle
import resource
import signal
from multiprocessing import forkserver

import daemon as d
import numpy as np
import pytest

import tensorcx as cx

METHODS = ("fork", "spawn", "forkserver")
MiB = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def no_old_forkserver():
    """Its children have the environment of the process that started it: another daemon's."""
    forkserver._forkserver._stop()
    yield
    forkserver._forkserver._stop()


@pytest.fixture(params=METHODS)
def context(request):
    return multiprocessing.get_context(request.param)


def get(queue):
    return queue.get(timeout=d.DEADLINE)


def join(process, code=0):
    process.join(d.DEADLINE)
    assert process.exitcode == code


def is_same_memory(a, b):
    return a.storage_id == b.storage_id and a.data_ptr() == b.data_ptr()


def add_one(x):
    """The sender sees it, if it is the same memory."""
    x.numpy()[...] += 1
    return x.storage_id


def make(value):
    return cx.full(MiB, value, "uint8")


# -------------------------------------------------------------------------------------- every way


def add_one_to_each(argument, queue, simple, pipe, answers):
    for x in (argument, get(queue), simple.get(), pipe.recv(), pipe.recv()["x"]):
        answers.put((add_one(x), x))


def test_arguments_queues_and_pipes_carry_the_memory_itself(context):
    t = cx.zeros(4)
    queue, simple, answers = context.Queue(), context.SimpleQueue(), context.Queue()
    ours, theirs = context.Pipe()
    process = context.Process(target=add_one_to_each, args=(t, queue, simple, theirs, answers))
    process.start()
    bundle = cx.put("b", {"part": {"x": t}})
    cx.delete("b")
    queue.put(t)
    simple.put(t)
    ours.send(t)
    ours.send(bundle["part"])
    for _ in range(5):
        storage, back = get(answers)
        assert storage == t.storage_id and is_same_memory(back, t)
    join(process)
    assert t.tolist() == [5] * 4
    simple.close(), ours.close(), theirs.close()


def test_a_pool_carries_the_memory_itself(context):
    t = cx.zeros((2, MiB), "uint8")
    with context.Pool(2, maxtasksperchild=2) as pool:
        assert pool.map(add_one, list(t)) == [t.storage_id] * 2
        made = pool.map(make, range(2))
        pool.close()
        pool.join()
    assert (t.numpy() == 1).all()
    for value, tensor in enumerate(made):
        assert (tensor.numpy() == value).all() and tensor.is_shared


def test_an_executor_carries_the_memory_itself(context):
    t = cx.zeros((4, MiB), "uint8")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        assert list(pool.map(add_one, t)) == [t.storage_id] * 4
        made = pool.submit(make, 7).result(d.DEADLINE)
        with pytest.raises(AttributeError):  # an error there, with a tensor in its frame
            pool.submit(add_one, [t]).result(d.DEADLINE)
    assert (t.numpy() == 1).all() and (made.numpy() == 7).all()


def test_a_manager_keeps_what_it_was_given(context):
    with context.Manager() as manager:
        t = cx.full(MiB, 7, "uint8")  # not before: a forked manager would inherit it
        kept = manager.dict(t=t)
        assert is_same_memory(kept["t"], t)
        t.close()
        assert (kept["t"].numpy() == 7).all()
        assert cx.stats()["bytes"] == MiB
        kept.clear()
        d.settle(lambda: cx.stats()["bytes"] == 0, "the manager's release")


# ------------------------------------------------------------------------------------ who is gone


def put_and(end, queue):
    queue.put(make(7))
    if end != "return":  # the queue's thread would not write it
        queue.close()
        queue.join_thread()
        os._exit(0) if end == "_exit" else os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(("end", "code"), [("return", 0), ("_exit", 0), ("kill", -signal.SIGKILL)])
def test_what_a_producer_sent_arrives_when_it_is_gone(context, end, code):
    queue = context.Queue()
    process = context.Process(target=put_and, args=(end, queue))
    process.start()
    join(process, code)
    assert (get(queue).numpy() == 7).all()


def test_a_consumer_that_is_killed_holds_nothing():
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=keep, args=(theirs,))
    process.start()
    pipe.send(make(1))
    assert pipe.recv() == "have it"
    assert cx.stats()["bytes"] == MiB
    process.kill()
    join(process, -signal.SIGKILL)
    pipe.close(), theirs.close()
    d.settle(lambda: cx.stats()["bytes"] == 0, "the end of its hold")


def keep(pipe):
    _kept = pipe.recv()
    pipe.send("have it")
    pipe.recv()


def pass_on(incoming, outgoing):
    outgoing.send(incoming.recv()[1:])


def test_a_view_of_a_view_passes_through_processes_that_end(context):
    t = cx.asarray(np.arange(10))
    entrance, incoming = context.Pipe()
    processes, pipes = [], [entrance, incoming]
    for _ in range(3):
        outgoing, last = context.Pipe()
        processes.append(context.Process(target=pass_on, args=(incoming, outgoing)))
        processes[-1].start()
        pipes += outgoing, last
        incoming = last
    entrance.send(t[1:])
    for process in processes:
        join(process)
    view = incoming.recv()
    assert view.tolist() == [4, 5, 6, 7, 8, 9]
    view[0] = 99
    assert t.tolist()[4] == 99
    assert cx.stats()["storages"] == 1
    for pipe in pipes:
        pipe.close()


# ------------------------------------------------------------------------------------------- much


def echo(incoming, outgoing):
    while (x := incoming.get()) is not None:
        outgoing.put(x)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_thousand_rounds_leave_nothing_behind(method, daemon):
    context = multiprocessing.get_context(method)
    there, back = context.SimpleQueue(), context.SimpleQueue()
    process = context.Process(target=echo, args=(there, back))
    process.start()

    def rounds(count):
        for i in range(count):
            there.put(cx.full(1000, i, "int32"))
            assert back.get().tolist()[0] == i
        pids = process.pid, os.getpid(), daemon.pid
        maps, files = map(d.shared_maps, pids), map(d.descriptors, pids)
        return [*map(len, maps), *map(len, files), cx.stats()["tickets"]]

    first = rounds(10)
    assert rounds(1000) == first
    there.put(None)
    join(process)
    there.close(), back.close()


def send_many(queue, count):
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    for i in range(count):
        queue.put(cx.full(512, i))


def test_thousands_of_tensors_that_are_kept_use_no_descriptors():
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=send_many, args=(queue, 3000))
    process.start()
    first = get(queue)
    before = len(d.descriptors())
    kept = [first, *(get(queue) for _ in range(2999))]
    assert len(d.descriptors()) <= before
    assert [int(t.numpy()[-1]) for t in kept] == list(range(3000))
    join(process)


@pytest.mark.slow
def test_a_thousand_short_lived_workers_send_a_tensor_each():
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    for value in range(1000):
        process = context.Process(target=send_one, args=(queue, value % 100))
        process.start()
        join(process)
        tensor = queue.get()
        assert tensor.numpy()[-1] == value % 100
        tensor.close()
    queue.close()


def send_one(queue, value):
    queue.put(make(value))


def test_a_batch_of_many_small_tensors_is_one_ticket_as_a_bundle():
    bundle = cx.put("b", {str(i): np.full(i % 7, i) for i in range(1000)})
    cx.delete("b")
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    before = cx.stats()["requests"]
    queue.put(bundle)
    back = queue.get()
    assert cx.stats()["requests"] - before < 10
    assert list(back) == list(bundle) and back["6"].tolist() == [6] * 6
    queue.close()


# ------------------------------------------------------------------------------------------ errors


def test_a_closed_tensor_in_a_queue_is_a_clear_error_and_does_not_arrive(capfd):
    queue = multiprocessing.get_context("spawn").Queue()
    t = cx.zeros(1)
    t.close()
    queue.put(t)
    queue.put("next")
    assert get(queue) == "next"
    assert "ValueError: the tensor is closed" in capfd.readouterr().err


def redeem(data, answers):
    try:
        pickle.loads(data)
    except Exception as error:
        answers.put((type(error).__name__, str(error)))


def test_a_socket_path_that_is_too_long_is_told_in_the_child(monkeypatch):
    context = multiprocessing.get_context("spawn")
    data = pickle.dumps(cx.zeros(1))
    answers = context.SimpleQueue()
    monkeypatch.setenv("TENSORCX_SOCKET", "/tmp/" + "x" * 200)
    process = context.Process(target=redeem, args=(data, answers))
    process.start()
    kind, text = answers.get()
    assert kind == "ValueError" and "107" in text
    join(process)
    answers.close()


def test_a_client_of_another_socket_is_found_in_the_child(tmp_path_factory):
    context = multiprocessing.get_context("spawn")
    folder = tmp_path_factory.mktemp("s")
    folder.chmod(0o700)
    with d.Daemon(folder) as second:
        t = cx.Client(second.path).zeros(4)
        answers = context.SimpleQueue()
        process = context.Process(target=answer_socket, args=(t, answers))
        process.start()
        assert answers.get() == str(second.path)
        join(process)
        assert t.tolist() == [1] * 4
        answers.close()
        t.close()


def answer_socket(t, answers):
    add_one(t)
    answers.put(t._client.socket)
