"""The daemon as the package shows it: counters, clients, connecting and closing."""

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import daemon as d
import numpy as np
import pytest
from arrays import some

import tensorcx as cx


def test_stats_are_a_flat_mapping_with_the_promised_keys(daemon):
    stats = cx.stats()
    promised = (
        "pid version boot_id socket backing clients holds storages bytes names tickets channels "
        "segments committed_bytes warm_bytes capacity_bytes"
    )
    assert set(promised.split()) <= set(stats)
    assert stats["pid"] == daemon.pid
    assert stats["socket"] == str(daemon.path)
    assert stats["version"] == cx.__version__
    assert stats["backing"] in ("posix", "memfd")
    assert re.fullmatch("[0-9a-f]{16}", stats["boot_id"])


def test_clients_tell_who_holds_what():
    t = cx.zeros(1000, "uint8")
    (me,) = cx.clients()
    assert me["is_self"] and me["connected"]
    assert me["tensors"] == 1
    assert me["bytes"] >= t.nbytes
    refs = [pickle.dumps(t.ref()) for _ in range(3)]
    assert cx.clients()[0]["tickets"] == 3
    for left in (2, 1, 0):
        pickle.loads(refs.pop())
        assert cx.clients()[0]["tickets"] == left
    assert Path(f"/proc/{me['pid']}").exists()


def test_several_clients_can_exist(daemon):
    other = cx.Client(daemon.path)
    other.put("a", some())
    assert cx.get("a").tolist() == some().tolist()
    assert other.stats()["pid"] == daemon.pid
    assert repr(other) == f"Client({str(daemon.path)!r})"
    other.delete("a")


def test_entries_and_stat_tell_what_the_daemon_knows():
    cx.put("a", some(), readonly=True, ttl=1000)
    cx.put("b", {"x": some()}, ephemeral=True)
    client = cx.Client()
    a, b = client.entries()
    assert client.stat("a")["version"] == a["version"]
    assert (a["name"], a["dtype"], a["shape"]) == ("a", np.float32, (2, 3))
    assert (a["readonly"], a["ephemeral"], a["is_bundle"]) == (True, False, False)
    assert 0 < a["ttl"] <= 1000
    assert (b["name"], b["dtype"], b["shape"], b["ttl"]) == ("b", None, None, None)
    assert (b["is_bundle"], b["ephemeral"]) == (True, True)
    with pytest.raises(cx.NotFound):
        client.stat("c")
    cx.delete("a")
    cx.delete("b")


def test_a_path_that_is_too_long_is_refused_with_the_limit():
    with pytest.raises(ValueError, match="107"):
        cx.Client("/tmp/" + "x" * 200)


def test_without_a_daemon_the_error_says_so(tmp_path):
    client = cx.Client(tmp_path / "none.sock", autostart=False)
    for action in (client.connect, client.stats, client.stop, lambda: client.put("a", some())):
        with pytest.raises(cx.DaemonUnavailable, match=re.escape(str(tmp_path))):
            action()
    assert client.from_dlpack(some(), copy=False).tolist() == some().tolist()


def test_importing_needs_no_daemon_and_no_torch():
    code = (
        "import sys, tensorcx as cx, numpy as np\n"
        "assert not {'torch', 'jax'} & set(sys.modules)\n"
        "assert np.from_dlpack(cx.from_dlpack(np.ones(3, 'f4'))).sum() == 3\n"
        "assert not cx.is_shared(np.ones(3))\n"
    )
    env = {"TENSORCX_SOCKET": "/nonexistent/d.sock", "TENSORCX_AUTOSTART": "0"}
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | env)


def test_leaving_with_live_views_is_quiet():
    code = (
        "import tensorcx as cx, numpy as np, builtins\n"
        "t = cx.put('exit', np.ones((100, 100), 'f4'), ephemeral=True)\n"
        "builtins.keep = [t, np.asarray(t), np.from_dlpack(t), memoryview(t), t.__dlpack__(),\n"
        "                 cx.from_dlpack(np.ones(3, 'f4'))]\n"
        "builtins.more = cx.put('b', {'x': t}, ephemeral=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_client_asks_no_more_and_its_tensors_stay(daemon):
    with cx.Client(daemon.path) as client:
        t = client.put("kept", np.arange(3))
        assert not client.closed
    assert client.closed and not t.closed
    with pytest.raises(ValueError, match="closed"):
        client.get("kept")
    with pytest.raises(ValueError, match="closed"):
        t.copy()
    assert np.asarray(t).sum() == 3
    client.close()
    cx.delete("kept")


def test_a_closed_client_is_gone_from_the_daemon_with_its_last_tensor(daemon):
    client = cx.Client(daemon.path)
    t = client.put("kept", np.arange(3))
    cx.delete("kept")
    client.close()
    assert cx.stats()["clients"] == 2
    del t
    daemon.settle(bytes=0)


def test_an_ephemeral_name_lasts_as_long_as_a_tensor_of_its_closed_client(daemon):
    with cx.Client(daemon.path) as client:
        client.put("brief", np.zeros(3), ephemeral=True)
        kept = client.zeros(1)
    assert cx.names() == ["brief"]
    kept.close()
    d.settle(lambda: cx.names() == [], "the end of the name")
