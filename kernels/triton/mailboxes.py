"""Mailboxes in the memory of GPUs that can write to each other's: how ranks exchange parts of a sum.

Each rank writes its part into the mailboxes of the others and waits for theirs in its own. A word that holds
`EMPTY` has not come yet: the data is its own flag, so nobody waits for a barrier, and no word crosses a link
twice. NCCL's low-latency protocols and TensorRT-LLM's "Lamport" all-reduce work like this.

A mailbox has two slots. Whoever fills a slot for the second time must know that its reader has emptied it.
That is so once another sum of any kind has come in between, since the reader came to that one later.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

SLOTS = 2
EMPTY = tl.constexpr(-(1 << 31))
"""-0.0 in fp32; 0.0 and -0.0 in types of half the size. A part with such a word sends zeros instead."""


@dataclass(frozen=True, slots=True)
class Mailboxes:
    """Where a rank finds the other ranks' parts, and where it puts its own for them."""

    own: torch.Tensor  # [SLOTS, ranks, rows, words] int32, all `EMPTY` between uses
    addresses: torch.Tensor  # of every rank's, [ranks] int64, on this rank's device
    rank: int


@triton.jit
def take(ptrs, mask):
    """Wait for all words, and leave the place empty."""
    words = tl.load(ptrs, mask=mask, other=0, volatile=True)
    while tl.max((words == EMPTY).to(tl.int32), 0) != 0:
        words = tl.load(ptrs, mask=mask, other=0, volatile=True)
    tl.store(ptrs, tl.full(words.shape, EMPTY, tl.int32), mask=mask)
    return words
