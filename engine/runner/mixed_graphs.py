"""Steps with prompt chunks by replaying CUDA graphs: chunks alone, or decodes and chunks in one pass.

One pass for both reads the weights once, and a small chunk beside decodes costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import numpy as np
import torch

from engine.plan import ScheduledSequence, StepPlan
from engine.runner.capture import Capture
from engine.runner.decode_tables import DecodeTables
from engine.runner.device_fields import Uploads
from engine.runner.rows import Rows
from engine.runner.upload import upload
from kernels.attention.interface import ChunkBatch, GraphAttentionBackend
from model.decoder import Decoder

# Close together, since padded rows of a product cost what the others do.
_ROWS = (
    *(32, 64, 128, 192, 256, 384, 512, 640, 768, 896, 1024, 1152, 1280, 1408, 1536, 1792, 2048, 2304),
    *(2816, 3328, 4096, 5120, 6144, 7168, 8192),
)
# Where a step's products take more operations, they keep the device busy for longer than its launching takes.
_MAX_OPERATIONS = 4e13
# Room for decodes in a graph. Room that is not used costs little: attention skips it, the head is small.
_DECODES = (16, 128)
_CHUNK_ROWS = 32  # on average at least, or there is no room for so many chunks
_OF_A_DECODE = -1  # token id of a row whose token is on the device

_Packed = TypeVar("_Packed", np.ndarray, torch.Tensor)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Sizes and order of the int32 fields that one graph reads, packed in one buffer."""

    num_rows: int  # T
    num_decodes: int  # M, of which any number is used: the first rows
    num_chunks: int  # C, the last one always unused
    max_blocks: int
    schedule_size: int

    @property
    def _sizes(self) -> tuple[int, ...]:
        """Token ids, positions, slots, tables, context lens, query starts, last rows, schedule."""
        rows, chunks = self.num_rows, self.num_chunks
        return rows, rows, rows, chunks * self.max_blocks, chunks, chunks + 1, chunks, self.schedule_size

    def split(self, packed: _Packed) -> list[_Packed]:
        """The fields, in the order of their sizes."""
        return [packed[begin:end] for begin, end in pairwise(accumulate(self._sizes, initial=0))]

    @property
    def size(self) -> int:
        return sum(self._sizes)


@dataclass(frozen=True, slots=True)
class _MixedGraph:
    layout: _Layout
    packed: torch.Tensor  # int32, what the graph reads of the chunks
    forward: Callable[[], None]
    logits: torch.Tensor  # [M + C, vocab_size], of the decodes and of each chunk's last row


class MixedGraphs:
    """Graphs by (rows, room for decodes), padded, for any mixture of chunks that are not all tiny."""

    def __init__(
        self,
        decoder: Decoder,
        attention: GraphAttentionBackend,
        rows: Rows,
        tables: DecodeTables,
        block_size: int,
        max_rows: int,
        capture: Capture,
    ) -> None:
        self._decoder = decoder
        self._attention = attention
        self._rows = rows
        self._tables = tables
        self._block_size = block_size
        self._capture = capture
        operations = 2 * sum(parameter.numel() for parameter in decoder.model.layers.parameters())
        max_rows = min(max_rows, max(_ROWS[0], int(_MAX_OPERATIONS / operations)))
        self._sizes = [size for size in _ROWS if size <= max_rows]
        self._decode_rooms = [room for room in _DECODES if room < rows.spare] + [rows.spare]
        self._graphs: dict[tuple[int, int], _MixedGraph] = {}

    @property
    def keys(self) -> list[tuple[int, int]]:
        """(rows, room for decodes) of every graph that a step may want, largest first."""
        return [
            (size, room)
            for size in reversed(self._sizes)
            for room in (0, *self._decode_rooms)
            if room <= size
        ]

    def clear(self) -> None:
        """Free all graphs."""
        self._graphs.clear()

    @property
    def padding(self) -> dict[str, Any]:
        """As `key_of` rounds."""
        return {
            "sizes": self._sizes,
            "decode_rooms": self._decode_rooms,
            "rows_per_chunk": _CHUNK_ROWS,
        }

    def key_of(self, plan: StepPlan) -> tuple[int, int] | None:
        """The smallest graph that holds the step, which has chunks; None if there is none."""
        num_decodes = len(plan.decodes)
        room = next(room for room in (0, *self._decode_rooms) if room >= num_decodes)
        num_rows = max(plan.num_tokens, room, len(plan.chunks) * _CHUNK_ROWS)
        return next(((size, room) for size in self._sizes if size >= num_rows), None)

    def run(self, plan: StepPlan, key: tuple[int, int], uploads: Uploads) -> torch.Tensor:
        """Logits [R, vocab_size] fp32 of `plan.sampled`, by the graph of `key_of(plan)`.

        The step's decodes have to be `tables.batch`.
        """
        graph = self.graph(*key)
        uploads.upload(self._pack(plan, graph.layout), graph.packed)
        graph.forward()
        first = graph.layout.num_decodes
        at = np.array([first + i for i, chunk in enumerate(plan.chunks) if chunk.samples], dtype=np.int64)
        at = np.append(np.arange(len(plan.decodes)), at)
        return graph.logits[upload(at, self._rows.device)].float()

    def graph(self, num_rows: int, num_decodes: int) -> _MixedGraph:
        """The graph of this key, captured when it is first asked for."""
        key = (num_rows, num_decodes)
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graphs[key] = self._capture_graph(num_rows, num_decodes)
        return graph

    @torch.inference_mode()
    def _capture_graph(self, num_rows: int, num_decodes: int) -> _MixedGraph:
        num_chunks = num_rows // _CHUNK_ROWS + 1
        schedule_size = self._attention.chunk_schedule_size(num_rows, num_chunks)
        max_blocks = self._rows.block_tables.shape[1]
        layout = _Layout(num_rows, num_decodes, num_chunks, max_blocks, schedule_size)
        packed = upload(self._pack(StepPlan(0), layout), self._rows.device).clone()
        forward, logits = self._capture(lambda: self._forward(layout, packed))
        return _MixedGraph(layout, packed, forward, logits)

    def _forward(self, layout: _Layout, packed: torch.Tensor) -> torch.Tensor:
        """Logits [M + C, vocab_size] of T rows: decodes in the first M or fewer, then the chunks."""
        token_ids, positions, slots, tables, context_lens, starts, last_rows, schedule = layout.split(packed)
        token_ids, positions, slots, last_rows = (
            field.long() for field in (token_ids, positions, slots, last_rows)
        )
        room = layout.num_decodes
        decodes = None
        if room:
            is_decode = token_ids[:room] == _OF_A_DECODE  # [M], else the row is a chunk's or padding
            rows = self._tables.batch[:room].where(is_decode, self._rows.spare)
            gathered, decodes = self._tables.gather(rows, layout.max_blocks * self._block_size)
            decodes.context_lens *= is_decode
            self._tables.lengths.index_add_(0, rows, is_decode.long())
            token_ids[:room] = torch.where(is_decode, gathered.token_ids, token_ids[:room])
            positions[:room] = torch.where(is_decode, gathered.positions, positions[:room])
            slots[:room] = torch.where(is_decode, gathered.slots, slots[:room])
            first_rows = torch.arange(room, device=packed.device)
            last_rows = torch.cat([first_rows, last_rows])
        chunks = ChunkBatch(
            block_tables=tables.view(layout.num_chunks, -1),
            context_lens=context_lens,
            query_starts=starts,
            slots=slots,
            schedule=schedule,
        )
        plan = self._attention.plan_chunks(chunks, decodes)
        return self._decoder.head(self._decoder(token_ids, positions, plan, last_rows))

    def _pack(self, plan: StepPlan, layout: _Layout) -> np.ndarray:
        """One int32 array with everything that the graph reads about the step's chunks."""
        packed = np.zeros(layout.size, dtype=np.int32)
        token_ids, positions, slots, tables, context_lens, starts, last_rows, schedule = layout.split(packed)
        slots[:] = self._tables.spare_slot
        tables = tables.reshape(layout.num_chunks, -1)
        end = len(plan.decodes)
        token_ids[:end] = _OF_A_DECODE
        starts[0] = end
        for i, chunk in enumerate(plan.chunks):
            begin, end = end, end + chunk.num_tokens
            stop = chunk.start + chunk.num_tokens
            token_ids[begin:end] = chunk.sequence.token_ids[chunk.start : stop]
            positions[begin:end], slots[begin:end] = self._places(chunk)
            num_blocks = -(-stop // self._block_size)
            tables[i, :num_blocks] = self._rows.block_tables[chunk.row][:num_blocks]
            context_lens[i] = stop
            starts[i + 1] = end
            last_rows[i] = end - 1
        starts[len(plan.chunks) + 1 :] = end
        schedule[:] = self._attention.chunk_schedule(
            [chunk.num_tokens for chunk in plan.chunks],
            [chunk.start + chunk.num_tokens for chunk in plan.chunks],
            layout.num_rows,
            layout.num_chunks,
        )
        return packed

    def _places(self, chunk: ScheduledSequence) -> tuple[np.ndarray, np.ndarray]:
        """Positions and slots of a chunk's rows."""
        positions = np.arange(chunk.start, chunk.start + chunk.num_tokens)
        blocks = self._rows.block_tables[chunk.row][positions // self._block_size]
        return positions, blocks * self._block_size + positions % self._block_size
