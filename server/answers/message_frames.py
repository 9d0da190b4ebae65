"""Chunks of a streamed chat answer that may hold reasoning and tool calls."""

from __future__ import annotations

from typing import Any

from model.text.tokenizer import Tokenizer
from server.answers.frames import ChunkFormat
from server.answers.logprobs import chat_logprobs
from server.delivery.choice import Choice
from server.delivery.generation import Generation
from server.parsers.events import CallArguments, CallStart, Content, Event, Reasoning, merged


def chunk_format(generation: Generation, tokenizer: Tokenizer) -> ChunkFormat:
    return (MessageChunks if generation.is_parsed else ChunkFormat)(generation, tokenizer)


class MessageChunks(ChunkFormat):
    """A chunk for each event; a choice ends in one with an empty delta."""

    def __init__(self, generation: Generation, tokenizer: Tokenizer) -> None:
        super().__init__(generation, tokenizer)
        self._num_calls = [0] * len(generation.choices)

    def delta(self, choice: Choice) -> bytes:
        deltas = [self._delta(choice.index, event) for event in merged(choice.take_events())]
        chunks: list[dict[str, Any]] = [{"delta": delta, "logprobs": None} for delta in deltas if delta]
        if choice.finish_reason is not None:
            chunks.append({"delta": {}, "logprobs": None})
        self._add_tokens(chunks, choice)
        last = len(chunks) - 1 if choice.finish_reason is not None else None
        return b"".join(
            [self._chunk(choice, fields, {}, ends=position == last) for position, fields in enumerate(chunks)]
        )

    def _add_tokens(self, chunks: list[dict[str, Any]], choice: Choice) -> None:
        """Log-probabilities and ids of new tokens go with the first chunk, or with one of their own."""
        tokens = choice.take_tokens()
        if not tokens:
            return
        if not chunks:
            chunks.append({"delta": {}, "logprobs": None})
        if self.generation.logprobs:
            chunks[0]["logprobs"] = chat_logprobs(self.generation, choice, tokens, self.tokenizer)
        if self.generation.return_token_ids:
            chunks[0]["token_ids"] = [token.token_id for token in tokens]

    def _delta(self, index: int, event: Event) -> dict[str, Any]:
        """Empty for what a stream does not tell: a call that was cut has been sent as far as it went."""
        match event:
            case Content(text):
                return {"content": text}
            case Reasoning(text):
                return dict.fromkeys(self.generation.reasoning_fields, text)
            case CallStart(name, call_id):
                self._num_calls[index] += 1
                function = {"name": name, "arguments": ""}
                return self._call_delta(index, {"id": call_id, "type": "function", "function": function})
            case CallArguments(text):
                return self._call_delta(index, {"function": {"arguments": text}})
        return {}

    def _call_delta(self, index: int, fields: dict[str, Any]) -> dict[str, Any]:
        return {"tool_calls": [{"index": self._num_calls[index] - 1, **fields}]}
