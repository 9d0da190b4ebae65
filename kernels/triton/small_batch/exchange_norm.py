"""Sum of a few rows over all GPUs of a host, residual add and RMSNorm, in one kernel over `mailboxes`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.triton.mailboxes import EMPTY, Mailboxes, take
from kernels.triton.pdl import EARLY, launch_options, trigger_code
from kernels.triton.small_batch.residual_norm import norm_of


def exchange_norm(
    parts: torch.Tensor,
    mailboxes: Mailboxes,
    slot: int,
    residual: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    eps: float,
) -> None:
    """residual += sum of all ranks' parts, in order of rank, and out = RMSNorm(residual) * weight.

    parts [splits, M, K] fp32 are this rank's, summed in order of the splits; the rest is as in
    `residual_norm`. The mailboxes are [SLOTS, ranks, rows, K]. All ranks call this alike. Does not end before
    all other ranks have come to it.
    """
    num_rows, k = residual.shape
    _, ranks, max_rows, _ = mailboxes.own.shape
    code = trigger_code("early", residual.device)
    block = triton.next_power_of_2(k)
    _exchange_norm[(num_rows,)](
        parts,
        mailboxes.own,
        mailboxes.addresses,
        residual,
        weight,
        out,
        num_rows,
        slot,
        EPS=eps,
        K=k,
        BLOCK=block,
        SPLITS=parts.shape[0],
        RANK=mailboxes.rank,
        RANKS=ranks,
        MAX_ROWS=max_rows,
        TRIGGER=code,
        num_warps=min(8, max(1, block // 256)),
        **launch_options(code),
    )


@triton.jit(do_not_specialize=["num_rows", "slot"])
def _exchange_norm(
    parts_ptr,
    mailbox_ptr,
    addresses_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    num_rows,
    slot,
    EPS: tl.constexpr,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    MAX_ROWS: tl.constexpr,
    TRIGGER: tl.constexpr,
):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < K
    if TRIGGER == EARLY:
        gdc_launch_dependents()
    weight = tl.load(weight_ptr + columns, mask=mask, other=0.0)
    if TRIGGER:
        gdc_wait()
    own = tl.load(parts_ptr + row * K + columns, mask=mask, other=0.0)
    for split in tl.static_range(1, SPLITS):
        own += tl.load(parts_ptr + (split * num_rows + row) * K + columns, mask=mask, other=0.0)
    x = tl.load(residual_ptr + row * K + columns, mask=mask, other=0.0)
    own_bits = own.to(tl.int32, bitcast=True)
    own_bits = tl.where(own_bits == EMPTY, 0, own_bits)
    for rank in tl.static_range(RANKS):
        if rank != RANK:
            mailbox = tl.load(addresses_ptr + rank).to(tl.pointer_type(tl.int32))
            place = ((slot * RANKS + RANK) * MAX_ROWS + row) * K + columns
            tl.store(mailbox + place, own_bits, mask=mask)
    total = tl.zeros([BLOCK], tl.float32)
    for rank in tl.static_range(RANKS):
        bits = own_bits
        if rank != RANK:
            bits = take(mailbox_ptr + ((slot * RANKS + rank) * MAX_ROWS + row) * K + columns, mask)
        total += bits.to(tl.float32, bitcast=True)
    x += total
    tl.store(residual_ptr + row * K + columns, x, mask=mask)
    tl.store(out_ptr + row * K + columns, norm_of(x, weight, K, EPS), mask=mask)
