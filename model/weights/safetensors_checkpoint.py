"""A folder of safetensors files as a checkpoint, read through memory maps."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from model.config import ModelError

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"


class SafetensorsCheckpoint:
    """Raises ModelError if the folder has no such weights, or a file is missing, truncated or damaged."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self._file_of: dict[str, Any] = {}  # tensor name to the open file that holds it
        if (folder / INDEX_FILE).is_file():
            self._open_indexed(folder / INDEX_FILE)
        elif (folder / SINGLE_FILE).is_file():
            self._open_all([folder / SINGLE_FILE])
        else:
            self._open_all(_unindexed_files(folder))

    def names(self) -> Iterable[str]:
        return self._file_of

    def open(self, name: str, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        # A view of the memory map, on the CPU and in the file's own type: a rank reads only its part of it.
        tensor: torch.Tensor = self._file_of[name].get_tensor(name)
        return tensor

    def _open_indexed(self, index: Path) -> None:
        try:
            file_names: dict[str, str] = json.loads(index.read_bytes())["weight_map"]
            shards = sorted(set(file_names.values()))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ModelError(f"{index}: not a valid index (no weight_map of tensor to file names)") from None
        for shard in shards:
            file = _open(index.parent / shard)
            for name in file.keys():  # noqa: SIM118 - not a mapping
                if file_names.get(name) == shard:
                    self._file_of[name] = file

    def _open_all(self, paths: list[Path]) -> None:
        for path in paths:
            file = _open(path)
            for name in file.keys():  # noqa: SIM118 - not a mapping
                if name in self._file_of:
                    raise ModelError(
                        f"{path}: tensor {name} is in another file too, and there is no {INDEX_FILE}"
                    )
                self._file_of[name] = file


def _unindexed_files(folder: Path) -> list[Path]:
    paths = sorted(folder.glob("*.safetensors"))
    if paths:
        return paths
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt*")):
        raise ModelError(f"{folder}: has only pickled PyTorch weights; convert them to safetensors first")
    raise ModelError(f"{folder}: has no *.safetensors file (--load-format dummy needs none)")


def _open(path: Path) -> Any:
    try:
        return safe_open(str(path), framework="pt")
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError(f"{path}: truncated or damaged safetensors file: {error}") from None
