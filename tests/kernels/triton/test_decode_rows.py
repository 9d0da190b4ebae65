"""Gathering and recording the rows of a decode batch, against plain indexing."""

from __future__ import annotations

import pytest
import torch

from kernels import decode_rows as reference
from kernels.triton import decode_rows as fused

NUM_ROWS, SPARE, BLOCK_SIZE = 40, 40, 16


def state(device: torch.device) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(0, 5 * BLOCK_SIZE, (NUM_ROWS + 1,), generator=generator)
    lengths[SPARE] = 0
    tensors = {
        "last_token": torch.randint(0, 1000, (NUM_ROWS + 1,), generator=generator),
        "lengths": lengths,
        "block_tables": torch.randint(0, 90, (NUM_ROWS + 1, 7), generator=generator, dtype=torch.int32),
        "temperature": torch.rand(NUM_ROWS + 1, generator=generator),
        "seeds": torch.randint(-(2**62), 2**62, (NUM_ROWS + 1,), generator=generator),
    }
    return {name: tensor.to(device) for name, tensor in tensors.items()}


@pytest.fixture(params=[1, 37])
def rows(request: pytest.FixtureRequest, device: torch.device) -> torch.Tensor:
    """Some rows in no order, and three times the spare one."""
    members = torch.randperm(NUM_ROWS, generator=torch.Generator().manual_seed(1))[: request.param]
    return torch.cat([members, torch.full((3,), SPARE)]).to(device)


def test_gathered_rows_equal_plain_indexing(rows: torch.Tensor, device: torch.device) -> None:
    s = state(device)
    decode = (rows, s["last_token"], s["lengths"], s["block_tables"], 5, BLOCK_SIZE)
    sampling = (rows, s["temperature"], s["seeds"], s["lengths"])
    for ours, expected in (
        (fused.gather_decode_rows(*decode), on_cpu(reference.gather_decode_rows, *decode)),
        (fused.gather_sampling_rows(*sampling), on_cpu(reference.gather_sampling_rows, *sampling)),
    ):
        for field, ours_of, expected_of in zip(ours._fields, ours, expected, strict=True):
            assert ours_of.dtype == expected_of.dtype, field
            assert torch.equal(ours_of.cpu(), expected_of), field


def test_a_recorded_token_moves_its_row_on_and_leaves_the_spare_one_empty(
    rows: torch.Tensor, device: torch.device
) -> None:
    s = state(device)
    token_ids = torch.arange(len(rows), device=device) + 5000
    before = s["lengths"].clone()
    fused.record_tokens(rows, token_ids, s["last_token"], s["lengths"], SPARE)
    members, others = rows[:-3], [row for row in range(NUM_ROWS) if row not in rows.tolist()]
    assert torch.equal(s["last_token"][members], token_ids[:-3])
    assert torch.equal(s["lengths"][members], before[members] + 1)
    assert torch.equal(s["lengths"][others], before[others])
    assert s["lengths"][SPARE] == 0


def on_cpu(function: object, *arguments: object) -> tuple[torch.Tensor, ...]:
    moved = [a.cpu() if isinstance(a, torch.Tensor) else a for a in arguments]
    return function(*moved)  # type: ignore[operator, no-any-return]
