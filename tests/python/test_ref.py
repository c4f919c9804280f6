"""ref(): a pickle that carries a reference instead of the bytes."""

import copy
import io
import multiprocessing
import pickle
import subprocess
import sys
import tempfile
import zipfile
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import daemon as d
import numpy as np
import pytest
from threads import together

import tensorcx as cx
from tensorcx import _default

MiB = 1 << 20


def some():
    return np.arange(12, dtype="float32").reshape(3, 4)


def travelled(x):
    """What arrives where the pickle of `x` by reference is read."""
    return pickle.loads(pickle.dumps(x.ref()))


def is_same_memory(a, b):
    return a.storage_id == b.storage_id and a.data_ptr() == b.data_ptr()


# --------------------------------------------------------------------------------------- what comes


def test_it_unpickles_to_the_tensor_itself():
    t = cx.asarray(some())
    back = travelled(t)
    assert type(back) is cx.Tensor and is_same_memory(back, t)
    back[0, 0] = 99
    assert t.tolist()[0][0] == 99


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_carries_it_in_a_few_bytes(protocol):
    t = cx.zeros(MiB, "uint8")
    data = pickle.dumps(t.ref(), protocol)
    assert len(data) < 1000
    assert is_same_memory(pickle.loads(data), t)
    assert len(pickle.dumps(t, protocol)) >= MiB  # without ref() the bytes are copied


@pytest.mark.parametrize("shape", [(), (0,), (5, 0), (0, 1 << 40), (1,) * 64, (2, 3, 4)])
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "complex128"])
def test_any_shape_and_dtype_arrives(shape, dtype):
    t = cx.zeros(shape, dtype)
    back = travelled(t)
    assert (back.shape, back.dtype, back.storage_id) == (shape, t.dtype, t.storage_id)


def test_a_view_arrives_as_that_view_and_keeps_the_whole_storage():
    t = cx.asarray(np.zeros(MiB, "uint8"))
    view = travelled(t[100:110])
    assert view.data_ptr() == t.data_ptr() + 100 and view.shape == (10,)
    t.close()
    assert cx.stats()["bytes"] == MiB
    alone = view.copy()
    view.close()
    assert cx.stats()["bytes"] == alone.nbytes == 10


def test_read_only_travels_and_the_name_does_not():
    cx.put("x", some())
    name, handle = travelled(cx.get("x")), travelled(cx.get("x", readonly=True))
    assert (name.name, name.version, name.readonly) == (None, 0, False)
    assert handle.readonly and not np.asarray(handle).flags.writeable
    cx.delete("x")


def test_private_memory_is_copied_to_shared_memory():
    array = some()
    t = cx.from_dlpack(array)
    back = travelled(t)
    array[...] = 0
    assert back.is_shared and back.tolist() == some().tolist()
    assert not t.is_shared


def test_a_bundle_arrives_with_its_parts_and_their_memory():
    t = cx.asarray(some())
    b = cx.put("b", {"t": t, "p": {"x": some(), "none": {}, "q": {"y": [1, 2]}}}, readonly=False)
    cx.delete("b")
    whole, part, below = travelled(b), travelled(b["p"]), travelled(b["p"]["q"])
    assert list(whole) == ["t", "p"] and list(whole["p"]) == list(part) == ["x", "none", "q"]
    assert is_same_memory(whole["t"], t)
    for x in whole["p"]["x"], part["x"]:
        assert is_same_memory(x, b["p"]["x"])
    assert list(below) == ["y"] and is_same_memory(below["y"], b["p"]["q"]["y"])
    assert dict(travelled(part["none"])) == {}
    assert is_same_memory(travelled(copy.copy(part)["q"])["y"], below["y"])


def test_a_read_only_bundle_stays_so_and_an_empty_one_arrives():
    cx.put("b", {"x": some()}, readonly=True)
    assert travelled(cx.get("b")).readonly and travelled(cx.get("b"))["x"].readonly
    cx.put("b", {})
    assert dict(travelled(cx.get("b"))) == {}
    cx.delete("b")


def test_a_structure_keeps_one_tensor_for_one_ref():
    t = cx.asarray(some())
    ref = t.ref()
    first, second = pickle.loads(pickle.dumps([ref, {"again": ref}]))
    assert first is second["again"]


# ------------------------------------------------------------------------------------------ the Ref


def test_a_ref_keeps_the_memory_and_survives_the_end_of_the_handle():
    t = cx.asarray(some())
    ref = t.ref()
    t.close()
    assert pickle.loads(pickle.dumps(ref)).tolist() == some().tolist()
    assert pickle.loads(pickle.dumps(ref)).tolist() == some().tolist()  # a ticket each


def test_copies_of_a_ref_are_the_ref():
    ref = cx.asarray(some()).ref()
    assert copy.copy(ref) is ref and copy.deepcopy([ref])[0] is ref
    assert repr(ref) == "Ref(Tensor(shape=(3, 4), dtype=float32))"
    assert isinstance(ref, cx.Ref)


def test_a_closed_handle_is_a_clear_error():
    t, b = cx.zeros(1), cx.put("b", {})
    cx.delete("b")
    t.close()
    b.close()
    for handle, text in (t, "the tensor is closed"), (b, "the bundle is closed"):
        for use in (lambda x: x.ref(), lambda x: x._client._ticket(x), ForkingPickler.dumps):
            with pytest.raises(ValueError, match=text):
                use(handle)


def test_the_tensor_of_a_closed_client_travels_with_another_one(daemon):
    with cx.Client(daemon.path) as client:
        t, b = client.asarray(some()), client.put("b", {"x": some()})
        client.delete("b")
    assert is_same_memory(travelled(t), t)
    assert is_same_memory(travelled(b)["x"], b["x"])


def test_what_a_closed_client_cannot_make_a_ticket_of():
    with cx.Client() as client, pytest.raises(TypeError, match="Tensor or a Bundle"):
        client._ticket(some())
    with pytest.raises(ValueError, match="the client is closed"):
        client._ticket(cx.zeros(1))


def test_when_the_default_client_is_closed_tensors_travel_still(daemon, monkeypatch):
    with cx.Client(daemon.path) as client:
        monkeypatch.setitem(_default._clients, "default", client)
        t = cx.asarray(some())
    assert is_same_memory(travelled(t), t)
    _default._clients.pop(str(daemon.path)).close()


def test_when_the_daemon_was_restarted_the_next_one_gets_a_copy():
    with tempfile.TemporaryDirectory(prefix="tcx-") as folder:
        with d.Daemon(folder) as first:
            client = cx.Client(first.path)
            t, b = client.asarray(some()), client.put("b", {"x": some()})
        with d.Daemon(folder):
            assert travelled(t).tolist() == some().tolist()
        with d.Daemon(folder):
            assert travelled(b)["x"].tolist() == some().tolist()
        _default._clients.pop(str(first.path)).close()
        client.close()


# --------------------------------------------------------------------------------- 0, 1 and N times


def test_unpickled_often_it_is_the_same_memory_and_then_stale():
    t = cx.zeros(10)
    data = pickle.dumps(t.ref())
    several = [pickle.loads(data) for _ in range(5)]
    storage = t.storage_id
    t.close()
    several += [pickle.loads(data) for _ in range(5)]
    assert {x.storage_id for x in several} == {storage}
    assert cx.stats()["tickets"] == 0
    several.clear()
    with pytest.raises(cx.Stale, match=str(storage)):
        pickle.loads(data)


def test_the_ticket_keeps_the_memory_when_the_sender_has_let_go():
    t = cx.asarray(some())
    data = pickle.dumps(t.ref())
    t.close()
    assert cx.stats()["tickets"] == 1
    assert pickle.loads(data).tolist() == some().tolist()
    assert cx.stats()["tickets"] == 0


def test_a_thousand_rounds_leave_nothing():
    t = cx.put("b", {"x": some(), "y": some()})
    cx.delete("b")

    def rounds(count):
        for _ in range(count):
            travelled(t["x"]), travelled(t)
        stats = cx.stats()
        return (
            [stats[k] for k in ("tickets", "storages", "holds", "bytes")],
            len(d.descriptors()),
            len(d.shared_maps()),
        )

    first = rounds(10)
    assert rounds(1000) == first


def test_threads_may_send_and_receive_at_once():
    t = cx.asarray(some())

    def work(_):
        return all(is_same_memory(travelled(t), t) for _ in range(200))

    assert together(work) == [True] * 8
    assert cx.stats()["tickets"] == 0


# -------------------------------------------------------------------------------- edited, elsewhere


def test_a_ticket_with_any_byte_changed_or_cut_is_no_ticket():
    for target in cx.asarray(some()), cx.put("b", {"x": some()}):
        ticket = target._client._ticket(target)
        edited = [
            ticket[:i] + bytes([ticket[i] ^ bit]) + ticket[i + 1 :]
            for i in range(len(ticket))
            for bit in (1, 0x80, 0xFF)
        ]
        cut = [ticket[:i] for i in range(len(ticket))]
        for wrong in (*edited, *cut, ticket + b"\0", b"", b"x" * 5000):
            with pytest.raises(ValueError, match="ticket"):
                target._client._redeem(wrong)
        target._client._redeem(ticket)
    cx.delete("b")


def test_a_pickle_with_any_byte_changed_is_an_error_or_the_tensor():
    t = cx.asarray(some())
    data = pickle.dumps(t.ref())
    arrived = 0
    for i in range(len(data)):
        edited = data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :]
        try:
            back = pickle.loads(edited)
        except Exception:  # pickle raises whatever the bytes ask for
            continue
        if isinstance(back, cx.Tensor):
            assert is_same_memory(back, t)
            arrived += 1
    assert arrived < len(data) / 4
    assert is_same_memory(pickle.loads(data), t)


def test_it_is_redeemed_at_the_daemon_it_came_from():
    with tempfile.TemporaryDirectory(prefix="tcx-") as folder, d.Daemon(folder) as second:
        other = cx.Client(second.path)
        t = other.asarray(some())
        one, again = travelled(t), travelled(t)
        assert is_same_memory(one, t)
        assert one._client is again._client
        assert one._client.socket == str(second.path)
        assert cx.stats()["storages"] == 0
        with pytest.raises(cx.Stale, match="another daemon"):
            cx.zeros(1)._client._redeem(other._ticket(t))
        one.close(), again.close()
        _default._clients.pop(str(second.path)).close()
        other.close()


def test_a_socket_given_as_a_relative_path_is_found_from_elsewhere(daemon, monkeypatch):
    monkeypatch.chdir(daemon.path.parent)
    with cx.Client(daemon.path.name) as client:
        t = client.asarray(some())
        data = pickle.dumps(t.ref())
        monkeypatch.chdir("/")
        assert is_same_memory(pickle.loads(data), t)


def test_without_a_daemon_it_is_unavailable_and_none_is_started(monkeypatch):
    with tempfile.TemporaryDirectory(prefix="tcx-") as folder:
        with d.Daemon(folder) as second:
            t = cx.Client(second.path).asarray(some())
            data = pickle.dumps(t.ref())
        monkeypatch.setenv("TENSORCX_AUTOSTART", "1")
        with pytest.raises(cx.DaemonUnavailable, match="no tensorcxd answers"):
            pickle.loads(data)
        assert not second.path.exists()
        with d.Daemon(folder), pytest.raises(cx.Stale, match="another daemon"):
            pickle.loads(data)
        _default._clients.pop(str(second.path)).close()


# ------------------------------------------------------------------- the pickler of multiprocessing


CHECK = """
import sys
import tensorcx as cx
import multiprocessing.reduction as r
t = cx.zeros(1 << 20, "uint8")
data = r.ForkingPickler.dumps([t, cx.put("b", {"t": t})])
assert len(data) < 1000, len(data)
one, bundle = r.ForkingPickler.loads(data)
assert one.data_ptr() == bundle["t"].data_ptr() == t.data_ptr()
cx.delete("b")
"""


def check_after(code, **options):
    """Runs `code` in a new process, and then looks whether references travel."""
    subprocess.run([sys.executable, "-c", code + CHECK], check=True, timeout=60, **options)


def test_the_package_does_not_import_multiprocessing_and_is_there_when_somebody_does():
    check_after("import sys, tensorcx\nassert 'multiprocessing' not in sys.modules")
    check_after("import multiprocessing.reduction, tensorcx")


def test_multiprocessing_may_be_reloaded_and_its_import_interrupted():
    check_after("import importlib, tensorcx, multiprocessing.reduction as r; importlib.reload(r)")
    check_after("""
import sys, tensorcx
sys.modules["array"] = None  # what multiprocessing.reduction needs
try: import multiprocessing.reduction
except ImportError: del sys.modules["array"]
else: raise SystemExit("nothing was interrupted")
""")


def test_a_loader_of_many_modules_loads_the_others_as_before(tmp_path):
    """As that of an application that is one archive."""
    source = Path(multiprocessing.__file__).parent
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for file in source.glob("*.py"):
            archive.write(file, f"multiprocessing/{file.name}")
    check_after(f"""
import sys
sys.path.insert(0, "{tmp_path}/all.zip")
import tensorcx, multiprocessing.reduction, multiprocessing.queues, multiprocessing.pool
assert "all.zip" in multiprocessing.queues.__file__
import inspect
assert "ForkingPickler" in inspect.getsource(multiprocessing.reduction)
""")


def test_other_picklers_still_copy_the_bytes():
    t = cx.asarray(some())
    file = io.BytesIO()
    pickle.Pickler(file).dump(t)
    back = pickle.loads(file.getvalue())
    assert back.storage_id != t.storage_id and back.tolist() == t.tolist()
    assert ForkingPickler.loads(ForkingPickler.dumps(t)).storage_id == t.storage_id
