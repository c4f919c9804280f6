"""Tensors without elements, and scalars, on every way through."""

import numpy as np
import pytest
from helpers import Program, run

SHAPES = [(), (0,), (5, 0), (1, 8, 0, 128), (0, 2**40), (1,)]
DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
]  # fmt: skip

EVERY_WAY = """
import gc
shapes, dtypes = eval(sys.argv[1]), eval(sys.argv[2])
for shape in shapes:
    for dtype in dtypes:
        source = np.ones(shape, dtype)
        made = [cx.empty(shape, dtype), cx.zeros(shape, dtype), cx.asarray(source, copy=True),
                cx.put("zero", source), cx.get("zero"), cx.get("zero").copy()]
        if dtype in ("bool", "int32", "float32"):
            made += [cx.from_dlpack(source), cx.from_dlpack(source, copy=True)]
        for tensor in made:
            assert tensor.shape == shape and tensor.dtype == dtype, (shape, dtype)
            assert tensor.size == source.size and tensor.nbytes == source.nbytes
            for view in np.asarray(tensor), np.from_dlpack(tensor):
                assert view.shape == shape and view.dtype == dtype and view.nbytes == source.nbytes
            assert memoryview(tensor).nbytes == source.nbytes
            if source.size:
                np.asarray(tensor)[...] = 0
                assert tensor.item() == 0
        cx.delete("zero")
        del made, tensor, view
        gc.collect()
        assert cx.stats()["storages"] == 0, (shape, dtype)
"""


def test_shape_and_dtype_survive_every_way(daemon):
    run(EVERY_WAY, SHAPES, DTYPES, socket=daemon.path)


@pytest.mark.parametrize("shape", SHAPES)
def test_another_process_sees_the_same(daemon, shape):
    writer = "cx.put('zero', np.ones(eval(sys.argv[1]), np.int32))"
    reader = """
tensor = cx.get("zero")
assert tensor.shape == eval(sys.argv[1]) and tensor.dtype == np.int32
assert tensor.is_shared and (np.asarray(tensor) == 1).all()
cx.delete("zero")
"""
    for code in writer, reader:
        run(code, shape, socket=daemon.path)


def test_a_bundle_of_nothing_and_a_bundle_with_nothing_in_it(daemon):
    code = """
cx.put("b", {"empty": np.zeros((0, 4), np.float32), "scalar": np.array(7), "none": {}})
bundle = cx.get("b")
assert list(bundle) == ["empty", "scalar", "none"]
assert bundle["empty"].shape == (0, 4) and bundle["scalar"].item() == 7
assert len(bundle["none"]) == 0
cx.put("b", {})
assert len(cx.get("b")) == 0
cx.delete("b")
"""
    run(code, socket=daemon.path)


def test_ten_thousand_empty_tensors_take_no_memory(daemon):
    code = """
kept = [cx.empty((0,), "float32") for _ in range(10_000)]
say("here")
hear()
"""
    with Program(code, socket=daemon.path) as program:
        program.expect("here")
        stats = daemon.stats()
        assert (stats["bytes"], stats["segments"]) == (0, 0)
        program.tell()
        program.finish()


def test_numpy_agrees_that_a_huge_empty_shape_is_legal():
    assert np.empty((0, 2**40), np.uint8).size == 0
