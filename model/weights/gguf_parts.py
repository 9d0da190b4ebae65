"""The files of a model that llama.cpp's `gguf-split` cut in parts: NAME-00001-of-00003.gguf and so on.

The first part holds the metadata, and perhaps no tensor; each part has a tensor table and data of its own.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from model.config import ModelError
from model.weights.gguf_header import read_gguf_header

_PART_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


def is_later_part(path: Path) -> bool:
    """Whether the name is that of a part, but not the first one."""
    match = _PART_NAME.fullmatch(path.name)
    return match is not None and int(match[2]) > 1


def name_of_all(path: Path) -> str:
    """What the file, or the first part of several, is called without its number and ending."""
    match = _PART_NAME.fullmatch(path.name)
    return match[1] if match else path.stem


def gguf_parts(path: Path, metadata: dict[str, Any]) -> list[Path]:
    """All files of the model whose first one is `path`, with this metadata. Raises ModelError."""
    count = metadata.get("split.count", 1)
    if count <= 1:
        return [path]
    if metadata.get("split.no") != 0:
        raise ModelError(f"{path}: a later one of {count} parts of a GGUF; name the first part")
    match = _PART_NAME.fullmatch(path.name)
    if match is None or int(match[3]) != count:
        raise ModelError(
            f"{path}: the first of {count} parts of a GGUF, so its name must end in -00001-of-{count:05}.gguf"
        )
    later = [path.with_name(f"{match[1]}-{i:05}-of-{count:05}.gguf") for i in range(2, count + 1)]
    for number, part in enumerate(later, start=1):
        if read_gguf_header(part).metadata.get("split.no") != number:
            raise ModelError(f"{part}: not part {number + 1} of a GGUF, as its name says")
    return [path, *later]
