"""Tensor: a handle on elements in shared memory, or in private memory that came by DLPack."""

import operator
import pickle
from collections.abc import Iterator
from types import EllipsisType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from tensorcx import _core
from tensorcx._arguments import device_text
from tensorcx._dtypes import DTYPES
from tensorcx._errors import ExchangeError
from tensorcx._ref import Ref
from tensorcx._sources import Array, address_of, array_on, as_array, is_on_cuda, source_of

_Index = int | slice | EllipsisType | None
Key = _Index | tuple[_Index, ...]


class Tensor(_core.Tensor):
    """A handle on elements in shared memory: dtype, shape, and where they lie.

    It is an array to everything that knows DLPack (`np.from_dlpack(t)`, `torch.from_dlpack(t)`) or
    the buffer protocol (`np.asarray(t)`, `memoryview(t)`); none of these copies, and all of them
    keep the memory alive. Elements are always in C order. `close()`, or leaving a `with` block,
    ends the handle, not the views. Any thread may use it; nothing locks the elements.

    On a CUDA device it is an array to what knows DLPack there (`torch.from_dlpack(t)`) or
    `__cuda_array_interface__`; NumPy and buffers need `t.cpu()`, a copy.
    """

    __slots__ = ("__weakref__",)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements, a numpy.dtype."""
        return DTYPES[self._format]

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    # ------------------------------------------------------------------------------------ elements

    def numpy(self) -> Array:
        """A NumPy array on this memory; writable unless the tensor is read-only.

        BufferError on a CUDA device: `t.cpu().numpy()` is an array on a copy.
        """
        return array_on(self)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3, for what knows no DLPack; on the CPU an AttributeError."""
        if self.device == "cpu":
            raise AttributeError("a tensor on the CPU has no __cuda_array_interface__")
        return {**_places(self), "stream": None}  # nothing is under way, so nothing to wait for

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        array = self.numpy()
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                raise ExchangeError(f"{array.dtype} to {np.dtype(dtype)} needs a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def item(self) -> Any:
        """The only element, as a Python scalar."""
        return self.numpy().item()

    def tolist(self) -> Any:
        """The elements as nested lists of Python scalars."""
        return self.numpy().tolist()

    def __len__(self) -> int:
        if self.ndim == 0:
            raise TypeError("a scalar has no length")
        return self.shape[0]

    def __iter__(self) -> "Iterator[Tensor]":
        if self.ndim == 0:
            raise TypeError("a scalar has no parts to go through")
        return (self[i] for i in range(len(self)))

    # As NumPy: numbers from one element, an error from several, comparison of each element.

    def __bool__(self) -> bool:
        return bool(self.numpy())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self.ndim or self.dtype.kind not in "iu":  # bytearray(t) asks this first
            raise TypeError("only an integer scalar can be an index")
        return operator.index(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else repr(self)

    def __eq__(self, other: object) -> Any:
        return self.numpy() == _comparable(other)

    def __ne__(self, other: object) -> Any:
        return self.numpy() != _comparable(other)

    __hash__ = _core.Tensor.__hash__

    def __getitem__(self, key: Key) -> "Tensor":
        """A tensor on part of this memory. Parts that are not contiguous: index t.numpy()."""
        keys = key if isinstance(key, tuple) else (key,)
        if not all(map(_is_basic, keys)):
            raise TypeError(
                f"an index is of ints, slices, ... and None, not {key!r}; t.numpy() takes more"
            )
        # With "..." even a single element comes as an array, on the same memory.
        part = self._indexed()[keys if Ellipsis in keys else (*keys, ...)]
        if not part.flags.c_contiguous:
            view = f"; t.numpy()[{_show(keys)}] is a view" if self.device == "cpu" else ""
            raise ExchangeError(f"t[{_show(keys)}] is not contiguous{view}")
        offset = address_of(part) - self.data_ptr() if part.size else 0
        return self._view(part.shape, offset)

    def __setitem__(self, key: Any, value: Any) -> None:
        if self.readonly:
            raise ValueError("the tensor is read-only; t.copy() can be written to")
        is_here = not is_on_cuda(value)
        if is_here and hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray):
            value = as_array(value)
        if self.device == "cpu" and is_here:
            self.numpy()[key] = value
            return
        part = self[key]
        if is_here:  # as NumPy converts and repeats it, and then in one piece to the device
            array: Array = np.empty(part.shape, part.dtype)
            array[...] = value
            value = array
        part._fill(source_of(value))

    def _indexed(self) -> Array:
        """An array to be indexed, as NumPy does it; on a device its elements are out of reach."""
        return self.numpy() if self.device == "cpu" else np.asarray(_Places(self))

    # ------------------------------------------------------------------------------------- handles

    def copy(self) -> "Tensor":
        """A new tensor in shared memory of its own, on the same device."""
        return self._client._put(None, self, _core.PUT_COPY, 0.0, None, None)

    def to(self, device: str) -> "Tensor":
        """This tensor on `device`, "cpu" or "cuda:0": another handle if it is there, else a copy.

        A copy from a device waits for all that this process does there.
        """
        if self.device == device_text(device):
            return self._handle()
        return self._client._put(None, self, _core.PUT_COPY, 0.0, device, None)

    def cpu(self) -> "Tensor":
        """As to("cpu")."""
        return self.to("cpu")

    def ref(self) -> Ref:
        """A small object that carries this tensor by reference with any pickler.

        It unpickles to the tensor, in this process or another one on this machine: the same memory.
        Pickling the tensor itself copies the bytes, except by multiprocessing, which carries the
        reference anyway. A view keeps and carries its whole storage; `t.copy()` lets go.
        """
        return Ref(self)

    def __copy__(self) -> "Tensor":
        return self._handle()

    def __deepcopy__(self, memo: Any) -> "Tensor":
        return self.copy()

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        here = self.cpu()
        data = pickle.PickleBuffer(here) if protocol >= 5 else memoryview(here).tobytes()
        return _rebuild, (self.dtype.str, self.shape, data, self.device)

    def __enter__(self) -> "Tensor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.closed:
            return "Tensor(closed)"
        parts = [f"shape={self.shape}, dtype={self.dtype}"]
        if self.device != "cpu":
            parts.append(f"device={self.device!r}")
        if self.name is not None:
            parts.append(f"name={self.name!r}, version={self.version}")
        if self.readonly:
            parts.append("readonly")
        if not self.storage_id:
            parts.append("private")
        return f"Tensor({', '.join(parts)})"


class _Places:
    """Says where a tensor's elements are, to NumPy: which looks at none when it makes a view."""

    def __init__(self, tensor: Tensor) -> None:
        self.__array_interface__ = _places(tensor)


def _places(tensor: Tensor) -> dict[str, Any]:
    """As array interfaces have it."""
    return {
        "version": 3,
        "shape": tensor.shape,
        "typestr": tensor.dtype.str,
        "data": (tensor.data_ptr() if tensor.size else 0, tensor.readonly),
        "strides": None,
    }


def _comparable(other: object) -> object:
    return other.numpy() if isinstance(other, Tensor) else other


def _is_basic(index: object) -> bool:
    """Whether NumPy answers this index with a view."""
    return (
        index is None
        or index is Ellipsis
        or isinstance(index, slice)
        or (isinstance(index, int | np.integer) and not isinstance(index, bool))
    )


def _show(keys: tuple[_Index, ...]) -> str:
    def one(key: _Index) -> str:
        if key is Ellipsis:
            return "..."
        if not isinstance(key, slice):
            return str(key)
        ends = ":".join("" if end is None else str(end) for end in (key.start, key.stop))
        return ends if key.step is None else f"{ends}:{key.step}"

    return ", ".join(map(one, keys))


def _rebuild(dtype: str, shape: tuple[int, ...], data: Any, device: str = "cpu") -> Tensor:
    """Unpickles: the bytes go to new shared memory of this process's default daemon."""
    from tensorcx._default import default_client

    array: Array = np.ndarray(shape, dtype, buffer=data)
    return default_client().asarray(array, copy=True, device=device)
