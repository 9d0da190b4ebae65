"""Products with up to 64 rows on tensor cores: the weight is the left operand, x is padded to 8, 16, 32 or 64
columns.

So the weight streams through the matrix units as it comes from memory, and 1 to 16 rows cost the same. Where
the output is narrow, several programs share the inner dimension ("split-K").
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.triton.pdl import EARLY, LATE, launch_options, prefetch_to_l2, trigger_code
from kernels.triton.small_batch.epilogue import ADD, SILU_AND_MUL, STORE, Epilogue
from kernels.triton.small_batch.tiles import LinearTile

MAX_ROWS = 64
_WGMMA_ROWS = (
    64  # of a weight tile, from which on Triton takes these instructions, and then 16 columns at least
)


def skinny_gemm(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    tile: LinearTile,
    epilogue: Epilogue = Epilogue.STORE,
    *,
    bias: torch.Tensor | None = None,
    partials: torch.Tensor | None = None,
) -> None:
    """Epilogue(x @ weight.T + bias) for x [M, K] of the weight's type, M up to 64; epilogues as in `gemv`.

    With splits, the epilogue is ADD. Under "atomic" the splits add to out [M, N], fp32, in no fixed order.
    Under "partials" they leave `out` alone and write partials [splits, M, N], fp32: whoever reads `out` next
    adds them in a fixed order (`residual_norm` does it in passing), so that results repeat bit by bit.
    K must be a multiple of splits * block_k. Everything contiguous.
    """
    num_rows, k = x.shape
    n = out.shape[1]
    if num_rows > MAX_ROWS or k % (tile.splits * tile.block_k) or (tile.splits > 1 and epilogue != ADD.value):
        raise ValueError(f"no product of {num_rows} rows with a weight [{n}, {k}] under {tile}")
    code = trigger_code(tile.trigger, x.device)
    _skinny_gemm[(triton.cdiv(n, tile.block_n), tile.splits)](
        x,
        weight,
        bias,
        out if partials is None else partials,
        num_rows,
        N=n,
        K=k,
        SPLITS=tile.splits,
        BLOCK_M=max(8 if tile.block_n < _WGMMA_ROWS else 16, triton.next_power_of_2(num_rows)),
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        EPILOGUE=epilogue.value,
        ATOMIC=tile.splits > 1 and tile.reduce == "atomic",
        TRIGGER=code,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **launch_options(code),
    )


@triton.jit(do_not_specialize=["num_rows"])
def _skinny_gemm(
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    num_rows,
    N: tl.constexpr,
    K: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EPILOGUE: tl.constexpr,
    ATOMIC: tl.constexpr,
    TRIGGER: tl.constexpr,
):
    PART: tl.constexpr = K // SPLITS
    split = tl.program_id(1)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = split * PART + tl.arange(0, BLOCK_K)
    m = tl.arange(0, BLOCK_M)
    inside_m = (m < num_rows)[None, :]
    rows = n if N % BLOCK_N == 0 else tl.minimum(n, N - 1)  # beyond the end: any row, its results are dropped
    weight_ptrs = weight_ptr + rows[:, None].to(tl.int64) * K + k[None, :]
    x_ptrs = x_ptr + m[None, :] * K + k[:, None]
    if TRIGGER:
        if TRIGGER == EARLY:
            gdc_launch_dependents()
        _prefetch_first_tiles(weight_ptr, rows, split * PART, N, K, PART, BLOCK_K, EPILOGUE == SILU_AND_MUL)
        gdc_wait()

    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    up_acc = acc
    for start in range(0, PART, BLOCK_K):
        weights = tl.load(weight_ptrs + start)
        x = tl.load(x_ptrs + start, mask=inside_m, other=0.0)
        acc = tl.dot(weights, x, acc)
        if EPILOGUE == SILU_AND_MUL:
            up_acc = tl.dot(tl.load(weight_ptrs + start + N * K), x, up_acc)
    if TRIGGER == LATE:
        gdc_launch_dependents()

    if bias_ptr is not None:
        acc += tl.load(bias_ptr + rows)[:, None].to(tl.float32)
    out_ptrs = out_ptr + m[None, :] * N + n[:, None]
    mask = inside_m if N % BLOCK_N == 0 else inside_m & (n < N)[:, None]
    if EPILOGUE == STORE:
        tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=mask)
    elif EPILOGUE == SILU_AND_MUL:
        tl.store(out_ptrs, (acc * tl.sigmoid(acc) * up_acc).to(out_ptr.dtype.element_ty), mask=mask)
    elif SPLITS == 1:
        tl.store(out_ptrs, tl.load(out_ptrs, mask=mask, other=0.0) + acc, mask=mask)
    elif ATOMIC:
        tl.atomic_add(out_ptrs, acc, mask=mask, sem="relaxed")
    else:
        tl.store(out_ptrs + split * num_rows * N, acc, mask=mask)


@triton.jit
def _prefetch_first_tiles(
    weight_ptr,
    rows,
    first_k,
    N: tl.constexpr,
    K: tl.constexpr,
    PART: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GATED: tl.constexpr,
):
    """Two tiles: the waiting time reads them from memory to L2."""
    END: tl.constexpr = 2 * BLOCK_K if 2 * BLOCK_K < PART else PART
    lines = (
        weight_ptr + rows[:, None].to(tl.int64) * K + (first_k + tl.arange(0, BLOCK_K // 64) * 64)[None, :]
    )
    for start in tl.static_range(0, END, BLOCK_K):
        prefetch_to_l2(lines + start)
        if GATED:
            prefetch_to_l2(lines + start + N * K)
