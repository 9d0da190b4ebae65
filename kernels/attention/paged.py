"""What the GPU backends share: the KV pool, and a step's lengths and tiles on the device.

K and V of a layer are [num_blocks + 1, block_size, kv_heads, head_dim], zeroed: the layout that flash-attn
pages have. Slot s is row s of [slots, kv_heads, head_dim]. The block past the pool, number `num_blocks`,
belongs to no sequence: the rows that pad a captured batch write there, and read one position of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from kernels.attention.interface import AttentionBatch, AttentionShape, ChunkBatch, DecodeBatch


@dataclass(frozen=True, slots=True)
class Decodes:
    """M sequences with one new row each. All tensors on the device, lengths with the new row."""

    block_tables: torch.Tensor  # [M, any] int32
    context_lens: torch.Tensor  # [M] int32
    slots: torch.Tensor  # [M] int64
    max_context: int

    def __len__(self) -> int:
        return len(self.slots)


@dataclass(frozen=True, slots=True)
class Chunks:
    """C sequences with several new rows each, which are the last T rows of the step."""

    block_tables: torch.Tensor  # [C, any] int32
    context_lens: torch.Tensor  # [C] int32
    query_starts: torch.Tensor  # [C + 1] int32, counted from the first chunk's first row
    slots: torch.Tensor  # [T] int64
    query_lens: list[int]  # on the host; in a captured graph, bounds
    max_context: int


class LayerCache(NamedTuple):
    keys: torch.Tensor  # [num_blocks + 1, block_size, kv_heads, head_dim]
    values: torch.Tensor


def allocate_caches(shape: AttentionShape, num_blocks: int) -> list[LayerCache]:
    """One for each layer, zeroed, with the spare block past `num_blocks`."""
    size = (num_blocks + 1, shape.block_size, shape.num_kv_heads, shape.head_dim)

    def zeros() -> torch.Tensor:
        return torch.zeros(size, dtype=shape.dtype, device=shape.device)

    return [LayerCache(zeros(), zeros()) for _ in range(shape.num_layers)]


class Scratch:
    """fp32 memory that the layers of a step share. Kept for good: captured graphs hold its address."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: list[torch.Tensor] = [torch.empty(0, dtype=torch.float32, device=device)]

    def at_least(self, size: int) -> torch.Tensor:
        largest = self._buffers[-1]
        if len(largest) < size:
            largest = torch.empty(1 << (size - 1).bit_length(), dtype=torch.float32, device=self._device)
            self._buffers.append(largest)
        return largest


def upload_int32(columns: Sequence[Sequence[int]], device: torch.device) -> list[torch.Tensor]:
    """Each column as a device tensor, all in one asynchronous copy."""
    packed = torch.from_numpy(np.concatenate([np.asarray(column, dtype=np.int32) for column in columns]))
    if device.type == "cuda":
        packed = packed.pin_memory().to(device, non_blocking=True)
    return list(packed.split([len(column) for column in columns]))


def split_batch(
    batch: AttentionBatch, device: torch.device, extra: Sequence[Sequence[int]]
) -> tuple[Decodes | None, Chunks | None, list[torch.Tensor]]:
    """The decodes and the chunks of a step, and the columns of `extra` uploaded with their lengths."""
    n = batch.num_decodes
    query_lens, context_lens = batch.query_lens[n:], batch.context_lens
    starts = np.cumsum([0, *query_lens]).tolist()
    lens, query_starts, *uploaded = upload_int32([context_lens, starts, *extra], device)
    decodes = chunks = None
    if n:
        decodes = Decodes(batch.block_tables[:n], lens[:n], batch.slots[:n], max(context_lens[:n]))
    if query_lens:
        chunks = Chunks(
            batch.block_tables[n:], lens[n:], query_starts, batch.slots[n:], query_lens, max(context_lens[n:])
        )
    return decodes, chunks, uploaded


def captured_decodes(batch: DecodeBatch) -> Decodes:
    return Decodes(batch.block_tables, batch.context_lens, batch.slots, batch.max_context)


def captured_chunks(batch: ChunkBatch, max_context: int) -> Chunks:
    return Chunks(
        batch.block_tables,
        batch.context_lens,
        batch.query_starts,
        batch.slots,
        query_lens=[len(batch.slots)],  # no chunk has more rows
        max_context=max_context,
    )
