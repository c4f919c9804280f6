"""Bundles: mappings that are put and got as one."""

import copy
import gc
import pickle
from collections import OrderedDict, UserDict

import numpy as np
import pytest
from arrays import some

import tensorcx as cx

OBSERVATION = {
    "image": some((4, 4, 3), "uint8"),
    "reward": 1.5,
    "camera": {"pose": some((3, 4)), "lens": {"k": [1.0, 2.0]}, "none": {}},
    "done": np.bool_(True),
}


@pytest.fixture
def obs():
    """OBSERVATION, put without a name left behind."""
    bundle = cx.put("obs", OBSERVATION)
    cx.delete("obs")
    return bundle


def as_lists(mapping):
    return {
        key: as_lists(value) if hasattr(value, "items") else np.asarray(value).tolist()
        for key, value in mapping.items()
    }


def test_get_gives_the_mapping_back_in_order():
    put = cx.put("obs", OBSERVATION)
    got = cx.get("obs")
    cx.delete("obs")
    for bundle in (put, got):
        assert isinstance(bundle, cx.Bundle)
        assert list(bundle) == ["image", "reward", "camera", "done"]
        assert as_lists(bundle) == as_lists(OBSERVATION)
        assert (bundle.name, bundle.version) == ("obs", put.version)
    assert got["image"].dtype == np.uint8
    assert isinstance(got["camera"]["lens"], cx.Bundle)


def test_a_bundle_is_a_mapping(obs):
    assert len(obs) == 4
    assert "image" in obs and "nothing" not in obs
    assert obs.get("nothing") is None
    with pytest.raises(KeyError):
        obs["nothing"]
    assert len(obs["camera"]["none"]) == 0
    assert dict(obs).keys() == OBSERVATION.keys()
    assert obs.nbytes == 48 + 8 + 48 + 16 + 1
    assert obs["camera"].nbytes == 48 + 16
    assert obs.is_shared and not obs.readonly


@pytest.mark.parametrize("kind", [dict, OrderedDict, UserDict])
def test_any_mapping_will_do(kind):
    bundle = cx.put("m", kind(a=some(), b=kind()))
    cx.delete("m")
    assert list(bundle) == ["a", "b"]


def test_an_empty_bundle_is_a_bundle():
    cx.put("empty", {})
    assert len(cx.get("empty")) == 0
    cx.delete("empty")


def test_private_arrays_share_one_storage_and_writes_show():
    put = cx.put("obs", OBSERVATION)
    got = cx.get("obs")
    cx.delete("obs")
    assert cx.stats()["storages"] == 1
    assert put["image"].storage_id == got["image"].storage_id == got["camera"]["pose"].storage_id
    put["camera"]["pose"][0, 0] = 99
    assert got["camera"]["pose"].tolist()[0][0] == 99


def test_shared_tensors_are_referred_to():
    t = cx.asarray(some())
    bundle = cx.put("b", {"t": t, "view": np.asarray(t), "private": some()})
    t[0, 0] = 42
    got = cx.get("b")
    cx.delete("b")
    assert got["t"].storage_id == got["view"].storage_id == t.storage_id
    assert got["private"].storage_id != t.storage_id
    assert got["t"].tolist()[0][0] == 42
    t.close()
    bundle.close()
    gc.collect()
    assert got["t"].tolist()[0][0] == 42


def test_a_bundle_of_a_bundle_refers_to_its_tensors(obs):
    outer = cx.put("outer", {"inner": obs, "more": some()})
    cx.delete("outer")
    assert outer["inner"]["image"].storage_id == obs["image"].storage_id
    assert as_lists(outer["inner"]) == as_lists(OBSERVATION)


def test_the_same_memory_twice_is_stored_once():
    weights = some((1024, 256))
    tied = cx.put("tied", {"in": weights, "out": weights, "part": weights[:1]})
    cx.delete("tied")
    assert cx.stats()["bytes"] < 2 * weights.nbytes
    tied["in"][0, 0] = -1
    assert tied["out"].tolist()[0][0] == -1


def test_copy_true_refers_to_nothing():
    t = cx.asarray(some())
    bundle = cx.put("b", {"t": t}, copy=True)
    cx.delete("b")
    t[...] = 0
    assert bundle["t"].tolist() == some().tolist()


def test_a_read_only_bundle_has_read_only_tensors():
    cx.put("b", {"x": {"y": some()}}, readonly=True)
    for bundle in (cx.get("b"), cx.get("b", readonly=True)):
        assert bundle.readonly and bundle["x"]["y"].readonly
    cx.delete("b")


def test_a_tensor_keeps_its_pack_until_it_is_copied(obs):
    image = obs["image"]
    obs.close()
    gc.collect()
    pack = cx.stats()["bytes"]
    assert pack >= 48 + 48
    alone = image.copy()
    image.close()
    assert alone.tolist() == OBSERVATION["image"].tolist()


def test_each_access_is_a_handle_of_its_own(obs):
    with obs["image"] as image:
        assert image.shape == (4, 4, 3)
    assert obs["image"].shape == (4, 4, 3)


def test_after_close_every_access_is_a_clear_error(obs):
    camera, pose = obs["camera"], np.asarray(obs["camera"]["pose"])
    list(obs)
    with obs:
        pass
    actions = [len, list, dict, copy.copy, copy.deepcopy, pickle.dumps]
    actions += [lambda b: b["image"], lambda b: "image" in b, lambda b: cx.put("x", {"b": b})]
    for action in actions:
        with pytest.raises(ValueError, match="the bundle is closed"):
            action(obs)
    for attribute in ("name", "version", "nbytes", "readonly", "is_shared", "storage_id"):
        with pytest.raises(ValueError, match="the bundle is closed"):
            getattr(obs, attribute)
    assert obs.closed and repr(obs) == "Bundle(closed)"
    assert camera["pose"].tolist() == pose.tolist() == some((3, 4)).tolist()


def test_repr_shows_keys_and_name(obs):
    assert repr(obs["camera"]).startswith("Bundle('pose', 'lens', 'none'")
    many = cx.put("many", {str(i): i for i in range(20)})
    cx.delete("many")
    assert "... 12 more" in repr(many)
    assert "name='many'" in repr(many)


def test_a_bundle_cannot_be_made_by_its_class():
    with pytest.raises(TypeError, match="put"):
        cx.Bundle()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda b: pickle.loads(pickle.dumps(b))])
def test_pickle_and_deepcopy_carry_the_bytes(obs, copied):
    other = copied(obs)
    assert as_lists(other) == as_lists(OBSERVATION)
    other["image"][...] = 0
    assert obs["image"].tolist() == OBSERVATION["image"].tolist()


def test_copy_copy_is_another_handle(obs):
    other = copy.copy(obs)
    obs.close()
    assert as_lists(other) == as_lists(OBSERVATION)


@pytest.mark.parametrize(
    ("value", "error", "named"),
    [
        ({"obs": {"image": np.array([None])}}, cx.ExchangeError, "'obs/image': .*object"),
        ({"a": {"b": np.zeros(2, ">f4")}}, cx.ExchangeError, "'a/b': .*>f4"),
        ({"a": "text"}, cx.ExchangeError, "'a': .*<U4"),
        ({"a": [[1], [2, 3]]}, cx.ExchangeError, "'a': "),
        ({1: some()}, TypeError, "keys of a bundle must be str, not int"),
        ({"a": {None: some()}}, TypeError, "keys in 'a' must be str, not None"),
        ({"a\0b": some()}, ValueError, "0 character"),
        ({"a\ud800": some()}, ValueError, r"must be UTF-8: 'a\\ud800'"),
        ({"k" * 70000: some()}, ValueError, "65,?535"),
    ],
    ids=lambda v: repr(v)[:30],
)
def test_a_bad_entry_fails_the_whole_put_and_names_its_path(value, error, named):
    with pytest.raises(error, match=named):
        cx.put("bad", {"good": some()} | value)
    assert not cx.exists("bad")


def test_nesting_without_end_is_refused():
    endless = {}
    endless["again"] = endless
    with pytest.raises(ValueError, match="64 deep"):
        cx.put("endless", endless)


def test_a_closed_tensor_in_a_bundle_names_its_path():
    t = cx.asarray(some())
    t.close()
    with pytest.raises(ValueError, match="closed"):
        cx.put("b", {"a": {"t": t}})


def test_many_entries_are_one_put():
    weights = {f"layer.{i}.weight": np.full((3, i % 5), i, "float32") for i in range(5000)}
    before = cx.stats()["requests"]
    cx.put("model", weights)
    assert cx.stats()["requests"] - before < 10
    got = cx.get("model")
    cx.delete("model")
    assert list(got) == list(weights)
    assert all(np.array_equal(got[key], value) for key, value in weights.items())


def test_a_part_that_is_published_read_only_leaves_its_siblings_writable():
    bundle = cx.put("b", {"x": some(), "y": some()})
    cx.put("x", bundle["x"], readonly=True)
    assert cx.get("x").readonly
    assert not cx.get("b")["x"].readonly and not cx.get("b")["y"].readonly
    cx.put("c", {"x": cx.get("x"), "y": bundle["y"]})
    assert cx.get("c")["x"].readonly and not cx.get("c")["y"].readonly
    for name in cx.names():
        cx.delete(name)


def test_a_view_of_read_only_shared_memory_stays_read_only_when_it_is_put():
    array = np.asarray(cx.put("x", some(), readonly=True))
    assert cx.put("y", array).readonly and not cx.put("z", array, copy=True).readonly
    for name in cx.names():
        cx.delete(name)


def test_the_catalog_counts_the_bytes_that_a_bundle_refers_to():
    weights = cx.zeros((1000, 1000), "float32")
    cx.put("model", {"weights": weights, "bias": np.zeros(10, "float32")})
    assert cx.stat("model")["nbytes"] >= weights.nbytes + 40
    cx.delete("model")
