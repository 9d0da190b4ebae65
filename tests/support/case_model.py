"""A tiny model to serve: random weights, a tokenizer that adds a BOS, two EOS ids, a strict chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import processors

from tests.support.tiny_models import save_tiny_model, tiny_tokenizer

VOCAB_SIZE = 320
BOS_ID, EOS_IDS = 1, (2, 259)
MAX_MODEL_LEN = 2048

CHAT_TEMPLATE = """{{ bos_token }}
{%- for message in messages %}
{%- if message.role != ['user', 'assistant'][loop.index0 % 2] %}
{{- raise_exception('roles must alternate between user and assistant') }}{% endif %}
{{- message.role }}: {{ message.content }}<turn>{% endfor %}
{%- if add_generation_prompt %}assistant: {% endif %}"""


def save_case_model(path: Path) -> Any:
    """Write it as a Hugging Face folder; returns the transformers model."""
    model = save_tiny_model(path, "qwen3", max_position_embeddings=MAX_MODEL_LEN, eos_token_id=list(EOS_IDS))
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<turn>"]})
    assert tokenizer.convert_tokens_to_ids("<turn>") == EOS_IDS[1]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", BOS_ID)]
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(path)
    return model
