"""Every wire test talks to a daemon of its file and must leave it as it was."""

import daemon as d
import pytest


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    directory = tmp_path_factory.mktemp("wire")
    with d.Daemon(directory, "--warm-seconds", "0", "--idle-exit", "0") as running:
        with running.connect() as first:  # what the daemon makes only once
            first.put("warm-up", b"x")
            first.delete("warm-up")
        yield running


@pytest.fixture(autouse=True)
def nothing_left(daemon):
    """A second client still gets an answer, and descriptors, maps and books are as before."""
    before = daemon.footprint()
    yield
    with daemon.connect() as second:
        names = second.names()
        for name in names:  # so that the next test starts clean
            second.delete(name)
        second.put("after", b"still here")
        assert second.get("after")["grant"]["nbytes"] == 10
        second.delete("after")
    assert names == [], "left behind"
    daemon.settle_clean()
    daemon.settle_footprint(before)


@pytest.fixture
def client(daemon):
    with daemon.connect() as connection:
        yield connection


@pytest.fixture
def drops(daemon):
    """Checks that the daemon drops exactly the peers that break the contract, and says so."""

    class Drops:
        def expect(self, connection, *, count=1):
            before = self.start
            assert connection.is_dropped(), "the daemon answered a broken message"
            self.start = daemon.settle(dropped=before + count)["dropped"]

        start = daemon.stats()["dropped"]

    return Drops()
