"""Excludes tokens from some rows of logits by bitmask, in one pass over those rows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def apply_token_masks_(
    logits: torch.Tensor, rows: torch.Tensor, bits: torch.Tensor, *, block: int = 4096
) -> torch.Tensor:
    """Write -inf into `logits` where `bits` exclude a token; returns them. For the meaning, see
    `kernels.sampling.apply_token_masks`.

    logits [R, V] of any float type and row stride; rows [C] int64; bits [C, ceil(V / 32)] int32, contiguous.
    """
    vocab_size = logits.shape[1]
    assert logits.stride(1) == 1
    grid = (len(rows), triton.cdiv(vocab_size, block))
    if len(rows):
        _exclude[grid](
            logits, rows, bits, vocab_size, logits.stride(0), bits.stride(0), BLOCK=block, num_warps=4
        )
    return logits


@triton.jit
def _exclude(logits_ptr, rows_ptr, bits_ptr, vocab_size, logits_stride, bits_stride, BLOCK: tl.constexpr):
    masked_row = tl.program_id(0)
    row = tl.load(rows_ptr + masked_row)
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    in_vocab = ids < vocab_size
    words = tl.load(bits_ptr + masked_row * bits_stride + ids // 32, mask=in_vocab, other=-1)
    is_excluded = ((words >> (ids % 32)) & 1) == 0
    pointers = logits_ptr + row * logits_stride + ids
    tl.store(pointers, float("-inf"), mask=in_vocab & is_excluded)
