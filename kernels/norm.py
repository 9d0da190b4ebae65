"""RMS normalization, alone and with the residual addition before it."""

from __future__ import annotations

from functools import lru_cache

import torch

from kernels.fused import runs_fused


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, which is `weight`'s.

    The mean of squares is taken in fp32, and the quotient rounded to x's type before it meets the weight, as
    checkpoints in half precision were trained with.
    """
    if runs_fused(x) and x.dim() == 2:
        from kernels.triton import rms_norm as fused

        return fused.rms_norm(x, weight, eps)
    # The Euclidean norm reads x once and upcasts on the way: half the operators of square, mean, add, rsqrt.
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    inverse_rms = torch.addcmul(_constant(eps, x.device), norm, norm, value=1 / x.shape[-1]).rsqrt_()
    normed = x * inverse_rms
    if normed.dtype != x.dtype:
        normed = normed.to(x.dtype)
    return normed.mul_(weight)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rms_norm(x + residual), x + residual). Overwrites `residual`."""
    if runs_fused(x) and x.dim() == 2:
        from kernels.triton import rms_norm as fused

        return fused.add_rms_norm(x, residual, weight, eps)
    residual.add_(x)
    return rms_norm(residual, weight, eps), residual


@lru_cache
def _constant(value: float, device: torch.device) -> torch.Tensor:
    return torch.full((1,), value, dtype=torch.float32, device=device)
