"""What the server holds of a model's text side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from model.text.chat_template import ChatTemplate
from model.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextBundle:
    """`sampling_defaults` are the model's own (`--generation-config`), by `SamplingParams` field name."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate
    sampling_defaults: Mapping[str, float] = field(default_factory=dict)
