"""Per-head norm and rotary embedding of queries and keys, in place in packed qkv rows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.triton import pdl


def qk_norm_rotary(
    qkv: torch.Tensor,
    heads: tuple[int, int, int],
    norm_weights: tuple[torch.Tensor, torch.Tensor] | None,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    heads_block: int = 8,
    num_warps: int = 4,
) -> None:
    """Norm q and k (with weights [head_dim], if given) and rotate them, in place.

    qkv [T, q + k + v heads, head_dim] of any row stride, contiguous in a row; `heads` (q, k, v) counts them.
    cos and sin [T, 1, head_dim] contiguous, as `kernels.rotary.rotary_rows` makes them, in any float type.
    """
    num_rows, _, head_dim = qkv.shape
    if num_rows == 0:
        return
    num_q, num_k, _ = heads
    q_weight, k_weight = norm_weights or (qkv, qkv)
    trigger = pdl.trigger_code("early" if num_rows <= 64 else "none", qkv.device)
    _qk_norm_rotary_kernel[(num_rows, triton.cdiv(num_q + num_k, heads_block))](
        qkv, q_weight, k_weight, cos, sin, qkv.stride(0), eps,
        NUM_Q=num_q, NUM_K=num_k, HALF=head_dim // 2, HEADS=heads_block,
        BLOCK=triton.next_power_of_2(head_dim // 2), NORM=norm_weights is not None,
        TRIGGER=trigger, num_warps=num_warps, **pdl.launch_options(trigger),
    )  # fmt: skip


@triton.jit
def _qk_norm_rotary_kernel(
    qkv_ptr,
    q_weight_ptr,
    k_weight_ptr,
    cos_ptr,
    sin_ptr,
    qkv_stride,
    eps,
    NUM_Q: tl.constexpr,
    NUM_K: tl.constexpr,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    NORM: tl.constexpr,
    TRIGGER: tl.constexpr,
):
    """A program takes HEADS neighbouring heads of one row, each as two halves that are rotated together."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    at = tl.arange(0, BLOCK)
    mask = (head < NUM_Q + NUM_K)[:, None] & (at < HALF)[None, :]
    if TRIGGER == pdl.EARLY:
        gdc_launch_dependents()
    if TRIGGER != pdl.NONE:
        gdc_wait()
    pointers = qkv_ptr + row * qkv_stride + head[:, None] * (2 * HALF) + at[None, :]
    x = tl.load(pointers, mask=mask, other=0.0)
    y = tl.load(pointers + HALF, mask=mask, other=0.0)
    dtype = x.dtype
    x, y = x.to(tl.float32), y.to(tl.float32)
    if NORM:
        x, y = _normed(x, y, head < NUM_Q, q_weight_ptr, k_weight_ptr, at, eps, HALF, dtype)
    # cos repeats itself in its second half, and so does sin but for the sign.
    angle = row * (2 * HALF) + at
    cos = tl.load(cos_ptr + angle, mask=at < HALF, other=0.0).to(tl.float32)[None, :]
    minus_sin = tl.load(sin_ptr + angle, mask=at < HALF, other=0.0).to(tl.float32)[None, :]
    tl.store(pointers, (x * cos + y * minus_sin).to(dtype), mask=mask)
    tl.store(pointers + HALF, (y * cos - x * minus_sin).to(dtype), mask=mask)


@triton.jit
def _normed(x, y, is_q, q_weight_ptr, k_weight_ptr, at, eps, HALF: tl.constexpr, dtype: tl.constexpr):
    """The halves x and y [heads, BLOCK] fp32 of heads, RMS-normed and rounded as the reference does it."""
    inverse_rms = tl.rsqrt((tl.sum(x * x, axis=1) + tl.sum(y * y, axis=1)) / (2 * HALF) + eps)[:, None]
    x = (x * inverse_rms).to(dtype).to(tl.float32) * _weights(is_q, q_weight_ptr, k_weight_ptr, at, HALF)
    y_weight = _weights(is_q, q_weight_ptr + HALF, k_weight_ptr + HALF, at, HALF)
    y = (y * inverse_rms).to(dtype).to(tl.float32) * y_weight
    return x.to(dtype).to(tl.float32), y.to(dtype).to(tl.float32)


@triton.jit
def _weights(is_q, q_weight_ptr, k_weight_ptr, at, HALF: tl.constexpr):
    q_weight = tl.load(q_weight_ptr + at, mask=at < HALF, other=0.0).to(tl.float32)[None, :]
    k_weight = tl.load(k_weight_ptr + at, mask=at < HALF, other=0.0).to(tl.float32)[None, :]
    return tl.where(is_q[:, None], q_weight, k_weight)
