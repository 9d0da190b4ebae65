"""ggml's block formats unpacked with torch, so that they run on any device.

Every function takes blocks [N, block_bytes] uint8 and returns their weights [N, block_size] fp32, bit for bit
as ggml does (`dequantize_row_*` in ggml-quants.c). A scale `d` or minimum `m` is fp16.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from model.weights.gguf_header import BlockType

# Weights unpacked at once: enough to amortise an operation, few beside a model.
CHUNK_WEIGHTS = 2**19
LOW_NIBBLES = 0x0F0F_0F0F_0F0F_0F0F


def dequantize(data: torch.Tensor, block_type: BlockType, out: torch.Tensor) -> torch.Tensor:
    """Unpack `data`, uint8 [nbytes], into the contiguous floating-point tensor `out` of any dtype."""
    blocks = data.view(-1, block_type.block_bytes)
    rows = out.view(-1, block_type.block_size)
    unpack, chunk = UNPACKERS[block_type.name], CHUNK_WEIGHTS // block_type.block_size
    for source, target in zip(blocks.split(chunk), rows.split(chunk), strict=True):
        target.copy_(unpack(source))
    return out


def _half(blocks: torch.Tensor, start: int) -> torch.Tensor:
    """The fp16 value at the even byte `start` of each block, as fp32 [N, 1]."""
    return blocks.view(torch.float16)[:, start // 2].float().unsqueeze(1)


def _nibbles(packed: torch.Tensor, group: int) -> torch.Tensor:
    """4-bit values [N, 2 * bytes]: for each `group` bytes first all low halves, then all high ones."""
    # Eight bytes at a time, which is twice as fast on a CPU as one at a time.
    aligned = packed.clone(memory_format=torch.contiguous_format)
    words = aligned.view(torch.int64).unflatten(1, (-1, group // 8))
    halves = torch.stack((words & LOW_NIBBLES, words >> 4 & LOW_NIBBLES), dim=2)
    return halves.flatten(1).view(torch.uint8)


def _bits(packed: torch.Tensor) -> torch.Tensor:
    """Single bits [N, 8 * bytes], lowest bit of each byte first."""
    return (packed.unsqueeze(2) >> _shifts(packed, 1) & 1).flatten(1)


def _shifts(like: torch.Tensor, bits: int) -> torch.Tensor:
    return torch.arange(0, 8, bits, dtype=torch.uint8, device=like.device)


def _q4_0(blocks: torch.Tensor) -> torch.Tensor:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:], 16).float() - 8)


def _q4_1(blocks: torch.Tensor) -> torch.Tensor:
    return _nibbles(blocks[:, 4:], 16).float().mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q5_0(blocks: torch.Tensor) -> torch.Tensor:
    quants = _nibbles(blocks[:, 6:], 16) | _bits(blocks[:, 2:6]) << 4
    return _half(blocks, 0) * (quants.float() - 16)


def _q5_1(blocks: torch.Tensor) -> torch.Tensor:
    quants = _nibbles(blocks[:, 8:], 16) | _bits(blocks[:, 4:8]) << 4
    return quants.float().mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q8_0(blocks: torch.Tensor) -> torch.Tensor:
    return _half(blocks, 0) * blocks[:, 2:].view(torch.int8)


def _scales_and_minimums(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and minimum of the 8 sub-blocks of a Q4_K or Q5_K super-block, fp32 [N, 8, 1] each.

    Both are 6-bit numbers, packed in 12 bytes. Bytes 0-3 and 4-7 hold the scales and minimums of the first
    four sub-blocks. Those of the last four have their lower halves in bytes 8-11 (scale in the low nibble,
    minimum in the high one) and their upper two bits on top of bytes 0-3 and 4-7.
    """
    low, high, nibbles = blocks[:, 4:16].split(4, dim=1)
    scales = torch.cat((low & 63, nibbles & 15 | low >> 2 & 48), dim=1)
    minimums = torch.cat((high & 63, nibbles >> 4 | high >> 2 & 48), dim=1)
    return (_half(blocks, 0) * scales).unsqueeze(2), (_half(blocks, 2) * minimums).unsqueeze(2)


def _q4_k(blocks: torch.Tensor) -> torch.Tensor:
    scale, minimum = _scales_and_minimums(blocks)
    quants: torch.Tensor = _nibbles(blocks[:, 16:], 32).unflatten(1, (8, 32))
    return quants.float().mul_(scale).sub_(minimum).flatten(1)


def _q5_k(blocks: torch.Tensor) -> torch.Tensor:
    scale, minimum = _scales_and_minimums(blocks)
    # Bit i of byte j is the fifth bit of weight j in sub-block i.
    high = blocks[:, None, 16:48] >> _shifts(blocks, 1)[:, None] & 1
    quants: torch.Tensor = _nibbles(blocks[:, 48:], 32).unflatten(1, (8, 32)) | high << 4
    return quants.float().mul_(scale).sub_(minimum).flatten(1)


def _q6_k(blocks: torch.Tensor) -> torch.Tensor:
    low = _nibbles(blocks[:, :128], 64)
    high = blocks[:, 128:192].unflatten(1, (2, 1, 32)) >> _shifts(blocks, 2)[:, None] & 3
    quants = low | high.flatten(1) << 4
    scales = _half(blocks, 208) * blocks[:, 192:208].view(torch.int8)  # one for 16 weights
    centred: torch.Tensor = (quants.float() - 32).unflatten(1, (16, 16))
    return centred.mul_(scales.unsqueeze(2)).flatten(1)


UNPACKERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "F32": lambda blocks: blocks.view(torch.float32),
    "F16": lambda blocks: blocks.view(torch.float16),
    "BF16": lambda blocks: blocks.view(torch.bfloat16),
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
