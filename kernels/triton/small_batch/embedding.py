"""Token embeddings into the fp32 residual: the first kernel of a decode step."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from kernels.triton.pdl import trigger_code


def embed_tokens(
    token_ids: torch.Tensor, table: torch.Tensor, residual: torch.Tensor, first: int = 0
) -> None:
    """residual [M, K], fp32 = the embeddings of token_ids [M] int64. Contiguous.

    table [N, K] holds those of the N tokens from `first` on; other tokens give zeros.
    Starts only when all work before it is complete: kernels behind it may read inputs of the step before they
    wait (see `pdl`).
    """
    num_rows, k = residual.shape
    _embed[(num_rows,)](
        token_ids,
        table,
        residual,
        first,
        len(table),
        K=k,
        BLOCK=triton.next_power_of_2(k),
        TRIGGER=trigger_code("early", table.device),
        num_warps=4,
    )


@triton.jit(do_not_specialize=["first", "num_tokens"])
def _embed(
    token_ids_ptr,
    table_ptr,
    residual_ptr,
    first,
    num_tokens,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    TRIGGER: tl.constexpr,
):
    if TRIGGER:
        gdc_launch_dependents()
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < K
    token = tl.load(token_ids_ptr + row).to(tl.int64) - first
    # By a branch: a mask that is part scalar is not for every version of the interpreter.
    x = tl.zeros([BLOCK], table_ptr.dtype.element_ty)
    if (token >= 0) & (token < num_tokens):
        x = tl.load(table_ptr + token * K + columns, mask=mask, other=0.0)
    tl.store(residual_ptr + row * K + columns, x.to(tl.float32), mask=mask)
