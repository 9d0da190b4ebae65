"""The tensors of a GGUF file, or of one in parts, unpacked one at a time from memory maps."""

from __future__ import annotations

from pathlib import Path

import torch

from model.weights.dequantize import dequantize
from model.weights.gguf_header import GgufTensor
from model.weights.gguf_index import GgufIndex


class GgufFile(GgufIndex):
    """The index of a GGUF file, and its tensors. Raises ModelError if it is unreadable."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        contents = {
            part: torch.from_file(str(part), size=part.stat().st_size, dtype=torch.uint8)
            for part in set(self.part_of.values())
        }
        self._bytes = {name: contents[part] for name, part in self.part_of.items()}  # of its whole part

    def load(
        self,
        name: str,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        interleaved_rows: int | None = None,
        rows: slice = slice(None),
        columns: slice = slice(None),
    ) -> torch.Tensor:
        """`rows` and `columns` of the tensor `name`, unpacked on `device`, in the given floating-point type.

        Only the blocks that hold them are read. `interleaved_rows` undoes the row order of rotary weights in
        `llama` files: within each head of so many rows, row 2i there is row i here and row 2i + 1 is row
        i + half a head; `rows` are then of whole heads.
        """
        entry = self.tensors[name]
        block = entry.type
        data = self._bytes[name][entry.offset : entry.offset + entry.nbytes]
        data = data.view(-1, _row_bytes(entry))[rows]
        first, stop, _ = columns.indices(entry.shape[-1])
        whole_blocks = first % block.block_size == 0 and stop % block.block_size == 0
        if len(entry.shape) > 1 and whole_blocks:
            data = data[:, first // block.block_size * block.block_bytes :]
            data = data[:, : (stop - first) // block.block_size * block.block_bytes]
            first, stop = 0, stop - first
        num_rows, num_columns = len(data), data.shape[1] // block.block_bytes * block.block_size
        data = data.to(device)
        if interleaved_rows is not None:
            # On packed rows, which are whole blocks: less to move than on unpacked ones.
            heads = num_rows // interleaved_rows
            data = data.unflatten(0, (heads, interleaved_rows // 2, 2)).transpose(1, 2)
        out = torch.empty((num_rows, num_columns), dtype=dtype, device=device)
        dequantize(data.reshape(-1), block, out)
        return out.view(-1) if len(entry.shape) == 1 else out[:, first:stop]


def _row_bytes(entry: GgufTensor) -> int:
    """Of a matrix; of a vector, the bytes of a block."""
    return entry.nbytes // entry.shape[0] if len(entry.shape) > 1 else entry.type.block_bytes
