"""Writing new keys and values into a paged cache."""

from __future__ import annotations

import torch


def write_kv(
    key_cache: torch.Tensor, value_cache: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor
) -> None:
    """Store row t of k and v [T, kv_heads, head_dim] at slots[t] of the flat caches."""
    key_cache.index_copy_(0, slots, k)
    value_cache.index_copy_(0, slots, v)
