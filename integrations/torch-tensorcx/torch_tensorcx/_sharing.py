"""Torch tensors on shared memory go through queues by reference: install()."""

from collections.abc import Callable
from multiprocessing import current_process
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions

import tensorcx as cx
from tensorcx._default import client_of
from tensorcx._ref import by_reference, redeem
from torch_tensorcx._exchange import to_torch

_Reduced = tuple[Callable[..., Any], tuple[Any, ...]]


def install() -> None:
    """Lets `multiprocessing` carry torch tensors that lie in shared memory by reference.

    For this process and, with every start method, the children that it starts from now on, and
    theirs; who only receives needs nothing. It is about what `multiprocessing` pickles, PyTorch's
    or Python's own: queues, pipes, arguments of processes, pools, DataLoader workers. Tensors on
    other memory go as they always do. Calling it again does nothing; any thread may.

    Without it PyTorch moves a tensor that it sends to a file of its own: the sender's tensor, too,
    which then no longer is the memory that others share.
    """
    ForkingPickler.register(torch.UntypedStorage, reduce_storage)
    ForkingPickler.register(torch.Tensor, reduce_tensor)
    ForkingPickler.register(torch.nn.Parameter, reduce_tensor)
    # Every process object made here gets it, and takes it along when it is pickled for a fresh one.
    current_process()._config["torch_tensorcx"] = _Installed()  # type: ignore[attr-defined]


class _Installed:
    """Unpickling it calls install()."""

    def __reduce__(self) -> _Reduced:
        return _install_here, ()


def _install_here() -> _Installed:
    install()
    return _Installed()


def reduce_storage(storage: torch.UntypedStorage) -> Any:
    """All tensors are made of storages: of every dtype and layout, parameters and subclasses."""
    shared = shared_tensor(storage)
    if shared is not None:
        return storage_of, by_reference(shared)[1]  # in one step: each object pickled costs
    return reductions.reduce_storage(storage)  # type: ignore[no-untyped-call]


def storage_of(ticket: bytes, socket: str) -> torch.UntypedStorage:
    shared: cx.Tensor = redeem(ticket, socket)
    return to_torch(shared).untyped_storage()


def shared_tensor(storage: torch.UntypedStorage) -> cx.Tensor | None:
    """The bytes of `storage`, if they lie in shared memory."""
    client = storage.device.type == "cpu" and client_of(storage.data_ptr(), storage.nbytes())
    if not client:
        return None
    bytes_of = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
    return client.asarray(bytes_of.numpy(), copy=False)


def reduce_tensor(t: torch.Tensor) -> Any:
    """As PyTorch's own, which forgets that a tensor is a conjugated or negated view.

    Plain tensors take a shorter way: PyTorch's costs more than all the rest.
    """
    if t.layout == torch.strided and t.device.type == "cpu" and not t.is_nested:
        storage = t.untyped_storage()
        if client_of(storage.data_ptr(), storage.nbytes()):
            if t.is_conj():
                return conjugated, (t.conj(),)
            if t.is_neg():
                return negated, (torch._neg_view(t),)
            if type(t) is torch.Tensor and not t.requires_grad and not t.is_quantized:
                return view_of, (storage, t.dtype, t.storage_offset(), tuple(t.shape), t.stride())
    return reductions.reduce_tensor(t)  # type: ignore[no-untyped-call]


def view_of(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
) -> torch.Tensor:
    return torch.empty(0, dtype=dtype, device="cpu").set_(storage, offset, shape, strides)


def conjugated(t: torch.Tensor) -> torch.Tensor:
    return t.conj()


def negated(t: torch.Tensor) -> torch.Tensor:
    return torch._neg_view(t)
