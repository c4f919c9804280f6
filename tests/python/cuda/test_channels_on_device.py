"""Queues and topics with buffers on a device, and messages that lie elsewhere."""

import gc
import pickle
import threading

import cuda_array
import fakecuda
import numpy as np
import pytest
from cuda_array import Array, now, seen

import tensorcx as cx

pytestmark = pytest.mark.usefixtures("no_channel_left")

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)
SLOW = 150  # milliseconds


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1"])
def test_messages_lie_in_buffers_on_the_device(device):
    number = int(device[-1])
    with cx.queue("q", 2, nbytes=VALUES.nbytes, device=device) as q:
        assert q.stats()["device"] == device
        places = set()
        for i in range(40):
            q.send(Array.of(VALUES + i, device=number))
            message = q.recv()
            places.add(message.data_ptr())
            assert message.device == device
            assert seen(message).tolist() == (VALUES + i).tolist()
            message.close()
        assert len(places) <= 10  # capacity and 8: used again and again
    assert fakecuda.used(number) > 0


class Careless(Array):
    """Orders nothing, whatever stream it is told."""

    def __dlpack__(self, **keywords):
        return super().__dlpack__(**keywords | {"stream": -1})


@pytest.mark.parametrize(
    ("first", "where"), [(Array.of, "cuda:0"), (lambda values: values, "cpu")], ids=["cuda", "cpu"]
)
def test_the_first_message_says_where_buffers_are(first, where):
    with cx.queue("q") as q:
        q.send(first(VALUES))
        assert q.stats()["device"] == where
        assert cx.channels()[0]["device"] == where
        assert q.recv().device == where


def test_like_says_where_buffers_are():
    with cx.queue("q", like=Array.of(VALUES, device=1)) as q:
        assert (q.stats()["device"], q.stats()["buffer_bytes"]) == ("cuda:1", 256)
    with cx.topic("t", like=cx.zeros(3, device="cuda:0")) as t:
        assert t.stats()["device"] == "cuda:0"
    with cx.queue("p", like=Array.of(VALUES), device="cpu") as p:
        assert p.stats()["device"] == "cpu"


def test_who_opens_it_for_another_device_is_told():
    with cx.queue("q", nbytes=100, device="cuda:0"):
        with cx.queue("q") as joined:
            assert joined.stats()["device"] == "cuda:0"
        with pytest.raises(ValueError, match="device"):
            cx.queue("q", nbytes=100, device="cuda:1")
        with pytest.raises(cx.DeviceError):
            cx.queue("p", nbytes=100, device="cuda:7")


def test_a_loan_is_filled_on_the_device():
    with cx.queue("q", nbytes=VALUES.nbytes, device="cuda:0") as q:
        for value in range(20):
            loan = q.loan((2, 3), "float32")
            assert loan.device == "cuda:0"
            loan[...] = value
            q.send(loan)
            message = q.recv()
            assert seen(message).tolist() == [[value] * 3] * 2
            message.close()


def test_all_subscribers_have_the_same_memory():
    with cx.topic("t", like=Array.of(VALUES)) as topic:
        first, second = topic.subscribe(), topic.subscribe(latest=True)
        topic.send(Array.of(VALUES))
        one, two = first.recv(), second.recv()
        assert one.data_ptr() == two.data_ptr()
        assert seen(two).tolist() == VALUES.tolist()
        first.close()
        second.close()


@pytest.mark.parametrize("x", ["cpu", "cuda:1", "shared", "large", "bundle"])
def test_what_does_not_fit_a_buffer_goes_by_reference(x):
    message = {
        "cpu": VALUES,
        "cuda:1": Array.of(VALUES, device=1),
        "shared": cx.asarray(VALUES, device="cuda:0"),
        "large": Array.of(np.zeros(1000, "f4")),
        "bundle": {"a": Array.of(VALUES), "b": {"c": VALUES}},
    }[x]
    with cx.queue("q", nbytes=VALUES.nbytes, device="cuda:0") as q:
        q.send(message)
        got = q.recv()
        if x == "bundle":
            assert (got["a"].device, got["b"]["c"].device) == ("cuda:0", "cpu")
            got = got["a"]
        else:
            assert got.device == {"cpu": "cpu", "cuda:1": "cuda:1"}.get(x, "cuda:0")
        if x == "shared":
            assert got.data_ptr() == message.data_ptr()
        if x != "large":
            assert got.cpu().tolist() == VALUES.tolist()


def test_tensors_on_a_device_go_through_a_queue_of_the_cpu():
    with cx.queue("q", nbytes=VALUES.nbytes) as q:
        q.send(Array.of(VALUES))
        q.send({"a": Array.of(VALUES), "b": VALUES})
        assert seen(q.recv()).tolist() == VALUES.tolist()
        assert {key: value.device for key, value in q.recv().items()} == {"a": "cuda:0", "b": "cpu"}


@pytest.mark.parametrize("stream", [None, "its own"])
@pytest.mark.parametrize("way", ["buffer", "reference", "bundle"])
def test_sending_waits_for_the_writer(side, way, stream):
    array = Careless((4,), "uint8", stream=side)
    if way == "reference":
        t = cx.zeros(4, "uint8", device="cuda:0")
        array = cuda_array.from_dlpack(t, stream=side)
    else:
        array.write(np.zeros(4, "u1"))
    with cx.queue("q", nbytes=4, device="cuda:0") as q:
        fakecuda.launch(array, 1, SLOW)
        q.send({"a": array} if way == "bundle" else array, stream=side if stream else None)
        got = q.recv()
        assert now(got["a"] if way == "bundle" else got) == [1] * 4


def test_sending_a_loan_waits_for_all_work(side):
    with cx.queue("q", nbytes=4, device="cuda:0") as q:
        loan = q.loan(4, "uint8")
        loan[...] = 0
        view = cuda_array.from_dlpack(loan, stream=side)
        fakecuda.launch(view, 1, SLOW)
        q.send(loan)
        view.close()
        assert now(q.recv()) == [1] * 4


def test_a_stream_that_was_named_is_the_only_one_waited_for(side):
    """So these tests see a missing wait."""
    t = cx.zeros(4, "uint8", device="cuda:0")
    view = cuda_array.from_dlpack(t, stream=side)
    with cx.queue("q", nbytes=4, device="cuda:0") as q:
        fakecuda.launch(view, 1, SLOW)
        q.send(t, stream=1)
        assert now(q.recv()) == [0] * 4
        for stream in (0, 2**70):
            with pytest.raises(cx.ExchangeError, match=f"stream {stream}"):
                q.send(t, stream=stream)
        with pytest.raises(TypeError, match="stream"):
            q.send(t, stream="1")


def test_a_buffer_is_free_when_work_that_reads_it_is_done():
    with cx.queue("q", nbytes=4, device="cuda:0") as q:
        q.send(Array.of(np.full(4, 7, "u1")))
        message = q.recv()
        view = cuda_array.from_dlpack(message)
        result = fakecuda.launch_read(view, SLOW)
        message.close()
        view.close()
        fakecuda.d.settle(lambda: not q.stats()["holders"])
        assert list(result.raw) == [7] * 4


def test_a_message_outlives_its_channel():
    q = cx.queue("q", nbytes=VALUES.nbytes, device="cuda:0")
    q.send(Array.of(VALUES))
    message = q.recv()
    view = cuda_array.from_dlpack(message)
    q.close()
    del q, message
    gc.collect()
    assert view.numpy().tolist() == VALUES.tolist()


def test_a_message_is_copied_when_it_is_put():
    with cx.queue("q", nbytes=VALUES.nbytes, device="cuda:0") as q:
        q.send(Array.of(VALUES))
        message = q.recv()
        put = cx.put("x", message)
        assert put.data_ptr() != message.data_ptr()
        assert (put.device, seen(put).tolist()) == ("cuda:0", VALUES.tolist())
        cx.delete("x")


def test_a_pickled_handle_joins_on_the_device():
    q = cx.queue("q", nbytes=VALUES.nbytes, device="cuda:1")
    with q, pickle.loads(pickle.dumps(q)) as joined:
        joined.send(Array.of(VALUES, device=1))
        assert q.recv().device == "cuda:1"


def test_who_waits_gets_the_message_of_another_thread():
    with cx.queue("q", nbytes=VALUES.nbytes, device="cuda:0") as q:
        got = []
        reader = threading.Thread(target=lambda: got.append(seen(q.recv(timeout=30))))
        reader.start()
        q.send(Array.of(VALUES))
        reader.join()
        assert got[0].tolist() == VALUES.tolist()


@pytest.mark.parametrize("way", ["put", "send", "loan", "cpu", "from_dlpack"])
def test_other_threads_run_while_a_call_waits(side, way):
    """A kernel may wait for what a Python thread does."""
    t = cx.zeros(1, "int32", device="cuda:0")
    with cx.queue("q", nbytes=4, device="cuda:0") as q:
        loan = q.loan(1, "int32")
        view = cuda_array.from_dlpack(loan if way == "loan" else t, stream=side)
        over, ran = threading.Event(), []

        def run():
            while not over.wait(0.001):
                ran.append(1)

        thread = threading.Thread(target=run)
        fakecuda.launch(view, 1, 2 * SLOW)
        thread.start()
        {
            "put": lambda: cx.put("x", t, ephemeral=True),
            "send": lambda: q.send(t),
            "loan": lambda: q.send(loan),
            "cpu": t.cpu,
            "from_dlpack": lambda: cx.from_dlpack(view),
        }[way]()
        over.set()
        thread.join()
        assert len(ran) > 3
        view.close()
        loan.close()
        if way == "put":
            cx.delete("x")
