"""Where thoughts may come before what a grammar binds."""

from __future__ import annotations

import pytest

from model.grammar.source import GrammarSource, ThoughtTags
from model.text.tokenizer import Tokenizer
from server.config import ServerConfig
from server.delivery.generation import WantedGrammar
from server.preparation.chat_prompt import ChatPrompt
from server.preparation.message_reading import message_reading
from server.preparation.tool_use import ToolUse
from tests.support.byte_text import byte_tokenizer
from tests.support.tiny_tokenizers import byte_level_backend

GRAMMAR = WantedGrammar("response_format", GrammarSource.any_json_object())


def thinking_tokenizer() -> Tokenizer:
    backend = byte_level_backend()
    backend.add_tokens(["<think>", "</think>"])
    return Tokenizer(backend)


@pytest.mark.parametrize(
    ("prompt", "enables_thinking", "has_tokens", "expected"),
    [
        ("assistant\n", True, True, ThoughtTags("<think>", "</think>")),
        ("assistant\n", True, False, None),
        ("assistant\n", False, True, None),
        ("assistant\n<think>\n", True, False, ThoughtTags(None, "</think>")),
        ("assistant\n<think>\n\n</think>\n\n", True, True, None),
    ],
)
def test_thoughts_before_a_grammar(
    prompt: str, enables_thinking: bool, has_tokens: bool, expected: ThoughtTags | None
) -> None:
    reading = message_reading(
        ServerConfig(reasoning_parser="qwen3"),
        ToolUse(),
        ChatPrompt(prompt, [1], None, enables_thinking),
        is_bound=True,
        shows_reasoning=True,
    )
    assert reading is not None
    bound = reading.bind(GRAMMAR, thinking_tokenizer() if has_tokens else byte_tokenizer())
    assert bound.source.thoughts == expected


def test_tags_that_are_special_tokens_have_to_be_shown() -> None:
    reading = message_reading(
        ServerConfig(tool_call_parser="mistral"),
        ToolUse("auto"),
        ChatPrompt("q", [1], None, True),
        is_bound=False,
        shows_reasoning=True,
    )
    assert reading is not None
    backend = byte_level_backend()
    assert not reading.needs_special_tokens(Tokenizer(backend))
    backend.add_special_tokens(["[TOOL_CALLS]"])
    assert reading.needs_special_tokens(Tokenizer(backend))
