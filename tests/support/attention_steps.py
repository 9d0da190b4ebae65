"""Random steps over a paged cache, for an attention backend and its oracle, the torch backend."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from kernels.attention.interface import AttentionBatch, AttentionShape, ChunkBatch, DecodeBatch
from kernels.attention.torch_backend import TorchAttention

CPU = torch.device("cpu")


class TwinCaches:
    """One set of sequences in two caches. Blocks come in a scattered order."""

    def __init__(self, backend: Any, num_blocks: int, seed: int) -> None:
        self.backend = backend
        self.shape: AttentionShape = backend.shape
        # fp32 on the CPU, whatever the backend computes in; inputs are rounded to its type first.
        self.oracle = TorchAttention(replace(self.shape, dtype=torch.float32, device=CPU))
        backend.allocate(num_blocks)
        self.oracle.allocate(num_blocks)
        self.num_blocks = num_blocks
        self.generator = torch.Generator().manual_seed(seed)
        self.free = torch.randperm(num_blocks, generator=self.generator).tolist()
        self.tables: list[list[int]] = []

    def add(self, num_tokens: int) -> None:
        """One more sequence, with room for `num_tokens`."""
        self.tables.append([self.free.pop() for _ in range(-(-num_tokens // self.shape.block_size))])

    def step(self, lens: list[tuple[int, int]], **tolerance: float) -> None:
        """Sequence i has lens[i] = (cached, new) tokens, decodes first; outputs of all layers must agree."""
        batch = self._batch(lens)
        on_device = replace(
            batch,
            block_tables=batch.block_tables.to(self.shape.device),
            slots=batch.slots.to(self.shape.device),
        )
        self._compare(self.backend.plan(on_device), self.oracle.plan(batch), len(batch.slots), **tolerance)

    def decode(self, cached: list[int], padding: int, max_context: int, **tolerance: float) -> None:
        """The same through `plan_decode`, with `padding` rows that write to the spare block."""
        batch = self._batch([(length, 1) for length in cached])
        spare = torch.full((padding, batch.block_tables.shape[1]), self.num_blocks, dtype=torch.int32)
        device = self.shape.device
        decode_batch = DecodeBatch(
            block_tables=torch.cat([batch.block_tables, spare]).to(device),
            context_lens=torch.tensor(
                [*batch.context_lens] + [1] * padding, dtype=torch.int32, device=device
            ),
            slots=torch.cat([batch.slots, spare[:, 0].long() * self.shape.block_size]).to(device),
            max_context=max_context,
        )
        plan = self.backend.plan_decode(decode_batch)
        self._compare(plan, self.oracle.plan(batch), len(cached), padding, **tolerance)

    def mixed(self, lens: list[tuple[int, int]], room: int, num_rows: int, **tolerance: float) -> None:
        """A step like `step`'s through `plan_chunks`: room for `room` decodes, padded to `num_rows` rows."""
        batch = self._batch(lens)
        n, padding = batch.num_decodes, num_rows - len(batch.slots)
        query_lens, context_lens = batch.query_lens[n:], batch.context_lens[n:]
        unused_chunks, max_blocks = 2, batch.block_tables.shape[1]
        slots = torch.cat([batch.slots, torch.full((padding,), self.num_blocks * self.shape.block_size)])
        decodes = DecodeBatch(
            block_tables=self._padded(batch.block_tables[:n], room),
            context_lens=self._padded(torch.tensor(batch.context_lens[:n]), room),
            slots=slots[:room].to(self.shape.device),
            max_context=max_blocks * self.shape.block_size,
        )
        num_chunks = len(query_lens) + unused_chunks
        schedule = self.backend.chunk_schedule(query_lens, context_lens, num_rows, num_chunks)
        starts = torch.tensor([n, *query_lens] + [0] * unused_chunks).cumsum(0)
        chunks = ChunkBatch(
            block_tables=self._padded(batch.block_tables[n:], num_chunks),
            context_lens=self._padded(torch.tensor(context_lens), num_chunks),
            query_starts=starts.int().to(self.shape.device),
            slots=slots.to(self.shape.device),
            schedule=torch.from_numpy(schedule).to(self.shape.device),
        )
        plan = self.backend.plan_chunks(chunks, decodes)
        self._compare(plan, self.oracle.plan(batch), len(batch.slots), padding, **tolerance)

    def _padded(self, rows: torch.Tensor, num_rows: int) -> torch.Tensor:
        """int32 on the device, with rows of zeros at the end."""
        padding = rows.new_zeros(num_rows - len(rows), *rows.shape[1:])
        return torch.cat([rows, padding]).int().to(self.shape.device)

    def _batch(self, lens: list[tuple[int, int]]) -> AttentionBatch:
        size = self.shape.block_size
        longest = max(map(len, self.tables))
        slots = [
            table[p // size] * size + p % size
            for table, (cached, new) in zip(self.tables, lens, strict=True)
            for p in range(cached, cached + new)
        ]
        return AttentionBatch(
            num_decodes=sum(new == 1 and cached > 0 for cached, new in lens),
            query_lens=[new for _, new in lens],
            context_lens=[cached + new for cached, new in lens],
            block_tables=torch.tensor([t + [0] * (longest - len(t)) for t in self.tables], dtype=torch.int32),
            slots=torch.tensor(slots),
        )

    def _compare(
        self, plan: Any, expected_plan: Any, rows: int, padding: int = 0, **tolerance: float
    ) -> None:
        s = self.shape
        heads = (s.num_heads, s.num_kv_heads, s.num_kv_heads)
        for layer in range(s.num_layers):
            # Side by side in one tensor, as a projection leaves them: rows are not contiguous.
            qkv = torch.randn(rows + padding, sum(heads), s.head_dim, generator=self.generator).to(s.dtype)
            out = self.backend.forward(plan, layer, *qkv.to(s.device).split_with_sizes(heads, dim=1))
            assert out.shape == (rows + padding, s.num_heads * s.head_dim)
            assert out[:rows].isfinite().all()
            expected = self.oracle.forward(
                expected_plan, layer, *qkv[:rows].float().split_with_sizes(heads, dim=1)
            )
            torch.testing.assert_close(out[:rows].float().cpu(), expected, **tolerance)
