"""put() and get() of tensors on devices: names, versions, bundles, files, and who reads them."""

import threading

import cuda_array
import fakecuda
import numpy as np
import pytest
from cuda_array import Array, seen

import tensorcx as cx

pytestmark = pytest.mark.usefixtures("no_name_left")

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("device", [None, "cuda:0", "cuda:1", "cpu"])
def test_what_is_put_lies_where_it_was_or_where_it_is_sent(device):
    put = cx.put("x", Array.of(VALUES, device=1), device=device)
    got = cx.get("x")
    assert put.device == got.device == (device or "cuda:1")
    assert got.data_ptr() == put.data_ptr()
    assert got.cpu().tolist() == VALUES.tolist()
    assert (got.name, got.version) == ("x", put.version)


def test_memory_of_the_daemon_is_published_as_it_is():
    t = cx.asarray(VALUES, device="cuda:0")
    for shared in (t, cuda_array.from_dlpack(t)):
        assert cx.put("x", shared, copy=False).data_ptr() == t.data_ptr()
    t[0, 0] = 9
    assert seen(cx.get("x"))[0, 0] == 9
    assert cx.put("x", t, copy=True).data_ptr() != t.data_ptr()
    with pytest.raises(cx.ExchangeError, match="copy"):
        cx.put("x", t, copy=False, device="cuda:1")
    with pytest.raises(cx.ExchangeError, match="copy"):
        cx.put("x", Array.of(VALUES), copy=False)


def test_a_new_version_leaves_readers_the_old_one():
    cx.put("x", VALUES, device="cuda:0")
    old = cx.get("x")
    cx.put("x", VALUES + 1, device="cuda:0")
    new = cx.get("x", newer_than=old.version)
    assert (seen(old)[0, 0], seen(new)[0, 0]) == (0, 1)
    with pytest.raises(cx.Timeout):
        cx.get("x", newer_than=new.version, timeout=0.01)


def test_who_waits_gets_it_when_it_is_put():
    got = []
    reader = threading.Thread(target=lambda: got.append(seen(cx.get("x", timeout=30))))
    reader.start()
    cx.put("x", VALUES, device="cuda:0")
    reader.join()
    assert got[0].tolist() == VALUES.tolist()


def test_read_only_is_told_to_consumers():
    cx.put("x", VALUES, device="cuda:0", readonly=True)
    t = cx.get("x")
    assert t.readonly
    assert t.__cuda_array_interface__["data"][1]
    with pytest.raises(cx.ExchangeError, match="read-only"):
        t.__dlpack__(stream=1)  # legacy capsules cannot say so
    assert not t.copy().readonly


def test_what_the_daemon_tells_of_a_name():
    cx.put("x", VALUES, device="cuda:1")
    cx.put("y", VALUES)
    cx.put("z", {"a": VALUES})
    assert [entry["device"] for entry in cx.entries()] == ["cuda:1", "cpu", None]
    assert cx.stat("x")["nbytes"] >= VALUES.nbytes
    assert cx.exists("x")


def test_an_ephemeral_name_and_a_ttl_end_as_on_the_cpu():
    with cx.Client() as other:
        other.put("x", VALUES, device="cuda:0", ephemeral=True)
    fakecuda.d.settle(lambda: not cx.exists("x"))
    cx.put("x", VALUES, device="cuda:0", ttl=0.01)
    fakecuda.d.settle(lambda: not cx.exists("x"))


# ------------------------------------------------------------------------------------------ bundles


def test_a_bundle_may_lie_in_several_places():
    weights = {
        "cpu": VALUES,
        "zero": Array.of(VALUES + 1),
        "nested": {"one": Array.of(VALUES + 2, device=1), "empty": {}, "also cpu": np.int8(3)},
        "shared": cx.asarray(VALUES + 3, device="cuda:0"),
    }
    cx.put("b", weights)
    got = cx.get("b")
    assert list(got) == ["cpu", "zero", "nested", "shared"]
    places = {key: got[key].device for key in ("cpu", "zero", "shared")}
    assert places == {"cpu": "cpu", "zero": "cuda:0", "shared": "cuda:0"}
    assert got["nested"]["one"].device == "cuda:1"
    assert got["nested"]["also cpu"].item() == 3
    assert len(got["nested"]["empty"]) == 0
    assert seen(got["zero"]).tolist() == (VALUES + 1).tolist()
    assert seen(got["nested"]["one"]).tolist() == (VALUES + 2).tolist()
    assert got["shared"].data_ptr() == weights["shared"].data_ptr()
    assert got.is_shared


def test_a_bundle_is_packed_once_per_device():
    before = cx.stats()["storages"]
    many = {f"{i}": Array.of(VALUES + i, device=i % 2) for i in range(20)}
    bundle = cx.put("b", many)
    assert cx.stats()["storages"] - before <= 3  # one per device, and the description
    for i in range(20):
        assert bundle[f"{i}"].device == f"cuda:{i % 2}"
        assert seen(bundle[f"{i}"]).tolist() == (VALUES + i).tolist()
        assert bundle[f"{i}"].data_ptr() % 64 == 0


def test_tied_weights_stay_tied():
    tied = Array.of(VALUES)
    bundle = cx.put("b", {"encoder": tied, "decoder": tied})
    assert bundle["encoder"].data_ptr() == bundle["decoder"].data_ptr()


def test_a_whole_bundle_goes_to_a_device():
    bundle = cx.put("b", {"a": VALUES, "b": {"c": Array.of(VALUES, device=1)}}, device="cuda:0")
    assert (bundle["a"].device, bundle["b"]["c"].device) == ("cuda:0", "cuda:0")
    assert seen(bundle["b"]["c"]).tolist() == VALUES.tolist()


def test_one_entry_keeps_its_pack():
    cx.put("b", {"a": Array.of(VALUES), "b": Array.of(VALUES + 1)})
    entry = cx.get("b")["b"]
    cx.delete("b")
    assert seen(entry).tolist() == (VALUES + 1).tolist()


def test_a_bad_entry_is_named_and_nothing_is_put():
    class Strange(Array):
        def __dlpack_device__(self):
            return (8, 0)

    with pytest.raises(cx.ExchangeError, match=r"'n/bad'.*device"):
        cx.put("b", {"good": Array.of(VALUES), "n": {"bad": Strange.of(VALUES)}})
    assert not cx.exists("b")


def test_a_bundle_is_pickled_with_its_bytes():
    import pickle

    bundle = cx.put("b", {"a": VALUES, "n": {"on": Array.of(VALUES + 1)}})
    again = pickle.loads(pickle.dumps(bundle))
    assert again["a"].tolist() == VALUES.tolist()
    assert again["n"]["on"].device == "cuda:0"
    assert seen(again["n"]["on"]).tolist() == (VALUES + 1).tolist()


# -------------------------------------------------------------------------------------------- files


def test_weights_go_from_a_file_to_a_device_and_back(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    safetensors.save_file({"w": VALUES, "b": VALUES[0]}, tmp_path / "in.safetensors")
    bundle = cx.put_safetensors("model", tmp_path / "in.safetensors", device="cuda:1")
    assert {bundle["w"].device, bundle["b"].device} == {"cuda:1"}
    cx.save_safetensors("model", tmp_path / "out.safetensors")
    written = safetensors.load_file(tmp_path / "out.safetensors")
    assert written["w"].tolist() == VALUES.tolist()
    cx.put("one", bundle["b"])
    cx.save_safetensors("one", tmp_path / "one.safetensors")
    assert safetensors.load_file(tmp_path / "one.safetensors")["tensor"].tolist() == [0, 1, 2]
