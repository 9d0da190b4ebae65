"""Everything between the qkv projection and the o projection of a decode step, for small batches.

One kernel norms q and k per head, rotates them, writes the new K and V to the paged cache, and attends over
a share of the context ("split-KV", after Flash-Decoding): programs are (row, KV head, split). With several
splits the results are combined by `split_combine`, or by the o projection itself (`split_combine_gemv`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.triton.pdl import EARLY, LATE, launch_options, prefetch_to_l2, trigger_code
from kernels.triton.tiles import AttentionTile

_LOWEST = tl.constexpr(-1e30)  # instead of -inf, whose differences are not numbers


@dataclass(frozen=True, slots=True)
class DecodeContext:
    """What all layers share. M rows; nothing here may change while the step runs."""

    block_tables: torch.Tensor  # [M, max_blocks] int32
    context_lens: torch.Tensor  # [M] int32, the new token included
    slots: torch.Tensor  # [M] int64, where the new token goes: block id * block_size + offset
    positions: torch.Tensor  # [M] int64
    rotary_table: torch.Tensor  # [positions, head_dim] fp32: cos of each frequency, then sin


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """RMSNorm of every query and key head, where the model has it."""

    q_weight: torch.Tensor  # [head_dim]
    k_weight: torch.Tensor
    eps: float


def fused_decode_attention(
    qkv: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    context: DecodeContext,
    norms: HeadNorms | None,
    out: torch.Tensor,
    partial_out: torch.Tensor,
    partial_sums: torch.Tensor,
    tile: AttentionTile,
    scale: float,
) -> None:
    """Write the rows' K and V, then attend; everything contiguous.

    qkv [M, (heads + 2 * kv_heads) * head_dim]; keys and values [blocks, block_size, kv_heads, head_dim] of
    the same type. With one split, out [M, heads * head_dim] gets the result. Otherwise partial_out
    [M, heads, splits, head_dim], fp32, gets sums of values weighted by 2^(score - m), and partial_sums
    [M, heads, splits, 2] gets (m, sum of weights), where m is the highest score of a split, in log2 units.
    `single_tile` needs splits * block_keys >= every context length. At most 16 heads share a KV head.
    """
    num_rows = qkv.shape[0]
    _, block_size, num_kv_heads, head_dim = keys.shape
    code = trigger_code(tile.trigger, qkv.device)
    kernel = _attend_dot if tile.kernel == "dot" else _attend_single_tile
    kernel[(num_rows, num_kv_heads, tile.splits)](
        qkv,
        keys,
        values,
        context.block_tables,
        context.context_lens,
        context.slots,
        context.positions,
        context.rotary_table,
        None if norms is None else norms.q_weight,
        None if norms is None else norms.k_weight,
        out,
        partial_out,
        partial_sums,
        context.block_tables.stride(0),
        EPS=0.0 if norms is None else norms.eps,
        SCALE=scale * math.log2(math.e),
        HEAD_DIM=head_dim,
        KV_HEADS=num_kv_heads,
        GROUP=out.shape[1] // (num_kv_heads * head_dim),
        BLOCK_SIZE=block_size,
        SPLITS=tile.splits,
        BLOCK_KEYS=tile.block_keys,
        PREFETCH=tile.prefetch,
        TRIGGER=code,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **launch_options(code),
    )


@triton.jit
def _attend_dot(
    qkv_ptr,
    keys_ptr,
    values_ptr,
    block_tables_ptr,
    context_lens_ptr,
    slots_ptr,
    positions_ptr,
    rotary_ptr,
    q_weight_ptr,
    k_weight_ptr,
    out_ptr,
    partial_out_ptr,
    partial_sums_ptr,
    table_stride,
    EPS: tl.constexpr,
    SCALE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    PREFETCH: tl.constexpr,
    TRIGGER: tl.constexpr,
):
    """The query heads of a group, padded to 16, against tiles of cached keys on tensor cores."""
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    if TRIGGER == EARLY:
        gdc_launch_dependents()
    num_cached = tl.maximum(tl.load(context_lens_ptr + row) - 1, 0)
    share = tl.cdiv(tl.cdiv(num_cached + 1, SPLITS), BLOCK_KEYS) * BLOCK_KEYS
    first = split * share
    last = tl.minimum(first + share, num_cached)
    table_ptr = block_tables_ptr + row * table_stride
    dims = tl.arange(0, HEAD_DIM)
    offsets = tl.arange(0, BLOCK_KEYS)
    cos, sin = _rotary_row(rotary_ptr, tl.load(positions_ptr + row), HEAD_DIM)
    if TRIGGER:
        for start in range(first, tl.minimum(last, first + PREFETCH * BLOCK_KEYS), BLOCK_KEYS):
            _prefetch_keys_and_values(
                keys_ptr,
                values_ptr,
                table_ptr,
                start + offsets,
                last,
                kv_head,
                KV_HEADS,
                HEAD_DIM,
                BLOCK_SIZE,
            )
        gdc_wait()

    HEADS: tl.constexpr = KV_HEADS * GROUP
    qkv_row = qkv_ptr + row * (HEADS + 2 * KV_HEADS) * HEAD_DIM
    members = tl.arange(0, 16)
    q = _rotated_queries(
        qkv_row, q_weight_ptr, kv_head * GROUP + members, members < GROUP, cos, sin, EPS, HEAD_DIM
    )
    q = q.to(keys_ptr.dtype.element_ty)
    highest = tl.full([16], _LOWEST, tl.float32)
    total = tl.zeros([16], tl.float32)
    acc = tl.zeros([16, HEAD_DIM], tl.float32)
    if (first <= num_cached) & (num_cached < first + share):  # the new token is in this split
        key = _rotated_head(qkv_row + (HEADS + kv_head) * HEAD_DIM, k_weight_ptr, cos, sin, EPS, HEAD_DIM)
        key = key.to(keys_ptr.dtype.element_ty)
        value = tl.load(qkv_row + (HEADS + KV_HEADS + kv_head) * HEAD_DIM + dims)
        slot = (tl.load(slots_ptr + row) * KV_HEADS + kv_head) * HEAD_DIM
        tl.store(keys_ptr + slot + dims, key)
        tl.store(values_ptr + slot + dims, value)
        highest = tl.sum(q.to(tl.float32) * key.to(tl.float32)[None, :], 1) * SCALE
        total += 1.0
        acc += value.to(tl.float32)[None, :]
    for start in range(first, last, BLOCK_KEYS):
        positions = start + offsets
        mask = positions < last
        cached = _cache_offsets(table_ptr, positions, mask, kv_head, KV_HEADS, HEAD_DIM, BLOCK_SIZE)
        k = tl.load(keys_ptr + cached[None, :] + dims[:, None], mask=mask[None, :], other=0.0)
        v = tl.load(values_ptr + cached[:, None] + dims[None, :], mask=mask[:, None], other=0.0)
        scores = tl.where(mask[None, :], tl.dot(q, k) * SCALE, _LOWEST)
        new_highest = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.exp2(scores - new_highest[:, None])
        shrink = tl.exp2(highest - new_highest)
        total = total * shrink + tl.sum(weights, 1)
        acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None])
        highest = new_highest
    if TRIGGER == LATE:
        gdc_launch_dependents()

    heads = row * HEADS + kv_head * GROUP + members
    inside = members < GROUP
    if SPLITS == 1:
        result = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + heads[:, None] * HEAD_DIM + dims[None, :], result, mask=inside[:, None])
    else:
        part = heads * SPLITS + split
        tl.store(partial_out_ptr + part[:, None] * HEAD_DIM + dims[None, :], acc, mask=inside[:, None])
        tl.store(partial_sums_ptr + part * 2, highest, mask=inside)
        tl.store(partial_sums_ptr + part * 2 + 1, total, mask=inside)


@triton.jit
def _attend_single_tile(
    qkv_ptr,
    keys_ptr,
    values_ptr,
    block_tables_ptr,
    context_lens_ptr,
    slots_ptr,
    positions_ptr,
    rotary_ptr,
    q_weight_ptr,
    k_weight_ptr,
    out_ptr,
    partial_out_ptr,
    partial_sums_ptr,
    table_stride,
    EPS: tl.constexpr,
    SCALE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    PREFETCH: tl.constexpr,
    TRIGGER: tl.constexpr,
):
    """One tile of keys and values a program, in registers before the wait for q, on CUDA cores."""
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    if TRIGGER == EARLY:
        gdc_launch_dependents()
    num_cached = tl.maximum(tl.load(context_lens_ptr + row) - 1, 0)
    dims = tl.arange(0, HEAD_DIM)
    positions = split * BLOCK_KEYS + tl.arange(0, BLOCK_KEYS)
    cached = positions < num_cached
    table_ptr = block_tables_ptr + row * table_stride
    if BLOCK_SIZE % BLOCK_KEYS == 0:  # the tile lies within one block: one look-up instead of one a key
        first = split * BLOCK_KEYS
        block = tl.load(table_ptr + first // BLOCK_SIZE, mask=first < num_cached, other=0).to(tl.int64)
        offsets = ((block * BLOCK_SIZE + positions % BLOCK_SIZE) * KV_HEADS + kv_head) * HEAD_DIM
    else:
        offsets = _cache_offsets(table_ptr, positions, cached, kv_head, KV_HEADS, HEAD_DIM, BLOCK_SIZE)
    k = tl.load(keys_ptr + offsets[:, None] + dims[None, :], mask=cached[:, None], other=0.0)
    v = tl.load(values_ptr + offsets[:, None] + dims[None, :], mask=cached[:, None], other=0.0)
    cos, sin = _rotary_row(rotary_ptr, tl.load(positions_ptr + row), HEAD_DIM)
    if TRIGGER:
        gdc_wait()

    HEADS: tl.constexpr = KV_HEADS * GROUP
    qkv_row = qkv_ptr + row * (HEADS + 2 * KV_HEADS) * HEAD_DIM
    key = _rotated_head(qkv_row + (HEADS + kv_head) * HEAD_DIM, k_weight_ptr, cos, sin, EPS, HEAD_DIM)
    key = key.to(keys_ptr.dtype.element_ty)
    value = tl.load(qkv_row + (HEADS + KV_HEADS + kv_head) * HEAD_DIM + dims)
    if num_cached // BLOCK_KEYS == split:
        slot = (tl.load(slots_ptr + row) * KV_HEADS + kv_head) * HEAD_DIM
        tl.store(keys_ptr + slot + dims, key)
        tl.store(values_ptr + slot + dims, value)
    is_new = (positions == num_cached)[:, None]
    k = tl.where(is_new, key[None, :], k).to(tl.float32)
    v = tl.where(is_new, value[None, :], v).to(tl.float32)
    visible = positions <= num_cached
    for member in tl.static_range(GROUP):
        head = kv_head * GROUP + member
        q = _rotated_head(qkv_row + head * HEAD_DIM, q_weight_ptr, cos, sin, EPS, HEAD_DIM) * SCALE
        scores = tl.where(visible, tl.sum(k * q[None, :], 1), _LOWEST)
        highest = tl.max(scores, 0)
        weights = tl.where(visible, tl.exp2(scores - highest), 0.0)
        total = tl.sum(weights, 0)
        acc = tl.sum(v * weights[:, None], 0)
        if SPLITS == 1:
            result = (acc / total).to(out_ptr.dtype.element_ty)
            tl.store(out_ptr + (row * HEADS + head) * HEAD_DIM + dims, result)
        else:
            part = (row * HEADS + head) * SPLITS + split
            tl.store(partial_out_ptr + part * HEAD_DIM + dims, acc)
            tl.store(partial_sums_ptr + part * 2, highest)
            tl.store(partial_sums_ptr + part * 2 + 1, total)
    if TRIGGER == LATE:
        gdc_launch_dependents()


@triton.jit
def _rotary_row(rotary_ptr, position, HEAD_DIM: tl.constexpr):
    """cos and sin [head_dim] of a position, the first half of sin negated."""
    HALF: tl.constexpr = HEAD_DIM // 2
    dims = tl.arange(0, HEAD_DIM)
    cos = tl.load(rotary_ptr + position * HEAD_DIM + dims % HALF)
    sin = tl.load(rotary_ptr + position * HEAD_DIM + HALF + dims % HALF)
    return cos, tl.where(dims < HALF, -sin, sin)


@triton.jit
def _rotated_head(head_ptr, weight_ptr, cos, sin, EPS: tl.constexpr, HEAD_DIM: tl.constexpr):
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
def _rotated_queries(qkv_row, weight_ptr, heads, inside, cos, sin, EPS: tl.constexpr, HEAD_DIM: tl.constexpr):
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


@triton.jit
def _cache_offsets(
    table_ptr,
    positions,
    mask,
    kv_head,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """Element offsets of this KV head's vectors at `positions`, through the row's block table."""
    blocks = tl.load(table_ptr + positions // BLOCK_SIZE, mask=mask, other=0).to(tl.int64)
    return ((blocks * BLOCK_SIZE + positions % BLOCK_SIZE) * KV_HEADS + kv_head) * HEAD_DIM


@triton.jit
def _prefetch_keys_and_values(
    keys_ptr,
    values_ptr,
    table_ptr,
    positions,
    last,
    kv_head,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """A tile: the waiting time reads it from memory to L2. Beyond `last`, lines of block 0."""
    offsets = _cache_offsets(table_ptr, positions, positions < last, kv_head, KV_HEADS, HEAD_DIM, BLOCK_SIZE)
    lines = offsets[:, None] + tl.arange(0, HEAD_DIM // 64)[None, :] * 64
    prefetch_to_l2(keys_ptr + lines)
    prefetch_to_l2(values_ptr + lines)
