"""Paged attention in Triton: split-KV decode and chunked prefill, on any GPU that Triton compiles for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from kernels.attention.interface import AttentionBatch, AttentionShape, ChunkBatch, DecodeBatch
from kernels.attention.paged import (
    Chunks,
    Decodes,
    LayerCache,
    Scratch,
    allocate_caches,
    captured_chunks,
    captured_decodes,
    split_batch,
)
from kernels.attention.tuning import attention_tuning, num_multiprocessors
from kernels.triton.attention_decode import DecodeConfig, attend_decodes, scratch_size
from kernels.triton.attention_prefill import attend_chunks, query_tiles
from kernels.triton.paged_cache import write_paged_kv


@dataclass(frozen=True, slots=True)
class TritonPlan:
    decodes: Decodes | None
    decode_config: DecodeConfig | None
    scratch: torch.Tensor  # fp32, for the splits of the decodes
    order: torch.Tensor | None = None  # [M] int64: the decodes, longest context first
    chunks: Chunks | None = None
    first_chunk_row: int = 0  # from here on rows are written and attended as chunks
    tiles: torch.Tensor | None = None  # [2, N] int32, see kernels/triton/attention_prefill.py

    @property
    def num_decodes(self) -> int:
        return 0 if self.decodes is None else len(self.decodes)


class TritonAttention:
    """Layout of the cache, and the spare block: kernels/attention/paged.py."""

    name = "triton"

    def __init__(self, shape: AttentionShape) -> None:
        self.shape = shape
        self.tuning = attention_tuning(shape.device)
        self.prefill_config = self.tuning.prefill_config(shape)
        self.caches: list[LayerCache] = []
        self._scratch = Scratch(shape.device)

    def allocate(self, num_blocks: int) -> None:
        self.caches = []  # give the old pool back first
        self.caches = allocate_caches(self.shape, num_blocks)

    def plan(self, batch: AttentionBatch) -> TritonPlan:
        """One upload; nothing is read back."""
        n = batch.num_decodes
        chunk, first = query_tiles(batch.query_lens[n:], batch.context_lens[n:], self._tile_positions)
        decodes, chunks, (tiles,) = split_batch(batch, self.shape.device, [chunk + first])
        return replace(self.plan_splits(decodes), chunks=chunks, first_chunk_row=n, tiles=tiles.view(2, -1))

    def plan_decode(self, batch: DecodeBatch) -> TritonPlan:
        """Reads nothing on the host. The plan's scratch memory outlives graphs that capture its use."""
        return self.plan_splits(captured_decodes(batch))

    def plan_chunks(self, chunks: ChunkBatch, decodes: DecodeBatch | None = None) -> TritonPlan:
        splits = self.plan_splits(None if decodes is None else captured_decodes(decodes))
        return replace(splits, chunks=captured_chunks(chunks, 0), tiles=chunks.schedule.view(2, -1))

    def chunk_schedule_size(self, num_rows: int, num_chunks: int) -> int:
        return 2 * (-(-num_rows // self._tile_positions) + num_chunks)

    def chunk_schedule(
        self, query_lens: Sequence[int], context_lens: Sequence[int], num_rows: int, num_chunks: int
    ) -> np.ndarray:
        """The tiles; those left over belong to the last chunk, which has no rows."""
        chunk, first = query_tiles(query_lens, context_lens, self._tile_positions)
        schedule = np.zeros((2, self.chunk_schedule_size(num_rows, num_chunks) // 2), dtype=np.int32)
        schedule[0] = num_chunks - 1
        schedule[0, : len(chunk)] = chunk
        schedule[1, : len(first)] = first
        return schedule.reshape(-1)

    @property
    def _tile_positions(self) -> int:
        return self.prefill_config.tile_positions(self.shape.num_heads // self.shape.num_kv_heads)

    def plan_splits(self, decodes: Decodes | None) -> TritonPlan:
        """A plan of decodes alone."""
        s = self.shape
        config, size, order = None, 0, None
        if decodes is not None:
            sms = num_multiprocessors(s.device)
            config = self.tuning.decode_config(s, len(decodes), decodes.max_context, sms)
            order = decodes.context_lens.argsort(descending=True)
            size = scratch_size(len(decodes), s.num_heads, s.head_dim, config.num_splits)
        return TritonPlan(decodes, config, self._scratch.at_least(size), order)

    def forward(
        self, plan: TritonPlan, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """Decodes write their own K and V; those of chunks are written before they attend.

        Where a captured plan has room for more decodes than there are, chunks begin among its rows: decodes
        come first, and leave the rows alone that are not theirs.
        """
        n, first = plan.num_decodes, plan.first_chunk_row
        keys, values = self.caches[layer]
        out = torch.empty((len(q), q.shape[1] * q.shape[2]), dtype=q.dtype, device=q.device)
        if plan.decodes is not None:
            self.attend_decodes(plan, layer, q[:n], k[:n], v[:n], out[:n])
        if plan.chunks is not None:
            write_paged_kv(keys, values, k[first:], v[first:], plan.chunks.slots)
            self.attend_chunks(plan, layer, q[first:], out[first:])
        return out

    def attend_decodes(
        self,
        plan: TritonPlan,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """q [M, heads, head_dim] to out [M, heads * head_dim]; k and v are written on the way."""
        decodes, config = plan.decodes, plan.decode_config
        assert decodes is not None and config is not None and plan.order is not None
        attend_decodes(
            q,
            k,
            v,
            *self.caches[layer],
            decodes.block_tables,
            decodes.context_lens,
            decodes.slots,
            plan.order,
            out,
            plan.scratch,
            scale=self.shape.scale,
            window=self.shape.sliding_window,
            config=config,
        )

    def attend_chunks(self, plan: TritonPlan, layer: int, q: torch.Tensor, out: torch.Tensor) -> None:
        """q [T, heads, head_dim] to out [T, heads * head_dim]; the cache holds the rows' keys and values."""
        assert plan.chunks is not None and plan.tiles is not None
        attend_chunks(
            q,
            *self.caches[layer],
            plan.chunks.block_tables,
            plan.chunks.context_lens,
            plan.chunks.query_starts,
            plan.tiles,
            out,
            scale=self.shape.scale,
            window=self.shape.sliding_window,
            config=self.prefill_config,
        )
