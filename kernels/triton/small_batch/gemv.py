"""Matrix-vector products for one or two rows, on CUDA cores: a program owns whole rows of the weight.

At this batch size a product is bound by reading its weight. Each program has its first weight tile in flight
before it waits for its input, accumulates in fp32 element by element and reduces once at the end.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.triton.pdl import EARLY, LATE, launch_options, prefetch_to_l2, trigger_code
from kernels.triton.small_batch.epilogue import ADD, SILU_AND_MUL, Epilogue
from kernels.triton.small_batch.tiles import LinearTile

MAX_GEMV_ROWS = 2


def gemv(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    tile: LinearTile,
    epilogue: Epilogue = Epilogue.STORE,
    *,
    norm_weight: torch.Tensor | None = None,
    eps: float = 0.0,
    bias: torch.Tensor | None = None,
) -> None:
    """Epilogue(norm(x) @ weight.T + bias) for x [M, K] with M 1 or 2, fp32 or the weight's type.

    With `norm_weight` [K], each row of x is RMS-normed first (the factor 1 / rms is applied to the result).
    STORE writes out [M, N] in its own type; ADD adds to out [M, N], fp32; SILU_AND_MUL takes weight
    [2 * N, K], gate rows over up rows, and writes silu(gate) * up to out [M, N]. `bias` [N] is for STORE
    only. Everything contiguous.
    """
    num_rows, k = x.shape
    n = out.shape[1]
    if num_rows > MAX_GEMV_ROWS:
        raise ValueError(f"gemv takes {MAX_GEMV_ROWS} rows at most, not {num_rows}")
    code = trigger_code(tile.trigger, x.device)
    _gemv[(triton.cdiv(n, tile.block_n),)](
        x,
        norm_weight,
        weight,
        bias,
        out,
        EPS=eps,
        M=num_rows,
        N=n,
        K=k,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        EPILOGUE=epilogue.value,
        TRIGGER=code,
        num_warps=tile.num_warps,
        **launch_options(code),
    )


@triton.jit
def _gemv(
    x_ptr,
    norm_weight_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    EPS: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EPILOGUE: tl.constexpr,
    TRIGGER: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    columns = tl.arange(0, BLOCK_K)
    gate_ptrs = weight_ptr + rows[:, None].to(tl.int64) * K + columns[None, :]
    up_ptrs = gate_ptrs + N * K
    if TRIGGER == EARLY:
        gdc_launch_dependents()
    gate = load_weights(gate_ptrs, rows, columns, N, K, BLOCK_N, BLOCK_K)
    up = gate
    if EPILOGUE == SILU_AND_MUL:
        up = load_weights(up_ptrs, rows, columns, N, K, BLOCK_N, BLOCK_K)
    if TRIGGER:
        if TRIGGER == EARLY:
            _prefetch_later_tiles(weight_ptr, rows, N, K, BLOCK_K, EPILOGUE == SILU_AND_MUL)
        gdc_wait()

    sum0 = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    sum1 = sum0  # second row of x
    up_sum0 = sum0
    up_sum1 = sum0
    squares0 = tl.zeros([BLOCK_K], tl.float32)
    squares1 = squares0
    for start in tl.static_range(0, K, BLOCK_K):
        if start > 0:
            gate = load_weights(gate_ptrs + start, rows, start + columns, N, K, BLOCK_N, BLOCK_K)
            if EPILOGUE == SILU_AND_MUL:
                up = load_weights(up_ptrs + start, rows, start + columns, N, K, BLOCK_N, BLOCK_K)
        x0, squares0 = _load_x(x_ptr, norm_weight_ptr, squares0, start + columns, K, BLOCK_K)
        sum0 += gate.to(tl.float32) * x0[None, :]
        if EPILOGUE == SILU_AND_MUL:
            up_sum0 += up.to(tl.float32) * x0[None, :]
        if M == 2:
            x1, squares1 = _load_x(x_ptr + K, norm_weight_ptr, squares1, start + columns, K, BLOCK_K)
            sum1 += gate.to(tl.float32) * x1[None, :]
            if EPILOGUE == SILU_AND_MUL:
                up_sum1 += up.to(tl.float32) * x1[None, :]
    if TRIGGER == LATE:
        gdc_launch_dependents()

    factor0 = _inverse_rms(squares0, norm_weight_ptr, EPS, K)
    _finish(out_ptr, bias_ptr, rows, sum0, up_sum0, factor0, N, EPILOGUE)
    if M == 2:
        factor1 = _inverse_rms(squares1, norm_weight_ptr, EPS, K)
        _finish(out_ptr + N, bias_ptr, rows, sum1, up_sum1, factor1, N, EPILOGUE)


@triton.jit
def load_weights(
    ptrs, rows, columns, N: tl.constexpr, K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    """A tile of the weight; masked only where blocks do not divide it, since masks cost registers."""
    if N % BLOCK_N == 0 and K % BLOCK_K == 0:
        tile = tl.load(ptrs)
    else:
        tile = tl.load(ptrs, mask=(rows < N)[:, None] & (columns < K)[None, :], other=0.0)
    return tile


@triton.jit
def _load_x(x_ptr, norm_weight_ptr, squares, columns, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """(x times the norm's weight, squares of x added up) for one tile of columns."""
    x = load_columns(x_ptr, columns, K, BLOCK_K)
    if norm_weight_ptr is not None:
        squares += x * x
        x *= load_columns(norm_weight_ptr, columns, K, BLOCK_K)
    return x, squares


@triton.jit
def load_columns(ptr, columns, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """Elements of a vector [K] in fp32, 0 beyond its end."""
    if K % BLOCK_K == 0:
        x = tl.load(ptr + columns)
    else:
        x = tl.load(ptr + columns, mask=columns < K, other=0.0)
    return x.to(tl.float32)


@triton.jit
def _prefetch_later_tiles(
    weight_ptr, rows, N: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr, GATED: tl.constexpr
):
    """The tiles after the first, up to some KiB a row: the waiting time reads them from memory to L2."""
    FAR: tl.constexpr = K if K <= 4096 else BLOCK_K + 2048
    WHOLE: tl.constexpr = K - BLOCK_K + 1
    END: tl.constexpr = FAR if FAR < WHOLE else WHOLE
    inside = tl.minimum(rows, N - 1)
    lines = weight_ptr + inside[:, None].to(tl.int64) * K + tl.arange(0, BLOCK_K // 64)[None, :] * 64
    for start in tl.static_range(BLOCK_K, END, BLOCK_K):
        prefetch_to_l2(lines + start)
        if GATED:
            prefetch_to_l2(lines + start + N * K)


@triton.jit
def _inverse_rms(squares, norm_weight_ptr, EPS: tl.constexpr, K: tl.constexpr):
    """Of a row of x with these squares [BLOCK_K]; 1 where there is no norm."""
    factor = 1.0
    if norm_weight_ptr is not None:
        factor = tl.rsqrt(tl.sum(squares, 0) / K + EPS)
    return factor


@triton.jit
def _finish(out_ptr, bias_ptr, rows, sums, up_sums, factor, N: tl.constexpr, EPILOGUE: tl.constexpr):
    """Reduce one row's sums [BLOCK_N, BLOCK_K], times a factor, and write BLOCK_N results."""
    result = tl.sum(sums, 1) * factor
    mask = rows < N
    if bias_ptr is not None:
        result += tl.load(bias_ptr + rows, mask=mask, other=0.0).to(tl.float32)
    if EPILOGUE == ADD:
        result += tl.load(out_ptr + rows, mask=mask, other=0.0)
    if EPILOGUE == SILU_AND_MUL:
        result *= tl.sigmoid(result) * tl.sum(up_sums, 1) * factor
    tl.store(out_ptr + rows, result.to(out_ptr.dtype.element_ty), mask=mask)
