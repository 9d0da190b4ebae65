"""Our decoder with the weights of a transformers model, and a driver that feeds it steps as a runner does."""

from __future__ import annotations

from typing import Any

import torch

from kernels.attention.interface import AttentionBatch
from kernels.attention.registry import attention_backend
from model.config import ModelConfig, RopeScaling
from model.decoder import Decoder, attention_shape
from model.parallel import TensorParallel

CPU = torch.device("cpu")


def config_of(hf_config: Any) -> ModelConfig:
    """The `ModelConfig` of a tiny transformers config; the product reads config.json instead."""
    c = hf_config
    rope = dict(c.rope_parameters)
    kind = rope.pop("rope_type", "default")
    theta = rope.pop("rope_theta")
    rope.setdefault("original_max_position_embeddings", c.max_position_embeddings)
    qwen2, mistral = c.model_type == "qwen2", c.model_type == "mistral"
    bias = getattr(c, "attention_bias", False)
    return ModelConfig(
        architecture={"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}[
            c.model_type
        ]
        + "ForCausalLM",
        vocab_size=c.vocab_size,
        hidden_size=c.hidden_size,
        intermediate_size=c.intermediate_size,
        num_layers=c.num_hidden_layers,
        num_heads=c.num_attention_heads,
        num_kv_heads=c.num_key_value_heads,
        head_dim=getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads,
        max_position_embeddings=c.max_position_embeddings,
        rms_norm_eps=c.rms_norm_eps,
        rope_theta=theta,
        rope_scaling=None if kind == "default" else RopeScaling(kind=kind, **rope),
        tie_word_embeddings=c.tie_word_embeddings,
        qkv_bias=qwen2 or bias,
        o_bias=bias,
        mlp_bias=getattr(c, "mlp_bias", False),
        qk_norm=c.model_type == "qwen3",
        sliding_window=c.sliding_window if mistral else None,
    )


def build_decoder(
    hf_model: Any,
    *,
    block_size: int = 4,
    num_blocks: int = 64,
    dtype: torch.dtype = torch.float32,
    device: torch.device = CPU,
    tp: TensorParallel | None = None,
    backend: str = "torch",
) -> Decoder:
    config = config_of(hf_model.config)
    attention = attention_backend(
        backend, attention_shape(config, block_size=block_size, dtype=dtype, device=device, tp=tp)
    )
    attention.allocate(num_blocks)
    decoder = Decoder(config, attention, dtype, device, tp)
    tensors = hf_model.state_dict()
    for name in decoder.checkpoint_names():
        decoder.load_weight(name, tensors[name])
    return decoder


class Stepper:
    """Runs sequences through a decoder step by step, over blocks handed out in a scattered order."""

    def __init__(self, decoder: Decoder, num_blocks: int, seed: int = 0) -> None:
        self.decoder = decoder
        self.block_size = decoder.attention.shape.block_size
        generator = torch.Generator().manual_seed(seed)
        self.free = torch.randperm(num_blocks, generator=generator).tolist()
        self.tables: dict[int, list[int]] = {}
        self.cached: dict[int, int] = {}

    def reserve(self, key: int, num_tokens: int) -> list[int]:
        """The sequence's block table, with room for so many tokens."""
        table = self.tables.setdefault(key, [])
        while len(table) * self.block_size < num_tokens:
            table.append(self.free.pop())
        return table

    def step(self, work: dict[int, list[int]], last_only: bool = False) -> dict[int, torch.Tensor]:
        """Feed each sequence (key) its next tokens; returns the logits [tokens, vocab] of all its rows.

        A single token after cached ones counts as a decode, anything else as a chunk. With `last_only` the
        decoder is asked for the last row of each alone: [1, vocab].
        """
        decodes = [key for key, ids in work.items() if len(ids) == 1 and self.cached.get(key, 0) > 0]
        order = decodes + [key for key in work if key not in decodes]
        slots, positions, token_ids = [], [], []
        for key in order:
            start = self.cached.get(key, 0)
            self.cached[key] = start + len(work[key])
            table = self.reserve(key, self.cached[key])
            positions += range(start, self.cached[key])
            token_ids += work[key]
            slots += [
                table[p // self.block_size] * self.block_size + p % self.block_size
                for p in range(start, self.cached[key])
            ]
        longest = max(len(self.tables[key]) for key in order) + 1
        padded = [self.tables[key] + [0] * (longest - len(self.tables[key])) for key in order]
        device = self.decoder.attention.shape.device
        batch = AttentionBatch(
            num_decodes=len(decodes),
            query_lens=[len(work[key]) for key in order],
            context_lens=[self.cached[key] for key in order],
            block_tables=torch.tensor(padded, dtype=torch.int32, device=device),
            slots=torch.tensor(slots, device=device),
        )
        plan = self.decoder.attention.plan(batch)
        tokens, at = torch.tensor(token_ids, device=device), torch.tensor(positions, device=device)
        query_lens, wanted = batch.query_lens, None
        if last_only:
            wanted = torch.tensor(query_lens, device=device).cumsum(0) - 1
            query_lens = [1] * len(query_lens)
        rows = self.decoder.logits(self.decoder(tokens, at, plan, wanted)).split(query_lens)
        return dict(zip(order, rows, strict=True))
