"""Tensor: a handle on elements in shared memory, or in private memory that came by DLPack."""

import operator
import pickle
from collections.abc import Iterator
from types import EllipsisType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from tensorcx import _core
from tensorcx._dtypes import DTYPES
from tensorcx._errors import ExchangeError
from tensorcx._ref import Ref
from tensorcx._sources import Array, address_of, as_array

_Index = int | slice | EllipsisType | None
Key = _Index | tuple[_Index, ...]


class Tensor(_core.Tensor):
    """A handle on elements in shared memory: dtype, shape, and where they lie.

    It is an array to everything that knows DLPack (`np.from_dlpack(t)`, `torch.from_dlpack(t)`) or
    the buffer protocol (`np.asarray(t)`, `memoryview(t)`); none of these copies, and all of them
    keep the memory alive. Elements are always in C order. `close()`, or leaving a `with` block,
    ends the handle, not the views.
    """

    __slots__ = ("__weakref__",)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements, a numpy.dtype."""
        return DTYPES[self._format]

    # ------------------------------------------------------------------------------------ elements

    def numpy(self) -> Array:
        """A NumPy array on this memory; writable unless the tensor is read-only."""
        return np.asarray(memoryview(self))

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
        return len(self.numpy())

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
        part = self.numpy()[keys if Ellipsis in keys else (*keys, ...)]
        if not part.flags.c_contiguous:
            raise ExchangeError(
                f"t[{_show(keys)}] is not contiguous; t.numpy()[{_show(keys)}] is a view"
            )
        offset = address_of(part) - self.data_ptr() if part.size else 0
        return self._view(part.shape, offset)

    def __setitem__(self, key: Any, value: Any) -> None:
        if self.readonly:
            raise ValueError("the tensor is read-only; t.copy() can be written to")
        if hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray):
            value = as_array(value)
        self.numpy()[key] = value

    # ------------------------------------------------------------------------------------- handles

    def copy(self) -> "Tensor":
        """A new tensor in shared memory of its own."""
        return self._client._put(None, self, _core.PUT_COPY, 0.0)

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
        data = pickle.PickleBuffer(self) if protocol >= 5 else memoryview(self).tobytes()
        return _rebuild, (self.dtype.str, self.shape, data)

    def __enter__(self) -> "Tensor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._closed:
            return "Tensor(closed)"
        parts = [f"shape={self.shape}, dtype={self.dtype}"]
        if self.name is not None:
            parts.append(f"name={self.name!r}, version={self.version}")
        if self.readonly:
            parts.append("readonly")
        if not self.storage_id:
            parts.append("private")
        return f"Tensor({', '.join(parts)})"


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


def _rebuild(dtype: str, shape: tuple[int, ...], data: Any) -> Tensor:
    """Unpickles: the bytes go to new shared memory of this process's default daemon."""
    from tensorcx._default import default_client

    array: Array = np.ndarray(shape, dtype, buffer=data)
    return default_client().asarray(array, copy=True)
