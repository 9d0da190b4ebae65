"""Presets: model x hardware x policy, as flat YAML whose keys are the flags of `octavo serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

PRESET_FOLDER = Path(__file__).parent


class PresetError(ValueError):
    """A preset or config file that cannot be read. The message is one line and names the file."""


def preset_names() -> list[str]:
    return sorted(path.stem for path in PRESET_FOLDER.glob("*.yaml"))


def resolve_preset(name_or_path: str) -> Path:
    """A preset of this folder by its name, else a file by its path. Raises `PresetError`."""
    if name_or_path in preset_names():
        return PRESET_FOLDER / f"{name_or_path}.yaml"
    path = Path(name_or_path)
    if not path.is_file():
        raise PresetError(
            f"--config {name_or_path}: no such file or preset (presets: {', '.join(preset_names())})"
        )
    return path


def load_preset(path: Path) -> dict[str, Any]:
    """The keys and values of a YAML file, flag names spelled with underscores. Raises `PresetError`."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise PresetError(f"{path}: {error}") from None
    except yaml.YAMLError as error:
        raise PresetError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise PresetError(f"{path}: expected lines of `key: value`")
    return {str(key).replace("-", "_"): value for key, value in content.items()}
