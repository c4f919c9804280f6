"""Queues: what goes through them, by copy, loan and reference; how much fits."""

import gc
import pickle
import sys

import numpy as np
import pytest

import tensorcx as cx
from tensorcx._dtypes import DTYPES

pytestmark = pytest.mark.usefixtures("no_channel_left")

NAMES = sorted(map(str, DTYPES.values()))
MiB = 1 << 20


def is_in_a_buffer(x):
    return x.storage_id == 0


def same(received, sent):
    """Whether what was received is what was sent: keys in order, dtypes, shapes, elements."""
    if isinstance(sent, dict):
        assert isinstance(received, cx.Bundle) and list(received) == list(sent)
        return all(same(received[key], sent[key]) for key in sent)
    sent = np.asarray(sent)
    assert (received.dtype, received.shape) == (sent.dtype, sent.shape)
    return np.array_equal(received.numpy(), sent)


# ---------------------------------------------------------------------------------------- messages


def test_arrays_come_as_they_were_sent_in_order(q):
    sent = [np.arange(n, dtype="int32") for n in range(8)]
    for x in sent:
        q.send(x)
    assert all(same(q.recv(), x) for x in sent)
    assert q.try_recv() is None


@pytest.mark.parametrize("dtype", NAMES)
def test_every_dtype_and_shape_goes(q, dtype):
    for shape in ((), (0,), (3, 0, 2), (5,), (2, 3, 4), (1,) * 30):
        x = np.ones(shape, dtype) * np.asarray(3, dtype)
        q.send(x)
        assert same(q.recv(), x)


def test_any_layout_is_packed(q):
    base = np.arange(60).reshape(3, 4, 5)
    for x in (base.T, base[::2, ::-1], base[:, 1:3, ::2], np.broadcast_to(7, (3, 3))):
        q.send(x)
        received = q.recv()
        assert same(received, x) and received.numpy().flags.c_contiguous


def test_what_put_takes_can_be_sent(q):
    import array

    for x in (7, 2.5, True, [1, 2], [[1.0], [2.0]], np.float32(3), b"ab", array.array("h", [1])):
        q.send(x)
        assert same(q.recv(), np.frombuffer(x, "uint8") if isinstance(x, bytes) else x)


def test_bundles_of_any_mix_go(q):
    sent = {
        "image": np.arange(24, dtype="uint8").reshape(2, 3, 4),
        "": np.float64(3.5),
        "nested": {"mask": np.array([True, False]), "none": {}, "empty": np.zeros((0, 4))},
        "strided": np.arange(20)[::3],
        "ünï/code": np.complex64(1j),
    }
    q.send(sent)
    received = q.recv()
    assert same(received, sent) and received.name is None
    q.send({})
    assert same(q.recv(), {})


def test_a_received_bundle_can_be_sent_on(q):
    q.send({"a": np.arange(3), "b": {"c": np.ones(2)}})
    q.send(q.recv())
    assert same(q.recv(), {"a": np.arange(3), "b": {"c": np.ones(2)}})


def test_what_cannot_be_shared_is_refused_by_name_and_nothing_is_sent(q):
    swapped = np.zeros(2, ">i4" if sys.byteorder == "little" else "<i4")
    masked = np.ma.array([1, 2], mask=[0, 1])
    for wrong, word in (
        (np.array([object()]), "object"),
        (swapped, "byte-swapped"),
        (np.zeros(2, "datetime64[s]"), "datetime64"),
        (np.zeros(2, [("x", "i4")]), "cannot be shared"),
        (np.zeros(2, "T") if np.__version__ >= "2" else np.zeros(2, "S1"), "cannot be shared"),
        (masked, "mask"),
        ({"a": {"b": np.array(["text"])}}, "'a/b'"),
        ({"a": masked}, "'a'"),
    ):
        with pytest.raises(cx.ExchangeError, match=word):
            q.send(wrong)
    for wrong in (object(), None):
        with pytest.raises((TypeError, cx.ExchangeError)):
            q.send(wrong)
    with pytest.raises(TypeError, match="must be str"):
        q.send({1: np.zeros(1)})
    with pytest.raises(ValueError, match="the tensor is closed"):
        closed = cx.zeros(3)
        closed.close()
        q.send(closed)
    assert q.stats()["messages"] == 0


def test_the_sender_may_go_on_with_its_array(q):
    x = np.zeros(10)
    q.send(x)
    x[...] = 9
    assert same(q.recv(), np.zeros(10))


# ------------------------------------------------------------------------------------------- loans


def test_a_loan_is_filled_in_place_and_sent_without_a_copy(q):
    loan = q.loan((4, 8), "float32")
    assert (loan.shape, loan.dtype, loan.readonly) == ((4, 8), np.float32, False)
    loan.numpy()[...] = 7
    address = loan.data_ptr()
    q.send(loan)
    assert loan.closed
    received = q.recv()
    assert received.data_ptr() == address and same(received, np.full((4, 8), 7, "float32"))


def test_a_loan_that_is_dropped_or_closed_gives_its_buffer_back(q):
    for _ in range(100):
        q.loan(10)
        with q.loan(10):
            pass
    view = q.loan(10).numpy()  # keeps it
    assert [h["buffers"] for h in q.stats()["holders"]] == [1]
    del view
    assert q.stats()["holders"] == []


def test_a_loan_that_waits_too_long_can_be_sent_later():
    with cx.queue("q", 1, nbytes=256) as q:
        loan = q.loan(3)
        loan[...] = 5
        q.send(1)
        with pytest.raises(cx.Timeout):
            q.send(loan, timeout=0)
        assert q.recv().item() == 1
        q.send(loan)
        assert same(q.recv(), np.full(3, 5.0))


def test_a_part_of_a_loan_a_loan_of_another_and_what_was_received_are_copied(q):
    loan = q.loan(4)
    loan[...] = 1
    q.send(loan[1:3])
    assert same(q.recv(), np.ones(2))
    with cx.queue("other", nbytes=256) as other:
        other.send(loan)
        received = other.recv()
        q.send(received)
    assert same(q.recv(), np.ones(4)) and same(received, np.ones(4)) and same(loan, np.ones(4))


def test_a_loan_larger_than_a_buffer_is_refused(q):
    with pytest.raises(ValueError, match=r"larger than a buffer.*4096 bytes.*nbytes="):
        q.loan(4097, "uint8")
    with pytest.raises(ValueError):
        q.loan(-1)
    with pytest.raises(cx.ExchangeError):
        q.loan(3, "datetime64[s]")


def test_a_loan_and_a_received_tensor_are_copied_when_put_or_pickled(q):
    q.send(np.arange(5))
    for x in (q.loan(5, "int64"), q.recv()):
        x[...] = range(5)
        with cx.put("kept", x) as kept:
            x[0] = 9
            assert kept.storage_id != 0 and same(cx.get("kept"), np.arange(5))
        cx.delete("kept")
        x[0] = 0
        assert same(pickle.loads(pickle.dumps(x)), np.arange(5))
        assert same(x.copy(), np.arange(5)) and not x.is_shared and not cx.is_shared(x.numpy())


# ----------------------------------------------------------------------------------- by reference


def test_what_is_shared_goes_by_reference(q):
    shared = cx.zeros(1000)
    q.send(shared)
    received = q.recv()
    assert received.storage_id == shared.storage_id and received.is_shared
    received[0] = 5
    assert shared[0].item() == 5


def test_views_of_shared_memory_go_by_reference_if_contiguous(q):
    shared = cx.zeros((4, 100))
    q.send(shared.numpy()[2])
    q.send(shared.numpy()[:, 2])
    by_reference, copied = q.recv(), q.recv()
    assert by_reference.storage_id == shared.storage_id
    assert is_in_a_buffer(copied)


def test_read_only_travels_with_what_goes_by_reference(q):
    cx.put("fixed", np.arange(4), readonly=True)
    q.send(cx.get("fixed"))
    cx.delete("fixed")
    assert q.recv().readonly


def test_what_is_larger_than_a_buffer_goes_by_reference(q):
    for large in (np.arange(MiB), {"a": np.arange(MiB), "b": np.ones(3)}):
        q.send(large)
        received = q.recv()
        assert not is_in_a_buffer(received) and same(received, large)


def test_a_bundle_refers_to_what_is_shared_and_packs_the_rest(q):
    shared = cx.zeros(MiB)
    q.send({"large": shared, "small": np.arange(3)})
    received = q.recv()
    assert received["large"].storage_id == shared.storage_id
    assert is_in_a_buffer(received["small"]) and same(received["small"], np.arange(3))


def test_what_waits_by_reference_is_kept_alive(q):
    q.send(cx.full(MiB, 7, "uint8"))
    gc.collect()
    assert cx.stats()["bytes"] > MiB
    assert q.recv()[5].item() == 7


def test_a_message_by_reference_needs_no_buffer_once_received(q):
    kept = []
    for i in range(100):
        q.send(cx.full(3, i))
        kept.append(q.recv())
    assert [int(x[0]) for x in kept] == list(range(100))


# ------------------------------------------------------------------------------- buffers, capacity


def test_what_is_received_keeps_its_buffer_until_the_last_view_is_gone(q):
    q.send(np.arange(9))
    view = q.recv().numpy()[3:]
    for i in range(50):
        q.send(np.full(9, i))
        q.recv()
    assert list(view) == list(range(3, 9))
    assert [h["buffers"] for h in q.stats()["holders"]] == [1]
    del view
    assert q.stats()["holders"] == []


def test_a_tensor_of_a_bundle_keeps_the_buffer(q):
    q.send({"a": np.arange(9), "b": np.ones(2)})
    part = q.recv()["a"]
    gc.collect()
    assert [h["buffers"] for h in q.stats()["holders"]] == [1]
    del part
    assert q.stats()["holders"] == []


def test_a_full_queue_waits_and_says_who_is_behind():
    with cx.queue("q", 3) as q:
        for i in range(3):
            q.send(i)
        for timeout in (0, 0.05):
            with pytest.raises(cx.Timeout, match=r'queue "q".*full.*3 of 3'):
                q.send(3, timeout=timeout)
        assert [q.recv().item() for _ in range(3)] == [0, 1, 2]


def test_a_queue_whose_buffers_are_kept_says_by_whom():
    with cx.queue("q", 1, buffers=3) as q:
        kept = []
        for i in range(3):
            q.send(i)
            kept.append(q.recv())
        with pytest.raises(cx.Timeout, match=r"no buffer is free.*pid \d+, .*has 3 buffers"):
            q.send(4, timeout=0.05)
        (holder,) = q.stats()["holders"]
        mine = next(peer for peer in cx.clients() if peer["is_self"])
        assert holder == {
            "client": mine["id"],
            "pid": mine["pid"],
            "program": mine["program"],
            "buffers": 3,
            "behind": 0,
        }
        kept.pop()
        q.send(4, timeout=0)
        assert q.recv().item() == 4


def test_the_oldest_goes_where_the_queue_was_made_so():
    with cx.queue("q", 3, overflow="drop_oldest") as q:
        for i in range(10):
            q.send(i)
        assert [q.recv().item() for _ in range(3)] == [7, 8, 9]
        assert q.try_recv() is None and q.stats()["missed"] == 7


def test_the_first_message_gives_the_size():
    with cx.queue("q") as q:
        assert q.stats()["buffer_bytes"] == 0
        q.send(np.zeros(1000, "uint8"))
        assert q.stats()["buffer_bytes"] == 1024
        q.send(np.zeros(1025, "uint8"))
        assert [is_in_a_buffer(q.recv()) for _ in range(2)] == [True, False]


def test_like_makes_room_for_such_messages():
    tree = {
        "frame": np.zeros((30, 40, 3), "uint8"),
        "x": {"": 1.0, "ü": {}},
        "t": np.zeros((1,) * 9),
    }
    for like in (tree, np.zeros((5, 7)), [1, 2, 3], 3.5, cx.zeros(99), {"a": np.zeros(0)}, {}):
        with cx.queue("q", like=like) as q:
            q.send(like if not isinstance(like, cx.Tensor) else like.numpy().copy())
            assert is_in_a_buffer(q.recv())
            assert q.stats()["buffer_bytes"] <= 4352


def test_like_for_a_tree_is_not_much_too_large():
    tree = {f"layer{i}": {"weight": np.zeros(100), "bias": np.zeros(10)} for i in range(20)}
    with cx.queue("q", like=tree) as q:
        wanted = q.stats()["buffer_bytes"]
    with cx.queue("q") as q:
        q.send(tree)
        assert q.stats()["buffer_bytes"] == wanted
