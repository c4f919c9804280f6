"""`tensorcx::linear`: PyTorch's own linear as an operator for inference, on tensors of either kind.

Registered by hand: `torch.library.custom_op` gives the same features for five times the overhead.
"""

from typing import Any, NoReturn

import torch
from torch.nn import functional
from torch.utils.dlpack import from_dlpack

import tensorcx as cx


def linear(
    x: torch.Tensor | cx.Tensor,
    w: torch.Tensor | cx.Tensor,
    bias: torch.Tensor | cx.Tensor | None = None,
) -> torch.Tensor:
    """`x @ w.T + bias` in new memory, for inference: what `torch.nn.functional.linear` computes.

    Shapes: x `(*, in)`, w `(out, in)` or `(in,)`, bias `(out,)` or `()`; the result is `(*, out)`
    or `(*,)`, contiguous. All are float32 on one device, with any strides; under autocast, half
    precision is converted to it. tensorcx tensors, also read-only ones, are used where
    they are. Any thread may call it.

    It is `torch.ops.tensorcx.linear`, one node of a graph in `torch.compile` and `torch.export`.
    It has no derivative: in grad mode it raises `RuntimeError` for what requires grad, as it does
    in transforms of `torch.func`, and for shapes and devices that do not fit. Other dtypes are a
    `TypeError`.
    """
    if not (
        isinstance(x, torch.Tensor)
        and isinstance(w, torch.Tensor)
        and (bias is None or isinstance(bias, torch.Tensor))
    ):
        x, w = _as_torch(x), _as_torch(w)
        bias = None if bias is None else _as_torch(bias)
    return _operator(x, w, bias)  # type: ignore[no-any-return]


def _as_torch(t: torch.Tensor | cx.Tensor) -> torch.Tensor:
    """The same memory, read-only or not: it is only read."""
    if isinstance(t, torch.Tensor):
        return t
    if isinstance(t, cx.Tensor):
        return from_dlpack(t.__dlpack__(max_version=(1, 0)))
    raise TypeError(f"linear takes torch and tensorcx tensors, not {type(t).__name__}")


def _check(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    """Raises unless this is for `linear`. Called with fake tensors, too."""
    grad_mode, device = torch.is_grad_enabled(), x.device
    for t in (x, weight) if bias is None else (x, weight, bias):
        if grad_mode and t.requires_grad:
            raise RuntimeError(
                "linear is for inference only, and an input requires grad: pass t.detach(), or "
                "call it under torch.no_grad() or torch.inference_mode()"
            )
        if t.dtype is not torch.float32:
            raise TypeError(f"linear takes float32, not {t.dtype}: pass t.float()")
        if t.device != device:
            raise RuntimeError(f"linear takes tensors on one device: not {device} and {t.device}")
    if not x.dim() or weight.dim() not in (1, 2) or x.shape[-1] != weight.shape[-1]:
        raise RuntimeError(
            f"linear takes x (*, in) and weight (out, in) or (in,): not {(*x.shape,)} and "
            f"{(*weight.shape,)}"
        )
    if bias is not None and bias.dim() and bias.shape != weight.shape[:-1]:
        raise RuntimeError(
            f"linear with weight {(*weight.shape,)} takes a bias {(*weight.shape[:-1],)} or (): "
            f"not {(*bias.shape,)}"
        )


def _compute(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    _check(x, weight, bias)
    if bias is not None and weight.dim() == 1:  # F.linear refuses it for x of two dimensions
        return functional.linear(x, weight) + bias
    return functional.linear(x, weight, bias)


def _fake(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    _check(x, weight, bias)
    return x.new_empty((*x.shape[:-1], *weight.shape[:-1]))


def _refuse(*_: Any) -> NoReturn:
    raise RuntimeError(
        "linear is for inference only and takes part in no transform of torch.func (grad, jvp, "
        "vmap, ...): there use torch.nn.functional.linear"
    )


_library: Any = torch.library.Library("tensorcx", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(
    "linear(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
for _device in ("CPU", "CUDA"):
    _library.impl("linear", _compute, _device)
    torch.library.register_autocast(
        "tensorcx::linear", _device.lower(), torch.float32, lib=_library
    )
torch.library.register_fake("tensorcx::linear", _fake, lib=_library)
# No autograd kernel stands between: _check raises. It would not see what torch.func differentiates,
# and the derivative would silently be 0; but there this key is passed.
_library.impl("linear", torch.library.fallthrough_kernel, "Autograd")
_library.impl("linear", _refuse, "FuncTorchDynamicLayerBackMode")
_operator = torch.ops.tensorcx.linear.default
