"""A library of kernels in the CuTe DSL, compiled in processes beside the start-up, which has torch to load.

The DSL's compiler is Python and holds the interpreter for seconds a kernel, so threads would not do. It needs
no GPU: tensors without data stand for real ones. What it makes lies in a cache on disk, by a key that follows
from the call alone, where the serving process finds it. If anything fails here, that process compiles at
first use.
"""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels.compiler_process import CompilerProcess
from kernels.gpu import Gpu, find_gpu

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

logger = logging.getLogger(__name__)

_HOPPER = 9  # the major compute capability; no other has been tried


class CuteLibrary:
    """Imports neither torch nor the library."""

    def __init__(
        self,
        name: str,
        packages: Sequence[str],
        module: str,
        environment: Callable[[Gpu], Mapping[str, str]],
    ) -> None:
        """`packages`: what compiled kernels depend on. `module` calls `compile_in_process` when it is run.

        `environment` is what the library asks of a process that sees no GPU, for the one that is there.
        """
        self.name = name
        self._packages = packages
        self._module = module
        self._environment = environment
        self._compilers: list[CompilerProcess] = []

    @property
    def cache_folder(self) -> Path:
        """Where compiled kernels are, and the markers that tell which."""
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return caches / "octavo" / self.name.replace(" ", "-")

    def make_cache_folder(self) -> bool:
        """False if there is no place for it."""
        try:
            self.cache_folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            return False
        return True

    def start_compiling(self, kernels: Sequence[DataclassInstance]) -> int:
        """Start a process for each kernel that was not compiled before; tells how many.

        None where the library or a Hopper GPU is missing.
        """
        try:
            versions = [version(package) for package in self._packages]
        except PackageNotFoundError:
            return 0
        gpu = find_gpu()
        if gpu is None or gpu.major != _HOPPER or not self.make_cache_folder():
            return 0
        environment = {"CUTE_DSL_ARCH": f"{gpu.architecture}a", **self._environment(gpu)}
        for kernel in kernels:
            marker = self._marker(kernel, gpu, versions)
            if marker.exists():
                continue
            try:
                command = self._command(kernel, marker)
                self._compilers.append(CompilerProcess(f"{self.name}: a kernel", command, environment))
            except OSError as error:
                logger.info("%s: no kernel is compiled ahead: %s", self.name, error)
                break
        if self._compilers:
            logger.info("compiling %d kernels of %s in the background", len(self._compilers), self.name)
        return len(self._compilers)

    def wait_until_compiled(self) -> None:
        """Until all processes have ended, whatever came of them."""
        for compiler in self._compilers:
            compiler.join()

    def _marker(self, kernel: DataclassInstance, gpu: Gpu, versions: Sequence[str]) -> Path:
        """A file that is there once this kernel has been compiled by these versions."""
        parts = [asdict(kernel), asdict(gpu), versions, sys.version_info[:2]]
        digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        return self.cache_folder / f"{digest[:32]}.compiled"

    def _command(self, kernel: DataclassInstance, marker: Path) -> list[str]:
        return [sys.executable, "-m", self._module, json.dumps(asdict(kernel)), str(marker)]


def compile_in_process(compile_kernel: Callable[..., Any]) -> None:
    """In a process that a library started: compile the kernel of its arguments, and say that it is there."""
    gc.disable()  # the process is short, and makes little but what it needs to its end
    compile_kernel(**json.loads(sys.argv[1]))
    Path(sys.argv[2]).touch()
