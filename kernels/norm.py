"""RMS normalization, alone and with the residual addition before it."""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / rms(x) * weight over the last dimension, which is `weight`'s.

    The mean of squares is taken in fp32 and the quotient rounded to x's type before it meets the weight, as
    checkpoints in half precision were trained with.
    """
    wide = x.float()
    inverse_rms = wide.square().mean(dim=-1, keepdim=True).add_(eps).rsqrt_()
    return (wide * inverse_rms).to(x.dtype).mul_(weight)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rms_norm(x + residual), x + residual). May overwrite `residual`."""
    residual = residual.add_(x)
    return rms_norm(residual, weight, eps), residual
