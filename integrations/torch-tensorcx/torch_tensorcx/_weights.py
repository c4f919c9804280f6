"""State dicts in shared memory: put once, and the modules of many processes run on that copy."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.parameter import is_lazy

import tensorcx as cx
from torch_tensorcx._exchange import has_memory, to_torch

_NAMES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
_DTYPES = {getattr(torch, name): name for name in _NAMES}
_ALIGNMENT = 256

Tree = dict[str, Any]  # a state dict, perhaps with others below


def put_state_dict(
    name: str,
    module_or_dict: torch.nn.Module | Mapping[str, Any],
    *,
    skip: str | Iterable[str] = (),
    ttl: float | None = None,
    ephemeral: bool = False,
) -> cx.Bundle:
    """Publishes the weights of a module, or a state dict, under `name`: a snapshot, copied once.

    Whoever loads next gets these, whoever has loaded keeps what it has. Entries that lie on the
    same memory (tied weights, views) do so in shared memory, too. Elements are packed, conjugated
    and negated views resolved; NumPy arrays and dicts of further entries are taken as well. `skip`
    leaves entries out: their keys, or patterns as in "head.*" (below: the keys joined by ".").
    `ttl`, `ephemeral`: as `cx.put`.

    Raises `cx.ExchangeError` that names all entries that shared memory cannot hold: other dtypes
    (bfloat16, float8), sparse, quantised and meta tensors, and what is no tensor (`_extra_state`).
    """
    tree = module_or_dict
    if isinstance(tree, torch.nn.Module):
        tree = tree.state_dict()
    if not isinstance(tree, Mapping):
        raise TypeError(f"weights are a module or a mapping, not {type(tree).__name__}")
    kept = _without(tree, [skip] if isinstance(skip, str) else list(skip))
    _refuse([(key, why) for key, value in _leaves(kept) if (why := _why_not(value))])
    shared = iter(_copied([_tensor_of(value) for _, value in _leaves(kept)]))
    return cx.put(name, _mapped(kept, lambda _: next(shared)), ttl=ttl, ephemeral=ephemeral)


def get_state_dict(
    weights: str | cx.Bundle, *, timeout: float | None = 0, newer_than: int | None = None
) -> Tree:
    """The tensors of a bundle, by its name or itself, on the shared memory: nothing is copied.

    Entries on the same memory are the same tensor. Any bundle will do, `cx.put_safetensors` makes
    some. They may be written to, and then everybody sees it. `timeout`, `newer_than`: as `cx.get`,
    for a name. Raises `cx.NotFound`, and `cx.ExchangeError` for a read-only bundle.
    """
    bundle = weights
    if not isinstance(bundle, cx.Bundle):
        bundle = cx.get(bundle, timeout=timeout, newer_than=newer_than)
    elif timeout != 0 or newer_than is not None:
        raise TypeError("timeout and newer_than are for a name, not for a bundle that is there")
    if not isinstance(bundle, cx.Bundle):
        raise TypeError(f"{weights!r} is a single tensor, not a bundle of weights")
    if bundle.readonly:
        raise cx.ExchangeError(
            f"the weights {bundle.name!r} are read-only, and PyTorch would write through that:"
            " put them without readonly="
        )
    seen: dict[Any, torch.Tensor] = {}

    def once(t: cx.Tensor) -> torch.Tensor:
        place = (t.data_ptr(), t.dtype, t.shape)
        if not t.nbytes or place not in seen:
            seen[place] = to_torch(t)
        return seen[place]

    return _mapped(bundle, once)


def load(
    module: torch.nn.Module,
    weights: str | cx.Bundle,
    strict: bool = True,
    *,
    timeout: float | None = 0,
    newer_than: int | None = None,
) -> Any:
    """Lets `module` run on shared weights: `module.load_state_dict(..., assign=True)`, no copy.

    Its parameters are new ones then, without grad and of the dtype that was put; modules on the
    meta device get memory thereby. Parameters that were put tied, or that the module ties, are one
    object. `weights`, `timeout`, `newer_than`: as `get_state_dict`. One thread at a time.

    Missing and unexpected keys and other shapes are the `RuntimeError` of `load_state_dict`, and
    the module is as before. Without `strict` its result tells missing and unexpected keys.
    """
    state = get_state_dict(weights, timeout=timeout, newer_than=newer_than)
    before = [(part, dict(part._parameters), dict(part._buffers)) for part in module.modules()]
    try:
        result = module.load_state_dict(state, strict=strict, assign=True)
    except BaseException:
        for part, parameters, buffers in before:
            for key, value in {**parameters, **buffers}.items():
                _set(part, key, value)
        raise
    _tie([(part, key, old) for part, old_ones, _ in before for key, old in old_ones.items()])
    return result


def _tie(parameters: list[tuple[torch.nn.Module, str, torch.nn.Parameter | None]]) -> None:
    """Makes one parameter of the loaded ones that lie in one place, or were one parameter before.

    `parameters`: where each is, and what was there before.
    """
    by_place: dict[Any, torch.nn.Parameter] = {}
    successors: dict[int, torch.nn.Parameter] = {}
    for part, key, old in parameters:
        new = getattr(part, key, None)
        if new is None or new is old:
            continue
        new.requires_grad_(False)
        place = (new.data_ptr(), new.dtype, new.shape) if new.numel() else id(new)
        _set(part, key, by_place.setdefault(place, new))
        successors[id(old)] = by_place[place]
    for part, key, old in parameters:
        if getattr(part, key, None) is old and id(old) in successors:
            _set(part, key, successors[id(old)])


def _set(part: torch.nn.Module, key: str, value: torch.Tensor | None) -> None:
    if getattr(part, key) is not value:
        setattr(part, key, value)  # not in its dicts: recurrent modules want to know


# ------------------------------------------------------------------------------------------- trees


def _without(tree: Mapping[str, Any], patterns: list[str], path: str = "") -> Tree:
    kept: Tree = {}
    for key, value in tree.items():
        if not isinstance(key, str):
            raise TypeError(f"keys of weights must be str, not {key!r} below {path!r}")
        if any(path + key == p or fnmatchcase(path + key, p) for p in patterns):
            continue
        below = isinstance(value, Mapping)
        kept[key] = _without(value, patterns, f"{path}{key}.") if below else value
    return kept


def _leaves(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield path + key, value


def _mapped(tree: Mapping[str, Any], function: Callable[[Any], Any]) -> Tree:
    return {
        key: _mapped(value, function) if isinstance(value, Mapping) else function(value)
        for key, value in tree.items()
    }


# ----------------------------------------------------------------------------------------- entries


def _why_not(value: Any) -> str | None:
    """What makes it impossible to share a value; None if nothing does."""
    if isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray):
        return None if value.dtype.name in _NAMES else f"dtype {value.dtype}"
    if not isinstance(value, torch.Tensor):
        return f"no torch tensor but {type(value).__name__}"
    if is_lazy(value):
        return "not initialised"
    if value.is_quantized:
        return f"quantised, {value.dtype}"
    if value.layout != torch.strided:
        return str(value.layout)
    if value.is_nested:
        return "nested"
    if value.is_meta or not has_memory(value):
        return "without memory: fake, meta, or it wraps others"
    return None if value.dtype in _DTYPES else str(value.dtype)


def _refuse(wrong: list[tuple[str, str]]) -> None:
    if wrong:
        shown = ", ".join(f"{key!r} ({why})" for key, why in wrong[:10])
        more = f" and {len(wrong) - 10} more" if len(wrong) > 10 else ""
        raise cx.ExchangeError(
            f"shared memory cannot hold these entries; skip= leaves some out: {shown}{more}"
        )


def _tensor_of(value: Any) -> torch.Tensor:
    if isinstance(value, np.ndarray):  # in the order and byte order that PyTorch takes
        value = torch.from_numpy(value.astype(value.dtype.newbyteorder("="), order="C"))
    return value.detach()  # type: ignore[no-any-return]


class _Elements(NamedTuple):
    """What a tensor shows. Those that are equal in this show the same memory in the same way."""

    address: int
    dtype: torch.dtype
    shape: torch.Size
    strides: tuple[int, ...]
    is_conj: bool
    is_neg: bool


def _elements_of(t: torch.Tensor) -> _Elements:
    return _Elements(t.data_ptr(), t.dtype, t.shape, t.stride(), t.is_conj(), t.is_neg())


def _copied(tensors: list[torch.Tensor]) -> list[Any]:
    """Arrays with these elements on one piece of shared memory, in the same order."""
    distinct = {_elements_of(t): t for t in tensors}
    places, size = _places_of(distinct)
    memory = cx.empty(size, "uint8").numpy()
    arrays = {}
    for elements, t in distinct.items():
        place = places[elements]
        array = memory[place : place + t.nbytes].view(_DTYPES[t.dtype]).reshape(t.shape)
        torch.from_numpy(array).copy_(t)
        arrays[elements] = array
    return [arrays[_elements_of(t)] for t in tensors]


def _places_of(distinct: dict[_Elements, torch.Tensor]) -> tuple[dict[_Elements, int], int]:
    """Where each goes in new memory, and the size of that. What overlaps will overlap there."""
    places: dict[_Elements, int] = {}
    size = 0
    for group in _overlapping(distinct):
        start = group[0].address
        place = _aligned(size)
        if len(group) > 1:  # of several widths, perhaps: each has to be aligned as it was
            place += start % max(elements.dtype.itemsize for elements in group)
        for elements in group:
            places[elements] = place + elements.address - start
            size = max(size, places[elements] + distinct[elements].nbytes)
    return places, size


def _overlapping(distinct: dict[_Elements, torch.Tensor]) -> Iterator[list[_Elements]]:
    """Groups of those that are plain memory and overlap, by address; anything else is alone."""
    group: list[_Elements] = []
    end = 0
    for elements in sorted(distinct, key=lambda elements: elements.address):
        t = distinct[elements]
        if not _is_plain(t):
            yield [elements]
            continue
        if group and elements.address >= end:
            yield group
            group = []
        group.append(elements)
        end = max(end, elements.address + t.nbytes)
    if group:
        yield group


def _is_plain(t: torch.Tensor) -> bool:
    return t.is_contiguous() and not (t.is_conj() or t.is_neg()) and t.data_ptr() % t.itemsize == 0


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
