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

from kernels.triton.online_softmax import MASKED, softmax_new_key, softmax_step, store_split, store_whole
from kernels.triton.paged_cache import load_tile, prefetch_tile
from kernels.triton.pdl import EARLY, LATE, launch_options, trigger_code
from kernels.triton.small_batch.rotated_heads import rotary_row, rotated_head, rotated_queries
from kernels.triton.small_batch.tiles import AttentionTile


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
        qkv, keys, values,
        context.block_tables, context.context_lens, context.slots, context.positions, context.rotary_table,
        None if norms is None else norms.q_weight, None if norms is None else norms.k_weight,
        out, partial_out, partial_sums, context.block_tables.stride(0),
        EPS=0.0 if norms is None else norms.eps, SCALE=scale * math.log2(math.e),
        HEAD_DIM=head_dim, KV_HEADS=num_kv_heads, GROUP=out.shape[1] // (num_kv_heads * head_dim),
        BLOCK_SIZE=block_size, SPLITS=tile.splits, BLOCK_KEYS=tile.block_keys,
        TRIGGER=code, num_warps=tile.num_warps, num_stages=tile.num_stages, **launch_options(code),
    )  # fmt: skip


@triton.jit(do_not_specialize=["table_stride"])
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
    cos, sin = rotary_row(rotary_ptr, tl.load(positions_ptr + row), HEAD_DIM)
    if TRIGGER:
        prefetch_tile(
            keys_ptr, values_ptr, table_ptr, first, last, kv_head, KV_HEADS, HEAD_DIM, BLOCK_SIZE, BLOCK_KEYS
        )
        gdc_wait()

    HEADS: tl.constexpr = KV_HEADS * GROUP
    qkv_row = qkv_ptr + row * (HEADS + 2 * KV_HEADS) * HEAD_DIM
    members = tl.arange(0, 16)
    q = rotated_queries(
        qkv_row, q_weight_ptr, kv_head * GROUP + members, members < GROUP, cos, sin, EPS, HEAD_DIM
    )
    q = q.to(keys_ptr.dtype.element_ty)
    highest = tl.full([16], MASKED, tl.float32)
    total = tl.zeros([16], tl.float32)
    acc = tl.zeros([16, HEAD_DIM], tl.float32)
    if (first <= num_cached) & (num_cached < first + share):  # the new token is in this split
        key, value = _new_key_and_value(
            qkv_row + HEADS * HEAD_DIM, k_weight_ptr, keys_ptr, kv_head, cos, sin, EPS, KV_HEADS, HEAD_DIM
        )
        _write_to_slot(keys_ptr, values_ptr, slots_ptr + row, key, value, kv_head, KV_HEADS, HEAD_DIM)
        acc, highest, total = softmax_new_key(acc, total, q, key, value, SCALE)
    for start in range(first, last, BLOCK_KEYS):
        k, v, in_tile = load_tile(
            keys_ptr, values_ptr, table_ptr, start, last, kv_head, KV_HEADS, HEAD_DIM, BLOCK_SIZE, BLOCK_KEYS
        )
        acc, highest, total = softmax_step(acc, highest, total, q, tl.trans(k), v, in_tile[None, :], SCALE)
    if TRIGGER == LATE:
        gdc_launch_dependents()

    heads = row * HEADS + kv_head * GROUP + members
    inside = members < GROUP
    if SPLITS == 1:
        store_whole(out_ptr, heads, acc, total, inside, HEAD_DIM)
    else:
        part = heads * SPLITS + split
        store_split(partial_out_ptr, partial_sums_ptr, part, acc, highest, total, inside, HEAD_DIM)


@triton.jit(do_not_specialize=["table_stride"])
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
    table_ptr = block_tables_ptr + row * table_stride
    k, v, _ = load_tile(
        keys_ptr, values_ptr, table_ptr, split * BLOCK_KEYS, num_cached, kv_head,
        KV_HEADS, HEAD_DIM, BLOCK_SIZE, BLOCK_KEYS,
    )  # fmt: skip
    cos, sin = rotary_row(rotary_ptr, tl.load(positions_ptr + row), HEAD_DIM)
    if TRIGGER:
        gdc_wait()

    HEADS: tl.constexpr = KV_HEADS * GROUP
    qkv_row = qkv_ptr + row * (HEADS + 2 * KV_HEADS) * HEAD_DIM
    key, value = _new_key_and_value(
        qkv_row + HEADS * HEAD_DIM, k_weight_ptr, keys_ptr, kv_head, cos, sin, EPS, KV_HEADS, HEAD_DIM
    )
    if num_cached // BLOCK_KEYS == split:
        _write_to_slot(keys_ptr, values_ptr, slots_ptr + row, key, value, kv_head, KV_HEADS, HEAD_DIM)
    positions = split * BLOCK_KEYS + tl.arange(0, BLOCK_KEYS)
    is_new = (positions == num_cached)[:, None]
    k = tl.where(is_new, key[None, :], k).to(tl.float32)
    v = tl.where(is_new, value[None, :], v).to(tl.float32)
    visible = positions <= num_cached
    for member in tl.static_range(GROUP):
        head = kv_head * GROUP + member
        q = rotated_head(qkv_row + head * HEAD_DIM, q_weight_ptr, cos, sin, EPS, HEAD_DIM) * SCALE
        acc, highest, total = _attend_one_head(q, k, v, visible)
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
def _attend_one_head(q, k, v, visible):
    """(weighted values' sum [D], highest score, weights' sum) for q [D], k and v [N, D], fp32."""
    scores = tl.where(visible, tl.sum(k * q[None, :], 1), MASKED)
    highest = tl.max(scores, 0)
    weights = tl.where(visible, tl.exp2(scores - highest), 0.0)
    return tl.sum(v * weights[:, None], 0), highest, tl.sum(weights, 0)


@triton.jit
def _new_key_and_value(
    k_heads_ptr,
    k_weight_ptr,
    keys_ptr,
    kv_head,
    cos,
    sin,
    EPS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Of the new token, as the cache keeps them; `k_heads_ptr` is where its keys begin, values behind."""
    key = rotated_head(k_heads_ptr + kv_head * HEAD_DIM, k_weight_ptr, cos, sin, EPS, HEAD_DIM)
    value = tl.load(k_heads_ptr + (KV_HEADS + kv_head) * HEAD_DIM + tl.arange(0, HEAD_DIM))
    return key.to(keys_ptr.dtype.element_ty), value


@triton.jit
def _write_to_slot(
    keys_ptr, values_ptr, slot_ptr, key, value, kv_head, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr
):
    offsets = (tl.load(slot_ptr) * KV_HEADS + kv_head) * HEAD_DIM + tl.arange(0, HEAD_DIM)
    tl.store(keys_ptr + offsets, key)
    tl.store(values_ptr + offsets, value)
