"""linear: equals F.linear, in memory of its own, and refuses by name what it does not take."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from threads import together
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import tensorcx as cx
import torch_tensorcx as bridge

OPERATOR = torch.ops.tensorcx.linear
X_SHAPES = [
    (),
    (0,),
    (1,),
    (3,),
    (2, 3),
    (0, 3),
    (2, 0),
    (1, 1),
    (5, 2, 3),
    (5, 0, 3),
    (2, 1, 4, 3),
]
W_SHAPES = [(), (0,), (1,), (3,), (4, 3), (1, 3), (0, 3), (4, 0), (4, 1), (2, 4, 3)]
BIAS_SHAPES = [None, (), (0,), (1,), (3,), (4,)]
SHAPES = list(itertools.product(X_SHAPES, W_SHAPES, BIAS_SHAPES))


def transposed(x):
    return x.transpose(0, -1).contiguous().transpose(0, -1) if x.dim() else x


def strided(x):
    return torch.stack([x, x + 1], dim=-1)[..., 0]


def expanded(x):
    return x[:1].expand(x.shape) if x.dim() and len(x) else x


def negated(x):
    return torch._neg_view(x)


LAYOUTS = [torch.Tensor.contiguous, transposed, strided, expanded, negated]


def random(shape):
    return None if shape is None else torch.randn(shape)


def is_taken(x, w, bias):
    """F.linear also takes biases that broadcast to the result, or sometimes only seem to."""
    return bias in (None, (), w[:-1]) and bool(x) and len(w) in (1, 2) and x[-1] == w[-1]


def bytes_of(t):
    storage = t.untyped_storage()
    return range(storage.data_ptr(), storage.data_ptr() + storage.nbytes())


def overlap(a, b):
    a, b = bytes_of(a), bytes_of(b)
    return bool(a and b) and max(a.start, b.start) < min(a.stop, b.stop)


def expected(x, w, bias):
    """F.linear; of a weight of one dimension it takes a bias with some x only."""
    return F.linear(x, w) + bias if w.dim() == 1 and bias is not None else F.linear(x, w, bias)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_it_equals_f_linear_and_aliases_nothing(layout):
    torch.manual_seed(0)
    taken = [shapes for shapes in SHAPES if is_taken(*shapes)]
    assert len(taken) > 40
    for shapes in taken:
        inputs = [layout(random(shape)) if shape is not None else None for shape in shapes]
        result = bridge.linear(*inputs)
        assert torch.equal(result, expected(*inputs)), shapes
        assert result.dtype == torch.float32 and result.is_contiguous(), shapes
        assert not any(t is not None and overlap(result, t) for t in inputs), shapes
        storages = {t.untyped_storage()._cdata for t in inputs if t is not None}
        assert result.untyped_storage()._cdata not in storages, shapes


def test_it_refuses_the_shapes_that_f_linear_refuses_and_names_them():
    refused = [shapes for shapes in SHAPES if not is_taken(*shapes)]
    assert len(refused) > 300
    for shapes in refused:
        inputs = [random(shape) for shape in shapes]
        with pytest.raises(RuntimeError, match=r"linear .*takes") as raised:
            bridge.linear(*inputs)
        assert str(shapes[1]) in str(raised.value)
        with pytest.raises(RuntimeError, match=r"linear .*takes"):
            bridge.linear(*(t if t is None else t.to("meta") for t in inputs))
        if shapes[2] is None:  # a bias that broadcasts is refused by us alone
            with pytest.raises((RuntimeError, IndexError)):
                F.linear(*inputs)


def test_inputs_and_outputs_may_share_memory():
    x = torch.randn(3, 3)
    before = x.clone()
    assert torch.equal(bridge.linear(x, x, x[0]), F.linear(before, before, before[0]))
    assert torch.equal(x, before)
    shared = bridge.from_torch(x)
    result = bridge.linear(shared, shared, bridge.to_torch(shared)[0])
    assert not overlap(result, x) and torch.equal(x, before)


class Seen(TorchDispatchMode):
    """Where the inputs of `linear` lie when it is called."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is OPERATOR.default:
            self.addresses = [t.data_ptr() for t in args if t is not None]
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("kinds", list(itertools.product((False, True), repeat=3)))
def test_any_argument_may_be_a_tensorcx_tensor_and_is_not_copied(kinds):
    inputs = [torch.randn(2, 3), torch.randn(4, 3), torch.randn(4)]
    given = [
        bridge.from_torch(t) if is_ours else t for t, is_ours in zip(inputs, kinds, strict=True)
    ]
    with Seen() as seen:
        result = bridge.linear(*given)
    assert seen.addresses == [t.data_ptr() for t in inputs]
    assert torch.equal(result, F.linear(*inputs))


def test_weights_in_shared_memory_may_be_read_only():
    w = torch.randn(4, 3)
    cx.put("w", w.numpy(), readonly=True)
    shared = cx.get("w")
    assert shared.readonly
    x = torch.randn(2, 3)
    with Seen() as seen:
        result = bridge.linear(x, shared)
    assert seen.addresses[1] == np.asarray(shared).ctypes.data
    assert torch.equal(result, F.linear(x, w))
    cx.delete("w")
    del shared
    assert torch.equal(result, F.linear(x, w))


def test_other_dtypes_are_refused():
    x, w = torch.randn(2, 3), torch.randn(4, 3)
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.complex64):
        for inputs in ((x.to(dtype), w), (x, w.to(dtype)), (x, w, torch.zeros(4, dtype=dtype))):
            with pytest.raises(TypeError, match=f"float32, not {dtype}"):
                bridge.linear(*inputs)
    with pytest.raises(TypeError, match=r"float32, not torch\.int64"):
        bridge.linear(cx.asarray(np.zeros((2, 3), "int64")), w)
    with pytest.raises(TypeError, match="not ndarray"):
        bridge.linear(x, w.numpy())
    with pytest.raises(TypeError, match="not list"):
        bridge.linear(x, w, [0.0])


def test_other_devices_and_layouts_are_refused():
    x, w = torch.randn(2, 3), torch.randn(4, 3)
    for inputs in ((x.to("meta"), w), (x, w.to("meta")), (x, w, torch.zeros(4, device="meta"))):
        with pytest.raises(RuntimeError, match=r"one device: not .* and "):
            bridge.linear(*inputs)
    with FakeTensorMode(), pytest.raises(RuntimeError, match="not cuda:0 and cpu"):
        bridge.linear(torch.empty(2, 3, device="cuda"), torch.empty(4, 3))
    for other in (w.to_sparse(), w.to_sparse_csr(), w.to_mkldnn()):
        with pytest.raises(NotImplementedError, match="tensorcx::linear"):
            bridge.linear(x, other)


@pytest.mark.parametrize("call", [bridge.linear, OPERATOR, OPERATOR.default])
def test_what_requires_grad_is_refused_when_it_is_called(call):
    plain = [torch.randn(2, 3), torch.randn(4, 3), torch.randn(4)]
    for i in range(3):
        inputs = list(plain)
        inputs[i] = plain[i].clone().requires_grad_()
        with pytest.raises(RuntimeError, match=r"requires grad: pass t\.detach\(\)"):
            call(*inputs)
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                result = call(*inputs)
            assert torch.equal(result, F.linear(*plain)) and not result.requires_grad
        inputs[i] = inputs[i].detach()
        assert not call(*inputs).requires_grad


@pytest.mark.parametrize("call", [bridge.linear, OPERATOR, OPERATOR.default])
def test_transforms_of_torch_func_are_refused_rather_than_wrong(call):
    x, w = torch.randn(2, 3), torch.randn(4, 3)

    def total(x):
        return call(x, w).sum()

    for transform in (
        torch.func.grad(total),
        torch.func.jacrev(total),
        torch.func.jacfwd(total),
        torch.vmap(total),
        lambda x: torch.func.jvp(total, (x,), (x,)),
        lambda x: torch.func.vjp(total, x),
    ):
        with pytest.raises(RuntimeError, match=r"no transform of torch\.func"):
            transform(x)


def test_parameters_of_a_frozen_module_are_taken():
    layer = torch.nn.Linear(3, 4).requires_grad_(False)
    x = torch.randn(2, 3)
    result = bridge.linear(x, layer.weight, layer.bias)
    assert type(result) is torch.Tensor and torch.equal(result, layer(x))


def test_the_result_is_float32_under_autocast():
    x, w = torch.randn(2, 3), torch.randn(4, 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert F.linear(x, w).dtype == torch.bfloat16
        assert torch.equal(bridge.linear(x, w), OPERATOR(x, w))
        result = bridge.linear(x.bfloat16(), w)
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16
        assert F.linear(x, w).dtype == torch.bfloat16
    assert torch.equal(result, F.linear(x.bfloat16().float(), w))


def test_defaults_of_dtype_and_device_do_not_matter():
    x, w, bias = torch.randn(2, 3), torch.randn(3), torch.randn(())
    plain = bridge.linear(x, w, bias)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            result = bridge.linear(x, bridge.from_torch(w), bias)
    finally:
        torch.set_default_dtype(torch.float32)
    assert result.dtype == torch.float32 and torch.equal(result, plain)


def test_threads_may_call_it_at_the_same_time():
    x, w = torch.randn(64, 64), torch.randn(64, 64)
    shared = bridge.from_torch(w)

    def work(_):
        return all(torch.allclose(bridge.linear(x, shared), F.linear(x, w)) for _ in range(50))

    assert together(work, 4) == [True] * 4
