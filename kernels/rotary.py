"""Rotary position embedding of queries and keys."""

from __future__ import annotations

import torch


def apply_rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate every head of x [T, heads, head_dim] in place: element i pairs with i + head_dim / 2.

    cos and sin are [T, 1, head_dim] in x's type; the first half of `sin` is negated already.
    """
    first, second = x.chunk(2, dim=-1)
    swapped = torch.cat((second, first), dim=-1)
    return x.mul_(cos).addcmul_(swapped, sin)
