"""multiprocessing carries references: its pickler has a reducer for tensors and bundles.

Importing it takes milliseconds that programs without it need not spend: the reducers are
registered at once where it is imported already, else when somebody does.
"""

import importlib.util
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
    if _MODULE in sys.modules:
        _register(importlib.import_module(_MODULE))  # waits for a thread that imports it now
    else:
        sys.meta_path.insert(0, _Finder())


def _register(module: ModuleType) -> None:
    module.ForkingPickler.register(Tensor, by_reference)
    module.ForkingPickler.register(Bundle, by_reference)


class _Finder:
    """Finds one module, as the other finders do, and has a word when it is loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None:  # an application that was packed without it
            return None
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            execute(module)
            _register(module)

        loader.exec_module = execute_and_register
        return spec
