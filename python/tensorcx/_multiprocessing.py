"""multiprocessing carries references: its pickler has a reducer for tensors and bundles.

Importing it takes milliseconds that programs without it need not spend: the reducers are
registered at once where it is imported already, and whenever somebody imports or reloads it.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from tensorcx._bundle import Bundle
from tensorcx._ref import by_reference
from tensorcx._tensor import Tensor

_MODULE = "multiprocessing.reduction"


def register() -> None:
    sys.meta_path.insert(0, _Finder())
    if _MODULE in sys.modules:
        _register(importlib.import_module(_MODULE))  # waits for a thread that imports it now


def _register(module: ModuleType) -> None:
    module.ForkingPickler.register(Tensor, by_reference)
    module.ForkingPickler.register(Bundle, by_reference)


class _Finder:
    """Finds one module, as the finders after it do, and has a word when it is loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                loader: Any = _Loader(spec.loader)
                spec.loader = loader
                return spec
        return None  # an application that was packed without it


class _Loader:
    """That of the module, which may load other modules, too: it is asked, not changed."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _register(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
