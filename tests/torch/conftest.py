"""Every test module here has a daemon of its own, and every test must leave it empty."""

from multiprocessing import forkserver

import daemon as d
import pytest
import torch  # noqa: F401
from empty import daemon, nothing_left  # noqa: F401  fixtures

import tensorcx as cx
import torch_tensorcx as bridge
from tensorcx import _default


@pytest.fixture
def forgetful(request, tmp_path, monkeypatch):
    """The default daemon of one test. It drops what was sent as soon as its sender has, or some
    seconds after: parametrize("forgetful", ["5"], indirect=True)."""
    options = ("--ticket-lease", getattr(request, "param", "0"), "--capacity", "64M")
    with d.Daemon(tmp_path, *options, "--warm-seconds", "0") as running:
        monkeypatch.setenv("TENSORCX_SOCKET", str(running.path))
        client = cx.Client(autostart=False)
        monkeypatch.setitem(_default._clients, "default", client)
        yield running
        client.close()


@pytest.fixture(scope="module")
def installed():
    """The fork server has the environment of who started it: another daemon's."""
    forkserver._forkserver._stop()
    bridge.install()
    yield
    forkserver._forkserver._stop()
