"""What one small-batch decode step launches, product by product, and the buffers that it works in."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from kernels.triton.mailboxes import EMPTY, SLOTS, Mailboxes
from kernels.triton.small_batch.attention import DecodeContext, HeadNorms, fused_decode_attention
from kernels.triton.small_batch.embedding import embed_tokens
from kernels.triton.small_batch.epilogue import Epilogue
from kernels.triton.small_batch.exchange_norm import exchange_norm
from kernels.triton.small_batch.gemv import gemv
from kernels.triton.small_batch.residual_norm import residual_norm
from kernels.triton.small_batch.skinny_gemm import skinny_gemm
from kernels.triton.small_batch.split_combine import split_combine
from kernels.triton.small_batch.split_combine_gemv import split_combine_gemv
from kernels.triton.small_batch.tiles import MAX_ROW_SPLITS, MAX_SPLITS, LinearTile, StepShape, StepTiles
from model.decoder import Decoder
from model.parallel import TensorParallel


@dataclass(frozen=True, slots=True)
class SmallBatchBuffers:
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
    def allocate(shape: StepShape, rows: int, weight: torch.Tensor) -> SmallBatchBuffers:
        """Of a weight's type, and where it is."""
        dtype = weight.dtype
        q_size, kv_size = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        parts = MAX_ROW_SPLITS * shape.num_heads

        def empty(*sizes: int, of: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.empty(sizes, dtype=of, device=weight.device)

        return SmallBatchBuffers(
            residual=empty(rows, shape.hidden_size),
            normed=empty(rows, shape.hidden_size, of=dtype),
            qkv=empty(rows, q_size + 2 * kv_size, of=dtype),
            attended=empty(rows, q_size, of=dtype),
            activations=empty(rows, shape.intermediate_size, of=dtype),
            partials=empty(MAX_SPLITS * rows * shape.hidden_size),
            partial_out=empty(parts * shape.head_dim),
            partial_sums=empty(parts * 2),
        )


class SmallBatchStep:
    """The launches of one step over its rows' share of the buffers."""

    def __init__(
        self,
        buffers: SmallBatchBuffers,
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
        """residual = the embeddings of token_ids [M] int64, from every rank's part of the vocabulary."""
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
        """Write the K and V of `qkv`'s rows and attend: to `attended`, or in splits that `add_o` combines."""
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
