"""The decode step of a few sequences as a straight line of fused kernels: for batches of up to 64 on a GPU.

Such a step is bound by the weights' bytes and by the number of kernels, five to eight a layer here. It reads
the decoder's own parameters and the attention backend's own cache, so any step may take this way or the
generic one. Imports triton.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from kernels.attention.interface import DecodeBatch
from kernels.gpu import gpu_of
from kernels.triton.decode_attention_fused import DecodeContext, HeadNorms, fused_decode_attention
from kernels.triton.embedding import embed_tokens
from kernels.triton.epilogue import Epilogue
from kernels.triton.exchange_norm import exchange_norm
from kernels.triton.gemv import gemv
from kernels.triton.mailboxes import EMPTY, SLOTS, Mailboxes
from kernels.triton.residual_norm import residual_norm
from kernels.triton.skinny_gemm import skinny_gemm
from kernels.triton.split_combine import split_combine
from kernels.triton.split_combine_gemv import split_combine_gemv
from kernels.triton.tiles import (
    MAX_ROW_SPLITS,
    MAX_SPLITS,
    LinearTile,
    StepShape,
    StepTiles,
    most_rows,
    step_tiles,
)
from model.config import ModelConfig
from model.decoder import Decoder
from model.layers import DecoderLayer
from model.parallel import TensorParallel

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
        self._buffers = _Buffers.allocate(self.shape, self.max_rows, weight)
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
        step = _Step(self._buffers, tiles, num_rows, self.decoder, mailboxes)
        model = self.decoder.model
        context = DecodeContext(
            batch.block_tables, batch.context_lens, batch.slots, positions, model.rotary.table
        )
        step.embed(token_ids)
        for index, layer in enumerate(_layers(self.decoder)):
            attention, mlp = layer.self_attn, layer.mlp
            qkv_proj = attention.qkv_proj
            step.product_of_norm(
                layer.input_layernorm.weight, qkv_proj.weight, step.qkv, tiles.qkv, bias=qkv_proj.bias
            )
            step.attend(self.attention.caches[index], context, self._norms[index])
            step.add_o(attention.o_proj.weight)
            step.product_of_norm(
                layer.post_attention_layernorm.weight,
                mlp.gate_up_proj.weight,
                step.activations,
                tiles.gate_up,
                Epilogue.SILU_AND_MUL,
            )
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


@dataclass(frozen=True, slots=True)
class _Buffers:
    """Activations of one step, flat: a step of M rows takes the first M rows' worth of each."""

    residual: torch.Tensor  # [rows, hidden] fp32
    normed: torch.Tensor  # [rows, hidden]
    qkv: torch.Tensor  # [rows, q + k + v rows]
    attended: torch.Tensor  # [rows, heads * head_dim]
    activations: torch.Tensor  # [rows, intermediate]
    partials: torch.Tensor  # [MAX_SPLITS * rows * hidden] fp32, of split products
    partial_out: torch.Tensor  # [MAX_ROW_SPLITS * heads * head_dim] fp32, of attention's splits
    partial_sums: torch.Tensor  # [MAX_ROW_SPLITS * heads * 2] fp32

    @staticmethod
    def allocate(shape: StepShape, rows: int, weight: torch.Tensor) -> _Buffers:
        """Of a weight's type, and where it is."""
        dtype = weight.dtype
        q_size, kv_size = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        parts = MAX_ROW_SPLITS * shape.num_heads

        def empty(*sizes: int, of: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.empty(sizes, dtype=of, device=weight.device)

        return _Buffers(
            residual=empty(rows, shape.hidden_size),
            normed=empty(rows, shape.hidden_size, of=dtype),
            qkv=empty(rows, q_size + 2 * kv_size, of=dtype),
            attended=empty(rows, q_size, of=dtype),
            activations=empty(rows, shape.intermediate_size, of=dtype),
            partials=empty(MAX_SPLITS * rows * shape.hidden_size),
            partial_out=empty(parts * shape.head_dim),
            partial_sums=empty(parts * 2),
        )


class _Step:
    """The launches of one step over its rows' share of the buffers."""

    def __init__(
        self,
        buffers: _Buffers,
        tiles: StepTiles,
        num_rows: int,
        decoder: Decoder,
        mailboxes: Mailboxes | None,
    ) -> None:
        self.tiles = tiles
        self.eps = decoder.config.rms_norm_eps
        self.tp = decoder.tp
        self.mailboxes = mailboxes
        self.decoder = decoder
        self.num_rows = num_rows
        self.residual = buffers.residual[:num_rows]
        self.normed = buffers.normed[:num_rows]
        self.qkv = buffers.qkv[:num_rows]
        self.attended = buffers.attended[:num_rows]
        self.activations = buffers.activations[:num_rows]
        self._buffers = buffers
        # Parts of a product that the residual still lacks, if any: the next norm adds them, and with
        # mailboxes those of the other ranks.
        self._pending: torch.Tensor | None = None
        self._num_exchanges = 0
        self._attention_partials: tuple[torch.Tensor, torch.Tensor] | None = None

    def embed(self, token_ids: torch.Tensor) -> None:
        table = self.decoder.model.embed_tokens
        embed_tokens(token_ids, table.weight, self.residual, first=table.part.first)
        self.residual = self.tp.all_reduce(self.residual)

    def head(self, logits: torch.Tensor) -> None:
        """The last norm, and logits [M, vocab_size] from every rank's part of the head."""
        norm, head = self.decoder.model.norm, self.decoder.lm_head
        if self.tp.size == 1:
            self.product_of_norm(norm.weight, head.weight, logits, self.tiles.lm_head)
            return
        part = logits.new_empty(self.num_rows, head.part.size)
        self.product_of_norm(norm.weight, head.weight, part, self.tiles.lm_head)
        logits.copy_(self.tp.all_gather(part)[:, : logits.shape[1]])

    def product_of_norm(
        self,
        norm_weight: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor,
        tile: LinearTile,
        epilogue: Epilogue = Epilogue.STORE,
        bias: torch.Tensor | None = None,
    ) -> None:
        """out = epilogue(norm(residual) @ weight.T + bias); the norm takes a kernel of its own if it must."""
        if tile.kernel == "gemv" and self._pending is None:
            gemv(
                self.residual,
                weight,
                out,
                tile,
                epilogue,
                norm_weight=norm_weight,
                eps=self.eps,
                bias=bias,
            )
            return
        self._norm(norm_weight)
        product = gemv if tile.kernel == "gemv" else skinny_gemm
        product(self.normed, weight, out, tile, epilogue, bias=bias)

    def _norm(self, weight: torch.Tensor) -> None:
        """normed = norm(residual), what is pending added first."""
        if self.mailboxes is None or self._pending is None:
            residual_norm(self.residual, weight, self.normed, self.eps, partials=self._pending)
        else:
            # Two a layer, so that the slots alternate from one step to the next too.
            slot = self._num_exchanges % SLOTS
            exchange_norm(self._pending, self.mailboxes, slot, self.residual, weight, self.normed, self.eps)
            self._num_exchanges += 1
        self._pending = None

    def attend(
        self,
        cache: tuple[torch.Tensor, torch.Tensor],
        context: DecodeContext,
        norms: HeadNorms | None,
    ) -> None:
        keys, values = cache
        head_dim = keys.shape[-1]
        parts = (self.num_rows, self.attended.shape[1] // head_dim, self.tiles.attention.splits)
        partial_out = _view(self._buffers.partial_out, *parts, head_dim)
        partial_sums = _view(self._buffers.partial_sums, *parts, 2)
        fused_decode_attention(
            self.qkv,
            keys,
            values,
            context,
            norms,
            self.attended,
            partial_out,
            partial_sums,
            self.tiles.attention,
            scale=head_dim**-0.5,
        )
        self._attention_partials = (partial_out, partial_sums) if parts[-1] > 1 else None

    def add_o(self, weight: torch.Tensor) -> None:
        """residual += attended @ weight.T, after attention's splits have been combined."""
        if self._attention_partials is not None:
            if self.tiles.attention.combine == "projection" and self.tp.size == 1:
                split_combine_gemv(*self._attention_partials, weight, self.residual, self.tiles.o)
                return
            split_combine(*self._attention_partials, self.attended)
        self.add_product(self.attended, weight, self.tiles.o)

    def add_product(self, x: torch.Tensor, weight: torch.Tensor, tile: LinearTile) -> None:
        """residual += x @ weight.T, or its parts are left for the next norm to add."""
        if self.tp.size > 1:
            parts = self._own_parts(x, weight, tile)
            self._pending = parts if self.mailboxes is not None else self._sum_over_ranks(parts)
            return
        if tile.kernel == "gemv":
            gemv(x, weight, self.residual, tile, Epilogue.ADD)
            return
        if tile.splits > 1 and tile.reduce == "partials":
            self._pending = _view(self._buffers.partials, tile.splits, *self.residual.shape)
        skinny_gemm(x, weight, self.residual, tile, Epilogue.ADD, partials=self._pending)

    def _own_parts(self, x: torch.Tensor, weight: torch.Tensor, tile: LinearTile) -> torch.Tensor:
        """This rank's x @ weight.T as [splits, M, hidden] fp32, to be summed."""
        parts = _view(self._buffers.partials, tile.splits, *self.residual.shape)
        if tile.kernel == "gemv":
            gemv(x, weight, parts[0], tile)
        elif tile.splits == 1:
            skinny_gemm(x, weight, parts[0], tile)
        else:
            tile = replace(tile, reduce="partials")
            skinny_gemm(x, weight, self.residual, tile, Epilogue.ADD, partials=parts)
        return parts

    def _sum_over_ranks(self, parts: torch.Tensor) -> torch.Tensor:
        """As one part, [1, M, hidden]."""
        return self.tp.all_reduce(parts if len(parts) == 1 else parts.sum(dim=0, keepdim=True))


def open_mailboxes(tp: TensorParallel, max_rows: int, hidden_size: int) -> Mailboxes | None:
    """None where the GPUs cannot write to each other's memory. All ranks call this alike."""
    if tp.one_shot is None:
        return None
    own, addresses = tp.one_shot.shared_int32(SLOTS, tp.size, max_rows, hidden_size, fill=EMPTY.value)
    tp.minimum(0)  # until all are empty
    return Mailboxes(own, addresses, tp.rank)


def _view(buffer: torch.Tensor, *shape: int) -> torch.Tensor:
    """The first elements of a flat buffer, in this shape."""
    return buffer[: torch.Size(shape).numel()].view(shape)
