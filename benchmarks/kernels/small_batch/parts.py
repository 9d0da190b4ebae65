"""Microseconds of one kind of kernel, alone in a chain over all layers: each call has its own weights."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.kernels.small_batch.model_case import CUDA, ModelCase
from benchmarks.kernels.small_batch.timing import capture, replay_us
from kernels.attention.interface import DecodeBatch
from kernels.triton.small_batch.attention import DecodeContext, HeadNorms, fused_decode_attention
from kernels.triton.small_batch.epilogue import Epilogue
from kernels.triton.small_batch.gemv import gemv
from kernels.triton.small_batch.residual_norm import residual_norm
from kernels.triton.small_batch.skinny_gemm import skinny_gemm
from kernels.triton.small_batch.split_combine import split_combine
from kernels.triton.small_batch.tiles import AttentionTile, LinearTile


def product_us(case: ModelCase, kind: str, tile: LinearTile, num_rows: int) -> float:
    """The product with the norm before it, where it has one."""
    model: Any = case.decoder.model
    sources: list[tuple[torch.Tensor | None, torch.Tensor]]
    if kind == "lm_head":
        sources = [(model.norm.weight, case.decoder.lm_head.weight)]
    else:
        sources = [_weights(layer, kind) for layer in model.layers]
    n, k = sources[0][1].shape
    residual = torch.randn(num_rows, k, device=CUDA)
    x = torch.randn(num_rows, k, device=CUDA, dtype=torch.bfloat16)
    epilogue = {"o": Epilogue.ADD, "down": Epilogue.ADD, "gate_up": Epilogue.SILU_AND_MUL}.get(
        kind, Epilogue.STORE
    )
    out_type = torch.bfloat16 if kind in ("qkv", "gate_up") else torch.float32
    out = torch.zeros(num_rows, n // 2 if kind == "gate_up" else n, device=CUDA, dtype=out_type)
    split = tile.splits > 1 and tile.reduce == "partials"
    partials = torch.empty(tile.splits, num_rows, n, device=CUDA) if split else None
    eps = case.config.rms_norm_eps

    def launch() -> None:
        for norm_weight, weight in sources:
            if tile.kernel == "gemv":
                source = x if norm_weight is None else residual
                gemv(source, weight, out, tile, epilogue, norm_weight=norm_weight, eps=eps)
                continue
            if norm_weight is not None:
                residual_norm(residual, norm_weight, x, eps)
            skinny_gemm(x, weight, out, tile, epilogue, partials=partials)

    return replay_us(capture(launch)) / len(sources)


def _weights(layer: Any, kind: str) -> tuple[torch.Tensor | None, torch.Tensor]:
    """(the norm's weight, if a norm comes first; the product's)."""
    attention, mlp = layer.self_attn, layer.mlp
    return {
        "qkv": (layer.input_layernorm.weight, attention.qkv_proj.weight),
        "o": (None, attention.o_proj.weight),
        "gate_up": (layer.post_attention_layernorm.weight, mlp.gate_up_proj.weight),
        "down": (None, mlp.down_proj.weight),
    }[kind]


def attention_us(case: ModelCase, tile: AttentionTile, batch: DecodeBatch) -> float:
    """Norm, rotary, cache write, attention and, if it is a kernel, the combination of its splits."""
    c, num_rows = case.config, len(batch.slots)
    layers: list[Any] = list(case.decoder.model.layers)
    rotary_table = case.decoder.model.rotary.table
    positions = batch.context_lens.long() - 1
    context = DecodeContext(batch.block_tables, batch.context_lens, batch.slots, positions, rotary_table)
    width = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim
    qkv = torch.randn(num_rows, width, device=CUDA, dtype=torch.bfloat16)
    out = torch.empty(num_rows, c.num_heads * c.head_dim, device=CUDA, dtype=torch.bfloat16)
    partial_out = torch.empty(num_rows, c.num_heads, tile.splits, c.head_dim, device=CUDA)
    partial_sums = torch.empty(num_rows, c.num_heads, tile.splits, 2, device=CUDA)

    def launch() -> None:
        for layer, (keys, values) in zip(layers, case.step.attention.caches, strict=True):
            attention = layer.self_attn
            norms = HeadNorms(attention.q_norm.weight, attention.k_norm.weight, c.rms_norm_eps)
            fused_decode_attention(
                qkv, keys, values, context, norms, out, partial_out, partial_sums, tile, c.head_dim**-0.5
            )
            if tile.splits > 1 and tile.combine == "kernel":
                split_combine(partial_out, partial_sums, out)

    return replay_us(capture(launch)) / c.num_layers
