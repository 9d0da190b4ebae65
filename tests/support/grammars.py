"""Grammars over the tokenizer whose tokens are bytes."""

from __future__ import annotations

import numpy as np

from model.grammar.compiler import GrammarCompiler
from model.grammar.matcher import Grammar
from tests.support.byte_text import byte_tokenizer

TOKENIZER = byte_tokenizer()


def byte_compiler() -> GrammarCompiler:
    return GrammarCompiler(TOKENIZER, TOKENIZER.vocab_size, TOKENIZER.eos_token_ids)


def matches(grammar: Grammar, text: str) -> bool:
    """Whether `text` is an output that the grammar lets the model end after."""
    matcher = grammar.new_matcher()
    masks = np.empty((1, -(-TOKENIZER.vocab_size // 32)), dtype=np.int32)
    for token_id in [*TOKENIZER.encode(text, add_special_tokens=False), *TOKENIZER.eos_token_ids]:
        if matcher.fill([matcher], masks) != [True] or not masks[0, token_id // 32] >> (token_id % 32) & 1:
            return False
        matcher.advance([token_id])
    return True
