"""The feed-forward's first half: silu of one product times another of the same rows."""

from __future__ import annotations

import torch

from kernels.activation import silu_and_mul
from kernels.gpu import gpu_of
from kernels.half_weight import HalfWeight
from kernels.linear import linear
from kernels.quack_gated import gated_kernel, run_gated


def gated_linear(
    x: torch.Tensor, weight: torch.Tensor | HalfWeight, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """silu(x G^T + g) * (x U^T + u): x [M, K], weight [2 * I, K] is G above U, bias [2 * I], to [M, I].

    Many rows on a GPU that quack's kernel is tuned for take that, which keeps the products in registers until
    they are multiplied. Others round them to x's type and write them in between.
    """
    gpu = gpu_of(x.device)
    if gpu is not None and isinstance(weight, torch.Tensor) and bias is None:
        kernel = gated_kernel(gpu, str(x.dtype).removeprefix("torch."), len(x), len(weight))
        out = None if kernel is None else run_gated(kernel, x, weight)
        if out is not None:
            return out
    return silu_and_mul(linear(x, weight, bias))
