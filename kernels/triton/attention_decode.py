"""Split-KV attention of one new row per sequence over a paged cache ("flash decoding", Dao et al. 2023).

Contract of both kernels, for B rows, H query heads over KV heads, head size D:
  q [B, H, D]; k, v [B, KV, D], the new row's: dtype of the cache, any stride between rows, contiguous
  within one
  keys, values [blocks, block_size, KV, D], contiguous
  block_tables [B, any] int32, any stride between rows; context_lens [B] int32, the new row included
  slots [B] int64, where k and v are written
  order [B] int64, a permutation: programs of order[0] start first (long rows last would run alone at the end)
  out [B, H * D], contiguous; partial [B, H, splits, D] and stats [B, H, splits, 2], fp32 scratch
A program owns (row, KV head, split). The query heads of a group are the rows of one matrix product, padded to
16. Splits are whole tiles of keys; programs past a row's context end at once. The split that owns the last
position writes k and v, and takes them from its registers: nothing waits for the write.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.triton.online_softmax import (
    combine_parts,
    softmax_new_key,
    softmax_step,
    store_split,
    store_whole,
)
from kernels.triton.paged_cache import tile_offsets
from kernels.triton.pdl import EARLY, LATE, Trigger, launch_options, trigger_code

_LOG2_E = 1.4426950408889634
_NO_WINDOW = 2**30  # longer than any context


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """How a decode is cut up. `min_split_tiles` tiles of `block_keys` keys are one split at least."""

    block_keys: int
    num_warps: int
    num_stages: int
    num_splits: int
    min_split_tiles: int = 1
    trigger: Trigger = "none"  # when the next kernel may start, see kernels/triton/pdl.py


@triton.jit
def _split_tiles(length, num_splits, min_split_tiles, block_keys, WINDOW: tl.constexpr):
    """(first key, a multiple of the tile; tiles of each split; splits that have any)."""
    start = tl.maximum(length - WINDOW, 0) // block_keys * block_keys
    num_tiles = tl.cdiv(length - start, block_keys)
    tiles = tl.maximum(tl.cdiv(num_tiles, num_splits), min_split_tiles)
    return start, tiles, tl.cdiv(num_tiles, tiles)


@triton.jit
def _attend_tiles(
    acc,
    top,
    total,
    q,
    keys_ptr,
    values_ptr,
    table_ptr,
    begin,
    end,
    first_visible,
    kv_head,
    scale_log2,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
):
    """Online softmax over the cached keys begin to end."""
    dims = tl.arange(0, DIM_PAD)
    dim_mask = dims < HEAD_DIM
    for first in range(begin, end, BLOCK_KEYS):
        positions = first + tl.arange(0, BLOCK_KEYS)
        cached = positions < end
        offsets = tile_offsets(table_ptr, first, end, kv_head, KV_HEADS, HEAD_DIM, BLOCK_SIZE, BLOCK_KEYS)
        k_mask, v_mask = cached[None, :] & dim_mask[:, None], cached[:, None] & dim_mask[None, :]
        k = tl.load(keys_ptr + offsets[None, :] + dims[:, None], mask=k_mask, other=0.0)
        v = tl.load(values_ptr + offsets[:, None] + dims[None, :], mask=v_mask, other=0.0)
        visible = cached & (positions >= first_visible)
        acc, top, total = softmax_step(acc, top, total, q, k, v, visible[None, :], scale_log2)
    return acc, top, total


@triton.jit
def _load_queries(
    q_ptr,
    kv_head,
    GROUP: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
):
    """The query heads of a row's group, [GROUP_PAD, DIM_PAD], padded with zeros."""
    dims = tl.arange(0, DIM_PAD)
    group = tl.arange(0, GROUP_PAD)
    mask = (group < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    offsets = (kv_head * GROUP + group)[:, None] * HEAD_DIM + dims[None, :]
    return tl.load(q_ptr + offsets, mask=mask, other=0.0)


@triton.jit
def _move_head(from_ptr, to_ptr, HEAD_DIM: tl.constexpr, DIM_PAD: tl.constexpr):
    """One head of the new row to the cache; returns it, [DIM_PAD]."""
    dims = tl.arange(0, DIM_PAD)
    head = tl.load(from_ptr + dims, mask=dims < HEAD_DIM, other=0.0)
    tl.store(to_ptr + dims, head, mask=dims < HEAD_DIM)
    return head


@triton.jit(
    do_not_specialize=["table_stride", "num_splits", "min_split_tiles"],
    do_not_specialize_on_alignment=["tables_ptr", "lens_ptr", "slots_ptr", "order_ptr"],
)
def decode_splits(
    q_ptr,
    k_ptr,
    v_ptr,
    keys_ptr,
    values_ptr,
    tables_ptr,
    lens_ptr,
    slots_ptr,
    order_ptr,
    out_ptr,
    partial_ptr,
    stats_ptr,
    q_stride,
    k_stride,
    v_stride,
    table_stride,
    num_splits,
    min_split_tiles,
    scale_log2,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
    TRIGGER: tl.constexpr,
):
    """One split of one row for the query heads of one KV head, as above."""
    if TRIGGER == EARLY:
        gdc_launch_dependents()
    if TRIGGER:
        gdc_wait()
    # Heads vary fastest: programs that run together read neighbouring parts of the same slots.
    kv_head = tl.program_id(0)
    row = tl.load(order_ptr + tl.program_id(1))
    split = tl.program_id(2)
    length = tl.load(lens_ptr + row)
    start, tiles, active = _split_tiles(length, num_splits, min_split_tiles, BLOCK_KEYS, WINDOW)
    if split >= active:
        return
    begin = start + split * tiles * BLOCK_KEYS
    end = tl.minimum(begin + tiles * BLOCK_KEYS, length - 1)  # of the cached keys: the last is new

    q = _load_queries(q_ptr + row * q_stride, kv_head, GROUP, GROUP_PAD, HEAD_DIM, DIM_PAD)
    top = tl.full([GROUP_PAD], -1e29, tl.float32)  # above a masked score, so that a tile of them weighs 0
    total = tl.zeros([GROUP_PAD], tl.float32)
    acc = tl.zeros([GROUP_PAD, DIM_PAD], tl.float32)
    if split == active - 1:
        new = kv_head * HEAD_DIM
        cached = (tl.load(slots_ptr + row) * KV_HEADS + kv_head) * HEAD_DIM
        k = _move_head(k_ptr + row * k_stride + new, keys_ptr + cached, HEAD_DIM, DIM_PAD)
        v = _move_head(v_ptr + row * v_stride + new, values_ptr + cached, HEAD_DIM, DIM_PAD)
        acc, top, total = softmax_new_key(acc, total, q, k, v, scale_log2)
    acc, top, total = _attend_tiles(
        acc, top, total, q, keys_ptr, values_ptr, tables_ptr + row * table_stride, begin, end,
        length - WINDOW, kv_head, scale_log2, KV_HEADS, HEAD_DIM, DIM_PAD, BLOCK_SIZE, BLOCK_KEYS,
    )  # fmt: skip

    if TRIGGER == LATE:
        gdc_launch_dependents()
    group = tl.arange(0, GROUP_PAD)
    head = row * (KV_HEADS * GROUP) + kv_head * GROUP + group
    if active == 1:
        store_whole(out_ptr, head, acc, total, group < GROUP, HEAD_DIM)
    else:
        part = head * num_splits + split
        store_split(partial_ptr, stats_ptr, part, acc, top, total, group < GROUP, HEAD_DIM)


@triton.jit(
    do_not_specialize=["num_splits", "min_split_tiles", "block_keys"],
    do_not_specialize_on_alignment=["lens_ptr"],
)
def combine_splits(
    partial_ptr,
    stats_ptr,
    lens_ptr,
    out_ptr,
    num_splits,
    min_split_tiles,
    block_keys,
    NUM_HEADS: tl.constexpr,
    HEADS_PER_PROGRAM: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    SPLITS_PAD: tl.constexpr,
    WINDOW: tl.constexpr,
    TRIGGER: tl.constexpr,
):
    """Weigh the splits of a row by their share of the softmax; rows of one split are complete already."""
    if TRIGGER == EARLY:
        gdc_launch_dependents()
    if TRIGGER:
        gdc_wait()
    row = tl.program_id(1).to(tl.int64)
    length = tl.load(lens_ptr + row)
    _, _, active = _split_tiles(length, num_splits, min_split_tiles, block_keys, WINDOW)
    if active <= 1:
        return
    dims = tl.arange(0, DIM_PAD)
    splits = tl.arange(0, SPLITS_PAD)
    for i in tl.static_range(HEADS_PER_PROGRAM):
        head = row * NUM_HEADS + tl.program_id(0) * HEADS_PER_PROGRAM + i
        part = head * num_splits + splits
        result = combine_parts(partial_ptr, stats_ptr, part, splits < active, DIM_PAD, HEAD_DIM)
        result = result.to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + head * HEAD_DIM + dims, result, mask=dims < HEAD_DIM)


def scratch_size(num_rows: int, num_heads: int, head_dim: int, num_splits: int) -> int:
    """Floats that `attend_decodes` needs as `scratch`."""
    return num_rows * num_heads * num_splits * (head_dim + 2) if num_splits > 1 else 0


def attend_decodes(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    slots: torch.Tensor,
    order: torch.Tensor,
    out: torch.Tensor,
    scratch: torch.Tensor,
    *,
    scale: float,
    window: int | None,
    config: DecodeConfig,
) -> None:
    """Shapes as above; `scratch` holds the partial results: [scratch_size(...)] fp32."""
    num_rows, num_heads, head_dim = q.shape
    _, block_size, kv_heads, _ = keys.shape
    group = num_heads // kv_heads
    num_splits = config.num_splits
    num_parts = num_rows * num_heads * num_splits
    partial, stats = scratch[: num_parts * head_dim], scratch[num_parts * head_dim :]
    trigger = trigger_code(config.trigger, q.device)
    common = {
        "HEAD_DIM": head_dim,
        "DIM_PAD": triton.next_power_of_2(head_dim),
        "WINDOW": window or _NO_WINDOW,
        "TRIGGER": trigger,
        **launch_options(trigger),
    }
    decode_splits[(kv_heads, num_rows, num_splits)](
        q, k, v, keys, values, block_tables, context_lens, slots, order, out, partial, stats,
        q.stride(0), k.stride(0), v.stride(0), block_tables.stride(0),
        num_splits, config.min_split_tiles, scale * _LOG2_E,
        KV_HEADS=kv_heads, GROUP=group, GROUP_PAD=max(16, triton.next_power_of_2(group)),
        BLOCK_SIZE=block_size, BLOCK_KEYS=config.block_keys,
        num_warps=config.num_warps, num_stages=config.num_stages, **common,
    )  # fmt: skip
    if num_splits > 1:
        # Few rows want programs, many rows want few: most of them may have nothing to combine.
        per_program = 1 if num_rows * num_heads <= 512 else group
        combine_splits[(num_heads // per_program, num_rows)](
            partial, stats, context_lens, out, num_splits, config.min_split_tiles, config.block_keys,
            NUM_HEADS=num_heads, HEADS_PER_PROGRAM=per_program,
            SPLITS_PAD=8 if num_splits <= 8 else triton.next_power_of_2(max(num_splits, 64)),
            num_warps=4, **common,
        )  # fmt: skip
