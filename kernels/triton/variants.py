"""Compiles Triton's kernels where no GPU is seen: notes first which are launched, then compiles them all.

Nothing is launched: tensors are on "meta", and a kernel is put down where Triton would compile it. What is
compiled then lies in Triton's cache on disk, by a key that follows from the launch alone.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from kernels.gpu import Gpu, let_meta_stand_for

_WARP_SIZE = 32
_DEVICE = 0
_MAX_WORKERS = 16  # each takes a few hundred megabytes

Variant = Callable[[], Any]
"""Compiles one kernel for one set of constants, and returns it."""


class _AbsentGpu:
    """What a launch asks Triton's driver before it compiles."""

    def __init__(self, gpu: Gpu) -> None:
        self._target = GPUTarget("cuda", gpu.major * 10 + gpu.minor, _WARP_SIZE)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return _DEVICE

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("meta")


class _NotLaunched:
    """Stands for a compiled kernel, so that it is noted once."""

    function = packed_metadata = None

    def launch_metadata(self, *_: Any) -> None:
        return None

    def run(self, *_: Any) -> None:
        return None


@contextmanager
def noted_variants(gpu: Gpu) -> Iterator[list[Variant]]:
    """In here launches compile nothing; what they would is added to the list, the longest kernels first."""
    let_meta_stand_for(gpu)
    driver.set_active(_AbsentGpu(gpu))
    compile_variant = JITFunction._do_compile
    noted: dict[tuple[JITFunction[Any], str], Variant] = {}
    variants: list[Variant] = []

    def note(function: JITFunction[Any], key: str, *rest: Any) -> _NotLaunched:
        noted[function, key] = partial(compile_variant, function, key, *rest)
        kernel_cache, *_ = function.device_caches[_DEVICE]
        stand_in = kernel_cache[key] = _NotLaunched()
        return stand_in

    JITFunction._do_compile = note
    try:
        yield variants
    finally:
        JITFunction._do_compile = compile_variant
        for function, key in noted:
            del function.device_caches[_DEVICE][0][key]
        variants += (noted[key] for key in sorted(noted, key=lambda key: -len(key[0].src)))


def compile_variants(variants: list[Variant]) -> None:
    """In forked processes, one for each core. Raises RuntimeError if one of them fails."""
    context = multiprocessing.get_context("fork")
    turn = context.Value("i", 0)
    cores = len(os.sched_getaffinity(0))
    workers = [
        context.Process(target=_compile_in_turn, args=(variants, turn))
        for _ in range(min(cores, _MAX_WORKERS, len(variants)))
    ]
    workers.append(context.Process(target=_build_driver_module))
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise RuntimeError("a worker failed")


def _build_driver_module() -> None:
    """What launches and loads kernels is an extension module too. If it fails, it is built when needed."""
    with suppress(Exception):
        from triton.backends.nvidia.driver import CudaUtils

        CudaUtils()


def _compile_in_turn(variants: list[Variant], turn: Any) -> None:
    os.nice(5)  # the start-up itself, and flash-attn's compilers, go first
    while True:
        with turn.get_lock():
            mine, turn.value = turn.value, turn.value + 1
        if mine >= len(variants):
            return
        kernel = variants[mine]()
        # With the extension module that launches it. What is missing is built at the first launch.
        with suppress(Exception):
            from triton.backends.nvidia.driver import CudaLauncher

            CudaLauncher(kernel.src, kernel.metadata)
