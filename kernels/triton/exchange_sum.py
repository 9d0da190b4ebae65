"""All-reduce of bf16 or fp16 between the GPUs of a host, in one kernel over `mailboxes`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.triton.mailboxes import EMPTY, Mailboxes, take

_BLOCK = 1024  # words of two elements
_PROGRAMS = 4 * 132  # all of them run at once on an H200, so that none waits for one that has not begun
_TYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def exchange_sum(x: torch.Tensor, mailboxes: Mailboxes, slot: int) -> None:
    """x = the sum of all ranks' x, added in fp32 and in order of rank.

    x is contiguous, of an even number of elements that fit a mailbox [SLOTS, ranks, 1, words]. All ranks call
    this alike. Does not end before all other ranks have come to it.
    """
    words = x.view(-1).view(torch.int32)
    _, ranks, _, capacity = mailboxes.own.shape
    num_words = words.numel()
    _exchange_sum[(min(triton.cdiv(num_words, _BLOCK), _PROGRAMS),)](
        words,
        mailboxes.own,
        mailboxes.addresses,
        num_words,
        slot,
        CAPACITY=capacity,
        BLOCK=_BLOCK,
        RANK=mailboxes.rank,
        RANKS=ranks,
        TYPE=_TYPES[x.dtype],
        num_warps=4,
    )


@triton.jit(do_not_specialize=["slot"])
def _exchange_sum(
    x_ptr,
    mailbox_ptr,
    addresses_ptr,
    num_words,
    slot,
    CAPACITY: tl.constexpr,
    BLOCK: tl.constexpr,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    TYPE: tl.constexpr,
):
    first = tl.program_id(0) * BLOCK
    step = tl.num_programs(0) * BLOCK
    for rank in tl.static_range(RANKS):
        if rank != RANK:
            mailbox = tl.multiple_of(tl.load(addresses_ptr + rank).to(tl.pointer_type(tl.int32)), 16)
            for start in range(first, num_words, step):
                places = start + tl.arange(0, BLOCK)
                words = tl.load(x_ptr + places, mask=places < num_words, other=0)
                words = tl.where(words == EMPTY, 0, words)
                tl.store(mailbox + (slot * RANKS + RANK) * CAPACITY + places, words, mask=places < num_words)
    for start in range(first, num_words, step):
        places = start + tl.arange(0, BLOCK)
        mask = places < num_words
        low = tl.zeros([BLOCK], tl.float32)
        high = low
        for rank in tl.static_range(RANKS):
            if rank == RANK:
                words = tl.load(x_ptr + places, mask=mask, other=0)
            else:
                words = take(mailbox_ptr + (slot * RANKS + rank) * CAPACITY + places, mask)
            low += words.to(tl.int16).to(TYPE, bitcast=True).to(tl.float32)
            high += (words >> 16).to(tl.int16).to(TYPE, bitcast=True).to(tl.float32)
        low_bits = low.to(TYPE).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
        high_bits = high.to(TYPE).to(tl.int16, bitcast=True).to(tl.int32) << 16
        tl.store(x_ptr + places, low_bits | high_bits, mask=mask)
