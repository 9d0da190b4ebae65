"""Paged attention in plain torch: the CPU path, and the oracle of every other backend."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kernels.attention.interface import AttentionBatch, AttentionShape
from kernels.kv_write import write_kv


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Decodes attended in one call."""

    block_ids: torch.Tensor  # [B * blocks], the longest context deciding `blocks`
    mask: torch.Tensor  # [B, 1, 1, blocks * block_size], 0 or -inf


@dataclass(frozen=True, slots=True)
class Chunk:
    """One sequence's prompt rows, with the context that they see."""

    first_row: int
    num_rows: int
    block_ids: torch.Tensor  # [blocks]
    mask: torch.Tensor  # [num_rows, blocks * block_size], 0 or -inf


@dataclass(frozen=True, slots=True)
class TorchPlan:
    slots: torch.Tensor
    num_decodes: int
    decodes: DecodeGroup | None
    chunks: list[Chunk]


class TorchAttention:
    name = "torch"

    def __init__(self, shape: AttentionShape) -> None:
        self.shape = shape
        self.caches: list[tuple[torch.Tensor, torch.Tensor]] = []

    def allocate(self, num_blocks: int) -> None:
        s = self.shape
        size = (num_blocks, s.block_size, s.num_kv_heads, s.head_dim)
        self.caches = [
            (
                torch.zeros(size, dtype=s.dtype, device=s.device),
                torch.zeros(size, dtype=s.dtype, device=s.device),
            )
            for _ in range(s.num_layers)
        ]

    def plan(self, batch: AttentionBatch) -> TorchPlan:
        n = batch.num_decodes
        decodes = self._plan_decodes(batch.context_lens[:n], batch.block_tables[:n]) if n else None
        chunks, row = [], n
        for i in range(n, len(batch.query_lens)):
            chunks.append(
                self._plan_chunk(row, batch.query_lens[i], batch.context_lens[i], batch.block_tables[i])
            )
            row += batch.query_lens[i]
        return TorchPlan(batch.slots, n, decodes, chunks)

    def _plan_decodes(self, context_lens: list[int], block_tables: torch.Tensor) -> DecodeGroup:
        s = self.shape
        blocks = -(-max(context_lens) // s.block_size)
        positions = torch.arange(blocks * s.block_size, device=s.device)
        lens = torch.tensor(context_lens, device=s.device).unsqueeze(1)
        mask = torch.zeros(len(context_lens), len(positions), dtype=s.dtype, device=s.device)
        mask.masked_fill_(positions >= lens, float("-inf"))
        return DecodeGroup(block_tables[:, :blocks].reshape(-1), mask[:, None, None, :])

    def _plan_chunk(self, row: int, num_rows: int, context_len: int, block_table: torch.Tensor) -> Chunk:
        s = self.shape
        blocks = -(-context_len // s.block_size)
        positions = torch.arange(blocks * s.block_size, device=s.device)
        query_positions = torch.arange(context_len - num_rows, context_len, device=s.device).unsqueeze(1)
        mask = torch.zeros(num_rows, len(positions), dtype=s.dtype, device=s.device)
        mask.masked_fill_(positions > query_positions, float("-inf"))
        return Chunk(row, num_rows, block_table[:blocks], mask)

    def forward(
        self, plan: TorchPlan, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        keys, values = self.caches[layer]
        write_kv(keys.flatten(0, 1), values.flatten(0, 1), k, v, plan.slots)
        outputs = []
        if plan.decodes is not None:
            outputs.append(self._attend_decodes(plan.decodes, q[: plan.num_decodes], keys, values))
        for chunk in plan.chunks:
            rows = q[chunk.first_row : chunk.first_row + chunk.num_rows]
            outputs.append(self._attend_chunk(chunk, rows, keys, values))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _attend_decodes(
        self, group: DecodeGroup, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """The query heads of a KV head take the place of query positions, so K and V are not expanded."""
        s = self.shape
        n = len(q)
        grouped = q.view(n, s.num_kv_heads, -1, s.head_dim)
        context = (n, -1, s.num_kv_heads, s.head_dim)
        k = keys.index_select(0, group.block_ids).view(context).transpose(1, 2)
        v = values.index_select(0, group.block_ids).view(context).transpose(1, 2)
        out = F.scaled_dot_product_attention(grouped, k, v, attn_mask=group.mask, scale=s.scale)
        return out.reshape(n, -1)

    def _attend_chunk(
        self, chunk: Chunk, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        s = self.shape
        k = keys.index_select(0, chunk.block_ids).flatten(0, 1).transpose(0, 1)
        v = values.index_select(0, chunk.block_ids).flatten(0, 1).transpose(0, 1)
        out = F.scaled_dot_product_attention(
            q.transpose(0, 1).unsqueeze(0),
            k.unsqueeze(0),
            v.unsqueeze(0),
            attn_mask=chunk.mask,
            scale=s.scale,
            enable_gqa=True,
        )
        return out.squeeze(0).transpose(0, 1).reshape(chunk.num_rows, -1)
