"""Chooses an attention backend by name."""

from __future__ import annotations

from kernels.attention.interface import AttentionBackend, AttentionShape
from kernels.attention.torch_backend import TorchAttention


def attention_backend(name: str, shape: AttentionShape) -> AttentionBackend:
    """`auto` takes the fastest that fits the device and the shape; today plain torch fits them all."""
    if name not in ("auto", "torch"):
        raise ValueError(f"there is no attention backend {name!r}")
    return TorchAttention(shape)
