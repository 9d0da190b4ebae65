"""The bracket around the lowest logit that a row may draw, and how a pass narrows it; see `restrict`.

Every program of a pass works out its row's bracket for itself, from what the pass before has stored in fp32:
  extremes [4, rows, splits]: lowest and highest logit of a split, of those in the bracket; by the survey, of
  all, then their number and their mass relative to the highest
  sums [2, rows, splits, PIVOTS]: number and mass of the split's logits above each pivot
  states [rows, STATE + PIVOTS]: the fields that `store_state` writes, then the pivots
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton.sample import GREEDY_BELOW

PIVOTS = tl.constexpr(8)
STATE = tl.constexpr(8)  # room for the fields of a row, which are seven
RANK = tl.constexpr(0.0)  # phases: bracketing the k-th largest logit,
MASS = tl.constexpr(1.0)  # bracketing the lowest logit within top-p,
DONE = tl.constexpr(2.0)  # `low` is the threshold


@triton.jit
def store_extremes(extremes_ptr, field: tl.constexpr, value):
    """Of the split that the program is in."""
    num_rows, splits = tl.num_programs(0), tl.num_programs(1)
    tl.store(extremes_ptr + (field * num_rows + tl.program_id(0)) * splits + tl.program_id(1), value)


@triton.jit
def _load_extremes(extremes_ptr, field: tl.constexpr, splits, other: tl.constexpr, SPLITS: tl.constexpr):
    """[SPLITS]: a field of all splits of the row, `other` behind the last."""
    at = tl.arange(0, SPLITS)
    start = (field * tl.num_programs(0) + tl.program_id(0)) * splits
    return tl.load(extremes_ptr + start + at, mask=at < splits, other=other)


@triton.jit
def first_state(temperature, top_k, top_p, extremes_ptr, splits, vocab_size, SPLITS: tl.constexpr):
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
    phase = tl.where(by_rank, RANK, tl.where(by_mass, MASS, DONE))
    low = tl.where(by_rank, low, tl.where(by_mass, tl.maximum(low, far_below), float("-inf")))
    wanted = tl.where(by_rank, tl.minimum(top_k.to(tl.float32), count), top_p * mass)
    return phase, low, best, 0.0, 0.0, wanted, best


@triton.jit
def next_state(temperature, top_p, extremes_ptr, sums_ptr, states_ptr, splits, SPLITS: tl.constexpr):
    """The state of a row after a pass. `count` and `mass` are those above `high`.

    `wanted`: how many logits, or what mass, the limit of this phase grants.
    """
    row = tl.program_id(0)
    states_ptr += row * (STATE + PIVOTS)
    phase, low, high = tl.load(states_ptr), tl.load(states_ptr + 1), tl.load(states_ptr + 2)
    count, mass = tl.load(states_ptr + 3), tl.load(states_ptr + 4)
    wanted, best = tl.load(states_ptr + 5), tl.load(states_ptr + 6)
    lowest = tl.min(_load_extremes(extremes_ptr, 0, splits, float("inf"), SPLITS), axis=0)
    highest = tl.max(_load_extremes(extremes_ptr, 1, splits, float("-inf"), SPLITS), axis=0)
    step = tl.arange(0, PIVOTS)
    pivots = tl.load(states_ptr + STATE + step)
    counts = _sum_splits(sums_ptr, 0, splits, SPLITS)
    masses = _sum_splits(sums_ptr, 1, splits, SPLITS)
    is_kept = tl.where(phase == RANK, counts, masses) < wanted
    num_cut = tl.sum(tl.where(is_kept, 0, 1), axis=0)
    is_open, is_single = phase != DONE, lowest >= highest
    # One value is left: the threshold of this phase. After the rank comes the mass, within the top-k.
    to_mass = is_open & is_single & (phase == RANK) & (top_p < 1)
    top_k_mass = mass + (wanted - count) * tl.exp((highest - best) / temperature)
    narrows = is_open & (lowest < highest)
    takes_low, takes_high = narrows & (num_cut > 0), narrows & (num_cut < PIVOTS)
    new_low = tl.where(takes_low, tl.sum(tl.where(step == num_cut - 1, pivots, 0.0), axis=0), low)
    new_low = tl.where(is_open & is_single & (~to_mass), highest, new_low)
    new_high = tl.where(takes_high, tl.sum(tl.where(step == num_cut, pivots, 0.0), axis=0), high)
    new_count = tl.where(takes_high, tl.sum(tl.where(step == num_cut, counts, 0.0), axis=0), count)
    new_mass = tl.where(takes_high, tl.sum(tl.where(step == num_cut, masses, 0.0), axis=0), mass)
    new_phase = tl.where(to_mass, MASS, tl.where(is_single, DONE, phase))
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
    pointers = sums_ptr + (start + split) * PIVOTS + tl.arange(0, PIVOTS)[None, :]
    return tl.sum(tl.load(pointers, mask=split < splits, other=0.0), axis=0)


@triton.jit
def store_state(states_ptr, phase, low, high, count, mass, wanted, best):
    states_ptr += tl.program_id(0) * (STATE + PIVOTS)
    tl.store(states_ptr, phase)
    tl.store(states_ptr + 1, low)
    tl.store(states_ptr + 2, high)
    tl.store(states_ptr + 3, count)
    tl.store(states_ptr + 4, mass)
    tl.store(states_ptr + 5, wanted)
    tl.store(states_ptr + 6, best)


@triton.jit
def keep_done(old_states_ptr, states_ptr):
    """What the next passes and the end read of a row that is done."""
    old_states_ptr += tl.program_id(0) * (STATE + PIVOTS)
    low, best = tl.load(old_states_ptr + 1), tl.load(old_states_ptr + 6)
    store_state(states_ptr, DONE, low, low, 0.0, 0.0, 0.0, best)
