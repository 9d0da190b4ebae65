"""Paged attention by flash-attn: prompt chunks, and decodes where it beats our split-KV kernel."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.attention.flash_versions import Attend, FlashVersion, PagedQueries, find_flash_attn
from kernels.attention.interface import AttentionBatch, AttentionShape, ChunkBatch, DecodeBatch
from kernels.attention.paged import Chunks, Decodes, captured_chunks, captured_decodes, split_batch
from kernels.attention.triton_backend import TritonAttention, TritonPlan
from kernels.triton.paged_cache import write_paged_kv


@dataclass(frozen=True, slots=True)
class FlashPlan:
    """The first `splits.num_decodes` rows go to the Triton kernel, then `calls` attend for all others."""

    splits: TritonPlan
    first_written: int  # row from which on K and V are written before the calls
    slots: torch.Tensor  # int64, where to, one for each of those rows
    calls: list[tuple[slice, Attend]]


class FlashAttention(TritonAttention):
    """Raises ValueError when no flash-attn is installed that fits the shape."""

    name = "flash"

    def __init__(self, shape: AttentionShape, version: FlashVersion | None = None) -> None:
        super().__init__(shape)
        self.version = version or find_flash_attn(shape)

    def plan(self, batch: AttentionBatch) -> FlashPlan:  # type: ignore[override]
        decodes, chunks, _ = split_batch(batch, self.shape.device, [])
        splits, calls = self._plan_decodes(decodes)
        if chunks is not None:
            calls.append((slice(batch.num_decodes, None), self._chunk_call(chunks)))
        first = splits.num_decodes
        return FlashPlan(splits, first, batch.slots[first:], calls)

    def plan_decode(self, batch: DecodeBatch) -> FlashPlan:  # type: ignore[override]
        splits, calls = self._plan_decodes(captured_decodes(batch))
        first = splits.num_decodes
        return FlashPlan(splits, first, batch.slots[first:], calls)

    def plan_chunks(  # type: ignore[override]
        self, chunks: ChunkBatch, decodes: DecodeBatch | None = None
    ) -> FlashPlan:
        splits, calls = self._plan_decodes(None if decodes is None else captured_decodes(decodes))
        max_context = chunks.block_tables.shape[1] * self.shape.block_size
        calls.append((slice(None), self._chunk_call(captured_chunks(chunks, max_context))))
        return FlashPlan(splits, 0, chunks.slots, calls)

    def _plan_decodes(self, decodes: Decodes | None) -> tuple[TritonPlan, list[tuple[slice, Attend]]]:
        """By the Triton kernel, or by a first call."""
        if decodes is None or not self._flash_decodes(len(decodes)):
            return self.plan_splits(decodes), []
        queries = PagedQueries(decodes.block_tables, decodes.context_lens, None, 1, decodes.max_context)
        return self.plan_splits(None), [(slice(len(decodes)), self.version.prepare(queries, self.shape))]

    def _chunk_call(self, chunks: Chunks) -> Attend:
        queries = PagedQueries(
            chunks.block_tables,
            chunks.context_lens,
            chunks.query_starts,
            max(chunks.query_lens),
            chunks.max_context,
        )
        return self.version.prepare(queries, self.shape)

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
            first = plan.first_written
            write_paged_kv(keys, values, k[first:], v[first:], plan.slots)
        for rows, attend in plan.calls:
            attend(q[rows], keys, values, out[rows])
        return out.view(len(q), -1)
