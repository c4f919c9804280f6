"""Tensors of PyTorch as tensors of tensorcx, and back, on the same memory."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, overload

import torch
from torch.utils.dlpack import from_dlpack, to_dlpack  # type: ignore[attr-defined]

import tensorcx as cx

_EXCHANGED = (torch.float32, torch.int32, torch.bool)


@overload
def from_torch(t: torch.Tensor, copy: bool | None = ...) -> cx.Tensor: ...
@overload
def from_torch(t: Mapping[str, Any], copy: bool | None = ...) -> dict[str, Any]: ...
def from_torch(
    t: torch.Tensor | Mapping[str, Any], copy: bool | None = False
) -> cx.Tensor | dict[str, Any]:
    """A tensorcx tensor on the memory of `t`; of a mapping, nested or not, a dict of them.

    `copy=False` and `copy=None` share: same address, each side sees the other's writes, and the
    memory lives until the last of both is gone; `t` cannot be resized any more. `copy=True` gives
    memory of the daemon's own. What lies in shared memory already is recognised; anything else
    stays private to this process until `cx.put` or a queue copies it.

    Raises `cx.ExchangeError` (a `BufferError` and `ValueError`) for what cannot be exchanged: a
    dtype other than float32, int32 and bool, a layout that is not C-contiguous, a device that is
    neither the CPU nor CUDA, and tensors that are more than their elements: that require grad, or
    are conjugated, negated, sparse, nested, quantised or fake. docs/exchange.md is the contract.

    On a CUDA device all that the current stream had been given is done when this returns, and
    nothing keeps PyTorch from moving the memory of `t` when it is resized: do not.
    """
    return _of_each(partial(_from_torch, copy=copy), t)  # type: ignore[no-any-return]


@overload
def to_torch(t: cx.Tensor) -> torch.Tensor: ...
@overload
def to_torch(t: Mapping[str, Any]) -> dict[str, Any]: ...
def to_torch(t: cx.Tensor | Mapping[str, Any]) -> torch.Tensor | dict[str, Any]:
    """A torch tensor on the memory of `t`, any dtype; of a bundle, a dict, nested as it is.

    It keeps the memory alive. Raises `cx.ExchangeError` for a read-only tensor: PyTorch has no such
    thing and would write through it.
    """
    if isinstance(t, cx.Tensor):  # to ask whether it is a Mapping takes longer than the rest
        return _to_torch(t)
    return _of_each(_to_torch, t)  # type: ignore[no-any-return]


def _of_each(convert: Callable[[Any], Any], tree: Any, path: tuple[str, ...] = ()) -> Any:
    """Nested mappings with their leaves converted; an error names the leaf."""
    if isinstance(tree, Mapping):
        return {k: _of_each(convert, value, (*path, str(k))) for k, value in tree.items()}
    try:
        return convert(tree)
    except (TypeError, cx.ExchangeError) as error:
        if not path:
            raise
        raise type(error)(f"{'/'.join(path)!r}: {error}") from error


def _from_torch(t: torch.Tensor, copy: bool | None) -> cx.Tensor:
    if not isinstance(t, torch.Tensor):
        raise TypeError(f"a torch.Tensor or a mapping was expected, not {type(t)}")
    objection = _objection(t)
    if objection:
        raise cx.ExchangeError(objection)
    if t.is_cuda:
        return cx.from_dlpack(t.detach(), copy=copy)  # which orders streams
    shared = cx.from_dlpack(_Producer(t), copy=copy)
    if not copy:
        t.numpy()  # which forbids PyTorch to resize the memory, and so to move it
    return shared


class _Producer:
    """A tensor that was looked at already: torch.Tensor.__dlpack__ takes long to do that again."""

    __slots__ = ("_tensor",)

    def __init__(self, t: torch.Tensor) -> None:
        self._tensor = t.detach()  # stays on this memory when `t.data` is set to another

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **_: object) -> Any:
        return to_dlpack(self._tensor)


def _to_torch(t: cx.Tensor) -> torch.Tensor:
    if not isinstance(t, cx.Tensor):
        raise TypeError(f"a tensorcx tensor or bundle was expected, not {type(t)}")
    if t.readonly:
        raise cx.ExchangeError(
            "the tensor is read-only, and PyTorch would write through it: pass t.copy()"
        )
    return from_dlpack(t.__dlpack__())


def _objection(t: torch.Tensor) -> str | None:
    """Why `t` is not exchanged, and what to pass instead; None: it is."""
    if t.is_nested:
        return "the tensor is nested: pass each of t.unbind()"
    if t.layout != torch.strided:
        return f"layout {t.layout} is not exchanged: pass t.to_dense()"
    if t.is_quantized:
        return f"dtype {t.dtype} is quantised: pass t.int_repr() or t.dequantize()"
    if t.requires_grad:
        return "the tensor requires grad: pass t.detach()"
    if t.is_conj():
        return "the tensor is a conjugated view: pass t.resolve_conj()"
    if t.is_neg():
        return "the tensor is a negated view: pass t.resolve_neg()"
    if t.is_meta or not has_memory(t):
        return "the tensor has no memory (it is fake, meta, or wraps others): pass a real one"
    if not (t.is_cpu or t.is_cuda):
        return f"device {t.device} is not exchanged: pass t.cpu()"
    if t.dtype not in _EXCHANGED:
        return (
            f"dtype {t.dtype} is not exchanged, only float32, int32 and bool: pass t.float(), say, "
            "or cx.asarray(t), a copy in shared memory, which knows more dtypes"
        )
    if not t.is_contiguous():
        return (
            f"strides {t.stride()} are not exchanged, only C-contiguous ones: pass t.contiguous(), "
            "or cx.asarray(t), a copy in shared memory"
        )
    return None


def has_memory(t: torch.Tensor) -> bool:
    try:
        return t.data_ptr() != 0 or t.numel() == 0
    except RuntimeError:  # not even a place for it
        return False
