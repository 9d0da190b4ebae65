"""What a decode step reads of its sequences, and what it leaves behind: state that is scattered by row.

A row's length counts the tokens in its cache, so the step's new token stands at that position.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels.fused import runs_fused


class DecodeRows(NamedTuple):
    """The state of a batch's M rows, side by side."""

    token_ids: torch.Tensor  # [M] int64, the last sampled
    positions: torch.Tensor  # [M] int64
    context_lens: torch.Tensor  # [M] int32, the new token included
    slots: torch.Tensor  # [M] int64, of the new token
    block_tables: torch.Tensor  # [M, num_blocks] int32


class SamplingRows(NamedTuple):
    """What M rows ask of the sampler, side by side."""

    temperature: torch.Tensor  # [M] fp32
    seeds: torch.Tensor  # [M] int64
    positions: torch.Tensor  # [M] int64, of the token that is sampled


def gather_decode_rows(
    rows: torch.Tensor,
    last_token: torch.Tensor,
    lengths: torch.Tensor,
    block_tables: torch.Tensor,
    num_blocks: int,
    block_size: int,
) -> DecodeRows:
    """Of `rows` [M] int64 in last_token [N] and lengths [N] int64, and block_tables [N, blocks] int32.

    The first `num_blocks` of each table have to hold the new token.
    """
    if runs_fused(lengths):
        from kernels.triton import decode_rows as fused

        return fused.gather_decode_rows(rows, last_token, lengths, block_tables, num_blocks, block_size)
    positions = lengths[rows]
    tables = block_tables[:, :num_blocks].index_select(0, rows)
    blocks = tables.gather(1, (positions // block_size).unsqueeze(1)).squeeze(1)
    slots = blocks.long() * block_size + positions % block_size
    return DecodeRows(last_token[rows], positions, (positions + 1).int(), slots, tables)


def gather_sampling_rows(
    rows: torch.Tensor, temperature: torch.Tensor, seeds: torch.Tensor, lengths: torch.Tensor
) -> SamplingRows:
    """Of `rows` [M] int64 in temperature [N] fp32, seeds [N] and lengths [N] int64."""
    if runs_fused(lengths):
        from kernels.triton import decode_rows as fused

        return fused.gather_sampling_rows(rows, temperature, seeds, lengths)
    return SamplingRows(temperature[rows], seeds[rows], lengths[rows] + 1)


def record_tokens(
    rows: torch.Tensor, token_ids: torch.Tensor, last_token: torch.Tensor, lengths: torch.Tensor, spare: int
) -> None:
    """Each row's sampled token, token_ids [M] int64, becomes its last one, and its length one more.

    The row `spare`, which may stand in `rows` many times, stays empty.
    """
    if runs_fused(lengths):
        from kernels.triton import decode_rows as fused

        fused.record_tokens(rows, token_ids, last_token, lengths, spare)
        return
    last_token[rows] = token_ids
    lengths[rows] += 1
    lengths[spare].zero_()
