"""What a decoder layer is made of: norm, attention and feed-forward, over flat token rows [T, hidden]."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from kernels.attention.interface import AttentionBackend
from kernels.gated_linear import gated_linear
from kernels.norm import add_rms_norm, rms_norm
from kernels.rotary import norm_and_rotate
from model.config import ModelConfig
from model.parallel import (
    ColumnParallelLinear,
    Placement,
    RowParallelLinear,
    load_whole,
    make_parameter,
)
from model.rotary import RotaryRows


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float, place: Placement) -> None:
        super().__init__()
        self.eps = eps
        self.weight = make_parameter((size,), place, load_whole)

    def forward(self, x: torch.Tensor | None, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x and residual [T, size] to (norm of the sum, the sum); without x, the sum is `residual` itself."""
        if x is None:
            return rms_norm(residual, self.weight, self.eps), residual
        return add_rms_norm(x, residual, self.weight, self.eps)


class SelfAttention(nn.Module):
    """Grouped-query attention with rotary embeddings; a rank computes its share of the heads."""

    def __init__(
        self, config: ModelConfig, layer: int, attention: AttentionBackend, place: Placement
    ) -> None:
        super().__init__()
        self.layer = layer
        self.attention = attention
        self.head_dim = config.head_dim
        self.eps = config.rms_norm_eps
        heads = place.tp.heads(config.num_heads, config.num_kv_heads)
        self.heads = (heads.query.size, heads.kv.size, heads.kv.size)
        q, kv = heads.query.times(config.head_dim), heads.kv.times(config.head_dim)
        parts = {"q": q, "k": kv, "v": kv}
        self.qkv_proj = ColumnParallelLinear(config.hidden_size, parts, config.qkv_bias, place)
        self.o_proj = RowParallelLinear(q, config.hidden_size, config.o_bias, place, slot=0)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps, place) if config.qk_norm else None
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps, place) if config.qk_norm else None

    def forward(
        self,
        hidden: torch.Tensor,
        residual: torch.Tensor,
        rotary: RotaryRows,
        plan: Any,
        wanted: torch.Tensor | None,
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        """hidden [T, hidden_size], the normed residual. Writes all rows' K and V.

        Returns as `RowParallelLinear.add`, of the rows `wanted`.
        """
        # [T, heads + 2 * kv_heads, head_dim]
        qkv = self.qkv_proj(hidden).view(-1, sum(self.heads), self.head_dim)
        norms = None
        if self.q_norm is not None and self.k_norm is not None:
            norms = self.q_norm.weight, self.k_norm.weight
        # [T, heads, head_dim], and [T, kv_heads, head_dim] twice
        q, k, v = norm_and_rotate(qkv, self.heads, norms, self.eps, *rotary)
        # [T, heads * head_dim]
        attended = self.attention.forward(plan, self.layer, q, k, v)
        if wanted is not None:
            attended, residual = attended[wanted], residual[wanted]
        return self.o_proj.add(attended, residual)


class MLP(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig, place: Placement) -> None:
        super().__init__()
        part = place.tp.part(config.intermediate_size)
        parts = {"gate": part, "up": part}
        self.gate_up_proj = ColumnParallelLinear(config.hidden_size, parts, config.mlp_bias, place)
        self.down_proj = RowParallelLinear(part, config.hidden_size, config.mlp_bias, place, slot=1)

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        """hidden [T, hidden_size], the normed residual. Returns as `RowParallelLinear.add`."""
        # [T, intermediate_size]
        gated = gated_linear(hidden, self.gate_up_proj.weight, self.gate_up_proj.bias)
        return self.down_proj.add(gated, residual)


class DecoderLayer(nn.Module):
    def __init__(
        self, config: ModelConfig, layer: int, attention: AttentionBackend, place: Placement
    ) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, place)
        self.self_attn = SelfAttention(config, layer, attention, place)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, place)
        self.mlp = MLP(config, place)

    def forward(
        self,
        delta: torch.Tensor | None,
        residual: torch.Tensor,
        rotary: RotaryRows,
        plan: Any,
        wanted: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        """`delta` is what the layer before left to add to `residual`, if anything; both [T, hidden_size].

        Returns this layer's own (delta, residual), of the rows `wanted` ([R] int64; all, if None).
        """
        hidden, residual = self.input_layernorm(delta, residual)
        delta, residual = self.self_attn(hidden, residual, rotary, plan, wanted)
        hidden, residual = self.post_attention_layernorm(delta, residual)
        delta, residual = self.mlp(hidden, residual)
        return delta, residual
