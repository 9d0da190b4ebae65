"""What the kernels are checked and timed on: sizes of two models, sampling parameters, random tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from kernels import fused

CUDA = torch.device("cuda")
BF16 = torch.bfloat16
EPS = 1e-6
L2_BYTES = 50 << 20
VOCAB = 151_936
HEAD_DIM = 128
SHAPES = {"0.6B": (1024, 3072, (16, 8, 8)), "8B": (4096, 12288, (32, 8, 8))}  # hidden, intermediate, heads
MIXES = {  # temperature, top_k, top_p of every row
    "greedy": (0.0, 0, 1.0),
    "temperature": (0.8, 0, 1.0),
    "top-p": (0.8, 0, 0.95),
    "top-k and top-p": (0.6, 20, 0.95),
}


@contextmanager
def plain_torch() -> Iterator[None]:
    """The functions of `kernels` without their Triton kernels."""
    has_triton = fused._has_triton
    fused._has_triton = lambda: False  # type: ignore[assignment]
    try:
        yield
    finally:
        fused._has_triton = has_triton


def copies(num_bytes: int) -> int:
    """How many sets of operands to go round, so that together they exceed the L2 (32 at most)."""
    return max(2, min(32, 2 * L2_BYTES // num_bytes))


def randn(*size: int) -> torch.Tensor:
    return torch.randn(*size, device=CUDA, dtype=BF16)


def sampling_inputs(num_rows: int, mix: str, scale: float = 2.5) -> tuple[torch.Tensor, ...]:
    """logits, temperature, seeds, positions, and the restriction's three."""
    temperature, top_k, top_p = MIXES[mix]
    logits = (torch.randn(num_rows, VOCAB, device=CUDA) * scale).bfloat16().float()
    seeds = torch.randint(-(2**62), 2**62, (num_rows,), device=CUDA)
    return (
        logits,
        torch.full((num_rows,), temperature, device=CUDA),
        seeds,
        torch.arange(num_rows, device=CUDA) * 31,
        torch.full((num_rows,), top_k, device=CUDA),
        torch.full((num_rows,), top_p, device=CUDA),
        torch.zeros(num_rows, device=CUDA),
    )
