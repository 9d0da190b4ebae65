"""Paged attention in plain torch: the CPU's path, and the oracle of every other backend."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from kernels.attention.interface import AttentionBatch, AttentionShape
from kernels.attention.torch_plan import Chunk, Context, TorchPlan, TorchPlanner
from kernels.kv_write import write_kv


class HeadMajorCache(NamedTuple):
    """K and V of one layer. Gathered blocks give each head a contiguous [context, head_dim]."""

    keys: torch.Tensor  # [kv_heads, slots, head_dim]
    values: torch.Tensor
    key_blocks: torch.Tensor  # the same memory as [kv_heads * blocks, block_size * head_dim]
    value_blocks: torch.Tensor


class TorchAttention:
    """An `AttentionBackend`: groups of decodes and single chunks, each in a few large operators."""

    name = "torch"

    def __init__(self, shape: AttentionShape) -> None:
        self.shape = shape
        self.caches: list[HeadMajorCache] = []
        self.planner = TorchPlanner(shape, num_blocks=0)

    def allocate(self, num_blocks: int) -> None:
        self.planner = TorchPlanner(self.shape, num_blocks)
        self.caches = [self._make_cache(num_blocks) for _ in range(self.shape.num_layers)]

    def _make_cache(self, num_blocks: int) -> HeadMajorCache:
        s = self.shape
        size = (s.num_kv_heads, num_blocks * s.block_size, s.head_dim)
        keys, values = (_zeros(size, s.dtype, s.device) for _ in range(2))
        by_block = (s.num_kv_heads * num_blocks, s.block_size * s.head_dim)
        return HeadMajorCache(keys, values, keys.view(by_block), values.view(by_block))

    def plan(self, batch: AttentionBatch) -> TorchPlan:
        return self.planner.plan(batch)

    def forward(
        self, plan: TorchPlan, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        cache = self.caches[layer]
        write_kv(cache.keys, cache.values, k, v, plan.slots)
        if not plan.chunks:
            return self._attend_decodes(plan, cache, q)
        outputs = [self._attend_chunk(chunk, cache, q, k, v) for chunk in plan.chunks]
        if plan.groups:
            outputs.insert(0, self._attend_decodes(plan, cache, q[: plan.num_decodes]))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _attend_decodes(self, plan: TorchPlan, cache: HeadMajorCache, q: torch.Tensor) -> torch.Tensor:
        """q [decodes, heads, head_dim] to [decodes, heads * head_dim]."""
        if plan.order is None or plan.inverse_order is None:
            return self._attend_group(plan.groups[0].context, cache, q)
        q = q.index_select(0, plan.order)
        outputs = [self._attend_group(g.context, cache, q[g.start : g.stop]) for g in plan.groups]
        return torch.cat(outputs).index_select(0, plan.inverse_order)

    def _attend_group(self, context: Context, cache: HeadMajorCache, q: torch.Tensor) -> torch.Tensor:
        """q [B, heads, head_dim] to [B, heads * head_dim]; N = B * kv_heads, as in `Context`.

        Query heads that share a KV head take the place of query positions: K and V are not expanded.
        """
        s = self.shape
        # [N, heads of a group, head_dim]
        grouped = q.reshape(-1, s.num_heads // s.num_kv_heads, s.head_dim)
        torch.index_select(cache.key_blocks, 0, context.block_ids, out=context.key_rows)
        if s.dtype == torch.float32:
            # Two batched products take 0.6 of SDPA's time in fp32 (AVX2); values may take the keys' place.
            # [N, heads of a group, context]
            scores = torch.baddbmm(context.mask, grouped, context.keys.transpose(1, 2), alpha=s.scale)
            torch.index_select(cache.value_blocks, 0, context.block_ids, out=context.key_rows)
            out = torch.bmm(scores.softmax(dim=-1), context.keys)
        else:
            torch.index_select(cache.value_blocks, 0, context.block_ids, out=context.value_rows)
            out = F.scaled_dot_product_attention(
                grouped.unsqueeze(0),
                context.keys.unsqueeze(0),
                context.values.unsqueeze(0),
                attn_mask=context.mask.unsqueeze(0),
                scale=s.scale,
            )
        return out.view(-1, s.num_heads * s.head_dim)

    def _attend_chunk(
        self, chunk: Chunk, cache: HeadMajorCache, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """All rows of the step to this chunk's [rows, heads * head_dim]."""
        s = self.shape
        rows = slice(chunk.start, chunk.stop)
        context = chunk.context
        if context is None:
            keys, values = k[rows].transpose(0, 1), v[rows].transpose(0, 1)
        else:
            torch.index_select(cache.key_blocks, 0, context.block_ids, out=context.key_rows)
            torch.index_select(cache.value_blocks, 0, context.block_ids, out=context.value_rows)
            keys, values = context.keys, context.values
        # keys and values: [kv_heads, context, head_dim]
        heads_per_kv = s.num_heads // s.num_kv_heads
        out = F.scaled_dot_product_attention(
            q[rows].unflatten(1, (s.num_kv_heads, heads_per_kv)).permute(1, 2, 0, 3),
            keys.unsqueeze(1).expand(-1, heads_per_kv, -1, -1),
            values.unsqueeze(1).expand(-1, heads_per_kv, -1, -1),
            attn_mask=None if context is None else context.mask,
            is_causal=context is None,
            scale=s.scale,
        )
        return out.permute(2, 0, 1, 3).reshape(-1, s.num_heads * s.head_dim)


def _zeros(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """On a CPU, memory that the system hands out, zeroed, page by page as it is first written."""
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    num_bytes = math.prod(size) * dtype.itemsize
    return torch.from_numpy(np.zeros(num_bytes, dtype=np.uint8)).view(dtype).view(size)
