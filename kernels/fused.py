"""Whether the fused GPU kernels can take a tensor; without them, plain torch does the same."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec

import torch


def runs_fused(x: torch.Tensor) -> bool:
    """On a CUDA device, or where "meta" stands for one, if triton is installed."""
    return (x.is_cuda or x.is_meta) and _has_triton()


@lru_cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
