"""Token masks in Triton against plain torch, and the sampling kernels on rows of which little is left."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels import sampling
from kernels.triton.restrict import thresholds
from kernels.triton.sample import sample
from kernels.triton.token_masks import apply_token_masks_

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of infinities that are masked

ROWS = [4, 1]


def masks(allowed: np.ndarray) -> torch.Tensor:
    """allowed [C, V] bool to bits [C, ceil(V / 32)] int32."""
    padded = np.zeros((len(allowed), -(-allowed.shape[1] // 32) * 32), dtype=bool)
    padded[:, : allowed.shape[1]] = allowed
    return torch.from_numpy(np.packbits(padded, axis=1, bitorder="little").view(np.int32))


@pytest.mark.parametrize("vocab_size", [64, 700, 703])
def test_masks_exclude_what_they_say(vocab_size: int, device: torch.device) -> None:
    rng = np.random.default_rng(1)
    allowed = rng.random((len(ROWS), vocab_size)) < 0.5
    allowed[1, vocab_size - 1] = True  # the last bit of an int32 is its sign
    bits, rows = masks(allowed), torch.tensor(ROWS)
    logits = torch.from_numpy(rng.standard_normal((6, vocab_size + 5), dtype=np.float32))[:, :vocab_size]
    expected = logits.clone()
    expected[rows] = expected[rows].masked_fill(torch.from_numpy(~allowed), float("-inf"))
    before = logits.clone()
    assert sampling.apply_token_masks(logits, rows, bits).equal(expected)
    assert logits.equal(before)
    assert sampling.unpack_token_masks(bits, vocab_size).numpy().tolist() == allowed.tolist()
    on_device = apply_token_masks_(logits.to(device), rows.to(device), bits.to(device), block=256)
    assert on_device.cpu().equal(expected)


def test_draws_and_thresholds_survive_rows_that_are_mostly_excluded(device: torch.device) -> None:
    vocab_size = 100
    rng = np.random.default_rng(2)
    allowed = np.zeros((4, vocab_size), dtype=bool)
    for row, num_left in zip(allowed, (1, 1, 2, 30), strict=True):
        row[rng.choice(vocab_size, num_left, replace=False)] = True
    logits = torch.from_numpy(rng.standard_normal((4, vocab_size), dtype=np.float32)) * 3
    logits = sampling.apply_token_masks(logits, torch.arange(4), masks(allowed))
    temperature = torch.tensor([0.0, 1.0, 0.7, 1.3])
    restriction = sampling.Restriction(
        torch.tensor([0, 5, 0, 12]), torch.tensor([1.0, 0.9, 0.5, 0.8]), torch.tensor([0.0, 0.0, 0.1, 0.0])
    )
    seeds, positions = torch.tensor([1, 2, 3, 4]), torch.tensor([9, 8, 7, 6])
    expected = sampling.sample_tokens(logits, temperature, seeds, positions, restriction)
    assert all(allowed[i, token] for i, token in enumerate(expected.tolist()))
    here = [t.to(device) for t in (logits, temperature, seeds, positions)]
    limits = thresholds(here[0], here[1], *(t.to(device) for t in restriction), passes=8, block=128)
    assert sample(*here, thresholds=limits, block=128).tolist() == expected.tolist()
