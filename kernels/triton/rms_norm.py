"""RMS normalization of whole rows, with or without the residual addition before it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.triton import pdl


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`kernels.norm.rms_norm` of rows x [T, N] of any row stride, contiguous inside a row."""
    return _launch(x, x, weight, eps, None, add=False)


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    num_warps: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`kernels.norm.add_rms_norm` of rows x and residual [T, N]: reads each once, overwrites `residual`.

    Row strides are free, last dimensions contiguous.
    """
    return _launch(x, residual, weight, eps, num_warps, add=True), residual


def _launch(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    num_warps: int | None,
    add: bool,
) -> torch.Tensor:
    num_rows, size = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if num_rows == 0:
        return out
    block = triton.next_power_of_2(size)
    trigger = pdl.trigger_code("early" if num_rows <= 256 else "none", x.device)
    _rms_norm_kernel[(num_rows,)](
        x, residual, weight, out,
        x.stride(0), residual.stride(0), out.stride(0), eps,
        SIZE=size, BLOCK=block, ADD=add, TRIGGER=trigger,
        num_warps=num_warps or min(max(block // 512, 1), 16), **pdl.launch_options(trigger),
    )  # fmt: skip
    return out


@triton.jit
def _rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    x_stride,
    residual_stride,
    out_stride,
    eps,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
    TRIGGER: tl.constexpr,
):
    """One program a row. Rounds where the reference does: the sum, then the quotient, then the product."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < SIZE
    if TRIGGER == pdl.EARLY:
        gdc_launch_dependents()
    weight = tl.load(weight_ptr + at, mask=inside, other=0.0)
    if TRIGGER != pdl.NONE:
        gdc_wait()
    x = tl.load(x_ptr + row * x_stride + at, mask=inside, other=0.0)
    dtype = x.dtype
    if ADD:
        residual = tl.load(residual_ptr + row * residual_stride + at, mask=inside, other=0.0)
        x = (x.to(tl.float32) + residual.to(tl.float32)).to(dtype)
        tl.store(residual_ptr + row * residual_stride + at, x, mask=inside)
    x = x.to(tl.float32)
    inverse_rms = tl.rsqrt(tl.sum(x * x, axis=0) / SIZE + eps)
    normed = (x * inverse_rms).to(dtype).to(tl.float32)
    out = normed * weight.to(tl.float32)
    tl.store(out_ptr + row * out_stride + at, out.to(dtype), mask=inside)
