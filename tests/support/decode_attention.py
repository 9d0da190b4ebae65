"""Random inputs of a fused decode attention, and what attention over them gives, worked out row by row."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernels.norm import rms_norm
from kernels.rotary import apply_rotary
from kernels.triton.small_batch.attention import DecodeContext, HeadNorms, fused_decode_attention
from kernels.triton.small_batch.split_combine import split_combine
from kernels.triton.small_batch.tiles import AttentionTile


class AttentionCase:
    """Rows of context `lens`, with caches whose blocks lie in a scattered order."""

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        lens: list[int],
        *,
        kv_heads: int = 2,
        group: int,
        head_dim: int,
        block_size: int,
        normed: bool,
        eps: float = 1e-6,
    ) -> None:
        num_rows = len(lens)
        self.heads, self.kv_heads, self.head_dim = kv_heads * group, kv_heads, head_dim
        self.scale = head_dim**-0.5
        blocks_per_row = -(-max(lens) // block_size)
        num_blocks = num_rows * blocks_per_row

        def randn(*shape: int) -> torch.Tensor:
            return torch.randn(shape, device=device).to(dtype)

        self.keys = randn(num_blocks + 1, block_size, kv_heads, head_dim)
        self.values = randn(num_blocks + 1, block_size, kv_heads, head_dim)
        self.qkv = randn(num_rows, (self.heads + 2 * kv_heads) * head_dim) * 2
        self.norms = HeadNorms(randn(head_dim), randn(head_dim), eps) if normed else None
        tables = torch.randperm(num_blocks, device=device).to(torch.int32).view(num_rows, blocks_per_row)
        positions = torch.tensor(lens, device=device) - 1
        blocks = tables.gather(1, (positions // block_size)[:, None]).squeeze(1).long()
        frequencies = 1.1 ** -torch.arange(head_dim // 2, device=device)
        angles = torch.outer(torch.arange(max(lens), device=device), frequencies)
        self.context = DecodeContext(
            block_tables=tables,
            context_lens=positions.to(torch.int32) + 1,
            slots=blocks * block_size + positions % block_size,
            positions=positions,
            rotary_table=torch.cat((angles.cos(), angles.sin()), dim=-1).float(),
        )

    def attend(
        self, tile: AttentionTile, out: torch.Tensor, partials: tuple[torch.Tensor, torch.Tensor]
    ) -> None:
        fused_decode_attention(
            self.qkv, self.keys, self.values, self.context, self.norms, out, *partials, tile, self.scale
        )

    def run(self, tile: AttentionTile) -> torch.Tensor:
        """The kernels' result [rows, heads, head_dim]; the caches get the new rows."""
        size = (len(self.qkv), self.heads * self.head_dim)
        out = torch.full(size, float("nan"), dtype=self.qkv.dtype, device=self.qkv.device)
        partials = self.partials(tile.splits)
        self.attend(tile, out, partials)
        if tile.splits > 1:
            split_combine(*partials, out)
        return out.view(-1, self.heads, self.head_dim)

    def partials(self, splits: int) -> tuple[torch.Tensor, torch.Tensor]:
        sizes = ((len(self.qkv), self.heads, splits, size) for size in (self.head_dim, 2))
        out, sums = (torch.full(size, float("nan"), device=self.qkv.device) for size in sizes)
        return out, sums

    def reference(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(result, keys, values) in fp32, the caches with the new rows written."""
        c, sizes = self.context, (self.heads, self.kv_heads, self.kv_heads)
        q, k, v = self.qkv.float().view(len(self.qkv), -1, self.head_dim).split(sizes, dim=1)
        if self.norms is not None:
            q = rms_norm(q, self.norms.q_weight.float(), self.norms.eps)
            k = rms_norm(k, self.norms.k_weight.float(), self.norms.eps)
        cos, sin = c.rotary_table[c.positions].unsqueeze(1).chunk(2, dim=-1)
        rotary = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
        q, k = apply_rotary(q.clone(), *rotary), apply_rotary(k.clone(), *rotary)
        keys, values = (cache.float().flatten(0, 1) for cache in (self.keys, self.values))
        keys[c.slots], values[c.slots] = k, v
        keys, values = keys.view(self.keys.shape), values.view(self.values.shape)
        return attend_rows(q, keys, values, c, self.scale), keys, values


def attend_rows(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, context: DecodeContext, scale: float
) -> torch.Tensor:
    """q [rows, heads, head_dim] over paged caches that hold the new rows already; result of q's shape."""
    rows = []
    for row, length in enumerate(context.context_lens.tolist()):
        blocks = context.block_tables[row].long()
        k, v = (x[blocks].flatten(0, 1)[:length].transpose(0, 1).to(q.dtype) for x in (keys, values))
        attended = F.scaled_dot_product_attention(q[row].unsqueeze(1), k, v, scale=scale, enable_gqa=True)
        rows.append(attended.squeeze(1))
    return torch.stack(rows)
