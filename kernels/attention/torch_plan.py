"""What the torch backend works out once per step, for all layers: groups of decodes, masks, gathers.

Gathers go to a workspace that the layers of a step share: fresh memory for each would cost more in page
faults than the copy itself, and the workspace is still in the CPU's cache when it is read.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.attention.interface import AttentionBatch, AttentionShape
from kernels.attention.length_groups import group_by_length

# A further group of decodes costs about ten operators a layer; that much padding costs the same.
_MIN_SAVED_TOKENS = 256
# Gathered keys of one group: above this they no longer stay in a CPU's last-level cache until they are read.
_WORKSPACE_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class Context:
    """The cached positions of B sequences, padded to the longest: N = B * kv_heads (sequence, KV head) pairs.

    `key_rows` and `keys` are two views of the same workspace, for writing and reading it.
    """

    block_ids: torch.Tensor  # [N * blocks] int32, ids of per-head blocks
    key_rows: torch.Tensor  # [N * blocks, block_size * head_dim]
    value_rows: torch.Tensor
    keys: torch.Tensor  # [N, blocks * block_size, head_dim]
    values: torch.Tensor
    mask: torch.Tensor  # [N or 1, rows, blocks * block_size], 0 or -inf


@dataclass(frozen=True, slots=True)
class LengthGroup:
    """Decodes start to stop, of similar length, attended in one call."""

    start: int
    stop: int
    context: Context


@dataclass(frozen=True, slots=True)
class Chunk:
    """One sequence's prompt rows, start to stop. Without a context they see just each other, causally."""

    start: int
    stop: int
    context: Context | None


@dataclass(frozen=True, slots=True)
class TorchPlan:
    slots: torch.Tensor  # [T]
    num_decodes: int
    order: torch.Tensor | None  # [num_decodes] decodes by falling length; None: one group, as they come
    inverse_order: torch.Tensor | None
    groups: list[LengthGroup]
    chunks: list[Chunk]


class TorchPlanner:
    def __init__(self, shape: AttentionShape, num_blocks: int) -> None:
        self.shape = shape
        self.num_blocks = num_blocks

    def plan(self, batch: AttentionBatch) -> TorchPlan:
        n = batch.num_decodes
        lens, tables = batch.context_lens[:n], batch.block_tables[:n]
        falling = sorted(range(n), key=lambda i: -lens[i])
        ranges = self._group_decodes([lens[i] for i in falling])
        order = inverse_order = None
        if len(ranges) > 1:
            lens = [lens[i] for i in falling]
            order = torch.tensor(falling, device=self.shape.device)
            inverse_order = torch.argsort(order)
            tables = tables[order]
        workspace = self._make_workspace(
            [(b - a) * self._blocks(max(lens[a:b])) for a, b in ranges]
            + [self._blocks(length) for length in batch.context_lens[n:]]
        )
        groups = [
            LengthGroup(a, b, self._decode_context(lens[a:b], tables[a:b], workspace)) for a, b in ranges
        ]
        chunks, start = [], n
        for i in range(n, len(batch.query_lens)):
            num_rows = batch.query_lens[i]
            context = self._chunk_context(
                num_rows, batch.context_lens[i], batch.block_tables[i : i + 1], workspace
            )
            chunks.append(Chunk(start, start + num_rows, context))
            start += num_rows
        return TorchPlan(batch.slots, n, order, inverse_order, groups, chunks)

    def _group_decodes(self, falling_lens: list[int]) -> list[tuple[int, int]]:
        s = self.shape
        if not falling_lens:
            return []
        max_tokens = _WORKSPACE_BYTES // (s.num_kv_heads * s.head_dim * s.dtype.itemsize)
        if s.device.type != "cpu":
            max_tokens = falling_lens[0] * len(falling_lens)
        return group_by_length(falling_lens, _MIN_SAVED_TOKENS, max_tokens)

    def _decode_context(self, lens: list[int], tables: torch.Tensor, workspace: torch.Tensor) -> Context:
        ends = torch.tensor(lens, device=self.shape.device).view(-1, 1, 1)
        return self._context(tables, max(lens), ends, workspace)

    def _chunk_context(
        self, num_rows: int, context_len: int, table: torch.Tensor, workspace: torch.Tensor
    ) -> Context | None:
        window = self.shape.sliding_window
        if num_rows == context_len and (window is None or context_len <= window):
            return None
        ends = torch.arange(context_len - num_rows + 1, context_len + 1, device=self.shape.device)
        return self._context(table, context_len, ends.view(1, -1, 1), workspace)

    def _context(
        self, tables: torch.Tensor, longest: int, ends: torch.Tensor, workspace: torch.Tensor
    ) -> Context:
        """The context of B sequences where row q of sequence b sees positions below ends[b, q].

        tables [B, any], ends [B, Q, 1].
        """
        s = self.shape
        blocks = self._blocks(longest)
        heads = torch.arange(s.num_kv_heads, dtype=torch.int32, device=s.device).view(1, -1, 1)
        block_ids = (tables[:, None, :blocks] + heads * self.num_blocks).reshape(-1)
        key_rows, value_rows = workspace[:, : len(block_ids)]
        keys, values = workspace[:, : len(block_ids)].view(2, -1, blocks * s.block_size, s.head_dim)
        positions = torch.arange(blocks * s.block_size, device=s.device)
        hidden = positions >= ends
        if s.sliding_window is not None:
            hidden |= positions < ends - s.sliding_window
        mask = torch.zeros(hidden.shape, dtype=s.dtype, device=s.device).masked_fill_(hidden, float("-inf"))
        if len(mask) > 1:
            mask = mask.repeat_interleave(s.num_kv_heads, dim=0)
        return Context(block_ids, key_rows, value_rows, keys, values, mask)

    def _make_workspace(self, num_blocks: list[int]) -> torch.Tensor:
        s = self.shape
        size = (2, max(num_blocks, default=0) * s.num_kv_heads, s.block_size * s.head_dim)
        return torch.empty(size, dtype=s.dtype, device=s.device)

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.shape.block_size)
