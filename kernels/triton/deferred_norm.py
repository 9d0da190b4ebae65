"""An RMSNorm without a kernel of its own, split between the product before it and the product behind it.

norm(x) @ W.T = (x * weight) @ W.T / rms(x): the product that completes x writes x * weight and each of its
programs a sum of squares; the product behind divides its results by the root mean square.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl


@dataclass(frozen=True, slots=True)
class DeferredNorm:
    """What one product leaves for the next. x * weight may be large: not for fp16."""

    weight: torch.Tensor  # [K], of the norm
    scaled: torch.Tensor  # [M, K], of the weight's type: x * weight
    squares: torch.Tensor  # [parts, M] fp32: sums of the squares of x over some columns each
    eps: float


@triton.jit
def load_squares(squares_ptr, m, inside_m, num_rows, PARTS: tl.constexpr, BLOCK_PARTS: tl.constexpr):
    """[BLOCK_PARTS, BLOCK_M], 0 outside."""
    parts = tl.arange(0, BLOCK_PARTS)
    mask = (parts < PARTS)[:, None] & inside_m
    return tl.load(squares_ptr + parts[:, None] * num_rows + m[None, :], mask=mask, other=0.0)


@triton.jit
def store_deferred_norm(
    weight_ptr, scaled_ptr, squares_ptr, x, columns, m, inside, num_rows, N: tl.constexpr
):
    """For these columns of x [M, N], given transposed as [BLOCK_N, BLOCK_M]; `inside` is their mask."""
    weight = tl.load(weight_ptr + tl.minimum(columns, N - 1)).to(tl.float32)
    scaled = (x * weight[:, None]).to(scaled_ptr.dtype.element_ty)
    tl.store(scaled_ptr + m[None, :] * N + columns[:, None], scaled, mask=inside)
    squares = tl.sum(tl.where(inside, x * x, 0.0), 0)
    tl.store(squares_ptr + tl.program_id(0) * num_rows + m, squares, mask=m < num_rows)
