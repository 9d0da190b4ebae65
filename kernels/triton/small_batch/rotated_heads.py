"""Query and key heads of packed qkv rows, normed if the model does that, and rotated, in registers."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rotary_row(rotary_ptr, position, HEAD_DIM: tl.constexpr):
    """cos and sin [head_dim] of a position, the first half of sin negated."""
    HALF: tl.constexpr = HEAD_DIM // 2
    dims = tl.arange(0, HEAD_DIM)
    cos = tl.load(rotary_ptr + position * HEAD_DIM + dims % HALF)
    sin = tl.load(rotary_ptr + position * HEAD_DIM + HALF + dims % HALF)
    return cos, tl.where(dims < HALF, -sin, sin)


@triton.jit
def rotated_head(head_ptr, weight_ptr, cos, sin, EPS: tl.constexpr, HEAD_DIM: tl.constexpr):
    """One head, normed and rotated: [head_dim] fp32. `x` pairs with the other half of its head, `swapped`."""
    dims = tl.arange(0, HEAD_DIM)
    other_dims = (dims + HEAD_DIM // 2) % HEAD_DIM
    x = tl.load(head_ptr + dims).to(tl.float32)
    swapped = tl.load(head_ptr + other_dims).to(tl.float32)
    if weight_ptr is not None:
        inverse_rms = tl.rsqrt(tl.sum(x * x, 0) / HEAD_DIM + EPS)
        x *= inverse_rms * tl.load(weight_ptr + dims).to(tl.float32)
        swapped *= inverse_rms * tl.load(weight_ptr + other_dims).to(tl.float32)
    return x * cos + swapped * sin


@triton.jit
def rotated_queries(qkv_row, weight_ptr, heads, inside, cos, sin, EPS: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Several heads, normed and rotated: [heads, head_dim] fp32, rows that are not `inside` 0."""
    dims = tl.arange(0, HEAD_DIM)
    other_dims = (dims + HEAD_DIM // 2) % HEAD_DIM
    heads_ptr = qkv_row + heads[:, None] * HEAD_DIM
    x = tl.load(heads_ptr + dims[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
    swapped = tl.load(heads_ptr + other_dims[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
    if weight_ptr is not None:
        inverse_rms = tl.rsqrt(tl.sum(x * x, 1) / HEAD_DIM + EPS)[:, None]
        x *= inverse_rms * tl.load(weight_ptr + dims).to(tl.float32)[None, :]
        swapped *= inverse_rms * tl.load(weight_ptr + other_dims).to(tl.float32)[None, :]
    return x * cos[None, :] + swapped * sin[None, :]
