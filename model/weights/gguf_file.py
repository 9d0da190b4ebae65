"""A GGUF file: its metadata, and its tensors unpacked one at a time from a memory map."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from model.config import ModelError
from model.weights.dequantize import dequantize
from model.weights.gguf_header import GgufTensor, read_gguf_header


class GgufFile:
    """`metadata` by key; `tensors` by ggml's names, in file order. Raises ModelError if it is unreadable."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        header = read_gguf_header(self.path)
        self.metadata: dict[str, Any] = header.metadata
        self.tensors: dict[str, GgufTensor] = header.tensors
        if self.metadata.get("split.count", 1) > 1:
            raise ModelError(f"{self.path}: one part of a split GGUF; merge the parts first")
        self._bytes = torch.from_file(str(self.path), size=self.path.stat().st_size, dtype=torch.uint8)

    def load(
        self,
        name: str,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        interleaved_heads: int | None = None,
    ) -> torch.Tensor:
        """The tensor `name`, unpacked on `device`, in torch's shape and the given floating-point type.

        `interleaved_heads` undoes the row order of rotary weights in `llama` files: within each of that many
        heads, row 2i there is row i here and row 2i + 1 is row i + half a head.
        """
        entry = self.tensors[name]
        data = self._bytes[entry.offset : entry.offset + entry.nbytes].to(device)
        if interleaved_heads is not None:
            # On packed rows, which are whole blocks: less to move than on unpacked ones.
            data = data.view(interleaved_heads, -1, 2, entry.nbytes // entry.shape[0])
            data = data.transpose(1, 2).reshape(-1)
        return dequantize(data, entry.type, torch.empty(entry.shape, dtype=dtype, device=device))
