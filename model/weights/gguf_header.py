"""The header of a GGUF file: metadata and tensor table, without the tensor data.

Layout (little endian, versions 2 and 3): magic, version, number of tensors, number of metadata entries, the
entries, the tensor table, then padding up to the alignment, then tensor data. Format:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from model.config import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_STRING, _ARRAY = 8, 9
# Metadata value types that are plain numbers, by their code in the file.
_SCALARS = {
    code: struct.Struct("<" + letter)
    for code, letter in {
        0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"
    }.items()
}  # fmt: skip


class BlockType(NamedTuple):
    """How a ggml tensor type is stored: `block_bytes` bytes hold `block_size` consecutive weights."""

    name: str
    block_size: int
    block_bytes: int


# The types that Octavo reads, by their code in the file.
BLOCK_TYPES = {
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2),
    2: BlockType("Q4_0", 32, 18),
    3: BlockType("Q4_1", 32, 20),
    6: BlockType("Q5_0", 32, 22),
    7: BlockType("Q5_1", 32, 24),
    8: BlockType("Q8_0", 32, 34),
    12: BlockType("Q4_K", 256, 144),
    13: BlockType("Q5_K", 256, 176),
    14: BlockType("Q6_K", 256, 210),
    30: BlockType("BF16", 1, 2),
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One entry of the tensor table. `shape` is in torch's order (outermost first)."""

    name: str
    shape: tuple[int, ...]
    type: BlockType
    offset: int  # bytes from the start of the file
    nbytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


def read_gguf_header(path: str | Path) -> GgufHeader:
    """Parse the header of the GGUF file at `path`; tensor data is not touched.

    Raises ModelError if the file cannot be read, is no GGUF, is truncated, or stores tensors in a type that
    Octavo does not read.
    """
    try:
        status = os.stat(path)
        return _read_once(Path(path), status.st_mtime_ns, status.st_size)
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from None


@lru_cache(maxsize=64)  # enough for a model in parts; only the first header is large
def _read_once(path: Path, mtime_ns: int, size: int) -> GgufHeader:
    """Configuration, tokenizer and weights all ask for the same header; time and size show a changed file."""
    if size == 0:
        raise ModelError(f"{path}: empty, so not a GGUF file")
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
            return _parse(buffer, path)
    except (struct.error, OverflowError, EOFError):
        raise ModelError(f"{path}: truncated or damaged GGUF header") from None


def _parse(buffer: mmap.mmap, path: Path) -> GgufHeader:
    if buffer[:4] != MAGIC:
        raise ModelError(f"{path}: not a GGUF file (it does not begin with the letters GGUF)")
    cursor = _Cursor(buffer, position=4)
    version = cursor.u32()
    if version not in VERSIONS:
        raise ModelError(f"{path}: GGUF version {version} is not supported (2 and 3 are, little endian)")
    num_tensors, num_entries = cursor.u64(), cursor.u64()
    metadata = {}
    for _ in range(num_entries):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.u32())
    entries = [_tensor_entry(cursor, path) for _ in range(num_tensors)]
    return GgufHeader(metadata, _place_tensors(entries, metadata, cursor.position, len(buffer), path))


class _Cursor:
    """Reads values one after another. Running past the end raises struct.error, OverflowError or EOFError."""

    def __init__(self, buffer: mmap.mmap, position: int) -> None:
        self.buffer = buffer
        self.position = position

    def u32(self) -> int:
        return int(self._scalar(_U32))

    def u64(self) -> int:
        return int(self._scalar(_U64))

    def string(self) -> str:
        return self._strings(1)[0]

    def value(self, code: int) -> Any:
        if code == _STRING:
            return self.string()
        if code == _ARRAY:
            return self._array()
        if code not in _SCALARS:
            raise EOFError  # the position is not where a value begins: a damaged file
        return self._scalar(_SCALARS[code])

    def _scalar(self, layout: struct.Struct) -> Any:
        (value,) = layout.unpack_from(self.buffer, self.position)
        self.position += layout.size
        return value

    def _array(self) -> list[Any]:
        code, count = self.u32(), self.u64()
        if count > len(self.buffer):
            raise EOFError  # every element takes at least a byte
        if code == _STRING:
            return self._strings(count)
        if code not in _SCALARS:
            raise EOFError  # arrays of arrays occur in no known file
        layout = struct.Struct(f"<{count}{_SCALARS[code].format[1:]}")
        values = list(layout.unpack_from(self.buffer, self.position))
        self.position += layout.size
        return values

    def _strings(self, count: int) -> list[str]:
        # A vocabulary has 150,000 of them, so this loop keeps to local names.
        buffer, position, read_length = self.buffer, self.position, _U64.unpack_from
        strings = []
        for _ in range(count):
            start = position + 8
            position = start + read_length(buffer, position)[0]
            strings.append(str(buffer[start:position], "utf-8", "replace"))
        if position > len(buffer):
            raise EOFError
        self.position = position
        return strings


class _TensorEntry(NamedTuple):
    name: str
    shape: tuple[int, ...]
    type: BlockType
    relative_offset: int


def _tensor_entry(cursor: _Cursor, path: Path) -> _TensorEntry:
    name = cursor.string()
    num_dimensions = cursor.u32()
    if num_dimensions > MAX_DIMENSIONS:
        raise ModelError(f"{path}: tensor {name} has {num_dimensions} dimensions (at most {MAX_DIMENSIONS})")
    shape = tuple(reversed([cursor.u64() for _ in range(num_dimensions)]))  # stored innermost first
    code = cursor.u32()
    if code not in BLOCK_TYPES:
        known = ", ".join(block_type.name for block_type in BLOCK_TYPES.values())
        raise ModelError(f"{path}: tensor {name} has ggml type {code}, which is not supported (only {known})")
    return _TensorEntry(name, shape, BLOCK_TYPES[code], cursor.u64())


def _place_tensors(
    entries: list[_TensorEntry], metadata: dict[str, Any], header_end: int, file_size: int, path: Path
) -> dict[str, GgufTensor]:
    """Absolute offsets and sizes, checked against the rows' blocks and the size of the file."""
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 8 or alignment % 8:
        raise ModelError(f"{path}: general.alignment is {alignment!r}, not a multiple of 8")
    data_start = -(-header_end // alignment) * alignment
    tensors = {}
    for name, shape, block_type, relative_offset in entries:
        if shape and shape[-1] % block_type.block_size:
            raise ModelError(
                f"{path}: tensor {name} has rows of {shape[-1]} weights, no multiple of the"
                f" {block_type.block_size} in a {block_type.name} block"
            )
        nbytes = math.prod(shape) // block_type.block_size * block_type.block_bytes
        offset = data_start + relative_offset
        if relative_offset % alignment:
            raise ModelError(f"{path}: tensor {name} is not aligned to {alignment} bytes")
        if offset + nbytes > file_size:
            raise ModelError(
                f"{path}: truncated: tensor {name} ends at byte {offset + nbytes:,} of {file_size:,}"
            )
        tensors[name] = GgufTensor(name, shape, block_type, offset, nbytes)
    return tensors
