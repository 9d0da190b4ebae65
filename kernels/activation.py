"""Activations of the feed-forward layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernels.fused import runs_fused


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, where gate and up are the halves of the last dimension: [T, 2 * I] to [T, I]."""
    if runs_fused(gate_up):
        from kernels.triton import silu_and_mul as fused

        return fused.silu_and_mul(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
