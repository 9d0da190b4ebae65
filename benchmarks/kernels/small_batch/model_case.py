"""A whole model with random weights and a filled cache, its decode step, and that step in fp32 torch."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.kernels.small_batch.cases import BANDWIDTH, BLOCK_SIZE, CONTEXTS, ROWS
from kernels.activation import silu_and_mul
from kernels.attention.interface import DecodeBatch
from kernels.attention.torch_backend import TorchAttention
from kernels.norm import rms_norm
from kernels.rotary import apply_rotary
from kernels.triton.small_batch.attention import DecodeContext
from kernels.triton.small_batch.tiles import StepTiles, step_tiles
from model.config import ModelConfig
from model.decoder import Decoder, attention_shape
from model.parallel import LoneRank
from model.small_batch import SmallBatchDecode, step_shape
from model.weights.dummy import fill_with_dummy_weights
from tests.support.decode_attention import attend_rows

CUDA = torch.device("cuda")
BLOCKS_PER_ROW = max(CONTEXTS) // BLOCK_SIZE


class ModelCase:
    """Rows of 1 to 64 over one pool of blocks in scattered order."""

    def __init__(self, config: ModelConfig, ranks: int = 1) -> None:
        """With several `ranks`, `config` is one rank's part, and its kernels are those of a rank alone."""
        torch.manual_seed(7)
        self.config = config
        shape = attention_shape(config, block_size=BLOCK_SIZE, dtype=torch.bfloat16, device=CUDA)
        attention = TorchAttention(shape)
        self.decoder = Decoder(config, attention, torch.bfloat16, CUDA)
        fill_with_dummy_weights(self.decoder, seed=3)
        num_blocks = max(ROWS) * BLOCKS_PER_ROW
        size = (num_blocks + 1, BLOCK_SIZE, config.num_kv_heads, config.head_dim)
        paged: Any = attention  # a stand-in with the layout of the GPU backends
        paged.caches = [
            tuple(torch.randn(size, device=CUDA, dtype=torch.bfloat16) for _ in "kv")
            for _ in range(config.num_layers)
        ]
        self.tables = torch.randperm(num_blocks, device=CUDA).to(torch.int32).view(max(ROWS), -1)
        self.step = SmallBatchDecode(self.decoder, max(ROWS))
        if ranks > 1:
            self.decoder.tp = LoneRank(0, ranks)
        self.token_ids = torch.randint(config.vocab_size, (max(ROWS),), device=CUDA)
        self.logits = torch.empty(max(ROWS) * config.vocab_size, device=CUDA)

    def batch(
        self, num_rows: int, max_context: int, length: int | None = None, padding: int = 0
    ) -> DecodeBatch:
        """Lengths up to 59 below `length` (else the context), the first equal to it; then padding rows."""
        lens = (length or max_context) - (torch.arange(num_rows, device=CUDA) * 17) % 60
        lens = torch.cat((lens, lens.new_zeros(padding)))
        tables = self.tables[: num_rows + padding].contiguous()
        last = (lens - 1).clamp_min(0)
        blocks = tables.gather(1, (last // BLOCK_SIZE)[:, None]).squeeze(1).long()
        slots = blocks * BLOCK_SIZE + last % BLOCK_SIZE
        return DecodeBatch(tables, lens.to(torch.int32), slots, max_context)

    def tiles(self, num_rows: int, max_context: int) -> StepTiles:
        device_name = torch.cuda.get_device_name(CUDA)
        return step_tiles(device_name, step_shape(self.config), num_rows, max_context)

    def run(self, batch: DecodeBatch, tiles: StepTiles) -> torch.Tensor:
        """One step; the logits [rows, vocab], overwritten by the next."""
        num_rows = len(batch.slots)
        logits = self.logits[: num_rows * self.config.vocab_size].view(num_rows, -1)
        positions = self._positions(batch)
        self.step.run(self.token_ids[:num_rows], positions, batch, logits, tiles)
        return logits

    def floor_us(self, batch: DecodeBatch) -> float:
        """Weights and cached K and V, read once at the card's best rate."""
        c = self.config
        parameters = sum(p.numel() * 2 for p in self.decoder.parameters())
        if not c.tie_word_embeddings:
            parameters -= c.vocab_size * c.hidden_size * 2
        per_token = 2 * 2 * c.num_kv_heads * c.head_dim * c.num_layers
        return (parameters + int(batch.context_lens.sum()) * per_token) / BANDWIDTH * 1e6

    @torch.inference_mode()
    def reference(self, batch: DecodeBatch) -> torch.Tensor:
        """The same step's logits with fp32 arithmetic; also overwrites the rows' slots of the cache."""
        c, model = self.config, self.decoder.model
        positions = self._positions(batch)
        context = DecodeContext(
            batch.block_tables, batch.context_lens, batch.slots, positions, model.rotary.table
        )
        cos, sin = model.rotary.table[positions].unsqueeze(1).chunk(2, dim=-1)
        rotary = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
        residual = model.embed_tokens.weight[self.token_ids[: len(positions)]].float()
        for layer, cache in zip(model.layers, self.step.attention.caches, strict=True):
            residual = self._reference_layer(layer, cache, residual, rotary, context)
        normed = rms_norm(residual, model.norm.weight.float(), c.rms_norm_eps)
        logits: torch.Tensor = normed @ self.decoder.lm_head.weight.float().T
        return logits

    def _reference_layer(
        self,
        layer: Any,
        cache: tuple[torch.Tensor, torch.Tensor],
        residual: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        context: DecodeContext,
    ) -> torch.Tensor:
        c, (keys, values) = self.config, cache
        eps = c.rms_norm_eps
        weights = {name: parameter.float() for name, parameter in layer.named_parameters()}
        hidden = rms_norm(residual, weights["input_layernorm.weight"], eps)
        qkv = (hidden @ weights["self_attn.qkv_proj.weight"].T).view(len(hidden), -1, c.head_dim)
        q, k, v = qkv.split((c.num_heads, c.num_kv_heads, c.num_kv_heads), dim=1)
        q = apply_rotary(rms_norm(q, weights["self_attn.q_norm.weight"], eps), *rotary)
        k = apply_rotary(rms_norm(k, weights["self_attn.k_norm.weight"], eps), *rotary)
        keys.flatten(0, 1)[context.slots] = k.to(keys.dtype)
        values.flatten(0, 1)[context.slots] = v.to(values.dtype)
        attended = attend_rows(q, keys, values, context, c.head_dim**-0.5).flatten(1)
        residual = residual + attended @ weights["self_attn.o_proj.weight"].T
        hidden = rms_norm(residual, weights["post_attention_layernorm.weight"], eps)
        activations = silu_and_mul(hidden @ weights["mlp.gate_up_proj.weight"].T)
        out: torch.Tensor = residual + activations @ weights["mlp.down_proj.weight"].T
        return out

    @staticmethod
    def _positions(batch: DecodeBatch) -> torch.Tensor:
        return (batch.context_lens.long() - 1).clamp_min(0)
