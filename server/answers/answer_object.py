"""Whole answers of completions and chats, for requests that are not streamed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from model.text.tokenizer import Tokenizer
from server.answers.logprobs import chat_logprobs, completion_logprobs, prompt_logprobs
from server.delivery.choice import Choice
from server.delivery.generation import Generation
from server.parsers.events import CallArguments, CallCut, CallStart, Content, Event, Reasoning


def answer_object(generation: Generation, tokenizer: Tokenizer) -> dict[str, Any]:
    """The body of a non-streamed answer whose choices have all ended."""
    is_chat = generation.kind == "chat"
    make_choice = _chat_choice if is_chat else _completion_choice
    response: dict[str, Any] = {
        **generation.head("chat.completion" if is_chat else "text_completion"),
        "choices": [make_choice(generation, choice, tokenizer) for choice in generation.choices],
        **generation.summary(),
    }
    if is_chat and generation.return_token_ids:
        response["prompt_token_ids"] = generation.prompts[0].token_ids
    if is_chat and generation.prompt_logprobs is not None:
        response["prompt_logprobs"] = prompt_logprobs(
            generation.prompts[0], generation.prompt_logprobs, tokenizer
        )
    return response


def _chat_choice(generation: Generation, choice: Choice, tokenizer: Tokenizer) -> dict[str, Any]:
    tokens = choice.take_tokens()
    logprobs = chat_logprobs(generation, choice, tokens, tokenizer) if generation.logprobs else None
    result = {
        "index": choice.index,
        "message": _message_object(choice.take_events(), generation.reasoning_fields),
        "logprobs": logprobs,
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
    }
    if generation.return_token_ids:
        result["token_ids"] = [token.token_id for token in tokens]
    return result


def _message_object(events: Iterable[Event], reasoning_fields: Sequence[str]) -> dict[str, Any]:
    """A call that was cut is content: it could not be made. `reasoning_fields` are null without reasoning."""
    content, reasoning = "", ""
    calls: list[dict[str, Any]] = []
    for event in events:
        match event:
            case Content(text):
                content += text
            case Reasoning(text):
                reasoning += text
            case CallStart(name, call_id):
                calls.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": ""}})
            case CallArguments(text):
                calls[-1]["function"]["arguments"] += text
            case CallCut(text):
                calls.pop()
                content += text
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    message |= dict.fromkeys(reasoning_fields, reasoning or None)
    if calls:
        message |= {"content": content or None, "tool_calls": calls}
    return message


def _completion_choice(generation: Generation, choice: Choice, tokenizer: Tokenizer) -> dict[str, Any]:
    prompt = generation.prompt_of(choice)
    tokens = choice.take_tokens()
    text = choice.take_text()
    result = {
        "index": choice.index,
        "text": prompt.text + text if generation.echo else text,
        "logprobs": completion_logprobs(generation, choice, tokens, tokenizer, with_prompt=generation.echo)
        if generation.logprobs
        else None,
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
    }
    if generation.return_token_ids:
        result["prompt_token_ids"] = prompt.token_ids
        result["token_ids"] = [token.token_id for token in tokens]
    if generation.prompt_logprobs is not None:
        result["prompt_logprobs"] = prompt_logprobs(prompt, generation.prompt_logprobs, tokenizer)
    return result
