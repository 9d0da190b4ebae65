"""Paged attention in plain torch: the CPU's path, and the oracle of every other backend.

The caches are head-major, so that one gather of blocks yields, for each sequence and KV head, a contiguous
[context, head_dim] matrix. Gathers go to a workspace that all layers of a step share: fresh memory for each
would cost more in page faults than the copy itself, and the workspace is still in the CPU's cache when read.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kernels.attention.interface import AttentionBatch, AttentionShape
from kernels.attention.length_groups import group_by_length
from kernels.kv_write import write_kv

# A further group of decodes costs about ten operators a layer; that much padding costs the same.
_MIN_SAVED_TOKENS = 256
# Gathered keys of one group: above this they no longer stay in a CPU's last-level cache until they are read.
_WORKSPACE_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Decodes of similar length, attended in one call. Batch entries are (sequence, KV head) pairs."""

    start: int
    stop: int
    block_ids: torch.Tensor  # [B * kv_heads * blocks] int32
    mask: torch.Tensor  # [B * kv_heads, 1, blocks * block_size], 0 or -inf


@dataclass(frozen=True, slots=True)
class Chunk:
    """One sequence's prompt rows, start to stop."""

    start: int
    stop: int
    block_ids: torch.Tensor | None  # [kv_heads * blocks] int32; None: the rows are the whole context
    mask: torch.Tensor | None  # [rows, context], 0 or -inf; None: causal


@dataclass(frozen=True, slots=True)
class TorchPlan:
    slots: torch.Tensor  # [T]
    num_decodes: int
    order: torch.Tensor | None  # [num_decodes] decodes by falling length; None: one group, as they come
    inverse_order: torch.Tensor | None
    groups: list[DecodeGroup]
    chunks: list[Chunk]
    workspace: torch.Tensor  # [2 (K, V), block rows, block_size * head_dim]


class TorchAttention:
    name = "torch"

    def __init__(self, shape: AttentionShape) -> None:
        self.shape = shape
        self.num_blocks = 0
        self.key_caches: list[torch.Tensor] = []  # per layer [kv_heads, slots, head_dim]
        self.value_caches: list[torch.Tensor] = []

    def allocate(self, num_blocks: int) -> None:
        s = self.shape
        self.num_blocks = num_blocks
        size = (s.num_kv_heads, num_blocks * s.block_size, s.head_dim)
        layers = range(s.num_layers)
        self.key_caches = [torch.zeros(size, dtype=s.dtype, device=s.device) for _ in layers]
        self.value_caches = [torch.zeros(size, dtype=s.dtype, device=s.device) for _ in layers]

    def plan(self, batch: AttentionBatch) -> TorchPlan:
        n = batch.num_decodes
        lens = batch.context_lens[:n]
        falling = sorted(range(n), key=lambda i: -lens[i])
        ranges = self._group_decodes([lens[i] for i in falling])
        order = inverse_order = None
        tables = batch.block_tables[:n]
        if len(ranges) > 1:
            lens = [lens[i] for i in falling]
            order = torch.tensor(falling, device=self.shape.device)
            inverse_order = torch.argsort(order)
            tables = tables[order]
        groups = [self._plan_group(a, b, lens[a:b], tables[a:b]) for a, b in ranges]
        chunks, row = [], n
        for i in range(n, len(batch.query_lens)):
            stop = row + batch.query_lens[i]
            chunks.append(self._plan_chunk(row, stop, batch.context_lens[i], batch.block_tables[i : i + 1]))
            row = stop
        workspace = self._make_workspace(groups, chunks)
        return TorchPlan(batch.slots, n, order, inverse_order, groups, chunks, workspace)

    def _group_decodes(self, falling_lens: list[int]) -> list[tuple[int, int]]:
        s = self.shape
        bytes_per_token = s.num_kv_heads * s.head_dim * s.dtype.itemsize
        max_tokens = sum(falling_lens) if s.device.type != "cpu" else _WORKSPACE_BYTES // bytes_per_token
        if not falling_lens:
            return []
        return group_by_length(falling_lens, _MIN_SAVED_TOKENS, max(max_tokens, falling_lens[0]))

    def _plan_group(self, start: int, stop: int, lens: list[int], tables: torch.Tensor) -> DecodeGroup:
        s = self.shape
        ends = torch.tensor(lens, device=s.device).view(-1, 1, 1)
        block_ids, mask = self._context(tables, max(lens), ends)
        mask = mask.expand(-1, s.num_kv_heads, -1).reshape(-1, 1, mask.shape[-1])
        return DecodeGroup(start, stop, block_ids, mask)

    def _plan_chunk(self, start: int, stop: int, context_len: int, table: torch.Tensor) -> Chunk:
        num_rows = stop - start
        window = self.shape.sliding_window
        is_whole = context_len == num_rows
        if is_whole and (window is None or context_len <= window):
            return Chunk(start, stop, None, None)
        ends = torch.arange(context_len - num_rows + 1, context_len + 1, device=self.shape.device)
        block_ids, mask = self._context(table, context_len, ends.view(1, -1, 1))
        return Chunk(start, stop, block_ids, mask.squeeze(0))

    def _context(
        self, tables: torch.Tensor, longest: int, ends: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Where B contexts are cached, and the mask that lets query q of sequence b see ends[b, q] positions.

        tables [B, any], ends [B, Q, 1]; returns ids of per-head blocks [B * kv_heads * blocks] and the mask
        [B, Q, blocks * block_size].
        """
        s = self.shape
        blocks = -(-longest // s.block_size)
        heads = torch.arange(s.num_kv_heads, dtype=torch.int32, device=s.device).view(1, -1, 1)
        block_ids = (tables[:, None, :blocks] + heads * self.num_blocks).reshape(-1)
        positions = torch.arange(blocks * s.block_size, device=s.device)
        hidden = positions >= ends
        if s.sliding_window is not None:
            hidden |= positions < ends - s.sliding_window
        mask = torch.zeros(hidden.shape, dtype=s.dtype, device=s.device).masked_fill_(hidden, float("-inf"))
        return block_ids, mask

    def _make_workspace(self, groups: list[DecodeGroup], chunks: list[Chunk]) -> torch.Tensor:
        s = self.shape
        gathers = [g.block_ids for g in groups] + [c.block_ids for c in chunks if c.block_ids is not None]
        size = (2, max(map(len, gathers), default=0), s.block_size * s.head_dim)
        return torch.empty(size, dtype=s.dtype, device=s.device)

    def forward(
        self, plan: TorchPlan, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        write_kv(self.key_caches[layer], self.value_caches[layer], k, v, plan.slots)
        outputs = []
        if plan.groups:
            outputs.append(self._attend_decodes(plan, layer, q[: plan.num_decodes]))
        for chunk in plan.chunks:
            rows = slice(chunk.start, chunk.stop)
            outputs.append(self._attend_chunk(plan, layer, chunk, q[rows], k[rows], v[rows]))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _attend_decodes(self, plan: TorchPlan, layer: int, q: torch.Tensor) -> torch.Tensor:
        """Query heads that share a KV head take the place of query positions: K and V are not expanded."""
        s = self.shape
        if plan.order is None:
            return self._attend_group(plan, layer, plan.groups[0], q)
        q = q.index_select(0, plan.order)
        outputs = [self._attend_group(plan, layer, g, q[g.start : g.stop]) for g in plan.groups]
        assert plan.inverse_order is not None
        return torch.cat(outputs).index_select(0, plan.inverse_order).view(-1, s.num_heads * s.head_dim)

    def _attend_group(self, plan: TorchPlan, layer: int, group: DecodeGroup, q: torch.Tensor) -> torch.Tensor:
        s = self.shape
        pairs = group.mask.shape[0]
        q = q.reshape(pairs, -1, s.head_dim)
        keys = self._gather(self.key_caches[layer], group.block_ids, plan.workspace[0])
        keys = keys.view(pairs, -1, s.head_dim)
        if s.dtype == torch.float32:
            # Two batched products beat SDPA on CPUs in fp32; values may then overwrite the keys.
            scores = torch.baddbmm(group.mask, q, keys.transpose(1, 2), alpha=s.scale)
            values = self._gather(self.value_caches[layer], group.block_ids, plan.workspace[0])
            out = torch.bmm(scores.softmax(dim=-1), values.view(pairs, -1, s.head_dim))
        else:
            values = self._gather(self.value_caches[layer], group.block_ids, plan.workspace[1])
            out = F.scaled_dot_product_attention(
                q.unsqueeze(0),
                keys.unsqueeze(0),
                values.view(pairs, -1, s.head_dim).unsqueeze(0),
                attn_mask=group.mask.unsqueeze(0),
                scale=s.scale,
            )
        return out.view(-1, s.num_heads * s.head_dim)

    def _attend_chunk(
        self,
        plan: TorchPlan,
        layer: int,
        chunk: Chunk,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
    ) -> torch.Tensor:
        s = self.shape
        if chunk.block_ids is None:
            k, v = k.transpose(0, 1), v.transpose(0, 1)
        else:
            k = self._gather(self.key_caches[layer], chunk.block_ids, plan.workspace[0])
            v = self._gather(self.value_caches[layer], chunk.block_ids, plan.workspace[1])
            k, v = (x.view(s.num_kv_heads, -1, s.head_dim) for x in (k, v))
        grouped = q.unflatten(1, (s.num_kv_heads, -1)).permute(
            1, 2, 0, 3
        )  # [kv_heads, heads of each, rows, D]
        out = F.scaled_dot_product_attention(
            grouped,
            k.unsqueeze(1).expand(-1, grouped.shape[1], -1, -1),
            v.unsqueeze(1).expand(-1, grouped.shape[1], -1, -1),
            attn_mask=chunk.mask,
            is_causal=chunk.mask is None,
            scale=s.scale,
        )
        return out.permute(2, 0, 1, 3).reshape(len(q), -1)

    def _gather(self, cache: torch.Tensor, block_ids: torch.Tensor, workspace: torch.Tensor) -> torch.Tensor:
        """Per-head blocks of `cache`, copied side by side: [len(block_ids), block_size * head_dim]."""
        s = self.shape
        blocks = cache.view(s.num_kv_heads * self.num_blocks, s.block_size * s.head_dim)
        return torch.index_select(blocks, 0, block_ids, out=workspace[: len(block_ids)])
