"""Per-head norm and rotary embedding of queries and keys, and the KV write, over packed qkv rows."""

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
    caches: tuple[torch.Tensor, torch.Tensor] | None = None,
    slots: torch.Tensor | None = None,
    heads_block: int = 8,
    num_warps: int = 4,
) -> None:
    """Norm q and k (with weights [head_dim], if given) and rotate them in place; write K and V if asked.

    qkv [T, q + k + v heads, head_dim] of any row stride, contiguous in a row; `heads` (q, k, v) counts them.
    cos and sin [T, 1, head_dim] contiguous, as `kernels.rotary.rotary_rows` makes them, in any float type.
    caches: keys and values, viewed as [slots, kv_heads, head_dim] with any stride but the last; slots [T]
    int64, where a negative one writes nothing.
    """
    num_rows, _, head_dim = qkv.shape
    if num_rows == 0:
        return
    num_q, num_kv, _ = heads
    q_weight, k_weight = norm_weights or (qkv, qkv)
    keys, values = caches or (qkv, qkv)
    writes = caches is not None and slots is not None
    num_heads = num_q + (2 if writes else 1) * num_kv
    trigger = pdl.trigger_code("early" if num_rows <= 64 else "none", qkv.device)
    _qk_norm_rotary_kernel[(num_rows, triton.cdiv(num_heads, heads_block))](
        qkv, q_weight, k_weight, cos, sin, keys, values, slots if slots is not None else qkv,
        qkv.stride(0), keys.stride(0), keys.stride(1), values.stride(0), values.stride(1), eps,
        NUM_Q=num_q, NUM_KV=num_kv, HALF=head_dim // 2, HEADS=heads_block,
        BLOCK=triton.next_power_of_2(head_dim // 2), NORM=norm_weights is not None, WRITE=writes,
        TRIGGER=trigger, num_warps=num_warps, **pdl.launch_options(trigger),
    )  # fmt: skip


@triton.jit
def _qk_norm_rotary_kernel(
    qkv_ptr,
    q_weight_ptr,
    k_weight_ptr,
    cos_ptr,
    sin_ptr,
    keys_ptr,
    values_ptr,
    slots_ptr,
    qkv_stride,
    key_slot_stride,
    key_head_stride,
    value_slot_stride,
    value_head_stride,
    eps,
    NUM_Q: tl.constexpr,
    NUM_KV: tl.constexpr,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    NORM: tl.constexpr,
    WRITE: tl.constexpr,
    TRIGGER: tl.constexpr,
):
    """A program takes HEADS neighbouring heads of one row, each as two halves that are rotated together."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    at = tl.arange(0, BLOCK)
    inside = (at < HALF)[None, :]
    is_q = head < NUM_Q
    is_k = (head >= NUM_Q) & (head < NUM_Q + NUM_KV)
    rotated = (is_q | is_k)[:, None] & inside
    if TRIGGER == pdl.EARLY:
        gdc_launch_dependents()
    if TRIGGER != pdl.NONE:
        gdc_wait()
    pointers = qkv_ptr + row * qkv_stride + head[:, None] * (2 * HALF) + at[None, :]
    present = (head < NUM_Q + (2 if WRITE else 1) * NUM_KV)[:, None] & inside
    first = tl.load(pointers, mask=present, other=0.0)
    second = tl.load(pointers + HALF, mask=present, other=0.0)
    dtype = first.dtype
    x, y = first.to(tl.float32), second.to(tl.float32)
    if NORM:
        x, y = _normed(x, y, is_q, q_weight_ptr, k_weight_ptr, at, eps, HALF, dtype)
    # cos repeats itself in its second half, and so does sin but for the sign.
    angle = row * (2 * HALF) + at
    cos = tl.load(cos_ptr + angle, mask=at < HALF, other=0.0).to(tl.float32)[None, :]
    minus_sin = tl.load(sin_ptr + angle, mask=at < HALF, other=0.0).to(tl.float32)[None, :]
    new_first = (x * cos + y * minus_sin).to(dtype)
    new_second = (y * cos - x * minus_sin).to(dtype)
    tl.store(pointers, new_first, mask=rotated)
    tl.store(pointers + HALF, new_second, mask=rotated)
    if WRITE:
        slot = tl.load(slots_ptr + row)
        if slot >= 0:
            keys_ptr += slot * key_slot_stride
            values_ptr += slot * value_slot_stride
            k_head, v_head = head - NUM_Q, head - NUM_Q - NUM_KV
            k_mask = is_k[:, None] & inside
            _store_heads(keys_ptr, k_head, key_head_stride, at, new_first, new_second, k_mask, HALF)
            v_mask = (v_head >= 0)[:, None] & present
            _store_heads(values_ptr, v_head, value_head_stride, at, first, second, v_mask, HALF)


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


@triton.jit
def _store_heads(slot_ptr, head, head_stride, at, first, second, mask, HALF: tl.constexpr):
    pointers = slot_ptr + head[:, None].to(tl.int64) * head_stride + at[None, :]
    tl.store(pointers, first, mask=mask)
    tl.store(pointers + HALF, second, mask=mask)
