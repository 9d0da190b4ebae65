"""Reported cases of ends: stop strings on the embedded model, EOS ids on the tiny one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.api import CHAT, answer, at_once, complete, stream, stream_complete
from tests.support.case_model import EOS_IDS
from tests.support.process import ServerProcess
from tests.support.sse import joined_text

QUESTION = [{"role": "user", "content": "What is the capital of Japan?"}]
QUESTION_ANSWER = "The capital of Japan is Tokyo."


def chat(server: ServerProcess, **fields: Any) -> tuple[dict[str, Any], str]:
    """(The only choice, its streamed text), which agree."""
    body = {"messages": QUESTION, "temperature": 0, "max_tokens": 30, **fields}
    (choice,) = answer(server, CHAT, body)["choices"]
    events = stream(server, CHAT, body)
    assert joined_text(events) == choice["message"]["content"]
    assert events[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]
    return choice, joined_text(events)


def test_s1_no_part_of_a_stop_string_is_sent(embedded: ServerProcess) -> None:
    choice, text = chat(embedded, stop=["tal of Jap"])
    assert (text, choice["finish_reason"]) == ("The capi", "stop")
    prompt = "Count: one two three four"
    full = complete(embedded, prompt, max_tokens=16)["choices"][0]["text"]
    stop = full[3:9]  # cuts tokens at both ends
    events = stream_complete(embedded, prompt, max_tokens=16, stop=[stop])
    assert joined_text(events) == full[: full.index(stop)]


@pytest.mark.parametrize(("max_tokens", "reason"), [(30, "stop"), (7, "length")])
def test_s2_what_was_held_back_comes_with_the_end(
    embedded: ServerProcess, max_tokens: int, reason: str
) -> None:
    choice, text = chat(embedded, stop=["Tokyo. And then more"], max_tokens=max_tokens)
    assert choice["finish_reason"] == reason
    assert text == QUESTION_ANSWER


def ascii_pieces(text: str, length: int) -> list[str]:
    """The printable pieces of this length, in the order of the text."""
    pieces = [text[i : i + length] for i in range(len(text) - length + 1)]
    return [piece for piece in pieces if piece.isascii() and piece.isprintable()]


def test_s3_stop_strings_lose_nothing_in_streams(roomy: ServerProcess) -> None:
    """Stop strings of one to three tokens, taken from the middle of random texts."""
    prompts = [f"Text {i}" for i in range(8)]
    options: dict[str, Any] = {"max_tokens": 40, "temperature": 1, "seed": 7, "ignore_eos": True}
    options["logit_bias"] = {str(token_id): -100 for token_id in range(97, 260)}  # few but ASCII is left
    plain = [choice["text"] for choice in complete(roomy, prompts, **options)["choices"]]
    for length in (1, 2, 3):
        stop = [ascii_pieces(text, length)[4] for text in plain if len(ascii_pieces(text, length)) > 4]
        assert stop
        whole = complete(roomy, prompts, stop=stop, **options)["choices"]
        events = stream_complete(roomy, prompts, stop=stop, **options)
        for i, (choice, text) in enumerate(zip(whole, plain, strict=True)):
            cut = min((text.index(s) for s in stop if s in text), default=len(text))
            assert choice["text"] == joined_text(events, i) == text[:cut]


def test_s6_stop_strings_wait_for_min_tokens(roomy: ServerProcess) -> None:
    options: dict[str, Any] = {"max_tokens": 80, "temperature": 1, "seed": 3, "ignore_eos": True}
    full = complete(roomy, "list/", **options)["choices"][0]
    options["stop"] = sorted(set(ascii_pieces(full["text"], 1)))
    at_will = complete(roomy, "list/", **options)
    held = complete(roomy, "list/", min_tokens=40, **options)
    assert at_will["usage"]["completion_tokens"] < 40 < held["usage"]["completion_tokens"] < 80
    choice = held["choices"][0]
    num_tokens = len(choice["token_ids"])
    assert choice["finish_reason"] == "stop" and choice["token_ids"] == full["token_ids"][:num_tokens]
    assert full["text"].startswith(choice["text"] + choice["stop_reason"])


def test_e1_ignore_eos_ignores_every_eos(roomy: ServerProcess) -> None:
    def call(eos_id: int) -> dict[str, Any]:
        return complete(roomy, "On and on", ignore_eos=True, max_tokens=200, logit_bias={str(eos_id): 100})

    for eos_id, whole in zip(EOS_IDS * 2, at_once([lambda e=e: call(e) for e in EOS_IDS * 2]), strict=True):
        (choice,) = whole["choices"]
        assert choice["token_ids"] == [eos_id] * 200
        assert (choice["finish_reason"], whole["usage"]["completion_tokens"]) == ("length", 200)


@pytest.mark.parametrize("eos_id", EOS_IDS)
def test_e4_min_tokens_holds_off_every_eos(roomy: ServerProcess, eos_id: int) -> None:
    bias = {str(other): 50 for other in EOS_IDS} | {str(eos_id): 60}
    early = complete(roomy, "Stay", max_tokens=100, logit_bias=bias)["choices"][0]
    assert (early["token_ids"], early["finish_reason"]) == ([eos_id], "stop")
    late = complete(roomy, "Stay", max_tokens=100, logit_bias=bias, min_tokens=64)["choices"][0]
    assert len(late["token_ids"]) == 65 and late["token_ids"][-1] == eos_id
    assert not set(EOS_IDS) & set(late["token_ids"][:64])
