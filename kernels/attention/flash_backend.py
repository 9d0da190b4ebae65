"""Paged attention by flash-attn: prompt chunks, and decodes where it beats our split-KV kernel."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.attention.flash_versions import Attend, FlashVersion, PagedQueries, find_flash_attn
from kernels.attention.interface import AttentionBatch, AttentionShape, ChunkBatch, DecodeBatch
from kernels.attention.paged import Chunks, Decodes, captured_decodes, split_batch
from kernels.attention.triton_backend import TritonAttention, TritonPlan
from kernels.triton.paged_cache import write_paged_kv


@dataclass(frozen=True, slots=True)
class FlashPlan:
    """The first `splits.num_decodes` rows go to the Triton kernel, `calls` attend for all others."""

    splits: TritonPlan
    slots: torch.Tensor  # int64, where the K and V of those others go
    calls: list[tuple[slice, Attend]]


class FlashAttention(TritonAttention):
    """Raises ValueError when no flash-attn is installed that fits the shape."""

    name = "flash"

    def __init__(self, shape: AttentionShape, version: FlashVersion | None = None) -> None:
        super().__init__(shape)
        self.version = version or find_flash_attn(shape)

    def plan(self, batch: AttentionBatch) -> FlashPlan:  # type: ignore[override]
        decodes, chunks, _ = split_batch(batch, self.shape.device, [])
        return self._flash_plan(decodes, chunks, batch.slots)

    def plan_decode(self, batch: DecodeBatch) -> FlashPlan:  # type: ignore[override]
        return self._flash_plan(captured_decodes(batch), None, batch.slots)

    def plan_chunks(self, batch: ChunkBatch) -> FlashPlan:  # type: ignore[override]
        chunks = Chunks(
            batch.block_tables,
            batch.context_lens,
            batch.query_starts,
            batch.slots,
            query_lens=[len(batch.slots)],  # no chunk has more rows
            max_context=batch.block_tables.shape[1] * self.shape.block_size,
        )
        return self._flash_plan(None, chunks, batch.slots)

    def _flash_plan(self, decodes: Decodes | None, chunks: Chunks | None, slots: torch.Tensor) -> FlashPlan:
        n = 0 if decodes is None else len(decodes)
        calls: list[tuple[slice, Attend]] = []
        by_triton = decodes
        if decodes is not None and self._flash_decodes(n):
            by_triton = None
            queries = PagedQueries(decodes.block_tables, decodes.context_lens, None, 1, decodes.max_context)
            calls.append((slice(0, n), self.version.prepare(queries, self.shape)))
        if chunks is not None:
            queries = PagedQueries(
                chunks.block_tables,
                chunks.context_lens,
                chunks.query_starts,
                max(chunks.query_lens),
                chunks.max_context,
            )
            calls.append((slice(n, None), self.version.prepare(queries, self.shape)))
        splits = self.plan_splits(by_triton)
        return FlashPlan(splits, slots[splits.num_decodes :], calls)

    def _flash_decodes(self, num_rows: int) -> bool:
        threshold = self.tuning.flash_decode_pairs
        return threshold is not None and num_rows * self.shape.num_kv_heads >= threshold

    def forward(  # type: ignore[override]
        self, plan: FlashPlan, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        keys, values = self.caches[layer]
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        n = plan.splits.num_decodes
        if n:
            self.attend_decodes(plan.splits, layer, q[:n], k[:n], v[:n], out[:n])
        if plan.calls:
            write_paged_kv(keys, values, k[n:], v[n:], plan.slots)
        for rows, attend in plan.calls:
            attend(q[rows], keys, values, out[rows])
        return out.view(len(q), -1)
