"""Attention problems with random paged caches, and their fp32 reference."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from kernels.attention.interface import AttentionBatch, AttentionShape, DecodeBatch
from kernels.attention.triton_backend import TritonAttention

DEVICE = torch.device("cuda")
_MIN_BYTES = 200e6  # caches of all layers of a timing together: several times the L2


def shape_of(heads: tuple[int, int], head_dim: int = 128, **changes: Any) -> AttentionShape:
    base = AttentionShape(1, *heads, head_dim, head_dim**-0.5, 128, torch.bfloat16, DEVICE)
    return replace(base, **changes)


class Problem:
    """Sequences of (rows, context) over `shape.num_layers` caches with blocks in random order.

    What lies past a context is NaN with `poison`, which flash-attn does not bear.
    """

    def __init__(self, shape: AttentionShape, lens: list[tuple[int, int]], poison: bool = False) -> None:
        self.shape, self.lens = shape, lens
        self.backend = TritonAttention(shape)
        size = shape.block_size
        blocks = [-(-context // size) for _, context in lens]
        self.backend.allocate(sum(blocks))
        order = torch.randperm(sum(blocks)).split(blocks)
        tables = torch.zeros(len(lens), max(blocks), dtype=torch.int32)
        for row, ids in zip(tables, order, strict=True):
            row[: len(ids)] = ids
        self.tables = tables.to(DEVICE)
        heads = (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)
        num_rows = sum(rows for rows, _ in lens)
        self.qkv = torch.randn(num_rows, sum(heads), shape.head_dim, device=DEVICE).to(shape.dtype)
        self.q, self.k, self.v = self.qkv.split_with_sizes(heads, dim=1)
        every, new = [], []
        for (rows, context), table in zip(lens, self.tables, strict=True):
            positions = torch.arange(context, device=DEVICE)
            slots = table[positions // size].long() * size + positions % size
            every.append(slots)
            new.append(slots[context - rows :])
        self.slots_by_sequence = every
        self.slots = torch.cat(new)
        self._fill(torch.cat(every), poison)

    def _fill(self, used: torch.Tensor, poison: bool) -> None:
        s = self.shape
        for cache in self.backend.caches:
            for tensor in cache:
                tensor.fill_(float("nan") if poison else 0.0)
                rows = torch.randn(len(used), s.num_kv_heads, s.head_dim, device=DEVICE, dtype=s.dtype)
                tensor.view(-1, s.num_kv_heads, s.head_dim)[used] = rows

    def batch(self) -> AttentionBatch:
        rows, contexts = zip(*self.lens, strict=True)
        decodes = sum(r == 1 for r in rows)
        return AttentionBatch(decodes, list(rows), list(contexts), self.tables, self.slots)

    def decode_batch(self) -> DecodeBatch:
        contexts = [context for _, context in self.lens]
        lens = torch.tensor(contexts, dtype=torch.int32, device=DEVICE)
        return DecodeBatch(self.tables, lens, self.slots, max(contexts))

    @cached_property
    def expected(self) -> torch.Tensor:
        """fp32 attention of layer 0 with k and v at their slots; [rows, heads * head_dim]."""
        s = self.shape
        keys, values = (t.view(-1, s.num_kv_heads, s.head_dim).clone() for t in self.backend.caches[0])
        keys[self.slots], values[self.slots] = self.k, self.v
        group = s.num_heads // s.num_kv_heads
        outs, start = [], 0
        for (rows, context), slots in zip(self.lens, self.slots_by_sequence, strict=True):
            q = self.q[start : start + rows].float().unflatten(1, (s.num_kv_heads, group)).permute(1, 2, 0, 3)
            k, v = (t[slots].float().transpose(0, 1).unsqueeze(1) for t in (keys, values))
            ends = torch.arange(context - rows, context, device=DEVICE)[:, None]
            positions = torch.arange(context, device=DEVICE)
            hidden = (positions > ends) | (positions <= ends - (s.sliding_window or context + 1))
            scores = (q @ k.transpose(-1, -2) * s.scale).masked_fill_(hidden, float("-inf"))
            outs.append((scores.softmax(-1) @ v).permute(2, 0, 1, 3).flatten(1))
            start += rows
        return torch.cat(outs)

    @property
    def kv_bytes(self) -> float:
        s = self.shape
        return sum(c for _, c in self.lens) * s.num_kv_heads * s.head_dim * 2.0 * s.dtype.itemsize

    @property
    def flops(self) -> float:
        pairs = sum(r * c - r * (r - 1) // 2 for r, c in self.lens)
        return 4.0 * self.shape.num_heads * self.shape.head_dim * pairs


def layers_for(shape: AttentionShape, lens: list[tuple[int, int]]) -> int:
    """So many that no layer's cache is still in L2 when its turn comes again."""
    bytes_per_layer = sum(c for _, c in lens) * shape.num_kv_heads * shape.head_dim * 2 * shape.dtype.itemsize
    return int(min(64, max(2, _MIN_BYTES // bytes_per_layer + 1)))
