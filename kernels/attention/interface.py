"""The one interface of all attention backends: plan once per step, forward once per layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch


@dataclass(slots=True)
class AttentionBatch:
    """The token rows of one step, over a paged KV cache.

    Flat rows come sequence by sequence: first `num_decodes` sequences with one row each, then the prompt
    chunks. Every sequence attends causally to its own `context_lens[i]` positions, of which the last
    `query_lens[i]` are its rows here; the rows' K and V are written to `slots` before attending.
    """

    num_decodes: int
    query_lens: list[int]  # [S] on the host, 1 for each decode
    context_lens: list[int]  # [S] on the host, this step's rows included
    block_tables: torch.Tensor  # [S, max_blocks] int32 on the device; entries past a sequence's end are 0
    slots: torch.Tensor  # [T] int64 on the device: block id * block_size + offset of each row


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What a backend has to know of the model, for one tensor-parallel rank."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    block_size: int
    dtype: torch.dtype
    device: torch.device
    sliding_window: int | None = None  # a row sees that many positions, its own included; None: all


@dataclass(slots=True)
class DecodeBatch:
    """One new token for each of M sequences, described by device tensors alone.

    Nothing here is read by the host, so that a CUDA graph can capture what is done with it and be replayed
    after the tensors' contents have changed.
    """

    block_tables: torch.Tensor  # [M, max_blocks] int32
    context_lens: torch.Tensor  # [M] int32, the new token included
    slots: torch.Tensor  # [M] int64, where the new token's K and V go
    max_context: int  # no context is longer; what depends on it (split counts) is fixed at capture


@dataclass(slots=True)
class ChunkBatch:
    """Prompt rows of up to C - 1 sequences, padded, described by device tensors alone; see `DecodeBatch`.

    Chunks that are not used, the last one always, have no rows and no context. Rows before the first chunk's
    are decodes, see `GraphAttentionBackend.plan_chunks`.
    """

    block_tables: torch.Tensor  # [C, max_blocks] int32
    context_lens: torch.Tensor  # [C] int32, this step's rows included
    query_starts: torch.Tensor  # [C + 1] int32: chunk c is rows query_starts[c] to query_starts[c + 1]
    slots: torch.Tensor  # [T] int64, of decodes too; those of padding rows belong to no sequence
    schedule: torch.Tensor  # int32, made by `chunk_schedule`


@runtime_checkable
class GraphAttentionBackend(Protocol):
    """A backend whose work can be captured in CUDA graphs; `forward` takes the plans as usual."""

    def plan_decode(self, batch: DecodeBatch) -> Any:
        """Like `AttentionBackend.plan`, without reading anything on the host."""
        ...

    def plan_chunks(self, chunks: ChunkBatch, decodes: DecodeBatch | None = None) -> Any:
        """Likewise, for prompt chunks and the decodes before them: T rows in one pass.

        Decode i is row i, unless its context is 0: then it is not there, and the row may be a chunk's.
        """
        ...

    def chunk_schedule_size(self, num_rows: int, num_chunks: int) -> int:
        """Length of the schedule of any `ChunkBatch` with T = num_rows and C = num_chunks."""
        ...

    def chunk_schedule(
        self, query_lens: Sequence[int], context_lens: Sequence[int], num_rows: int, num_chunks: int
    ) -> np.ndarray:
        """The host's part of planning chunks: an int32 array of that size, which the kernels read."""
        ...


class AttentionBackend(Protocol):
    """What a decoder needs of attention: memory once, a plan for each step, a call for each layer."""

    name: str
    shape: AttentionShape

    def allocate(self, num_blocks: int) -> None:
        """Make the KV pool: zeroed, `num_blocks` blocks of `block_size` slots for every layer."""
        ...

    def plan(self, batch: AttentionBatch) -> Any:
        """Prepare one step; the result is passed to `forward` of every layer."""
        ...

    def forward(
        self, plan: Any, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """Write k and v into the cache, then attend.

        q [T, num_heads, head_dim]; k and v [T, num_kv_heads, head_dim]; returns [T, num_heads * head_dim].
        Rotary embedding has been applied already.
        """
        ...


def kv_bytes_per_block(shape: AttentionShape) -> int:
    """Bytes of one block over all layers, K and V."""
    per_slot = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * shape.dtype.itemsize
    return per_slot * shape.block_size
