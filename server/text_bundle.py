"""The text side of a model: tokenizer, chat template, and how its makers want it sampled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from engine.sampling_params import ParameterError, SamplingParams
from model.config import ModelError
from model.embedded import EMBEDDED_NAME
from model.embedded import SAMPLING_DEFAULTS as EMBEDDED_SAMPLING_DEFAULTS
from model.source import ModelSource, resolve_model
from model.text.chat_template import ChatTemplate
from model.text.chat_template_files import load_chat_template
from model.text.pretrained_files import read_json
from model.text.tokenizer import Tokenizer, load_tokenizer
from server.config import ServerConfig

SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class TextBundle:
    """`sampling_defaults` are the model's own (`--generation-config`), by `SamplingParams` field name."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate
    sampling_defaults: Mapping[str, float] = field(default_factory=dict)


def load_text_bundle(source: ModelSource, tokenizer: str | None, config: ServerConfig) -> TextBundle:
    """`tokenizer` is `--tokenizer`: a folder, a file or a hub name instead of the model's own.

    Raises `ModelError`.
    """
    text_source = source if tokenizer is None else _tokenizer_source(tokenizer)
    loaded = load_tokenizer(text_source)
    return TextBundle(
        tokenizer=loaded,
        chat_template=load_chat_template(text_source, loaded, config.chat_template),
        sampling_defaults=read_sampling_defaults(source) if config.generation_config == "auto" else {},
    )


def read_sampling_defaults(source: ModelSource) -> dict[str, float]:
    """Those of the sampling parameters that the model's makers set. Raises `ModelError`."""
    if source.kind == "gguf":  # has no such file
        return dict(EMBEDDED_SAMPLING_DEFAULTS) if source.name == EMBEDDED_NAME else {}
    file = source.path / "generation_config.json"
    content = read_json(file) or {}
    if not isinstance(content, dict):
        raise ModelError(f"{file}: not a JSON object")
    defaults = {name: content[name] for name in SAMPLING_FIELDS if content.get(name) is not None}
    try:
        SamplingParams(**defaults)
    except (ParameterError, TypeError) as error:
        raise ModelError(f"{file}: {error}; with --generation-config none it is not read") from None
    return defaults


def _tokenizer_source(name_or_path: str) -> ModelSource:
    """A folder needs no config.json here, and tokenizer.json stands for its folder."""
    path = Path(name_or_path).expanduser()
    folder = path.parent if path.name == "tokenizer.json" else path
    if folder.is_dir():
        return ModelSource("folder", folder, folder.name)
    return resolve_model(name_or_path, with_weights=False)
