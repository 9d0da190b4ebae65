"""Makes it safe to compile Triton's kernels in several threads.

Triton builds a small extension module for the arguments of each kernel, and all these modules bear one name.
When Python is asked for one that it has loaded before, it fills the module that bears the name at that moment
and returns it (`import_find_extension` in CPython's import.c), though it may be another kernel's, whose
launcher a second thread has yet to take out. That kernel is then launched with the other one's arguments:
"function takes exactly 20 arguments (26 given)". So loads have to take turns, and each needs an object of its
own.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

_LOADER = "_load_module_from_path"


@functools.cache
def load_launchers_in_turns() -> None:
    """From now on, in this process. Does nothing without Triton, or where it loads them in another way."""
    if find_spec("triton") is None:
        return
    from triton.runtime import build

    if hasattr(build, _LOADER):
        setattr(build, _LOADER, in_turns(getattr(build, _LOADER)))


def in_turns(load: Callable[[str, str], Any]) -> Callable[[str, str], SimpleNamespace]:
    """Calls `load` in one thread at a time, and gives what the module holds at that moment."""
    lock = threading.Lock()

    def load_alone(name: str, path: str) -> SimpleNamespace:
        with lock:
            return SimpleNamespace(**vars(load(name, path)))

    return load_alone
