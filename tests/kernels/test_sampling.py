"""The sampling kernels against distributions and against transformers' logits processors."""

import math

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from kernels import sampling

VOCAB = 4096


def _constant(rows: int, value: float) -> torch.Tensor:
    return torch.full((rows,), value)


def test_gumbel_noise_has_the_moments_of_a_gumbel_distribution() -> None:
    noise = sampling.gumbel_noise(torch.arange(64), torch.arange(64) * 7, VOCAB)
    assert noise.isfinite().all()
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.01)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.03)


def test_noise_depends_on_seed_position_and_token_and_on_nothing_else() -> None:
    seeds = torch.tensor([5, -(2**63), 2**63 - 1, 5])
    positions = torch.tensor([0, 1, 2, 9])
    together = sampling.gumbel_noise(seeds, positions, VOCAB)
    for i in range(4):
        alone = sampling.gumbel_noise(seeds[i : i + 1], positions[i : i + 1], VOCAB)
        assert torch.equal(alone[0], together[i])
    correlation = torch.corrcoef(together) - torch.eye(4)
    assert correlation.abs().max() < 0.06  # 4 sigma at 4096 samples


def test_noise_is_hashed_alike_by_torch_and_numpy() -> None:
    """The one hashes on GPUs without Triton, the other on CPUs."""
    keys = torch.cat(
        [
            torch.tensor([0, -1, 2**63 - 1, -(2**63)]),
            torch.randint(-(2**63), 2**63 - 1, (9,), generator=torch.Generator().manual_seed(4)),
        ]
    )
    assert torch.equal(sampling._hash(keys, VOCAB), sampling._hash_on_cpu(keys, VOCAB))


def test_draws_follow_the_softmax() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, float("-inf")])
    draws = 20_000
    rows = logits.expand(draws, -1)
    tokens = sampling.draw(rows, torch.full((draws,), 3), torch.arange(draws))
    observed = torch.bincount(tokens, minlength=5).float()
    expected = logits.softmax(-1) * draws
    assert observed[4] == 0
    chi_square = ((observed[:4] - expected[:4]) ** 2 / expected[:4]).sum().item()
    assert chi_square < 16.3  # 3 degrees of freedom, p = 0.001


@pytest.mark.parametrize("scale", [0.2, 1.0, 6.0])  # flat to peaked: with and without the shortlist
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [(0, 0.9, 0.0), (50, 1.0, 0.0), (50, 0.5, 0.0), (0, 1.0, 0.05), (1, 1.0, 0.0), (2000, 0.99, 0.01)],
)
def test_restrict_keeps_what_transformers_keeps(scale: float, top_k: int, top_p: float, min_p: float) -> None:
    logits = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(1)) * scale
    processors = LogitsProcessorList()
    if top_k:
        processors.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        processors.append(TopPLogitsWarper(top_p))
    expected = processors(None, logits.clone())
    if min_p:  # transformers renormalises after top-p; relative to the best token that changes nothing
        expected = MinPLogitsWarper(min_p)(None, expected)
    kept = sampling.restrict(logits, torch.full((6,), top_k), _constant(6, top_p), _constant(6, min_p))
    differing = (kept.isfinite() != expected.isfinite()).sum().item()
    assert differing <= 6  # a float sum may fall on either side of top_p, by one token a row
    assert torch.equal(kept.argmax(-1), logits.argmax(-1))


def test_restrict_treats_each_row_by_its_own_parameters() -> None:
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(2)) * 3
    top_k, top_p = torch.tensor([0, 3, 0, 1500]), torch.tensor([1.0, 1.0, 0.3, 0.999])
    min_p = torch.tensor([0.0, 0.0, 0.0, 0.2])
    together = sampling.restrict(logits, top_k, top_p, min_p)
    for i in range(4):
        row = slice(i, i + 1)
        alone = sampling.restrict(logits[row], top_k[row], top_p[row], min_p[row])
        assert torch.equal(alone[0], together[i])
    assert torch.equal(together[0], logits[0])
    assert together[1].isfinite().sum() == 3


def test_penalties_agree_with_their_definitions() -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(2, VOCAB, generator=generator)
    prompt, output = torch.tensor([[1, 2, 2, VOCAB - 1]] * 2), torch.tensor([[5, 5, 5, 2]] * 2)
    in_prompt = torch.zeros(2, VOCAB, dtype=torch.bool).scatter_(1, prompt, True)
    counts = torch.stack([torch.bincount(row, minlength=VOCAB) for row in output]).int()
    penalized = sampling.apply_penalties(
        logits, counts, in_prompt, _constant(2, 1.5), torch.tensor([0.0, 0.7]), torch.tensor([0.0, 0.3])
    )
    repeated = RepetitionPenaltyLogitsProcessor(1.5)(torch.cat([prompt, output], dim=1), logits.clone())
    assert torch.allclose(penalized[0], repeated[0])
    expected = repeated[1] - 0.7 * counts[1] - 0.3 * (counts[1] > 0)
    assert torch.allclose(penalized[1], expected)


def test_the_most_likely_token_is_the_lowest_id_among_equals() -> None:
    logits = torch.randn(5, VOCAB, generator=torch.Generator().manual_seed(9))
    assert torch.equal(sampling.most_likely(logits), logits.argmax(-1))
    logits[2, [7, 100, 4000]] = 50.0
    assert sampling.most_likely(logits)[2] == 7
