"""How the kernels of a small-batch decode step are cut: data types, the tuned table and its defaults."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

TUNED_FILE = Path(__file__).parents[2] / "tuned" / "small_batch.json"
# Buffers for partial results are made for so many:
MAX_SPLITS = 8  # of a product's inner dimension
MAX_ROW_SPLITS = 256  # rows times splits of their contexts
_MAX_CONTEXT_SPLITS = 64

_ROWS_BY_DEFAULT = 16
_STREAMING_MULTIPROCESSORS = 132  # of an H200; the defaults only need its order of magnitude


@dataclass(frozen=True, slots=True)
class LinearTile:
    """A product with a weight [N, K]. `gemv` runs on CUDA cores for 1 or 2 rows, `skinny` on tensor cores."""

    kernel: Literal["gemv", "skinny"]
    block_n: int  # weight rows of a program
    block_k: int
    num_warps: int
    trigger: Literal["none", "early", "late"] = "late"
    num_stages: int = 1  # skinny: tiles in flight
    splits: int = 1  # skinny, adding to the residual: programs that share a product's inner dimension
    reduce: Literal["partials", "atomic"] = "partials"  # how splits are summed; atomic: in no fixed order


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """`dot`: tensor cores, any context. `single_tile`: CUDA cores, a split is one tile of `block_keys`."""

    kernel: Literal["dot", "single_tile"]
    block_keys: int
    splits: int
    num_warps: int = 4
    num_stages: int = 2
    trigger: Literal["none", "early", "late"] = "early"
    combine: Literal["kernel", "projection"] = "kernel"  # projection: of o, one row only


@dataclass(frozen=True, slots=True)
class StepTiles:
    """One decode step."""

    qkv: LinearTile
    attention: AttentionTile
    o: LinearTile
    gate_up: LinearTile
    down: LinearTile
    lm_head: LinearTile


@dataclass(frozen=True, slots=True)
class StepShape:
    """What the best tiles depend on, besides batch size and context."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


def step_tiles(device_name: str, shape: StepShape, num_rows: int, max_context: int) -> StepTiles:
    """The tuned tiles of this device and shape, or the defaults; fit for `num_rows` and `max_context`."""
    tiles = next((t for t in _tuned(device_name, shape) if num_rows <= t["max_rows"]), None)
    if tiles is None:
        return default_tiles(shape, num_rows, max_context)
    linear = {kind: LinearTile(**tiles[kind]) for kind in ("qkv", "o", "gate_up", "down", "lm_head")}
    return StepTiles(attention=_tuned_attention(tiles["attention"], num_rows, max_context), **linear)


def most_rows(device_name: str, shape: StepShape) -> int:
    """Up to so many rows the step is known, or believed, to beat the generic one."""
    return max((tiles["max_rows"] for tiles in _tuned(device_name, shape)), default=_ROWS_BY_DEFAULT)


@lru_cache
def _tuned(device_name: str, shape: StepShape) -> list[dict[str, Any]]:
    """By rising `max_rows`; empty if nothing is known of this device with this shape."""
    for entry in json.loads(TUNED_FILE.read_text()):
        if entry["device"] == device_name and StepShape(**entry["shape"]) == shape:
            batches: list[dict[str, Any]] = entry["batches"]
            return batches
    return []


def _tuned_attention(candidates: list[dict[str, Any]], num_rows: int, max_context: int) -> AttentionTile:
    """The first entry made for contexts as long as this; beyond the last, the default."""
    for candidate in candidates:
        fields = dict(candidate)
        if max_context <= fields.pop("max_context"):
            return AttentionTile(**fields)
    return default_attention(num_rows, max_context)


def default_tiles(shape: StepShape, num_rows: int, max_context: int) -> StepTiles:
    """Tiles by rule, after what won on an H200: see `default_linear` and `default_attention`."""
    q_size = shape.num_heads * shape.head_dim
    qkv_size = q_size + 2 * shape.num_kv_heads * shape.head_dim
    hidden, intermediate = shape.hidden_size, shape.intermediate_size
    return StepTiles(
        qkv=default_linear(num_rows, qkv_size, hidden),
        attention=default_attention(num_rows, max_context),
        o=default_linear(num_rows, hidden, q_size, may_split=True),
        gate_up=default_linear(num_rows, intermediate, hidden),
        down=default_linear(num_rows, hidden, intermediate, may_split=True),
        lm_head=default_linear(num_rows, 1 << 17, hidden),
    )


def default_linear(num_rows: int, n: int, k: int, may_split: bool = False) -> LinearTile:
    """One row, or two of a narrow model: whole weight rows on CUDA cores, some 16 KiB of them in registers.
    Else tensor cores, with the inner dimension split until the programs fill the device about twice.
    """
    if num_rows == 1 or (num_rows == 2 and k <= 2048):
        block_k = min(_next_power_of_2(k), 1024 if k <= 1024 else 2048)
        block_n = 4 if block_k == 2048 or n < 16 * _STREAMING_MULTIPROCESSORS else 8
        one_wave = n <= block_n * 6 * _STREAMING_MULTIPROCESSORS
        return LinearTile("gemv", block_n, block_k, num_warps=8, trigger="early" if one_wave else "late")
    block_k = 128 if k % 128 == 0 else 64
    splits = _splits(n, k // block_k) if may_split else 1
    return LinearTile("skinny", 64, block_k, num_warps=4, trigger="late", num_stages=4, splits=splits)


def _splits(n: int, num_blocks: int) -> int:
    """The largest divisor of `num_blocks`, up to 8, that keeps the programs within about two waves."""
    most = max(1, min(8, 2 * _STREAMING_MULTIPROCESSORS * 64 // n))
    return max(d for d in range(1, most + 1) if num_blocks % d == 0)


def default_attention(num_rows: int, max_context: int) -> AttentionTile:
    """Tensor cores; as many splits as leave each 128 keys, within what fills the device with 8 KV heads."""
    most = max(1, min(_MAX_CONTEXT_SPLITS, 512 // (8 * num_rows)))
    splits = max(1, min(most, -(-max_context // 128)))
    if num_rows > 4:
        return AttentionTile("dot", block_keys=64, splits=splits, num_stages=3)
    return AttentionTile("dot", block_keys=128, splits=splits, num_stages=2)


def _next_power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length()
