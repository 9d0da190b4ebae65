"""Sums over ranks by way of mailboxes, the ranks' launches one after the other.

A rank cannot wait for those that run after it: their parts are put in by hand, and come again.
"""

from __future__ import annotations

import pytest
import torch

from kernels.norm import rms_norm
from kernels.triton import exchange_sum as sum_module
from kernels.triton.exchange_sum import exchange_sum
from kernels.triton.mailboxes import EMPTY, SLOTS, Mailboxes
from kernels.triton.small_batch.exchange_norm import exchange_norm

K, MAX_ROWS, EPS = 96, 3, 1e-6


def open_mailboxes(ranks: int, num_rows: int, num_words: int, device: torch.device) -> list[Mailboxes]:
    """All on one device: each rank reaches the others' by address."""
    shape = (SLOTS, ranks, num_rows, num_words)
    boxes = [torch.full(shape, EMPTY.value, dtype=torch.int32, device=device) for _ in range(ranks)]
    addresses = torch.tensor([box.data_ptr() for box in boxes], device=device)
    return [Mailboxes(box, addresses, rank) for rank, box in enumerate(boxes)]


@pytest.mark.parametrize(("ranks", "num_rows", "splits"), [(2, 3, 2), (3, 1, 1)])
def test_sum_and_norm(device: torch.device, ranks: int, num_rows: int, splits: int) -> None:
    torch.manual_seed(3)
    mailboxes = open_mailboxes(ranks, MAX_ROWS, K, device)
    weight = torch.randn(K, device=device)
    residuals = [torch.randn(num_rows, K, device=device)] * ranks
    for call in range(2):
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
            assert bool((mailboxes[rank].own[slot] == EMPTY.value).all())
        for rank in range(ranks):
            again = mailboxes[rank].own[slot, rank + 1 :]
            assert torch.equal(again[:, :num_rows], sent[rank + 1 :])
            again.fill_(EMPTY.value)


@pytest.mark.parametrize(("ranks", "dtype"), [(2, torch.bfloat16), (3, torch.float16)])
def test_sum(device: torch.device, ranks: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Larger than what one program takes at a time, and no multiple of it."""
    monkeypatch.setattr(sum_module, "_BLOCK", 64)
    monkeypatch.setattr(sum_module, "_PROGRAMS", 2)
    torch.manual_seed(4)
    mailboxes = open_mailboxes(ranks, 1, 300, device)
    for slot in (0, 1):
        parts = torch.randn(ranks, 5, 74, device=device).to(dtype)
        parts[:, 0, :2] = torch.tensor([0.0, -0.0])  # the word that means "not there yet"
        expected = parts.float().sum(0).to(dtype)
        sent = parts.flatten(1).view(torch.int32)
        sent = torch.where(sent == EMPTY.value, 0, sent)
        for rank, x in enumerate(parts):
            mailboxes[rank].own[slot, rank + 1 :, 0, : sent.shape[1]] = sent[rank + 1 :]
            exchange_sum(x, mailboxes[rank], slot)
            torch.testing.assert_close(x, expected)  # the interpreter does not round to bf16, it cuts
            assert torch.equal(x, parts[0])
            assert bool((mailboxes[rank].own == EMPTY.value).all())
        for rank in range(ranks):
            again = mailboxes[rank].own[slot, rank + 1 :, 0]
            assert torch.equal(again[:, : sent.shape[1]], sent[rank + 1 :])
            again.fill_(EMPTY.value)
