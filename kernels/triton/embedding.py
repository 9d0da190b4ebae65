"""Token embeddings into the fp32 residual: the first kernel of a decode step."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from kernels.triton.pdl import trigger_code


def embed_tokens(token_ids: torch.Tensor, table: torch.Tensor, residual: torch.Tensor) -> None:
    """residual [M, K], fp32 = table[token_ids], for token_ids [M] int64 and table [vocab, K]. Contiguous.

    Starts only when all work before it is complete: kernels behind it may read inputs of the step before they
    wait (see `pdl`).
    """
    num_rows, k = residual.shape
    _embed[(num_rows,)](
        token_ids,
        table,
        residual,
        K=k,
        BLOCK=triton.next_power_of_2(k),
        TRIGGER=trigger_code("early", table.device),
        num_warps=4,
    )


@triton.jit
def _embed(
    token_ids_ptr, table_ptr, residual_ptr, K: tl.constexpr, BLOCK: tl.constexpr, TRIGGER: tl.constexpr
):
    if TRIGGER:
        gdc_launch_dependents()
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < K
    token = tl.load(token_ids_ptr + row).to(tl.int64)
    x = tl.load(table_ptr + token * K + columns, mask=mask, other=0.0)
    tl.store(residual_ptr + row * K + columns, x.to(tl.float32), mask=mask)
