"""from_torch and to_torch: the same memory both ways, and errors in the contract's terms."""

import pytest
import torch

import torch_tensorcx as bridge

EXCHANGED = {
    "float32": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "int32": torch.arange(24, dtype=torch.int32).reshape(2, 3, 4),
    "bool": torch.tensor([True, False, True]),
    "scalar": torch.tensor(3.5),
}
STORED = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]


@pytest.mark.parametrize("x", EXCHANGED.values(), ids=EXCHANGED)
def test_both_ways_are_the_same_memory(x):
    shared = bridge.from_torch(x)
    back = bridge.to_torch(shared)
    assert shared.data_ptr() == back.data_ptr() == x.data_ptr()
    assert (back.dtype, back.shape, back.stride()) == (x.dtype, x.shape, x.stride())
    assert torch.equal(back, x)


def test_the_first_lines_of_the_readme():
    x = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    shared = bridge.from_torch(x)
    assert bridge.to_torch(shared).data_ptr() == x.data_ptr()
