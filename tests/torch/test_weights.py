"""State dicts in one process: what is stored, what a module has after load, what is refused."""

import copy
import io

import numpy as np
import pytest
import torch
from torch import nn

import tensorcx as cx
import torch_tensorcx as bridge

STORED = (
    *(torch.bool, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128),
)


class Model(nn.Module):
    """Tied weights, buffers of both kinds, normalisation, and a layer that keeps its own list."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.norm = nn.BatchNorm1d(8)
        self.rnn = nn.LSTM(8, 8, batch_first=True)
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.full((), 2.0))
        self.register_buffer("table", torch.arange(4.0), persistent=False)

    def forward(self, x):
        seen, _ = self.rnn(self.norm(self.embed(x).transpose(1, 2)).transpose(1, 2))
        return self.head(seen) * self.scale


X = torch.arange(10).reshape(2, 5)


def contents(module):
    """All that a module has: its tensors themselves, and their values."""
    both = [*module.named_parameters(remove_duplicate=False), *module.named_buffers()]
    return {key: (id(t), t.data_ptr(), t.requires_grad, t.tolist()) for key, t in both}


@pytest.fixture
def published():
    """A model whose weights are published as "m"."""
    model = Model().eval()
    bridge.put_state_dict("m", model)
    yield model
    cx.delete("m")


# ---------------------------------------------------------------------------------- a module and it


@torch.no_grad()
def test_a_loaded_module_computes_the_same(published):
    other = Model().eval()
    assert not torch.equal(other(X), published(X))
    result = bridge.load(other, "m")
    assert torch.equal(other(X), published(X))
    assert (result.missing_keys, result.unexpected_keys) == ([], [])


def test_load_copies_nothing(published):
    before = cx.stats()
    first, second = Model(), Model()
    bridge.load(first, "m")
    bridge.load(second, "m")
    assert first.rnn.weight_hh_l0.data_ptr() == second.rnn.weight_hh_l0.data_ptr()
    assert all(cx.is_shared(t) for t in first.state_dict().values())
    with torch.no_grad():
        first.rnn.weight_hh_l0[3, 4] = 42
    assert second.rnn.weight_hh_l0[3, 4] == 42
    assert (cx.stats()["bytes"], cx.stats()["storages"]) == (before["bytes"], before["storages"])


def test_a_snapshot_is_published(published):
    with torch.no_grad():
        published.scale.fill_(7)
    assert bridge.get_state_dict("m")["scale"] == 2
    module = Model()
    bridge.load(module, "m")
    bridge.put_state_dict("again", module)
    module.scale.fill_(8)
    assert bridge.get_state_dict("again")["scale"] == 2
    cx.delete("again")


def test_parameters_and_buffers_stay_what_they_are(published):
    module = Model()
    bridge.load(module, "m")
    assert isinstance(module.norm.weight, nn.Parameter)
    assert type(module.norm.running_mean) is torch.Tensor
    assert not any(p.requires_grad for p in module.parameters())
    assert {key for key, _ in module.named_buffers()} == {k for k, _ in published.named_buffers()}
    assert {k for k, _ in module.named_parameters()} == {k for k, _ in published.named_parameters()}


def test_what_is_not_persistent_and_the_mode_are_untouched(published):
    module = Model().eval()
    module.norm.train()
    table = module.table
    bridge.load(module, "m")
    assert module.table is table
    assert (module.training, module.norm.training) == (False, True)


@torch.no_grad()
def test_a_module_without_memory_gets_it_by_load(published):
    module = Model().eval().to("meta")
    bridge.load(module, "m")
    assert {key for key, t in module.state_dict().items() if t.is_meta} == set()
    assert module.table.is_meta
    assert torch.equal(module(X), published(X))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_module_of_torch_jit():
    bridge.put_state_dict("linear", nn.Linear(2, 3))
    module = torch.jit.script(nn.Linear(2, 3))
    bridge.load(module, "linear")
    assert cx.is_shared(module.weight)
    module.weight.fill_(0)
    assert torch.equal(module(torch.ones(2)), module.bias)
    cx.delete("linear")


def test_the_dtype_is_the_one_that_was_put():
    bridge.put_state_dict("half", nn.Linear(2, 3).half())
    module = nn.Linear(2, 3)
    bridge.load(module, "half")
    assert module.weight.dtype == torch.float16
    cx.delete("half")


def test_load_again_takes_the_new_weights(published):
    module = Model()
    bridge.load(module, "m")
    old = module.scale
    with torch.no_grad():
        published.scale.fill_(5)
    version = bridge.put_state_dict("m", published).version
    assert (module.scale, old) == (2, 2)
    bundle = cx.get("m", newer_than=version - 1)
    bridge.load(module, bundle)
    assert (module.scale, old) == (5, 2)
    with pytest.raises(cx.Timeout):
        bridge.load(module, "m", newer_than=version, timeout=0.01)
    assert module.scale == 5


def test_hooks_of_modules_run(published):
    """A module that renames what older versions called otherwise."""

    def rename(_, state, *__):
        state["gain"] = state.pop("scale")

    class Renamed(Model):
        def __init__(self):
            super().__init__()
            del self.scale
            self.register_buffer("gain", torch.zeros(()))
            self.register_load_state_dict_pre_hook(rename)

    module = Renamed()
    bridge.load(module, "m")
    assert module.gain == 2


def test_a_file_of_safetensors_is_loaded_the_same_way(tmp_path):
    from safetensors.torch import save_file

    source = nn.Linear(2, 3)
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    cx.put_safetensors("file", tmp_path / "w.safetensors")
    module = nn.Linear(2, 3)
    bridge.load(module, "file")
    assert torch.equal(module.weight, source.weight)
    assert cx.is_shared(module.weight.detach())
    cx.delete("file")


# ----------------------------------------------------------------------------------- tied and views


def test_tied_weights_are_stored_once_and_tied_again(published):
    bundle = cx.get("m")
    assert bundle["embed.weight"].data_ptr() == bundle["head.weight"].data_ptr()
    module = Model()
    module.head.weight = nn.Parameter(torch.zeros(10, 8))
    bridge.load(module, "m")
    assert module.head.weight is module.embed.weight
    state = bridge.get_state_dict(bundle)
    assert state["embed.weight"] is state["head.weight"]


def test_what_a_module_ties_stays_tied_when_one_of_the_keys_is_stored(published):
    bridge.put_state_dict("part", published, skip="head.*")
    module = Model()
    result = bridge.load(module, "part", strict=False)
    assert result.missing_keys == ["head.weight"]
    assert module.head.weight is module.embed.weight
    assert torch.equal(module.head.weight, published.head.weight)
    cx.delete("part")


def test_equal_weights_that_are_not_tied_stay_apart():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    for part in module:
        nn.init.ones_(part.weight)
    bridge.put_state_dict("m", module)
    bridge.load(module, "m")
    assert module[0].weight is not module[1].weight
    assert module[0].weight.data_ptr() != module[1].weight.data_ptr()
    cx.delete("m")


def test_parameters_without_elements_are_not_tied():
    module = nn.ParameterList([torch.zeros(0, 2), torch.zeros(0, 2)])
    bridge.put_state_dict("m", module)
    bridge.load(module, "m")
    assert module[0] is not module[1]
    cx.delete("m")


def test_views_of_one_memory_are_so_in_shared_memory():
    base = torch.arange(100.0)
    views = {"all": base, "left": base[1:60], "right": base[50:], "raw": base.view(torch.uint8)[4:]}
    bundle = bridge.put_state_dict("m", views)
    got = bridge.get_state_dict(bundle)
    assert {key: t.data_ptr() - got["all"].data_ptr() for key, t in got.items()} == {
        **{"all": 0, "left": 4, "right": 200, "raw": 4}
    }
    got["left"][50] = -1
    assert got["all"][51] == got["right"][1] == -1
    assert cx.stat("m")["nbytes"] < 2 * base.nbytes  # with what describes the bundle
    cx.delete("m")


def test_views_of_several_widths_are_aligned():
    raw = torch.arange(100, dtype=torch.uint8)
    state = {"bytes": raw[3:], "wide": raw[8:72].view(torch.float64)}
    bridge.put_state_dict("m", state)
    got = bridge.get_state_dict("m")
    assert got["wide"].data_ptr() % 8 == 0
    assert got["wide"].data_ptr() - got["bytes"].data_ptr() == 5
    assert torch.equal(got["wide"].view(torch.uint8), state["wide"].view(torch.uint8))
    cx.delete("m")


def test_tensors_that_touch_but_do_not_overlap_are_aligned_each():
    base = torch.arange(100.0)
    bridge.put_state_dict("m", {"a": base[:7], "b": base[7:20]})
    got = bridge.get_state_dict("m")
    assert [t.data_ptr() % 256 for t in got.values()] == [0, 0]
    assert torch.equal(got["b"], base[7:20])
    cx.delete("m")


def test_the_ties_survive_torch_save(published):
    file = io.BytesIO()
    torch.save(bridge.get_state_dict("m"), file)
    file.seek(0)
    state = torch.load(file)
    assert state["embed.weight"].data_ptr() == state["head.weight"].data_ptr()


# ------------------------------------------------------------------------------------------ entries


@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_dtypes(dtype):
    t = torch.arange(6).reshape(2, 3).to(dtype)
    got = bridge.get_state_dict(bridge.put_state_dict("m", {"t": t}))["t"]
    assert got.dtype == dtype
    assert torch.equal(got, t)
    cx.delete("m")


def base():
    return torch.arange(12.0).reshape(3, 4) * (1 + 2j)


@pytest.mark.parametrize(
    "t",
    [
        base().t(),
        base()[:, 1],
        base()[0, 0].expand(2, 3),
        base().conj(),
        base().conj().imag,
        base().conj().t(),
        torch.empty(0, 3),
        torch.tensor(5.0),
        torch.frombuffer(bytearray(range(17)), dtype=torch.float32, offset=1),
        torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last),
        nn.Parameter(torch.ones(3)),
        torch.ones(3, requires_grad=True) * 2,
    ],
    ids=[
        *("transposed", "column", "expanded", "conjugated", "negated", "both", "empty", "scalar"),
        *("unaligned", "channels_last", "parameter", "result"),
    ],
)
def test_layouts_are_packed_and_views_resolved(t):
    got = bridge.get_state_dict(bridge.put_state_dict("m", {"t": t, "again": t}))
    assert torch.equal(got["t"], t.detach())
    assert got["t"].is_contiguous()
    assert not got["t"].requires_grad
    assert got["t"].data_ptr() == got["again"].data_ptr()
    cx.delete("m")


def test_a_conjugated_view_is_not_taken_for_what_it_views():
    t = base()
    bridge.put_state_dict("m", {"t": t, "conj": t.conj()})
    got = bridge.get_state_dict("m")
    assert torch.equal(got["t"], t)
    assert torch.equal(got["conj"], t.conj())
    cx.delete("m")


def test_arrays_of_numpy_and_dicts_of_entries():
    frozen = np.arange(4)
    frozen.flags.writeable = False
    tree = {
        "model": {"w": torch.ones(2), "none": {}},
        "arrays": {
            "frozen": frozen,
            "reversed": np.arange(3.0)[::-1],
            "swapped": np.arange(3, dtype=">i4"),
        },
    }
    bridge.put_state_dict("m", tree, skip=["arrays.fro*"])
    got = bridge.get_state_dict("m")
    assert list(got) == ["model", "arrays"]
    assert list(got["model"]) == ["w", "none"]
    assert {key: t.tolist() for key, t in got["arrays"].items()} == {
        **{"reversed": [2, 1, 0], "swapped": [0, 1, 2]}
    }
    bridge.put_state_dict("m", tree)
    assert bridge.get_state_dict("m")["arrays"]["frozen"].tolist() == [0, 1, 2, 3]
    cx.delete("m")


def test_the_name_has_the_life_that_was_wanted():
    bridge.put_state_dict("m", {"w": torch.ones(1)}, ttl=100, ephemeral=True)
    entry = cx.stat("m")
    assert entry["ephemeral"]
    assert 0 < entry["ttl"] <= 100
    cx.delete("m")


# ------------------------------------------------------------------------------------------- errors


class WithExtra(nn.Linear):
    def get_extra_state(self):
        return "step 3"

    def set_extra_state(self, state):
        raise AssertionError("nothing to set")


@pytest.mark.filterwarnings("ignore:.*quantize|The PyTorch API of nested")
def test_everything_that_cannot_be_stored_is_named_at_once():
    module = nn.ModuleDict({"ok": nn.Linear(2, 2), "bf": nn.Linear(2, 2).bfloat16()})
    module["extra"] = WithExtra(1, 1)
    state = {
        **module.state_dict(),
        "f8": torch.zeros(2).to(torch.float8_e4m3fn),
        "sparse": torch.eye(2).to_sparse(),
        "quantised": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        "nested": torch.nested.nested_tensor([torch.ones(2)]),
        "meta": torch.empty(2, device="meta"),
        "lazy": nn.LazyLinear(2).weight,
        "masked": np.ma.masked_array([1]),
        "text": np.array(["a"]),
    }
    names = ("bf.weight", "bf.bias", "extra._extra_state", *list(state)[7:])
    shown = names[:10]
    with pytest.raises(cx.ExchangeError, match="skip= leaves some out") as error:
        bridge.put_state_dict("m", {key: state[key] for key in (*shown, "ok.bias")})
    assert [name for name in state if repr(name) in str(error.value)] == list(shown)
    assert "'bf.weight' (torch.bfloat16)" in str(error.value)
    assert "'extra._extra_state' (no torch tensor but str)" in str(error.value)
    with pytest.raises(cx.ExchangeError, match=r"and 1 more$"):
        bridge.put_state_dict("m", state)
    bridge.put_state_dict("m", state, skip=names)
    assert list(cx.get("m")) == ["ok.weight", "ok.bias", "extra.weight", "extra.bias"]
    cx.delete("m")


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ([torch.ones(2)], "a module or a mapping, not list"),
        ({"state": {0: torch.ones(2)}}, r"must be str, not 0 below 'state\.'"),
    ],
)
def test_what_is_no_state_dict(weights, text):
    with pytest.raises(TypeError, match=text):
        bridge.put_state_dict("m", weights)
    assert not cx.exists("m")


def broken(published, **changes):
    """Publishes the model's weights, but with these changes, as "broken"."""
    bridge.put_state_dict("broken", {**published.state_dict(), **changes}, skip="norm.weight")


def test_a_load_that_fails_leaves_the_module_as_it_was(published):
    broken(published, what=torch.ones(1), scale=torch.ones(2))
    module = Model()
    before = contents(module)
    hidden = module.rnn._flat_weights[0]
    with pytest.raises(RuntimeError, match="loading state_dict for Model") as error:
        bridge.load(module, "broken")
    assert 'Missing key(s) in state_dict: "norm.weight"' in str(error.value)
    assert 'Unexpected key(s) in state_dict: "what"' in str(error.value)
    assert "size mismatch for scale" in str(error.value)
    assert contents(module) == before
    assert module.head.weight is module.embed.weight
    assert module.rnn._flat_weights[0] is hidden is module.rnn.weight_ih_l0
    with pytest.raises(RuntimeError, match="size mismatch for scale"):
        bridge.load(module, "broken", strict=False)
    assert contents(module) == before
    cx.delete("broken")


def test_without_strict_the_result_names_the_keys(published):
    broken(published, what=torch.ones(1))
    module = Model()
    kept = module.norm.weight
    result = bridge.load(module, "broken", strict=False)
    assert result.missing_keys == ["norm.weight"]
    assert result.unexpected_keys == ["what"]
    assert module.norm.weight is kept
    assert kept.requires_grad
    assert cx.is_shared(module.norm.bias.detach())
    cx.delete("broken")


def test_what_is_no_weights(published):
    module = Model()
    before = contents(module)
    cx.put("single", np.ones(2))
    cx.put("frozen", {"w": np.ones(2)}, readonly=True)
    with pytest.raises(cx.NotFound):
        bridge.load(module, "nothing")
    with pytest.raises(TypeError, match="'single' is a single tensor"):
        bridge.load(module, "single")
    with pytest.raises(cx.ExchangeError, match="'frozen' are read-only"):
        bridge.get_state_dict("frozen")
    with pytest.raises(TypeError, match="for a name"):
        bridge.get_state_dict(cx.get("m"), newer_than=1)
    assert contents(module) == before
    cx.delete("single"), cx.delete("frozen")


def test_a_copy_of_a_module_is_private(published):
    module = Model()
    bridge.load(module, "m")
    assert not cx.is_shared(copy.deepcopy(module).scale)
