"""Server-sent events of a streamed answer, built from byte templates."""

from __future__ import annotations

from typing import Any

import orjson

from model.text.tokenizer import Tokenizer
from server.answers.logprobs import chat_logprobs, completion_logprobs
from server.delivery.choice import Choice
from server.delivery.generation import Generation
from server.errors import APIError

DONE = b"data: [DONE]\n\n"


def event(payload: Any) -> bytes:
    return b"data: " + to_line(payload) + b"\n\n"


def to_line(payload: Any) -> bytes:
    """JSON without the three characters that some clients take for line ends inside a string."""
    line = orjson.dumps(payload)
    if not line.isascii():
        line = line.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")
        line = line.replace(b"\xc2\x85", b"\\u0085")
    return line


class ChunkFormat:
    """The chunks of one answer. Whatever stays the same in all of them is encoded once, here.

    The common chunk (some text, nothing else) is three byte strings joined; only chunks with logprobs, token
    ids or a finish reason build objects.
    """

    def __init__(self, generation: Generation, tokenizer: Tokenizer) -> None:
        self.generation = generation
        self.tokenizer = tokenizer
        self.is_chat = generation.kind == "chat"
        self.head = generation.head("chat.completion.chunk" if self.is_chat else "text_completion")
        opening = b"data: " + orjson.dumps(self.head)[:-1] + b',"choices":[{"index":%d,'
        self._before_text = [
            opening % choice.index + (b'"delta":{"content":' if self.is_chat else b'"text":')
            for choice in generation.choices
        ]
        usage = b',"usage":null' if generation.include_usage else b""
        self._after_text = (
            (b"}" if self.is_chat else b"")
            + b',"logprobs":null,"finish_reason":null,"stop_reason":null}]'
            + usage
            + b"}\n\n"
        )
        self._is_plain = not (
            generation.logprobs
            or generation.return_token_ids
            or generation.continuous_usage
            or generation.echo
        )
        self._opened: set[int] = set()  # choices whose first chunk was built

    def openings(self) -> bytes:
        """The role chunks of a chat, sent for all choices, in index order, before any text."""
        if not self.is_chat:
            return b""
        extra: dict[str, Any] = {}
        if self.generation.return_token_ids:
            extra["prompt_token_ids"] = self.generation.prompts[0].token_ids
        return b"".join(
            self._chunk(choice, {"delta": {"role": "assistant", "content": ""}, "logprobs": None}, extra)
            for choice in self.generation.choices
        )

    def delta(self, choice: Choice) -> bytes:
        """What the choice has gained since its last chunk; empty if there is nothing to say yet."""
        text = choice.take_text()
        if choice.finish_reason is not None or not self._is_plain:
            return self._object_delta(choice, text)
        if not text:
            return b""
        return self._before_text[choice.index] + to_line(text) + self._after_text

    def closing(self) -> bytes:
        if not self.generation.include_usage:
            return DONE
        return event({**self.head, "choices": [], **self.generation.summary()}) + DONE

    def failure(self, error: APIError) -> bytes:
        return event(error.body()) + DONE

    def _object_delta(self, choice: Choice, text: str) -> bytes:
        generation = self.generation
        tokens = choice.take_tokens()
        is_first = choice.index not in self._opened
        self._opened.add(choice.index)
        prompt = generation.prompt_of(choice)
        echoes = generation.echo and is_first
        if not (text or tokens or echoes or choice.finish_reason):
            return b""
        fields: dict[str, Any] = {}
        if self.is_chat:
            fields["delta"] = {"content": text} if text or not choice.finish_reason else {}
        else:
            fields["text"] = prompt.text + text if echoes else text
        fields["logprobs"] = None
        if generation.logprobs:
            fields["logprobs"] = (
                chat_logprobs(generation, choice, tokens, self.tokenizer)
                if self.is_chat
                else completion_logprobs(generation, choice, tokens, self.tokenizer, with_prompt=echoes)
            )
        if generation.return_token_ids:
            if is_first and not self.is_chat:
                fields["prompt_token_ids"] = prompt.token_ids
            fields["token_ids"] = [token.token_id for token in tokens]
        return self._chunk(choice, fields, {}, ends=choice.finish_reason is not None)

    def _chunk(
        self, choice: Choice, fields: dict[str, Any], extra: dict[str, Any], *, ends: bool = False
    ) -> bytes:
        finish = {
            "finish_reason": choice.finish_reason if ends else None,
            "stop_reason": choice.stop_reason if ends else None,
        }
        payload = {**self.head, "choices": [{"index": choice.index, **fields, **finish}], **extra}
        if self.generation.include_usage:
            prompt = self.generation.prompt_of(choice)
            payload["usage"] = prompt.usage(choice.num_tokens) if self.generation.continuous_usage else None
        return event(payload)
