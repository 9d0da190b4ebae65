"""Puts off torch's compiler, which flash-attn 4 and tensors without data import and do not use: seconds.

Functions are marked with `torch.compiler.disable`, which imports `torch._dynamo`, and a mode for fake tensors
reads `torch._dynamo.config`. So the package stands in `sys.modules` with its folder, but without its content,
which is loaded when anything else of it is asked for.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch

_NAME = "torch._dynamo"


class _LatePackage(ModuleType):
    """Becomes the real package with the first attribute that is not there."""

    def __getattr__(self, name: str) -> Any:
        spec = self.__spec__
        if name.startswith("__") or spec is None or spec.loader is None:
            raise AttributeError(name)
        self.__class__ = ModuleType  # type: ignore[assignment]
        spec.loader.exec_module(self)
        return getattr(self, name)


def import_dynamo_late() -> None:
    """From now on, unless it has been imported before."""
    spec = None if _NAME in sys.modules else find_spec(_NAME)
    if spec is None or spec.submodule_search_locations is None:
        return
    package = _LatePackage(_NAME)
    package.__spec__, package.__path__ = spec, spec.submodule_search_locations
    package.__dict__["disable"] = _as_it_is
    sys.modules[_NAME] = package
    torch._dynamo = package


def _as_it_is(function: Any = None, *_: Any, **__: Any) -> Any:
    """A decorator, with arguments or without: what torch.compile never sees needs no protection from it."""
    return function or (lambda decorated: decorated)
