"""Weights in half precision for products in fp32, on CPU cores that do not compute in half precision.

A batch of decodes waits for the weights to come from memory. Halves are half of the bytes, and FBGEMM, which
comes with torch on x86, has kernels for few rows that widen them in registers.
"""

from __future__ import annotations

import torch

_ENGINES = ("x86", "fbgemm")


def has_half_weights() -> bool:
    """Whether this build of torch, on this machine, has the products."""
    return torch.backends.quantized.engine in _ENGINES and hasattr(torch.ops.quantized, "linear_prepack_fp16")


class HalfWeight:
    """A linear layer's weight [N, K], rounded to fp16, clamped to its range, and packed for the products."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight, None)

    def linear(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x [M, K] and bias [N] in fp32 to x W^T + b [M, N], multiplied and summed in fp32."""
        y: torch.Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self._packed)
        return y if bias is None else y.add_(bias)
