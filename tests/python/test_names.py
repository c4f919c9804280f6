"""put(), get() and names: what is published, waited for, listed and removed; bundles by name."""

import signal
import subprocess
import sys
import threading

import daemon as d
import numpy as np
import pytest
from arrays import some

import tensorcx as cx


def test_put_publishes_and_get_finds_the_same_memory():
    put = cx.put("a", some())
    got = cx.get("a")
    put[0, 0] = 50
    assert got.tolist()[0][0] == 50
    assert got.storage_id == put.storage_id
    cx.delete("a")


def test_put_of_shared_memory_shows_later_writes_and_a_snapshot_does_not():
    t = cx.asarray(some())
    cx.put("live", t)
    cx.put("view", np.asarray(t))
    cx.put("snapshot", t, copy=True)
    t[0, 0] = 50
    values = [cx.get(name).tolist()[0][0] for name in ("live", "view", "snapshot")]
    for name in ("live", "view", "snapshot"):
        cx.delete(name)
    assert values == [50, 50, 0]


def test_put_without_leave_to_copy_refuses_private_memory():
    with pytest.raises(cx.ExchangeError, match="cop"):
        cx.put("a", some(), copy=False)
    assert not cx.exists("a")
    cx.put("a", cx.zeros(3), copy=False)
    cx.delete("a")


def test_exclusive_put_does_not_replace():
    cx.put("a", some(), exclusive=True)
    with pytest.raises(cx.Exists, match="a"):
        cx.put("a", np.zeros(1), exclusive=True)
    assert cx.get("a").shape == (2, 3)
    cx.delete("a")


def test_read_only_memory_stays_read_only_under_another_name():
    cx.put("a", some(), readonly=True)
    cx.put("b", cx.get("a"))
    cx.put("c", np.asarray(cx.get("a")))
    cx.put("d", {"inner": cx.get("a")})
    cx.put("e", cx.get("a"), copy=True)
    modes = [cx.get(name).readonly for name in "abce"]
    inner = cx.get("d")["inner"].readonly
    for name in "abcde":
        cx.delete(name)
    assert modes == [True, True, True, False]
    assert inner


def test_names_exist_until_they_are_deleted():
    for name in ("b", "a/2", "a/1"):
        cx.put(name, some())
    assert cx.names() == ["a/1", "a/2", "b"]
    assert cx.names("a/") == cx.names(prefix="a/") == ["a/1", "a/2"]
    assert cx.exists("b")
    for name in cx.names():
        cx.delete(name)
    assert not cx.exists("b")
    with pytest.raises(cx.NotFound, match="b"):
        cx.delete("b")


def test_an_unknown_name_is_an_error_that_names_it():
    with pytest.raises(cx.NotFound, match="nowhere") as caught:
        cx.get("nowhere")
    assert isinstance(caught.value, KeyError)
    assert not str(caught.value).startswith(("'", '"')), "KeyError's repr is not for people"


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb", "a\0b"], ids=repr)
def test_a_bad_name_is_a_value_error(name):
    for action in (lambda: cx.put(name, some()), lambda: cx.get(name)):
        with pytest.raises(ValueError, match="name"):
            action()


@pytest.mark.parametrize("name", [None, 3, b"x"])
def test_a_name_is_text(name):
    for action in (lambda: cx.put(name, some()), lambda: cx.get(name), lambda: cx.delete(name)):
        with pytest.raises(TypeError, match="name must be a str"):
            action()


def test_waiting_for_a_name_ends_with_timeout():
    with pytest.raises(cx.Timeout) as caught:
        cx.get("nowhere", timeout=0.01)
    assert isinstance(caught.value, TimeoutError)


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "1"])
def test_a_timeout_is_a_number_of_seconds(timeout):
    words = rf"timeout must be 0 \(at once\), .* or None \(waits for ever\), not {timeout!r}"
    with pytest.raises(ValueError, match=words):
        cx.get("nowhere", timeout=timeout)


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf")])
def test_a_ttl_is_a_number_of_seconds(ttl):
    with pytest.raises(ValueError, match="ttl"):
        cx.put("a", some(), ttl=ttl)


def wait_until_someone_waits():
    d.settle(lambda: cx.stats()["waiting"], "a waiting call")


@pytest.mark.parametrize("timeout", [None, 60])
def test_a_waiting_get_is_answered_by_put(timeout):
    got = []
    thread = threading.Thread(target=lambda: got.append(cx.get("later", timeout=timeout).tolist()))
    thread.start()
    wait_until_someone_waits()
    cx.put("later", some())
    thread.join()
    cx.delete("later")
    assert got == [some().tolist()]


def test_newer_than_waits_for_the_next_version():
    first = cx.put("a", np.zeros(1))
    with pytest.raises(cx.Timeout):
        cx.get("a", newer_than=first.version, timeout=0.01)
    second = cx.put("a", np.ones(1))
    got = cx.get("a", newer_than=first.version, timeout=60)
    cx.delete("a")
    assert got.version == second.version


def test_a_ttl_takes_the_name_away():
    cx.put("a", some(), ttl=0.01)
    d.settle(lambda: not cx.exists("a"), "the end of the name")


def test_ctrl_c_ends_a_waiting_get():
    # Set, since who runs tests in the background may ignore it.
    program = (
        "import signal, tensorcx as cx; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "cx.get('never', timeout=None)"
    )
    waiter = subprocess.Popen(
        [sys.executable, "-c", program],
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until_someone_waits()
    waiter.send_signal(signal.SIGINT)
    _, errors = waiter.communicate(timeout=60)
    assert errors.rstrip().endswith("KeyboardInterrupt")


def test_a_signal_handler_that_raises_ends_the_wait_with_its_exception():
    class Alarm(Exception):
        pass

    def ring(*_):
        raise Alarm

    before = signal.signal(signal.SIGUSR1, ring)
    main = threading.main_thread().ident

    def send():
        wait_until_someone_waits()
        signal.pthread_kill(main, signal.SIGUSR1)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        with pytest.raises(Alarm):
            cx.get("never", timeout=None)
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)


def test_a_signal_handler_that_returns_does_not_end_the_wait():
    calls = []
    before = signal.signal(signal.SIGUSR1, lambda *_: calls.append(cx.exists("late")))
    main = threading.main_thread().ident

    def send():
        wait_until_someone_waits()
        signal.pthread_kill(main, signal.SIGUSR1)
        d.settle(lambda: calls, "the signal handler")
        cx.put("late", some())

    thread = threading.Thread(target=send)
    thread.start()
    try:
        assert cx.get("late", timeout=None).shape == (2, 3)
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    cx.delete("late")
    assert calls == [False]
