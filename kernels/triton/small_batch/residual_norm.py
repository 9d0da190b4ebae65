"""RMSNorm of the fp32 residual; partial products that were left beside the residual are added to it first."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.triton.pdl import EARLY, launch_options, trigger_code


def residual_norm(
    residual: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    eps: float,
    *,
    partials: torch.Tensor | None = None,
) -> None:
    """out = RMSNorm(residual + sum of partials) * weight, and the residual becomes that sum.

    residual [M, K] fp32, weight [K], out [M, K] of the weight's type, partials [splits, M, K] fp32, summed in
    order of the splits. The quotient is rounded to out's type before it meets the weight, as in
    `kernels.norm.rms_norm`. Everything contiguous.
    """
    num_rows, k = residual.shape
    code = trigger_code("early", residual.device)
    block = triton.next_power_of_2(k)
    _residual_norm[(num_rows,)](
        residual,
        partials,
        weight,
        out,
        num_rows,
        EPS=eps,
        K=k,
        BLOCK=block,
        SPLITS=0 if partials is None else partials.shape[0],
        TRIGGER=code,
        num_warps=min(8, max(1, block // 256)),
        **launch_options(code),
    )


@triton.jit(do_not_specialize=["num_rows"])
def _residual_norm(
    residual_ptr,
    partials_ptr,
    weight_ptr,
    out_ptr,
    num_rows,
    EPS: tl.constexpr,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
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
    x = tl.load(residual_ptr + row * K + columns, mask=mask, other=0.0)
    if SPLITS > 0:
        for split in tl.static_range(SPLITS):
            x += tl.load(partials_ptr + (split * num_rows + row) * K + columns, mask=mask, other=0.0)
        tl.store(residual_ptr + row * K + columns, x, mask=mask)
    tl.store(out_ptr + row * K + columns, norm_of(x, weight, K, EPS), mask=mask)


@triton.jit
def norm_of(x, weight, K: tl.constexpr, EPS: tl.constexpr):
    """A row's RMSNorm, rounded to the weight's type before it meets the weight. What is beside x's K is 0."""
    return (x * tl.rsqrt(tl.sum(x * x, 0) / K + EPS)).to(weight.dtype) * weight
