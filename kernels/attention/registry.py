"""Chooses an attention backend by name. GPU backends are imported only when one is wanted."""

from __future__ import annotations

import os
from importlib.util import find_spec

from kernels.attention.interface import AttentionBackend, AttentionShape
from kernels.attention.torch_backend import TorchAttention
from kernels.gpu import gpu_of


def attention_backend(name: str, shape: AttentionShape) -> AttentionBackend:
    """The backend of that name; `auto` takes the fastest that is installed and fits the device and the shape.

    Raises ValueError for an unknown name, and for a backend that cannot serve this shape here.
    """
    if name == "auto":
        return _fastest(shape)
    if name == "torch":
        return TorchAttention(shape)
    if name not in ("flash", "triton"):
        raise ValueError(f"there is no attention backend {name!r}")
    reason = _reason_against_triton(shape)
    if reason is not None:
        raise ValueError(f"attention backend {name!r} {reason}")
    return _flash(shape) if name == "flash" else _triton(shape)


def _fastest(shape: AttentionShape) -> AttentionBackend:
    if gpu_of(shape.device) is None or _reason_against_triton(shape) is not None:
        return TorchAttention(shape)
    try:
        return _flash(shape)
    except ValueError:
        return _triton(shape)


def _reason_against_triton(shape: AttentionShape) -> str | None:
    """Both GPU backends are built on Triton."""
    if find_spec("triton") is None:
        return "needs triton, which is not installed"
    if gpu_of(shape.device) is None and os.environ.get("TRITON_INTERPRET") != "1":
        return "needs a CUDA device"
    return None


def _triton(shape: AttentionShape) -> AttentionBackend:
    from kernels.attention.triton_backend import TritonAttention

    return TritonAttention(shape)


def _flash(shape: AttentionShape) -> AttentionBackend:
    from kernels.attention.flash_backend import FlashAttention

    return FlashAttention(shape)
