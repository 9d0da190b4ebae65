"""Gathering the cosines and sines of a step's positions."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.triton import pdl


def rotary_rows(
    table: torch.Tensor, positions: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """`kernels.rotary.rotary_rows`: table [P, head_dim] fp32 and positions [T] int64."""
    num_rows, head_dim = len(positions), table.shape[1]
    rows = torch.empty((2, num_rows, 1, head_dim), dtype=dtype, device=table.device)
    cos, sin = rows.unbind(0)
    if num_rows == 0:
        return cos, sin
    half = head_dim // 2
    trigger = pdl.trigger_code("early" if num_rows <= 256 else "none", table.device)
    _rotary_rows_kernel[(num_rows,)](
        table, positions, cos, sin, HALF=half, BLOCK=triton.next_power_of_2(half), TRIGGER=trigger,
        num_warps=1, **pdl.launch_options(trigger),
    )  # fmt: skip
    return cos, sin


@triton.jit
def _rotary_rows_kernel(
    table_ptr,
    positions_ptr,
    cos_ptr,
    sin_ptr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    TRIGGER: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < HALF
    if TRIGGER == pdl.EARLY:
        gdc_launch_dependents()
    if TRIGGER != pdl.NONE:
        gdc_wait()
    start = table_ptr + tl.load(positions_ptr + row) * (2 * HALF)
    dtype = cos_ptr.dtype.element_ty
    cos = tl.load(start + at, mask=inside).to(dtype)
    sin = tl.load(start + HALF + at, mask=inside)
    first = row * (2 * HALF) + at
    tl.store(cos_ptr + first, cos, mask=inside)
    tl.store(cos_ptr + first + HALF, cos, mask=inside)
    tl.store(sin_ptr + first, (-sin).to(dtype), mask=inside)
    tl.store(sin_ptr + first + HALF, sin.to(dtype), mask=inside)
