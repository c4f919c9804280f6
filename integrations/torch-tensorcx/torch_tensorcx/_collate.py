"""Batches of a DataLoader, made in shared memory: collate()."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data._utils import collate as default

import tensorcx as cx
from torch_tensorcx._exchange import to_torch

_NUMBERS = (default.collate_float_fn, default.collate_int_fn, default.collate_numpy_scalar_fn)


def collate(batch: Sequence[Any]) -> Any:
    """`default_collate` of PyTorch, whose tensors are made in shared memory.

    For `DataLoader(..., collate_fn=bridge.collate)`; with `install()` a batch then goes from a
    worker to the trainer by reference. Structure, shapes, dtypes and errors are those of
    `default_collate`. Tensors that require grad, differ in dtype, or are not dense CPU tensors are
    left to it. Raises `cx.OutOfMemory` where the daemon has no memory for the batch.
    """
    makers = dict(default.default_collate_fn_map)
    makers.update((kind, _shared(make)) for kind, make in makers.items() if make in _NUMBERS)
    makers[torch.Tensor] = _stack  # arrays become tensors first
    return default.collate(batch, collate_fn_map=makers)


def _stack(batch: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> Any:
    first = batch[0]
    if not _is_dense(first) or any(t.dtype != first.dtype or t.requires_grad for t in batch):
        return default.collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    return torch.stack(list(batch), out=_empty((len(batch), *first.shape), first.dtype))


def _shared(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def make_shared(batch: Sequence[Any], *, collate_fn_map: Any = None) -> torch.Tensor:
        made = make(batch, collate_fn_map=collate_fn_map)
        if not made.is_cpu:  # PyTorch's default device is another
            return made
        return _empty(made.shape, made.dtype).copy_(made)

    return make_shared


def _is_dense(t: torch.Tensor) -> bool:
    return (
        t.layout == torch.strided
        and t.device.type == "cpu"
        and not t.is_nested
        and not t.is_quantized
    )


def _empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Of any dtype: shared memory knows fewer, and holds the bytes of all."""
    flat = cx.empty(math.prod(shape) * dtype.itemsize, "uint8")
    return to_torch(flat).view(dtype).view(shape)
