"""Sampling kernels in Triton against `kernels.sampling`: the same noise, draws and tokens kept."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from kernels import sampling
from kernels.triton import gumbel
from kernels.triton.restrict import thresholds
from kernels.triton.sample import sample

VOCAB = 700
BLOCK = 256  # three tiles, the last one partial

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of infinities that are masked


def randn(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


def seeds_of(rows: int) -> torch.Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (rows,), generator=torch.Generator().manual_seed(9))


@triton.jit
def _noise_kernel(seeds_ptr, positions_ptr, noise_ptr, BLOCK: tl.constexpr):  # noqa: N803
    row = tl.program_id(0)
    low, high = gumbel.noise_key(tl.load(seeds_ptr + row), tl.load(positions_ptr + row))
    ids = tl.arange(0, BLOCK)
    tl.store(noise_ptr + row * BLOCK + ids, gumbel.gumbel(ids, low, high))


def test_noise_is_that_of_the_reference(device: torch.device) -> None:
    """The uniform numbers are equal, or the noise would be another; the logarithms may round differently."""
    seeds = torch.cat([seeds_of(5), torch.tensor([0, -1, 2**63 - 1])])
    positions = torch.tensor([0, 1, 40_000, 7, 2**31, 2**40, 3, 131_071])
    noise = torch.empty(8, 4096, device=device)
    _noise_kernel[(8,)](seeds.to(device), positions.to(device), noise, BLOCK=4096)
    torch.testing.assert_close(
        noise.cpu(), sampling.gumbel_noise(seeds, positions, 4096), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("max_programs", [1, 1000])  # one split, and one for each tile
def test_draws_are_those_of_the_reference(max_programs: int, device: torch.device) -> None:
    logits = randn(6, VOCAB + 3)[:, :VOCAB] * 3
    temperature = torch.tensor([0.0, 1.0, 0.7, 2.0, 1e-6, 0.05])
    seeds, positions = seeds_of(6), torch.arange(6) * 1000
    expected = sampling.sample_tokens(logits, temperature, seeds, positions)
    here = [t.to(device) for t in (temperature, seeds, positions)]
    strided = randn(6, VOCAB + 3).to(device)
    strided[:, :VOCAB] = logits.to(device)
    drawn = sample(strided[:, :VOCAB], *here, block=BLOCK, max_programs=max_programs)
    assert drawn.dtype == torch.int64
    assert drawn.tolist() == expected.tolist()


def test_a_row_draws_the_same_alone_and_in_a_batch(device: torch.device) -> None:
    logits = (randn(3, VOCAB, seed=1) * 2).to(device)
    temperature, positions = torch.ones(3, device=device), torch.arange(3, device=device)
    seeds = seeds_of(3).to(device)
    together = sample(logits, temperature, seeds, positions, block=BLOCK)
    for i in range(3):
        row = slice(i, i + 1)
        alone = sample(logits[row], temperature[row], seeds[row], positions[row], block=BLOCK, max_programs=1)
        assert alone.item() == together[i].item()


def test_ties_go_to_the_lowest_id_and_nan_is_never_chosen(device: torch.device) -> None:
    logits = torch.zeros(4, VOCAB)
    logits[1, [650, 300, 301]] = 5.0
    logits[2, :] = float("-inf")
    logits[2, 512] = -1e30
    logits[3, 0] = float("nan")
    nothing = torch.zeros(4, dtype=torch.int64, device=device)
    greedy = torch.zeros(4, device=device)
    drawn = sample(logits.to(device), greedy, nothing, nothing, block=BLOCK)
    assert drawn.tolist() == [0, 300, 512, 1]


LIMITS = [(0, 0.9, 0.0), (7, 1.0, 0.0), (50, 0.5, 0.0), (0, 1.0, 0.05), (300, 0.99, 0.01), (VOCAB, 0.4, 0.0)]
"""top_k, top_p, min_p: one row of a batch each."""


def kept_by(logits: torch.Tensor, temperature: torch.Tensor, limits: sampling.Restriction) -> torch.Tensor:
    scaled = (logits - logits.amax(-1, keepdim=True)) / temperature.unsqueeze(1)
    return sampling.restrict(scaled, *limits).isfinite()


def limits_of(rows: list[tuple[int, float, float]]) -> sampling.Restriction:
    top_k, top_p, min_p = zip(*rows, strict=True)
    return sampling.Restriction(torch.tensor(top_k), torch.tensor(top_p), torch.tensor(min_p))


@pytest.mark.parametrize(
    ("scale", "dtype", "block", "passes"),
    [(0.3, torch.float32, 1024, 16), (4.0, torch.float16, 512, 8)],  # fp16: many ties, so fewer passes do
)
def test_thresholds_keep_what_the_reference_keeps(
    scale: float, dtype: torch.dtype, block: int, passes: int, device: torch.device
) -> None:
    logits = (randn(len(LIMITS), VOCAB, seed=2) * scale).to(dtype)
    logits[:, 5:9] = float("-inf")
    temperature = torch.tensor([1.0, 0.6, 1.0, 1.0, 2.0, 0.8])
    limits = limits_of(LIMITS)
    lowest = thresholds(
        logits.to(device), temperature.to(device), *(limit.to(device) for limit in limits),
        block=block, passes=passes,
    ).cpu()  # fmt: skip
    kept = (logits.float() >= lowest.unsqueeze(1)) & logits.isfinite()
    differing = (kept != kept_by(logits.float(), temperature, limits)).sum(dim=-1)
    # A float sum may fall on either side of top_p, by one value in a row; no other limit is a float sum.
    ties = 1 if dtype == torch.float32 else 16
    assert (differing <= torch.tensor([ties, 0, ties, 0, ties, ties])).all()


def test_rows_that_ask_nothing_keep_everything(device: torch.device) -> None:
    logits = randn(3, VOCAB, seed=3)
    temperature = torch.tensor([1.0, 0.0, 1.0])
    limits = limits_of([(0, 1.0, 0.0), (3, 0.2, 0.5), (10_000, 1.0, 0.0)])
    lowest = thresholds(
        logits.to(device), temperature.to(device), *(limit.to(device) for limit in limits), block=1024
    ).cpu()  # fmt: skip
    assert lowest[:2].tolist() == [float("-inf")] * 2
    assert (logits[2] >= lowest[2]).all()


def test_draws_from_a_restricted_row_stay_inside_it(device: torch.device) -> None:
    logits = randn(4, VOCAB, seed=4)
    lowest = logits.topk(3).values[:, 2]
    drawn = sample(
        logits.to(device), torch.full((4,), 50.0, device=device), seeds_of(4).to(device),
        torch.arange(4, device=device), thresholds=lowest.to(device), block=BLOCK,
    ).cpu()  # fmt: skip
    assert (logits.gather(1, drawn.unsqueeze(1)).squeeze(1) >= lowest).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
class TestOnTheDevice:
    VOCAB = 151_936

    def test_draws_and_limits_at_full_size(self, device: torch.device) -> None:
        rows = 48
        logits = (randn(rows, self.VOCAB, seed=5) * 2.5).bfloat16().float()
        temperature = torch.rand(rows, generator=torch.Generator().manual_seed(1)) + 0.3
        temperature[::6] = 0.0
        limits = limits_of([LIMITS[i % len(LIMITS)] for i in range(rows)])
        seeds, positions = seeds_of(rows), torch.arange(rows)
        here = [t.to(device) for t in (logits, temperature, seeds, positions)]
        restricted = sampling.Restriction(*(limit.to(device) for limit in limits))
        for given, ours in ((None, None), (limits, restricted)):
            expected = sampling.sample_tokens(logits, temperature, seeds, positions, given)
            drawn = sampling.sample_tokens(*here, ours).cpu()
            assert (drawn != expected).sum() <= 1  # a near tie, or a float sum beside top_p

    def test_draws_follow_the_softmax(self, device: torch.device) -> None:
        logits = torch.tensor([2.0, 1.0, 0.0, -1.0, float("-inf")], device=device)
        draws = 20_000
        tokens = sample(
            logits.expand(draws, -1).contiguous(), torch.ones(draws, device=device),
            torch.full((draws,), 3, device=device), torch.arange(draws, device=device),
        )  # fmt: skip
        observed = torch.bincount(tokens.cpu(), minlength=5).float()
        expected = logits.cpu().softmax(-1) * draws
        assert observed[4] == 0
        chi_square = ((observed[:4] - expected[:4]) ** 2 / expected[:4]).sum().item()
        assert chi_square < 16.3  # 3 degrees of freedom, p = 0.001

    def test_a_captured_graph_follows_its_inputs(self, device: torch.device) -> None:
        logits = (randn(4, self.VOCAB, seed=6) * 2).to(device)
        temperature, seeds = torch.ones(4, device=device), seeds_of(4).to(device)
        positions = torch.arange(4, device=device)
        limits = sampling.Restriction(*(limit.to(device) for limit in limits_of(LIMITS[:4])))
        sampling.sample_tokens(logits, temperature, seeds, positions, limits)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            drawn = sampling.sample_tokens(logits, temperature, seeds, positions, limits)
        for step in range(3):
            positions += 17
            logits.copy_((randn(4, self.VOCAB, seed=step) * 2).to(device))
            graph.replay()
            now = sampling.sample_tokens(logits, temperature, seeds, positions, limits)
            assert torch.equal(drawn, now)
