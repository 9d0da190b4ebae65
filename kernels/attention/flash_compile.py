"""Which of flash-attn 4's kernels are compiled in processes beside the start-up, and how.

    python -m kernels.attention.flash_compile KERNEL_AS_JSON FILE_TO_TOUCH

compiles a kernel.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from kernels.cute_library import CuteLibrary, compile_in_process
from kernels.gpu import Gpu

# Those that agree with fp32 on a card. With a head size of 80, flash-attn 4 was off by 4 % (blocks of 16).
HEAD_DIMS = (64, 128)


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


def _environment(gpu: Gpu) -> dict[str, str]:
    cache_compiled_kernels()
    return {"FLASH_ATTENTION_ARCH": gpu.architecture, "FLASH_ATTENTION_NUM_SMS": str(gpu.num_sms)}


FLASH_ATTN_4 = CuteLibrary(
    "flash-attn 4",
    packages=("flash-attn-4", "nvidia-cutlass-dsl", "apache-tvm-ffi"),
    module="kernels.attention.flash_compile",
    environment=_environment,
)


def cache_compiled_kernels() -> None:
    """Have flash-attn 4 keep what it compiles, if there is a place for it.

    It reads these variables once, when it is imported.
    """
    if FLASH_ATTN_4.make_cache_folder():
        os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")
        os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_DIR", str(FLASH_ATTN_4.cache_folder))


def start_compiling(kernels: Sequence[FlashKernel]) -> int:
    """Start a process for each kernel that can be called and was not compiled before; tells how many."""
    return FLASH_ATTN_4.start_compiling([kernel for kernel in kernels if kernel.head_dim in HEAD_DIMS])


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
    compile_in_process(lambda **kernel: compile_kernel(FlashKernel(**kernel)))
