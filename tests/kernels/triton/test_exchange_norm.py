"""Sum over ranks, residual and norm in one kernel, the ranks' launches one after the other."""

from __future__ import annotations

import pytest
import torch

from kernels.norm import rms_norm
from kernels.triton.exchange_norm import EMPTY, SLOTS, Mailboxes, exchange_norm

K, MAX_ROWS, EPS = 96, 3, 1e-6


def open_mailboxes(ranks: int, device: torch.device) -> list[Mailboxes]:
    """All on one device: each rank reaches the others' by address."""
    boxes = [
        torch.full((SLOTS, ranks, MAX_ROWS, K), EMPTY, dtype=torch.int32, device=device) for _ in range(ranks)
    ]
    addresses = torch.tensor([box.data_ptr() for box in boxes], device=device)
    return [Mailboxes(box, addresses, rank) for rank, box in enumerate(boxes)]


@pytest.mark.parametrize(("ranks", "num_rows", "splits"), [(2, 1, 1), (2, 3, 2), (3, 2, 1)])
def test_every_rank_gets_the_same_sum(device: torch.device, ranks: int, num_rows: int, splits: int) -> None:
    """A rank cannot wait for those that run after it: their parts are put in by hand, and come again."""
    torch.manual_seed(3)
    mailboxes = open_mailboxes(ranks, device)
    weight = torch.randn(K, device=device)
    residuals = [torch.randn(num_rows, K, device=device)] * ranks
    for call in range(3):
        parts = torch.randn(ranks, splits, num_rows, K, device=device)
        parts[:, :, 0, :2] = -0.0  # the bits that mean "not there yet"
        expected = residuals[0] + parts.sum((0, 1))
        sent = (parts.sum(1) + 0.0).view(torch.int32)
        slot, residuals = call % SLOTS, [residual.clone() for residual in residuals]
        for rank in range(ranks):
            mailboxes[rank].own[slot, rank + 1 :, :num_rows] = sent[rank + 1 :]
            out = torch.empty(num_rows, K, device=device)
            exchange_norm(parts[rank], mailboxes[rank], slot, residuals[rank], weight, out, EPS)
            torch.testing.assert_close(residuals[rank], expected, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(out, rms_norm(expected.clone(), weight, EPS), rtol=1e-4, atol=1e-4)
            assert torch.equal(residuals[rank], residuals[0])
            assert bool((mailboxes[rank].own[slot] == EMPTY).all())
        for rank in range(ranks):
            again = mailboxes[rank].own[slot, rank + 1 :]
            assert torch.equal(again[:, :num_rows], sent[rank + 1 :])
            again.fill_(EMPTY)
