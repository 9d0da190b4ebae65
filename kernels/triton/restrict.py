"""Where top-k, top-p and min-p cut a row of logits, found without sorting it.

A logit v is kept if fewer than k logits are above it and they hold less than p of the mass. Both grow as v
falls, so the lowest kept logit is bracketed: (low, high] with a kept `high` and a `low` that is not. Each
pass counts and weighs the row above a few pivots inside the bracket and keeps one of the pieces between them,
until a single value is left in it. With both limits, the k-th largest logit is found first, since top-p is of
the top-k mass.

Passes are kernels of (rows, splits of the vocabulary). Every program of the next pass adds up their partial
sums, always in the same order. A row that is done costs a pass next to nothing, and the number of passes is
fixed, so nothing is read on the host.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.triton import pdl
from kernels.triton.bracket import (
    DONE,
    PIVOTS,
    STATE,
    first_state,
    keep_done,
    next_state,
    store_extremes,
    store_state,
)
from kernels.triton.sample import GREEDY_BELOW

PASSES = 16
"""9 ** 16 is far more than the values of fp32; logits that come from half precision need 3 to 5."""

_MOST_SPLITS = 64


def thresholds(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    *,
    passes: int = PASSES,
    block: int = 512,
    num_warps: int = 4,
    max_programs: int = 1024,
) -> torch.Tensor:
    """The lowest logit that each row may draw, [M] fp32; -inf where nothing is asked or the row is greedy.

    logits [M, V] as for `sample`; temperature, top_p and min_p [M] fp32 and top_k [M] int64, all contiguous,
    mean what they do in `kernels.sampling.restrict`. After fewer `passes` a threshold may still be too low.
    """
    num_rows, vocab_size = logits.shape
    assert logits.stride(1) == 1
    device = logits.device
    out = torch.empty(num_rows, dtype=torch.float32, device=device)
    if num_rows == 0:
        return out
    tiles = triton.cdiv(vocab_size, block)
    most = min(tiles, _MOST_SPLITS)
    tiles_per_split = triton.cdiv(tiles, max(1, min(most, max_programs // num_rows)))
    splits = triton.cdiv(tiles, tiles_per_split)
    pivots = PIVOTS.value
    extremes = torch.empty((2, 4, num_rows, splits), dtype=torch.float32, device=device)
    sums = torch.empty((2, 2, num_rows, splits, pivots), dtype=torch.float32, device=device)
    states = torch.empty((2, num_rows, STATE.value + pivots), dtype=torch.float32, device=device)
    wanted = (temperature, top_k, top_p, min_p)
    trigger = pdl.trigger_code("early" if num_rows * splits <= pdl.ONE_WAVE else "late", device)
    # Room for the most splits that any number of rows has, so that all are the same kernels.
    options = {"SPLITS": triton.next_power_of_2(most), "TRIGGER": trigger, **pdl.launch_options(trigger)}
    grid = (num_rows, splits)
    row_data = (logits, vocab_size, logits.stride(0), tiles_per_split)
    _survey[grid](
        *row_data, *wanted, extremes[0], BLOCK=block, TRIGGER=trigger, num_warps=num_warps,
        **pdl.launch_options(trigger),
    )  # fmt: skip
    for i in range(passes):
        old, new = i % 2, (i + 1) % 2
        _narrow[grid](
            *row_data, *wanted, extremes[old], sums[old], states[old], extremes[new], sums[new], states[new],
            FIRST=i == 0, BLOCK=block, num_warps=num_warps, **options,
        )  # fmt: skip
    last = passes % 2
    _finish[(num_rows,)](
        *wanted, extremes[last], sums[last], states[last], out, splits, vocab_size, num_warps=2, **options
    )
    return out


@triton.jit(do_not_specialize=["tiles_per_split"])
def _survey(
    logits_ptr,
    vocab_size,
    logits_stride,
    tiles_per_split,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    extremes_ptr,
    BLOCK: tl.constexpr,
    TRIGGER: tl.constexpr,
):
    """Lowest and highest finite logit of each split, their number, and the mass relative to the highest."""
    row = tl.program_id(0)
    if TRIGGER == pdl.EARLY:
        gdc_launch_dependents()
    if TRIGGER != pdl.NONE:
        gdc_wait()
    temperature = tl.load(temperature_ptr + row)
    is_restricted = (tl.load(top_k_ptr + row) > 0) | (tl.load(top_p_ptr + row) < 1)
    is_restricted = (is_restricted | (tl.load(min_p_ptr + row) > 0)) & (temperature >= GREEDY_BELOW)
    logits_ptr += row.to(tl.int64) * logits_stride
    first = tl.program_id(1) * tiles_per_split * BLOCK
    lowest = tl.full([BLOCK], float("inf"), tl.float32)
    highest = tl.full([BLOCK], float("-inf"), tl.float32)
    count = tl.zeros([BLOCK], tl.float32)
    mass = tl.zeros([BLOCK], tl.float32)
    for tile in range(tl.where(is_restricted, tiles_per_split, 0)):
        ids = first + tile * BLOCK + tl.arange(0, BLOCK)
        logit = tl.load(logits_ptr + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32)
        is_finite = logit > float("-inf")
        lowest = tl.where(is_finite, tl.minimum(lowest, logit), lowest)
        count += tl.where(is_finite, 1.0, 0.0)
        top = tl.maximum(highest, logit)
        rescaled = tl.where(highest > float("-inf"), mass * tl.exp((highest - top) / temperature), 0.0)
        mass = tl.where(is_finite, rescaled + tl.exp((logit - top) / temperature), mass)
        highest = top
    if TRIGGER == pdl.LATE:
        gdc_launch_dependents()
    top = tl.max(highest, axis=0)
    mass = tl.where(count > 0, mass * tl.exp((highest - top) / temperature), 0.0)
    store_extremes(extremes_ptr, 0, tl.min(lowest, axis=0))
    store_extremes(extremes_ptr, 1, top)
    store_extremes(extremes_ptr, 2, tl.sum(count, axis=0))
    store_extremes(extremes_ptr, 3, tl.sum(mass, axis=0))


@triton.jit(do_not_specialize=["tiles_per_split"])
def _narrow(
    logits_ptr,
    vocab_size,
    logits_stride,
    tiles_per_split,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    old_extremes_ptr,
    old_sums_ptr,
    old_states_ptr,
    extremes_ptr,
    sums_ptr,
    states_ptr,
    FIRST: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    TRIGGER: tl.constexpr,
):
    """Narrow the bracket by what the pass before found, then count and weigh above its pivots."""
    row, split = tl.program_id(0), tl.program_id(1)
    splits = tl.num_programs(1)
    if TRIGGER == pdl.EARLY:
        gdc_launch_dependents()
    if TRIGGER != pdl.NONE:
        gdc_wait()
    if not FIRST and tl.load(old_states_ptr + row * (STATE + PIVOTS)) == DONE:
        if split == 0:
            keep_done(old_states_ptr, states_ptr)
        return
    temperature = tl.load(temperature_ptr + row)
    top_k, top_p = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row)
    if FIRST:
        phase, low, high, count, mass, wanted, best = first_state(
            temperature, top_k, top_p, old_extremes_ptr, splits, vocab_size, SPLITS
        )
    else:
        phase, low, high, count, mass, wanted, best = next_state(
            temperature, top_p, old_extremes_ptr, old_sums_ptr, old_states_ptr, splits, SPLITS
        )
    step = tl.arange(0, PIVOTS)
    pivots = low + (high - low) * ((step + 1).to(tl.float32) / (PIVOTS + 1))
    if split == 0:
        store_state(states_ptr, phase, low, high, count, mass, wanted, best)
        tl.store(states_ptr + row * (STATE + PIVOTS) + STATE + step, pivots)
    if phase == DONE:
        return
    lowest, highest, counts, masses = _weigh(
        logits_ptr + row.to(tl.int64) * logits_stride, vocab_size, tiles_per_split,
        pivots, low, high, best, 1 / temperature, BLOCK,
    )  # fmt: skip
    if TRIGGER == pdl.LATE:
        gdc_launch_dependents()
    store_extremes(extremes_ptr, 0, lowest)
    store_extremes(extremes_ptr, 1, highest)
    sums_ptr += (row * splits + split) * PIVOTS + step
    tl.store(sums_ptr, counts)
    tl.store(sums_ptr + tl.num_programs(0) * splits * PIVOTS, masses)


@triton.jit
def _weigh(row_ptr, vocab_size, tiles, pivots, low, high, best, inverse_temperature, BLOCK: tl.constexpr):
    """Of a split: lowest and highest logit in (low, high], and number and mass of those above each pivot."""
    first = tl.program_id(1) * tiles * BLOCK
    counts = tl.zeros([PIVOTS, BLOCK], tl.float32)
    masses = tl.zeros([PIVOTS, BLOCK], tl.float32)
    lowest = tl.full([BLOCK], float("inf"), tl.float32)
    highest = tl.full([BLOCK], float("-inf"), tl.float32)
    for tile in range(tiles):
        ids = first + tile * BLOCK + tl.arange(0, BLOCK)
        logit = tl.load(row_ptr + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32)
        is_inside = (logit > low) & (logit <= high)
        lowest = tl.where(is_inside, tl.minimum(lowest, logit), lowest)
        highest = tl.where(is_inside, tl.maximum(highest, logit), highest)
        is_above = logit[None, :] > pivots[:, None]
        counts += tl.where(is_above, 1.0, 0.0)
        masses += tl.where(is_above, tl.exp((logit - best) * inverse_temperature)[None, :], 0.0)
    return tl.min(lowest, axis=0), tl.max(highest, axis=0), tl.sum(counts, axis=1), tl.sum(masses, axis=1)


@triton.jit(do_not_specialize=["splits"])
def _finish(
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    extremes_ptr,
    sums_ptr,
    states_ptr,
    out_ptr,
    splits,
    vocab_size,
    SPLITS: tl.constexpr,
    TRIGGER: tl.constexpr,
):
    """The threshold of top-k and top-p, raised to that of min-p."""
    row = tl.program_id(0)
    if TRIGGER != pdl.NONE:
        gdc_launch_dependents()
        gdc_wait()
    temperature, min_p = tl.load(temperature_ptr + row), tl.load(min_p_ptr + row)
    _, threshold, _, _, _, _, best = next_state(
        temperature, tl.load(top_p_ptr + row), extremes_ptr, sums_ptr, states_ptr, splits, SPLITS
    )
    relative = best + temperature * tl.log(min_p)
    is_relative = (min_p > 0) & (temperature >= GREEDY_BELOW)
    tl.store(out_ptr + row, tl.where(is_relative, tl.maximum(threshold, relative), threshold))
