"""Writing new keys and values into a paged cache."""

from __future__ import annotations

import torch


def write_kv(
    key_cache: torch.Tensor, value_cache: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor
) -> None:
    """Store row t of k and v [T, kv_heads, head_dim] at slots[t] of [kv_heads, slots, head_dim]."""
    key_cache.index_copy_(1, slots, k.transpose(0, 1))
    value_cache.index_copy_(1, slots, v.transpose(0, 1))
