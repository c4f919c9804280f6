"""Every fault test has daemons of its own, and whatever it did to them, nothing is left."""

import gc
import os
import shutil
import tempfile

import accidents
import daemon as d
import pytest


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """The folder with what accidents.py needs of C."""
    folder = tmp_path_factory.mktemp("accidents")
    accidents.compile_all(folder)
    return folder


@pytest.fixture
def folder():
    """A private folder with a short name: the path of a socket has 107 bytes."""
    path = tempfile.mkdtemp(prefix="tcx-")
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def start(request, folder):
    """Starts a daemon with options. Afterwards it must be as at its start, and end well."""
    running, files = [], d.shm_files()
    failed = request.session.testsfailed

    def start(*options, checked=True, **popen):
        directory = f"{folder}/{len(running)}"
        os.mkdir(directory, 0o700)
        daemon = d.Daemon(directory, "--warm-seconds", "0", "--idle-exit", "0", *options, **popen)
        running.append((daemon, checked and daemon.footprint()))
        return daemon

    yield start
    request.node.funcargs.clear()  # pytest would keep clients until later
    try:
        if request.session.testsfailed == failed:
            for daemon, before in running:
                if before and daemon.process.poll() is None:
                    nothing_left(daemon, before)
            d.settle(lambda: d.shm_files() <= files, "the end of our files in /dev/shm")
    finally:
        for daemon, _ in running:
            daemon.kill()


def nothing_left(daemon, before):
    gc.collect()  # tracebacks of expected errors refer to clients
    with daemon.connect() as second:
        second.put("after", b"still here")
        assert second.get("after")["grant"]["nbytes"] == 10
        second.delete("after")
    daemon.settle_clean()
    daemon.settle_footprint(before)
    daemon.stop()


@pytest.fixture
def daemon(start):
    return start()
