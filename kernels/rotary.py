"""Rotary position embedding of queries and keys, with the per-head norm that some models put before it."""

from __future__ import annotations

import torch

from kernels.fused import runs_fused
from kernels.norm import rms_norm


def rotary_rows(
    table: torch.Tensor, positions: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """What rotates the rows of a step: cos and sin [T, 1, head_dim], the first half of sin negated.

    table [P, head_dim] fp32 holds each position's cosines, then its sines; positions [T] int64.
    """
    if runs_fused(table):
        from kernels.triton import rotary_rows as fused

        return fused.rotary_rows(table, positions, dtype)
    rows = table.index_select(0, positions).unsqueeze(1).to(dtype)
    cos, sin = rows.chunk(2, dim=-1)
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def apply_rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate every head of x [T, heads, head_dim] in place: element i pairs with i + head_dim / 2.

    cos and sin are [T, 1, head_dim] in x's type; the first half of `sin` is negated already.
    """
    first, second = x.chunk(2, dim=-1)
    swapped = torch.cat((second, first), dim=-1)
    return x.mul_(cos).addcmul_(swapped, sin)


def norm_and_rotate(
    qkv: torch.Tensor,
    heads: tuple[int, int, int],
    norm_weights: tuple[torch.Tensor, torch.Tensor] | None,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v of packed rows qkv [T, q + k + v heads, head_dim]; q and k normed, if asked, and rotated.

    `heads` counts them (q, k, v); `norm_weights` are [head_dim] each, of q and of k; cos and sin as
    `rotary_rows` makes them. Overwrites qkv, which the results may be views of.
    """
    q, k, v = qkv.split_with_sizes(heads, dim=1)
    if runs_fused(qkv):
        from kernels.triton import qk_norm_rotary as fused

        fused.qk_norm_rotary(qkv, heads, norm_weights, eps, cos, sin)
    elif norm_weights is None:
        apply_rotary(qkv[:, : -heads[2]], cos, sin)  # q and k at once
    else:
        q = apply_rotary(rms_norm(q, norm_weights[0], eps), cos, sin)
        k = apply_rotary(rms_norm(k, norm_weights[1], eps), cos, sin)
    return q, k, v
