"""An RMSNorm without a kernel of its own, split between the product before it and the product behind it.

norm(x) @ W.T = (x * weight) @ W.T / rms(x): the product that completes x writes x * weight and adds up the
squares of x; the product behind divides its results by the root mean square.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

_UNITS = tl.constexpr(2.0**26)  # of the fixed point; sums up to 10^11 fit


@dataclass(frozen=True, slots=True)
class DeferredNorm:
    """What one product leaves for the next. x * weight may be large: not for fp16."""

    weight: torch.Tensor  # [K], of the norm
    scaled: torch.Tensor  # [M, K], of the weight's type: x * weight
    squares: torch.Tensor  # [M] int64: the rows' sums of squares, 0 at first
    eps: float


@triton.jit
def prepare_norm(weight_ptr, scaled_ptr, squares_ptr, x, columns, m, inside, num_rows, N: tl.constexpr):
    """For these columns of x [M, N], given transposed as [BLOCK_N, BLOCK_M]; `inside` is their mask.

    Squares are summed in fixed point, so that the order of the programs does not matter.
    """
    weight = tl.load(weight_ptr + tl.minimum(columns, N - 1)).to(tl.float32)
    scaled = (x * weight[:, None]).to(scaled_ptr.dtype.element_ty)
    tl.store(scaled_ptr + m[None, :] * N + columns[:, None], scaled, mask=inside)
    squares = tl.sum(tl.where(inside, x * x, 0.0), 0) * _UNITS
    tl.atomic_add(squares_ptr + m, squares.to(tl.int64), mask=m < num_rows, sem="relaxed")


@triton.jit
def inverse_rms(squares, EPS: tl.constexpr, K: tl.constexpr):
    """Of rows of K elements with these sums of squares."""
    return tl.rsqrt(squares.to(tl.float32) / (_UNITS * K) + EPS)
