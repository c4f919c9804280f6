"""from_torch and to_torch: the same memory both ways, and errors in the contract's terms."""

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import tensorcx as cx
import torch_tensorcx as bridge

BASE = torch.arange(24, dtype=torch.float32)
EXCHANGED = {
    "float32": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "int32": torch.arange(24, dtype=torch.int32).reshape(2, 3, 4),
    "bool": torch.tensor([True, False, True]),
    "scalar": torch.tensor(3.5),
    "scalar bool": torch.tensor(True),
    "part": BASE.reshape(4, 6)[2],
    "one of many": BASE[5],
    "ones with odd strides": BASE.as_strided((1, 3, 1), (99, 1, 0)),
    "empty": torch.empty(0),
    "empty rows": torch.empty((5, 0), dtype=torch.int32),
    "empty batch": torch.empty((1, 8, 0, 128), dtype=torch.bool),
    "empty with odd strides": torch.empty(0).as_strided((2, 0), (7, 5)),
    "empty and huge": torch.empty((0, 2**40)),
    "parameter": torch.nn.Parameter(torch.ones(3), requires_grad=False),
    "inference": torch.inference_mode()(torch.ones)(3),
}
EACH = pytest.mark.parametrize("x", EXCHANGED.values(), ids=EXCHANGED)
STORED = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
]  # fmt: skip
SHAPES = [(), (3,), (2, 3), (0,), (5, 0), (1, 8, 0, 128), (0, 2**40)]


@pytest.fixture(autouse=True)
def names_go(nothing_left):
    yield
    for name in cx.names():
        cx.delete(name)


def same(x, y):
    return (x.dtype, x.shape) == (y.dtype, y.shape) and torch.equal(x, y)


# ------------------------------------------------------------------------------------ shared memory


@EACH
@pytest.mark.parametrize("copy", [False, None])
def test_both_ways_are_the_same_memory(x, copy):
    shared = bridge.from_torch(x, copy=copy)
    back = bridge.to_torch(shared)
    assert shared.shape == tuple(x.shape) and not shared.is_shared
    assert same(back, x)
    if x.numel():
        assert shared.data_ptr() == back.data_ptr() == x.data_ptr()


def test_each_side_sees_the_writes_of_the_others():
    x = torch.zeros(4)
    shared = bridge.from_torch(x)
    back = bridge.to_torch(shared)
    x[0] = 1
    shared[1] = 2
    back[2] = 3
    np.asarray(shared)[3] = 4
    bridge.to_torch(bridge.from_torch(back)).mul_(10)
    assert x.tolist() == shared.tolist() == back.tolist() == [10, 20, 30, 40]


@EACH
def test_a_copy_is_shared_memory_of_its_own(x):
    copied = bridge.from_torch(x, copy=True)
    assert copied.is_shared
    back = bridge.to_torch(copied)
    assert same(back, x)
    if x.numel():
        assert copied.data_ptr() != x.data_ptr()
        back.zero_()
        assert not same(back, x), "the source has changed with its copy"


@pytest.mark.parametrize("dtype", STORED)
def test_every_dtype_of_shared_memory_comes_out(dtype):
    for shape in SHAPES:
        tensor = cx.full(shape, 1, dtype)
        x = bridge.to_torch(tensor)
        assert x.dtype == getattr(torch, dtype) and tuple(x.shape) == shape
        assert same(x, torch.ones(shape, dtype=x.dtype))
        if x.numel():
            assert x.data_ptr() == tensor.data_ptr()
            x.zero_()
            assert not np.asarray(tensor).any()


def test_memory_born_shared_is_recognised():
    tensor = cx.zeros((4, 6), "float32")
    x = bridge.to_torch(tensor)
    again = bridge.from_torch(x)
    assert again.is_shared and again.storage_id == tensor.storage_id
    row = bridge.from_torch(x[2])
    assert row.storage_id == tensor.storage_id
    put = cx.put("row", x[2], copy=False)  # which raises where it would have to copy
    x[2] = 7
    assert put.tolist() == cx.get("row").tolist() == row.tolist() == [7] * 6


def test_private_memory_is_copied_when_it_is_put():
    x = torch.ones(3)
    cx.put("x", bridge.from_torch(x))
    x.zero_()
    assert bridge.to_torch(cx.get("x")).tolist() == [1, 1, 1]


# ------------------------------------------------------------------------- memory stays where it is


@pytest.mark.parametrize("make", [torch.Tensor.detach, torch.nn.Parameter], ids=["plain", "param"])
def test_a_tensor_that_is_given_other_memory_leaves_the_shared_one(make):
    x = torch.arange(6.0)
    if make is torch.nn.Parameter:
        x = make(x, requires_grad=False)
    shared = bridge.from_torch(x)
    x.data = torch.zeros(6)
    churn = [torch.full((6,), -1.0) for _ in range(100)]
    assert shared.tolist() == [0, 1, 2, 3, 4, 5] and x.tolist() == [0] * 6
    del churn


def test_a_module_that_changes_its_dtype_leaves_the_shared_memory():
    module = torch.nn.BatchNorm1d(3).requires_grad_(False)
    shared = bridge.from_torch(module.weight)
    module.double()
    assert shared.tolist() == [1, 1, 1]


def test_shared_memory_is_not_resized_away():
    x = torch.arange(6.0)
    shared = bridge.from_torch(x)
    for resize in (
        lambda: x.resize_(10**6),
        lambda: x.untyped_storage().resize_(0),
        lambda: bridge.to_torch(shared).resize_(10**6),
        lambda: bridge.to_torch(cx.zeros(3, "float32")).resize_(10**6),
    ):
        with pytest.raises(RuntimeError, match="resiz"):
            resize()
    assert shared.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_copied_tensor_can_be_resized():
    x = torch.arange(6.0)
    bridge.from_torch(x, copy=True)
    x.resize_(1000)


# ------------------------------------------------------------------------------------------ bundles


def test_bundles_go_both_ways_nested():
    x = {"a": torch.arange(3.0), "b": {"c": torch.tensor(True), "none": {}}}
    shared = bridge.from_torch(x)
    assert shared["a"].data_ptr() == x["a"].data_ptr()
    back = bridge.to_torch(cx.put("x", shared))
    assert list(back) == ["a", "b"] and list(back["b"]) == ["c", "none"] and back["b"]["none"] == {}
    assert same(back["a"], x["a"]) and same(back["b"]["c"], x["b"]["c"])
    back["a"][0] = 9
    assert bridge.to_torch(cx.get("x"))["a"].tolist() == [9, 1, 2]


def test_what_was_the_same_memory_stays_so_in_a_bundle():
    w = torch.ones(3)
    back = bridge.to_torch(cx.put("tied", bridge.from_torch({"in": w, "out": w})))
    assert back["in"].data_ptr() == back["out"].data_ptr()


@pytest.mark.parametrize("copy", [False, True])
def test_an_error_in_a_bundle_names_the_entry(copy):
    with pytest.raises(cx.ExchangeError, match=r"^'a/b': .*t\.detach\(\)"):
        bridge.from_torch({"a": {"b": torch.ones(1, requires_grad=True)}}, copy)
    with pytest.raises(TypeError, match=r"^'a/b': .*list"):
        bridge.from_torch({"a": {"b": [1]}}, copy)
    with pytest.raises(TypeError, match=r"^'a': .*int"):
        bridge.to_torch({"a": 1})


# ------------------------------------------------------------------------------------------- errors


class Wrapper(torch.Tensor):
    """Says that it is a tensor, and has its elements elsewhere."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError


def released():
    x = torch.ones(3)
    x.untyped_storage().resize_(0)
    return x


SQUARE = torch.arange(16.0).reshape(4, 4)
COMPLEX = torch.ones(2, dtype=torch.complex64)
REFUSED = {
    "grad": (lambda: torch.ones(2, requires_grad=True), r"t\.detach\(\)"),
    "parameter": (lambda: torch.nn.Linear(2, 2).weight, r"t\.detach\(\)"),
    "computed from grad": (lambda: torch.ones(2, requires_grad=True) * 2, r"t\.detach\(\)"),
    "conjugated": (COMPLEX.conj, r"t\.resolve_conj\(\)"),
    "negated": (lambda: COMPLEX.conj().imag, r"t\.resolve_neg\(\)"),
    "coo": (SQUARE.to_sparse, r"sparse_coo.*t\.to_dense\(\)"),
    "csr": (SQUARE.to_sparse_csr, r"sparse_csr.*t\.to_dense\(\)"),
    "csc": (SQUARE.to_sparse_csc, r"sparse_csc.*t\.to_dense\(\)"),
    "bsr": (lambda: SQUARE.to_sparse_bsr((2, 2)), r"sparse_bsr.*t\.to_dense\(\)"),
    "bsc": (lambda: SQUARE.to_sparse_bsc((2, 2)), r"sparse_bsc.*t\.to_dense\(\)"),
    "mkldnn": (SQUARE.to_mkldnn, r"mkldnn.*t\.to_dense\(\)"),
    "quantised": (
        lambda: torch.quantize_per_tensor(SQUARE, 0.1, 0, torch.qint32),
        r"qint32.*t\.int_repr\(\)",
    ),
    "nested": (
        lambda: torch.nested.nested_tensor([SQUARE, SQUARE], layout=torch.strided),
        r"nested.*t\.unbind\(\)",
    ),
    "meta": (lambda: torch.ones(2, device="meta"), "no memory"),
    "empty meta": (lambda: torch.ones(0, device="meta"), "no memory"),
    "fake": (lambda: FakeTensorMode().from_tensor(SQUARE), "no memory"),
    "wrapper": (lambda: Wrapper(SQUARE), "no memory"),
    "released": (released, "no memory"),
    "int64": (lambda: torch.ones(2, dtype=torch.int64), r"torch\.int64.*cx\.asarray"),
    "bfloat16": (lambda: torch.ones(2, dtype=torch.bfloat16), r"torch\.bfloat16.*t\.float\(\)"),
    "float8": (lambda: torch.ones(2).to(torch.float8_e5m2), r"torch\.float8_e5m2"),
    "complex64": (lambda: COMPLEX, r"torch\.complex64"),
    "bits": (lambda: torch.empty(2, dtype=torch.bits8), r"torch\.bits8"),
    "transposed": (lambda: SQUARE.T, r"strides \(1, 4\).*t\.contiguous\(\)"),
    "expanded": (lambda: torch.ones(1).expand(3), r"strides \(0,\).*t\.contiguous\(\)"),
    "every other": (lambda: SQUARE[:, ::2], r"strides \(4, 2\).*t\.contiguous\(\)"),
    "channels last": (
        lambda: torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last),
        r"t\.contiguous\(\)",
    ),
}


@pytest.mark.filterwarnings("ignore")  # PyTorch's own, on nested, sparse and quantised tensors
@pytest.mark.parametrize("make,words", REFUSED.values(), ids=REFUSED)
def test_what_is_not_exchanged_says_what_to_pass_instead(make, words):
    for copy in False, None, True:
        with pytest.raises(cx.ExchangeError, match=words) as raised:
            bridge.from_torch(make(), copy=copy)
        assert isinstance(raised.value, BufferError) and isinstance(raised.value, ValueError)


@pytest.mark.parametrize("transform", [torch.vmap, torch.func.functionalize])
def test_what_a_transform_passes_is_refused(transform):
    def function(x):
        with pytest.raises(cx.ExchangeError, match="no memory"):
            bridge.from_torch(x)
        return x + 1

    transform(function)(SQUARE)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(2, requires_grad=True).detach(),
        COMPLEX.conj().imag.resolve_neg,
        lambda: SQUARE.to_sparse().to_dense(),
        SQUARE.T.contiguous,
        lambda: torch.ones(2, dtype=torch.bfloat16).float(),
    ],
)
def test_what_the_errors_name_is_taken(make):
    x = make()
    assert bridge.from_torch(x).data_ptr() == x.data_ptr()
    assert cx.asarray(SQUARE.T).tolist() == SQUARE.T.tolist()


@pytest.mark.parametrize("x", [None, 1, [1.0], "x", np.ones(2, np.float32)], ids=repr)
def test_other_objects_are_a_type_error(x):
    with pytest.raises(TypeError, match=type(x).__name__):
        bridge.from_torch(x)
    with pytest.raises(TypeError, match=type(x).__name__):
        bridge.to_torch(x)


def test_each_takes_its_own_kind_only():
    x = torch.ones(2)
    with pytest.raises(TypeError, match="not <class 'tensorcx"):
        bridge.from_torch(bridge.from_torch(x))
    with pytest.raises(TypeError, match=r"not <class 'torch\.Tensor'>"):
        bridge.to_torch(x)


def test_a_read_only_tensor_does_not_come_in():
    cx.put("fixed", torch.ones(3), readonly=True)
    cx.put("free", torch.ones(3))
    for tensor in cx.get("fixed"), cx.get("free", readonly=True), cx.get("fixed")[1:]:
        with pytest.raises(cx.ExchangeError, match=r"read-only.*t\.copy\(\)"):
            bridge.to_torch(tensor)
        assert bridge.to_torch(tensor.copy()).tolist() == tensor.tolist()
    cx.put("bundle", {"a": {"b": torch.ones(3)}}, readonly=True)
    with pytest.raises(cx.ExchangeError, match=r"^'a/b': .*read-only"):
        bridge.to_torch(cx.get("bundle"))


def test_a_closed_tensor_does_not_come_in():
    tensor = cx.zeros(3, "float32")
    tensor.close()
    with pytest.raises(ValueError, match="closed"):
        bridge.to_torch(tensor)
