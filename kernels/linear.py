"""Linear layers: x W^T + b, by the fastest library call for the shape."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernels.half_weight import HalfWeight

_FEW_ROWS = range(2, 33)  # a batch of decodes


def linear(
    x: torch.Tensor, weight: torch.Tensor | HalfWeight, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """x [M, K], weight [N, K], bias [N] to [M, N], contiguous."""
    if isinstance(weight, HalfWeight):
        return weight.linear(x, bias)
    if _is_faster_transposed(x, weight):
        y = torch.mm(weight, x.t()).t().contiguous()
        return y if bias is None else y.add_(bias)
    return F.linear(x, weight, bias)


def add_linear(residual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """residual [M, N] += x W^T, in place: the product adds it before it is rounded, and saves a pass."""
    return torch.addmm(residual, x, weight.t(), out=residual)


def _is_faster_transposed(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """On a CPU, fp32 products with few rows and many columns take half the time with the sides swapped.

    The libraries split the first matrix's rows over cores and vector lanes, of which a small batch has few.
    Measured with `python -m benchmarks.cpu` on AVX2 cores, see docs/performance.md.
    """
    few_rows = x.device.type == "cpu" and x.dtype == torch.float32 and len(x) in _FEW_ROWS
    return few_rows and weight.shape[0] >= weight.shape[1]
