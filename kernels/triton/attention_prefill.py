"""Causal attention of prompt chunks over a paged cache that holds their own keys and values already.

FlashAttention-2 (Dao 2023) with a block table. Contract, for C chunks of together T rows, H query heads over
KV heads, head size D:
  q [T, H, D], any stride between rows, contiguous within one, dtype of the cache
  keys, values [blocks, block_size, KV, D], contiguous
  block_tables [C, any] int32, any stride between rows; context_lens [C] int32, the chunk's rows included
  query_starts [C + 1] int32: chunk c is rows query_starts[c] to query_starts[c + 1]
  tiles [2, N] int32: chunk and first row within it of each tile of queries, see `query_tiles`
  out [T, H * D], contiguous
The last row of a chunk sees its whole context, each row before it one position less. A program owns (KV head,
tile of queries): the heads of a group stand in the M dimension beside the positions, so that a small chunk
fills it and keys and values are read once for all of them. Only tiles at the diagonal are masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.triton.online_softmax import softmax_step, store_whole
from kernels.triton.paged_cache import tile_offsets

_LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class PrefillConfig:
    """Tile sizes: `block_rows` rows of (position, head), `block_keys` keys."""

    block_rows: int
    block_keys: int
    num_warps: int
    num_stages: int

    def tile_positions(self, group: int) -> int:
        """Query positions in a tile when `group` heads share a KV head. Raises ValueError if none fits."""
        if group > self.block_rows:
            raise ValueError(
                f"{group} query heads for each KV head do not fit a tile of {self.block_rows} rows"
            )
        return self.block_rows // group


def query_tiles(
    query_lens: Sequence[int], context_lens: Sequence[int], positions: int
) -> tuple[list[int], list[int]]:
    """(chunk, first row within it) of each tile of `positions` rows; those that see most keys come first."""
    tiles = []
    for chunk, (rows, context) in enumerate(zip(query_lens, context_lens, strict=True)):
        tiles += [(context - rows + first, chunk, first) for first in range(0, rows, positions)]
    tiles.sort(reverse=True)
    return [chunk for _, chunk, _ in tiles], [first for _, _, first in tiles]


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
    positions,
    kv_head,
    scale_log2,
    MASKED: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Online softmax over keys begin to end. Not MASKED: every row sees every key of every tile."""
    dims = tl.arange(0, DIM_PAD)
    dim_mask = dims < HEAD_DIM
    for first in range(begin, end, BLOCK_KEYS):
        offsets = tile_offsets(table_ptr, first, end, kv_head, KV_HEADS, HEAD_DIM, BLOCK_SIZE, BLOCK_KEYS)
        pointers = offsets[:, None] + dims[None, :]
        key_positions = first + tl.arange(0, BLOCK_KEYS)
        if MASKED:
            # Slots past the context may hold anything, and 0 * NaN is NaN.
            load_mask = (key_positions < end)[:, None] & dim_mask[None, :]
            k = tl.load(keys_ptr + pointers, mask=load_mask, other=0.0)
            v = tl.load(values_ptr + pointers, mask=load_mask, other=0.0)
        elif HEAD_DIM == DIM_PAD:
            k = tl.load(keys_ptr + pointers)
            v = tl.load(values_ptr + pointers)
        else:
            k = tl.load(keys_ptr + pointers, mask=dim_mask[None, :], other=0.0)
            v = tl.load(values_ptr + pointers, mask=dim_mask[None, :], other=0.0)
        visible = None
        if MASKED:
            visible = key_positions[None, :] <= positions[:, None]
            if WINDOW > 0:
                visible = visible & (key_positions[None, :] > positions[:, None] - WINDOW)
        acc, top, total = softmax_step(acc, top, total, q, tl.trans(k), v, visible, scale_log2)
    return acc, top, total


# A step's chunks begin anywhere in its tensors: their alignment must not make further variants.
@triton.jit(
    do_not_specialize=["table_stride", "num_tiles"],
    do_not_specialize_on_alignment=["tables_ptr", "lens_ptr", "query_starts_ptr", "tiles_ptr"],
)
def prefill_tiles(
    q_ptr,
    keys_ptr,
    values_ptr,
    tables_ptr,
    lens_ptr,
    query_starts_ptr,
    tiles_ptr,
    out_ptr,
    q_stride,
    table_stride,
    num_tiles,
    scale_log2,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """One tile of queries for one KV head, as above; WINDOW 0: no window."""
    kv_head = tl.program_id(0)
    tile = tl.program_id(1)
    chunk = tl.load(tiles_ptr + tile)
    first = tl.load(tiles_ptr + num_tiles + tile)
    query_start = tl.load(query_starts_ptr + chunk)
    num_queries = tl.load(query_starts_ptr + chunk + 1) - query_start
    before = tl.load(lens_ptr + chunk) - num_queries  # positions cached by earlier steps

    POSITIONS: tl.constexpr = BLOCK_ROWS // GROUP
    rows = tl.arange(0, BLOCK_ROWS)
    dims = tl.arange(0, DIM_PAD)
    query = first + rows // GROUP
    used = (rows < POSITIONS * GROUP) & (query < num_queries)
    mask = used[:, None] & (dims < HEAD_DIM)[None, :]
    token = (query_start + query).to(tl.int64)
    head = kv_head * GROUP + rows % GROUP
    q = tl.load(
        q_ptr + token[:, None] * q_stride + head[:, None] * HEAD_DIM + dims[None, :], mask=mask, other=0.0
    )

    positions = before + query
    table_ptr = tables_ptr + chunk.to(tl.int64) * table_stride
    end = before + tl.minimum(first + POSITIONS, num_queries)
    masked_from = before + first + 1 if WINDOW == 0 else tl.maximum(before + first - WINDOW + 1, 0)
    masked_from = masked_from // BLOCK_KEYS * BLOCK_KEYS
    top = tl.full([BLOCK_ROWS], -1e29, tl.float32)  # above a masked score, so that a row of them weighs 0
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    acc = tl.zeros([BLOCK_ROWS, DIM_PAD], tl.float32)
    if WINDOW == 0:
        acc, top, total = _attend_tiles(
            acc, top, total, q, keys_ptr, values_ptr, table_ptr, 0, masked_from, positions, kv_head,
            scale_log2, False, KV_HEADS, HEAD_DIM, DIM_PAD, BLOCK_SIZE, BLOCK_KEYS, WINDOW,
        )  # fmt: skip
    acc, top, total = _attend_tiles(
        acc, top, total, q, keys_ptr, values_ptr, table_ptr, masked_from, end, positions, kv_head, scale_log2,
        True, KV_HEADS, HEAD_DIM, DIM_PAD, BLOCK_SIZE, BLOCK_KEYS, WINDOW,
    )  # fmt: skip
    store_whole(out_ptr, token * (KV_HEADS * GROUP) + head, acc, total, used, HEAD_DIM)


def attend_chunks(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    query_starts: torch.Tensor,
    tiles: torch.Tensor,
    out: torch.Tensor,
    *,
    scale: float,
    window: int | None,
    config: PrefillConfig,
) -> None:
    """Shapes as above."""
    _, num_heads, head_dim = q.shape
    _, block_size, kv_heads, _ = keys.shape
    num_tiles = tiles.shape[1]
    prefill_tiles[(kv_heads, num_tiles)](
        q, keys, values, block_tables, context_lens, query_starts, tiles, out,
        q.stride(0), block_tables.stride(0), num_tiles, scale * _LOG2_E,
        KV_HEADS=kv_heads, GROUP=num_heads // kv_heads, HEAD_DIM=head_dim,
        DIM_PAD=triton.next_power_of_2(head_dim), BLOCK_SIZE=block_size,
        BLOCK_ROWS=config.block_rows, BLOCK_KEYS=config.block_keys, WINDOW=window or 0,
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
