"""Files of safetensors: into shared memory, and out of it.

In: one shared tensor is made for all that the file has, and each tensor's bytes are read straight
to their place in it; the bundle then refers to these places. Nothing of it is private memory. The
file is read, not mapped: one that is cut short meanwhile is an error here, and no bus error. In
files tensors lie where the header happens to end, in memory at multiples of 256 bytes, as the
library's own and as JAX needs them for zero-copy.

Out: the safetensors package writes from shared memory to a new file that then replaces the old one.

That package also checks the header. Its errors become the built-in ones here.
"""

import importlib
import math
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from io import FileIO
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tensorcx._bundle import Bundle
from tensorcx._errors import ExchangeError
from tensorcx._sources import Array
from tensorcx._tensor import Tensor

if TYPE_CHECKING:
    from tensorcx._client import Client

FilePath = str | os.PathLike[str]

_NAMES = {
    "BOOL": "bool",
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "C64": "complex64",
}
_DTYPES: dict[str, np.dtype[Any]] = {code: np.dtype(name) for code, name in _NAMES.items()}

_ALIGNMENT = 256
_PIECE = 16 << 20  # bytes read at once: between two reads Ctrl-C comes through


class _Entry(NamedTuple):
    """One tensor of a file."""

    key: str
    code: str  # dtype, as the file spells it
    shape: list[int]
    offset: int  # in the file
    nbytes: int


def read(client: "Client", path: FilePath, skip: str | Iterable[str]) -> dict[str, Array]:
    """The tensors of a file as arrays on one piece of shared memory."""
    if not stat.S_ISREG(os.stat(path).st_mode):  # to open a pipe might wait
        raise ValueError(f"{os.fspath(path)!r} is not a regular file")
    with open(path, "rb", buffering=0) as file:
        entries = list(_without(_entries_of(file), skip))
        _refuse(
            [(entry.key, entry.code) for entry in entries if entry.code not in _DTYPES],
            "cannot be shared; skip= leaves tensors out",
        )
        sizes = [-(-entry.nbytes // _ALIGNMENT) * _ALIGNMENT for entry in entries]
        memory = client.empty(sum(sizes), "uint8").numpy()
        arrays = {}
        place = 0
        for entry, size in zip(entries, sizes, strict=True):
            elements = memory[place : place + entry.nbytes]
            arrays[entry.key] = _shaped(elements, entry)
            _fill(elements, file, entry.offset)
            place += size
    return arrays


def write(found: Tensor | Bundle, path: FilePath) -> None:
    """Writes a tensor, under the key "tensor", or the tensors of a bundle to a file."""
    package = _package()
    arrays = {"tensor": found.cpu().numpy()} if isinstance(found, Tensor) else _flat(found)
    known = _DTYPES.values()
    _refuse(
        [(key, str(array.dtype)) for key, array in arrays.items() if array.dtype not in known],
        "have no place in a safetensors file",
    )
    specs = {
        key: package.TensorSpec(
            dtype=array.dtype.name,
            shape=array.shape,
            data_ptr=array.ctypes.data,
            data_len=array.nbytes,
        )
        for key, array in arrays.items()
    }
    target = os.path.realpath(path)  # a link stays one
    temporary = f"{target}.{secrets.token_hex(4)}.tmp"
    try:
        with open(temporary, "xb") as file:
            mode = _mode_of(target, file.fileno())
        package.serialize_file(specs, temporary)  # it makes private files
        os.chmod(temporary, mode)
        os.replace(temporary, target)
    except BaseException as error:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        if isinstance(error, package.SafetensorError):
            raise OSError(f"{os.fspath(path)!r} cannot be written: {error}") from error
        raise


def _mode_of(target: str, new_file: int) -> int:
    """Of the file that will be replaced, else of any new one."""
    mode = os.fstat(new_file).st_mode
    with suppress(FileNotFoundError):
        mode = os.stat(target).st_mode
    return stat.S_IMODE(mode)


def _package() -> Any:
    try:
        package = importlib.import_module("safetensors")
        package.TensorSpec  # noqa: B018, since 0.8
    except (ImportError, AttributeError) as error:
        raise ImportError(
            "safetensors files need the package safetensors, 0.8 or newer:"
            " pip install 'tensorcx[safetensors]'"
        ) from error
    return package


def _refuse(wrong: list[tuple[str, str]], why: str) -> None:
    """One error for all tensors of these keys and dtypes."""
    if wrong:
        shown = ", ".join(f"{key!r} ({dtype})" for key, dtype in wrong[:5])
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        dtypes = ", ".join(sorted({dtype for _, dtype in wrong}))
        raise ExchangeError(f"elements of dtype {dtypes} {why}: {shown}{more}")


# ------------------------------------------------------------------------------------------ reading


def _entries_of(file: FileIO) -> Iterator[_Entry]:
    """What the header says, in the order of the data.

    The package checks that the tensors cover the data exactly, without overlap or hole: so their
    sizes tell where they lie.
    """
    package = _package()
    try:
        # By descriptor: a file that is replaced meanwhile is another one.
        opened = package.safe_open(f"/proc/self/fd/{file.fileno()}", "np", backend="pread")
        with opened as header:
            parts = [(key, header.get_slice(key)) for key in header.offset_keys()]
            described = [(key, part.get_dtype(), part.get_shape()) for key, part in parts]
    except package.SafetensorError as error:
        raise ValueError(f"{file.name!r} is not a valid safetensors file: {error}") from error
    offset = 8 + int.from_bytes(os.pread(file.fileno(), 8, 0), "little")
    for key, code, shape in described:
        nbytes = math.prod(shape) * _bits_of(code) // 8
        yield _Entry(key, code, shape, offset, nbytes)
        offset += nbytes
    if offset != os.fstat(file.fileno()).st_size:
        raise ValueError(f"{file.name!r} changed while it was read, or is of an unknown version")


def _bits_of(code: str) -> int:
    """Of one element; also of those that cannot be shared: what follows them has to be found."""
    digits = re.search(r"\d+", code)  # BOOL has none; F8_E4M3, BF16
    return int(digits[0]) if digits else 8


def _without(entries: Iterable[_Entry], skip: str | Iterable[str]) -> Iterator[_Entry]:
    patterns = [skip] if isinstance(skip, str) else list(skip)
    for entry in entries:
        if not any(entry.key == p or fnmatchcase(entry.key, p) for p in patterns):
            yield entry


def _shaped(elements: Array, entry: _Entry) -> Array:
    try:
        return elements.view(_DTYPES[entry.code]).reshape(entry.shape)
    except ValueError as error:  # too many dimensions
        raise ExchangeError(f"{entry.key!r}: {error}") from error


def _fill(elements: Array, file: FileIO, offset: int) -> None:
    """Reads to all of `elements` from the file's bytes at `offset` on."""
    rest = elements.data
    while rest:
        count = os.preadv(file.fileno(), [rest[:_PIECE]], offset)
        if count == 0:
            raise ValueError(f"{file.name!r} was cut short while it was read")
        rest = rest[count:]
        offset += count


# ------------------------------------------------------------------------------------------ writing


def _flat(bundle: Bundle) -> dict[str, Array]:
    """The tensors of a bundle by their joined keys."""
    arrays: dict[str, Array] = {}
    for key, array in _leaves(bundle):
        if key in arrays:
            raise ValueError(f"two tensors of the bundle would have the key {key!r}")
        if key == "__metadata__":
            raise ValueError("no tensor of a safetensors file can have the key '__metadata__'")
        arrays[key] = array
    return arrays


def _leaves(bundle: Bundle, prefix: str = "") -> Iterator[tuple[str, Array]]:
    for key, value in bundle.items():
        if isinstance(value, Bundle):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value.cpu().numpy()
