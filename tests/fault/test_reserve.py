"""The reserve: first tensors find committed pages, all zero; nobody is refused because of it."""

import numpy as np
import pytest
from daemon import settle

import tensorcx as cx

MiB = 1 << 20


@pytest.fixture(params=["posix", "memfd"])
def ready(start, request):
    """A daemon that has made its reserve."""
    daemon = start(
        "--capacity", "1536M", "--reserve", "80M", "--backing", request.param, checked=False
    )
    daemon.settle(warm_bytes=80 * MiB)
    return daemon


def test_first_tensors_need_no_fresh_memory(ready):
    client = cx.Client(ready.path, autostart=False)
    kept = [client.put("large", np.ones(64 * MiB, "u1")), client.put("small", np.ones(64, "u1"))]
    stats = client.stats()
    assert (stats["committed_bytes"], stats["warm_bytes"]) == (80 * MiB, 0)
    assert all((np.asarray(tensor) == 1).all() for tensor in kept)
    ready.settle(warm_bytes=80 * MiB, committed_bytes=160 * MiB)  # made again


def test_it_is_zero_and_cut_to_size(ready):
    client = cx.Client(ready.path, autostart=False)
    first = client.empty((20 * MiB,), "uint8")
    assert client.stats()["committed_bytes"] == 36 * MiB
    assert not np.asarray(first).any()
    np.asarray(first)[:] = 7
    assert not np.asarray(client.empty((MiB,), "uint8")).any()


def test_nobody_is_refused_because_of_it(ready):
    client = cx.Client(ready.path, autostart=False)
    for nbytes in (1400 * MiB, 1536 * MiB):
        client.empty((nbytes,), "uint8").close()
        settle(lambda: client.stats()["bytes"] == 0)
    assert client.stats()["committed_bytes"] <= 1536 * MiB // 4 + 80 * MiB


def test_it_does_not_keep_a_daemon_from_its_end(start):
    daemon = start("--capacity", "4G", "--reserve", "80M", "--idle-exit", "0.2", checked=False)
    assert daemon.process.wait(60) == 0
