"""Drawing one token per row from logits, in plain torch, without ever waiting for the device.

Randomness is a pure function of (seed, position, token id): the same request draws the same tokens whatever
else is in the batch. A token is drawn by the Gumbel-max rule: argmax(logit / temperature + Gumbel noise) has
the softmax distribution (Gumbel 1954; Maddison et al., "A* Sampling", 2014), so nothing is normalised.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from kernels.fused import runs_fused

_INT32_GOLDEN = -1640531535  # 2^32 / golden ratio, as a signed int32
_INT64_GOLDEN = -7046029254386353131  # likewise for 64 bits
_SHORTLIST = 1024  # on a CPU, top-p looks at this many tokens before it sorts the whole vocabulary


def _mix32(x: torch.Tensor) -> torch.Tensor:
    """An integer hash on int32, in place: xor-shift-multiply with the constants of C. Wellons' lowbias32."""
    x ^= (x >> 16) & 0xFFFF
    x *= 0x7FEB352D
    x ^= (x >> 15) & 0x1FFFF
    x *= -2073254261  # 0x846CA68B
    x ^= (x >> 16) & 0xFFFF
    return x


def _mix64(x: torch.Tensor) -> torch.Tensor:
    """The finalizer of splitmix64 (Steele, Lea, Flood 2014) on int64."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


def gumbel_noise(seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Standard Gumbel noise [R, vocab_size] fp32, keyed by `seeds` [R] int64 and `positions` [R] int64."""
    key = _mix64(_mix64(seeds) + positions * _INT64_GOLDEN)
    hashed = _hash_on_cpu(key, vocab_size) if key.device.type == "cpu" else _hash(key, vocab_size)
    # 23 bits and a half: every value is exact in fp32 and strictly between 0 and 1.
    return hashed.add_(0.5).mul_(2.0**-23).log_().neg_().log_().neg_()


def _hash(key: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """23 random bits of each (key, token id), as fp32 [R, vocab_size]. key [R] int64."""
    low, high = key.to(torch.int32).unsqueeze(1), (key >> 32).to(torch.int32).unsqueeze(1)
    token_ids = torch.arange(vocab_size, dtype=torch.int32, device=key.device)
    bits = _mix32((token_ids * _INT32_GOLDEN).unsqueeze(0) ^ low)
    bits = _mix32(bits.add_(high))
    return ((bits >> 9) & 0x7FFFFF).to(torch.float32)


def _hash_on_cpu(key: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """`_hash` by numpy: its unsigned shifts need no masks, and a row at a time stays in the cache."""
    keys = key.numpy().view(np.uint64)
    token_ids = np.arange(vocab_size, dtype=np.uint32) * np.uint32(_INT32_GOLDEN & 0xFFFFFFFF)
    bits, scratch = np.empty_like(token_ids), np.empty_like(token_ids)
    hashed = torch.empty((len(keys), vocab_size))
    for i, (low, high) in enumerate(zip(keys.astype(np.uint32), (keys >> 32).astype(np.uint32), strict=True)):
        np.bitwise_xor(token_ids, low, out=bits)
        _mix32_in_place(bits, scratch)
        np.add(bits, high, out=bits)
        _mix32_in_place(bits, scratch)
        np.right_shift(bits, 9, out=bits)
        hashed[i] = torch.from_numpy(bits.view(np.int32))
    return hashed


def _mix32_in_place(x: np.ndarray, scratch: np.ndarray) -> None:
    """`_mix32` of x [N] uint32; `scratch` is as large."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        np.right_shift(x, shift, out=scratch)
        np.bitwise_xor(x, scratch, out=x)
        np.multiply(x, np.uint32(factor), out=x)
    np.right_shift(x, 16, out=scratch)
    np.bitwise_xor(x, scratch, out=x)


def apply_penalties(
    logits: torch.Tensor,
    output_counts: torch.Tensor,
    in_prompt: torch.Tensor,
    repetition: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
) -> torch.Tensor:
    """Penalise tokens that a sequence already holds; returns new logits [R, V].

    output_counts [R, V]: how often each token was generated; in_prompt [R, V] bool. The repetition penalty
    (Keskar et al., CTRL, 2019) looks at prompt and output, the other two (OpenAI's) at the output alone.
    repetition, frequency, presence: [R] fp32.
    """
    generated = output_counts > 0
    seen = generated | in_prompt
    factor = repetition.unsqueeze(1)
    logits = torch.where(seen, torch.where(logits > 0, logits / factor, logits * factor), logits)
    logits = logits - frequency.unsqueeze(1) * output_counts
    return logits - presence.unsqueeze(1) * generated


def apply_token_masks(logits: torch.Tensor, rows: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    """Logits [R, V] with -inf for the tokens that `bits` exclude in some rows; the input stays as it is.

    rows [C] int64; bits [C, ceil(V / 32)] int32: bit i of word w allows token 32 * w + i.
    """
    if runs_fused(logits):
        from kernels.triton.token_masks import apply_token_masks_

        return apply_token_masks_(logits.clone(), rows, bits)
    allowed = unpack_token_masks(bits, logits.shape[-1])
    return logits.index_copy(0, rows, logits[rows].masked_fill_(~allowed, float("-inf")))


def unpack_token_masks(bits: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """[C, vocab_size] bool from `bits` [C, ceil(vocab_size / 32)] int32."""
    if bits.device.type == "cpu":  # numpy unpacks ten times faster
        octets = bits.numpy().view(np.uint8)
        return torch.from_numpy(np.unpackbits(octets, axis=1, count=vocab_size, bitorder="little")).bool()
    shifts = torch.arange(32, dtype=torch.int32, device=bits.device)
    return ((bits.unsqueeze(-1) >> shifts) & 1).bool().flatten(1)[:, :vocab_size]


def restrict(
    scaled: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> torch.Tensor:
    """Mask to -inf what top-k, then top-p over what is left, and min-p exclude; new logits [R, V].

    scaled [R, V] fp32 has been divided by the temperature. top_k [R] int64 (0 = off), top_p and min_p [R]
    fp32 (1 and 0 = off). Tokens that tie with the last one kept are kept too. The most likely one always
    stays.
    """
    vocab_size = scaled.shape[-1]
    top_k = torch.where(top_k > 0, top_k, vocab_size).clamp(max=vocab_size)
    threshold = _top_k_top_p_threshold(scaled, top_k, top_p)
    best = scaled.amax(dim=-1)
    threshold = torch.maximum(threshold, best + min_p.log())  # log(0) = -inf: off
    return scaled.masked_fill(scaled < threshold.unsqueeze(1), float("-inf"))


def _top_k_top_p_threshold(scaled: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The smallest logit that top-k and top-p keep, [R]; -inf where both are off."""
    vocab_size = scaled.shape[-1]
    top_p = torch.where(top_p < 1, top_p, float("inf"))  # a float sum may pass 1 before the last token
    off = (top_k == vocab_size) & (top_p > 1)
    threshold = _threshold_of_rank_and_mass(scaled, top_k, top_p, off)
    return threshold.masked_fill(off, float("-inf"))


def _threshold_of_rank_and_mass(
    scaled: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, off: torch.Tensor
) -> torch.Tensor:
    vocab_size = scaled.shape[-1]
    if scaled.device.type == "cpu" and vocab_size > _SHORTLIST:
        # A full sort costs 10 times a shortlist; reading whether it sufficed costs nothing on the CPU.
        shortlist, _ = scaled.topk(_SHORTLIST, dim=-1)
        all_mass = torch.logsumexp(scaled, dim=-1, keepdim=True)
        in_shortlist = (shortlist - all_mass).exp_().sum(dim=-1)
        by_rank = top_k <= _SHORTLIST
        if bool((off | by_rank | (in_shortlist > top_p)).all()):
            top_k_mass = _log_mass_of_top_k(shortlist, top_k.clamp(max=_SHORTLIST))
            mass = torch.where(by_rank, top_k_mass, all_mass.squeeze(1))
            return _threshold_in_sorted(shortlist, top_k, top_p, mass)
    ordered, _ = scaled.sort(dim=-1, descending=True)
    return _threshold_in_sorted(ordered, top_k, top_p, _log_mass_of_top_k(ordered, top_k))


def _log_mass_of_top_k(ordered: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    return ordered.masked_fill(_ranks(ordered) >= top_k.unsqueeze(1), float("-inf")).logsumexp(dim=-1)


def _threshold_in_sorted(
    ordered: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, log_mass: torch.Tensor
) -> torch.Tensor:
    """`ordered` [R, N] descending holds at least the kept tokens; `log_mass` [R] normalises it."""
    probabilities = (ordered - log_mass.unsqueeze(1)).exp_()
    mass_before = probabilities.cumsum(dim=-1) - probabilities
    kept = (mass_before < top_p.unsqueeze(1)) & (_ranks(ordered) < top_k.unsqueeze(1))
    last_kept = kept.sum(dim=-1, keepdim=True).sub_(1).clamp_(min=0)
    return ordered.gather(1, last_kept).squeeze(1)


def _ranks(ordered: torch.Tensor) -> torch.Tensor:
    return torch.arange(ordered.shape[-1], device=ordered.device).unsqueeze(0)


def most_likely(logits: torch.Tensor) -> torch.Tensor:
    """The token of the highest logit in each row of [R, V], [R] int64; of equals the lowest id."""
    if logits.is_cuda:
        return logits.argmax(dim=-1)
    # numpy vectorises this over a row, which makes it 10 to 20 times faster than torch on a CPU.
    return torch.from_numpy(logits.numpy().argmax(axis=-1))


def draw(scaled: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """One token per row [R] int64 from the softmax of `scaled` [R, V] fp32 (-inf excludes)."""
    return most_likely(gumbel_noise(seeds, positions, scaled.shape[-1]).add_(scaled))


class Restriction(NamedTuple):
    """Which tokens may be drawn, by row [R], with the meaning that `restrict` gives them."""

    top_k: torch.Tensor  # int64
    top_p: torch.Tensor  # fp32
    min_p: torch.Tensor  # fp32


def sample_tokens(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    restriction: Restriction | None = None,
) -> torch.Tensor:
    """One token per row [R] int64: drawn at `temperature` [R] fp32, or the most likely one where it is 0.

    logits [R, V], of any float type on a GPU and fp32 elsewhere. Reads nothing on the host where the logits
    are on a GPU, so it can be part of a CUDA graph. Below 1e-5 a temperature counts as 0.
    """
    if runs_fused(logits):
        from kernels.triton.restrict import thresholds
        from kernels.triton.sample import sample

        limits = None if restriction is None else thresholds(logits, temperature, *restriction)
        return sample(logits, temperature, seeds, positions, thresholds=limits)
    greedy = temperature < 1e-5
    shifted = logits - logits.amax(dim=-1, keepdim=True)  # a tiny temperature must not overflow
    scaled = shifted / temperature.masked_fill(greedy, 1.0).unsqueeze(1)
    if restriction is not None:
        scaled = restrict(scaled, *restriction)
    noise = gumbel_noise(seeds, positions, logits.shape[-1])
    return (scaled + noise.masked_fill(greedy.unsqueeze(1), 0.0)).argmax(dim=-1)
