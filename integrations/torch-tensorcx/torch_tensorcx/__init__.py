"""PyTorch tensors in memory that processes share, without copying.

import torch
import torch_tensorcx as bridge

shared = bridge.from_torch(x)     # a tensorcx tensor on the memory of x
y = bridge.to_torch(shared)       # and back: y.data_ptr() == x.data_ptr()
"""

import torch  # noqa: F401  before tensorcx: PyTorch's libraries come first where both load some

from torch_tensorcx._collate import collate
from torch_tensorcx._exchange import from_torch, to_torch
from torch_tensorcx._linear import linear
from torch_tensorcx._sharing import install
from torch_tensorcx._weights import get_state_dict, load, put_state_dict

__version__ = "0.1.0"

__all__ = [
    "collate",
    "from_torch",
    "get_state_dict",
    "install",
    "linear",
    "load",
    "put_state_dict",
    "to_torch",
]
