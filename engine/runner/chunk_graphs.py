"""Prompt chunks by replaying CUDA graphs: small steps are bound by the launching of their kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from engine.plan import ScheduledSequence
from engine.runner.captured import Capture
from engine.runner.rows import Rows
from engine.runner.upload import upload
from kernels.attention.interface import ChunkBatch, GraphAttentionBackend
from model.decoder import Decoder

# Larger steps keep the device busy for longer than their launching takes, and padding them would cost more.
_ROWS = (32, 64, 96, 128, 192, 256, 384, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048)
_MAX_CHUNKS = 32


@dataclass(frozen=True, slots=True)
class _Layout:
    """Sizes and order of the int32 fields that one graph reads, packed in one buffer."""

    num_rows: int  # T
    num_chunks: int  # C, the last one always unused
    max_blocks: int
    schedule_size: int

    def split(self, packed: torch.Tensor) -> list[torch.Tensor]:
        """Token ids, positions, slots, tables, context lens, query starts, last rows, schedule."""
        rows, chunks = self.num_rows, self.num_chunks
        tables = chunks * self.max_blocks
        return list(packed.split([rows, rows, rows, tables, chunks, chunks + 1, chunks, self.schedule_size]))

    @property
    def size(self) -> int:
        per_chunk = self.max_blocks + 3
        return 3 * self.num_rows + self.num_chunks * per_chunk + 1 + self.schedule_size


@dataclass(frozen=True, slots=True)
class _ChunkGraph:
    layout: _Layout
    packed: torch.Tensor  # int32, what the graph reads
    forward: Callable[[], None]
    logits: torch.Tensor  # [C, vocab_size] fp32, of each chunk's last row


class ChunkGraphs:
    """A graph for each of several numbers of rows, padded; any mixture of up to `_MAX_CHUNKS` - 1 chunks."""

    def __init__(
        self,
        decoder: Decoder,
        attention: GraphAttentionBackend,
        rows: Rows,
        block_size: int,
        max_rows: int,
        spare_block: int,
        capture: Capture,
    ) -> None:
        self._decoder = decoder
        self._attention = attention
        self._rows = rows
        self._block_size = block_size
        self._spare_slot = spare_block * block_size
        self._capture = capture
        self.sizes = [size for size in _ROWS if size <= max_rows]
        self._graphs: dict[int, _ChunkGraph] = {}

    def takes(self, chunks: list[ScheduledSequence]) -> bool:
        """Prompt logprobs need the logits of every row, which the graphs leave out."""
        num_rows = sum(chunk.num_tokens for chunk in chunks)
        fits = len(chunks) < _MAX_CHUNKS and bool(self.sizes) and num_rows <= self.sizes[-1]
        return fits and all(chunk.sequence.params.prompt_logprobs is None for chunk in chunks)

    def run(self, chunks: list[ScheduledSequence]) -> torch.Tensor:
        """Logits [len(chunks), vocab_size] of the chunks' last rows; valid until the next run."""
        num_rows = sum(chunk.num_tokens for chunk in chunks)
        graph = self.graph(next(size for size in self.sizes if size >= num_rows))
        packed = self._pack(chunks, graph.layout)
        graph.packed.copy_(upload(packed, self._rows.device), non_blocking=True)
        graph.forward()
        return graph.logits[: len(chunks)]

    @torch.inference_mode()
    def graph(self, size: int) -> _ChunkGraph:
        """The graph for up to `size` rows, captured when it is first asked for."""
        if size not in self._graphs:
            num_chunks = min(size, _MAX_CHUNKS - 1) + 1
            schedule_size = self._attention.chunk_schedule_size(size, num_chunks)
            layout = _Layout(size, num_chunks, self._rows.block_tables.shape[1], schedule_size)
            packed = upload(self._pack([], layout), self._rows.device).clone()
            forward, logits = self._capture(lambda: self._forward(layout, packed))
            self._graphs[size] = _ChunkGraph(layout, packed, forward, logits)
        return self._graphs[size]

    def _forward(self, layout: _Layout, packed: torch.Tensor) -> torch.Tensor:
        token_ids, positions, slots, tables, context_lens, starts, last_rows, schedule = layout.split(packed)
        batch = ChunkBatch(
            block_tables=tables.view(layout.num_chunks, -1),
            context_lens=context_lens,
            query_starts=starts,
            slots=slots.long(),
            schedule=schedule,
        )
        plan = self._attention.plan_chunks(batch)
        hidden = self._decoder(token_ids.long(), positions.long(), plan)
        return self._decoder.logits(hidden[last_rows.long()])

    def _pack(self, chunks: list[ScheduledSequence], layout: _Layout) -> np.ndarray:
        """One int32 array with everything that the graph reads about these chunks."""
        packed = torch.zeros(layout.size, dtype=torch.int32)
        fields = [field.numpy() for field in layout.split(packed)]
        token_ids, positions, slots, tables, context_lens, starts, last_rows, schedule = fields
        slots[:] = self._spare_slot
        tables = tables.reshape(layout.num_chunks, -1)
        end = 0
        for i, chunk in enumerate(chunks):
            begin, end = end, end + chunk.num_tokens
            stop = chunk.start + chunk.num_tokens
            token_ids[begin:end] = chunk.sequence.token_ids[chunk.start : stop]
            chunk_positions = np.arange(chunk.start, stop)
            table = self._rows.block_tables[chunk.row]
            positions[begin:end] = chunk_positions
            slots[begin:end] = table[chunk_positions // self._block_size] * self._block_size
            slots[begin:end] += chunk_positions % self._block_size
            num_blocks = -(-stop // self._block_size)
            tables[i, :num_blocks] = table[:num_blocks]
            context_lens[i] = stop
            starts[i + 1] = end
            last_rows[i] = end - 1
        starts[len(chunks) + 1 :] = end
        schedule[:] = self._attention.chunk_schedule(
            [chunk.num_tokens for chunk in chunks],
            [chunk.start + chunk.num_tokens for chunk in chunks],
            layout.num_rows,
            layout.num_chunks,
        )
        array: np.ndarray = packed.numpy()
        return array
