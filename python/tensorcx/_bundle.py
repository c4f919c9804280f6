"""Bundle: what put() and get() of a mapping give."""

from collections.abc import Iterator, Mapping
from typing import Any

from tensorcx import _core
from tensorcx._ref import Ref

_Tree = dict[str, "int | _Tree"]  # a leaf is the index of a tensor in the library's bundle


class Bundle(_core.Bundle, Mapping[str, Any]):
    """An ordered mapping of str to tensors and further bundles, put and got as one.

    Each access gives a new handle. `close()`, or leaving a `with` block, ends this handle; tensors
    taken from it and their views live on. A tensor keeps the whole storage it is packed in alive.
    Any thread may use it.
    """

    __slots__ = ("__weakref__", "_branch", "_path")
    _branch: _Tree  # set on first use: making a bundle costs nothing per entry
    _path: tuple[str, ...]  # of a part, from the whole; set with _branch

    def _tree(self) -> _Tree:
        if self.closed:
            raise ValueError("the bundle is closed")
        if not hasattr(self, "_branch"):
            self._branch, self._path = _tree_of(self._items()), ()
        return self._branch

    def __getitem__(self, key: str) -> Any:
        """A Tensor, or the Bundle below."""
        found = self._tree()[key]
        if isinstance(found, int):
            return self._tensor(found)
        return self._part(found, (*self._path, key))

    def __iter__(self) -> Iterator[str]:
        return iter(self._tree())

    def __len__(self) -> int:
        return len(self._tree())

    def __contains__(self, key: object) -> bool:
        return key in self._tree()

    @property
    def nbytes(self) -> int:
        """Bytes of all its tensors."""
        return sum(value.nbytes for value in self.values())

    # ------------------------------------------------------------------------------------- handles

    def ref(self) -> Ref:
        """A small object that carries this bundle by reference with any pickler; see Tensor."""
        return Ref(self)

    def __copy__(self) -> "Bundle":
        return self._part(self._tree(), self._path)

    def _part(self, branch: _Tree, path: tuple[str, ...]) -> "Bundle":
        part = self._handle()
        part._branch, part._path = branch, path
        return part

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _rebuild, (_arrays_of(self),)

    def __enter__(self) -> "Bundle":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.closed:
            return "Bundle(closed)"
        parts = [repr(key) for key in self]
        if len(parts) > 8:
            parts[8:] = [f"... {len(parts) - 8} more"]
        if self.name is not None:
            parts.append(f"name={self.name!r}, version={self.version}")
        return f"Bundle({', '.join(parts)})"


def _tree_of(items: list[tuple[tuple[str, ...], bool]]) -> _Tree:
    tree: _Tree = {}
    for index, (path, is_tensor) in enumerate(items):
        branch = tree
        for key in path[:-1] if is_tensor else path:
            below = branch.setdefault(key, {})
            assert isinstance(below, dict)  # the library refuses a key that is both
            branch = below
        if is_tensor:
            branch[path[-1]] = index
    return tree


def _arrays_of(bundle: Bundle) -> dict[str, Any]:
    """What is pickled: arrays, and tensors on a device, which pickle themselves."""

    def one(value: Any) -> Any:
        if isinstance(value, Bundle):
            return _arrays_of(value)
        return value.numpy() if value.device == "cpu" else value

    return {key: one(value) for key, value in bundle.items()}


def _rebuild(arrays: dict[str, Any]) -> Bundle:
    """Unpickles: the bytes go to new shared memory of this process's default daemon."""
    from tensorcx._default import default_client

    return default_client()._bundle(arrays)
