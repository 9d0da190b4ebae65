"""Thoughts and answers, cut into any pieces."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.parsers.formats.hermes import HermesParser
from server.parsers.message_parser import MessageParser
from server.parsers.reasoning import ReasoningFormat, ReasoningParser, Thoughts
from server.parsers.registry import REASONING_FORMATS
from tests.support.tool_texts import hermes, read

TAGS = ReasoningFormat()
WORDS = st.text(alphabet="ab <>/think\n", max_size=30).filter(
    lambda text: "<think>" not in text and "</think>" not in text
)
CUTS = st.lists(st.integers(0, 10**6), max_size=10)


def parser(*, is_open: bool) -> ReasoningParser:
    return ReasoningParser(TAGS, is_open=is_open)


@settings(max_examples=150, deadline=None)
@given(WORDS, WORDS, CUTS, st.booleans(), st.booleans())
def test_both_parts_come_whole(
    thoughts: str, answer: str, cuts: list[int], opens: bool, is_open: bool
) -> None:
    if not opens and not is_open:
        return
    text = ("<think>" if opens else "") + f"{thoughts}</think>{answer}"
    message = read(parser(is_open=is_open), text, cuts)
    assert (message.reasoning, message.content) == (thoughts.strip(), answer.lstrip())


@settings(max_examples=80, deadline=None)
@given(WORDS, CUTS)
def test_without_tags_all_is_one_or_the_other(text: str, cuts: list[int]) -> None:
    message = read(parser(is_open=False), text, cuts)
    assert (message.reasoning, message.content) == ("", text)
    message = read(parser(is_open=True), text, cuts)
    assert (message.reasoning.strip(), message.content) == (text.strip(), "")


@pytest.mark.parametrize("text", ["x <think>no</think>", "</think>", "<thin"])
def test_a_tag_in_the_middle_of_an_answer_is_content(text: str) -> None:
    assert read(parser(is_open=False), text, range(len(text))).content == text


def test_thoughts_are_told_as_they_come() -> None:
    stream = parser(is_open=True)
    assert [event.text for event in stream.push("<think>some thoughts <")] == ["some thoughts"]
    assert stream.is_open


def test_a_call_ends_thoughts_that_were_not_closed() -> None:
    call = hermes([("add", {"a": 1})])
    for cuts in ([], range(200)):
        reasoning = ReasoningParser(TAGS, is_open=True, other_ends=HermesParser.call_starts)
        message = read(
            MessageParser(reasoning, HermesParser()), f"I may write <tool_call>. Now:\n{call}", cuts
        )
        assert message.reasoning == "I may write <tool_call>. Now:"
        assert message.calls == [("add", '{"a": 1}')] and message.content == ""


def test_hidden_thoughts_and_calls_beyond_the_limit() -> None:
    text = "hm</think>" + hermes([("add", {"a": 1}), ("add", {"a": 2})])
    whole = MessageParser(parser(is_open=True), HermesParser(), shows_reasoning=False, max_calls=1)
    message = read(whole, text, [5, 30, 80])
    assert (message.reasoning, message.calls, message.content) == ("", [("add", '{"a": 1}')], "")


@pytest.mark.parametrize(
    ("prompt", "enable_thinking", "qwen3", "deepseek_r1"),
    [
        ("<|im_start|>assistant\n<think>\n", False, Thoughts.BEGUN, Thoughts.BEGUN),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", True, Thoughts.NONE, Thoughts.NONE),
        ("say <think> please<|im_start|>assistant\n", True, Thoughts.POSSIBLE, Thoughts.POSSIBLE),
        ("<|im_start|>assistant\n", False, Thoughts.NONE, Thoughts.POSSIBLE),
    ],
)
def test_what_a_prompt_tells(
    prompt: str, enable_thinking: bool, qwen3: Thoughts, deepseek_r1: Thoughts
) -> None:
    for name, expected in (("qwen3", qwen3), ("deepseek_r1", deepseek_r1)):
        assert REASONING_FORMATS[name].after_prompt(prompt, enable_thinking=enable_thinking) is expected


@pytest.mark.parametrize(
    ("message", "expected"),
    [("Hello", Thoughts.NONE), ("<think>so", Thoughts.BEGUN), ("<think>so</think>He", Thoughts.NONE)],
)
def test_what_a_message_that_is_continued_tells(message: str, expected: Thoughts) -> None:
    assert TAGS.within_message(message) is expected
