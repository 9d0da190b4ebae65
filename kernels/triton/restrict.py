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
from kernels.triton.sample import GREEDY_BELOW

PASSES = 16
"""9 ** 16 is far more than the values of fp32; logits that come from half precision need 3 to 5."""

_MOST_SPLITS = 64
_PIVOTS = tl.constexpr(8)
_STATE = tl.constexpr(8)  # fields of a row, as `_store_state` writes them
_RANK = tl.constexpr(0.0)  # phases: bracketing the k-th largest logit,
_MASS = tl.constexpr(1.0)  # bracketing the lowest logit within top-p,
_DONE = tl.constexpr(2.0)  # `low` is the threshold


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
    pivots = _PIVOTS.value
    extremes = torch.empty((2, 4, num_rows, splits), dtype=torch.float32, device=device)
    sums = torch.empty((2, 2, num_rows, splits, pivots), dtype=torch.float32, device=device)
    states = torch.empty((2, num_rows, _STATE.value + pivots), dtype=torch.float32, device=device)
    wanted = (temperature, top_k, top_p, min_p)
    trigger = pdl.trigger_code("early" if num_rows * splits <= 1056 else "late", device)
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
    _store_extremes(extremes_ptr, 0, tl.min(lowest, axis=0))
    _store_extremes(extremes_ptr, 1, top)
    _store_extremes(extremes_ptr, 2, tl.sum(count, axis=0))
    _store_extremes(extremes_ptr, 3, tl.sum(mass, axis=0))


@triton.jit
def _store_extremes(extremes_ptr, field: tl.constexpr, value):
    num_rows, splits = tl.num_programs(0), tl.num_programs(1)
    tl.store(extremes_ptr + (field * num_rows + tl.program_id(0)) * splits + tl.program_id(1), value)


@triton.jit
def _load_extremes(extremes_ptr, field: tl.constexpr, splits, other: tl.constexpr, SPLITS: tl.constexpr):
    at = tl.arange(0, SPLITS)
    start = (field * tl.num_programs(0) + tl.program_id(0)) * splits
    return tl.load(extremes_ptr + start + at, mask=at < splits, other=other)


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
    if not FIRST and tl.load(old_states_ptr + row * (_STATE + _PIVOTS)) == _DONE:
        if split == 0:
            _keep_done(old_states_ptr, states_ptr)
        return
    temperature = tl.load(temperature_ptr + row)
    top_k, top_p = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row)
    if FIRST:
        phase, low, high, count, mass, wanted, best = _begin(
            temperature, top_k, top_p, old_extremes_ptr, splits, vocab_size, SPLITS
        )
    else:
        phase, low, high, count, mass, wanted, best = _next(
            temperature, top_p, old_extremes_ptr, old_sums_ptr, old_states_ptr, splits, SPLITS
        )
    step = tl.arange(0, _PIVOTS)
    pivots = low + (high - low) * ((step + 1).to(tl.float32) / (_PIVOTS + 1))
    if split == 0:
        _store_state(states_ptr, phase, low, high, count, mass, wanted, best)
        tl.store(states_ptr + row * (_STATE + _PIVOTS) + _STATE + step, pivots)
    if phase == _DONE:
        return
    lowest, highest, counts, masses = _weigh(
        logits_ptr + row.to(tl.int64) * logits_stride, vocab_size, tiles_per_split,
        pivots, low, high, best, 1 / temperature, BLOCK,
    )  # fmt: skip
    if TRIGGER == pdl.LATE:
        gdc_launch_dependents()
    _store_extremes(extremes_ptr, 0, lowest)
    _store_extremes(extremes_ptr, 1, highest)
    sums_ptr += (row * splits + split) * _PIVOTS + step
    tl.store(sums_ptr, counts)
    tl.store(sums_ptr + tl.num_programs(0) * splits * _PIVOTS, masses)


@triton.jit
def _weigh(row_ptr, vocab_size, tiles, pivots, low, high, best, inverse_temperature, BLOCK: tl.constexpr):
    """Of a split: lowest and highest logit in (low, high], and number and mass of those above each pivot."""
    first = tl.program_id(1) * tiles * BLOCK
    counts = tl.zeros([_PIVOTS, BLOCK], tl.float32)
    masses = tl.zeros([_PIVOTS, BLOCK], tl.float32)
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
    _, threshold, _, _, _, _, best = _next(
        temperature, tl.load(top_p_ptr + row), extremes_ptr, sums_ptr, states_ptr, splits, SPLITS
    )
    relative = best + temperature * tl.log(min_p)
    is_relative = (min_p > 0) & (temperature >= GREEDY_BELOW)
    tl.store(out_ptr + row, tl.where(is_relative, tl.maximum(threshold, relative), threshold))


@triton.jit
def _begin(temperature, top_k, top_p, extremes_ptr, splits, vocab_size, SPLITS: tl.constexpr):
    """The first bracket of a row, from the survey."""
    lowest = tl.min(_load_extremes(extremes_ptr, 0, splits, float("inf"), SPLITS), axis=0)
    tops = _load_extremes(extremes_ptr, 1, splits, float("-inf"), SPLITS)
    count = tl.sum(_load_extremes(extremes_ptr, 2, splits, 0.0, SPLITS), axis=0)
    split_masses = _load_extremes(extremes_ptr, 3, splits, 0.0, SPLITS)
    best = tl.max(tops, axis=0)
    mass = tl.sum(tl.where(split_masses > 0, split_masses * tl.exp((tops - best) / temperature), 0.0), axis=0)
    low = lowest - tl.maximum(1.0, tl.abs(lowest) * 1e-5)
    # Logits below this hold less than 1 - p of the mass, all together, since the best one alone has mass 1.
    far_below = best + temperature * (tl.log((1 - top_p) / vocab_size) - 0.01)
    is_open = (temperature >= GREEDY_BELOW) & (count > 0)
    by_rank = is_open & (top_k > 0)
    by_mass = is_open & (top_p < 1) & (top_k <= 0)
    phase = tl.where(by_rank, _RANK, tl.where(by_mass, _MASS, _DONE))
    low = tl.where(by_rank, low, tl.where(by_mass, tl.maximum(low, far_below), float("-inf")))
    wanted = tl.where(by_rank, tl.minimum(top_k.to(tl.float32), count), top_p * mass)
    return phase, low, best, 0.0, 0.0, wanted, best


@triton.jit
def _next(temperature, top_p, extremes_ptr, sums_ptr, states_ptr, splits, SPLITS: tl.constexpr):
    """The state of a row after a pass. `count` and `mass` are those above `high`.

    `wanted`: how many logits, or what mass, the limit of this phase grants.
    """
    row = tl.program_id(0)
    states_ptr += row * (_STATE + _PIVOTS)
    phase, low, high = tl.load(states_ptr), tl.load(states_ptr + 1), tl.load(states_ptr + 2)
    count, mass = tl.load(states_ptr + 3), tl.load(states_ptr + 4)
    wanted, best = tl.load(states_ptr + 5), tl.load(states_ptr + 6)
    lowest = tl.min(_load_extremes(extremes_ptr, 0, splits, float("inf"), SPLITS), axis=0)
    highest = tl.max(_load_extremes(extremes_ptr, 1, splits, float("-inf"), SPLITS), axis=0)
    step = tl.arange(0, _PIVOTS)
    pivots = tl.load(states_ptr + _STATE + step)
    counts = _sum_splits(sums_ptr, 0, splits, SPLITS)
    masses = _sum_splits(sums_ptr, 1, splits, SPLITS)
    is_kept = tl.where(phase == _RANK, counts, masses) < wanted
    num_cut = tl.sum(tl.where(is_kept, 0, 1), axis=0)
    is_open, is_single = phase != _DONE, lowest >= highest
    # One value is left: the threshold of this phase. After the rank comes the mass, within the top-k.
    to_mass = is_open & is_single & (phase == _RANK) & (top_p < 1)
    top_k_mass = mass + (wanted - count) * tl.exp((highest - best) / temperature)
    narrows = is_open & (lowest < highest)
    takes_low, takes_high = narrows & (num_cut > 0), narrows & (num_cut < _PIVOTS)
    new_low = tl.where(takes_low, tl.sum(tl.where(step == num_cut - 1, pivots, 0.0), axis=0), low)
    new_low = tl.where(is_open & is_single & (~to_mass), highest, new_low)
    new_high = tl.where(takes_high, tl.sum(tl.where(step == num_cut, pivots, 0.0), axis=0), high)
    new_count = tl.where(takes_high, tl.sum(tl.where(step == num_cut, counts, 0.0), axis=0), count)
    new_mass = tl.where(takes_high, tl.sum(tl.where(step == num_cut, masses, 0.0), axis=0), mass)
    new_phase = tl.where(to_mass, _MASS, tl.where(is_single, _DONE, phase))
    return (
        new_phase,
        new_low,
        tl.where(to_mass, best, new_high),
        tl.where(to_mass, 0.0, new_count),
        tl.where(to_mass, 0.0, new_mass),
        tl.where(to_mass, top_p * top_k_mass, wanted),
        best,
    )


@triton.jit
def _sum_splits(sums_ptr, field: tl.constexpr, splits, SPLITS: tl.constexpr):
    """[PIVOTS]: what the splits of this row counted (field 0) or weighed (field 1)."""
    split = tl.arange(0, SPLITS)[:, None]
    start = (field * tl.num_programs(0) + tl.program_id(0)) * splits
    pointers = sums_ptr + (start + split) * _PIVOTS + tl.arange(0, _PIVOTS)[None, :]
    return tl.sum(tl.load(pointers, mask=split < splits, other=0.0), axis=0)


@triton.jit
def _store_state(states_ptr, phase, low, high, count, mass, wanted, best):
    states_ptr += tl.program_id(0) * (_STATE + _PIVOTS)
    tl.store(states_ptr, phase)
    tl.store(states_ptr + 1, low)
    tl.store(states_ptr + 2, high)
    tl.store(states_ptr + 3, count)
    tl.store(states_ptr + 4, mass)
    tl.store(states_ptr + 5, wanted)
    tl.store(states_ptr + 6, best)


@triton.jit
def _keep_done(old_states_ptr, states_ptr):
    """What the next passes and the end read of a row that is done."""
    old_states_ptr += tl.program_id(0) * (_STATE + _PIVOTS)
    low, best = tl.load(old_states_ptr + 1), tl.load(old_states_ptr + 6)
    _store_state(states_ptr, _DONE, low, low, 0.0, 0.0, 0.0, best)
