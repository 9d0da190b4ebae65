"""Where a model's files are: a folder, a GGUF file, a name on the Hugging Face hub or the embedded one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from model.config import ModelError
from model.embedded import EMBEDDED_NAME, embedded_gguf_path
from model.weights.gguf_header import MAGIC
from model.weights.gguf_parts import is_later_part, name_of_all

HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
HUB_CONFIG_FILES = ["*.json", "*.jinja", "*.txt", "*.model"]
HUB_WEIGHT_FILES = ["*.safetensors"]


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Local files of one model."""

    kind: Literal["folder", "gguf"]
    path: Path  # a folder that holds config.json, or a GGUF file (of one in parts, the first)
    name: str  # what to call it: the hub name, or the folder's or file's own name


def resolve_model(
    name_or_path: str | None, revision: str | None = None, *, with_weights: bool = True
) -> ModelSource:
    """Find the model, downloading it if it is a hub name; `None` is the embedded SmolLM2.

    What exists locally goes before the hub. `with_weights=False` leaves the weights of a hub model where they
    are, for dummy weights. Raises ModelError.
    """
    if name_or_path is None:
        return ModelSource("gguf", embedded_gguf_path(), EMBEDDED_NAME)
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return _from_folder(path)
    if path.exists():
        return _from_file(path)
    if not HUB_NAME.fullmatch(name_or_path) or name_or_path.endswith(".gguf"):
        raise ModelError(f"{name_or_path}: no such file or folder")
    folder = _download(name_or_path, revision, with_weights)
    return ModelSource("folder", folder, name_or_path)


def _from_folder(folder: Path) -> ModelSource:
    name = folder.resolve().name
    if (folder / "config.json").is_file():
        return ModelSource("folder", folder, name)
    ggufs = sorted(path for path in folder.glob("*.gguf") if not is_later_part(path))
    if len(ggufs) == 1:
        return _from_file(ggufs[0])
    if ggufs:
        names = ", ".join(path.name for path in ggufs)
        raise ModelError(f"{folder}: holds several GGUF files; name one of them: {names}")
    raise ModelError(f"{folder}: holds neither config.json nor a GGUF file")


def _from_file(path: Path) -> ModelSource:
    try:
        with open(path, "rb") as file:
            magic = file.read(len(MAGIC))
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from None
    if magic == MAGIC:
        return ModelSource("gguf", path, name_of_all(path))
    if path.suffix in (".safetensors", ".json"):
        raise ModelError(f"{path}: name the model's folder, not a file in it")
    raise ModelError(f"{path}: not a GGUF file (it does not begin with the letters GGUF)")


def _download(name: str, revision: str | None, with_weights: bool) -> Path:
    # Imported here because it takes a third of a second, which local models need not spend.
    from huggingface_hub import snapshot_download

    patterns = HUB_CONFIG_FILES + (HUB_WEIGHT_FILES if with_weights else [])
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except Exception as error:  # the hub's client raises its own, its HTTP library's and the system's errors
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"{name}: no such folder here, and the Hugging Face hub did not give it: {reason}"
        ) from error
