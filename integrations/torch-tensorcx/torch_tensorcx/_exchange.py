"""Tensors of PyTorch as tensors of tensorcx, and back, on the same memory."""

from collections.abc import Mapping
from typing import Any, overload

import torch
from torch.utils.dlpack import from_dlpack

import tensorcx as cx


@overload
def from_torch(t: torch.Tensor, copy: bool | None = ...) -> cx.Tensor: ...
@overload
def from_torch(t: Mapping[str, Any], copy: bool | None = ...) -> dict[str, Any]: ...
def from_torch(
    t: torch.Tensor | Mapping[str, Any], copy: bool | None = False
) -> cx.Tensor | dict[str, Any]:
    """A tensorcx tensor on the memory of `t`; of a mapping of tensors, a dict of them.

    `copy=False` and `copy=None` share: same address, each side sees the other's writes, and the
    memory lives until the last of both is gone. `copy=True` gives memory of the daemon's own. What
    lies in shared memory already is recognised; anything else stays private to this process until
    `cx.put` or a queue copies it.

    Raises `cx.ExchangeError` (a `BufferError` and `ValueError`) for what cannot be exchanged: a
    dtype other than float32, int32 and bool, a layout that is not C-contiguous, a device other than
    the CPU, and tensors that are more than their elements: that require grad, or are conjugated,
    negated, sparse or quantised views. docs/exchange.md is the contract.
    """
    if isinstance(t, Mapping):
        return {key: from_torch(value, copy) for key, value in t.items()}
    refuse_more_than_elements(t)
    return cx.from_dlpack(t, copy=copy)


@overload
def to_torch(t: cx.Tensor) -> torch.Tensor: ...
@overload
def to_torch(t: Mapping[str, Any]) -> dict[str, Any]: ...
def to_torch(t: cx.Tensor | Mapping[str, Any]) -> torch.Tensor | dict[str, Any]:
    """A torch tensor on the memory of `t`, any dtype; of a bundle, a dict, nested as it is.

    It keeps the memory alive. Raises `cx.ExchangeError` for a read-only tensor: PyTorch has no such
    thing and would write through it.
    """
    if isinstance(t, Mapping):
        return {key: to_torch(value) for key, value in t.items()}
    if not isinstance(t, cx.Tensor):
        raise TypeError(f"to_torch takes a tensorcx tensor or bundle, not {type(t).__name__}")
    if t.readonly:
        raise cx.ExchangeError(
            "the tensor is read-only, and PyTorch would write through it: pass t.copy()"
        )
    return from_dlpack(t)


def refuse_more_than_elements(t: torch.Tensor) -> None:
    """Raises for a tensor whose memory alone does not say what it is."""
    if not isinstance(t, torch.Tensor):
        raise TypeError(f"a torch.Tensor was expected, not {type(t).__name__}")
    if t.requires_grad:
        raise cx.ExchangeError("the tensor requires grad: pass t.detach()")
    if t.device.type not in ("cpu", "cuda"):
        raise cx.ExchangeError(f"device {t.device} is not exchanged: the CPU and CUDA device 0 are")
    if t.layout != torch.strided or t.is_nested:
        raise cx.ExchangeError(
            f"layout {t.layout} is not exchanged, only torch.strided: pass t.to_dense()"
        )
    if t.is_quantized:
        raise cx.ExchangeError(
            f"dtype {t.dtype} is quantised and not exchanged: pass t.int_repr() or t.dequantize()"
        )
    if t.is_conj():
        raise cx.ExchangeError("the tensor is a conjugated view: pass t.resolve_conj()")
    if t.is_neg():
        raise cx.ExchangeError("the tensor is a negated view: pass t.resolve_neg()")
