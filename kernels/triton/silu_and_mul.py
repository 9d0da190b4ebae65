"""SiLU of the gate times up, in one pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.triton import pdl


def silu_and_mul(gate_up: torch.Tensor, *, block: int = 1024, num_warps: int = 4) -> torch.Tensor:
    """`kernels.activation.silu_and_mul`: rows [T, 2 * I] of any stride, contiguous inside, to [T, I]."""
    num_rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((num_rows, size), dtype=gate_up.dtype, device=gate_up.device)
    if num_rows == 0:
        return out
    block = min(block, triton.next_power_of_2(size))
    trigger = pdl.trigger_code("early" if num_rows <= 64 else "none", gate_up.device)
    _silu_and_mul_kernel[(num_rows, triton.cdiv(size, block))](
        gate_up, out, size, gate_up.stride(0), out.stride(0),
        BLOCK=block, TRIGGER=trigger, num_warps=num_warps, **pdl.launch_options(trigger),
    )  # fmt: skip
    return out


@triton.jit
def _silu_and_mul_kernel(
    gate_up_ptr, out_ptr, size, gate_up_stride, out_stride, BLOCK: tl.constexpr, TRIGGER: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    if TRIGGER == pdl.EARLY:
        gdc_launch_dependents()
    if TRIGGER != pdl.NONE:
        gdc_wait()
    gate_ptr = gate_up_ptr + row * gate_up_stride
    gate = tl.load(gate_ptr + at, mask=inside, other=0.0)
    up = tl.load(gate_ptr + size + at, mask=inside, other=0.0)
    x = gate.to(tl.float32)
    activated = (x * tl.sigmoid(x)).to(gate.dtype).to(tl.float32)  # rounded there, as the reference is
    tl.store(out_ptr + row * out_stride + at, (activated * up.to(tl.float32)).to(gate.dtype), mask=inside)
