"""Combines what the splits of a decode attention left: one program a query head."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.triton.online_softmax import combine_parts
from kernels.triton.pdl import launch_options, trigger_code


def split_combine(partial_out: torch.Tensor, partial_sums: torch.Tensor, out: torch.Tensor) -> None:
    """out [M, heads * head_dim] = softmax-weighted sum over the splits.

    partial_out [M, heads, splits, head_dim] and partial_sums [M, heads, splits, 2], fp32, as
    `fused_decode_attention` writes them. Everything contiguous.
    """
    num_rows, num_heads, splits, head_dim = partial_out.shape
    code = trigger_code("early", out.device)
    _split_combine[(num_rows * num_heads,)](
        partial_out,
        partial_sums,
        out,
        HEAD_DIM=head_dim,
        SPLITS=splits,
        BLOCK_SPLITS=triton.next_power_of_2(splits),
        TRIGGER=code,
        num_warps=4,
        **launch_options(code),
    )


@triton.jit
def _split_combine(
    partial_out_ptr,
    partial_sums_ptr,
    out_ptr,
    HEAD_DIM: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
    TRIGGER: tl.constexpr,
):
    if TRIGGER:
        gdc_launch_dependents()
        gdc_wait()
    head = tl.program_id(0)
    splits = tl.arange(0, BLOCK_SPLITS)
    dims = tl.arange(0, HEAD_DIM)
    part = head * SPLITS + splits
    result = combine_parts(partial_out_ptr, partial_sums_ptr, part, splits < SPLITS, HEAD_DIM, HEAD_DIM)
    tl.store(out_ptr + head * HEAD_DIM + dims, result.to(out_ptr.dtype.element_ty))
