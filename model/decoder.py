"""The one decoder: Llama, Mistral, Qwen2 and Qwen3 differ by their `ModelConfig` alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from kernels.attention.interface import AttentionBackend, AttentionShape
from model.config import ModelConfig, ModelError
from model.layers import DecoderLayer, RMSNorm
from model.parallel import (
    LazyTensor,
    ParallelLMHead,
    Placement,
    TensorParallel,
    VocabParallelEmbedding,
)
from model.registry import get_architecture
from model.rotary import RotaryTable

PACKED_MODULES = {
    "q_proj": ("qkv_proj", "q"),
    "k_proj": ("qkv_proj", "k"),
    "v_proj": ("qkv_proj", "v"),
    "gate_proj": ("gate_up_proj", "gate"),
    "up_proj": ("gate_up_proj", "up"),
}
"""Checkpoint module name to (module here, shard id)."""


class Decoder(nn.Module):
    """A decoder-only transformer for inference. Parameters are undefined until `load_weight` has filled them.

    Parameter names are Hugging Face's, but for the packed ones (`PACKED_MODULES`).
    """

    def __init__(
        self,
        config: ModelConfig,
        attention: AttentionBackend,
        dtype: torch.dtype,
        device: torch.device,
        tp: TensorParallel | None = None,
    ) -> None:
        """Raises `ModelError` for an unknown architecture, or one that `tp` cannot split."""
        super().__init__()
        get_architecture(config.architecture)
        self.tp = tp or TensorParallel()
        place = Placement(dtype, device, self.tp)
        self.config = config
        self.attention = attention
        self.model = Transformer(config, attention, place)
        self.lm_head = ParallelLMHead(config.vocab_size, config.hidden_size, place)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        self._destinations = self._checkpoint_destinations()

    @torch.inference_mode()
    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, plan: Any, wanted: torch.Tensor | None = None
    ) -> torch.Tensor:
        """token_ids [T] and positions [T], int64; `plan` is the attention backend's for these rows.

        Writes the K and V of all rows. Returns the normed hidden rows [R, hidden_size] of those `wanted`
        ([R] int64, at least one; all, if None). For the others the last layer ends with its attention, which
        saves a prompt of many tokens most of one layer's products.
        """
        hidden: torch.Tensor = self.model(token_ids, positions, plan, wanted)
        return hidden

    @torch.inference_mode()
    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [R, hidden_size], of the rows that are sampled only, to logits [R, vocab_size] alike."""
        logits: torch.Tensor = self.lm_head(hidden)
        return logits

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Likewise, in fp32."""
        return self.head(hidden).float()

    @contextmanager
    def shortened(self) -> Iterator[None]:
        """In here passes take the first and the last layer alone, which launch every kernel that all do.

        What they compute makes no sense, but trying out a pass takes a fraction of the time. Ranks, which
        exchange sums in an order of their own, go through all layers.
        """
        layers = self.model.layers
        if self.tp.size == 1 and len(layers) > 2:
            self.model.layers = nn.ModuleList([layers[0], layers[-1]])
        try:
            yield
        finally:
            self.model.layers = layers

    def checkpoint_names(self) -> set[str]:
        """The names of all tensors that a checkpoint must bring; a tied head needs none."""
        return set(self._destinations)

    def load_weight(self, name: str, tensor: LazyTensor) -> None:
        """Copy this rank's part of a checkpoint tensor (whole, any float type) to its place.

        Raises `ModelError` that names the tensor: if the decoder has none of that name, or, with both shapes,
        if its shape is wrong.
        """
        if name not in self._destinations:
            raise ModelError(f"tensor {name} has no place in {self.config.architecture}")
        parameter, shard_id = self._destinations[name]
        try:
            parameter.weight_loader(parameter, tensor, shard_id)  # type: ignore[attr-defined]
        except ModelError as error:
            raise ModelError(f"tensor {name} {error}") from None

    def end_loading(self) -> None:
        """Forget where a checkpoint's tensors go, so that weights can be replaced and their memory freed."""
        self._destinations.clear()

    def _checkpoint_destinations(self) -> dict[str, tuple[nn.Parameter, str | None]]:
        destinations: dict[str, tuple[nn.Parameter, str | None]] = {}
        for name, parameter in self.named_parameters():
            module = name.split(".")[-2]
            shards = [(old, shard) for old, (packed, shard) in PACKED_MODULES.items() if packed == module]
            for old, shard in shards:
                destinations[name.replace(module, old)] = (parameter, shard)
            if not shards:
                destinations[name] = (parameter, None)
        return destinations


class Transformer(nn.Module):
    """Everything below the head. Layers share the step's rotary rows, gathered once."""

    def __init__(self, config: ModelConfig, attention: AttentionBackend, place: Placement) -> None:
        super().__init__()
        self.embed_tokens = VocabParallelEmbedding(config.vocab_size, config.hidden_size, place)
        self.layers = nn.ModuleList(
            DecoderLayer(config, layer, attention, place) for layer in range(config.num_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, place)
        self.rotary = RotaryTable(config, place.dtype, place.device)

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, plan: Any, wanted: torch.Tensor | None
    ) -> torch.Tensor:
        """As `Decoder.forward`."""
        residual = self.embed_tokens(token_ids)  # [T, hidden_size]
        rotary = self.rotary(positions)
        delta: torch.Tensor | None = None
        *layers, last = self.layers
        for layer in layers:
            delta, residual = layer(delta, residual, rotary, plan)
        delta, residual = last(delta, residual, rotary, plan, wanted)
        hidden: torch.Tensor
        hidden, _ = self.norm(delta, residual)
        return hidden


def attention_shape(
    config: ModelConfig,
    *,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
    tp: TensorParallel | None = None,
) -> AttentionShape:
    """What this rank's attention backend has to know. Raises `ModelError` if `tp` cannot split the heads."""
    heads = (tp or TensorParallel()).heads(config.num_heads, config.num_kv_heads)
    return AttentionShape(
        num_layers=config.num_layers,
        num_heads=heads.query.size,
        num_kv_heads=heads.kv.size,
        head_dim=config.head_dim,
        scale=config.head_dim**-0.5,
        block_size=block_size,
        dtype=dtype,
        device=device,
        sliding_window=config.sliding_window,
    )
