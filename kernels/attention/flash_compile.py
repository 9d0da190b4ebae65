"""Compiles flash-attn 4's kernels in processes beside the start-up, which has torch and weights to load.

Its compiler is Python and holds the interpreter for seconds a kernel, so threads would not do. It needs no
GPU: fake tensors stand for real ones. What it makes lies in flash-attn's own cache on disk, by a key that
follows from the call alone, where the serving process finds it. If anything fails here, that process compiles
at first use.

    python -m kernels.attention.flash_compile KERNEL_AS_JSON FILE_TO_TOUCH
"""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from kernels.compiler_process import CompilerProcess
from kernels.gpu import Gpu, find_gpu

logger = logging.getLogger(__name__)

# Those that agree with fp32 on a card. With a head size of 80, flash-attn 4 was off by 4 % (blocks of 16).
HEAD_DIMS = (64, 128)

_PACKAGES = ("flash-attn-4", "nvidia-cutlass-dsl", "apache-tvm-ffi")


@dataclass(frozen=True, slots=True)
class FlashKernel:
    """What a kernel for prompt chunks is compiled for."""

    num_seqs: int  # in a batch; flash-attn 4 looks for a tile's sequence in another way above 256
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    sliding_window: int | None
    dtype: str  # as torch names it


def cache_folder() -> Path:
    """Where flash-attn 4 keeps what it compiles for Octavo, and the markers that tell what is there."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "octavo" / "flash-attn-4"


def cache_compiled_kernels() -> bool:
    """Have flash-attn 4 keep what it compiles; it reads these once, when it is imported.

    False if there is no place for it.
    """
    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")
    os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_DIR", str(cache_folder()))
    return True


_compilers: list[CompilerProcess] = []


def start_compiling(kernels: Sequence[FlashKernel]) -> int:
    """Start a process for each kernel that was not compiled before; tells how many. Imports no torch.

    None where flash-attn 4 or a Hopper GPU is missing: no other has been tried.
    """
    try:
        versions = [version(package) for package in _PACKAGES]
    except PackageNotFoundError:
        return 0
    gpu = find_gpu()
    if gpu is None or gpu.major != 9 or not cache_compiled_kernels():
        return 0
    environment = {
        "FLASH_ATTENTION_ARCH": gpu.architecture,
        "CUTE_DSL_ARCH": f"{gpu.architecture}a",
        "FLASH_ATTENTION_NUM_SMS": str(gpu.num_sms),
    }
    for kernel in kernels:
        marker = _marker(kernel, gpu, versions)
        if kernel.head_dim in HEAD_DIMS and not marker.exists():
            try:
                command = _command(kernel, marker)
                _compilers.append(CompilerProcess("flash-attn 4: a kernel", command, environment))
            except OSError as error:
                logger.info("flash-attn 4: no kernel is compiled ahead: %s", error)
                break
    if _compilers:
        logger.info("compiling %d kernels of flash-attn 4 in the background", len(_compilers))
    return len(_compilers)


def wait_until_compiled() -> None:
    """Until all processes have ended, whatever came of them."""
    for compiler in _compilers:
        compiler.join()


def _marker(kernel: FlashKernel, gpu: Gpu, versions: Sequence[str]) -> Path:
    """A file that is there once this kernel has been compiled by these versions."""
    parts = [asdict(kernel), asdict(gpu), versions, sys.version_info[:2]]
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return cache_folder() / f"{digest[:32]}.compiled"


def _command(kernel: FlashKernel, marker: Path) -> list[str]:
    return [sys.executable, "-m", "kernels.attention.flash_compile", json.dumps(asdict(kernel)), str(marker)]


def compile_kernel(kernel: FlashKernel) -> None:
    """By a call that launches nothing, as its tensors are fake."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from kernels.late_dynamo import import_dynamo_late

    import_dynamo_late()
    with FakeTensorMode():
        call_kernel(kernel)


def call_kernel(kernel: FlashKernel) -> None:
    """With chunks of one row each, in a cache of one block."""
    import torch

    from kernels.attention.flash_versions import Flash4, PagedQueries
    from kernels.attention.interface import AttentionShape

    device, dtype, num_seqs = torch.device("cuda", 0), getattr(torch, kernel.dtype), kernel.num_seqs
    shape = AttentionShape(
        num_layers=1,
        num_heads=kernel.num_heads,
        num_kv_heads=kernel.num_kv_heads,
        head_dim=kernel.head_dim,
        scale=kernel.head_dim**-0.5,
        block_size=kernel.block_size,
        dtype=dtype,
        device=device,
        sliding_window=kernel.sliding_window,
    )
    queries = PagedQueries(
        block_tables=torch.zeros(num_seqs, 1, dtype=torch.int32, device=device),
        context_lens=torch.ones(num_seqs, dtype=torch.int32, device=device),
        query_starts=torch.arange(num_seqs + 1, dtype=torch.int32, device=device),
        max_query_len=1,
        max_context=kernel.block_size,
    )
    q = torch.zeros(num_seqs, kernel.num_heads, kernel.head_dim, dtype=dtype, device=device)
    keys = torch.zeros(1, kernel.block_size, kernel.num_kv_heads, kernel.head_dim, dtype=dtype, device=device)
    Flash4().prepare(queries, shape)(q, keys, torch.zeros_like(keys), torch.empty_like(q))


if __name__ == "__main__":
    gc.disable()  # the process is short, and makes little but what it needs to its end
    compile_kernel(FlashKernel(**json.loads(sys.argv[1])))
    Path(sys.argv[2]).touch()
