"""What a GGUF file, or one in parts, says of itself: metadata and the table of tensors. Needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model.config import ModelError
from model.weights.gguf_header import GgufTensor, read_gguf_header
from model.weights.gguf_parts import gguf_parts

ROPE_FACTORS = "rope_freqs.weight"
"""A tensor that stands for Llama 3's rotary scaling, and is no weight of the decoder."""


class GgufIndex:
    """`metadata` by key; `tensors` by ggml's names, in file order. Raises ModelError if it is unreadable.

    `path` is the first part of a file in parts; the others stand beside it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.metadata: dict[str, Any] = read_gguf_header(self.path).metadata
        self.tensors: dict[str, GgufTensor] = {}
        self.part_of: dict[str, Path] = {}  # by tensor: the file that holds it
        for part in gguf_parts(self.path, self.metadata):
            tensors = read_gguf_header(part).tensors
            self.tensors |= tensors
            self.part_of |= dict.fromkeys(tensors, part)
        expected = self.metadata.get("split.tensors.count", len(self.tensors))
        if len(self.tensors) != expected:
            raise ModelError(f"{self.path}: its parts hold {len(self.tensors)} tensors, not {expected}")
