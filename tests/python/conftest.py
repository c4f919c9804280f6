"""Every test module here has a daemon of its own, and every test must leave it empty."""

import gc
import tempfile

import pytest
import tensorcx as cx

import daemon as d

# What must be gone after each test; the one client is the test process itself.
NOTHING_LEFT = {"storages": 0, "bytes": 0, "names": 0, "waiting": 0, "holds": 0, "clients": 1}


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
def nothing_left(daemon):
    """Fails a test that leaves a name, a storage, a waiting call or a client behind."""
    yield
    left = {}

    def is_empty():
        nonlocal left
        gc.collect()
        stats = cx.stats()
        left = {key: stats[key] for key, wanted in NOTHING_LEFT.items() if stats[key] != wanted}
        return not left

    try:
        d.settle(is_empty)
    except AssertionError as error:
        names = cx.names()
        for name in names:  # so that the next test starts clean
            cx.delete(name)
        raise AssertionError(f"left behind: {left}, names {names}") from error
