"""The decode step of a few sequences as a straight line of fused kernels: for batches of up to 64 on a GPU.

Such a step is bound by the weights' bytes and by the number of kernels, five to eight a layer here. It reads
the decoder's own parameters and the attention backend's own cache, so any step may take this way or the
generic one. Imports triton.
"""

from __future__ import annotations

from typing import Any, cast

import torch

from kernels.attention.interface import DecodeBatch
from kernels.gpu import gpu_of
from kernels.triton.small_batch.attention import DecodeContext, HeadNorms
from kernels.triton.small_batch.epilogue import Epilogue
from kernels.triton.small_batch.tiles import StepShape, StepTiles, most_rows, step_tiles
from model.config import ModelConfig
from model.decoder import Decoder
from model.layers import DecoderLayer
from model.parallel import TensorParallel
from model.small_batch_step import SmallBatchBuffers, SmallBatchStep, open_mailboxes

# With more rows than this, a long context among short ones is better split by the generic kernel.
_ROWS_OF_ANY_CONTEXT = 16
_CONTEXT_OF_MORE_ROWS = 4096


def step_shape(config: ModelConfig, tp: TensorParallel | None = None) -> StepShape:
    """Of one rank's part of the model."""
    tp = tp or TensorParallel()
    heads = tp.heads(config.num_heads, config.num_kv_heads)
    intermediate_size = tp.part(config.intermediate_size).size
    return StepShape(config.hidden_size, intermediate_size, heads.query.size, heads.kv.size, config.head_dim)


class SmallBatchDecode:
    """One decode step for M sequences, M up to `max_rows`, with the parameters and the cache of `decoder`.

    The cache is `decoder.attention.caches[layer]`, a pair of keys and values, each contiguous
    [blocks, block_size, kv_heads, head_dim].
    The residual stays in fp32 between layers. All buffers are made here; `run` allocates nothing and reads
    nothing on the host, so that a CUDA graph can capture it. One step at a time: steps share the buffers.
    """

    @staticmethod
    def supports(config: ModelConfig, dtype: torch.dtype, tp: TensorParallel) -> bool:
        """Whether these kernels cover the model, in this type, on this many ranks."""
        return dtype in (torch.bfloat16, torch.float16) and _covers(config, step_shape(config, tp))

    def __init__(self, decoder: Decoder, max_rows: int | None = None) -> None:
        """`max_rows` up to 64, by default what tables believe in.

        Raises ValueError if the kernels do not cover the model.
        """
        config = decoder.config
        self.shape = step_shape(config, decoder.tp)
        if not _covers(config, self.shape):
            raise ValueError(f"the small-batch kernels do not cover this {config.architecture}")
        self.decoder = decoder
        self.attention: Any = decoder.attention  # of which it needs caches[layer] -> (keys, values)
        weight = decoder.lm_head.weight
        gpu = gpu_of(weight.device)
        self._device_name = "cpu" if gpu is None else gpu.name
        self.max_rows = max_rows or most_rows(self._device_name, self.shape)
        self._mailboxes = open_mailboxes(decoder.tp, self.max_rows, self.shape.hidden_size)
        self._buffers = SmallBatchBuffers.allocate(self.shape, self.max_rows, weight)
        self._norms = [_head_norms(layer) for layer in _layers(decoder)]

    def takes(self, num_rows: int, max_context: int) -> bool:
        """Whether these kernels are the better ones for such a step."""
        if num_rows > _ROWS_OF_ANY_CONTEXT and max_context > _CONTEXT_OF_MORE_ROWS:
            return False
        return num_rows <= self.max_rows

    @torch.inference_mode()
    def run(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        batch: DecodeBatch,
        logits: torch.Tensor,
        tiles: StepTiles | None = None,
    ) -> None:
        """Feed token_ids [M] int64 at positions [M] int64; fills logits [M, vocab_size] (fp32, contiguous).

        Writes the rows' K and V to `batch.slots`. A padding row has context length 0 or 1 and a slot that
        nothing reads; its logits mean nothing. The step's inputs must be complete, on this stream, before the
        call: its kernels start reading them ahead of their turn. `tiles` replaces the tuned ones.
        """
        num_rows = len(token_ids)
        if num_rows > self.max_rows:
            raise ValueError(f"a step of {num_rows} rows, where buffers are made for {self.max_rows}")
        tiles = tiles or step_tiles(self._device_name, self.shape, num_rows, batch.max_context)
        mailboxes = None if self.decoder.tp.one_shot is None else self._mailboxes  # not for a rank on its own
        step = SmallBatchStep(self._buffers, tiles, num_rows, self.decoder, mailboxes)
        model = self.decoder.model
        context = DecodeContext(
            batch.block_tables, batch.context_lens, batch.slots, positions, model.rotary.table
        )
        step.embed(token_ids)
        for index, layer in enumerate(_layers(self.decoder)):
            attention, mlp = layer.self_attn, layer.mlp
            qkv_proj, gate_up_proj = attention.qkv_proj, mlp.gate_up_proj
            # qkv [M, (heads + 2 * kv_heads) * head_dim], attended [M, heads * head_dim]
            norm = layer.input_layernorm
            step.product_of_norm(norm.weight, qkv_proj.weight, step.qkv, tiles.qkv, bias=qkv_proj.bias)
            step.attend(self.attention.caches[index], context, self._norms[index])
            step.add_o(attention.o_proj.weight)
            # activations [M, intermediate_size]
            norm, silu = layer.post_attention_layernorm, Epilogue.SILU_AND_MUL
            step.product_of_norm(norm.weight, gate_up_proj.weight, step.activations, tiles.gate_up, silu)
            step.add_product(step.activations, mlp.down_proj.weight, tiles.down)
        step.head(logits)


def _covers(config: ModelConfig, shape: StepShape) -> bool:
    group, rest = divmod(shape.num_heads, shape.num_kv_heads)
    return (
        config.head_dim in (64, 128)
        and rest == 0
        and group <= 8
        and config.hidden_size % 64 == 0
        and shape.intermediate_size % 64 == 0
        and config.sliding_window is None
        and not (config.o_bias or config.mlp_bias)
    )


def _layers(decoder: Decoder) -> list[DecoderLayer]:
    """Fewer while the decoder is shortened."""
    return cast(list[DecoderLayer], list(decoder.model.layers))


def _head_norms(layer: DecoderLayer) -> HeadNorms | None:
    q_norm, k_norm = layer.self_attn.q_norm, layer.self_attn.k_norm
    if q_norm is None or k_norm is None:
        return None
    return HeadNorms(q_norm.weight, k_norm.weight, q_norm.eps)
