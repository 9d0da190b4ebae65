"""One launch each for `kernels.decode_rows`, where a dozen small ones would cost as much as a layer."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.decode_rows import DecodeRows, SamplingRows

_ROWS_OF_A_PROGRAM = 32


def gather_decode_rows(
    rows: torch.Tensor,
    last_token: torch.Tensor,
    lengths: torch.Tensor,
    block_tables: torch.Tensor,
    num_blocks: int,
    block_size: int,
) -> DecodeRows:
    """See `kernels.decode_rows`."""
    num_rows, device = len(rows), rows.device
    out = DecodeRows(
        token_ids=torch.empty(num_rows, dtype=torch.int64, device=device),
        positions=torch.empty(num_rows, dtype=torch.int64, device=device),
        context_lens=torch.empty(num_rows, dtype=torch.int32, device=device),
        slots=torch.empty(num_rows, dtype=torch.int64, device=device),
        block_tables=torch.empty((num_rows, num_blocks), dtype=torch.int32, device=device),
    )
    _gather_decode_rows[(num_rows,)](
        rows,
        last_token,
        lengths,
        block_tables,
        *out,
        block_tables.stride(0),
        NUM_BLOCKS=num_blocks,
        BLOCKS_PAD=triton.next_power_of_2(num_blocks),
        BLOCK_SIZE=block_size,
        num_warps=1 if num_blocks <= 128 else 4,
    )
    return out


@triton.jit
def _gather_decode_rows(
    rows_ptr,
    last_token_ptr,
    lengths_ptr,
    tables_ptr,
    token_ids_ptr,
    positions_ptr,
    context_lens_ptr,
    slots_ptr,
    batch_tables_ptr,
    table_stride,
    NUM_BLOCKS: tl.constexpr,
    BLOCKS_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    i = tl.program_id(0)
    row = tl.load(rows_ptr + i)
    position = tl.load(lengths_ptr + row)
    table_ptr = tables_ptr + row * table_stride
    block = tl.load(table_ptr + position // BLOCK_SIZE).to(tl.int64)
    tl.store(token_ids_ptr + i, tl.load(last_token_ptr + row))
    tl.store(positions_ptr + i, position)
    tl.store(context_lens_ptr + i, (position + 1).to(tl.int32))
    tl.store(slots_ptr + i, block * BLOCK_SIZE + position % BLOCK_SIZE)
    at = tl.arange(0, BLOCKS_PAD)
    blocks = tl.load(table_ptr + at, mask=at < NUM_BLOCKS, other=0)
    tl.store(batch_tables_ptr + i * NUM_BLOCKS + at, blocks, mask=at < NUM_BLOCKS)


def gather_sampling_rows(
    rows: torch.Tensor, temperature: torch.Tensor, seeds: torch.Tensor, lengths: torch.Tensor
) -> SamplingRows:
    """See `kernels.decode_rows`."""
    num_rows, device = len(rows), rows.device
    out = SamplingRows(
        temperature=torch.empty(num_rows, dtype=torch.float32, device=device),
        seeds=torch.empty(num_rows, dtype=torch.int64, device=device),
        positions=torch.empty(num_rows, dtype=torch.int64, device=device),
    )
    _gather_sampling_rows[(triton.cdiv(num_rows, _ROWS_OF_A_PROGRAM),)](
        rows, temperature, seeds, lengths, *out, num_rows, BLOCK=_ROWS_OF_A_PROGRAM, num_warps=1
    )
    return out


@triton.jit(do_not_specialize=["num_rows"])
def _gather_sampling_rows(
    rows_ptr,
    temperature_ptr,
    seeds_ptr,
    lengths_ptr,
    batch_temperature_ptr,
    batch_seeds_ptr,
    positions_ptr,
    num_rows,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < num_rows
    row = tl.load(rows_ptr + i, mask=inside, other=0)
    tl.store(batch_temperature_ptr + i, tl.load(temperature_ptr + row), mask=inside)
    tl.store(batch_seeds_ptr + i, tl.load(seeds_ptr + row), mask=inside)
    tl.store(positions_ptr + i, tl.load(lengths_ptr + row) + 1, mask=inside)


def record_tokens(
    rows: torch.Tensor, token_ids: torch.Tensor, last_token: torch.Tensor, lengths: torch.Tensor, spare: int
) -> None:
    """See `kernels.decode_rows`. No row but `spare` stands in `rows` twice."""
    num_rows = len(rows)
    _record_tokens[(triton.cdiv(num_rows, _ROWS_OF_A_PROGRAM),)](
        rows, token_ids, last_token, lengths, num_rows, spare, BLOCK=_ROWS_OF_A_PROGRAM, num_warps=1
    )


@triton.jit(do_not_specialize=["num_rows", "spare"])
def _record_tokens(
    rows_ptr, token_ids_ptr, last_token_ptr, lengths_ptr, num_rows, spare, BLOCK: tl.constexpr
):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(rows_ptr + i, mask=i < num_rows, other=0)
    mine = (i < num_rows) & (row != spare)
    tl.store(last_token_ptr + row, tl.load(token_ids_ptr + i, mask=mine, other=0), mask=mine)
    tl.store(lengths_ptr + row, tl.load(lengths_ptr + row, mask=mine, other=0) + 1, mask=mine)
