"""Fixtures: every test module has a daemon of its own, and every test must leave it empty."""

import gc
import tempfile

import daemon as d
import pytest

import tensorcx as cx

LEFT = ("storages", "bytes", "names", "waiting", "holds", "clients", "tickets", "channels")


@pytest.fixture(scope="module", autouse=True)
def daemon():
    """A private daemon, and the default client connected to it.

    $TENSORCX_SOCKET points to it, so programs that a test starts use it too.
    """
    with (
        tempfile.TemporaryDirectory(prefix="tcx-") as folder,
        pytest.MonkeyPatch.context() as patch,
        d.Daemon(folder, "--warm-seconds", "0", "--idle-exit", "0") as running,
    ):
        patch.setenv("TENSORCX_SOCKET", str(running.path))
        patch.setenv("TENSORCX_AUTOSTART", "0")
        cx.connect()
        yield running


@pytest.fixture(autouse=True)
def nothing_left(request, daemon):
    """Fails a test that leaves a name, a storage, a waiting call or a client behind."""
    before = cx.stats()  # all 0 but one client, us; unless a test before failed
    yield
    request.node.funcargs.clear()  # pytest would keep the values of fixtures until later
    left = {}

    def is_as_before():
        nonlocal left
        gc.collect()
        stats = cx.stats()
        left = {key: stats[key] - before[key] for key in LEFT if stats[key] > before[key]}
        return not left

    try:
        d.settle(is_as_before, deadline=10)
    except AssertionError as error:
        raise AssertionError(f"left behind: {left}, names {cx.names()}") from error
    finally:
        for name in cx.names() + [channel["name"] for channel in cx.channels()]:
            if name:  # so that the next test starts clean
                cx.delete(name)
