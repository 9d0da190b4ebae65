"""Where a paged cache of [blocks, block_size, KV, D] holds a tile of keys, and writing new rows into it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.triton.pdl import prefetch_to_l2


@triton.jit
def tile_offsets(
    table_ptr,
    first,
    end,
    kv_head,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
):
    """Where the cache holds keys first to first + BLOCK_KEYS of a head; `first` is a multiple of BLOCK_KEYS.

    Keys from `end` on, which the table may not know, get the offset of some other key.
    """
    keys_in_tile = tl.arange(0, BLOCK_KEYS)
    if BLOCK_SIZE % BLOCK_KEYS == 0:  # a tile lies within one block
        block = tl.load(table_ptr + first // BLOCK_SIZE, mask=first < end, other=0).to(tl.int64)
        slots = block * BLOCK_SIZE + first % BLOCK_SIZE + keys_in_tile
    else:
        positions = first + keys_in_tile
        blocks = tl.load(table_ptr + positions // BLOCK_SIZE, mask=positions < end, other=0).to(tl.int64)
        slots = blocks * BLOCK_SIZE + positions % BLOCK_SIZE
    return (slots * KV_HEADS + kv_head) * HEAD_DIM


@triton.jit
def load_tile(
    keys_ptr,
    values_ptr,
    table_ptr,
    first,
    end,
    kv_head,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
):
    """Keys and values of a tile, [BLOCK_KEYS, HEAD_DIM] each, and which of its keys are before `end`."""
    inside = first + tl.arange(0, BLOCK_KEYS) < end
    offsets = tile_offsets(table_ptr, first, end, kv_head, KV_HEADS, HEAD_DIM, BLOCK_SIZE, BLOCK_KEYS)
    pointers = offsets[:, None] + tl.arange(0, HEAD_DIM)[None, :]
    keys = tl.load(keys_ptr + pointers, mask=inside[:, None], other=0.0)
    values = tl.load(values_ptr + pointers, mask=inside[:, None], other=0.0)
    return keys, values, inside


@triton.jit
def prefetch_tile(
    keys_ptr,
    values_ptr,
    table_ptr,
    first,
    end,
    kv_head,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
):
    """Ask for a tile's keys and values to be read from memory to L2."""
    offsets = tile_offsets(table_ptr, first, end, kv_head, KV_HEADS, HEAD_DIM, BLOCK_SIZE, BLOCK_KEYS)
    lines = offsets[:, None] + tl.arange(0, HEAD_DIM // 64)[None, :] * 64
    prefetch_to_l2(keys_ptr + lines)
    prefetch_to_l2(values_ptr + lines)


@triton.jit(do_not_specialize_on_alignment=["slots_ptr"])
def scatter_rows(
    k_ptr,
    v_ptr,
    slots_ptr,
    keys_ptr,
    values_ptr,
    k_stride,
    v_stride,
    SIZE: tl.constexpr,
    SIZE_PAD: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + row)
    offsets = tl.arange(0, SIZE_PAD)
    mask = offsets < SIZE
    k = tl.load(k_ptr + row * k_stride + offsets, mask=mask)
    v = tl.load(v_ptr + row * v_stride + offsets, mask=mask)
    tl.store(keys_ptr + slot * SIZE + offsets, k, mask=mask)
    tl.store(values_ptr + slot * SIZE + offsets, v, mask=mask)


def write_paged_kv(
    keys: torch.Tensor, values: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor
) -> None:
    """Store row t of k and v [T, KV, D] at slots[t] of keys and values; slots [T] int64, distinct.

    Any stride between the rows of k and v, contiguous within one; the caches contiguous.
    """
    size = k.shape[1] * k.shape[2]
    scatter_rows[(len(k),)](
        k,
        v,
        slots,
        keys,
        values,
        k.stride(0),
        v.stride(0),
        SIZE=size,
        SIZE_PAD=triton.next_power_of_2(size),
        num_warps=4 if size > 512 else 2,
    )
