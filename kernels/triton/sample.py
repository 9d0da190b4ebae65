"""One token per row of logits: the most likely, or one drawn by the Gumbel-max rule; the vocabulary is split.

A first kernel finds the best token of each split, a second the best of those. Greedy rows are drawn with a
temperature of 0 and skip the noise. Ties go to the lowest token id, NaN is never chosen.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.triton import pdl
from kernels.triton.gumbel import gumbel, noise_key

GREEDY_BELOW = tl.constexpr(1e-5)
"""Temperatures below this count as 0, here and in `kernels.sampling.sample_tokens`."""


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    *,
    thresholds: torch.Tensor | None = None,
    block: int = 1024,
    num_warps: int = 4,
    max_programs: int = 1024,
) -> torch.Tensor:
    """argmax(logits + temperature * noise) for each row, [M] int64.

    logits [M, V] of any float type and row stride; temperature [M] fp32, seeds and positions [M] int64, all
    contiguous. Only logits of at least thresholds [M] fp32 take part. `block`, `num_warps` and `max_programs`
    cut the work; they do not change the result.
    """
    num_rows, vocab_size = logits.shape
    assert logits.stride(1) == 1
    out = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if num_rows == 0:
        return out
    tiles = triton.cdiv(vocab_size, block)
    splits = max(1, min(tiles, max_programs // num_rows))
    tiles_per_split = triton.cdiv(tiles, splits)
    splits = triton.cdiv(tiles, tiles_per_split)
    best = torch.empty((num_rows, splits), dtype=torch.float32, device=logits.device)
    best_ids = torch.empty((num_rows, splits), dtype=torch.int32, device=logits.device)
    trigger = pdl.trigger_code("early" if num_rows * splits <= pdl.ONE_WAVE else "late", logits.device)
    _best_of_split[(num_rows, splits)](
        logits, temperature, seeds, positions, temperature if thresholds is None else thresholds,
        best, best_ids, vocab_size, logits.stride(0), tiles_per_split,
        RESTRICT=thresholds is not None, BLOCK=block, TRIGGER=trigger,
        num_warps=num_warps, **pdl.launch_options(trigger),
    )  # fmt: skip
    trigger = pdl.trigger_code("early", logits.device)
    # Of the most splits that any number of rows has, so that all are the same kernel.
    most = triton.next_power_of_2(min(tiles, max_programs))
    _best_of_row[(num_rows,)](
        best, best_ids, out, splits, BLOCK=most, TRIGGER=trigger,
        num_warps=1 if most <= 256 else 4, **pdl.launch_options(trigger),
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["tiles_per_split"])
def _best_of_split(
    logits_ptr,
    temperature_ptr,
    seeds_ptr,
    positions_ptr,
    thresholds_ptr,
    best_ptr,
    best_ids_ptr,
    vocab_size,
    logits_stride,
    tiles_per_split,
    RESTRICT: tl.constexpr,
    BLOCK: tl.constexpr,
    TRIGGER: tl.constexpr,
):
    row = tl.program_id(0)
    split = tl.program_id(1)
    if TRIGGER == pdl.EARLY:
        gdc_launch_dependents()
    if TRIGGER != pdl.NONE:
        gdc_wait()
    temperature = tl.load(temperature_ptr + row)
    is_greedy = temperature < GREEDY_BELOW
    low, high = noise_key(tl.load(seeds_ptr + row), tl.load(positions_ptr + row))
    threshold = tl.load(thresholds_ptr + row) if RESTRICT else float("-inf")
    logits_ptr += row.to(tl.int64) * logits_stride
    first = split * tiles_per_split * BLOCK
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_ids = first + tl.arange(0, BLOCK)
    for tile in range(tiles_per_split):
        ids = first + tile * BLOCK + tl.arange(0, BLOCK)
        score = tl.load(logits_ptr + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32)
        if RESTRICT:
            score = tl.where(score >= threshold, score, float("-inf"))
        if not is_greedy:
            score += temperature * gumbel(ids, low, high)
        is_better = score > best
        best = tl.where(is_better, score, best)
        best_ids = tl.where(is_better, ids, best_ids)
    if TRIGGER == pdl.LATE:
        gdc_launch_dependents()
    value, token_id = _first_of_the_best(best, best_ids)
    at = row * tl.num_programs(1) + split
    tl.store(best_ptr + at, value)
    tl.store(best_ids_ptr + at, token_id)


@triton.jit(do_not_specialize=["splits"])
def _best_of_row(best_ptr, best_ids_ptr, out_ptr, splits, BLOCK: tl.constexpr, TRIGGER: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    if TRIGGER == pdl.EARLY:
        gdc_launch_dependents()
    if TRIGGER != pdl.NONE:
        gdc_wait()
    best = tl.load(best_ptr + row * splits + at, mask=at < splits, other=float("-inf"))
    best_ids = tl.load(best_ids_ptr + row * splits + at, mask=at < splits, other=2**31 - 1)
    _, token_id = _first_of_the_best(best, best_ids)
    tl.store(out_ptr + row, token_id.to(tl.int64))


@triton.jit
def _first_of_the_best(values, ids):
    best = tl.max(values, axis=0)
    return best, tl.min(tl.where(values == best, ids, 2**31 - 1), axis=0)
