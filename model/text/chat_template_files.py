"""Finds the chat template that a model brings, or that its operator gives."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model.config import ModelError
from model.source import ModelSource
from model.text.chat_template import ChatTemplate
from model.text.pretrained_files import read_json, read_tokenizer_config
from model.text.tokenizer import Tokenizer
from model.weights.gguf_header import read_gguf_header

_GGUF_KEY = "tokenizer.chat_template"
_DEFAULT, _TOOL_USE = "default", "tool_use"


def load_chat_template(
    source: ModelSource, tokenizer: Tokenizer, override: str | None = None
) -> ChatTemplate:
    """The model's chat template, or `override`: the path of a file, or the template itself.

    A model without one gets a template that refuses to render. Raises ModelError for a template that does not
    parse or a file that cannot be read.
    """
    named = {_DEFAULT: _read_override(override)} if override is not None else _find(source)
    default = named.get(_DEFAULT, next(iter(named.values()), None))
    return ChatTemplate(default, tokenizer.bos_token, tokenizer.eos_token, tool_source=named.get(_TOOL_USE))


def _read_override(override: str) -> str:
    if "{{" in override or "{%" in override:
        return override
    return _read_text(Path(override).expanduser())


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"chat template {path}: {reason}") from None


def _find(source: ModelSource) -> dict[str, str]:
    """Templates by name. Files of their own go before an entry in the tokenizer's configuration."""
    if source.kind == "gguf":
        return _from_metadata(read_gguf_header(source.path).metadata)
    folder = source.path
    file = folder / "chat_template.jinja"
    if file.is_file():
        others = sorted((folder / "additional_chat_templates").glob("*.jinja"))
        return {_DEFAULT: _read_text(file)} | {other.stem: _read_text(other) for other in others}
    content = read_json(folder / "chat_template.json")
    entry = content if content is not None else read_tokenizer_config(folder)
    return _named(entry.get("chat_template") if isinstance(entry, dict) else entry, folder)


def _named(value: Any, folder: Path) -> dict[str, str]:
    """`value` is one template, or a list of `{"name": ..., "template": ...}`."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {_DEFAULT: value}
    try:
        return {entry["name"]: entry["template"] for entry in value}
    except (KeyError, TypeError):
        raise ModelError(f"{folder}: chat_template is neither a text nor a list of named texts") from None


def _from_metadata(metadata: Mapping[str, Any]) -> dict[str, str]:
    prefix = f"{_GGUF_KEY}."
    named = {key.removeprefix(prefix): text for key, text in metadata.items() if key.startswith(prefix)}
    return named | ({_DEFAULT: metadata[_GGUF_KEY]} if _GGUF_KEY in metadata else {})
