"""Attention of one new row per sequence over a paged cache; every program has as many keys to read.

Contract, for B rows, H query heads over KV heads, head size D:
  q [B, H, D]; k, v [B, KV, D], the new row's: dtype of the cache, any stride between rows, contiguous
  within one
  keys, values [blocks, block_size, KV, D], contiguous
  block_tables [B, any] int32, any stride between rows
  context_lens [B] int32, the new row included; rows of 0, the last ones, are not there
  slots [B] int64, where k and v are written
  out [B, H * D], contiguous

The rows' keys, cut into tiles, are one long list, of which each range takes an equal stretch ("stream-K",
Osama et al. 2023; for decodes "lean attention", Sanovar et al. 2024): however many rows there are, and
however long, the programs end together. A program owns (range, KV head); the query heads of a group are the
rows of one matrix product, padded to 16. The range that holds a row's last tile writes k and v, and takes
them from its registers: nothing waits for the write.

A row that lies in one range is complete with it. Of others each range leaves a part, to be combined:
partial [ranges, 2, H, D] and stats [ranges, 2, H, 2], fp32, see `online_softmax`. Part 0 is of the row that
the range begins with, part 1 of the one it ends with, if that is another.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.triton.online_softmax import combine_parts, softmax_step, store_split, store_whole
from kernels.triton.paged_cache import tile_offsets
from kernels.triton.pdl import EARLY, LATE, Trigger, launch_options, trigger_code

_LOG2_E = 1.4426950408889634
_NO_WINDOW = 2**30  # longer than any context
_PLANNED_AT_ONCE = 1024  # rows


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """How decodes are cut up: tiles of `block_keys` keys, in `num_ranges` ranges."""

    block_keys: int
    num_warps: int
    num_stages: int
    num_ranges: int
    trigger: Trigger = "none"  # when the next kernel may start, see kernels/triton/pdl.py


@triton.jit
def _tiles_of(length, BLOCK_KEYS: tl.constexpr, WINDOW: tl.constexpr):
    """(first, end): the tiles that a row of so many keys reads."""
    return tl.maximum(length - WINDOW, 0) // BLOCK_KEYS, tl.cdiv(length, BLOCK_KEYS)


@triton.jit(
    do_not_specialize=["num_rows", "num_ranges"],
    do_not_specialize_on_alignment=["lens_ptr"],
)
def plan_ranges(
    lens_ptr,
    ranges_ptr,
    num_rows,
    num_ranges,
    BLOCK_KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """ranges [R, 3] int32 of a range each: its first row, that row's tile to begin with, how many tiles."""
    num_tiles = 0
    for begin in range(0, num_rows, BLOCK):
        num_tiles += tl.sum(_num_tiles(lens_ptr, begin, num_rows, BLOCK_KEYS, WINDOW, BLOCK), 0)
    share = tl.cdiv(num_tiles, num_ranges)
    first = tl.minimum(tl.program_id(0) * share, num_tiles)
    row, seen, before = 0, 0, 0  # rows that end before `first`, all rows' tiles so far, those rows' tiles
    for begin in range(0, num_rows, BLOCK):
        tiles = _num_tiles(lens_ptr, begin, num_rows, BLOCK_KEYS, WINDOW, BLOCK)
        over = seen + tl.cumsum(tiles, 0) <= first
        row += tl.sum(over.to(tl.int32), 0)
        before += tl.sum(tl.where(over, tiles, 0), 0)
        seen += tl.sum(tiles, 0)
    length = tl.load(lens_ptr + row, mask=row < num_rows, other=0)
    first_of_row, _ = _tiles_of(length, BLOCK_KEYS, WINDOW)
    range_ptr = ranges_ptr + tl.program_id(0) * 3
    tl.store(range_ptr, row)
    tl.store(range_ptr + 1, first_of_row + first - before)
    tl.store(range_ptr + 2, tl.minimum(share, num_tiles - first))


@triton.jit
def _num_tiles(
    lens_ptr, begin, num_rows, BLOCK_KEYS: tl.constexpr, WINDOW: tl.constexpr, BLOCK: tl.constexpr
):
    """Of rows begin to begin + BLOCK."""
    rows = begin + tl.arange(0, BLOCK)
    first, end = _tiles_of(tl.load(lens_ptr + rows, mask=rows < num_rows, other=0), BLOCK_KEYS, WINDOW)
    return end - first


@triton.jit(
    do_not_specialize=["table_stride"],
    do_not_specialize_on_alignment=["tables_ptr", "lens_ptr", "slots_ptr"],
)
def attend_ranges(
    q_ptr,
    k_ptr,
    v_ptr,
    keys_ptr,
    values_ptr,
    tables_ptr,
    lens_ptr,
    slots_ptr,
    ranges_ptr,
    out_ptr,
    partial_ptr,
    stats_ptr,
    q_stride,
    k_stride,
    v_stride,
    table_stride,
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
    if TRIGGER == EARLY:
        gdc_launch_dependents()
    if TRIGGER:
        gdc_wait()
    # Heads vary fastest: programs that run together read neighbouring parts of the same slots.
    kv_head, which = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row, tile, num_tiles = _load_range(ranges_ptr, which)
    if num_tiles == 0:
        return
    HEADS: tl.constexpr = KV_HEADS * GROUP
    members = tl.arange(0, GROUP_PAD)
    heads, inside = kv_head * GROUP + members, members < GROUP
    length = tl.load(lens_ptr + row)
    first, end = _tiles_of(length, BLOCK_KEYS, WINDOW)
    began_row, row_ends = tile == first, tile == end
    part = which * 2
    q = _load_queries(q_ptr + row * q_stride, heads, inside, HEAD_DIM, DIM_PAD)
    acc, top, total = _nothing_seen(GROUP_PAD, DIM_PAD)
    for i in range(num_tiles):
        # The last key is the new one, which the cache does not have yet.
        k, v, positions = _load_cached(
            keys_ptr, values_ptr, tables_ptr + row * table_stride, tile, length - 1, kv_head,
            KV_HEADS, HEAD_DIM, DIM_PAD, BLOCK_SIZE, BLOCK_KEYS,
        )  # fmt: skip
        visible = (positions >= length - WINDOW) & (positions < length - 1)
        acc, top, total = softmax_step(acc, top, total, q, k, v, visible[None, :], scale_log2)
        # Where the next tile is does not depend on what came of this one, so that its loads can begin.
        this_row, row_ends, goes_on = row, tile + 1 == end, i + 1 < num_tiles
        row += row_ends.to(tl.int64)
        length = tl.load(lens_ptr + row, mask=goes_on, other=0)
        first, end = _tiles_of(length, BLOCK_KEYS, WINDOW)
        tile = tl.where(row_ends, first, tile + 1)
        if row_ends:
            key, value = _write_new(
                k_ptr + this_row * k_stride, v_ptr + this_row * v_stride, keys_ptr, values_ptr,
                tl.load(slots_ptr + this_row), kv_head, KV_HEADS, HEAD_DIM, DIM_PAD,
            )  # fmt: skip
            acc, top, total = _see_key(acc, top, total, q, key, value, scale_log2)
            if began_row:
                store_whole(out_ptr, this_row * HEADS + heads, acc, total, inside, HEAD_DIM)
            else:
                store_split(partial_ptr, stats_ptr, part * HEADS + heads, acc, top, total, inside, HEAD_DIM)
            q = _load_queries(q_ptr + row * q_stride, heads, inside & goes_on, HEAD_DIM, DIM_PAD)
            acc, top, total = _nothing_seen(GROUP_PAD, DIM_PAD)
            began_row = True
            part = which * 2 + 1
    if not row_ends:
        store_split(partial_ptr, stats_ptr, part * HEADS + heads, acc, top, total, inside, HEAD_DIM)
    if TRIGGER == LATE:
        gdc_launch_dependents()


@triton.jit
def _load_range(ranges_ptr, which):
    """(row, tile, number of tiles), see `plan_ranges`."""
    range_ptr = ranges_ptr + which * 3
    return tl.load(range_ptr).to(tl.int64), tl.load(range_ptr + 1), tl.load(range_ptr + 2)


@triton.jit
def _nothing_seen(GROUP_PAD: tl.constexpr, DIM_PAD: tl.constexpr):
    """The online softmax's state; the score is above a masked one, so that a tile of those weighs 0."""
    acc = tl.zeros([GROUP_PAD, DIM_PAD], tl.float32)
    return acc, tl.full([GROUP_PAD], -1e29, tl.float32), tl.zeros([GROUP_PAD], tl.float32)


@triton.jit
def _load_queries(row_ptr, heads, inside, HEAD_DIM: tl.constexpr, DIM_PAD: tl.constexpr):
    dims = tl.arange(0, DIM_PAD)
    mask = inside[:, None] & (dims < HEAD_DIM)[None, :]
    return tl.load(row_ptr + heads[:, None] * HEAD_DIM + dims[None, :], mask=mask, other=0.0)


@triton.jit
def _load_cached(
    keys_ptr,
    values_ptr,
    table_ptr,
    tile,
    end,
    kv_head,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
):
    """Keys [DIM_PAD, BLOCK_KEYS] and values [BLOCK_KEYS, DIM_PAD] before `end`, and the tile's positions."""
    dims = tl.arange(0, DIM_PAD)
    positions = tile * BLOCK_KEYS + tl.arange(0, BLOCK_KEYS)
    offsets = tile_offsets(
        table_ptr, tile * BLOCK_KEYS, end, kv_head, KV_HEADS, HEAD_DIM, BLOCK_SIZE, BLOCK_KEYS
    )
    in_cache, in_head = positions < end, dims < HEAD_DIM
    k_mask, v_mask = in_cache[None, :] & in_head[:, None], in_cache[:, None] & in_head[None, :]
    k = tl.load(keys_ptr + offsets[None, :] + dims[:, None], mask=k_mask, other=0.0)
    v = tl.load(values_ptr + offsets[:, None] + dims[None, :], mask=v_mask, other=0.0)
    return k, v, positions


@triton.jit
def _write_new(
    k_ptr,
    v_ptr,
    keys_ptr,
    values_ptr,
    slot,
    kv_head,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
):
    """One head of a row's new key and value to the cache; returns them, [DIM_PAD]."""
    dims = tl.arange(0, DIM_PAD)
    mask = dims < HEAD_DIM
    key = tl.load(k_ptr + kv_head * HEAD_DIM + dims, mask=mask, other=0.0)
    value = tl.load(v_ptr + kv_head * HEAD_DIM + dims, mask=mask, other=0.0)
    offsets = (slot * KV_HEADS + kv_head) * HEAD_DIM + dims
    tl.store(keys_ptr + offsets, key, mask=mask)
    tl.store(values_ptr + offsets, value, mask=mask)
    return key, value


@triton.jit
def _see_key(acc, top, total, q, key, value, scale_log2):
    """As `softmax_step`, for one key more, which is visible."""
    score = tl.sum(q.to(tl.float32) * key.to(tl.float32)[None, :], 1) * scale_log2
    new_top = tl.maximum(top, score)
    decay, weight = tl.exp2(top - new_top), tl.exp2(score - new_top)
    acc = acc * decay[:, None] + weight[:, None] * value.to(tl.float32)[None, :]
    return acc, new_top, total * decay + weight


@triton.jit(do_not_specialize=["num_ranges"], do_not_specialize_on_alignment=["lens_ptr"])
def combine_ranges(
    partial_ptr,
    stats_ptr,
    ranges_ptr,
    lens_ptr,
    out_ptr,
    num_ranges,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    RANGES_PAD: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
    TRIGGER: tl.constexpr,
):
    """Put together the parts of a row: by the program of the second of its ranges."""
    if TRIGGER == EARLY:
        gdc_launch_dependents()
    if TRIGGER:
        gdc_wait()
    head, second = tl.program_id(0), tl.program_id(1) + 1
    row, tile, num_tiles = _load_range(ranges_ptr, second)
    first, _ = _tiles_of(tl.load(lens_ptr + row, mask=num_tiles > 0, other=0), BLOCK_KEYS, WINDOW)
    row_before, tile_before, _ = _load_range(ranges_ptr, second - 1)
    begins_before = (row_before < row) | (tile_before == first)
    if (num_tiles == 0) | (tile == first) | (not begins_before):
        return
    which = tl.arange(0, RANGES_PAD)
    there = (which >= second) & (which < num_ranges)
    rows = tl.load(ranges_ptr + which * 3, mask=there, other=-1)
    tiles = tl.load(ranges_ptr + which * 3 + 2, mask=there, other=0)
    is_first = which == second - 1
    part = which * 2 + (is_first & (row_before < row)).to(tl.int32)
    inside = is_first | ((rows == row) & (tiles > 0))
    result = combine_parts(partial_ptr, stats_ptr, part * HEADS + head, inside, DIM_PAD, HEAD_DIM)
    dims = tl.arange(0, DIM_PAD)
    to_ptr = out_ptr + (row * HEADS + head) * HEAD_DIM + dims
    tl.store(to_ptr, result.to(out_ptr.dtype.element_ty), mask=dims < HEAD_DIM)


def scratch_size(num_heads: int, head_dim: int, num_ranges: int) -> int:
    """Floats that `attend_decodes` needs as `scratch`."""
    return num_ranges * 2 * num_heads * (head_dim + 2)


def plan_decodes(context_lens: torch.Tensor, window: int | None, config: DecodeConfig) -> torch.Tensor:
    """The `ranges` of all layers of a step, [num_ranges, 3] int32; context_lens [B] int32."""
    ranges = torch.empty((config.num_ranges, 3), dtype=torch.int32, device=context_lens.device)
    plan_ranges[(config.num_ranges,)](
        context_lens, ranges, len(context_lens), config.num_ranges,
        BLOCK_KEYS=config.block_keys, WINDOW=window or _NO_WINDOW, BLOCK=_PLANNED_AT_ONCE, num_warps=4,
    )  # fmt: skip
    return ranges


def attend_decodes(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    slots: torch.Tensor,
    ranges: torch.Tensor,
    out: torch.Tensor,
    scratch: torch.Tensor,
    *,
    scale: float,
    window: int | None,
    config: DecodeConfig,
) -> None:
    """Shapes as above; `ranges` from `plan_decodes`; `scratch` holds the parts: [scratch_size(...)] fp32."""
    _, num_heads, head_dim = q.shape
    _, block_size, kv_heads, _ = keys.shape
    group, num_ranges = num_heads // kv_heads, config.num_ranges
    size = num_ranges * 2 * num_heads * head_dim
    partial, stats = scratch[:size], scratch[size:]
    trigger = trigger_code(config.trigger, q.device)
    common = {
        "HEAD_DIM": head_dim,
        "DIM_PAD": triton.next_power_of_2(head_dim),
        "BLOCK_KEYS": config.block_keys,
        "WINDOW": window or _NO_WINDOW,
        "TRIGGER": trigger,
        **launch_options(trigger),
    }
    attend_ranges[(kv_heads, num_ranges)](
        q, k, v, keys, values, block_tables, context_lens, slots, ranges, out, partial, stats,
        q.stride(0), k.stride(0), v.stride(0), block_tables.stride(0), scale * _LOG2_E,
        KV_HEADS=kv_heads, GROUP=group, GROUP_PAD=max(16, triton.next_power_of_2(group)),
        BLOCK_SIZE=block_size, num_warps=config.num_warps, num_stages=config.num_stages, **common,
    )  # fmt: skip
    if num_ranges > 1:
        parts = triton.next_power_of_2(num_ranges)
        combine_ranges[(num_heads, num_ranges - 1)](
            partial, stats, ranges, context_lens, out, num_ranges,
            HEADS=num_heads, RANGES_PAD=parts,
            num_warps=min(max(parts * common["DIM_PAD"] // 4096, 4), 16), **common,
        )  # fmt: skip
