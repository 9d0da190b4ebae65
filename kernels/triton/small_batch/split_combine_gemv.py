"""The o projection of one row, with the combination of attention's splits as its prologue.

Saves a kernel between attention and projection; every program combines all heads again, from L2.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.triton.pdl import EARLY, LATE, launch_options, trigger_code
from kernels.triton.small_batch.gemv import load_weights
from kernels.triton.small_batch.tiles import LinearTile


def split_combine_gemv(
    partial_out: torch.Tensor,
    partial_sums: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor,
    tile: LinearTile,
) -> None:
    """residual [1, N] (fp32) += combine(partials) @ weight.T, for weight [N, heads * head_dim].

    The partials [1, heads, splits, head_dim] and [1, heads, splits, 2] are those of `split_combine`.
    `tile.block_k` is not used: a program holds whole weight rows. Everything contiguous.
    """
    _, _, splits, head_dim = partial_out.shape
    n, k = weight.shape
    code = trigger_code(tile.trigger, weight.device)
    _split_combine_gemv[(triton.cdiv(n, tile.block_n),)](
        partial_out,
        partial_sums,
        weight,
        residual,
        N=n,
        K=k,
        HEAD_DIM=head_dim,
        SPLITS=splits,
        BLOCK_N=tile.block_n,
        BLOCK_K=triton.next_power_of_2(k),
        TRIGGER=code,
        num_warps=tile.num_warps,
        **launch_options(code),
    )


@triton.jit
def _split_combine_gemv(
    partial_out_ptr,
    partial_sums_ptr,
    weight_ptr,
    residual_ptr,
    N: tl.constexpr,
    K: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TRIGGER: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    columns = tl.arange(0, BLOCK_K)
    if TRIGGER == EARLY:
        gdc_launch_dependents()
    ptrs = weight_ptr + rows[:, None].to(tl.int64) * K + columns[None, :]
    weights = load_weights(ptrs, rows, columns, N, K, BLOCK_N, BLOCK_K)
    if TRIGGER:
        gdc_wait()

    inside = columns if BLOCK_K == K else tl.minimum(columns, K - 1)  # it hides that loads are contiguous
    head = inside // HEAD_DIM
    dim = columns % HEAD_DIM
    highest = tl.full([BLOCK_K], -1e30, tl.float32)
    for split in tl.static_range(SPLITS):
        highest = tl.maximum(highest, tl.load(partial_sums_ptr + (head * SPLITS + split) * 2))
    weighted = tl.zeros([BLOCK_K], tl.float32)
    total = tl.zeros([BLOCK_K], tl.float32)
    for split in tl.static_range(SPLITS):
        part = head * SPLITS + split
        scale = tl.exp2(tl.load(partial_sums_ptr + part * 2) - highest)
        total += scale * tl.load(partial_sums_ptr + part * 2 + 1)
        weighted += scale * tl.load(partial_out_ptr + part * HEAD_DIM + dim)
    result = tl.sum(weights.to(tl.float32) * (weighted / total)[None, :], 1)
    if TRIGGER == LATE:
        gdc_launch_dependents()
    mask = rows < N
    result += tl.load(residual_ptr + rows, mask=mask, other=0.0)
    tl.store(residual_ptr + rows, result, mask=mask)
