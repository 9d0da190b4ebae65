"""Reported cases of text: the detokenizer, finish reasons, usage and BOS, on the embedded model."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.api import (
    CHAT,
    COMPLETIONS,
    answer,
    complete,
    detokenize,
    joined_token_ids,
    stream,
    stream_complete,
    tokenize,
)
from tests.support.case_model import BOS_ID
from tests.support.process import ServerProcess
from tests.support.sse import joined_text

NON_ASCII = [
    "dábel ďas žluť dábel ďas žluť",
    "Příliš žluťoučký kůň úpěl",
    "日本語のテキストは、",
    "\U0001fae0 \U0001f979 \u9f9c \U0001f600 \u65e5",
    "Ελληνικά, русский, עברית",
    "ñandú über façade",
]
ENGLISH = [
    "The dog ran. Then",
    "She said: ",
    "def add(a, b):\n",
    "Dear Sir,",
    "1. Apples\n2.",
    "In 1969, the",
    "  Indented",
    "Who wrote Emma?",
]
JAPAN = "What is the capital of Japan?"


def test_d1_d7_text_is_what_decode_gives_streamed_or_not(embedded: ServerProcess) -> None:
    prompts = NON_ASCII + ENGLISH
    whole = complete(embedded, prompts, max_tokens=12)
    events = stream_complete(embedded, prompts, max_tokens=12)
    for i, (prompt, choice) in enumerate(zip(prompts, whole["choices"], strict=True)):
        prompt_ids, ids = tokenize(embedded, prompt=prompt), choice["token_ids"]
        if ids[-1] in (0, 2):  # an EOS has no text
            ids = ids[:-1]
        assert choice["text"] == detokenize(embedded, prompt_ids + ids)[len(prompt) :]
        assert "\ufffd" not in choice["text"][:-1], "only what max_tokens cut has no character"
        assert joined_text(events, i) == choice["text"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(("max_tokens", "reason"), [(50, "stop"), (1, "length")])
def test_f1_f2_f4_f8_chunks_and_how_they_end(
    embedded: ServerProcess, path: str, max_tokens: int, reason: str
) -> None:
    messages = [{"role": "user", "content": JAPAN}]
    body: dict[str, Any] = {"messages": messages, "temperature": 0}
    if path == COMPLETIONS:
        body = {"prompt": tokenize(embedded, messages=messages), "temperature": 0}
    options = {"max_tokens": max_tokens, "stream_options": {"include_usage": True}}
    *chunks, last = stream(embedded, path, {**body, **options})
    choices = [chunk["choices"][0] for chunk in chunks]
    text_key = "delta" if path == CHAT else "text"
    assert {frozenset(choice) - {"stop_reason"} for choice in choices} == {
        frozenset(("index", text_key, "logprobs", "finish_reason"))
    }
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + [reason]
    assert last["choices"] == [] and last["usage"]["completion_tokens"] <= max_tokens


def test_f5_usage_counts_the_tokens_streamed_or_not(roomy: ServerProcess) -> None:
    for seed in range(6):
        options = {"temperature": 1, "seed": seed, "max_tokens": 30, "n": 2}
        events = stream_complete(roomy, f"Seed {seed}", stream_options={"include_usage": True}, **options)
        whole = complete(roomy, f"Seed {seed}", **options)
        for choice in whole["choices"]:
            assert joined_token_ids(events, choice["index"]) == choice["token_ids"]
        num_tokens = sum(len(choice["token_ids"]) for choice in whole["choices"])
        assert events[-1]["usage"]["completion_tokens"] == num_tokens
        assert whole["usage"]["completion_tokens"] == num_tokens


def test_t8_one_bos_and_never_two(roomy: ServerProcess) -> None:
    messages = [{"role": "user", "content": "hi"}]
    chat_ids = tokenize(roomy, messages=messages)
    assert chat_ids[0] == BOS_ID and chat_ids.count(BOS_ID) == 1
    whole = answer(roomy, CHAT, {"messages": messages, "max_tokens": 1, "return_token_ids": True})
    assert whole["prompt_token_ids"] == chat_ids
    for prompt in ("hi", "<bos>hi"):
        (choice,) = complete(roomy, prompt, max_tokens=1)["choices"]
        assert choice["prompt_token_ids"].count(BOS_ID) == 1
        assert choice["prompt_token_ids"][0] == BOS_ID
