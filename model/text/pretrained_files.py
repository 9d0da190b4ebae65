"""Small JSON files beside a model's tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from model.config import ModelError


def read_json(file: Path) -> Any:
    """The content of `file`, or None if there is no such file. Raises ModelError if it is no JSON."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ModelError(f"{file}: {error}") from None


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """`tokenizer_config.json`, with `special_tokens_map.json` beneath it; both may be missing."""
    merged: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        content = read_json(folder / name) or {}
        if not isinstance(content, dict):
            raise ModelError(f"{folder / name}: not a JSON object")
        merged |= {key: value for key, value in content.items() if value is not None}
    return merged


def special_token(config: dict[str, Any], name: str) -> str | None:
    """The token that `config` names as "bos_token", "eos_token" ..., in either of the forms in use."""
    value = config.get(name)
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def added_tokens(folder: Path, config: dict[str, Any]) -> list[tuple[int, str]]:
    """(id, token) of those that the files add to a vocabulary, by id: in the newer form or the older one."""
    newer = config.get("added_tokens_decoder", {})
    older = read_json(folder / "added_tokens.json") or {}
    try:
        tokens = {int(token_id): str(token["content"]) for token_id, token in newer.items()}
        return sorted({**{int(token_id): token for token, token_id in older.items()}, **tokens}.items())
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ModelError(f"{folder}: the added tokens of its tokenizer cannot be read") from None
