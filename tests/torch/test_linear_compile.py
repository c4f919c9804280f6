"""linear in graphs: opcheck, torch.compile, torch.export; equal to eager, one node, any batch."""

import io

import pytest
import torch
import torch.nn.functional as F

import torch_tensorcx as bridge

OPERATOR = torch.ops.tensorcx.linear.default


@pytest.fixture(autouse=True)
def nothing_stays_compiled(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # else a folder in /tmp
    yield
    torch.compiler.reset()


SAMPLES = {
    "contiguous": (torch.randn(2, 3), torch.randn(4, 3), torch.randn(4)),
    "no bias": (torch.randn(5, 2, 3), torch.randn(4, 3)),
    "strided": (torch.randn(3, 2).T, torch.randn(3, 4).T, torch.randn(8)[::2]),
    "expanded": (torch.randn(1, 3).expand(6, 3), torch.randn(4, 1).expand(4, 3)),
    "inner strides": (torch.randn(2, 3, 5).transpose(0, 1), torch.randn(4, 10)[:, ::2]),
    "no rows": (torch.randn(0, 3), torch.randn(4, 3), torch.randn(4)),
    "no features": (torch.randn(2, 0), torch.randn(4, 0), torch.randn(4)),
    "no outputs": (torch.randn(2, 3), torch.randn(0, 3), torch.randn(0)),
    "vectors": (torch.randn(3), torch.randn(4, 3), torch.randn(4)),
    "dot": (torch.randn(3), torch.randn(3), torch.randn(())),
    "rows and a vector": (torch.randn(2, 3), torch.randn(3), torch.randn(())),
    "scalar bias": (torch.randn(2, 3), torch.randn(4, 3), torch.randn(())),
    "ones": (torch.randn(1, 1), torch.randn(1, 1), torch.randn(1)),
}


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_opcheck_finds_nothing(sample):
    results = torch.library.opcheck(OPERATOR, sample)
    assert set(results.values()) == {"SUCCESS"} and len(results) == 4


def test_meta_tensors_give_the_exact_metadata():
    for which, sample in SAMPLES.items():
        real = bridge.linear(*sample)
        meta = bridge.linear(*(t.to("meta") for t in sample))
        assert (meta.shape, meta.stride()) == (real.shape, real.stride()), which
        assert (meta.dtype, meta.device.type) == (torch.float32, "meta")


def model(x, w, bias):
    return torch.relu(bridge.linear(x * 2, w, bias)) + 1


def test_compiled_by_inductor_it_equals_eager():
    def two_layers(x, w, bias):  # nothing else, so that no C++ compiler is needed
        return bridge.linear(bridge.linear(x, w, bias), w.T)

    compiled = torch.compile(
        two_layers, fullgraph=True, dynamic=True, options={"compile_threads": 1}
    )
    w, bias = torch.randn(4, 3), torch.randn(4)
    for x in (torch.randn(8, 3), torch.randn(3, 5).T):
        assert torch.equal(compiled(x, w, bias), two_layers(x, w, bias))


def test_compiled_it_is_one_node_for_every_batch_size():
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=True)
    w, bias = torch.randn(4, 3), torch.randn(4)
    for rows in (8, 2, 5, 100):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(compiled(x, w, bias), model(x, w, bias))
    (graph,) = graphs
    assert sum(node.target is OPERATOR for node in graph.graph.nodes) == 1


@pytest.mark.parametrize("which", ["strided", "no rows", "dot"])
def test_compiled_it_equals_eager_for_odd_inputs(which):
    compiled = torch.compile(bridge.linear, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(*SAMPLES[which]), bridge.linear(*SAMPLES[which]))


def test_compiled_what_requires_grad_is_refused_and_no_grad_works():
    x, w, bias = torch.randn(2, 3), torch.randn(4, 3).requires_grad_(), torch.randn(4)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    plain = compiled(x, w.detach(), bias)
    with pytest.raises(RuntimeError, match=r"pass t\.detach\(\)"):
        compiled(x, w, bias)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert torch.equal(compiled(x, w, bias), plain)


def test_compiled_without_grad_inside_a_model_that_is_trained():
    def frozen_head(x, w, bias):
        with torch.no_grad():
            features = bridge.linear(x, w, bias)
        return (features * x.sum()).sum()

    w, bias = torch.randn(4, 3), torch.randn(4)
    gradients = []
    for function in (frozen_head, torch.compile(frozen_head, backend="aot_eager", fullgraph=True)):
        x = torch.ones(2, 3, requires_grad=True)
        function(x, w, bias).backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)


def test_compiled_under_autocast_the_result_is_float32():
    x, w = torch.randn(2, 3), torch.randn(4, 3)
    compiled = torch.compile(bridge.linear, backend="aot_eager", fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(compiled(x, w), bridge.linear(x, w))


def test_shapes_that_do_not_fit_are_named_while_compiling():
    compiled = torch.compile(bridge.linear, backend="aot_eager", fullgraph=True, dynamic=True)
    with pytest.raises(RuntimeError, match=r"linear takes x \(\*, in\)"):
        compiled(torch.randn(2, 3), torch.randn(4, 5))


def test_a_tensorcx_tensor_is_not_part_of_a_graph_and_breaks_it():
    x, w = torch.randn(2, 3), torch.randn(4, 3)
    shared = bridge.from_torch(w)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(bridge.linear, backend="aot_eager", fullgraph=True)(x, shared)
    compiled = torch.compile(bridge.linear, backend="aot_eager")
    for _ in range(2):
        assert torch.equal(compiled(x, shared), F.linear(x, w))
        w.mul_(2)  # and no value of it is kept


class Layer(torch.nn.Linear):
    def forward(self, x):
        return bridge.linear(x, self.weight, self.bias)


@pytest.mark.parametrize("strict", [False, True])
def test_exported_it_is_one_node_for_every_batch_size(strict):
    layer = Layer(3, 4)
    rows = {"x": {0: torch.export.Dim("rows")}}
    x = torch.randn(2, 3)
    with pytest.raises(RuntimeError, match=r"pass t\.detach\(\)"):
        torch.export.export(layer, (x,), dynamic_shapes=rows, strict=strict)
    with torch.no_grad():
        program = torch.export.export(layer, (x,), dynamic_shapes=rows, strict=strict)
        file = io.BytesIO()
        torch.export.save(program, file)
        file.seek(0)
        loaded = torch.export.load(file)
        assert sum(node.target is OPERATOR for node in loaded.graph.nodes) == 1
        for count in (1, 7):
            x = torch.randn(count, 3)
            assert torch.equal(loaded.module()(x), F.linear(x, layer.weight, layer.bias))
