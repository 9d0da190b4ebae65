"""Quack's product with silu(gate) * up in its epilogue: when it is taken, how it is compiled and called.

    python -m kernels.quack_gated KERNEL_AS_JSON FILE_TO_TOUCH

compiles a kernel.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from kernels.cute_library import CuteLibrary, compile_in_process
from kernels.gpu import Gpu, find_gpu

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

_TABLE = Path(__file__).parent / "tuned" / "gated_linear.json"
_TRIED = "0.6."  # versions of quack that begin so; its interfaces change
_DTYPES = ("bfloat16", "float16")
_one_at_a_time = Lock()


@dataclass(frozen=True, slots=True)
class GatedKernel:
    """For any number of rows and columns. The columns of a tile are the gate's and the other's in turns."""

    rows: int  # of a tile
    columns: int  # of a tile, of both products together
    cluster_rows: int  # tiles one below the other that share what they load
    cluster_columns: int  # and side by side
    dtype: str  # as torch names it

    def useful_share(self, num_rows: int, num_columns: int, num_sms: int) -> float:
        """Of the multiprocessors' time: they take tiles in rounds, and a cluster may reach over the end."""
        down = _round_up(math.ceil(num_rows / self.rows), self.cluster_rows)
        across = _round_up(math.ceil(num_columns / self.columns), self.cluster_columns)
        rounds = math.ceil(down * across / num_sms)
        return num_rows * num_columns / (rounds * num_sms * self.rows * self.columns)


QUACK: CuteLibrary = CuteLibrary(
    "quack",
    packages=("quack-kernels", "nvidia-cutlass-dsl", "apache-tvm-ffi"),
    module="kernels.quack_gated",
    environment=lambda gpu: {
        "QUACK_ARCH": f"{gpu.major}{gpu.minor}",
        "QUACK_CACHE_DIR": str(QUACK.cache_folder),
    },
)


@lru_cache(maxsize=4096)
def gated_kernel(gpu: Gpu, dtype: str, num_rows: int, num_columns: int) -> GatedKernel | None:
    """The kernel for so many rows of x and columns of both products; None if another way is faster."""
    kernels = tuned_kernels(gpu, dtype)
    if not kernels:
        return None
    useful = {kernel: kernel.useful_share(num_rows, num_columns, gpu.num_sms) for kernel in kernels}
    best = max(useful, key=useful.__getitem__)  # the first of those alike
    least = _tuned()[gpu.name]
    return best if num_rows >= least["least_rows"] and useful[best] >= least["least_useful"] else None


def start_compiling(dtype: str) -> int:
    """Start a process for each kernel that `gated_kernel` may choose, and that was not compiled before."""
    gpu = find_gpu()
    kernels = () if gpu is None else tuned_kernels(gpu, dtype)
    return QUACK.start_compiling(kernels) if kernels else 0


@lru_cache
def tuned_kernels(gpu: Gpu, dtype: str) -> tuple[GatedKernel, ...]:
    """The fastest first, if all have as much to do."""
    tuned = _tuned().get(gpu.name)
    if tuned is None or dtype not in _DTYPES or not _is_there():
        return ()
    return tuple(GatedKernel(**tile, dtype=dtype) for tile in tuned["tiles"])


@lru_cache
def _tuned() -> dict[str, dict[str, Any]]:
    tuned: dict[str, dict[str, Any]] = json.loads(_TABLE.read_text())
    return tuned


@lru_cache
def _is_there() -> bool:
    try:
        return version("quack-kernels").startswith(_TRIED)
    except PackageNotFoundError:
        return False


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def run_gated(kernel: GatedKernel, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor | None:
    """`kernels.gated_linear.gated_linear` without a bias; None if quack cannot be imported after all.

    Compiles the kernel if that has not been done.
    """
    out = x.new_empty(len(x), len(weight) // 2)
    if x.is_meta:
        return out
    QUACK.wait_until_compiled()
    with _one_at_a_time:  # threads that warm up would import and load side by side
        if _epilogue() is None:
            return None
        _call(kernel, x, weight, out)
    return out


def _call(
    kernel: GatedKernel, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, launch: bool = True
) -> None:
    _epilogue().gemm(
        x[None],
        weight[None],
        None,
        epi_args={"postact": out[None]},
        tile_M=kernel.rows,
        tile_N=kernel.columns,
        cluster_M=kernel.cluster_rows,
        cluster_N=kernel.cluster_columns,
        pingpong=True,
        concat_layout=("B",),
        _launch=launch,
    )


@lru_cache
def _epilogue() -> Any:
    from kernels.late_dynamo import import_dynamo_late

    import_dynamo_late()
    try:
        with _torch_does_not_compile():
            import quack.cache
            from quack.epilogue.library import swiglu_mod
    except Exception as error:  # it runs much of its own code when it is imported
        logger.warning("quack is installed but cannot be imported, cuBLAS is used instead: %s", error)
        return None
    if QUACK.make_cache_folder():
        quack.cache.CACHE_DIR = str(QUACK.cache_folder)
    return swiglu_mod


@contextmanager
def _torch_does_not_compile() -> Iterator[None]:
    """Quack passes functions of its own to torch.compile when it is imported, which imports that: seconds."""
    import torch

    def leave(function: Any, *, recompile_limit: int = 0, **_: Any) -> Any:  # quack looks for that parameter
        return function

    compile_function = torch.compile
    torch.compile = leave  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.compile = compile_function


def compile_kernel(**fields: Any) -> None:
    """By a call that launches nothing, on tensors of no device."""
    import torch

    kernel = GatedKernel(**fields)
    if _epilogue() is None:
        sys.exit("quack cannot be imported")
    ask_no_driver()
    sizes = (256, 512), (1024, 512), (256, 512)
    x, weight, out = (torch.empty(size, dtype=getattr(torch, kernel.dtype), device="meta") for size in sizes)
    _call(kernel, x, weight, out, launch=False)


def ask_no_driver() -> None:
    """From now on quack only compiles, and needs no GPU: how many clusters fit on one is for launches."""
    from quack.gemm_runtime import host

    host.get_max_active_clusters = lambda *_, **__: 1


if __name__ == "__main__":
    compile_in_process(compile_kernel)
