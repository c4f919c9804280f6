"""The C extension gives back every reference it takes, also when a call fails."""

import copy
import gc
import io
import pickle
import sys

import numpy as np
import pytest

import tensorcx as cx

ROUNDS = 200
ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)
MAPPING = {"a": ARRAY, "b": {"c": ARRAY.T, "none": {}}}


def put_and(use):
    def action():
        cx.put("x", ARRAY)
        use()
        cx.delete("x")

    return action


def put_bundle_and(use):
    def action():
        use(cx.put("x", MAPPING))
        cx.delete("x")

    return action


ACTIONS = {
    "asarray": lambda: cx.asarray(ARRAY),
    "asarray of strides": lambda: cx.asarray(ARRAY[:, ::2]),
    "asarray of a record's field": lambda: cx.asarray(np.zeros(3, "i1,f4")["f1"]),
    "zeros and assignment": lambda: cx.full((2, 3), 1.0),
    "attributes": lambda: [getattr(T, name, None) for name in dir(T)],
    "numpy": lambda: np.asarray(T),
    "memoryview": lambda: memoryview(T)[1, 2],
    "slices": lambda: [T[0], T[1, 1:], list(T)],
    "handles": lambda: [copy.copy(T), copy.deepcopy(T), T.copy()],
    "pickle": lambda: pickle.loads(pickle.dumps(T)),
    "ref": lambda: [pickle.loads(pickle.dumps(x.ref())) for x in (T, B, B["b"])],
    "dlpack, versioned": lambda: T.__dlpack__(max_version=(1, 0)),
    "dlpack, legacy": lambda: [T.__dlpack__()],
    "dlpack, copied": lambda: T.__dlpack__(copy=True, max_version=(1, 0), dl_device=(1, 0)),
    "from_dlpack, shared": lambda: np.from_dlpack(cx.from_dlpack(ARRAY)),
    "from_dlpack, copied": lambda: cx.from_dlpack(ARRAY, copy=True),
    "get": put_and(lambda: cx.get("x", readonly=True)),
    "stat and list": put_and(lambda: [cx.exists("x"), cx.names(), cx.Client.entries(C)]),
    "bundle": put_bundle_and(lambda b: [b["a"], b["b"]["c"], list(b.items()), b.nbytes, b.name]),
    "get of a bundle": put_bundle_and(lambda b: [dict(cx.get("x")), copy.copy(b), repr(b)]),
    "bundle of a bundle": put_bundle_and(lambda b: cx.put("x", {"b": b})),
    "stats and clients": lambda: [cx.stats(), cx.clients()],
    "is_shared": lambda: [cx.is_shared(T), cx.is_shared(ARRAY), cx.is_shared(ARRAY.T)],
    "client": lambda: cx.Client("/tmp/x").socket,
}

FAILURES = {
    "unknown name": lambda: cx.get("nowhere"),
    "unknown name, delete": lambda: cx.delete("nowhere"),
    "bad name": lambda: cx.put("a\0b", ARRAY),
    "bad dtype": lambda: C._put(None, memoryview(b"ab").cast("c"), 0, 0.0),
    "no buffer": lambda: C._put(None, object(), 0, 0.0),
    "bad shape": lambda: cx.empty((-1,)),
    "huge shape": lambda: cx.empty((1 << 70,)),
    "no memory": lambda: cx.empty(1 << 60, "uint8"),
    "bad entry": lambda: C._put_bundle("x", [(("a",), ARRAY), (("b",), object())], 0, 0.0),
    "bad key": lambda: C._put_bundle("x", [(("a",), ARRAY), ((1,), ARRAY)], 0, 0.0),
    "no pair": lambda: C._put_bundle("x", [(("a",),)], 0, 0.0),
    "key twice": lambda: C._put_bundle("x", [(("a",), ARRAY), (("a",), ARRAY)], 0, 0.0),
    "copy needed": lambda: cx.put("x", ARRAY, copy=False),
    "exchange refused": lambda: cx.from_dlpack(ARRAY.T),
    "no ticket": lambda: C._redeem(b"no ticket"),
    "no bytes": lambda: C._redeem("no bytes"),
    "closed, ref": lambda: CLOSED.ref(),  # noqa: PLW0108
    "no capsule": lambda: C._from_capsule(3, 0),
    "bad version": lambda: T.__dlpack__(max_version=3),
    "bad stream": lambda: T.__dlpack__(stream=1),
    "bad keyword": lambda: T.__dlpack__(nonsense=1),
    "not writable": lambda: io.BytesIO(b"x").readinto(R),
    "closed": lambda: CLOSED.shape,
    "past the end": lambda: B._tensor(99),
    "bad path": lambda: cx.Client("x" * 200),
}

C = T = R = B = CLOSED = None  # what the actions work on; they exist while the test runs


@pytest.fixture(autouse=True)
def world():
    global C, T, R, B, CLOSED  # noqa: PLW0603
    C = cx.Client()
    T = C.asarray(ARRAY)
    R = C.put("r", ARRAY, readonly=True)
    B = C.put("b", MAPPING)
    CLOSED = C.zeros(1)
    CLOSED.close()
    C.delete("r")
    C.delete("b")
    yield
    C = T = R = B = CLOSED = None


def references():
    """What a leak would make grow: reference counts of what lives long, and allocated blocks."""
    gc.collect()
    lasting = (C, T, B, cx.Tensor, cx.Bundle, cx.Client, ARRAY, np.dtype("f4"), None)
    counts = [sys.getrefcount(x) for x in lasting[: -1 if sys.version_info >= (3, 12) else None]]
    return [*counts, sys.getallocatedblocks()]


def leaks(action):
    """How many references or blocks ROUNDS actions leave; what a cache took once does not count."""

    def growth():
        before = references()
        for _ in range(ROUNDS):
            action()
        return max(after - first for first, after in zip(before, references(), strict=True))

    return min(growth() for _ in range(4))


@pytest.mark.parametrize("name", ACTIONS)
def test_no_reference_stays(name):
    assert leaks(ACTIONS[name]) < ROUNDS / 2


@pytest.mark.parametrize("name", FAILURES)
def test_no_reference_stays_of_what_fails(name):
    def action():
        with pytest.raises((cx.Error, ValueError, TypeError, BufferError, IndexError, OSError)):
            FAILURES[name]()

    assert leaks(action) < ROUNDS / 2


def test_a_reference_that_stays_is_seen():
    kept = []
    assert leaks(lambda: kept.append(copy.copy(T))) >= ROUNDS
    assert leaks(lambda: kept.append(T)) >= ROUNDS
