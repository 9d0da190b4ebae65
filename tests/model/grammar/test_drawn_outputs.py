"""Whatever is drawn from the masks of a schema is valid, in the eyes of another library."""

from __future__ import annotations

import json

import numpy as np
import pytest

from model.grammar.compiler import GrammarCompiler
from model.grammar.matcher import GrammarMatcher
from model.grammar.source import GrammarSource
from model.source import resolve_model
from model.text.tokenizer import Tokenizer, load_tokenizer
from tests.support.schemas import SCHEMAS

MAX_TOKENS = 2000


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(resolve_model(None))


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)


@pytest.mark.parametrize("name", SCHEMAS)
def test_evenly_drawn_outputs_are_valid(name: str, compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    import jsonschema  # here, so that GPU machines that lack it can collect this folder

    grammar = compiler.compile(GrammarSource.json_schema(SCHEMAS[name]))
    validator = jsonschema.Draft202012Validator(SCHEMAS[name])
    rng = np.random.default_rng(1)
    for _ in range(3):
        matcher = grammar.new_matcher()
        masks = np.empty((1, -(-tokenizer.vocab_size // 32)), dtype=np.int32)
        token_ids: list[int] = []
        while not token_ids or token_ids[-1] not in tokenizer.eos_token_ids:
            assert len(token_ids) < MAX_TOKENS
            assert GrammarMatcher.fill([matcher], masks) == [True]
            allowed = np.flatnonzero(np.unpackbits(masks.view(np.uint8), bitorder="little"))
            token_ids.append(int(rng.choice(allowed)))
            matcher.advance(token_ids[-1:])
        validator.validate(json.loads(tokenizer.decode(token_ids[:-1])))
