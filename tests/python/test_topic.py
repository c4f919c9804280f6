"""Topics: every subscriber sees every message, or the newest and how many it missed."""

import pickle
import threading

import daemon as d
import numpy as np
import pytest

import tensorcx as cx

pytestmark = pytest.mark.usefixtures("no_channel_left")


@pytest.fixture
def t():
    with cx.topic("t", 4, nbytes=1024) as topic:
        yield topic


def numbers(subscription):
    """All that it can receive without waiting."""
    got = []
    while (x := subscription.try_recv()) is not None:
        got.append(x.item())
    return got


# ----------------------------------------------------------------------------------- every message


def test_every_subscriber_gets_every_message_in_order(t):
    with t.subscribe() as a, t.subscribe() as b:
        for i in range(4):
            t.send(i)
        assert numbers(a) == numbers(b) == [0, 1, 2, 3]
        assert (a.missed, b.missed) == (0, 0)


def test_all_have_the_same_memory(t):
    with t.subscribe() as a, t.subscribe() as b:
        loan = t.loan(5, "uint8")
        loan[...] = 1
        address = loan.data_ptr()
        t.send(loan)
        x, y = a.recv(), b.recv()
        assert x.data_ptr() == y.data_ptr() == address
        x[2] = 9
        assert y[2].item() == 9
        t.send({"part": np.arange(3)})
        assert a.recv()["part"].data_ptr() == b.recv()["part"].data_ptr()


def test_what_is_shared_goes_to_all_by_reference(t):
    shared = cx.zeros(1000)
    with t.subscribe() as a, t.subscribe() as b:
        t.send(shared)
        assert a.recv().storage_id == b.recv().storage_id == shared.storage_id


def test_a_subscription_begins_with_the_next_message(t):
    t.send(1)
    with t.subscribe() as late:
        assert late.try_recv() is None
        t.send(2)
        assert numbers(late) == [2]


def test_a_message_without_subscribers_is_sent_all_the_same(t):
    for i in range(20):
        t.send(i)
    assert (t.stats()["messages"], t.stats()["depth"], t.stats()["readers"]) == (20, 0, 0)


def test_who_is_too_far_behind_misses_the_oldest_and_knows_how_many(t):
    with t.subscribe() as slow, t.subscribe() as quick:
        for i in range(10):
            t.send(i)
            assert quick.recv().item() == i
        assert numbers(slow) == [6, 7, 8, 9]
        assert (slow.missed, quick.missed) == (6, 0)


def test_a_topic_that_blocks_waits_for_the_slowest_and_names_it():
    with cx.topic("t", 2, overflow="block") as t, t.subscribe() as slow, t.subscribe() as quick:
        t.send(0), t.send(1)
        assert numbers(quick) == [0, 1]
        with pytest.raises(cx.Timeout, match=r'topic "t".*pid \d+, .*yet to receive 2 messages'):
            t.send(2, timeout=0.05)
        assert [h["behind"] for h in t.stats()["holders"]] == [2]
        assert slow.recv().item() == 0
        t.send(2, timeout=0)
        assert (numbers(slow), numbers(quick)) == ([1, 2], [2])


def test_a_topic_that_blocks_goes_on_when_the_slowest_leaves():
    with cx.topic("t", 1, overflow="block") as t:
        slow = t.subscribe()
        t.send(0)
        sender = threading.Thread(target=lambda: t.send(1))
        sender.start()
        slow.close()
        sender.join(d.DEADLINE)
        assert not sender.is_alive() and t.stats()["messages"] == 2


def test_what_a_subscriber_keeps_is_never_overwritten():
    with cx.topic("t", 1, buffers=4, nbytes=100) as t, t.subscribe() as keeper:
        kept = []
        for i in range(3):
            t.send(np.full(9, i))
            kept.append(keeper.recv())
        for i in range(3, 9):
            t.send(np.full(9, i), timeout=0)
        kept.append(keeper.recv())
        with pytest.raises(cx.Timeout, match="has 4 buffers"):
            t.send(np.full(9, 9), timeout=0.05)
        assert [int(x[8]) for x in kept] == [0, 1, 2, 8] and keeper.missed == 5


# ------------------------------------------------------------------------------------- the newest


def test_latest_takes_the_newest_and_counts_what_it_skipped(t):
    t.send(7)
    with t.subscribe(latest=True) as newest:
        assert numbers(newest) == [7]  # the last one before it came
        for i in range(3):
            t.send(i)
        assert newest.recv().item() == 2 and newest.missed == 2
        assert newest.try_recv() is None
        for i in range(10):
            t.send(i)
        assert numbers(newest) == [9] and newest.missed == 11


def test_latest_waits_where_nothing_was_sent(t):
    with t.subscribe(latest=True) as newest:
        assert newest.try_recv() is None
        with pytest.raises(cx.Timeout, match='subscription to topic "t"'):
            newest.recv(0.05)


def test_latest_needs_a_topic_that_drops():
    with cx.topic("t", overflow="block") as t:
        with pytest.raises(ValueError, match="drop_oldest"):
            t.subscribe(latest=True)
        assert t.stats()["handles"] == 1


# --------------------------------------------------------------------------------- opening, closing


def test_any_order_of_joining(t):
    with t.subscribe() as early, cx.topic("t") as other, other.subscribe() as late:
        assert other.capacity == 4 and other.stats()["readers"] == 2
        other.send(1)
        t.send(2)
        assert numbers(early) == numbers(late) == [1, 2]


def test_a_topic_is_no_queue(t):
    with pytest.raises(ValueError, match="topic"):
        cx.queue("t", overflow="drop_oldest")
    with pytest.raises(ValueError, match=r"overflow|drop"):
        cx.topic("t", overflow="block")
    assert not hasattr(t, "recv") and not hasattr(t.subscribe(), "send")


def test_a_subscription_outlives_the_handle_it_was_made_by():
    t = cx.topic("t")
    subscription = t.subscribe()
    t.send(5)
    t.close()
    assert subscription.recv().item() == 5
    with cx.topic("t") as again:  # lives as long as the subscription
        again.send(6)
        assert subscription.recv().item() == 6
    subscription.close()


def test_a_topic_without_a_handle_is_gone_with_its_messages():
    with cx.topic("t", 3) as t, t.subscribe():
        t.send(1)
    d.settle(lambda: cx.stats()["channels"] == 0, "the topic's end")
    with cx.topic("t") as new:
        assert new.capacity == 8 and new.stats()["messages"] == 0


def test_after_shutdown_subscribers_get_what_is_left(t):
    with t.subscribe() as a, t.subscribe(latest=True) as b:
        for i in range(3):
            t.send(i)
        t.shutdown()
        with pytest.raises(cx.ChannelClosed):
            t.send(3)
        assert [x.item() for x in a] == [0, 1, 2]
        assert [x.item() for x in b] == [2]
        with pytest.raises(cx.ChannelClosed):
            a.recv()


def test_a_closed_subscription_raises_and_what_it_received_stays(t):
    subscription = t.subscribe()
    t.send(np.arange(3))
    x = subscription.recv()
    subscription.close()
    for call in (subscription.recv, subscription.try_recv, lambda: list(subscription)):
        with pytest.raises(cx.ChannelClosed, match="closed"):
            call()
    assert x.tolist() == [0, 1, 2]
    assert subscription.closed and subscription.name == "t" and "closed" in repr(subscription)


def test_a_topic_is_pickled_a_subscription_is_not(t):
    with t.subscribe() as subscription, pickle.loads(pickle.dumps(t)) as other:
        other.send(3)
        assert subscription.recv().item() == 3
        with pytest.raises(TypeError, match="subscribe there"):
            pickle.dumps(subscription)


def test_delete_ends_a_topic(t):
    with t.subscribe() as subscription:
        t.send(1)
        cx.delete("t")
        assert [x.item() for x in subscription] == [1]
        with pytest.raises(cx.ChannelClosed):
            t.send(2)


def test_too_many_subscribers_are_refused_with_the_option():
    with cx.topic("t", participants=3) as t:
        seats = t.subscribe(), t.subscribe()
        with pytest.raises(cx.Error, match="participants"):
            t.subscribe()
        del seats
    with cx.topic("t", participants=3) as t:
        for _ in range(20):  # a seat that was left can be taken again
            t.subscribe().close()


def test_many_subscribers_and_senders_in_threads():
    each, senders, readers = 100, 3, 8
    with cx.topic("t", 4, overflow="block", nbytes=1024) as t:
        subscriptions = [t.subscribe() for _ in range(readers)]
        got = [[] for _ in range(readers)]

        def read(i):
            got[i].extend(int(x[99]) for x in subscriptions[i])

        def send(i):
            for k in range(each):
                t.send(np.full(100, i * each + k))

        reading = [threading.Thread(target=read, args=[i]) for i in range(readers)]
        sending = [threading.Thread(target=send, args=[i]) for i in range(senders)]
        for thread in reading + sending:
            thread.start()
        for thread in sending:
            thread.join(d.DEADLINE)
        t.shutdown()
        for thread in reading:
            thread.join(d.DEADLINE)
        assert all(x == got[0] for x in got) and sorted(got[0]) == list(range(each * senders))
        for i in range(senders):
            assert [x for x in got[0] if x // each == i] == list(range(i * each, (i + 1) * each))
        for subscription in subscriptions:
            subscription.close()
