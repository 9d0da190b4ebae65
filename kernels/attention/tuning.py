"""Which kernel and tiles attention takes: data from kernels/tuned/attention.json, by device and size."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from kernels.attention.interface import AttentionShape
from kernels.gpu import gpu_of

if TYPE_CHECKING:
    from kernels.triton.attention_decode import DecodeConfig
    from kernels.triton.attention_prefill import PrefillConfig

_TABLE = Path(__file__).parent.parent / "tuned" / "attention.json"
# Keys and values of one tile, in bytes: past this, several stages no longer fit shared memory.
_MAX_TILE_BYTES = 128 * 128 * 2
_MAX_SPLITS = 64


@dataclass(frozen=True, slots=True)
class AttentionTuning:
    """One device's entry.

    `decode` rows hold for up to `max_pairs` (row, KV head) pairs, the last for any number. A decode is split
    until `programs_per_sm` programs run on each multiprocessor, and so that no split has to read more than
    `max_split_keys` keys. `prefill` is by head size padded to a power of two. `flash_decode_pairs`: from so
    many pairs on, flash-attn decodes, where it is installed.
    """

    decode: list[dict[str, Any]]
    prefill: dict[str, dict[str, int]]
    programs_per_sm: int
    max_split_keys: int
    flash_decode_pairs: int | None

    def decode_config(
        self, shape: AttentionShape, num_rows: int, max_context: int, num_sms: int
    ) -> DecodeConfig:
        from kernels.triton.attention_decode import DecodeConfig

        pairs = num_rows * shape.num_kv_heads
        row = next((row for row in self.decode if pairs <= row["max_pairs"]), self.decode[-1])
        block_keys = min(row["block_keys"], _largest_tile(shape))
        visible = min(max_context, (shape.sliding_window or max_context) + block_keys)
        tiles = -(-visible // block_keys)
        to_fill = self.programs_per_sm * num_sms // pairs
        splits = max(1, to_fill, -(-visible // self.max_split_keys))
        # Without a need to fill the device, a short context is better left whole.
        min_split_tiles = 1 if to_fill > 1 else self.max_split_keys // block_keys
        return DecodeConfig(
            block_keys=block_keys,
            num_warps=row["num_warps"],
            num_stages=row["num_stages"],
            num_splits=min(splits, tiles, _MAX_SPLITS),
            min_split_tiles=min_split_tiles,
            trigger=row["trigger"],
        )

    def prefill_config(self, shape: AttentionShape) -> PrefillConfig:
        from kernels.triton.attention_prefill import PrefillConfig

        sizes = self.prefill[str(max(64, 1 << (shape.head_dim - 1).bit_length()))]
        group = shape.num_heads // shape.num_kv_heads
        block_rows = max(sizes["block_rows"], 1 << (group - 1).bit_length())
        block_keys = min(sizes["block_keys"], _largest_tile(shape))
        return PrefillConfig(block_rows, block_keys, sizes["num_warps"], sizes["num_stages"])


def _largest_tile(shape: AttentionShape) -> int:
    """Keys of a tile whose rows are padded to a power of two of elements; 16 at least."""
    row_bytes = (1 << (shape.head_dim - 1).bit_length()) * shape.dtype.itemsize
    return max(16, _MAX_TILE_BYTES // row_bytes)


@lru_cache
def attention_tuning(device: torch.device) -> AttentionTuning:
    """The entry of this device's name, else `default`."""
    entries = json.loads(_TABLE.read_text())
    gpu = gpu_of(device)
    return AttentionTuning(**{**entries["default"], **entries.get(gpu.name if gpu else "default", {})})


@lru_cache
def num_multiprocessors(device: torch.device) -> int:
    """Of the device; 1 for a CPU, where Triton's interpreter runs programs one by one."""
    gpu = gpu_of(device)
    return 1 if gpu is None else gpu.num_sms
