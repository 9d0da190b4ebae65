"""A tokenizer whose tokens are single bytes, and a small chat template: text without any model."""

from __future__ import annotations

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from model.text.chat_template import ChatTemplate
from model.text.tokenizer import Tokenizer
from server.text_bundle import TextBundle

BOS, EOS, END_OF_TURN = "<s>", "</s>", "<|end|>"

CHAT_TEMPLATE = """{{ bos_token }}{% if enable_thinking is false %}[no thoughts]{% endif %}
{%- for message in messages %}
{%- if message.role == 'system' and not loop.first %}
{{- raise_exception('system must come first') }}{% endif %}
[{{ message.role }}]{{ message.content }}{% endfor %}
{%- if add_generation_prompt %}[assistant]{% endif %}"""


def byte_tokenizer() -> Tokenizer:
    """Ids 0 to 255 are bytes by GPT-2's alphabet; then BOS (added to texts), EOS, end of turn."""
    vocabulary = {token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([BOS, EOS, END_OF_TURN])
    bos_id, eos_id = backend.token_to_id(BOS), backend.token_to_id(EOS)
    backend.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, bos_id)])
    return Tokenizer(backend, bos_token_id=bos_id, eos_token_ids=(eos_id,))


def byte_text_bundle() -> TextBundle:
    return TextBundle(byte_tokenizer(), ChatTemplate(CHAT_TEMPLATE, BOS, EOS))
