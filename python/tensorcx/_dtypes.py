"""The dtypes that shared memory knows, by their buffer format."""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from tensorcx._errors import ExchangeError

_NAMES = {
    "?": "bool",
    "b": "int8",
    "h": "int16",
    "i": "int32",
    "l": "int64",
    "B": "uint8",
    "H": "uint16",
    "I": "uint32",
    "L": "uint64",
    "e": "float16",
    "f": "float32",
    "d": "float64",
    "Zf": "complex64",
    "Zd": "complex128",
}

DTYPES: dict[str, np.dtype[Any]] = {format: np.dtype(name) for format, name in _NAMES.items()}
_FORMATS = {dtype: format for format, dtype in DTYPES.items()}
# However a program says it most often, at the cost of one look.
KNOWN: dict[Any, str] = {
    said: format
    for dtype, format in _FORMATS.items()
    for said in (dtype, dtype.name, dtype.str[1:], dtype.type)
} | {bool: "?", int: "l", float: "d", complex: "Zd"}

# What from_dlpack() takes: the exchange contract is narrower than storage.
EXCHANGED = frozenset(map(np.dtype, ("bool", "int32", "float32")))


def format_of(dtype: DTypeLike) -> str:
    """The format of a dtype; ExchangeError for one that shared memory does not know."""
    try:
        return KNOWN[dtype]
    except (KeyError, TypeError):
        pass
    known = np.dtype(dtype)
    if known in _FORMATS:
        return _FORMATS[known]
    if not known.isnative and known.newbyteorder("=") in _FORMATS:
        hint = f"it is byte-swapped; {known.newbyteorder('=')} is not"
    else:
        hint = f"known are {', '.join(_NAMES.values())}"
    raise ExchangeError(f"elements of dtype {known} cannot be shared: {hint}")
